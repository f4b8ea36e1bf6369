"""Pending requests, requests that are refused meanwhile, and answers that come too late."""

from __future__ import annotations

import functools
import multiprocessing
import re
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

import multiverse as mv
from multiverse.core.plan import Timeouts
from multiverse.interop.agilerl import AsyncPettingZooVecEnv, AsyncState
from tests.equality import assert_same
from tests.fault_envs import Gate
from tests.interop.agilerl.conftest import Make
from tests.interop.agilerl.envs import Gated, Troupe
from tests.interop.agilerl.model import Model
from tests.interop.agilerl.peer import Original, with_agilerl
from tests.processes import still_alive
from tests.vector.test_interrupts import interrupted_at

MOMENT_S = 0.02
ACTIONS = {agent: np.array([1, 2]) for agent in ("actor_0", "zoe", "actor_1")}
EACH = [{agent: int(batch[i]) for agent, batch in ACTIONS.items()} for i in range(2)]

START: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset_async(),
    "step": lambda envs: envs.step_async(EACH),
    "call": lambda envs: envs.call_async("add", 1),
}
WAIT: dict[str, Callable[..., Any]] = {
    "reset": lambda envs, timeout=None: envs.reset_wait(timeout),
    "step": lambda envs, timeout=None: envs.step_wait(timeout),
    "call": lambda envs, timeout=None: envs.call_wait(timeout),
}
ASK: dict[str, Callable[[Any], Any]] = {
    "reset_async": START["reset"],
    "step_async": START["step"],
    "call_async": START["call"],
    "set_attr": lambda envs: envs.set_attr("length", 9),
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step(ACTIONS),
    "call": lambda envs: envs.call("add", 1),
    "get_attr": lambda envs: envs.get_attr("steps"),
    "render": lambda envs: envs.render(),
}


def first_reset(seed: int) -> Any:
    return Model([Troupe, Troupe]).reset(seed=seed)


# -- states ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pending", START)
def test_asynchronous_request_sets_and_clears_its_state(make: Make, pending: str) -> None:
    envs = make(Troupe, Troupe)
    envs.reset(seed=1)
    START[pending](envs)
    assert envs._state is AsyncState[f"WAITING_{pending.upper()}"]
    WAIT[pending](envs)
    assert envs._state is AsyncState.DEFAULT


@pytest.mark.parametrize("pending", START)
def test_other_requests_are_refused_while_one_is_pending(make: Make, pending: str) -> None:
    envs = make(Troupe, Troupe)
    envs.reset(seed=1)
    START[pending](envs)
    for ask in ASK.values():
        with pytest.raises(AlreadyPendingCallError, match=f"while waiting for a pending call to `{pending}`"):
            ask(envs)
    for name in set(WAIT) - {pending}:
        with pytest.raises(NoAsyncCallError, match=f"`{name}_wait` without any prior call"):
            WAIT[name](envs)
    WAIT[pending](envs)  # still there


@pytest.mark.parametrize("name", WAIT)
def test_state_set_from_outside_causes_no_hang(make: Make, name: str) -> None:
    envs = make(Troupe, Troupe)
    envs._state = AsyncState[f"WAITING_{name.upper()}"]
    with pytest.raises(multiprocessing.TimeoutError, match=f"`{name}_wait` has timed out after 0.02"):
        WAIT[name](envs, MOMENT_S)
    envs._state = AsyncState[f"WAITING_{name.upper()}"]
    with pytest.raises(NoAsyncCallError):
        WAIT[name](envs)
    assert_same(envs.reset(seed=3), first_reset(3))


def test_request_whose_state_was_cleared_can_be_repeated(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.reset_async(seed=5)
    envs._state = AsyncState.DEFAULT
    with pytest.raises(NoAsyncCallError):
        envs.reset_wait()
    assert_same(envs.reset(seed=3), first_reset(3))


@pytest.mark.skipif(not with_agilerl, reason="agilerl is not installed")
@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting:UserWarning")
@pytest.mark.parametrize("pending", START)
def test_refusals_have_the_words_of_the_original(make: Make, pending: str) -> None:
    theirs, ours = Original([Troupe, Troupe]), make(Troupe, Troupe)
    said: list[list[Any]] = [[], []]
    for envs, refusals in zip((theirs, ours), said):
        envs.reset(seed=1)
        for do in (WAIT[pending], START[pending], *ASK.values()):
            try:
                do(envs)
            except (AlreadyPendingCallError, NoAsyncCallError) as refusal:
                refusals.append((type(refusal), *refusal.args))
    theirs.close(terminate=True)
    assert said[0] == said[1]
    assert len(said[0]) == 1 + len(ASK)


# -- deadlines ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", WAIT)
def test_missed_deadline_is_a_multiprocessing_timeout(make: Make, gate: Gate, phase: str) -> None:
    envs = make(Troupe, functools.partial(Gated, str(gate), phase, 2 if phase == "reset" else 1))
    envs.reset(seed=1)
    START[phase](envs)
    gate.wait_for_arrival()
    with pytest.raises(multiprocessing.TimeoutError, match=f"`{phase}_wait` has timed out after 0.02 second"):
        WAIT[phase](envs, MOMENT_S)
    assert envs._state is AsyncState.DEFAULT
    with pytest.raises(AlreadyPendingCallError, match=f"`{phase}_wait` has timed out, and its result is lost"):
        envs.step(ACTIONS)
    gate.open()
    assert_same(envs.reset(seed=3), first_reset(3))
    assert envs.call("add", 1) == (1, 1)


def test_met_deadline_returns_the_result(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.reset_async(seed=3)
    assert_same(envs.reset_wait(timeout=60), first_reset(3))
    for name in ("step", "call"):
        START[name](envs)
        assert len(WAIT[name](envs, 60)) in (2, 5)


def test_interrupted_step_can_be_waited_for(make: Make, gate: Gate) -> None:
    model = Model([Troupe, Troupe])
    model.reset(seed=1)
    envs = make(Troupe, functools.partial(Gated, str(gate)))
    envs.reset(seed=1)
    interrupted_at(gate, lambda: envs.step(ACTIONS))
    assert envs._state is AsyncState.WAITING_STEP
    gate.open()
    assert_same(envs.step_wait(), model.step(ACTIONS))
    assert_same(envs.step(ACTIONS), model.step(ACTIONS))


def test_interrupted_reset_leaves_nothing_behind(make: Make, gate: Gate) -> None:
    envs = make(Troupe, functools.partial(Gated, str(gate), "reset"))
    interrupted_at(gate, lambda: envs.reset(seed=1))
    gate.open()
    assert_same(envs.reset(seed=3), first_reset(3))


# -- the end -----------------------------------------------------------------------------------------------------
def test_calls_after_close_are_refused_and_no_process_runs(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.reset()
    pids = [process.pid for process in envs.processes]
    assert all(process.is_alive() for process in envs.processes)
    envs.close()
    assert envs.closed
    assert not any(process.is_alive() for process in envs.processes)
    assert still_alive(pids, 0.0) == []
    envs.close()
    said = re.escape("Trying to operate on `AsyncPettingZooVecEnv`, after a call to `close()`.")
    for use in (*ASK.values(), *WAIT.values()):
        with pytest.raises(ClosedEnvironmentError, match=said):
            use(envs)


@pytest.mark.parametrize(
    ("pending", "options"),
    [("reset", {}), ("step", {"terminate": True}), ("call", {"timeout": 0}), ("step", {"timeout": 60})],
)
def test_close_with_a_pending_request_warns_and_closes(make: Make, pending: str, options: dict[str, Any]) -> None:
    envs = make(Troupe, Troupe)
    envs.reset()
    START[pending](envs)
    with patch.object(gymnasium.logger, "warn") as warn:
        envs.close_extras(**options)
    warn.assert_called_once_with(f"Calling `close` while waiting for a pending call to `{pending}` to complete.")
    assert not any(process.is_alive() for process in envs.processes)
    envs.close()


@pytest.mark.parametrize("options", [{"terminate": True}, {"timeout": MOMENT_S}], ids=str)
def test_close_does_not_wait_for_a_hanging_env(make: Make, gate: Gate, options: dict[str, Any]) -> None:
    envs = make(Troupe, functools.partial(Gated, str(gate)))
    envs.reset()
    envs.step_async(EACH)
    gate.wait_for_arrival()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs.close(**options)
    assert not any(process.is_alive() for process in envs.processes)


def test_close_after_a_missed_deadline_ends_a_hanging_env(
    make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiverse.interop.drop_in.DEFAULT_TIMEOUTS", Timeouts(close_s=10 * MOMENT_S))
    envs = make(functools.partial(Gated, str(gate)), Troupe)
    envs.reset()
    envs.step_async(EACH)
    gate.wait_for_arrival()
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0)
    envs.close()  # the original waits here for ever
    assert not any(process.is_alive() for process in envs.processes)


def test_deleted_vector_env_ends_its_workers() -> None:
    envs = AsyncPettingZooVecEnv([Troupe, Troupe])
    pids = [process.pid for process in envs.processes]
    del envs
    assert still_alive(pids) == []


def test_private_methods_after_close_raise_closed_error(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.close_extras(terminate=True)
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()
    envs.closed = True
    with pytest.raises(ClosedEnvironmentError):
        envs._assert_is_running()
    with pytest.raises(mv.MultiverseError):
        envs.engine.reset()
