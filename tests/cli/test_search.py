"""`multiverse tune --search`: specifications, trials that are runs, pruning, resume and reports."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("optuna")

import multiverse as mv
from multiverse.cli.commands.train import config_from, train_options
from multiverse.cli.figures import search_figure
from multiverse.cli.main import main
from multiverse.cli.search import Choice, Range, Space, space_of
from multiverse.cli.search_journal import opened
from multiverse.cli.search_study import Pruning, Trial
from multiverse.core.errors import InvalidRequest
from multiverse.training import side_by_side
from multiverse.training.config.resolve import config_for, plain_config, saved_config
from multiverse.training.runs.run_directory import read_provenance, read_summary
from tests.training.small_runs import SMALL

PPO = config_for("CartPole-v1", "ppo", {}, preset=False)
FLAGS = """
    --executor serial --num-envs 8 --steps-per-env 32 --epochs 4 --batch-size 128 --evaluation-episodes 4 --no-preset
"""
TWO = ["tune", "CartPole-v1", "--search", "lr=1e-9|0.003", *FLAGS.split(), "--env-steps", "2048", "--run-dir", "s"]


def space(text: str, algorithm: str = "ppo") -> Space:
    return space_of(text, config_for("CartPole-v1", algorithm, {}, preset=False))


# -- what is tried -----------------------------------------------------------------------------------------------
def test_search_specification_accepts_ranges_lists_and_defaults() -> None:
    found = space("lr=1e-5..1e-2, Batch-Size=32|64|128, epochs=2..8, gamma, activation, normalize_rewards, n_envs")
    assert found.dimensions == {
        "learning_rate": Range(1e-5, 1e-2, whole=False),
        "batch_size": Choice(("32", "64", "128")),
        "epochs": Range(2, 8, whole=True),
        "gamma": Choice(("0.9", "0.95", "0.98", "0.99", "0.995", "0.999")),
        "activation": Choice(("tanh", "relu")),
        "normalize_rewards": Choice(("true", "false")),
        "num_envs": Choice(("1", "2", "4", "8", "16", "32")),
    }
    assert Range(1e-5, 1e-2, False).log and not Range(0.2, 1.0, False).log and not Range(0.0, 1.0, False).log
    assert space("steps_per_env").dimensions != space("steps_per_env", "dqn").dimensions


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "sac", "td3", "discrete_sac", "dqn"])
def test_default_ranges_of_every_algorithm_are_valid(algorithm: str) -> None:
    from multiverse.cli.search import DEFAULT_VALUES

    found = space(",".join(["steps_per_env", *(name for name in DEFAULT_VALUES if _has(algorithm, name))]), algorithm)
    assert len(found.dimensions) > 6


def _has(algorithm: str, name: str) -> bool:
    config = config_for("CartPole-v1", algorithm, {}, preset=False)
    return name == "num_envs" or hasattr(config.settings, name)


def test_drawn_values_become_a_valid_config() -> None:
    found = space("lr=1e-5..1e-2,epochs=2..8,hidden_sizes=64 64|256 256,memory,target_kl,normalize_rewards")
    drawn = {"learning_rate": 0.0012345, "epochs": 5, "hidden_sizes": "256 256"}
    values = found.values({**drawn, "memory": "none", "target_kl": "0.03", "normalize_rewards": "true"})
    config = found.config(PPO, values).settings
    assert (config.learning_rate, config.epochs, config.hidden_sizes) == (0.00123, 5, (256, 256))
    assert (config.memory, config.target_kl, config.normalize_rewards) == (None, 0.03, True)
    own = found.drawn_for(PPO)
    assert own == {"learning_rate": 3e-4, "epochs": 4, "hidden_sizes": "64 64", "memory": "none", "target_kl": "none",
                   "normalize_rewards": "false"}  # fmt: skip
    assert space("lr=1e-3..1e-2").drawn_for(PPO) == {}  # the default is not in there
    assert Range(1e-5, 1e-2, False).rounded(1.00001e-5) == 1e-5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learnin_rate", r"ppo has no such setting\. Did you mean learning_rate\?"),
        ("tau", "ppo has no such setting"),
        ("seed", "--search seed: only settings of ppo and num_envs can be searched"),
        ("filters", r"--search filters has no default values: pass filters=LOW\.\.HIGH or =A\|B\|C"),
        ("lr=1..", "'' is not a number"),
        ("lr=2..1", "the start of the range must be below its end"),
        ("lr=0..1", "learning_rate=0.0: expected more than 0"),
        ("activation=1..2", "activation is not a number"),
        ("activation=tanh|relo", "expected one of tanh, relu, found 'relo'. Did you mean relu"),
        ("lr=1e-3", "at least two values"),
        ("lr,learning_rate", "--search learning_rate: the setting is named twice"),
        ("normalize_rewards=yes|no", "normalize_rewards is true or false"),
        ("", "--search needs settings"),
    ],
)
def test_invalid_search_specification_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        space(text)


ANT = Path(__file__).parents[2] / "examples" / "meta_rl" / "configs" / "ant_dir.yaml"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("tune CartPole-v1 --search lr --pruner best", "--pruner best: expected one of median, halving, none"),
        ("tune CartPole-v1 --search lr --trials 0", "--trials 0: must be greater than 0"),
        ("tune CartPol-v1 --search lr", "did you mean CartPole-v1?"),
        ("tune CartPole-v1 --search lr --trails 3", "there is no --trails; did you mean --trials?"),
        ("tune CartPole-v1 --search lr --run-dir file", "file cannot be the directory of a search"),
        ("tune CartPole-v1 --search lr --run-dir full", "full is not empty and holds no search"),
        (f"tune --config {ANT} --search num_envs", f"change {ANT}, line 10: env.num_parallel_workers instead"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    typed: str, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/mine.txt").write_text("")
    assert main(typed.split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not Path("searches").exists()


def test_missing_optuna_is_reported_with_the_extra(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["tune", "CartPole-v1", "--search", "lr"]) == 2
    assert "--search needs optuna, not installed here: pip install 'multiverse[search]'" in capsys.readouterr().err


# -- a search ----------------------------------------------------------------------------------------------------
def test_trials_are_runs_and_bad_ones_are_pruned(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 1)  # one by one: what each is measured by is the same
    halving = [*TWO, "--lr", "0.003", "--pruner", "halving"]
    assert main([*halving, "--trials", "1"]) == 0
    first = json.loads(Path("s/search.json").read_text())
    assert [(one["settings"], one["state"]) for one in first["trials"]] == [({"learning_rate": 0.003}, "complete")]
    capsys.readouterr()
    assert main([*halving, "--trials", "3", "--json"]) == 0
    out, error = capsys.readouterr()
    assert "Resuming s: 1 of 3 trials done." in error and "pruned at 20 % of its budget" in error
    found = json.loads(Path("s/search.json").read_text())
    assert found["trials"][:1] == first["trials"] and len(found["trials"]) == 3
    states = {trial["number"]: trial["state"] for trial in found["trials"]}
    pruned = [number for number, state in states.items() if state == "pruned"]
    assert pruned and {*states.values()} == {"complete", "pruned"}
    for number in pruned:  # they learn nothing, and cost less
        summary = read_summary(Path(f"s/trial-{number}"))
        assert found["trials"][number]["settings"] == {"learning_rate": 1e-9}
        assert summary["env_steps"] < 2048 and summary["stopped"].startswith("pruned at ")
    best = found["trials"][found["best"]]
    assert best["settings"] == {"learning_rate": 0.003} and best["returned"] == max(
        trial["returned"] for trial in found["trials"] if trial["state"] == "complete"
    )
    assert Path("s/search.png").read_bytes().startswith(b"\x89PNG")
    assert "Best of 3 trials, " in error and json.loads(out) == found
    command = next(line.strip() for line in error.splitlines() if line.startswith("  multiverse train "))
    _, _, *words = shlex.split(command)
    assert words[-2:] == ["--seeds", "5"]
    best_run = _config_of(Path("s") / best["run"])
    values = {**plain_config(config_from(train_options(words[:-2]))), "evaluate_every": 0, "seed": best_run.seed}
    assert values == plain_config(best_run)
    seeds = [_config_of(Path(f"s/trial-{number}")).seed for number in range(3)]
    rates = [trial["settings"]["learning_rate"] for trial in found["trials"]]
    assert seeds == [rates[:number].count(rates[number]) for number in range(3)]  # what is drawn again has another


@pytest.mark.parametrize("rates", [(1e-5, 1e-1), (2e-5, 9e-4), (3e-4, 9e-4), (2.9e-4, 3.3e-4), (3e-4, 3e-4)])
def test_labels_of_a_logarithmic_axis_do_not_overlap(rates: tuple[float, float]) -> None:
    """However narrow the tried part of the range."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    trials = [Trial(n, {"learning_rate": rate}, "complete", 1.0 + n) for n, rate in enumerate(rates)]
    whole = search_figure(trials, space("learning_rate=1e-5..1e-1"))
    canvas = FigureCanvasAgg(whole)
    canvas.draw()
    axes = whole.axes[1]
    assert axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    labels = [*axes.xaxis.get_majorticklabels(), *axes.xaxis.get_minorticklabels()]
    seen = [label for label in labels if label.get_text() and low <= label.get_position()[0] <= high]
    assert len(seen) >= 2
    boxes = sorted((label.get_window_extent(canvas.get_renderer()) for label in seen), key=lambda box: box.x0)
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes)), [label.get_text() for label in seen]


@pytest.mark.parametrize(("pruner", "stages"), [("median", [1, 2]), ("none", [1, 2, 3, 4])])
def test_trial_below_the_median_is_pruned(pruner: str, stages: list[int], tmp_path: Path) -> None:
    study = opened(tmp_path)
    for returned in (20.0, 200.0, 300.0, 100.0):  # at every stage
        found = study.ask()
        for stage in range(1, 5):
            found.report(returned, stage)
        study.tell(found, returned)
    number, settings = study.ask().number, {**SMALL, "learning_rate": 1e-9, "env_steps": 1000}
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", hooks=[Pruning(tmp_path, number, pruner)], **settings)
    reported = study.trials[number].intermediate_values
    assert [*reported] == stages and max(reported.values()) < 150
    assert run.summary["env_steps"] == (400 if pruner == "median" else 1000)
    stopped = "pruned at 40 % of its budget: others were better by then"
    assert run.summary["stopped"] == (stopped if pruner == "median" else None)


def _config_of(run: Path) -> Any:
    from multiverse.training.config.files import read_config

    return saved_config(read_config(run / "config.yaml"), str(run), None)


def test_other_search_in_the_same_directory_is_refused(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TWO, "--trials", "1"]) == 0
    capsys.readouterr()
    assert main([*TWO, "--trials", "2", "--epochs", "3"]) == 2
    assert "s holds a search with other settings (epochs: 4, now 3)" in capsys.readouterr().err
    assert main([*[word.replace("1e-9", "1e-8") for word in TWO], "--trials", "2"]) == 2
    assert "s holds a search with other settings (--search lr=1e-9|0.003)" in capsys.readouterr().err


def test_search_ends_if_every_trial_fails(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("def make():\n    raise OSError('no such cartridge')\n")
    assert main(["tune", "broken.py:make", "--search", "lr", *FLAGS.split(), "--run-dir", "s"]) == 2
    error = capsys.readouterr().err
    assert error.count(": failed: ") >= 3 and " trials failed: " in error and "no such cartridge" in error
    assert len(opened(Path("s")).trials) < 8


LONG = [*(word.replace("2048", "60000") for word in TWO), "--checkpoint-every-s", "0.1"]


def interrupted(words: list[str], number: signal.Signals) -> tuple[int, str]:
    """The command in a process that is ended after the first checkpoint of the first trial."""
    command = [sys.executable, "-m", "multiverse.cli", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0)
    while not any(Path("s/trial-0/checkpoints").glob("step-*")):
        assert process.poll() is None
        time.sleep(0.05)
    helpers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert helpers and not psutil.wait_procs(helpers, timeout=30)[1]
    return process.returncode, error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_interrupted_trial_resumes(number: signal.Signals, elsewhere: Path) -> None:
    words = [*LONG, "--trials", "1"]
    code, error = interrupted(words, number)
    if number != signal.SIGKILL:
        assert code == {signal.SIGINT: 130, signal.SIGUSR1: 138}[number]
        assert error.endswith("Interrupted. The same command resumes the search. Results so far: s\n")
        assert read_summary(Path("s/trial-0"))["finished"] is False
    assert [trial.state.name for trial in opened(Path("s")).trials] == ["RUNNING"]
    assert main(words) == 0
    assert read_summary(Path("s/trial-0"))["finished"] is True and len(read_provenance(Path("s/trial-0"))) == 2
    assert [trial.state.name for trial in opened(Path("s")).trials] == ["COMPLETE"]


@pytest.mark.parametrize("folder", ["", "there/"])
def test_search_resumes_with_a_moved_algorithm(
    folder: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(folder: str, name: str = "Mine") -> list[str]:
        return [*LONG, "--run-dir", f"{folder}s", "--algorithm", f"{folder}searched.py:{name}", "--trials=1"]

    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("searched", None)
    Path("here").mkdir()
    Path("here/searched.py").write_text(
        "from multiverse.algorithms.ppo import PPO\n\nclass Mine(PPO): ...\n\nclass Other(PPO): ...\n"
    )
    monkeypatch.chdir("here")
    interrupted(words(""), signal.SIGINT)
    monkeypatch.chdir(elsewhere)
    Path("here").rename("there")
    if not folder:
        monkeypatch.chdir("there")
    assert main(words(folder)) == 0
    monkeypatch.chdir(elsewhere)
    assert read_summary(Path("there/s/trial-0"))["finished"] is True
    assert len(read_provenance(Path("there/s/trial-0"))) == 2
    assert main(words("there/")) == 0, "the same file, from another directory"
    capsys.readouterr()
    assert main(words("there/", "Other")) == 2
    assert "there/s holds a search with other settings (algorithm: " in capsys.readouterr().err
