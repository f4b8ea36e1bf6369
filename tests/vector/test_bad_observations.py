"""An observation that its space cannot represent is an error, never a silent cast; spaces must agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from tests.envs import AnySpace, Walk
from tests.fault_envs import Fault, IntegerObservation
from tests.vector.configurations import DISTINCT, WITHOUT_SPAWN, Configuration, over
from tests.vector.runs import actions

config = over(WITHOUT_SPAWN)


def failure_of_one_step(config: Configuration, env: Any, kwargs: list[dict[str, Any]]) -> mv.errors.EnvFailed:
    with config.make(env, env_kwargs=kwargs) as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.EnvFailed) as caught:
            envs.step(actions(range(config.num_envs), 0))
        return caught.value


@pytest.mark.fault("B1")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("wide_observation", r"the observation has shape \(3,\), its space says \(2,\)"),
        ("scalar_observation", r"the observation has shape \(\), its space says \(2,\)"),
        ("text_observation", "the observation is <U1, which does not fit its space's float64"),
    ],
)
def test_observation_of_wrong_shape_or_kind_names_its_env(config: Configuration, what: str, said: str) -> None:
    error = failure_of_one_step(config, Fault, [{"what": what} if i == 1 else {} for i in range(config.num_envs)])
    assert error.env_ids == (1,)
    with pytest.raises(mv.errors.EnvFailed, match=said):
        raise error


@pytest.mark.fault("B1")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1.0, 2.0], "float64.*uint8"),
        ([300, 1], "300.*uint8"),
        ([-1, 5], "-1.*uint8"),
        ([1], r"shape \(1,\)"),
    ],
)
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_values_that_an_integer_space_cannot_hold_are_named(config: Configuration, value: Any, said: str) -> None:
    kwargs = [{"value": value if i == 1 else [3, 4]} for i in range(config.num_envs)]
    error = failure_of_one_step(config, IntegerObservation, kwargs)
    assert error.env_ids == (1,)
    with pytest.raises(mv.errors.EnvFailed, match=said):
        raise error


@pytest.mark.fault("B1")
@pytest.mark.parametrize("value", [[200, 7], np.array([200, 7], np.int32), [True, False]])
def test_integers_of_another_type_are_accepted_if_they_fit(value: Any) -> None:
    with mv.make_vec(IntegerObservation, 2, "serial", env_kwargs={"value": value}) as envs:
        envs.reset(seed=0)
        observations, *_ = envs.step(actions(range(2), 0))
        assert observations.dtype == np.uint8
        assert observations.tolist() == [[int(v) for v in value]] * 2


@pytest.mark.fault("B1")
def test_nested_observation_error_names_its_path() -> None:
    space = spaces.Dict({"camera": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 255, (2,), np.uint8)))})

    class Blurred(AnySpace):
        def _observe(self) -> Any:
            value = super()._observe()
            return value if self.steps == 0 else {"camera": (value["camera"][0], np.array([0.5, 0.5]))}

    with mv.make_vec(lambda: Blurred(space, spaces.Discrete(2)), 2, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.EnvFailed, match=r"observation\['camera'\]\[1\] is float64"):
            envs.step(np.zeros(2, np.int64))


@pytest.mark.fault("B6")
def test_missing_key_in_an_observation_is_an_error() -> None:
    class Forgetful(AnySpace):
        def _observe(self) -> Any:
            value = super()._observe()
            return value if self.steps == 0 else {"a": value["a"]}

    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
    with mv.make_vec(lambda: Forgetful(space, spaces.Discrete(2)), 2, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.EnvFailed, match="KeyError: 'b'"):
            envs.step(np.zeros(2, np.int64))


@pytest.mark.fault("B1")
def test_wrong_observation_from_reset_names_its_env(config: Configuration) -> None:
    class Wide(Walk):
        def _observe(self) -> Any:
            return np.zeros(3)

    with config.make(Wide) as envs, pytest.raises(mv.errors.EnvFailed, match=r"shape \(3,\)") as caught:
        envs.reset(seed=0)
    assert caught.value.env_ids == tuple(range(config.num_envs))


@pytest.mark.fault("B8")
@pytest.mark.parametrize("odd", [1, 2, 3])
@pytest.mark.parametrize("kind", ["observation_space", "action_space"])
def test_differing_spaces_are_refused_with_env_and_difference(config: Configuration, kind: str, odd: int) -> None:
    usual, other = spaces.Discrete(2), spaces.Discrete(3)

    def factory(index: int) -> Any:
        given = {"observation_space": usual, "action_space": usual}
        return AnySpace(**{**given, kind: other} if index == odd else given)

    with pytest.raises(mv.errors.SpacesDiffer, match=rf"env {odd} has {kind} Discrete\(3\) instead of Discrete\(2\)"):
        config.make([lambda i=i: factory(i) for i in range(config.num_envs)])


@pytest.mark.fault("B8")
def test_boxes_with_other_bounds_differ() -> None:
    boxes = [spaces.Box(-1, high, (2,)) for high in (1, 2)]
    with pytest.raises(mv.errors.SpacesDiffer, match="env 1"):
        mv.make_vec([lambda b=b: AnySpace(b, spaces.Discrete(2)) for b in boxes], executor="serial")
