"""Equal seeds and actions give exactly the results of Gymnasium's SyncVectorEnv: every space, mode and info."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.envs import AnySpace, NumericInfos, PlainInts, RichInfos, Walk
from tests.equality import assert_same
from tests.space_catalogue import SPACES, catalogue
from tests.vector.configurations import (
    FORK,
    FORKSERVER,
    HYBRID,
    SERIAL,
    SPAWN,
    THREAD,
    UNEVEN,
    WITHOUT_SPAWN,
    gymnasiums_own,
    over,
)
from tests.vector.runs import actions, assert_same_run

config = over(WITHOUT_SPAWN)
MODES = ["next_step", "same_step", "disabled"]


def assert_equals_gymnasium(config: Any, env: Any, autoreset: str, steps: int, num_envs: int | None = None) -> None:
    count = config.num_envs if num_envs is None else num_envs
    with config.make(env, count, autoreset=autoreset) as envs:
        reference = gymnasiums_own(env, count, autoreset)
        assert_same_run(envs, reference, steps)
        reference.close()


def with_space(name: str) -> Callable[[], Any]:
    """An env with this space for observations and actions; the reward identifies the action that arrived."""
    return lambda: AnySpace(catalogue()[name], catalogue()[name])


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_every_space_in_every_mode_equals_gymnasium(config: Any, name: str, autoreset: str) -> None:
    assert_equals_gymnasium(config, with_space(name), autoreset, steps=8, num_envs=3)


@pytest.mark.parametrize("name", ["discrete", "discrete_start", "dict", "tuple", "nested"])
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_final_integer_observations_keep_the_type_of_the_env(config: Any, name: str) -> None:
    """A final observation is the object that the env returned: Python's int, or numpy's."""
    space = catalogue()[name]
    assert_equals_gymnasium(config, lambda: PlainInts(space, space), "same_step", steps=8, num_envs=3)
    mixed = [lambda: PlainInts(space, space), lambda: AnySpace(space, space)]
    assert_equals_gymnasium(config, mixed, "same_step", steps=8, num_envs=2)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("config", [THREAD, HYBRID], ids=str)
def test_every_space_in_every_executor_equals_gymnasium(config: Any, name: str) -> None:
    assert_equals_gymnasium(config, with_space(name), "same_step", steps=8, num_envs=3)


@pytest.mark.parametrize("name", ["nested", "dict_mixed", "tuple_mixed", "one_of"])
@pytest.mark.parametrize("config", [FORK, SPAWN, UNEVEN], ids=str)
def test_nested_spaces_equal_gymnasium_for_other_start_methods_and_shares(config: Any, name: str) -> None:
    assert_equals_gymnasium(config, with_space(name), "same_step", steps=12)


@pytest.mark.parametrize("autoreset", MODES)
def test_episodes_of_different_lengths_equal_gymnasium(config: Any, autoreset: str) -> None:
    env = [lambda n=n: Walk(length=n) for n in range(1, config.num_envs + 1)]
    assert_equals_gymnasium(config, env, autoreset, steps=20)


@pytest.mark.parametrize("autoreset", MODES)
def test_infos_of_every_kind_equal_gymnasium(config: Any, autoreset: str) -> None:
    env = [lambda i=i: RichInfos(index=i) for i in range(config.num_envs)]
    assert_equals_gymnasium(config, env, autoreset, steps=14)


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("index", ["equal", "different"])
def test_numeric_infos_equal_gymnasium(config: Any, index: str, autoreset: str) -> None:
    env = [lambda i=i: NumericInfos(index=i if index == "different" else 0) for i in range(config.num_envs)]
    assert_equals_gymnasium(config, env, autoreset, steps=12)


@pytest.mark.parametrize("autoreset", MODES)
def test_masked_resets_equal_gymnasium(config: Any, autoreset: str) -> None:
    n = config.num_envs
    env = [lambda n=n: Walk(length=n) for n in range(1, n + 1)]
    with config.make(env, autoreset=autoreset) as envs:
        reference = gymnasiums_own(env, n, autoreset)
        assert_same(envs.reset(seed=7), reference.reset(seed=7))
        for k in range(12):
            batch = actions(range(n), k)
            expected = reference.step(batch)
            assert_same(envs.step(batch), expected, f"step {k}")
            mask = (np.arange(n) + k) % 3 == 0
            if autoreset == "disabled":
                mask |= expected[2] | expected[3]
            found = envs.reset(options={"reset_mask": mask}, seed=k)
            assert_same(found, reference.reset(options={"reset_mask": mask}, seed=k), f"reset {k}")


def test_more_numeric_infos_than_columns_equal_gymnasium(config: Any) -> None:
    env = [lambda i=i: RichInfos(index=i, many=80) for i in range(config.num_envs)]
    assert_equals_gymnasium(config, env, "same_step", steps=8)


def test_infos_that_start_late_or_in_one_env_equal_gymnasium(config: Any) -> None:
    env = [lambda i=i: (RichInfos if i == 2 else NumericInfos)(index=i) for i in range(config.num_envs)]
    assert_equals_gymnasium(config, env, "next_step", steps=10)


def test_objects_larger_than_a_pipe_buffer_equal_gymnasium(config: Any) -> None:
    def env() -> Any:
        large = spaces.Sequence(spaces.Box(-1, 1, (50_000,), np.float32), stack=True)
        return AnySpace(large, large)

    assert_equals_gymnasium(config, env, "same_step", steps=5)


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize(("env_id", "steps"), [("CartPole-v1", 50), ("Pendulum-v1", 12)])
def test_classic_control_equals_gymnasium(config: Any, env_id: str, steps: int, autoreset: str) -> None:
    limit = None if env_id == "CartPole-v1" else 5  # Pendulum ends by its time limit only
    assert_equals_gymnasium(config, lambda: gymnasium.make(env_id, max_episode_steps=limit), autoreset, steps)


def test_env_given_by_id_equals_gymnasium(config: Any) -> None:
    assert_equals_gymnasium(config, "CartPole-v1", "next_step", steps=30)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID, UNEVEN], ids=str)
def test_half_cheetah_equals_gymnasium(config: Any, autoreset: str) -> None:
    pytest.importorskip("mujoco")

    def half_cheetah() -> Any:
        return gymnasium.make("HalfCheetah-v5", max_episode_steps=6)

    assert_equals_gymnasium(config, half_cheetah, autoreset, steps=15)


def test_wrapped_envs_equal_gymnasium(config: Any) -> None:
    def wrapped() -> Any:
        env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1", max_episode_steps=9))
        return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)

    with config.make(wrapped, autoreset="same_step") as envs:
        reference = gymnasiums_own(wrapped, config.num_envs, "same_step")
        without_clock(envs), without_clock(reference)
        assert_same_run(envs, reference, 30)
        reference.close()


def without_clock(envs: Any) -> None:
    """Remove the duration of episodes: it is the only part of these infos that does not depend on the seed."""
    step = envs.step

    def step_without_time(actions: Any) -> Any:
        *rest, infos = step(actions)
        for record in (infos, infos.get("final_info", {})):
            if "episode" in record:
                del record["episode"]["t"], record["episode"]["_t"]
        return (*rest, infos)

    envs.step = step_without_time
