"""Every batch equals AgileRL's own, bit for bit: compared with the original where installed, else with a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from mpe2 import simple_push_v3, simple_spread_v3

from multiverse.interop.agilerl import AsyncPettingZooVecEnv
from tests.equality import assert_same
from tests.interop.agilerl.envs import ACTED, PAID, SEEN, Reshaped, Troupe
from tests.interop.agilerl.model import Model
from tests.interop.agilerl.peer import Original, with_agilerl
from tests.multi_agent.envs import Alone, Lingering, Numbered, Pair

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of tensors in AgileRL's own code

REFERENCE: Any = Original if with_agilerl else Model
Build = Callable[[], Any]


@contextmanager
def both(*env_fns: Build, **options: Any) -> Iterator[tuple[Any, AsyncPettingZooVecEnv]]:
    theirs, ours = REFERENCE(list(env_fns)), AsyncPettingZooVecEnv(list(env_fns), **options)
    try:
        yield theirs, ours
    finally:
        theirs.close()
        ours.close()


def sampled(envs: Any, k: int) -> dict[str, Any]:
    """The k-th batch of actions, always the same."""
    found = {}
    for position, agent in enumerate(envs.agents):
        envs.action_space(agent).seed(100 * k + position)
        found[agent] = envs.action_space(agent).sample()
    return found


def assert_same_steps(theirs: Any, ours: Any, steps: int, seed: Any = 3, options: Any = None) -> list[Any]:
    """Reset and step both; return the results of ours."""
    results: list[Any] = [ours.reset(seed=seed, options=options)]
    assert_same(results[0], theirs.reset(seed=seed, options=options))
    for k in range(steps):
        actions = sampled(ours, k)
        results.append(ours.step(actions))
        assert_same(results[-1], theirs.step(actions), f"step {k}")
    return results


@pytest.mark.skipif(not with_agilerl, reason="agilerl is not installed")
def test_documented_lines_give_equal_results_with_either_import() -> None:
    """Document 000: the line it imports, and the one below it, as they stand there; then with our import."""
    make_env, num_envs = simple_push_v3.parallel_env, 2
    made: dict[str, Any] = {"make_env": make_env, "num_envs": num_envs}
    for source in ("agilerl.vector.pz_async_vec_env", "multiverse.interop.agilerl"):
        exec(f"from {source} import AsyncPettingZooVecEnv", made)
        exec("env = AsyncPettingZooVecEnv([make_env for _ in range(num_envs)])", made)
        made[source] = made.pop("env")
    theirs, ours = made["agilerl.vector.pz_async_vec_env"], made["multiverse.interop.agilerl"]
    try:
        assert type(theirs).__module__.startswith("agilerl.") and type(ours).__module__.startswith("multiverse.")
        assert_same_steps(theirs, ours, 5)
    finally:
        theirs.close()
        ours.close()


# -- envs that people use ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("module", [simple_spread_v3, simple_push_v3], ids=["spread", "push"])
def test_mpe_envs_equal_the_original(module: Any, continuous: bool) -> None:
    make = functools.partial(module.parallel_env, continuous_actions=continuous)
    with both(make, make, make) as (theirs, ours):
        result = assert_same_steps(theirs, ours, 60)
        assert any(step[3]["agent_0"].any() for step in result[1:])  # episodes ended on the way


# -- everything an env can say -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("seen", "mortal"), [("vector", False), ("dict", False), *((seen, True) for seen in SEEN)])
def test_observations_equal_the_original(seen: str, mortal: bool) -> None:
    make = functools.partial(Troupe, seen, mortal=mortal)
    with both(make, make, make) as (theirs, ours):
        result = assert_same_steps(theirs, ours, 25)
        absent = [np.isnan(step[1]["zoe"]).any() for step in result[1:]]
        assert any(absent) == mortal


@pytest.mark.parametrize(("paid", "ended"), [*((paid, "bool") for paid in PAID), ("float", "np.bool"), ("int", "int")])
def test_rewards_and_ends_equal_the_original(paid: str, ended: str) -> None:
    make = functools.partial(Troupe, paid=paid, ended=ended)
    with both(make, make) as (theirs, ours):
        assert_same_steps(theirs, ours, 25)


@pytest.mark.parametrize("paid", ["int", "float32", "mixed", "huge"])
def test_rewards_of_agents_that_come_and_go_equal_the_original(paid: str) -> None:
    make = functools.partial(Troupe, paid=paid, ended="np.bool", mortal=True)
    with both(make, make, make) as (theirs, ours):
        result = assert_same_steps(theirs, ours, 40)
        assert {step[2]["zoe"].dtype for step in result[1:]} == {np.dtype(bool), np.dtype(float)}


def test_envs_with_different_reward_types_equal_the_original() -> None:
    makes = [functools.partial(Troupe, paid=paid) for paid in ("int", "float32", "bool", "int32")]
    with both(*makes) as (theirs, ours):
        assert_same_steps(theirs, ours, 10)


@pytest.mark.parametrize("mortal", [False, True], ids=["", "mortal"])
def test_infos_equal_the_original(mortal: bool) -> None:
    make = functools.partial(Troupe, talks=True, mortal=mortal)
    with both(make, make, make) as (theirs, ours):
        assert_same_steps(theirs, ours, 30)


def test_infos_of_some_envs_equal_the_original() -> None:
    with both(Troupe, functools.partial(Troupe, talks=True), Troupe) as (theirs, ours):
        assert_same_steps(theirs, ours, 20)


@pytest.mark.parametrize("make", [Reshaped, Lingering, Numbered, Alone, functools.partial(Pair, second_leaves_at=2)])
def test_unusual_envs_equal_the_original(make: Build) -> None:
    with both(make, make) as (theirs, ours):
        assert_same_steps(theirs, ours, 15)


@pytest.mark.parametrize(
    "fault", ["nan", "nan_reward", "text_reward", "unlisted", "no_reward", "vanish", "slip_away", "unseen_end"]
)
def test_invalid_values_are_passed_on_as_by_the_original(fault: str) -> None:
    make = functools.partial(Pair, fault, 2)
    with both(make, Pair) as (theirs, ours):
        actions = {agent: np.array([1, 2]) for agent in ours.agents}
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        for _ in range(2):
            assert_same(ours.step(actions), theirs.step(actions))


# -- actions -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("acted", ACTED)
def test_every_env_gets_the_action_that_the_original_gives_it(acted: str) -> None:
    make = functools.partial(Troupe, acted=acted)
    with both(make, make, make) as (theirs, ours):
        assert_same_steps(theirs, ours, 12)
        assert not ours.engine._by_pipe.unused and ours.engine._by_pipe._steps_before == -1  # through the block


UNUSUAL: dict[str, Any] = {
    "int32": lambda: np.array([1, 2, 3], np.int32),
    "whole floats": lambda: np.array([1.0, 2.0, 3.0], np.float32),
    "floats": lambda: np.array([1.6, 2.0, -0.7]),
    "a list": lambda: [1, 2, 3],
    "a list of numpy ints": lambda: [np.int64(i) for i in range(3)],
    "bools": lambda: np.array([True, False, True]),
    "one too many dimensions": lambda: np.array([[1], [2], [3]]),
    "NaN for one": lambda: np.array([np.nan, 2.0, 3.0]),
    "NaN for all": lambda: np.full(3, np.nan, np.float32),
    "a tensor": lambda: torch.tensor([1, 2, 3]),
    "a tensor with NaN": lambda: torch.tensor([1.0, float("nan"), 3.0]),
}


def test_unusual_batches_of_discrete_actions_equal_the_original() -> None:
    usual = np.array([4, 0, 1])
    with both(Troupe, Troupe, Troupe) as (theirs, ours):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        for unusual, batch in UNUSUAL.items():
            for zoe in (batch(), usual, batch(), usual):
                actions = {"actor_0": usual, "zoe": zoe, "actor_1": batch()}
                assert_same(ours.step(actions), theirs.step(actions), unusual)


LEVERS: dict[str, Any] = {
    "float64": lambda rng: rng.random((2, 2, 3)),
    "a list": lambda rng: list(rng.random((2, 2, 3)).astype(np.float32)),
    "another shape": lambda rng: rng.random((2, 7)),
    "a whole row NaN": lambda rng: np.stack([np.full((2, 3), np.nan), rng.random((2, 3))]).astype(np.float32),
    "some NaN": lambda rng: np.where(rng.random((2, 2, 3)) < 0.3, np.nan, 1).astype(np.float32),
    "a whole row NaN, float64": lambda rng: np.stack([rng.random((2, 3)), np.full((2, 3), np.nan)]),
}


def test_unusual_batches_of_continuous_actions_equal_the_original() -> None:
    make, rng = functools.partial(Troupe, acted="levers"), np.random.default_rng(5)
    with both(make, make) as (theirs, ours):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        for unusual, batch in LEVERS.items():
            for k in range(4):
                actions = {**sampled(ours, k), **({"zoe": batch(rng)} if k % 2 else {})}
                assert_same(ours.step(actions), theirs.step(actions), unusual)


def test_missing_reordered_and_unknown_agents_equal_the_original() -> None:
    with both(Troupe, Troupe) as (theirs, ours):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        one, two = np.array([1, 2]), np.array([3, 4])
        for actions in (
            {"actor_0": one, "zoe": two, "actor_1": one},
            {"zoe": two},
            {"actor_1": one, "zoe": two, "actor_0": one},
            {"actor_0": one, "zoe": two, "actor_1": one, "unlisted": two},
            {"actor_0": one, "zoe": two, "actor_1": one},
        ):
            assert_same(ours.step(actions), theirs.step(actions))


def test_step_in_two_halves_equals_the_original() -> None:
    with both(Troupe, Troupe) as (theirs, ours):
        assert_same(ours.reset(seed=1), theirs.reset(seed=1))
        for k in range(10):
            each = [{"zoe": k % 5, "actor_0": np.int64(k % 3)}, {"actor_1": np.array([k % 4])}]
            ours.step_async(each)
            assert_same(ours.step_wait(timeout=60), theirs.step_each(each))
            actions = sampled(ours, k)
            assert_same(ours.step(actions), theirs.step(actions))


# -- resets ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", [None, 0, 7, [4, 1, 9]], ids=str)
def test_seeds_equal_the_original(seed: Any) -> None:
    with both(Troupe, Troupe, Troupe) as (theirs, ours):
        assert_same_steps(theirs, ours, 9, seed)
        assert_same_steps(theirs, ours, 2, seed)


def test_reset_arguments_equal_the_original() -> None:
    with both(Troupe, Troupe) as (theirs, ours):
        assert_same_steps(theirs, ours, 8, 5, {"reset_mask": np.array([True, False]), "depth": [1]})
        asked = ours.get_attr("asked")
        assert [one[0]["seed"] for one in asked] == [5, 6]
        assert asked[0][0]["options"]["depth"] == [1]
        assert asked[0][0]["options"]["reset_mask"].tolist() == [
            True,
            False,
        ]  # `reset_mask` has no special meaning here
        assert asked[0][1:] == [{}]  # automatic resets have no arguments


@pytest.mark.parametrize(("context", "workers"), [("fork", 1), ("fork", 3), ("forkserver", 2), ("spawn", 2)])
def test_every_start_method_and_worker_count_equals_the_original(context: Any, workers: int) -> None:
    make = functools.partial(Troupe, "dict", talks=True, mortal=True)
    with both(make, make, make, context=context, workers=workers) as (theirs, ours):
        assert_same_steps(theirs, ours, 15)
