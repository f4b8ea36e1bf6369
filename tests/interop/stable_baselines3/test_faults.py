"""Where the originals hang, go stale or lose the cause, the drop-ins for Stable-Baselines3 say what happened."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv, vec_envs
from tests.contract.test_interrupts import interrupted_at
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated
from tests.interop.stable_baselines3.envs import OwnError, RaisesItsOwn
from tests.interop.stable_baselines3.pairs import KINDS, OURS
from tests.processes import still_alive

every_kind = pytest.mark.parametrize("kind", KINDS)
ZEROS = np.zeros(3, np.int64)


def faulty(**fault: Any) -> list[Any]:
    """Three envs, the last of which goes wrong."""
    return [Walk, Walk, functools.partial(Fault, **fault)]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


# -- exceptions ------------------------------------------------------------------------------------------------
@every_kind
@pytest.mark.parametrize("phase", ["step", "reset", "method"])
def test_an_exception_comes_back_as_what_it_is(kind: str, phase: str) -> None:
    venv = OURS[kind](faulty(what="raise", phase=phase, at=2))
    ask = {
        "reset": venv.reset,
        "step": lambda: venv.step(ZEROS),
        "method": lambda: venv.env_method("method", indices=2),
    }
    for call in ask.values():
        call()
    with pytest.raises(ZeroDivisionError, match="asked to fail") as caught:
        ask[phase]()
    assert isinstance(caught.value.__cause__, mv.errors.EnvFailed)
    assert "in _do_raise" in str(caught.value.__cause__)
    venv.reset()
    venv.step(ZEROS)
    venv.close()


@every_kind
def test_an_exception_in_a_constructor_comes_back_and_leaves_nothing(kind: str) -> None:
    with pytest.raises(ZeroDivisionError, match="asked to fail"):
        OURS[kind](faulty(what="raise", phase="constructor"))


def test_a_type_that_only_the_env_knows_is_ours_from_a_worker_and_itself_in_the_caller() -> None:
    subproc, dummy = SubprocVecEnv([RaisesItsOwn] * 2), DummyVecEnv([RaisesItsOwn] * 2)
    for venv, expected in ((subproc, mv.errors.EnvFailed), (dummy, OwnError)):
        venv.reset()
        venv.step(ZEROS[:2])
        venv.step(ZEROS[:2])
        with pytest.raises(expected, match="of my own"):
            venv.step(ZEROS[:2])
        venv.close()


def test_after_an_exception_a_dummy_goes_on_with_the_next_step() -> None:
    venv = DummyVecEnv(faulty(what="raise", phase="step", at=2))
    venv.reset()
    venv.step(ZEROS)
    with pytest.raises(ZeroDivisionError):
        venv.step(ZEROS)
    assert venv.step(ZEROS)[0][2, 1] == 2  # the failed step was none
    venv.close()


def test_after_an_exception_in_a_worker_a_reset_is_asked_for() -> None:
    venv = SubprocVecEnv(faulty(what="raise", phase="step", at=1))
    venv.reset()
    with pytest.raises(ZeroDivisionError):
        venv.step(ZEROS)
    with pytest.raises(mv.errors.RequestPending, match=r"envs \[2\] failed"):
        venv.step(ZEROS)
    venv.reset()
    venv.step(ZEROS)
    venv.close()


@every_kind
def test_an_env_that_raises_on_its_way_out_is_closed_all_the_same(kind: str) -> None:
    venv = OURS[kind](faulty(what="raise", phase="close"))
    if kind == "dummy":
        with pytest.raises(ZeroDivisionError):
            venv.close()
    else:
        venv.close()
    assert venv.closed
    venv.close()


# -- workers that die or hang ----------------------------------------------------------------------------------
def test_a_killed_worker_is_an_error_at_once_and_close_works() -> None:
    venv = SubprocVecEnv([Walk] * 4, workers=2)
    venv.reset()
    pids = venv.env_method("process_id")
    os.kill(pids[3], signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied, match="SIGKILL"):
        venv.step(np.zeros(4, np.int64))
    with pytest.raises(mv.errors.WorkerDied, match="close"):
        venv.reset()
    venv.close()
    assert still_alive(pids) == []


@pytest.mark.parametrize("what", ["kill", "exit", "segv"])
def test_an_env_that_takes_its_process_with_it_does_not_take_the_program(what: str) -> None:
    venv = SubprocVecEnv(faulty(what=what))
    venv.reset()
    with pytest.raises(mv.errors.WorkerDied) as caught:
        venv.step(ZEROS)
    assert 2 in caught.value.env_ids
    venv.close()


@pytest.mark.parametrize("stopped", [True, False])
def test_close_ends_a_worker_that_is_stopped_or_busy(
    monkeypatch: pytest.MonkeyPatch, gate: Gate, stopped: bool
) -> None:
    monkeypatch.setattr(vec_envs, "CLOSE_S", 0.5)
    venv = SubprocVecEnv([Walk, functools.partial(Gated, str(gate))], workers=2)
    venv.reset()
    pids = venv.env_method("process_id")
    if stopped:
        os.kill(pids[1], signal.SIGSTOP)
    else:
        venv.step_async(ZEROS[:2])
        gate.wait_for_arrival()
    venv.close()
    assert still_alive(pids) == []


# -- what may not be asked -------------------------------------------------------------------------------------
@every_kind
def test_too_few_actions_are_refused_before_any_env_steps(kind: str) -> None:
    venv = OURS[kind]([Walk] * 3)
    venv.reset()
    for actions in (ZEROS[:2], [0, 0]):
        with pytest.raises(ValueError, match="2 actions for 3 envs") as caught:
            venv.step(actions)
        assert isinstance(caught.value, IndexError) == (kind == "dummy")  # which is what the original raises
    assert venv.get_attr("steps") == [0, 0, 0]
    assert_same(venv.step(ZEROS)[0][:, 1], np.ones(3))
    venv.close()


def test_too_many_actions_are_refused_in_workers_and_cut_in_the_caller() -> None:
    subproc, dummy = SubprocVecEnv([Walk] * 2), DummyVecEnv([Walk] * 2)
    subproc.reset()
    dummy.reset()
    with pytest.raises(ValueError, match="3 actions for 2 envs"):
        subproc.step(ZEROS)
    assert dummy.step(ZEROS)[1].shape == (2,)
    subproc.close()
    dummy.close()


def test_a_step_begins_at_once_and_nothing_else_is_answered_with_its_results(gate: Gate) -> None:
    venv = SubprocVecEnv([Walk, functools.partial(Gated, str(gate))], workers=2)
    venv.reset()
    with pytest.raises(mv.errors.NothingPending):
        venv.step_wait()
    venv.step_async(ZEROS[:2])
    gate.wait_for_arrival()  # without step_wait
    with pytest.raises(mv.errors.RequestPending):
        venv.step_async(ZEROS[:2])
    with pytest.raises(mv.errors.RequestPending):
        venv.get_attr("steps")
    gate.open()
    assert_same(venv.step_wait()[0][:, 1], np.ones(2))
    assert venv.get_attr("steps") == [1, 1]
    counted = venv.engine.failures
    assert (counted.steps_sent, counted.steps_used, counted.steps_discarded) == (2, 2, 0)
    venv.close()


def test_a_reset_forgets_the_step_that_is_under_way() -> None:
    venv = SubprocVecEnv([Walk] * 3)
    venv.reset()
    venv.step_async(ZEROS)
    assert_same(venv.reset()[:, 1], np.zeros(3))
    assert_same(venv.step(ZEROS)[0][:, 1], np.ones(3))
    counted = venv.engine.failures
    assert (counted.steps_sent, counted.steps_used, counted.steps_discarded) == (6, 3, 3)
    venv.close()


@every_kind
def test_after_close_a_step_is_refused(kind: str) -> None:
    venv = OURS[kind]([Walk] * 3)
    venv.reset()
    venv.close()
    with pytest.raises(mv.errors.ClosedError):
        venv.step(ZEROS)


def test_render_modes_that_differ_are_refused_and_nothing_is_left() -> None:
    with pytest.raises(AssertionError, match="render_mode"):
        SubprocVecEnv([Walk, functools.partial(Walk, render_mode="rgb_array")])


# -- Ctrl-C ----------------------------------------------------------------------------------------------------
def test_an_interrupted_step_can_be_waited_for_again(gate: Gate) -> None:
    venv, plain = SubprocVecEnv([Walk, functools.partial(Gated, str(gate))], workers=2), SubprocVecEnv([Walk] * 2)
    for each in (venv, plain):
        each.seed(3)
        each.reset()
    interrupted_at(gate, lambda: venv.step(ZEROS[:2]))
    with pytest.raises(mv.errors.RequestPending):
        venv.step(ZEROS[:2])
    gate.open()
    assert_same(venv.step_wait(), plain.step(ZEROS[:2]))
    assert_same(venv.step(ZEROS[:2]), plain.step(ZEROS[:2]))
    counted = venv.engine.failures
    assert (counted.steps_sent, counted.steps_used, counted.steps_discarded) == (4, 4, 0)
    venv.close()
    plain.close()


def test_after_an_interrupted_step_a_reset_begins_anew(gate: Gate) -> None:
    venv = SubprocVecEnv([Walk, functools.partial(Gated, str(gate))], workers=2)
    venv.reset()
    interrupted_at(gate, lambda: venv.step(ZEROS[:2]))
    gate.open()
    assert_same(venv.reset()[:, 1], np.zeros(2))
    assert_same(venv.step(ZEROS[:2])[0][:, 1], np.ones(2))
    venv.close()


def test_after_an_interrupt_in_an_env_a_dummy_goes_on_with_the_next_step() -> None:
    venv = DummyVecEnv(faulty(what="interrupt", at=2))
    venv.reset()
    venv.step(ZEROS)
    with pytest.raises(KeyboardInterrupt):
        venv.step(ZEROS)
    assert venv.step(ZEROS)[0][2, 1] == 2
    venv.close()


# -- what the originals let pass silently ----------------------------------------------------------------------
def test_nothing_waits_for_ever_or_looks_at_values_on_its_own() -> None:
    nan, slow = functools.partial(Fault, "nan_observation"), SubprocVecEnv([functools.partial(Fault, "nan_reward")])
    for venv in (slow, DummyVecEnv([nan])):
        venv.reset()
        venv.step(ZEROS[:1])
        timeouts = venv.engine._executor.timeouts
        assert (timeouts.reply_s, timeouts.reset_s) == (None, None)
        venv.close()


@every_kind
def test_an_observation_of_another_shape_is_named_instead_of_spread(kind: str) -> None:
    venv = OURS[kind](faulty(what="scalar_observation"))
    venv.reset()
    with pytest.raises(ValueError, match=r"shape \(\), its space says \(2,\)"):
        venv.step(ZEROS)
    venv.close()


def test_envs_whose_bounds_differ_share_a_batch_as_in_the_original() -> None:
    narrow = functools.partial(Fault, box=(-5.0, 5.0))
    venv = SubprocVecEnv([narrow, Walk])
    assert venv.observation_space == spaces.Box(-5, 5, (2,), np.float64)
    venv.reset()
    venv.close()
