"""Failures of the drop-ins for Stable-Baselines3 are reported where the originals hang or lose the cause."""

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
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated
from tests.interop.stable_baselines3.envs import OwnError, RaisesItsOwn
from tests.interop.stable_baselines3.pairs import KINDS, OURS
from tests.processes import still_alive
from tests.vector.test_interrupts import interrupted_at

every_kind = pytest.mark.parametrize("kind", KINDS)
ZEROS = np.zeros(3, np.int64)


def faulty(**fault: Any) -> list[Any]:
    """Three envs, the last of which fails."""
    return [Walk, Walk, functools.partial(Fault, **fault)]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


# -- exceptions ------------------------------------------------------------------------------------------------
@every_kind
@pytest.mark.parametrize("phase", ["step", "reset", "method"])
def test_exception_is_raised_with_its_type(kind: str, phase: str) -> None:
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
def test_exception_in_a_constructor_is_raised_and_leaves_nothing(kind: str) -> None:
    with pytest.raises(ZeroDivisionError, match="asked to fail"):
        OURS[kind](faulty(what="raise", phase="constructor"))


def test_own_exception_type_is_env_failed_from_a_worker_and_itself_in_the_caller() -> None:
    subproc, dummy = SubprocVecEnv([RaisesItsOwn] * 2), DummyVecEnv([RaisesItsOwn] * 2)
    for venv, expected in ((subproc, mv.errors.EnvFailed), (dummy, OwnError)):
        venv.reset()
        venv.step(ZEROS[:2])
        venv.step(ZEROS[:2])
        with pytest.raises(expected, match="of my own"):
            venv.step(ZEROS[:2])
        venv.close()


def test_dummy_continues_with_the_next_step_after_an_exception() -> None:
    venv = DummyVecEnv(faulty(what="raise", phase="step", at=2))
    venv.reset()
    venv.step(ZEROS)
    with pytest.raises(ZeroDivisionError):
        venv.step(ZEROS)
    assert venv.step(ZEROS)[0][2, 1] == 2  # the failed step does not count
    venv.close()


def test_exception_in_a_worker_requires_a_reset() -> None:
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
def test_env_that_raises_on_close_is_closed(kind: str) -> None:
    venv = OURS[kind](faulty(what="raise", phase="close"))
    if kind == "dummy":
        with pytest.raises(ZeroDivisionError):
            venv.close()
    else:
        venv.close()
    assert venv.closed
    venv.close()


# -- workers that die or hang ----------------------------------------------------------------------------------
def test_killed_worker_is_an_error_at_once_and_close_works() -> None:
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
def test_env_that_ends_its_process_does_not_end_the_program(what: str) -> None:
    venv = SubprocVecEnv(faulty(what=what))
    venv.reset()
    with pytest.raises(mv.errors.WorkerDied) as caught:
        venv.step(ZEROS)
    assert 2 in caught.value.env_ids
    venv.close()


@pytest.mark.parametrize("stopped", [True, False])
def test_close_ends_a_stopped_or_busy_worker(monkeypatch: pytest.MonkeyPatch, gate: Gate, stopped: bool) -> None:
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


def test_step_starts_at_once_and_other_calls_do_not_get_its_results(gate: Gate) -> None:
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


def test_reset_discards_the_pending_step() -> None:
    venv = SubprocVecEnv([Walk] * 3)
    venv.reset()
    venv.step_async(ZEROS)
    assert_same(venv.reset()[:, 1], np.zeros(3))
    assert_same(venv.step(ZEROS)[0][:, 1], np.ones(3))
    counted = venv.engine.failures
    assert (counted.steps_sent, counted.steps_used, counted.steps_discarded) == (6, 3, 3)
    venv.close()


@every_kind
def test_step_after_close_is_refused(kind: str) -> None:
    venv = OURS[kind]([Walk] * 3)
    venv.reset()
    venv.close()
    with pytest.raises(mv.errors.ClosedError):
        venv.step(ZEROS)


def test_differing_render_modes_are_refused_and_nothing_is_left() -> None:
    with pytest.raises(AssertionError, match="render_mode"):
        SubprocVecEnv([Walk, functools.partial(Walk, render_mode="rgb_array")])


# -- Ctrl-C ----------------------------------------------------------------------------------------------------
def test_interrupted_step_can_be_waited_for_again(gate: Gate) -> None:
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


def test_reset_after_an_interrupted_step_starts_new_episodes(gate: Gate) -> None:
    venv = SubprocVecEnv([Walk, functools.partial(Gated, str(gate))], workers=2)
    venv.reset()
    interrupted_at(gate, lambda: venv.step(ZEROS[:2]))
    gate.open()
    assert_same(venv.reset()[:, 1], np.zeros(2))
    assert_same(venv.step(ZEROS[:2])[0][:, 1], np.ones(2))
    venv.close()


def test_dummy_continues_with_the_next_step_after_an_interrupt() -> None:
    venv = DummyVecEnv(faulty(what="interrupt", at=2))
    venv.reset()
    venv.step(ZEROS)
    with pytest.raises(KeyboardInterrupt):
        venv.step(ZEROS)
    assert venv.step(ZEROS)[0][2, 1] == 2
    venv.close()


# -- what the originals let pass silently ----------------------------------------------------------------------
def test_timeouts_and_value_checks_are_off_by_default() -> None:
    nan, slow = functools.partial(Fault, "nan_observation"), SubprocVecEnv([functools.partial(Fault, "nan_reward")])
    for venv in (slow, DummyVecEnv([nan])):
        venv.reset()
        venv.step(ZEROS[:1])
        timeouts = venv.engine._executor.timeouts
        assert (timeouts.reply_s, timeouts.reset_s) == (None, None)
        venv.close()


@every_kind
def test_observation_of_another_shape_is_named(kind: str) -> None:
    venv = OURS[kind](faulty(what="scalar_observation"))
    venv.reset()
    with pytest.raises(ValueError, match=r"shape \(\), its space says \(2,\)"):
        venv.step(ZEROS)
    venv.close()


def test_envs_with_different_bounds_share_a_batch() -> None:
    narrow = functools.partial(Fault, box=(-5.0, 5.0))
    venv = SubprocVecEnv([narrow, Walk])
    assert venv.observation_space == spaces.Box(-5, 5, (2,), np.float64)
    venv.reset()
    venv.close()
