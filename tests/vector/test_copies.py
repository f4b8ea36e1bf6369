"""A vector env cannot be copied or pickled: one sentence says that, and the vector env stays usable."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import pytest

import multiverse as mv
from multiverse.interop.gymnasium import AsyncVectorEnv, SyncVectorEnv
from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv
from tests.envs import Walk
from tests.multi_agent.envs import Circle, Pair
from tests.vector.configurations import ALL, Configuration, over
from tests.vector.conftest import Make
from tests.vector.runs import actions

config = over([c for c in ALL if c.name in ("serial", "thread", "forkserver", "fork", "hybrid")])
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "cloudpickle": cloudpickle.dumps,
}
every_way = pytest.mark.parametrize("way", WAYS)
REFUSED = r"a vector env cannot be copied or pickled.*make_vec\(.*plan=envs\.plan\)"


@every_way
def test_copy_is_refused_and_the_original_continues(make: Make, config: Configuration, way: str) -> None:
    envs = make(Walk)
    envs.reset(seed=7)
    with pytest.raises(mv.errors.InvalidRequest, match=REFUSED):
        WAYS[way](envs)
    if way != "copy":
        with pytest.raises(mv.errors.InvalidRequest, match=REFUSED):
            WAYS[way]({"somewhere": [envs]})
    envs.step(actions(range(config.num_envs), 0))
    assert envs.episode_lengths.tolist() == [1] * config.num_envs


@every_way
@pytest.mark.parametrize("env", [Pair, Circle])
def test_copy_of_a_multi_agent_vector_env_is_refused(way: str, env: Any) -> None:
    with mv.make_vec(env, 2, "process", workers=1) as envs:
        envs.reset(seed=7)
        with pytest.raises(mv.errors.InvalidRequest, match=REFUSED):
            WAYS[way](envs)
        envs.reset(seed=7)


@every_way
@pytest.mark.parametrize("kind", [AsyncVectorEnv, SyncVectorEnv, SubprocVecEnv, DummyVecEnv])
def test_copy_of_a_drop_in_is_refused(way: str, kind: Any) -> None:
    envs = kind([partial(Walk, length=3)] * 2)
    try:
        envs.reset()
        with pytest.raises(mv.errors.InvalidRequest, match=REFUSED):
            WAYS[way](envs)
        envs.step(actions(range(2), 0))
    finally:
        envs.close()


def test_factory_that_holds_a_vector_env_is_refused_with_the_reason() -> None:
    with mv.make_vec(Walk, 2, "serial") as envs:
        with pytest.raises(mv.errors.PreflightError, match="a vector env cannot be copied or pickled"):
            mv.make_vec(lambda: Walk(length=envs.num_envs), 2, "process", workers=1)
        envs.reset(seed=7)


def test_plan_failures_and_spaces_can_be_copied() -> None:
    with mv.make_vec(Walk, 2, "serial") as envs:
        for said in (envs.plan, envs.failures, envs.single_observation_space):
            assert copy.deepcopy(said) == pickle.loads(pickle.dumps(said)) == said
