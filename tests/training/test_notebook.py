"""`mv.train` in a real notebook: a kernel of Jupyter's, and cells that it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
manager = pytest.importorskip("jupyter_client.manager")

TRAIN = """
import os, signal
import multiverse as mv
small = dict(num_envs=2, steps_per_env=25, epochs=1, batch_size=50, evaluation_episodes=1, evaluate_every=0,
             executor="process", workers=1, preset=False)
run = mv.train("CartPole-v1", run_dir="first", env_steps=200, **small)
"""
INTERRUPT = """
class Stops(mv.Hook):
    def on_update(self, trainer, report):
        if trainer.clock.updates == 2:
            os.kill(os.getpid(), signal.SIGINT)  # what the stop button does

mv.train("CartPole-v1", run_dir="second", env_steps=100_000_000, hooks=[Stops()], **small)
"""
GO_ON = "mv.resume('second', env_steps=200, progress=False).summary['env_steps']"


def test_a_notebook_shows_a_bar_and_after_its_stop_button_goes_on(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in (TRAIN, "run", INTERRUPT, GO_ON)]
    book = nbformat.v4.new_notebook(cells=cells)
    kernel = manager.AsyncKernelManager()
    kernel.kernel_spec.argv[:] = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client = nbclient.NotebookClient(
        book, km=kernel, timeout=120, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    trained, shown, interrupted, went_on = (cell.outputs for cell in book.cells)
    assert "Run: first\n" in _text(trained) and "█" in _text(trained) and "Done: 200 env steps" in _text(trained)
    assert not [output for output in trained if output.get("name") == "stderr"]  # which is red
    assert shown[0]["data"]["text/plain"].startswith("<Run first: 200 env steps, return ")
    assert "Interrupted at 100 env steps. To go on: mv.resume('second')" in _text(interrupted)
    assert interrupted[-1]["ename"] == "KeyboardInterrupt"
    assert went_on[0]["data"]["text/plain"] == "200"


def _text(outputs: list[Any]) -> str:
    return "".join(output["text"] for output in outputs if output.output_type == "stream")
