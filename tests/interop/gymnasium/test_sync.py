"""`SyncVectorEnv`: the envs are in `envs`, their exceptions are raised, and the other envs continue."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import gymnasium.vector.sync_vector_env as peer
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

import multiverse as mv
from multiverse.interop.gymnasium import SyncVectorEnv
from tests.envs import AnySpace, Directions, Walk
from tests.equality import assert_same
from tests.fault_envs import Fault
from tests.interop.conftest import remembered

Make = Callable[..., SyncVectorEnv[Any, Any]]


@pytest.fixture
def make() -> Iterator[Make]:
    yield from remembered(SyncVectorEnv)


def failing(phase: str, at: int = 1, what: str = "raise") -> Any:
    return partial(Fault, what, phase=phase, at=at)


def some_actions(envs: Any) -> Any:
    return np.zeros(envs.num_envs, np.int64)


def test_envs_attribute_has_the_stepped_envs(make: Make) -> None:
    built = [Walk(), Walk()]
    envs = make(*[partial(lambda env: env, env) for env in built])
    assert [one is other for one, other in zip(envs.envs, built, strict=True)] == [True, True]
    envs.reset(seed=3)
    envs.step(some_actions(envs))
    assert [env.steps for env in built] == [1, 1]
    assert envs.call("process_id") == (os.getpid(),) * 2
    envs.envs[1].bonus = 100.0
    assert envs.step(some_actions(envs))[1][1] > 100
    assert envs.np_random[0] is built[0].np_random
    assert envs.engine.plan.executor == "serial"


def test_env_functions_can_be_any_iterable() -> None:
    envs = SyncVectorEnv(partial(Walk, length=n) for n in (1, 2))
    assert (envs.num_envs, envs.get_attr("length")) == (2, (1, 2))
    envs.close()


FAIL: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset(seed=4),
    "step": lambda envs: envs.step(some_actions(envs)),
    "method": lambda envs: envs.call("method"),
    "render": lambda envs: envs.render(),
}


@pytest.mark.parametrize("phase", FAIL)
def test_exception_is_raised_with_every_failure_in_its_cause(make: Make, phase: str) -> None:
    at = 2 if phase == "reset" else 1
    envs = make(Fault, failing(phase, at), failing(phase, at))
    envs.reset(seed=1)
    with warnings.catch_warnings(), pytest.raises(ZeroDivisionError, match=r"^asked to fail$") as error:
        warnings.simplefilter("error")
        FAIL[phase](envs)
    assert isinstance(error.value.__cause__, mv.errors.EnvFailed)
    assert error.value.__cause__.env_ids == (1, 2)
    FAIL[phase](envs)  # as with the original, an env that raised once is asked again
    envs.step(some_actions(envs))


def test_envs_can_be_stepped_after_a_refused_action(make: Make) -> None:
    envs = make(*[lambda: gymnasium.make("CartPole-v1")] * 2)
    with pytest.raises(ResetNeeded):
        envs.step(np.array([0, 1]))
    envs.reset(seed=1)
    with pytest.raises(AssertionError, match="99"):
        envs.step(np.array([0, 99]))
    assert envs.step(np.array([0, 1]))[1].tolist() == [1.0, 1.0]


def test_exception_type_unknown_to_the_caller_is_env_failed(make: Make) -> None:
    envs = make(failing("step", what="raise_two_arguments"))
    envs.reset()
    with pytest.raises(mv.errors.EnvFailed, match="NeedsTwoArguments: code 7"):
        envs.step(some_actions(envs))


def test_exception_in_a_constructor_is_raised_and_built_envs_are_closed() -> None:
    first = Fault("nothing", phase="close")
    with pytest.raises(ZeroDivisionError, match="asked to fail"):
        SyncVectorEnv([lambda: first, failing("constructor")])
    assert first._calls["close"] == 1


def test_ended_episode_must_be_reset_without_autoreset(make: Make) -> None:
    envs = make(partial(Walk, length=1), Walk, autoreset_mode="Disabled")
    envs.reset(seed=0)
    ended = envs.step(some_actions(envs))[2]
    assert ended.tolist() == [True, False]
    with pytest.raises(AssertionError):
        envs.step(some_actions(envs))
    envs.reset(options={"reset_mask": ended})
    envs.step(some_actions(envs))


def test_close_closes_every_env_and_raises_their_exception(make: Make) -> None:
    envs = make(failing("close"), partial(Fault, "nothing", phase="close"))
    with pytest.raises(ZeroDivisionError):
        envs.close()
    assert envs.closed
    assert [env._calls["close"] for env in envs.envs] == [1, 1]
    envs.close()
    for ask in (envs.reset, envs.render, lambda: envs.step(some_actions(envs)), lambda: envs.set_attr("bonus", 1.0)):
        with pytest.raises(ClosedEnvironmentError):
            ask()


def test_custom_spaces_equal_the_original(make: Make) -> None:
    envs = make(*[partial(AnySpace, Directions(), Directions())] * 2)
    reference = gymnasium.vector.SyncVectorEnv([partial(AnySpace, Directions(), Directions())] * 2)
    assert_same(envs.reset(seed=3), reference.reset(seed=3))
    assert_same(envs.step(("north", "up")), reference.step(("north", "up")))
    assert isinstance(envs.single_action_space, Directions)
    assert isinstance(envs.observation_space, gymnasium.spaces.Tuple)


def test_error_messages_name_the_spaces(make: Make) -> None:
    box = gymnasium.spaces.Box(0, 1, (2,))
    wide = gymnasium.spaces.Box(0, 1, (3,))
    discrete = gymnasium.spaces.Discrete(2)
    fitting, other = partial(AnySpace, box, discrete), partial(AnySpace, wide, discrete)
    for env_fns, options in (
        ([fitting, fitting, other], {}),
        ([fitting, fitting, other], {"observation_mode": (gymnasium.spaces.Box(0, 1, (3, 2)), box)}),
        ([fitting, partial(AnySpace, box, box)], {}),
    ):
        with pytest.raises(RuntimeError) as expected:
            gymnasium.vector.SyncVectorEnv(env_fns, **options)
        with pytest.raises(RuntimeError) as found:
            make(*env_fns, **options)
        assert str(found.value) == str(expected.value)


def test_vectorisation_of_the_original_is_not_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the original's own machinery was used")

    for name in ("iterate", "concatenate", "create_empty_array", "batch_space"):
        monkeypatch.setattr(peer, name, refuse)
    with pytest.raises(AssertionError, match="own machinery"):
        gymnasium.vector.SyncVectorEnv([Walk])
    envs = make(Walk, Walk)
    envs.reset(seed=1)
    envs.step([1, 2])
    assert isinstance(envs.engine, mv.VectorEnv)
