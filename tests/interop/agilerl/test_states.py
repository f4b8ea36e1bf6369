"""What is under way, what may not be asked meanwhile, and what becomes of answers that come too late."""

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
from tests.contract.test_interrupts import interrupted_at
from tests.equality import assert_same
from tests.fault_envs import Gate
from tests.interop.agilerl.conftest import Make
from tests.interop.agilerl.envs import Gated, Troupe
from tests.interop.agilerl.model import Model
from tests.interop.agilerl.peer import Original, with_agilerl
from tests.processes import still_alive

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
def test_a_request_in_two_halves_goes_through_its_state(make: Make, pending: str) -> None:
    envs = make(Troupe, Troupe)
    envs.reset(seed=1)
    START[pending](envs)
    assert envs._state is AsyncState[f"WAITING_{pending.upper()}"]
    WAIT[pending](envs)
    assert envs._state is AsyncState.DEFAULT


@pytest.mark.parametrize("pending", START)
def test_while_one_request_is_pending_no_other_is_taken(make: Make, pending: str) -> None:
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
def test_a_state_that_somebody_else_has_set_hangs_nobody(make: Make, name: str) -> None:
    envs = make(Troupe, Troupe)
    envs._state = AsyncState[f"WAITING_{name.upper()}"]
    with pytest.raises(multiprocessing.TimeoutError, match=f"`{name}_wait` has timed out after 0.02"):
        WAIT[name](envs, MOMENT_S)
    envs._state = AsyncState[f"WAITING_{name.upper()}"]
    with pytest.raises(NoAsyncCallError):
        WAIT[name](envs)
    assert_same(envs.reset(seed=3), first_reset(3))


def test_a_request_whose_state_was_taken_away_can_be_asked_again(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.reset_async(seed=5)
    envs._state = AsyncState.DEFAULT
    with pytest.raises(NoAsyncCallError):
        envs.reset_wait()
    assert_same(envs.reset(seed=3), first_reset(3))


@pytest.mark.skipif(not with_agilerl, reason="agilerl is not installed")
@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting:UserWarning")
@pytest.mark.parametrize("pending", START)
def test_refusals_are_the_originals_word_for_word(make: Make, pending: str) -> None:
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
def test_a_deadline_that_passes_is_a_multiprocessing_timeout(make: Make, gate: Gate, phase: str) -> None:
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


def test_a_deadline_that_is_met(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.reset_async(seed=3)
    assert_same(envs.reset_wait(timeout=60), first_reset(3))
    for name in ("step", "call"):
        START[name](envs)
        assert len(WAIT[name](envs, 60)) in (2, 5)


def test_ctrl_c_in_a_step_leaves_it_to_be_waited_for(make: Make, gate: Gate) -> None:
    model = Model([Troupe, Troupe])
    model.reset(seed=1)
    envs = make(Troupe, functools.partial(Gated, str(gate)))
    envs.reset(seed=1)
    interrupted_at(gate, lambda: envs.step(ACTIONS))
    assert envs._state is AsyncState.WAITING_STEP
    gate.open()
    assert_same(envs.step_wait(), model.step(ACTIONS))
    assert_same(envs.step(ACTIONS), model.step(ACTIONS))


def test_ctrl_c_in_a_reset_leaves_nothing_behind(make: Make, gate: Gate) -> None:
    envs = make(Troupe, functools.partial(Gated, str(gate), "reset"))
    interrupted_at(gate, lambda: envs.reset(seed=1))
    gate.open()
    assert_same(envs.reset(seed=3), first_reset(3))


# -- the end -----------------------------------------------------------------------------------------------------
def test_after_close_everything_is_refused_and_nothing_runs(make: Make) -> None:
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
    ("pending", "how"),
    [("reset", {}), ("step", {"terminate": True}), ("call", {"timeout": 0}), ("step", {"timeout": 60})],
)
def test_close_while_something_is_pending_warns_and_closes(make: Make, pending: str, how: dict[str, Any]) -> None:
    envs = make(Troupe, Troupe)
    envs.reset()
    START[pending](envs)
    with patch.object(gymnasium.logger, "warn") as warn:
        envs.close_extras(**how)
    warn.assert_called_once_with(f"Calling `close` while waiting for a pending call to `{pending}` to complete.")
    assert not any(process.is_alive() for process in envs.processes)
    envs.close()


@pytest.mark.parametrize("how", [{"terminate": True}, {"timeout": MOMENT_S}], ids=str)
def test_close_does_not_wait_for_an_env_that_hangs(make: Make, gate: Gate, how: dict[str, Any]) -> None:
    envs = make(Troupe, functools.partial(Gated, str(gate)))
    envs.reset()
    envs.step_async(EACH)
    gate.wait_for_arrival()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs.close(**how)
    assert not any(process.is_alive() for process in envs.processes)


def test_close_after_a_deadline_has_passed_ends_even_what_hangs(
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


def test_forgotten_vector_envs_end_their_workers() -> None:
    envs = AsyncPettingZooVecEnv([Troupe, Troupe])
    pids = [process.pid for process in envs.processes]
    del envs
    assert still_alive(pids) == []


def test_the_state_says_closed_to_whoever_skips_the_front_door(make: Make) -> None:
    envs = make(Troupe, Troupe)
    envs.close_extras(terminate=True)
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()
    envs.closed = True
    with pytest.raises(ClosedEnvironmentError):
        envs._assert_is_running()
    with pytest.raises(mv.MultiverseError):
        envs.engine.reset()
