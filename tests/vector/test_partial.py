"""Steps and resets of some envs: rows in the requested order, and the other envs unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.envs import AnySpace, HookTask, OptionTask, RichInfos, Walk
from tests.equality import assert_same
from tests.space_catalogue import catalogue
from tests.vector.configurations import WITHOUT_SPAWN, Configuration, gymnasiums_own, over
from tests.vector.conftest import Make
from tests.vector.runs import action, actions, lock_step, row_of

config = over(WITHOUT_SPAWN)

MODES = ["next_step", "same_step"]


@pytest.mark.parametrize("autoreset", MODES)
def test_trajectory_of_each_env_equals_lock_step(make: Make, config: Configuration, autoreset: str) -> None:
    n, steps = config.num_envs, 8
    expected = lock_step(make(Walk, autoreset=autoreset, env_kwargs={"length": 3}), steps)
    envs = make(Walk, autoreset=autoreset, env_kwargs={"length": 3})
    envs.reset(seed=7)
    found: dict[int, list[Any]] = {i: [] for i in range(n)}
    turn = 0
    while min(map(len, found.values())) < steps:
        turn += 1
        ids = [i for i in reversed(range(n)) if (i + turn) % 3 and len(found[i]) < steps]
        if not ids:
            continue
        batch = np.array([action(i, len(found[i])) for i in ids])
        result = envs.step(batch, env_ids=ids)
        for row, i in enumerate(ids):
            found[i].append(row_of(row, *result))
    assert_same(found, expected)


def test_rows_are_in_the_requested_order(make: Make, config: Configuration) -> None:
    ids = [2, 0, config.num_envs - 1]
    whole, some = make(Walk), make(Walk)
    whole.reset(seed=1)
    some.reset(seed=1)
    observations, rewards, _, _, infos = whole.step(actions(range(config.num_envs), 0))
    found = some.step(actions(ids, 0), env_ids=ids)
    assert_same(found[0], observations[ids])
    assert_same(found[1], rewards[ids])
    assert_same(found[4], {key: value[ids] for key, value in infos.items()})


@pytest.mark.parametrize("ids", [[2, 1], [1, 2], [3, 0, 1]])
def test_infos_and_final_observations_of_a_partial_step_belong_to_its_envs(
    make: Make, config: Configuration, ids: Any
) -> None:
    factories = [lambda i=i: RichInfos(index=i, length=1, mixed=False) for i in range(config.num_envs)]
    envs = make(factories, autoreset="same_step")
    reference = gymnasiums_own([factories[i] for i in ids], len(ids), "same_step")
    assert_same(envs.reset(seed=[1] * len(ids), env_ids=ids), reference.reset(seed=[1] * len(ids)))
    for _ in range(5):
        batch = np.zeros(len(ids), np.int64)
        assert_same(envs.step(batch, env_ids=ids), reference.step(batch))


@pytest.mark.parametrize("name", ["nested", "dict_mixed", "text", "box_scalar"])
def test_every_space_supports_partial_steps(make: Make, config: Configuration, name: str) -> None:
    whole, some = (make(lambda: AnySpace(catalogue()[name], catalogue()[name], length=50)) for _ in range(2))
    assert_same(whole.reset(seed=3)[0], some.reset(seed=3)[0])
    whole.action_space.seed(4)
    ids = [2, 0]
    batch = whole.action_space.sample()
    observations, rewards, *_ = whole.step(batch)
    found = some.step(rows_at(batch, ids, config.num_envs), env_ids=ids)
    assert_same(found[0], rows_at(observations, ids, config.num_envs))
    assert_same(found[1], rewards[ids])


def rows_at(batch: Any, ids: Any, num_envs: int) -> Any:
    """Some rows of a nested batch; a tuple of one item per env is a batch of objects."""
    if isinstance(batch, dict):
        return {key: rows_at(part, ids, num_envs) for key, part in batch.items()}
    if isinstance(batch, tuple) and len(batch) == num_envs and not isinstance(batch[0], np.ndarray):
        return tuple(batch[i] for i in ids)
    if isinstance(batch, tuple):
        return tuple(rows_at(part, ids, num_envs) for part in batch)
    return batch[ids]


def test_envs_that_are_not_named_do_not_change(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(seed=1)
    envs.step(actions([1], 0), env_ids=[1])
    envs.reset(env_ids=[2])
    assert envs.get_attr("steps") == tuple(int(i == 1) for i in range(config.num_envs))
    assert envs.get_attr("resets") == tuple(1 + int(i == 2) for i in range(config.num_envs))


def test_partial_reset_returns_rows_in_the_requested_order(make: Make, config: Configuration) -> None:
    whole, some = make(Walk), make(Walk)
    observations, infos = whole.reset(seed=9)
    ids = [config.num_envs - 1, 1]
    found = some.reset(seed=9, env_ids=ids)
    assert_same(found[0], observations[ids])
    assert_same(found[1], {key: value[ids] for key, value in infos.items()})


def test_each_env_can_have_its_own_seed_and_options(make: Make) -> None:
    envs = make(Walk)
    envs.reset(seed=[30, 10], options=[{"a": 1}, None], env_ids=[3, 1])
    assert envs.get_attr("last_seed", env_ids=[1, 3]) == (10, 30)
    assert envs.get_attr("last_options", env_ids=[1, 3]) == (None, {"a": 1})
    envs.reset(seed=50, env_ids=[3, 1])
    assert envs.get_attr("last_seed", env_ids=[1, 3]) == (51, 53)


def test_options_are_copied_for_each_env(make: Make) -> None:
    shared = {"list": [1]}
    envs = make(Walk)
    envs.reset(options=shared)
    shared["more"] = [2]
    assert all(o == {"list": [1]} for o in envs.get_attr("last_options"))


def test_task_is_passed_to_the_hook_if_the_env_has_one(make: Make, config: Configuration) -> None:
    envs = make(HookTask, autoreset="same_step")
    tasks = [float(10 + i) for i in range(config.num_envs)]
    observations, _ = envs.reset(seed=1, tasks=tasks)
    assert observations[:, 0].tolist() == tasks
    observations, _ = envs.reset(env_ids=[2, 0], tasks=[77.0, 55.0])
    assert observations[:, 0].tolist() == [77.0, 55.0]
    for _ in range(4):  # past an autoreset: the hook's task stays until another one is given
        observations, *_ = envs.step(np.zeros(config.num_envs, np.int64))
    assert observations[:, 0].tolist() == [55.0, 11.0, 77.0, *tasks[3:]]


def test_task_is_passed_in_options_if_the_env_has_no_hook(make: Make, config: Configuration) -> None:
    envs = make(OptionTask)
    tasks: list[float | None] = [float(i) for i in range(config.num_envs)]
    observations, _ = envs.reset(tasks=tasks, options={"offset": 100})
    assert observations[:, 0].tolist() == [100.0 + i for i in range(config.num_envs)]
    tasks[1] = None
    observations, _ = envs.reset(tasks=tasks)
    assert observations[1, 0] == 101.0  # no task given: as a plain reset
