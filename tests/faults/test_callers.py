"""Rows B7 and B8, wherever the envs run: wrong actions are refused before anything is sent, unequal spaces at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from tests.envs import AnySpace, Walk
from tests.equality import assert_same
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions, lock_step

everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID], ids=str)


def wrong(good: Any) -> list[Any]:
    """Actions of wrong length, shape or kind, NaN, and values that are not an array."""
    return [good[:-1], good[:, None], good.astype(np.float64), np.full(len(good), np.nan), None]


@pytest.mark.fault("B7")
@everywhere
def test_run_with_refused_actions_equals_the_run_without_them(make: Make, config: Configuration) -> None:
    envs, step = make(Walk), mv.VectorEnv.step
    with SERIAL.make(Walk, config.num_envs) as oracle:
        expected = lock_step(oracle, 6)

    class Clumsy:
        """The same vector env for a caller that makes every mistake first."""

        num_envs = config.num_envs
        reset = staticmethod(envs.reset)

        def step(self, good: Any) -> Any:
            for bad in wrong(good):
                with pytest.raises(mv.errors.InvalidActions):
                    envs.step(bad)
                with pytest.raises(mv.errors.InvalidActions):
                    envs.send(bad)
            return step(envs, good)

    assert_same(lock_step(Clumsy(), 6), expected)
    assert envs.failures.steps_sent == envs.failures.steps_used == 6 * config.num_envs


@pytest.mark.fault("B7")
@everywhere
def test_invalid_actions_for_some_envs_are_refused(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(seed=0)
    with pytest.raises(mv.errors.InvalidActions):
        envs.step(actions(range(config.num_envs), 0), env_ids=[1])
    assert envs.get_attr("steps") == (0,) * config.num_envs


@pytest.mark.fault("B8")
@everywhere
def test_env_with_differing_spaces_is_named_and_nothing_is_left(config: Configuration) -> None:
    last = config.num_envs - 1
    usual, other = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 2, (2,))
    factories = [lambda i=i: AnySpace(other if i == last else usual, spaces.Discrete(3)) for i in range(last + 1)]
    with pytest.raises(mv.errors.SpacesDiffer, match=rf"env {last} has observation_space Box\(-1.0, 2.0"):
        config.make(factories)
