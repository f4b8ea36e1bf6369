"""Rows B1 and B2: values that cannot be learned from are raised, truncated or clipped, as configured.

The last env returns one bad value in its third step; the others continue as serial envs without faults.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, IntegerObservation
from tests.faults.value_envs import Nested, SquareObservation
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

LOW, HIGH = -8.0, 9.0
SEED, AT = 7, 3
SAID = {
    "nan_observation": r"observation\['body'\]\[1\] is nan at index 1",
    "inf_observation": r"observation\['body'\]\[1\] is -inf .*at index 1",
    "huge_observation": r"observation\['body'\]\[1\] is inf .*at index 1",
    "wide_observation": r"observation\['body'\]\[1\] has shape \(3,\), its space says \(2,\)",
    "text_observation": r"observation\['body'\]\[1\] is <U1, which does not fit its space's float32",
    "nan_reward": "the reward is nan",
    "inf_reward": "the reward is inf",
    "text_reward": "the reward is 'much', which is not a number",
}
NOT_FINITE = ["nan_observation", "inf_observation", "huge_observation", "nan_reward", "inf_reward"]
UNUSABLE = ["wide_observation", "text_observation", "text_reward"]  # not a number that could be clipped or passed on
CLIPPED = {"nan_observation": 0.0, "inf_observation": LOW, "huge_observation": HIGH}
AUTORESETS = ["next_step", "same_step", "disabled"]
OTHERS = [THREAD, HYBRID, FORK, SPAWN]


def cases(kinds: list[str], autoresets: list[str] = AUTORESETS) -> Any:
    """Every kind of value and autoreset mode in the caller and in worker processes; one of them in other executors."""
    full = itertools.product([SERIAL, FORKSERVER], kinds, autoresets)
    smoke = ((config, kinds[0], "next_step") for config in OTHERS)
    return pytest.mark.parametrize(("config", "what", "autoreset"), [*full, *smoke], ids=str)


def spoiled(make: Make, config: Configuration, what: str, autoreset: str, **options: Any) -> Any:
    """A vector env after two good steps, whose last env returns something bad in the next."""
    kwargs = [{"box": (LOW, HIGH)}] * (config.num_envs - 1) + [{"box": (LOW, HIGH), "what": what, "at": AT}]
    envs = make(Nested, env_kwargs=kwargs, autoreset=autoreset, **options)
    envs.reset(seed=SEED)
    for k in range(AT - 1):
        envs.step(actions(range(config.num_envs), k))
    return envs


def without_faults(config: Configuration, steps: int, autoreset: str = "next_step") -> list[Any]:
    """Return the results of serial envs without faults."""
    with SERIAL.make(Nested, config.num_envs, env_kwargs={"box": (LOW, HIGH)}, autoreset=autoreset) as envs:
        envs.reset(seed=SEED)
        return [envs.step(actions(range(config.num_envs), k)) for k in range(steps)]


def assert_same_rows(found: Any, expected: Any, rows: list[int]) -> None:
    assert_same(rows_of(found, rows), rows_of(expected, rows))


def rows_of(step: Any, rows: Any) -> list[Any]:
    observations, rewards, terminated, truncated, _ = step
    body = [part[rows] for part in observations["body"]]
    return [observations["mode"][rows], *body, rewards[rows], terminated[rows], truncated[rows]]


def observation_of(observations: Any, i: int) -> list[Any]:
    return [observations["mode"][i], *(part[i] for part in observations["body"])]


@pytest.mark.fault("B1", "B2")
@cases([*NOT_FINITE, *UNUSABLE])
def test_raise_mode_names_env_path_value_and_reproduction(
    make: Make, config: Configuration, what: str, autoreset: str
) -> None:
    envs, last = spoiled(make, config, what, autoreset), config.num_envs - 1
    with pytest.raises(mv.errors.EnvFailed, match=SAID[what]) as caught:
        envs.step(actions(range(config.num_envs), AT - 1))
    (failure,) = caught.value.failures
    assert failure.type_name == "BadValue"
    assert (failure.env_id, failure.step, failure.episode, failure.seed) == (last, AT, 0, SEED + last)
    assert re.search(rf"env {last} .*step {AT} of episode 0, seed {SEED + last}", str(caught.value))
    assert envs.failures.bad_values == 1
    envs.reset(env_ids=[last], seed=SEED)
    envs.step(actions(range(config.num_envs), AT))


@pytest.mark.fault("B1", "B2")
@cases([*NOT_FINITE, *UNUSABLE])
def test_truncate_mode_ends_the_episode_without_the_bad_step(
    make: Make, config: Configuration, what: str, autoreset: str
) -> None:
    envs, last = (
        spoiled(make, config, what, autoreset, on_failure=mv.FailureOptions(on_bad_value="truncate")),
        config.num_envs - 1,
    )
    expected, others = without_faults(config, AT, autoreset), list(range(last))
    step = envs.step(actions(range(config.num_envs), AT - 1))
    observations, rewards, terminated, truncated, infos = step
    assert_same_rows(step, expected[AT - 1], others)
    assert (rewards[last], terminated[last], truncated[last]) == (0.0, False, True)
    assert infos["bad_value"].tolist() == infos["_bad_value"].tolist() == [i == last for i in range(config.num_envs)]
    delivered = observation_of(expected[AT - 2][0], last)
    if autoreset == "same_step":
        assert_same(observation_of_one(infos["final_obs"][last]), delivered)
        assert observations["mode"][last] == 0  # the next episode has begun
    else:
        assert_same(observation_of(observations, last), delivered)
    failures = envs.failures
    assert (failures.bad_values, failures.steps_discarded, failures.env_restarts) == (1, 1, 0)
    assert failures.steps_sent == failures.steps_used + failures.steps_discarded


def observation_of_one(observation: Any) -> list[Any]:
    """The observation as in a batch. Discrete ones are the ints that an env returns, as in Gymnasium."""
    parts = [observation["mode"], *observation["body"]]
    assert type(parts[0]) is int
    return [np.int64(part) if type(part) is int else part for part in parts]


@pytest.mark.fault("B1", "B2")
@cases(NOT_FINITE)
def test_clip_mode_uses_the_nearest_valid_value(make: Make, config: Configuration, what: str, autoreset: str) -> None:
    envs, last = (
        spoiled(make, config, what, autoreset, on_failure=mv.FailureOptions(on_bad_value="clip")),
        config.num_envs - 1,
    )
    expected, others = without_faults(config, AT, autoreset), list(range(last))
    step = envs.step(actions(range(config.num_envs), AT - 1))
    observations, rewards, _, truncated, infos = step
    assert_same_rows(step, expected[AT - 1], others)
    if what in CLIPPED:
        good = expected[AT - 1][0]["body"][1][last]
        assert observations["body"][1][last].tolist() == [good[0], CLIPPED[what]]
    else:
        assert rewards[last] == 0.0
    assert not truncated[last] and "bad_value" not in infos
    assert (envs.failures.bad_values, envs.failures.steps_discarded) == (1, 0)


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize("mode", ["clip", "off"])
@pytest.mark.parametrize(
    ("config", "what"), [*itertools.product([SERIAL, FORKSERVER], UNUSABLE), (THREAD, UNUSABLE[0])]
)
def test_unclippable_value_is_an_error_in_clip_and_off_mode(
    make: Make, config: Configuration, what: str, mode: Any
) -> None:
    envs = spoiled(make, config, what, "next_step", on_failure=mv.FailureOptions(on_bad_value=mode))
    with pytest.raises(mv.errors.EnvFailed, match=SAID[what]):
        envs.step(actions(range(config.num_envs), AT - 1))


@pytest.mark.fault("B1", "B2")
@cases(NOT_FINITE, ["next_step"])
def test_off_mode_checks_nothing(make: Make, config: Configuration, what: str, autoreset: str) -> None:
    envs, last = (
        spoiled(make, config, what, autoreset, on_failure=mv.FailureOptions(on_bad_value="off")),
        config.num_envs - 1,
    )
    observations, rewards, *_ = envs.step(actions(range(config.num_envs), AT - 1))
    assert not (np.isfinite(observations["body"][1][last]).all() and np.isfinite(rewards[last]))
    assert envs.failures.bad_values == 0


@pytest.mark.fault("B1", "B4")
@cases(["nan_observation", "wide_observation", "inf_reward"])
def test_bad_value_with_restart_is_treated_as_a_failure(
    make: Make, config: Configuration, what: str, autoreset: str
) -> None:
    envs, last = spoiled(make, config, what, autoreset, on_failure="restart"), config.num_envs - 1
    expected = without_faults(config, AT, autoreset)
    step = envs.step(actions(range(config.num_envs), AT - 1))
    observations, rewards, _, truncated, infos = step
    assert_same_rows(step, expected[AT - 1], list(range(last)))
    final = (
        observation_of_one(infos["final_obs"][last]) if autoreset == "same_step" else observation_of(observations, last)
    )
    assert_same(final, observation_of(expected[AT - 2][0], last))
    assert (rewards[last], truncated[last], infos["restarted"][last]) == (0.0, True, True)
    assert (envs.failures.env_restarts, envs.failures.steps_discarded) == (1, 1)


# -- other places ----------------------------------------------------------------------------------------------
places = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID], ids=str)


@pytest.mark.fault("B1")
@places
def test_final_observation_is_checked_before_the_next_reset_overwrites_it(make: Make, config: Configuration) -> None:
    last, length = config.num_envs - 1, 2
    kwargs = [{"length": length}] * last + [{"length": length, "what": "nan_observation", "at": length}]
    envs = make(Fault, env_kwargs=kwargs, autoreset="same_step")
    envs.reset(seed=SEED)
    envs.step(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.EnvFailed, match="the observation is nan at index 1") as caught:
        envs.step(actions(range(config.num_envs), 1))
    assert (caught.value.env_ids, caught.value.failures[0].step) == ((last,), length)


@pytest.mark.fault("B1")
@places
def test_final_observation_is_clipped(make: Make, config: Configuration) -> None:
    last = config.num_envs - 1
    box = {"length": 1, "box": (LOW, HIGH)}
    envs = make(
        Fault,
        env_kwargs=[box] * last + [{**box, "what": "inf_observation"}],
        autoreset="same_step",
        on_failure=mv.FailureOptions(on_bad_value="clip"),
    )
    envs.reset(seed=SEED)
    observations, *_, infos = envs.step(actions(range(config.num_envs), 0))
    assert infos["final_obs"][last][1] == LOW
    assert np.isfinite(observations).all()


@pytest.mark.fault("B1")
@places
def test_observation_of_a_reset_is_checked(make: Make, config: Configuration) -> None:
    last = config.num_envs - 1
    envs = make(Fault, env_kwargs=[{}] * last + [{"what": "nan_observation", "phase": "reset"}])
    with pytest.raises(mv.errors.EnvFailed, match="the observation is nan at index 1") as caught:
        envs.reset(seed=SEED)
    (failure,) = caught.value.failures
    assert (failure.env_id, failure.type_name, failure.episode) == (last, "BadValue", 0)
    assert (failure.seed, failure.step) == (SEED + last, None)
    envs.reset(seed=SEED)


@pytest.mark.fault("B1")
@places
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_observation_of_an_automatic_reset_is_checked(make: Make, config: Configuration, autoreset: str) -> None:
    last = config.num_envs - 1
    kwargs = [{"length": 1}] * last + [{"length": 1, "what": "nan_observation", "phase": "reset", "at": 2}]
    envs = make(Fault, env_kwargs=kwargs, autoreset=autoreset)
    envs.reset(seed=SEED)
    with pytest.raises(mv.errors.EnvFailed, match="the observation is nan at index 1") as caught:
        for k in range(2):
            envs.step(actions(range(config.num_envs), k))
    assert caught.value.env_ids == (last,)
    assert caught.value.failures[0].episode == 1


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize("what", ["nan_observation", "inf_observation", "nan_reward"])
@pytest.mark.parametrize("side", [1, 100])
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_small_and_large_observations_are_checked_alike(
    make: Make, config: Configuration, what: str, side: int
) -> None:
    envs = make(SquareObservation, env_kwargs=[{"side": side}] * (config.num_envs - 1) + [{"side": side, "what": what}])
    envs.reset(seed=SEED)
    said = {"nan_observation": r"is nan at index \(", "inf_observation": r"is -inf .*at index \("}
    with pytest.raises(mv.errors.EnvFailed, match=said.get(what, "the reward is nan")) as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert caught.value.env_ids == (config.num_envs - 1,)


@pytest.mark.fault("B1")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_every_env_with_a_bad_value_is_named(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=[{"what": "nan_observation" if i % 2 else "nothing"} for i in range(config.num_envs)])
    envs.reset(seed=SEED)
    with pytest.raises(mv.errors.EnvFailed, match="1 more") as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert caught.value.env_ids == (1, 3)


@pytest.mark.fault("B1")
@pytest.mark.parametrize("mode", ["raise", "truncate", "clip", "off"])
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_valid_values_are_equal_in_every_mode(make: Make, config: Configuration, mode: Any) -> None:
    class WholeNumbers(Walk):
        """Env that returns integers and float64 for a float32 space."""

        def _observe(self) -> Any:
            return super()._observe().astype(np.int64 if self.steps % 2 else np.float64)

    envs = make(lambda: WholeNumbers(dtype=np.float32), on_failure=mv.FailureOptions(on_bad_value=mode))
    with SERIAL.make(
        lambda: WholeNumbers(dtype=np.float32), config.num_envs, on_failure=mv.FailureOptions(on_bad_value="off")
    ) as oracle:
        assert_same(envs.reset(seed=SEED), oracle.reset(seed=SEED))
        for k in range(8):
            batch = actions(range(config.num_envs), k)
            assert_same(envs.step(batch), oracle.step(batch))
    assert (envs.failures.bad_values, envs.failures.out_of_bounds) == (0, 0)


@pytest.mark.fault("B1")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_float_in_an_integer_leaf_is_truncated_in_truncate_mode(make: Make, config: Configuration) -> None:
    kwargs = [{"value": [0.5, 1.0] if i == 1 else [3, 4]} for i in range(config.num_envs)]
    envs = make(IntegerObservation, env_kwargs=kwargs, on_failure=mv.FailureOptions(on_bad_value="truncate"))
    envs.reset(seed=SEED)
    observations, _, _, truncated, infos = envs.step(actions(range(config.num_envs), 0))
    assert truncated.tolist() == infos["bad_value"].tolist() == [i == 1 for i in range(config.num_envs)]
    assert observations.tolist() == [[1, 2] if i == 1 else [3, 4] for i in range(config.num_envs)]


@pytest.mark.fault("B2")
@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1), np.array(1.0)], ids=repr)
def test_rewards_of_every_numeric_type_are_accepted(reward: Any) -> None:
    class Pays(Walk):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    with mv.make_vec(Pays, 2, "serial") as envs:
        envs.reset(seed=SEED)
        assert envs.step(actions(range(2), 0))[1].tolist() == [1.0, 1.0]


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"on_bad_value='ignore'.*truncate"):
        mv.make_vec(Walk, 2, "serial", on_failure=mv.FailureOptions(on_bad_value="ignore"))  # type: ignore[arg-type]
