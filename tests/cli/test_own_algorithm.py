"""A user-defined algorithm is trained, resumed and loaded like the stock ones."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from examples.own_algorithm import Reinforce, ReinforceConfig, main
from multiverse.algorithms import UpdateReport
from multiverse.cli.commands.train import config_from, train_options
from multiverse.cli.main import main as command
from multiverse.training import side_by_side
from tests.training.small_runs import digest

SMALL: dict[str, Any] = {"num_envs": 2, "executor": "serial", "evaluate_every": 0, "evaluation_episodes": 1}
LITTLE: dict[str, Any] = {**SMALL, "steps_per_env": 16, "progress": False}


@pytest.fixture(autouse=True)
def no_file_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("file_of_mine", None)


@dataclass(frozen=True)
class ShortConfig(ReinforceConfig):
    steps_per_env: int = 32
    """Steps of every env in a rollout."""


class Short(Reinforce):
    Config = ShortConfig


def test_example_algorithm_learns(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = main(env_steps=20_000)
    assert run.path.name.startswith("Reinforce-1-") and run.summary["algorithm"] == "examples.own_algorithm:Reinforce"
    assert run.summary["evaluation"]["mean_return"] > 60  # random actions have 22
    assert "action for the first observation" in capsys.readouterr().out


def test_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    whole = mv.train("CartPole-v1", Short, run_dir=tmp_path / "whole", env_steps=512, **SMALL)
    first = mv.train("CartPole-v1", Short, run_dir=tmp_path / "parts", env_steps=512, hooks=[StopAt(4)], **SMALL)
    assert first.summary["env_steps"] == 256
    again = mv.resume(first, algorithm=Short)
    assert again.summary["env_steps"] == 512
    # The algorithm knows only the used share of the budget, so stopping changes nothing.
    assert digest(again) == digest(whole)


class StopAt(mv.Hook):
    def __init__(self, updates: int) -> None:
        self._updates = updates

    def on_update(self, trainer: Any, report: Any) -> None:
        if trainer.clock.updates == self._updates:
            trainer.stop("enough")


def test_importable_algorithm_need_not_be_passed_again(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", Short, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    observation, _ = gym.make("CartPole-v1").reset(seed=0)
    assert mv.load(run).act(observation) in (0, 1)
    assert mv.resume(run, env_steps=128).summary["env_steps"] == 128


def test_algorithm_that_cannot_be_imported_must_be_passed_again(tmp_path: Path) -> None:
    def maker(*spaces_and_more: Any) -> Reinforce:
        return Short(ShortConfig(), *spaces_and_more, "cpu")

    run = mv.train("CartPole-v1", maker, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    with pytest.raises(mv.errors.InvalidRequest, match=r"the algorithm of this run is .*maker, a class of a program"):
        mv.resume(run.path)
    assert mv.resume(run, env_steps=128).summary["env_steps"] == 128  # a `Run` object keeps its arguments
    observation, _ = gym.make("CartPole-v1").reset(seed=0)
    assert mv.load(run, algorithm=maker).act(observation) == mv.load(run).act(observation)  # the run holds the policy


def test_algorithm_of_a_script_is_needed_for_resume_but_not_for_evaluate(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = type("Scripted", (Short,), {"__module__": "__main__"})
    run = mv.train("CartPole-v1", script, run_dir="one", env_steps=64, **SMALL)
    again = mv.evaluate(run.path, episodes=1, seed=0)
    assert again.mean_return == run.summary["evaluation"]["mean_return"]
    assert command(["evaluate", "one", "--episodes", "1"]) == 0
    assert command(["replay", "one", "--episode", "0"]) == 0
    assert "The return and the length are the same" in capsys.readouterr().out
    assert command(["resume", "one"]) == 2
    message = "pass it again, algorithm=Scripted (in a shell: --algorithm FILE.py:CLASS)"
    assert message in capsys.readouterr().err


def test_algorithm_file_is_found_from_any_directory_and_can_be_passed_after_a_move(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of_mine("here")
    monkeypatch.chdir("here")
    mv.train("CartPole-v1", "file_of_mine.py:Mine", run_dir="../one", env_steps=64, **LITTLE)
    monkeypatch.chdir(elsewhere)
    assert command(["resume", "one", "--env-steps", "128"]) == 0
    moved("here", "there")
    capsys.readouterr()
    place = "/path/to/file_of_mine.py:Mine"
    message = f"is not there: --algorithm {place}, in Python algorithm='{place}'"
    assert command(["resume", "one", "--env-steps", "192"]) == 2
    assert f"was in {elsewhere}/here/file_of_mine.py, and {message}" in capsys.readouterr().err
    with pytest.raises(mv.errors.InvalidRequest, match=re.escape(message)):
        mv.resume("one", env_steps=192)
    for wrong in ("sac", "Mine"):
        assert command(["resume", "one", "--algorithm", wrong]) == 2
        assert "of this run is file_of_mine.py:Mine; expected your module:Class" in capsys.readouterr().err
    name = "there/file_of_mine.py:Mine"
    assert command(["resume", "one", "--env-steps", "192", "--algorithm", name]) == 0
    assert command(["resume", "one", "--env-steps", "256"]) == 0, "the run keeps where it is"
    assert mv.resume("one", algorithm=name, env_steps=320, progress=False).summary["env_steps"] == 320


def file_of_mine(folder: str) -> None:
    """Write a file with an algorithm and with one that cannot be constructed."""
    Path(folder).mkdir()
    Path(folder, "file_of_mine.py").write_text(
        "import multiverse\nfrom examples.own_algorithm import Reinforce\n\nclass Mine(Reinforce): ...\n\n"
        "class Other(Reinforce):\n    def __init__(self, *given):\n"
        "        raise multiverse.errors.InvalidRequest('no')\n"
    )


def moved(folder: str, there: str) -> None:
    """Move the folder, as for another program."""
    Path(folder).rename(there)
    sys.modules.pop("file_of_mine", None)


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("typed", [False, True])
def test_algorithm_file_moved_together_with_its_runs_is_found(
    seeds: int, typed: bool, elsewhere: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of_mine("here")
    monkeypatch.chdir("here")
    mv.train("CartPole-v1", "file_of_mine.py:Mine", run_dir="one", seeds=seeds, env_steps=64, **LITTLE)
    monkeypatch.chdir(elsewhere)
    moved("here", "there")
    monkeypatch.chdir("there")
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 1)
    if typed:
        assert command(["resume", "one", "--env-steps", "128"]) == 0
    else:
        mv.resume("one", env_steps=128, progress=False)
    message = (
        f"there is no {elsewhere}/here/file_of_mine.py: the algorithm of file_of_mine.py in this directory is used"
    )
    assert caplog.messages.count(message) == (1 if seeds == 1 else 3), "once for each run, and for all of them"
    run = "one" if seeds == 1 else "one/seed-1"
    assert mv.Run.at(run).summary["env_steps"] == 128
    monkeypatch.chdir(elsewhere)
    assert mv.resume(f"there/{run}", env_steps=192).summary["env_steps"] == 192, "the run keeps where it is"


def test_relative_algorithm_path_of_an_old_run_is_reported_unchanged(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of_mine("here")
    mv.train("CartPole-v1", "here/file_of_mine.py:Mine", run_dir="one", env_steps=64, **LITTLE)
    config = Path("one/config.yaml").read_text()
    Path("one/config.yaml").write_text(config.replace(f"{elsewhere}/here/", ""))
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"the algorithm of this run was in file_of_mine\.py, and is not there"
    ):
        mv.resume("one", trust=True)


@pytest.mark.parametrize(("typed", "cores"), [(False, 1), (True, 1), (False, 2), (True, 2)])
def test_seed_set_resumes_with_a_moved_algorithm_and_is_unchanged_by_an_invalid_one(
    typed: bool, cores: int, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: cores)

    def goes_on(*words: str, **given: Any) -> bool:
        if typed:
            return command(["resume", "set", *words]) == 0
        try:
            return mv.resume("set", progress=False, **given) is not None
        except mv.MultiverseError:
            return False

    file_of_mine("here")
    mv.train("CartPole-v1", "here/file_of_mine.py:Mine", run_dir="set", seeds=2, env_steps=64, **LITTLE)
    shutil.rmtree("set/seed-1")  # as after an interrupt: it has not begun
    before = Path("set/config.yaml").read_bytes()
    other = "here/file_of_mine.py:Other"
    assert not goes_on("--algorithm", other, algorithm=other)
    assert Path("set/config.yaml").read_bytes() == before
    assert goes_on(), "as if nothing had been asked for"
    shutil.rmtree("set/seed-1")
    moved("here", "there")
    assert not goes_on("--env-steps", "128", env_steps=128)
    name = "there/file_of_mine.py:Mine"
    assert goes_on("--env-steps", "128", "--algorithm", name, env_steps=128, algorithm=name)
    for seed in (0, 1):
        assert f"algorithm: {elsewhere}/{name}" in Path(f"set/seed-{seed}/config.yaml").read_text()
    assert f"algorithm: {elsewhere}/here/file_of_mine.py:Mine" in Path("set/config.yaml").read_text()
    assert [mv.Run.at(f"set/seed-{seed}").summary["env_steps"] for seed in (0, 1)] == [128, 128]


def test_run_with_env_and_algorithm_from_a_script_stays_trusted(elsewhere: Path) -> None:
    """Neither the env nor the algorithm of a script is code that the run names; named code then belongs to the user."""
    file_of_mine("here")
    Path("envs_of_mine.py").write_text("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    script = type("Scripted", (Reinforce,), {"__module__": "__main__"})
    mv.train(lambda: gym.make("CartPole-v1"), script, run_dir="one", env_steps=64, **LITTLE)
    env = ["resume", "one", "--env", "envs_of_mine.py:make", "--env-steps"]
    assert command([*env, "128", "--algorithm", "here/file_of_mine.py:Mine"]) == 0
    assert command([*env, "192"]) == 0


def test_run_with_moved_env_and_algorithm_stays_trusted(elsewhere: Path) -> None:
    file_of_mine("here")
    Path("here/envs_moved.py").write_text("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    names = [f"here/{name}" for name in ("envs_moved.py:make", "file_of_mine.py:Mine")]
    mv.train(names[0], names[1], run_dir="one", env_steps=64, **LITTLE)
    moved("here", "there")
    sys.modules.pop("envs_moved")
    env = ["resume", "one", "--env", "there/envs_moved.py:make", "--env-steps"]
    assert command([*env, "128", "--algorithm", "there/file_of_mine.py:Mine"]) == 0
    assert command([*env, "192"]) == 0


def test_resume_with_another_algorithm_is_refused(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mv.train("CartPole-v1", run_dir="one", env_steps=64, steps_per_env=16, batch_size=32, **SMALL)
    message = "the algorithm of this run is ppo; that cannot change in a run"
    assert command(["resume", "one", "--algorithm", "examples.own_algorithm:Reinforce"]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        mv.resume("one", algorithm="sac")
    assert command(["resume", "one", "--algorithm", "ppo", "--env-steps", "128"]) == 0, "the same algorithm is accepted"
    assert mv.resume("one", algorithm="ppo", env_steps=192).summary["env_steps"] == 192


def test_algorithm_whose_module_is_missing_is_not_needed_for_evaluate(tmp_path: Path) -> None:
    gone = type("Gone", (Short,), {"__module__": "no_such_module"})
    run = mv.train("CartPole-v1", gone, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    assert mv.evaluate(run.path, episodes=1, seed=0).mean_return == run.summary["evaluation"]["mean_return"]


def test_settings_of_an_own_algorithm_are_flags_config_keys_and_arguments(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "examples.own_algorithm:Reinforce"
    small = [
        "--num-envs",
        "2",
        "--executor",
        "serial",
        "--evaluate-every",
        "0",
        "--evaluation-episodes",
        "1",
        "--env-steps",
        "64",
    ]
    words = ["train", "CartPole-v1", "--algorithm", name, "--steps-per-env", "32", "--learning-rate", "2.5", *small]
    assert command([*words, "--run-dir", "one"]) == 0
    config = Path("one/config.yaml").read_text()
    assert f"algorithm: {name}" in config and "settings:\n  steps_per_env: 32\n  learning_rate: 2.5" in config
    assert command(["train", "--config", "one/config.yaml", "--run-dir", "two", "--gamma", "0.5"]) == 0
    assert "gamma: 0.5" in Path("two/config.yaml").read_text()
    assert command(["resume", "one", "--env-steps", "128"]) == 0
    assert command(["evaluate", "one", "--episodes", "2"]) == 0
    capsys.readouterr()
    assert command([*words, "--clip-range", "0.1"]) == 2
    assert f"--clip-range is a setting of ppo, taac; the algorithm of this run is {name}" in capsys.readouterr().err
    assert command(["train", "--algorithm", name, "--help"]) == 0
    assert "Initial step size; decreases linearly to 0." in capsys.readouterr().out


def test_settings_of_another_algorithm_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="clip_range: there is no such setting"):
        mv.train("CartPole-v1", Short, run_dir=tmp_path / "one", clip_range=1.0)


class Unfinished(Short):
    weights = property()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (
            "sac2",
            "there is no algorithm 'sac2': one of ppo, a2c, taac, sac, td3, discrete_sac, dqn, or your module:Class",
        ),
        ("no_such_module:Mine", "algorithm 'no_such_module:Mine' cannot be imported: ModuleNotFoundError"),
        ("examples.own_algorithm:Mine", "cannot be imported: AttributeError"),
        (Unfinished, "Unfinished does not implement the interface of algorithms: it has no weights"),
    ],
)
def test_invalid_algorithm_is_refused_with_a_reason(algorithm: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=said):
        mv.train("CartPole-v1", algorithm, run_dir=tmp_path / "one", env_steps=64, **SMALL)


@dataclass(frozen=True)
class WithoutDefault:
    x: int


@dataclass(frozen=True)
class WithASeed:
    seed: int = 3


class Bare:
    Config = WithoutDefault


class Taken:
    Config = WithASeed


class NoDataclass:
    Config = "hello"


class FewArguments:
    Config = ReinforceConfig


FIVE = 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (":Mine", "there is no algorithm ':Mine'"),
        (f"{__name__}:", "there is no algorithm"),
        (f"{__name__}:FIVE", "is int: expected a class"),
        (f"{__name__}:Bare", "Bare.Config: x must have a default"),
        (f"{__name__}:Taken", "Taken.Config: seed is a setting of every run; choose another name"),
        (f"{__name__}:NoDataclass", "NoDataclass.Config is 'hello': expected a dataclass"),
        (f"{__name__}:FewArguments", "FewArguments cannot be created with (config, observation_space"),
        ("os:system", "system cannot be created with (observation_space"),
    ],
)
def test_invalid_algorithm_on_the_command_line_is_reported_in_one_line(
    name: str, said: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", "CartPole-v1", "--algorithm", name, "--num-envs", "2", "--executor", "serial"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


class TellsADict(Short):
    def update(self, rollouts: Any, progress: float) -> Any:
        super().update(rollouts, progress)
        return {"entropy": 0.5}


class TellsNonsense(Short):
    def update(self, rollouts: Any, progress: float) -> Any:
        return 5


def test_update_returns_a_dict_or_a_report_and_nothing_else(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", TellsADict, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    assert '"entropy": 0.5' in (run.path / "metrics.jsonl").read_text()
    with pytest.raises(mv.errors.InvalidRequest, match=r"update\(\) returned 5: expected an UpdateReport"):
        mv.train("CartPole-v1", TellsNonsense, run_dir=tmp_path / "two", env_steps=64, **SMALL)


def test_equal_setting_names_of_two_algorithms_do_not_collide() -> None:
    one, other = (config_from(train_options(["CartPole-v1", "--algorithm", name])) for name in ("ppo", "a2c"))
    assert (one.settings.learning_rate, other.settings.learning_rate) == (1e-3, 7e-4)  # 1e-3 is from the preset
    assert {type(one.settings).__name__, type(other.settings).__name__} == {"PPOConfig", "A2CConfig"}


class Policy:
    """A policy for tests of mistakes: it returns 0."""

    version = 0

    def noise(self, rng: Any, steps: int, rows: int) -> Any:
        return np.zeros((steps, rows))

    def first_memory(self, rows: int) -> Any:
        return {"seen": np.zeros(rows)}

    def act(self, seen: Any, noise: Any, memory: Any) -> Any:
        return np.zeros(len(seen.starts), np.int64), memory

    def for_env(self, actions: Any) -> Any:
        return actions

    def portable(self) -> Any:
        return self


def mistaken(**wrong: Any) -> type:
    """An algorithm that has this mistake, in its policy or itself."""
    names = [name for name in wrong if hasattr(Policy, name)]
    policy = type("Wrong", (Policy,), {name: wrong.pop(name) for name in names})()
    return type("Mistaken", (Short,), {"policy": lambda self: policy, **wrong})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"act": lambda *_: None}, r"act\(\) returned NoneType: expected \(actions, memory\)"),
        ({"act": lambda *_: np.zeros(2)}, r"act\(\) returned ndarray: expected \(actions, memory\)"),
        ({"act": lambda *_: ([0, 0, 0], {})}, r"act\(\) returned memory of shapes {}: expected {'seen': \(2,\)}"),
        ({"act": lambda *_: ([0.5, 0.5], {"seen": np.zeros(2)})}, r"act\(\) returned float64 of shape \(2,\)"),
        ({"first_memory": lambda *_: None}, r"first_memory\(rows\) is None: expected a dict of arrays"),
        ({"noise": lambda *_: None}, r"noise\(rng, steps, rows\) has shape \(\): expected \(steps, rows, …\)"),
        ({"policy": lambda self: None}, r"policy\(\) is NoneType: it has no noise, first_memory, act"),
        ({"update": lambda self, rollouts: {}}, r"update cannot be called with \(rollouts, progress\): too many"),
        ({"update": None}, "update is None: expected a method"),
        (
            {"state": lambda self: {"x": object()}},
            "must return what a checkpoint can hold: state.x is a object",
        ),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_mistakes_in_an_own_algorithm_are_reported_before_learning(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(mv.MultiverseError, match=said):
        mv.train("CartPole-v1", mistaken(**wrong), run_dir=tmp_path / "run", env_steps=128, **SMALL)


def test_policy_receives_previous_actions_in_rollouts_evaluations_and_after_loading(tmp_path: Path) -> None:
    """In a rollout, in an evaluation, and when it is loaded: an array, with zeros where an episode starts."""

    def act(self: Any, seen: Any, noise: Any, memory: Any) -> Any:
        assert not seen.previous_actions[seen.starts].any() and len(seen.previous_rewards) == len(seen.starts)
        return (1 - seen.previous_actions).astype(np.int64), memory

    run = mv.train("CartPole-v1", mistaken(act=act), run_dir=tmp_path / "run", env_steps=128, **SMALL)
    assert run.summary["evaluation"] is not None and run.summary["evaluation_failures"]["failed"] == 0


def test_metrics_of_an_own_algorithm_are_logged(tmp_path: Path) -> None:
    own = {"update": lambda self, rollouts, progress: {"mine": 5.0}}
    run = mv.train("CartPole-v1", mistaken(**own), run_dir=tmp_path / "run", env_steps=128, **SMALL)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["updates"], row["mine"]) for row in rows if "mine" in row] == [(1, 5.0), (2, 5.0)]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("env_steps", 7, "which the run itself logs"),
        ("updates", 77, "which the run itself logs"),
        ("learn_share", 0.5, "which the run itself logs"),
        ("evaluation_mean_return", 1.0, "which the run itself logs"),
        ("notes", "text", "expected a number"),
        ("", 1.0, "expected a name"),
    ],
)
def test_invalid_metric_of_an_own_algorithm_is_refused(tmp_path: Path, name: str, value: Any, why: str) -> None:
    class Reports(Short):
        def update(self, rollouts: Any, progress: float) -> UpdateReport:
            report = super().update(rollouts, progress)
            return UpdateReport({**report.metrics, name: value}, 1)

    with pytest.raises(mv.errors.InvalidRequest, match=why):
        mv.train("CartPole-v1", Reports, run_dir=tmp_path / "run", env_steps=64, **LITTLE)


def test_numpy_policy_refuses_images_before_anything_is_collected(tmp_path: Path) -> None:
    class Sees(Short):
        images = True

    with pytest.raises(mv.errors.InvalidRequest, match=r"have images .* declares images = False"):
        mv.train(Images, Sees, run_dir=tmp_path / "run", env_steps=64, **LITTLE)
    with pytest.raises(mv.errors.InvalidRequest, match="images"):
        mv.train(Images, Short, run_dir=tmp_path / "run", env_steps=64, **LITTLE)


class Images(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **more: Any) -> Any:
        return np.zeros((36, 36, 3), np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros((36, 36, 3), np.uint8), 0.0, True, False, {}


def test_config_without_its_decorator_is_refused_by_name(tmp_path: Path) -> None:
    class Undecorated(ReinforceConfig):
        dual: float = 3.0

    class Dual(Reinforce):
        Config = Undecorated

    with pytest.raises(mv.errors.InvalidRequest, match=r"dual would not be a setting.*@dataclass\(frozen=True\)"):
        mv.train("CartPole-v1", Dual, run_dir=tmp_path / "run", env_steps=64, **LITTLE)
