"""`mv.train` in a real notebook: a Jupyter kernel and the cells that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
REGISTER = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Mine(CartPoleEnv):
    pass

gymnasium.register("OfThisNotebook-v0", Mine)
with mv.make_vec(lambda: gymnasium.make("OfThisNotebook-v0"), 2, "process", workers=1) as envs:
    steps = [envs.reset(seed=1)[0].shape, envs.step(envs.action_space.sample())[1].tolist()]
steps
"""
GO_ON = "mv.resume('second', env_steps=200, progress=False).summary['env_steps']"


BOOK = """
import json, sys
import nbclient, nbformat
from jupyter_client.manager import AsyncKernelManager

book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in json.load(sys.stdin)])
kernel = AsyncKernelManager()
kernel.kernel_spec.argv[:] = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
nbclient.NotebookClient(book, km=kernel, timeout=120, allow_errors=True).execute()
json.dump([cell.outputs for cell in book.cells], sys.stdout)
"""


def test_notebook_shows_a_bar_and_resumes_after_an_interrupt(tmp_path: Path) -> None:
    cells = json.dumps([TRAIN, "run", INTERRUPT, GO_ON, REGISTER])
    done = subprocess.run(  # a separate process: Jupyter leaves sockets to the end of one
        [sys.executable, "-c", BOOK], cwd=tmp_path, input=cells, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    trained, shown, interrupted, went_on, registered = json.loads(done.stdout)
    assert "Run: first\n" in _text(trained) and "█" in _text(trained) and "Done: 200 env steps" in _text(trained)
    assert not [output for output in trained if output.get("name") == "stderr"]  # shown in red
    assert shown[0]["data"]["text/plain"].startswith("<Run first: 200 env steps, return ")
    assert "Interrupted at 100 env steps. To resume: mv.resume('second')" in _text(interrupted)
    assert interrupted[-1]["ename"] == "KeyboardInterrupt"
    assert went_on[0]["data"]["text/plain"] == "200"
    assert registered[0]["data"]["text/plain"] == "[(2, 4), [1.0, 1.0]]", registered


def _text(outputs: list[Any]) -> str:
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")
