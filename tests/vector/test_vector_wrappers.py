"""Gymnasium's vector wrappers work on our vector envs, with the results that they have on SyncVectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import vector

from tests.envs import Walk
from tests.equality import assert_same
from tests.vector.configurations import DISTINCT, WITHOUT_SPAWN, Configuration, gymnasiums_own, over
from tests.vector.runs import assert_same_run

config = over(WITHOUT_SPAWN)

WRAPPERS = {
    "ClipReward": lambda envs: vector.ClipReward(envs, 0.2, 0.7),
    "NormalizeObservation": vector.NormalizeObservation,
    "NormalizeReward": vector.NormalizeReward,
    "FlattenObservation": vector.FlattenObservation,
    "RescaleAction": lambda envs: vector.RescaleAction(envs, np.float32(-1), np.float32(1)),
    "ClipAction": vector.ClipAction,
    "TransformObservation": lambda envs: vector.TransformObservation(envs, lambda obs: obs * 2),
}
IN_SAME_STEP = ["ClipReward", "NormalizeReward", "RescaleAction"]  # Gymnasium's observation wrappers refuse this mode


@pytest.mark.parametrize(
    ("name", "autoreset"),
    [*((name, "next_step") for name in sorted(WRAPPERS)), *((name, "same_step") for name in IN_SAME_STEP)],
)
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_vector_wrappers_equal_those_on_gymnasiums_own_env(config: Configuration, name: str, autoreset: str) -> None:
    def pendulum() -> Any:
        return gymnasium.make("Pendulum-v1", max_episode_steps=4)

    with config.make(pendulum, autoreset=autoreset) as envs:
        reference = gymnasiums_own(pendulum, config.num_envs, autoreset)
        assert_same_run(WRAPPERS[name](envs), WRAPPERS[name](reference), 12)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_recorded_episode_statistics_equal_gymnasiums(config: Configuration, autoreset: str) -> None:
    env = [lambda n=n: Walk(length=n) for n in range(2, config.num_envs + 2)]
    with config.make(env, autoreset=autoreset) as envs:
        one = vector.RecordEpisodeStatistics(envs)
        other = vector.RecordEpisodeStatistics(gymnasiums_own(env, config.num_envs, autoreset))
        assert_same(one.reset(seed=1), other.reset(seed=1))
        for _ in range(15):
            batch = np.ones(config.num_envs, np.int64)
            found, expected = one.step(batch), other.step(batch)
            for infos in (found[-1], expected[-1]):
                infos.get("episode", {}).pop("t", None)
            assert_same(found, expected)
        assert_same(list(one.length_queue), list(other.length_queue))
        assert_same(list(one.return_queue), list(other.return_queue))


@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_infos_as_a_list_of_dicts_equal_gymnasiums(config: Configuration) -> None:
    with config.make(Walk) as envs:
        one = vector.DictInfoToList(envs)
        other = vector.DictInfoToList(gymnasiums_own(Walk, config.num_envs))
        assert_same(one.reset(seed=1), other.reset(seed=1))
        for _ in range(7):
            batch = np.ones(config.num_envs, np.int64)
            assert_same(one.step(batch), other.step(batch))


def test_closing_the_wrapper_closes_the_envs(config: Configuration) -> None:
    envs = config.make(Walk)
    wrapped = vector.ClipReward(envs, 0, 1)
    assert isinstance(wrapped, gymnasium.vector.VectorEnv)
    wrapped.close()
    assert envs.closed
