"""Ownership of arrays: results belong to the caller, actions to the env, and views share memory."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.envs import AnySpace, KeepsAction, MutatesItsObservation, RichInfos, Walk
from tests.equality import assert_same, same
from tests.space_catalogue import catalogue
from tests.vector.configurations import DISTINCT, SERIAL, WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make
from tests.vector.runs import actions

config = over(WITHOUT_SPAWN)


@pytest.mark.fault("B9")
def test_step_does_not_change_earlier_results(make: Make, config: Configuration) -> None:
    envs = make([lambda i=i: RichInfos(index=i) for i in range(config.num_envs)], autoreset="same_step")
    results = [envs.reset(seed=3)]
    kept = [copy.deepcopy(results[0])]
    for k in range(7):
        results.append(envs.step(actions(range(config.num_envs), k) % 2))
        kept.append(copy.deepcopy(results[-1]))
    envs.reset()
    assert_same(results, kept)


@pytest.mark.fault("B9")
@pytest.mark.parametrize("name", ["dict_mixed", "nested", "sequence"])
def test_nested_observations_are_copies(make: Make, config: Configuration, name: str) -> None:
    envs = make(lambda: AnySpace(catalogue()[name], spaces.Discrete(2)))
    first, _ = envs.reset(seed=3)
    kept = copy.deepcopy(first)
    envs.step(np.zeros(config.num_envs, np.int64))
    assert_same(first, kept)


@pytest.mark.parametrize("space", [spaces.Dict(), spaces.Tuple(()), spaces.Dict(a=spaces.Dict(), b=spaces.Tuple(()))])
def test_empty_composite_spaces_are_supported(make: Make, config: Configuration, space: Any) -> None:
    two = spaces.Discrete(2)
    for kinds in ((space, two), (two, space)):
        envs = make(lambda kinds=kinds: AnySpace(*kinds))
        first, _ = envs.reset(seed=3)
        seen, rewards, *_ = envs.step(envs.action_space.sample())
        assert len(rewards) == config.num_envs
        assert first == seen == space.sample() if kinds[0] is space else len(seen) == config.num_envs


def test_observation_object_reused_by_the_env_does_not_change_results(make: Make, config: Configuration) -> None:
    envs = make(MutatesItsObservation)
    first, _ = envs.reset(seed=3)
    kept = copy.deepcopy(first)
    envs.step(np.zeros(config.num_envs, np.int64))
    assert_same(first, kept)


@pytest.mark.fault("B9")
def test_observations_without_copy_are_views_of_the_newest_step(make: Make, config: Configuration) -> None:
    envs = make(Walk, copy=False)
    first, _ = envs.reset(seed=3)
    before = first.copy()
    second, *_ = envs.step(actions(range(config.num_envs), 0))
    assert np.shares_memory(first, second)
    assert not same(first, before)
    assert_same(first, second)


def test_observations_without_copy_have_equal_values(make: Make, config: Configuration) -> None:
    viewing, copying = make(Walk, copy=False), SERIAL.make(Walk, config.num_envs)
    assert_same(viewing.reset(seed=3), copying.reset(seed=3))
    for k in range(8):
        batch = actions(range(config.num_envs), k)
        assert_same(viewing.step(batch), copying.step(batch))
    copying.close()


def test_disabled_infos_leave_only_final_observations(make: Make, config: Configuration) -> None:
    envs = make([lambda i=i: RichInfos(index=i) for i in range(config.num_envs)], infos=False, autoreset="same_step")
    assert envs.reset(seed=3)[1] == {}
    for k in range(6):
        *_, terminated, _, infos = envs.step(np.zeros(config.num_envs, np.int64))
        if not terminated.any():
            assert infos == {}
        else:
            assert sorted(infos) == ["_final_obs", "final_obs"]
            assert_same(infos["_final_obs"], terminated)
            assert_same(infos["final_obs"][int(np.argmax(terminated))], np.zeros(1, np.float32))
        assert terminated[0] == (k % 4 == 3)


@pytest.mark.parametrize("name", ["box_float32", "discrete", "multi_discrete", "multi_binary", "nested", "dict_mixed"])
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_env_can_keep_its_last_action(config: Configuration, name: str) -> None:
    with config.make(lambda: KeepsAction(catalogue()[name])) as envs:
        envs.reset(seed=0)
        envs.action_space.seed(5)
        for _ in range(4):
            batch = envs.action_space.sample()
            *_, infos = envs.step(batch)
            assert not infos["changed"].any()
            overwrite(batch)
            assert not any(envs.call("changed"))


def overwrite(batch: Any) -> None:
    """Overwrite a batch, as a caller that reuses its arrays."""
    for part in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else ():
        overwrite(part)
    if isinstance(batch, np.ndarray):
        batch[...] = 0


@pytest.mark.parametrize(
    "given", [np.array([1, 0, 2, 1], np.int32), [1, 0, 2, 1], np.array([1, 0, 2, 1]), np.ones(4, np.bool_)]
)
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_discrete_actions_arrive_as_numpy_int64(config: Configuration, given: Any) -> None:
    with config.make(lambda: KeepsAction(spaces.Discrete(3)), 4) as envs:
        envs.reset(seed=0)
        *_, infos = envs.step(given)
        assert infos["type"].tolist() == ["int64"] * 4
        assert envs.get_attr("kept") == tuple(int(a) for a in given)


def test_out_of_range_discrete_actions_are_passed_to_the_env(make: Make, config: Configuration) -> None:
    envs = make(lambda: KeepsAction(spaces.Discrete(3)))
    envs.reset(seed=0)
    envs.step(np.full(config.num_envs, 7))
    assert envs.get_attr("kept") == (7,) * config.num_envs


@pytest.mark.fault("B7")
def test_box_actions_out_of_bounds_are_passed_to_the_env(make: Make, config: Configuration) -> None:
    envs = make(lambda: KeepsAction(spaces.Box(-1, 1, (1,), np.float32)))
    envs.reset(seed=0)
    envs.step(np.full((config.num_envs, 1), 5.0))
    assert_same(envs.get_attr("kept"), (np.array([5.0], np.float32),) * config.num_envs)


def test_rewards_are_float64_and_ends_are_bool(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(seed=0)
    _, rewards, terminated, truncated, _ = envs.step(actions(range(config.num_envs), 0))
    assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)


@pytest.mark.fault("B9")
def test_poisoned_arrays_reveal_code_that_keeps_views(make: Make) -> None:
    envs = make(Walk, copy="poison")
    first, _ = envs.reset(seed=0)
    kept = first.copy()
    assert_same(first, kept)
    second = envs.step(actions(range(envs.num_envs), 0))[0]
    assert np.isnan(first).all()
    assert np.isfinite(second).all()
    envs.reset(env_ids=[1], seed=3)
    assert np.isnan(second[1]).all() and np.isfinite(np.delete(second, 1, axis=0)).all()
    envs.send(actions(range(envs.num_envs), 1))
    assert np.isnan(second).all()
    assert np.isfinite(envs.receive().observations).all()
