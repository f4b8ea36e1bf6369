"""An env is restored exactly or reported as lost, whatever happens while its episode is repeated."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.layout import OBSERVATIONS, SINGLE_AGENT
from multiverse.rollouts.restoring import restore_by_replay
from tests.fault_envs import Fault
from tests.vector.conftest import nothing_left_behind  # noqa: F401

PLAN = mv.DerivedSeeds(4)
SHOWN = (SINGLE_AGENT, OBSERVATIONS)


class Noisy(Fault):
    """Env whose observations follow from its seed, and whose rewards do not."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + np.random.default_rng().normal(), *rest


def played(makers: list[Any], steps: list[int], **options: Any) -> Any:
    """(observations after these numbers of steps, returns and lengths of the episodes), to be restored."""
    with mv.make_vec(makers, executor="serial", autoreset="same_step", reset_plan=PLAN, **options) as envs:
        envs.reset()
        for t in range(max(steps)):
            ids = [i for i, count in enumerate(steps) if t < count]
            envs.step(np.ones(len(ids), np.int64), env_ids=ids)
        return {SHOWN: envs.observations()}, envs.episode_returns, envs.episode_lengths


def bring(makers: list[Any], steps: list[int], expected: Any, **options: Any) -> tuple[Any, dict[int, str], Any]:
    """(observations of the restored envs, those that were lost, the closed envs)."""
    options = {"executor": "process", "workers": 1, "on_failure": "restart", **options}
    with mv.make_vec(makers, autoreset="same_step", reset_plan=PLAN, **options) as envs:
        actions = [(np.ones(count, np.int64),) for count in steps]
        lost = restore_by_replay(envs, [0] * len(makers), actions, *expected)
        shown = envs.observations()
        envs.step(np.ones(len(makers), np.int64))  # and it continues
        return shown, lost, envs


def healthy() -> Any:
    return Fault(length=50)


@pytest.mark.fault("D5")
def test_restored_envs_are_in_their_previous_states() -> None:
    makers, steps = [healthy] * 3, [2, 0, 5]
    rows, returns, lengths = played(makers, steps)
    shown, lost, envs = bring(makers, steps, (rows, returns, lengths), workers=2)
    assert lost == {} and (shown == rows[SHOWN]).all()
    assert envs.episode_lengths.tolist() == [3, 1, 6]


@pytest.mark.fault("D5")
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_env_with_other_rewards_is_reported(executor: str) -> None:
    makers, steps = [healthy, lambda: Noisy(length=50)], [3, 3]
    options: dict[str, Any] = {"executor": executor, "workers": 1 if executor == "process" else None}
    _, lost, envs = bring(makers, steps, played(makers, steps), **options)
    assert list(lost) == [1] and "other rewards" in lost[1]
    assert envs.episode_lengths.tolist() == [4, 1]


@pytest.mark.fault("D5")
def test_replayed_observations_are_compared_without_returns() -> None:
    makers, steps = [healthy, lambda: Noisy(length=50)], [3, 3]
    rows, *_ = played(makers, steps)
    assert bring(makers, steps, (rows,))[1] == {}
    rows[SHOWN][0] += 1.0
    assert list(bring(makers, steps, (rows,))[1]) == [0]


@pytest.mark.fault("G2", "D5")
@pytest.mark.parametrize("what", ["kill", "sleep"])
def test_worker_lost_in_a_replay_costs_all_its_envs(what: str) -> None:
    """Env 1 has repeated its episode by then, and is lost with its worker."""
    makers, steps = [healthy, healthy, lambda: Fault(what, at=4, length=50)], [6, 2, 6]
    expected = played([healthy] * 3, steps)
    shown, lost, envs = bring(makers, steps, expected, workers=2, timeouts=mv.Timeouts(reply_s=1.0))
    assert list(lost) == [1, 2] and all("worker" in why for why in lost.values())
    assert (shown[0] == expected[0][SHOWN][0]).all()
    assert envs.episode_lengths.tolist() == [7, 1, 1] and envs.failures.worker_restarts == 1


@pytest.mark.fault("G2", "D5")
def test_worker_lost_in_the_first_reset_is_reported(tmp_path: Path) -> None:
    class Mortal(Fault):
        """Env that ends its process in its first reset, once, and begins every episode equally."""

        def reset(self, **kwargs: Any) -> Any:
            if not (tmp_path / "note").exists():
                (tmp_path / "note").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().reset(**{**kwargs, "seed": 1})

    makers, steps = [lambda: Mortal(length=50)], [3]
    (tmp_path / "note").touch()
    expected = played(makers, steps)
    (tmp_path / "note").unlink()
    _, lost, envs = bring(makers, steps, expected)
    assert list(lost) == [0] and envs.episode_lengths.tolist() == [1]


@pytest.mark.fault("D5")
def test_env_that_ends_sooner_or_fails_or_is_too_long_is_reported() -> None:
    makers: list[Any] = [healthy, lambda: Fault(length=2), lambda: Fault("raise", at=2, length=50), healthy]
    steps = [4, 4, 4, 4]
    rows, returns, lengths = played([healthy] * 4, steps)
    options = {"executor": "serial", "on_failure": "restart", "autoreset": "same_step", "reset_plan": PLAN}
    with mv.make_vec(makers, **options) as envs:
        actions = [(np.ones(4, np.int64),)] * 3 + [None]
        lost = restore_by_replay(envs, [0] * 4, actions, rows, returns, lengths)
        assert list(lost) == [1, 2, 3]
        assert "sooner" in lost[1] and "failed" in lost[2] and "too long" in lost[3]
        envs.step(np.ones(4, np.int64))
        assert envs.episode_lengths.tolist() == [5, 1, 1, 1]
