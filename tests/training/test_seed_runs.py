"""Several seeds: in one directory, in parallel, resumed together, and summarised in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import multiverse as mv
from multiverse.cli.curves import curves_of
from multiverse.cli.main import main
from multiverse.training import seed_runs, side_by_side
from multiverse.training.runs.find_runs import find_set
from multiverse.training.runs.records import bootstrap_interval, interquartile_mean
from tests.training.small_runs import SMALL, digest

FEW = {**SMALL, "env_steps": 200, "progress": False}
WORDS = """
    --executor serial --num-envs 4 --steps-per-env 25 --epochs 2 --batch-size 32 --evaluate-every 0
    --evaluation-episodes 1 --no-preset
"""
FLAGS = WORDS.split()
ON_TWO_CORES = """
import sys
from multiverse.training import side_by_side
side_by_side.usable_cores = lambda: 2
from multiverse.cli.curves import curves_of
from multiverse.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 2)


def here(**kwargs: Any) -> Any:
    """An env that cannot be named to other processes."""
    return gymnasium.make("CartPole-v1", **kwargs)


def test_seeds_in_parallel_equal_single_runs(
    tmp_path: Path, two_cores: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = mv.train("CartPole-v1", run_dir=tmp_path / "set", seeds=2, **{**FEW, "progress": True})
    assert isinstance(found, seed_runs.SeedRuns) and list(found.runs) == [5, 6]
    output = capsys.readouterr().err
    assert all(f"seed {seed} | Run: seed-{seed}\n" in output for seed in (5, 6))
    lines = [line for line in output.splitlines() if line.startswith("seed ")]
    assert all(len(line) <= 80 for line in lines) and any(" steps " in line and " left" in line for line in lines)
    alone = mv.train("CartPole-v1", run_dir=tmp_path / "alone", **{**FEW, "seed": 6})
    assert digest(found.runs[6]) == digest(alone)


def test_summary_of_all_seeds_is_in_a_file(tmp_path: Path) -> None:
    found = mv.train(here, run_dir=tmp_path / "set", seeds=3, **FEW)
    report = json.loads((tmp_path / "set" / "seeds.json").read_text())
    returns = [run.summary["evaluation"]["mean_return"] for run in found.runs.values()]
    assert report["returns"] == dict(zip("567", returns)) and report["seeds"] == [5, 6, 7]
    assert report["iqm"] == interquartile_mean(returns) and report["interval"] == list(bootstrap_interval(returns))
    assert repr(found).startswith(f"<SeedRuns {tmp_path / 'set'}: IQM of 3 seeds: {report['iqm']:.1f} (95 %")


def test_seed_set_is_refused_where_one_run_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = mv.train(here, run_dir="set", seeds=2, **FEW)
    assert isinstance(found, seed_runs.SeedRuns)
    message = r"several seeds \(seed-5, seed-6\): choose one, set/seed-5, or in Python run.runs\[5\]"
    one_run: list[Any] = [mv.evaluate, mv.load, mv.record, lambda run: mv.replay(run, 0)]
    for what in one_run:
        with pytest.raises(mv.errors.InvalidRequest, match=message):
            what(found)
    for words in (["record", "set"], ["replay", "set", "--episode", "0"]):
        assert main(words) == 2 and "choose one, set/seed-5" in capsys.readouterr().err
    assert mv.load(found.runs[6]).act(np.zeros(4, np.float32)) in (0, 1)
    rows = found.rows()
    assert [row["seed"] for row in rows] == [seed for seed, run in found.runs.items() for _ in run.rows()]
    assert {row["seed"] for row in rows} == {5, 6}


def test_parent_directory_means_its_most_recent_seed_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mv.train("CartPole-v1", run_dir="runs/x/alone", **FEW)
    found = mv.train(here, run_dir="runs/x/set", seeds=2, **FEW)
    assert find_set(Path("runs/x")) == find_set(Path("runs")) == find_set(Path(".")) == found.path == Path("runs/x/set")
    longer = mv.resume("runs/x", env=here, env_steps=300, progress=False)
    assert isinstance(longer, seed_runs.SeedRuns) and longer.path == found.path
    assert main(["record", "runs"]) == 2 and "choose one, runs/x/set/seed-5" in capsys.readouterr().err
    assert [curve.runs[0].path.name for curve in curves_of(["runs/x"])] == ["alone", "seed-5"]
    assert [len(curve.runs) for curve in curves_of(["runs/x"])] == [1, 2]
    for file in Path("runs/x/alone").iterdir():
        os.utime(file, (4e9, 4e9))
    assert find_set(Path("runs/x")) is None and mv.Run.at("runs").path == Path("runs/x/alone")


def test_interrupted_set_resumes_all_unfinished_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupts(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.config.seed == 6:
                signal.raise_signal(signal.SIGINT)

    where = tmp_path / "set"
    with pytest.raises(KeyboardInterrupt):
        mv.train(here, run_dir=where, seeds=3, hooks=[Interrupts()], **{**FEW, "progress": True})
    assert f"To resume all of them: mv.resume({str(where)!r}, env=here)" in capsys.readouterr().err
    assert [(where / f"seed-{seed}").exists() for seed in (5, 6, 7)] == [True, True, False]
    done = (where / "seed-5" / "summary.json").stat().st_mtime_ns
    found = mv.resume(where, env=here, progress=False)
    assert isinstance(found, seed_runs.SeedRuns) and list(found.runs) == [5, 6, 7]
    assert (where / "seed-5" / "summary.json").stat().st_mtime_ns == done  # it was
    assert digest(found.runs[6]) == digest(mv.train(here, run_dir=tmp_path / "alone", **{**FEW, "seed": 6}))
    longer = mv.resume(where, env=here, env_steps=300, progress=False)
    assert isinstance(longer, seed_runs.SeedRuns)
    assert [run.summary["env_steps"] for run in longer.runs.values()] == [300, 300, 300]


@pytest.mark.fault("A14")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_interrupted_or_killed_set_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ON_TWO_CORES]
    words = ["train", "CartPole-v1", "--seeds", "2", "--run-dir", "set", *FLAGS, "--env-steps", "100000000"]
    process = subprocess.Popen([*command, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    training = set[str]()
    for line in process.stdout:
        if " steps " in line and " left" in line:
            training.add(line.partition(" | ")[0])
        if training == {"seed 0", "seed 1"}:
            break
    helpers = psutil.Process(process.pid).children(recursive=True)
    if (
        number == signal.SIGUSR1
    ):  # as a scheduler sends it: to every process of the job, also those that the set signals itself
        for helper in helpers:
            helper.send_signal(number)
    os.kill(process.pid, number)
    rest, _ = process.communicate(timeout=60)
    assert len(helpers) >= 2 and not psutil.wait_procs(helpers, timeout=30)[1]
    if number != signal.SIGKILL:
        assert process.returncode == {signal.SIGINT: 130, signal.SIGUSR1: 138}[number]
        assert rest.splitlines()[-1] == "Interrupted. To resume all of them: multiverse resume set"
        summaries = [json.loads((tmp_path / "set" / f"seed-{k}" / "summary.json").read_text()) for k in (0, 1)]
        assert [one["finished"] for one in summaries] == [False, False]


@pytest.mark.fault("A14")
def test_set_of_a_python_program_is_saved_at_sigterm(tmp_path: Path) -> None:
    program = """
import multiverse as mv
from multiverse.training import side_by_side
side_by_side.usable_cores = lambda: 2
mv.train("CartPole-v1", seeds=2, run_dir="set", num_envs=2, num_steps=16, env_steps=10**8, checkpoint_every_s=0.1)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, process_group=0)
    runs = [tmp_path / "set" / f"seed-{k}" for k in (0, 1)]
    while not all(any((run / "checkpoints").glob("step-*")) for run in runs):
        assert process.poll() is None
        time.sleep(0.05)
    helpers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143 and not psutil.wait_procs(helpers, timeout=30)[1]
    assert [json.loads((run / "summary.json").read_text())["finished"] for run in runs] == [False, False]


def test_failing_seed_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], two_cores: None
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "CartPole-v1", "--seeds", "2", "--run-dir", "set", *FLAGS, "--env-steps", "200"]
    assert main(words) == 0
    assert (tmp_path / "set" / "config.yaml").exists()
    for file in (tmp_path / "set" / "seed-1" / "checkpoints").rglob("manifest.json"):
        file.write_text("{}")  # no checkpoint of it is whole any more
    capsys.readouterr()
    assert main(["resume", "set", "--env-steps", "300"]) == 2
    out, error = capsys.readouterr()
    assert error.count("\n") == 1 and error.startswith("multiverse resume: seed 1 failed: ")
    assert json.loads(Path("set/seed-0/summary.json").read_text())["env_steps"] == 300
    assert "seed 0 | Run: seed-0" in out and "The others have finished; set can be resumed" in error
    for file in (tmp_path / "set" / "seed-0" / "checkpoints").rglob("manifest.json"):
        file.write_text("{}")
    assert main(["resume", "set", "--env-steps", "400"]) == 2
    assert "The others" not in (error := capsys.readouterr().err) and "set can be resumed" in error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 0}, "expected 1 to"),
        ({"seeds": 2, "seed": 2**64}, "from 0 to"),
        ({"seeds": 2}, "is not empty"),
    ],
)
def test_invalid_seed_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(mv.MultiverseError, match=message):
        mv.train("CartPole-v1", run_dir=tmp_path, **{**FEW, **settings})
    assert os.listdir(tmp_path) == ["mine.txt"]


@pytest.mark.parametrize(
    ("cores", "executor", "workers", "count", "wanted"),
    [
        (1, "auto", None, 5, (1, None)),
        (4, "auto", None, 2, (2, 2)),
        (4, "auto", None, 9, (4, 1)),
        (4, "process", 2, 9, (2, 2)),
        (4, "process", 8, 9, (1, 8)),
        (4, "serial", None, 3, (3, None)),
    ],
)
def test_cores_are_shared_between_seeds(
    cores: int, executor: Any, workers: int | None, count: int, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: cores)
    config = seed_runs.TrainConfig("CartPole-v1", executor=executor, workers=workers)
    at_once, shared = side_by_side.share_of_cores(config, count)
    assert (at_once, shared.workers) == wanted


def test_reason_for_the_end_of_a_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "many_ends.py").write_text(
        "import os\ndef child(order):\n    print('said')\n"
        "    if order['how'] == 'killed':\n        os.kill(os.getpid(), 9)\n"
        "    return int(order['how'] == 'failed')\n"
    )
    heard, ended = dict[int, str](), dict[int, str | None]()
    orders = iter(enumerate({"how": how} for how in ("done", "failed", "killed")))
    side_by_side.run_in_processes(orders, 2, "many_ends", heard.__setitem__, ended.__setitem__)
    assert ended == {0: None, 1: "said", 2: "it was killed by SIGKILL"} and heard[1] == "said"
