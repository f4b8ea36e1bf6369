"""Envs that raise, workers that die, and values that cannot be pickled: failures are reported without hangs."""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest

import multiverse as mv
from multiverse.interop.agilerl import AsyncPettingZooVecEnv, AsyncState
from tests.equality import assert_same
from tests.fault_envs import Gate
from tests.interop.agilerl.conftest import Make
from tests.interop.agilerl.envs import Gated, OfMyOwn, Stubborn, Troupe
from tests.interop.agilerl.model import Model
from tests.interop.agilerl.test_states import ACTIONS, EACH, START, WAIT
from tests.multi_agent.envs import Pair

pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")  # Gymnasium's logger reports errors of envs so

DO: dict[str, Any] = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step(ACTIONS),
    "call": lambda envs: envs.call("add", 1),
    "set": lambda envs: envs.set_attr("taboo", 1),
}


def do(envs: Any, phase: str) -> Any:
    if phase == "step":
        envs.reset(seed=1)
    return DO[phase](envs)


# -- envs that raise ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("phase", "error"),
    [("reset", "ValueError"), ("step", "ZeroDivisionError"), ("call", "ValueError"), ("set", "ZeroDivisionError")],
)
def test_exception_of_an_env_is_raised_with_its_type(make: Make, phase: str, error: str) -> None:
    envs = make(Troupe, functools.partial(Stubborn, phase, error))
    with pytest.raises(Exception, match=f"^asked to fail in {phase}$") as raised:
        do(envs, phase)
    assert raised.type.__name__ == error
    assert isinstance(raised.value.__cause__, mv.errors.EnvFailed)
    assert raised.value.__cause__.env_ids == (1,)
    assert envs._state is AsyncState.DEFAULT


def test_exception_type_unknown_to_the_caller_is_env_failed(make: Make) -> None:
    envs = make(Troupe, functools.partial(Stubborn, error="OfMyOwn"))
    with pytest.raises(
        mv.errors.EnvFailed, match=r"env 1 raised in step \(step 1 of episode 0, seed 2, action .*OfMyOwn"
    ):
        do(envs, "step")


@pytest.mark.parametrize("phase", ["reset", "step", "call"])
def test_every_failing_env_is_reported(make: Make, phase: str) -> None:
    fails = functools.partial(Stubborn, phase)
    envs = make(fails, fails)
    with patch.object(gymnasium.logger, "error") as logged, pytest.raises(ZeroDivisionError) as raised:
        do(envs, phase)
    said = [str(call.args) for call in logged.call_args_list]
    for i in range(2):
        assert sum("Received the following error from Worker-%s" in s and f", {i})" in s for s in said) == 1
    assert sum(f"asked to fail in {phase}" in s for s in said) == 2
    assert "Raising the last exception back to the main process." in said[-1]
    assert isinstance(raised.value.__cause__, mv.errors.EnvFailed)
    assert raised.value.__cause__.env_ids == (0, 1)


def test_reset_after_an_exception_restores_all_envs(make: Make) -> None:
    envs = make(functools.partial(Stubborn, "step", at=2), Troupe)
    envs.reset(seed=1)
    envs.step(ACTIONS)
    with pytest.raises(ZeroDivisionError):
        envs.step(ACTIONS)
    with pytest.raises(AssertionError, match="Cannot communicate with workers that were shut down after an error"):
        envs.step(ACTIONS)
    assert envs.call("add", 1) == (2, 3)  # they live
    model = Model([Troupe, Troupe])
    assert_same(envs.reset(seed=3), model.reset(seed=3))
    assert_same(envs.step(ACTIONS), model.step(ACTIONS))


def test_call_of_reserved_or_missing_names_is_refused(make: Make) -> None:
    envs = make(Troupe)
    for name in ("reset", "step", "close"):
        with pytest.raises(ValueError, match=f"Trying to call function `{name}` with `call`, use `{name}` directly"):
            envs.call(name)
    with pytest.raises(AttributeError, match="no_such_thing"):
        envs.get_attr("no_such_thing")
    assert envs.call("add", 1) == (1,)


@pytest.mark.parametrize("size", [1, 4])
def test_observation_of_another_size_is_an_error(make: Make, size: int) -> None:
    envs = make(Troupe, functools.partial(Wide, size))
    envs.reset()
    with pytest.raises(ValueError, match=f"cannot reshape array of size {size}"):
        envs.step(ACTIONS)


class Wide(Troupe):
    """Env whose observations have more or fewer numbers than its space, after the first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def step(self, actions: dict[str, Any]) -> Any:
        observations, *results = super().step(actions)
        return {**observations, "zoe": np.zeros(self.size, np.int16)}, *results


def test_info_that_cannot_be_pickled_is_sent_as_text(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    envs = make(Locked, Troupe)
    envs.reset()
    infos = envs.step(ACTIONS)[4]
    assert infos["zoe"][0].startswith("{'step': 1, ")
    assert infos["actor_0"]["step"].tolist() == [1, 0]
    assert "cannot be sent to the caller" in caplog.text


def test_answer_that_cannot_be_pickled_is_an_error(make: Make) -> None:
    envs = make(Locked)
    with pytest.raises(Exception, match="pickle"):
        envs.get_attr("lock")
    assert envs.get_attr("steps") == (0,)


class Locked(Troupe):
    """Env that returns a value that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(talks=True)
        self.lock = threading.Lock()

    def step(self, actions: dict[str, Any]) -> Any:
        *results, infos = super().step(actions)
        infos["zoe"]["lock"] = self.lock
        return *results, infos


# -- envs that cannot be built -----------------------------------------------------------------------------------
def test_first_env_is_built_in_the_caller_and_its_exception_is_raised() -> None:
    def refuse() -> Any:
        raise OfMyOwn("not today")

    with pytest.raises(OfMyOwn, match="not today"):
        AsyncPettingZooVecEnv([refuse, refuse])


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_env_that_cannot_be_built_in_its_worker_is_reported_on_use(make: Make, context: str) -> None:
    here = os.getpid()

    def only_here() -> Any:
        if os.getpid() != here:
            raise RuntimeError("Error creating env")
        return Troupe()

    envs = make(Troupe, only_here, context=context)
    assert envs.agents == ["actor_0", "zoe", "actor_1"]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^Error creating env$"):
            envs.reset()
    with pytest.raises(RuntimeError, match=r"^Error creating env$"):
        envs.step(ACTIONS)
    envs.close(terminate=True)
    assert envs.closed


def test_envs_with_spaces_of_different_shape_are_refused() -> None:
    with pytest.raises(RuntimeError, match="observation_space"):
        AsyncPettingZooVecEnv([functools.partial(Troupe, "vector"), functools.partial(Troupe, "image")])


# -- workers that die --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", WAIT)
def test_killed_worker_is_reported_at_once(make: Make, gate: Gate, phase: str) -> None:
    envs = make(Troupe, functools.partial(Gated, str(gate), phase, 2 if phase == "reset" else 1), workers=2)
    envs.reset()
    START[phase](envs)
    gate.wait_for_arrival()
    os.kill(envs.processes[1].pid, signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied, match=r"worker 1 \(envs 1\) was killed by SIGKILL"):
        WAIT[phase](envs)
    assert envs._state is AsyncState.DEFAULT
    with pytest.raises(mv.errors.WorkerDied):
        envs.reset()
    envs.close()
    assert not any(process.is_alive() for process in envs.processes)


def test_env_that_kills_its_worker_is_reported(make: Make) -> None:
    envs = make(Pair, functools.partial(Pair, "kill", 2), workers=2)
    envs.reset()
    actions = {agent: np.array([0, 0]) for agent in envs.agents}
    envs.step(actions)
    with pytest.raises(mv.errors.WorkerDied, match="SIGKILL"):
        envs.step(actions)
    envs.close()


def test_env_that_raises_on_close_is_closed(make: Make) -> None:
    envs = make(Troupe, functools.partial(Stubborn, "close"))
    with patch.object(gymnasium.logger, "error") as logged:
        envs.close()
    assert any("asked to fail in close" in str(call.args) for call in logged.call_args_list)
    assert not any(process.is_alive() for process in envs.processes)


# -- wrong actions -----------------------------------------------------------------------------------------------
def test_too_few_actions_are_refused_before_anything_is_sent(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.reset()
    for actions in ({**ACTIONS, "actor_0": np.array([1])}, {}, {"actor_0": [1, 2, 3]}):
        with pytest.raises(AssertionError, match="Number of actions passed to the step function must be equal"):
            envs.step(actions)
    with pytest.raises(IndexError):
        envs.step({**ACTIONS, "zoe": np.array([1])})
    with pytest.raises(ValueError, match="actions for 1 of 2 envs: pass one action per env"):
        envs.step_async(EACH[:1])
    assert envs._state is AsyncState.DEFAULT
    assert envs.get_attr("steps") == (0, 0)
    envs.step_async([*EACH, {}])  # surplus values are ignored
    envs.step_wait()


def test_seeds_and_values_of_wrong_length_are_refused(make: Make) -> None:
    envs = make(Troupe, Troupe)
    with pytest.raises(AssertionError, match="the length must match num_envs=2 but got length=3"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="Got `3` values for 2 environments"):
        envs.set_attr("length", [1, 2, 3])
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        make(Troupe, context="thread")
