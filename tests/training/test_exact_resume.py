"""A run that is killed anywhere and resumed ends equal to one that was never interrupted, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from tests.forked_programs import ForkedPrograms
from tests.training.envs import Saveable
from tests.training.small_runs import SMALL, digest, lines_of

KILLED = """
import json, os, signal, sys
import multiverse as mv
from multiverse.algorithms.ppo import PPO
from multiverse.rollouts.rows import Rows
from multiverse.learning.optimizers import Adam
from multiverse.training.runs import tables

home, first, settings, where, at = json.loads(sys.argv[1])

def dies(owner, name):
    before, calls = getattr(owner, name), [0]
    def dying(*arguments, **named):
        calls[0] += 1
        if calls[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*arguments, **named)
    setattr(owner, name, dying)

if where == "collect":
    dies(Rows, "act")
elif where == "learn":
    dies(Adam, "step")
elif where == "save":
    dies(os, "fsync")
elif where == "flush":
    write, calls = tables.write_all, [0]
    def torn(descriptor, data):
        calls[0] += 1
        if calls[0] == at:
            write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write(descriptor, data)
    tables.write_all = torn
if first:
    mv.train(settings.pop("env", "CartPole-v1"), run_dir=home, **settings)
else:
    mv.resume(home)
print("finished")
"""


def go_on(
    programs: ForkedPrograms, home: Path, first: bool, settings: dict[str, Any], where: str = "", at: int = 0
) -> bool:
    """Train, or resume, in a separate process that kills itself at that moment; return whether it reached the end."""
    done = programs.run(KILLED, json.dumps([str(home), first, settings, where, at]))
    if done.returncode == -signal.SIGKILL:
        return False
    assert done.returncode == 0, done.stderr
    return True


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("whole") / "run"
    mv.train("CartPole-v1", run_dir=home, **SMALL, checkpoint_every_s=0.0)
    return home


@pytest.mark.fault("D5")
@pytest.mark.parametrize(
    "deaths",
    [
        [("collect", 3)],  # before there is any checkpoint
        [("collect", 130), ("learn", 11)],
        [("save", 14), ("save", 31)],
    ],
    ids=lambda deaths: "-".join(f"{where}{at}" for where, at in deaths),
)
def test_killed_run_resumes_exactly(
    deaths: list[tuple[str, int]], uninterrupted: Path, tmp_path: Path, programs: ForkedPrograms
) -> None:
    home, settings = tmp_path / "run", {**SMALL, "checkpoint_every_s": 0.0}
    for number, (where, at) in enumerate(deaths):
        assert not go_on(programs, home, number == 0, settings, where, at), "it should have died on the way"
    mv.resume(home)
    assert digest(home) == digest(uninterrupted)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert lines_of(home, name) == lines_of(uninterrupted, name)


@pytest.mark.fault("D5")
@pytest.mark.parametrize("executor", ["thread", "process", "hybrid"])
@pytest.mark.parametrize("workers", [1, 3])
def test_executor_and_worker_count_do_not_change_the_weights(
    executor: str, workers: int, uninterrupted: Path, tmp_path: Path
) -> None:
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", **{**SMALL, "executor": executor, "workers": workers})
    assert digest(run.path) == digest(uninterrupted)


def test_run_with_a_longer_budget_continues_exactly(uninterrupted: Path, tmp_path: Path) -> None:
    """None of these settings depends on the budget, so the two halves of a run equal the whole."""
    half = mv.train("CartPole-v1", run_dir=tmp_path / "run", **{**SMALL, "env_steps": 1_000})
    assert half.summary["env_steps"] == 1_000
    mv.resume(half, env_steps=2_000)
    assert digest(half.path) == digest(uninterrupted)


@pytest.mark.fault("A14")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_signal_saves_and_ends_the_run_which_resumes_exactly(
    number: signal.Signals, code: int, uninterrupted: Path, tmp_path: Path, programs: ForkedPrograms
) -> None:
    """It is sent in the middle of a rollout: rows since the last update are collected again later."""
    home = tmp_path / "run"
    script = (
        "import os, sys, signal, multiverse as mv\n"
        "from multiverse.rollouts.rows import Rows\n"
        "before, calls = Rows.act, [0]\n"
        "def step(*arguments):\n"
        "    calls[0] += 1\n"
        f"    if calls[0] == 210: os.kill(os.getpid(), {int(number)})\n"
        "    return before(*arguments)\n"
        "Rows.act = step\n"
        "try:\n"
        f"    mv.train('CartPole-v1', run_dir={str(home)!r}, **{SMALL!r})\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    done = programs.run(script)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((home / "summary.json").read_text())["env_steps"] == 800  # 8 whole rollouts
    mv.resume(home)
    assert digest(home) == digest(uninterrupted)


class Forgetful:
    """An env whose steps depend on a generator that no seed sets: it cannot be repeated."""

    def __new__(cls) -> Any:
        import gymnasium as gym
        import numpy as np

        class Drifting(gym.ObservationWrapper):  # type: ignore[type-arg]
            def observation(self, observation: Any) -> Any:
                return observation + np.float32(np.random.default_rng().normal(0.0, 1e-3))

        return Drifting(gym.make("CartPole-v1"))


@pytest.mark.fault("D5")
def test_env_that_cannot_be_replayed_is_named_and_its_episode_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = mv.train(Forgetful, run_dir=tmp_path / "run", **{**SMALL, "env_steps": 500})
    with caplog.at_level("WARNING", "multiverse"):
        longer = mv.resume(run, env=Forgetful, env_steps=1_000)
    assert "envs [0, 1, 2, 3] could not be restored" in caplog.text
    assert longer.summary["env_steps"] == 1_000
    assert os.path.exists(run.path / "summary.json")


class Generous:
    """An env of which only the rewards are drawn from a generator that no seed sets."""

    def __new__(cls) -> Any:
        class Lottery(gym.RewardWrapper):  # type: ignore[type-arg]
            def reward(self, reward: Any) -> float:
                return float(reward) + float(np.random.default_rng().random())

        return Lottery(gym.make("CartPole-v1"))


@pytest.mark.fault("D5")
def test_env_whose_rewards_differ_in_replay_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = mv.train(Generous, run_dir=tmp_path / "run", **{**SMALL, "env_steps": 500})
    assert mv.resume(run, env=Generous, env_steps=600).summary["env_steps"] == 600
    assert "could not be restored: replayed from its seed, the episode returned other rewards" in caplog.text


class Dials(gym.Env):  # type: ignore[type-arg]
    """Env with episodes longer than a rollout, and arrays as actions, counted from 1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-99, 99, (2,), np.float32)
        self.action_space = spaces.MultiDiscrete([[3], [4]], start=[[1], [1]])
        self._place = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place, self._steps = self.np_random.normal(size=2).astype(np.float32), 0
        return self._place, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._place = self._place + np.float32(0.1) * (action.reshape(-1) - 2).astype(np.float32)
        self._steps += 1
        return self._place, -float(np.abs(self._place).sum()), self._steps >= 70, False, {}


@pytest.mark.fault("D5")
def test_array_actions_are_replayed_exactly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = mv.train(Dials, run_dir=tmp_path / "whole", **{**SMALL, "env_steps": 1_000})
    half = mv.train(Dials, run_dir=tmp_path / "half", **{**SMALL, "env_steps": 500})
    mv.resume(half, env=Dials, env_steps=1_000)
    assert "could not be restored" not in caplog.text and digest(half.path) == digest(whole.path)


def test_wrapped_env_that_only_saves_inside_is_replayed() -> None:
    """A time limit has a count that the env inside does not know."""
    with mv.make_vec(lambda: Saveable(True), 2, "serial") as envs:
        assert envs.can_be_saved()
    with mv.make_vec(lambda: gym.wrappers.TimeLimit(Saveable(True), 9), 2, "serial") as envs:
        assert not envs.can_be_saved()


def test_env_state_that_no_file_can_hold_is_reported_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Strange(Saveable):
        def save_state(self) -> Any:
            return {"self": self}

    run = mv.train(lambda: Strange(True), run_dir=tmp_path / "run", **{**SMALL, "env_steps": 100})
    assert "save_state() of the env is not used" in caplog.text and run.summary["finished"]


@pytest.mark.fault("D5")
@pytest.mark.parametrize("as_bytes", [True, False])
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_saveable_envs_are_restored_from_their_states(
    executor: str, as_bytes: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each env draws from its own generator, so that only its state can restore it. Two halves must equal the whole
    with the very same envs, because no other env can equal them."""
    settings = {**SMALL, "env_steps": 700, "executor": executor, "env_kwargs": {"as_bytes": as_bytes}}
    first = mv.train(Saveable, run_dir=tmp_path / "run", **settings)
    twins = [tmp_path / "one", tmp_path / "other"]
    for twin in twins:
        shutil.copytree(first.path, twin)
        mv.resume(twin, env=Saveable, env_steps=1_500)
    assert digest(twins[0]) == digest(twins[1])
    assert "could not be restored" not in caplog.text
    lengths = [line["length"] for line in lines_of(twins[0], "episodes.jsonl")]
    assert set(lengths) == {30}  # episodes in progress were continued
