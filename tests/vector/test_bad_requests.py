"""Invalid requests are refused before anything is sent, and leave the vector env unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from tests.envs import AnySpace, Walk
from tests.equality import assert_same
from tests.space_catalogue import catalogue
from tests.vector.configurations import SERIAL, WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make
from tests.vector.runs import actions, assert_same_run

config = over(WITHOUT_SPAWN)

BAD_ACTIONS: dict[str, tuple[Any, list[Any]]] = {
    "discrete": (
        spaces.Discrete(3),
        [
            np.zeros(3, np.int64),
            np.zeros(5, np.int64),
            np.zeros((4, 1), np.int64),
            np.int64(1),
            np.zeros(4, np.float32),
            [0.0, 1.0, 2.0, 1.0],
            ["a", "b", "c", "d"],
            [[0], [1, 2], [0], [0]],
            None,
            {"a": 1},
        ],
    ),
    "box": (
        spaces.Box(-1, 1, (2,), np.float32),
        [
            np.zeros((3, 2), np.float32),
            np.zeros((4, 3), np.float32),
            np.zeros((4,), np.float32),
            np.full((4, 2), np.nan),
            np.array([[0, 0], [0, np.nan], [0, 0], [0, 0]], np.float32),
            np.zeros((4, 2), np.complex64),
            [None] * 4,
        ],
    ),
    "multi_discrete": (
        spaces.MultiDiscrete([3, 2]),
        [np.zeros((4, 2)), np.zeros((4, 3), np.int64), np.zeros((2, 2), np.int64)],
    ),
    "dict": (
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,), np.float32)}),
        [
            {"a": np.zeros(4, np.int64)},
            {"a": np.zeros(4, np.int64), "b": np.zeros((3, 1), np.float32)},
            {"a": np.zeros(4), "b": np.zeros((4, 1), np.float32)},
            np.zeros(4, np.int64),
            None,
        ],
    ),
    "text": (spaces.Text(4, min_length=1), [("a",) * 3, 7, ("a",) * 5]),
}


@pytest.mark.fault("B7")
@pytest.mark.parametrize("name", sorted(BAD_ACTIONS))
def test_bad_actions_are_refused_and_leave_no_trace(make: Make, config: Configuration, name: str) -> None:
    space, bad = BAD_ACTIONS[name]

    def env() -> Any:
        return AnySpace(spaces.Box(-1, 1, (1,)), space)

    seen, spared = make(env, 4), SERIAL.make(env, 4)
    seen.action_space.seed(1)
    assert_same(seen.reset(seed=2), spared.reset(seed=2))
    for k in range(3):
        for batch in bad:
            with pytest.raises(mv.errors.InvalidActions):
                seen.step(batch)
            with pytest.raises(mv.errors.InvalidActions):
                seen.send(batch)
        good = seen.action_space.sample()
        assert_same(seen.step(good), spared.step(good), f"step {k}")
    with pytest.raises(mv.errors.NothingPending):
        seen.receive()
    spared.close()


@pytest.mark.fault("B7")
def test_whole_run_is_unchanged_by_refused_actions(make: Make, config: Configuration) -> None:
    envs, n = make(Walk), config.num_envs
    step = envs.step

    def step_after_a_mistake(batch: Any) -> Any:
        for bad in (batch[:-1], batch.astype(float), np.full(n, np.nan)):
            with pytest.raises(mv.errors.InvalidActions):
                step(bad)
        with pytest.raises(mv.errors.InvalidActions):
            step(batch, env_ids=[0])
        return step(batch)

    envs.step = step_after_a_mistake
    with SERIAL.make(Walk, n) as reference:
        assert_same_run(envs, reference, 12)


@pytest.mark.fault("B7")
def test_action_error_names_the_mistake() -> None:
    with mv.make_vec(lambda: AnySpace(spaces.Discrete(2), catalogue()["nested"]), 2, "serial") as envs:
        envs.reset(seed=0)
        batch = envs.action_space.sample()
        batch["arm"][1]["grip"] = np.zeros(2)
        with pytest.raises(mv.errors.InvalidActions, match=r"grip.*float64.*int64"):
            envs.step(batch)
        del batch["arm"][1]["grip"]
        with pytest.raises(mv.errors.InvalidActions, match="grip"):
            envs.step(batch)
    with mv.make_vec("Pendulum-v1", 3, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.InvalidActions, match=r"NaN in rows \[1\]"):
            envs.step(np.array([[0.0], [np.nan], [0.0]]))
        with pytest.raises(mv.errors.InvalidActions, match=r"\(2, 1\).*\(3, 1\)"):
            envs.step(np.zeros((2, 1)))


@pytest.mark.fault("B7")
@pytest.mark.parametrize("high", [300, -300])
def test_integer_action_that_does_not_fit_is_refused(high: int) -> None:
    with mv.make_vec(lambda: AnySpace(spaces.Discrete(2), catalogue()["box_int8"]), 2, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.InvalidActions):
            envs.step(np.full((2, 3), high))


@pytest.mark.parametrize(
    "env_ids", [[], [4], [-1], [0, 0], [0.0], ["a"], [[0, 1]], 1, np.array([True, False, True, False]), "01"]
)
def test_bad_env_ids_are_refused(env_ids: Any) -> None:
    with mv.make_vec(Walk, 4, "serial") as envs:
        envs.reset(seed=0)
        batch = np.zeros(1, np.int64)
        calls = [
            lambda: envs.step(batch, env_ids=env_ids),
            lambda: envs.send(batch, env_ids),
            lambda: envs.reset(env_ids=env_ids),
            lambda: envs.render(env_ids=env_ids),
            lambda: envs.call("add", 1, env_ids=env_ids),
            lambda: envs.get_attr("steps", env_ids=env_ids),
            lambda: envs.set_attr("bonus", 1.0, env_ids=env_ids),
        ]
        for call in calls:
            with pytest.raises(mv.errors.InvalidRequest, match="env_ids"):
                call()
        assert envs.get_attr("steps") == (0,) * 4
        assert envs.get_attr("resets") == (1,) * 4


@pytest.mark.parametrize("seed", [[1, 2], [1] * 5, [], 1.5, "seed", {"a": 1}, [1.5, 2.5, 3.5, 4.5]])
def test_bad_seeds_are_refused(seed: Any) -> None:
    with mv.make_vec(Walk, 4, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.InvalidRequest, match="seed"):
            envs.reset(seed=seed)
        assert envs.get_attr("resets") == (1,) * 4


def test_list_of_numpy_integers_is_a_list_of_seeds() -> None:
    with mv.make_vec(Walk, 3, "serial") as envs:
        envs.reset(seed=np.arange(5, 8))
        assert envs.get_attr("last_seed") == (5, 6, 7)


@pytest.mark.parametrize("options", [[{}], [{}] * 5, 3, "abcd", [1, 2, 3, 4]])
def test_bad_options_are_refused(options: Any) -> None:
    with mv.make_vec(Walk, 4, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.InvalidRequest, match="options"):
            envs.reset(options=options)
        assert envs.get_attr("resets") == (1,) * 4


@pytest.mark.parametrize("tasks", [[1], [1] * 5, 3])
def test_bad_tasks_are_refused(tasks: Any) -> None:
    with mv.make_vec(Walk, 4, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.InvalidRequest, match="tasks"):
            envs.reset(tasks=tasks)
        assert envs.get_attr("resets") == (1,) * 4


def test_reset_mask_together_with_env_ids_is_refused() -> None:
    with mv.make_vec(Walk, 2, "serial") as envs, pytest.raises(mv.errors.InvalidRequest, match="reset_mask"):
        envs.reset(options={"reset_mask": np.ones(2, np.bool_)}, env_ids=[0])


def test_wrong_number_of_attribute_values_is_refused() -> None:
    with mv.make_vec(Walk, 4, "serial") as envs:
        with pytest.raises(mv.errors.InvalidRequest, match="values"):
            envs.set_attr("bonus", [1.0, 2.0])
        assert envs.get_attr("bonus") == (0.0,) * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executor": "rocket"}, "executor='rocket'.*serial"),
        ({"autoreset": "sometimes"}, "autoreset.*next_step"),
        ({"workers": 0, "executor": "process"}, "workers=0"),
        ({"num_envs": 0}, "num_envs=0"),
        ({"num_envs": -3}, "num_envs=-3"),
        ({"env_kwargs": [{}, {}]}, "2 env_kwargs for 4"),
        ({"wrappers": [[], []]}, "2 lists of wrappers for 4"),
        ({"wrappers": [Walk, []]}, "wrappers mixes"),
    ],
)
def test_invalid_make_vec_arguments_are_refused_with_alternatives(options: dict[str, Any], said: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=said):
        mv.make_vec(Walk, **{"num_envs": 4, "executor": "serial", **options})


def test_ended_episode_must_be_reset_if_autoreset_is_disabled(make: Make, config: Configuration) -> None:
    n = config.num_envs
    envs = make(Walk, env_kwargs=[{"length": 1 if i == 1 else 5} for i in range(n)], autoreset="disabled")
    envs.reset(seed=0)
    envs.step(actions(range(n), 0))
    for call in (lambda: envs.step(actions(range(n), 1)), lambda: envs.send(actions([1], 1), [1])):
        with pytest.raises(mv.errors.InvalidRequest, match=r"\[1\]"):
            call()
    envs.step(actions([0, 2], 1), env_ids=[0, 2])
    envs.reset(env_ids=[1])
    envs.step(actions(range(n), 2))
    assert envs.get_attr("steps") == tuple({0: 3, 1: 1, 2: 3}.get(i, 2) for i in range(n))
