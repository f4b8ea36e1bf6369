"""Row G4: hangs are reported early with the hanging line, and repeated ones are given up."""

from __future__ import annotations

import functools
import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import multiverse as mv
from multiverse.cli.main import one_line
from multiverse.core import plan as plan_module
from multiverse.core.failures import Work
from multiverse.executors import env_recovery, episode_starts, supervisor, worker_loop, worker_waits
from multiverse.executors.supervisor import Supervisor
from multiverse.executors.worker_host import WorkerHost
from multiverse.executors.worker_waits import Patience
from multiverse.ipc import interrupts
from multiverse.ipc.interrupts import StopRequests, StopWaiting
from tests.envs import Walk
from tests.fault_envs import Fault, Gate, Gated
from tests.faults.conftest import LoggedWarnings
from tests.faults.unlucky_envs import HangsThenWaits
from tests.vector.configurations import FORKSERVER, HYBRID, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

SHORT_S = 0.3
with_processes = pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


def hanging(make: Make, config: Configuration, phase: str = "step", reply_s: float = SHORT_S, **options: Any) -> Any:
    """Envs of which the last one hangs in its second call of `phase`, also after it was replaced."""
    kwargs = last_env(config, what="sleep", phase=phase, at=2)
    return make(Fault, env_kwargs=kwargs, timeouts=mv.Timeouts(reply_s=reply_s, close_s=0.1), **options)


# -- a crash loop of hangs -----------------------------------------------------------------------------------------
@pytest.mark.fault("G4")
@with_processes
def test_three_timeouts_in_a_row_end_the_run_whatever_the_rate_limit(make: Make, config: Configuration) -> None:
    # Between two hangs it must work for less than it hangs, also where other programs slow the replacement down.
    options = mv.FailureOptions(on_failure="restart", restarts_per_minute=100)
    envs = hanging(make, config, reply_s=1.5, autoreset="same_step", on_failure=options)
    envs.reset(seed=7)
    with pytest.raises(mv.errors.ReplyTimeout, match="3 timeouts in a row") as caught:
        for k in range(9):
            envs.step(actions(range(config.num_envs), k))
    assert (envs.failures.timeouts, envs.failures.worker_restarts) == (3, 2)
    for text in (str(caught.value), one_line(caught.value)):
        assert "fault_envs.py" in text and "multiverse resume" in text and "receive()" not in text
    with pytest.raises(mv.errors.ReplyTimeout, match="make a new one"):
        envs.reset()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets."""
    now = SimpleNamespace(s=1000.0)
    fake = SimpleNamespace(monotonic=lambda: now.s, sleep=lambda _: None)
    for module in ("multiverse.executors.supervisor.time", "multiverse.core.failures.time"):
        monkeypatch.setattr(module, fake)
    return now


def timeout(waited_s: float) -> mv.errors.ReplyTimeout:
    return mv.errors.ReplyTimeout(0, range(2), "step", waited_s, "it is sleeping", "")


def watched() -> tuple[Supervisor, Any]:
    host: Any = SimpleNamespace(worker=0, env_ids=range(2), work=Work())
    return Supervisor(SimpleNamespace(hosts=[host]), 100, None), host  # type: ignore[arg-type]


@pytest.mark.fault("G4")
@pytest.mark.parametrize(("worked_s", "a_loop"), [(30.0, True), (90.0, False)])
def test_timeouts_are_in_a_row_if_the_worker_hung_longer_than_it_worked(
    clock: SimpleNamespace, worked_s: float, a_loop: bool
) -> None:
    watching, host = watched()
    for _ in range(2):
        clock.s += worked_s + 60.0
        watching.allow(host, timeout(60.0))
    clock.s += worked_s + 60.0
    if a_loop:
        with pytest.raises(mv.errors.ReplyTimeout, match="in a row"):
            watching.allow(host, timeout(60.0))
    else:
        watching.allow(host, timeout(60.0))


@pytest.mark.fault("G4")
def test_death_between_hangs_does_not_reset_their_count(clock: SimpleNamespace) -> None:
    watching, host = watched()
    for _ in range(2):
        clock.s += 61.0
        watching.allow(host, timeout(60.0))
        clock.s += 1.0
        watching.allow(host, mv.errors.WorkerDied(0, range(2), "was killed"))
    clock.s += 61.0
    with pytest.raises(mv.errors.ReplyTimeout, match="in a row"):
        watching.allow(host, timeout(60.0))


# -- reports ---------------------------------------------------------------------------------------------------------
@pytest.mark.fault("G4")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
@pytest.mark.parametrize("phase", ["step", "reset"])
def test_restart_after_a_hang_names_env_step_and_line(
    make: Make, config: Configuration, phase: str, logged_warnings: LoggedWarnings
) -> None:
    envs = hanging(make, config, phase, autoreset="same_step", on_failure="restart")
    envs.reset(seed=7)
    for k in range(5):  # an episode has five steps: in the fifth it is reset
        envs.step(actions(range(config.num_envs), k))
        if envs.failures.worker_restarts:
            break
    (line,) = logged_warnings()
    where = f"env {config.num_envs - 1}, step 2," if phase == "step" else f"env {config.num_envs - 1}, in its reset,"
    assert where in line and "restart 1 of at most 5 in a row" in line, line
    source = Path(Fault._do_sleep.__code__.co_filename)
    assert f"line {Fault._do_sleep.__code__.co_firstlineno + 2} of {source}" in line
    assert "receive()" not in line


@pytest.mark.fault("G4", "A4")
@pytest.mark.parametrize("config", [FORKSERVER, THREAD], ids=str)
def test_first_line_of_a_timeout_error_names_the_hanging_line(make: Make, config: Configuration, gate: Gate) -> None:
    envs = make(Gated, env_kwargs=last_env(config, gate=str(gate)), timeouts=mv.Timeouts(reply_s=SHORT_S))
    envs.reset(seed=7)
    with pytest.raises(mv.errors.ReplyTimeout) as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert f"env {config.num_envs - 1}, step 1, line" in caught.value.headline
    assert "fault_envs.py" in caught.value.headline and "receive()" not in caught.value.headline
    assert "receive()" in str(caught.value) and "receive()" not in one_line(caught.value)
    gate.wait_for_arrival()
    gate.open()


@pytest.mark.fault("G4")
def test_hanging_constructor_is_named_with_env_and_line() -> None:
    with pytest.raises(mv.errors.ReplyTimeout, match=r"env 1, in its constructor, line \d+ of .*fault_envs.py"):
        mv.make_vec(
            Fault,
            2,
            "process",
            workers=1,
            env_kwargs=[{}, {"what": "sleep", "phase": "constructor"}],
            timeouts=mv.Timeouts(reset_s=2 * SHORT_S, close_s=0.1),
        )


@pytest.mark.fault("G4")
@pytest.mark.parametrize("config", [FORKSERVER, HYBRID, THREAD], ids=str)
@pytest.mark.parametrize("asked", ["step", "receive", "reset"])
def test_silent_worker_is_reported_in_one_line(
    make: Make, config: Configuration, asked: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_waits, "SILENCE_S", 0.05)
    look, at_the_gate = WorkerHost.where, functools.cache(gate.wait_for_arrival)
    monkeypatch.setattr(WorkerHost, "where", lambda self: at_the_gate() or look(self))
    phase = "reset" if asked == "reset" else "step"
    envs = make(Gated, env_kwargs=last_env(config, gate=str(gate), phase=phase, at=2 if phase == "reset" else 1))
    envs.reset(seed=7)
    with OpensWhenTold(gate) as said:
        if asked == "step":
            envs.step(actions(range(config.num_envs), 0))
        elif asked == "receive":
            envs.send(actions(range(config.num_envs), 0))
            envs.receive()
        else:
            envs.reset(seed=7)
    (line,) = said.lines
    last = config.last_range
    assert f"waiting for worker {len(config.ranges) - 1 - (config is HYBRID)} (envs {last.start}-{last[-1]})" in line
    where = f"env {config.num_envs - 1}, {'step 1' if phase == 'step' else 'in its reset'}, line "
    assert f"in {phase}: {where}" in line and ("60 s" if phase == "step" else "300 s") in line


class OpensWhenTold(logging.Handler):
    """Log handler that opens the gate at the first message and keeps all messages."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(logging.WARNING)
        self._gate, self.lines = gate, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for" in record.getMessage():
            self.lines.append(record.getMessage())
            self._gate.open()

    def __enter__(self) -> OpensWhenTold:
        logging.getLogger("multiverse").addHandler(self)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger("multiverse").removeHandler(self)


def test_silence_is_logged_after_five_seconds() -> None:
    assert worker_waits.SILENCE_S == 5.0


# -- less time for workers that have hung ------------------------------------------------------------------------------
class FakeWorker:
    """The attributes of a worker that `Patience` uses."""

    def __init__(self, longest_step_s: float) -> None:
        self.worker, self.asked, self.was_stepping = 0, 1, True
        self.mailbox = SimpleNamespace(longest_step_s=longest_step_s, row=0)


@pytest.mark.fault("A4")
@pytest.mark.parametrize(("longest_s", "limit_s"), [(1e-6, 5.0), (0.8, 8.0), (20.0, 60.0)])
def test_worker_that_has_hung_may_take_ten_times_its_longest_step(longest_s: float, limit_s: float) -> None:
    worker: Any = FakeWorker(longest_s)
    patience = Patience(60.0, adapts=True)
    assert patience.limit_s(worker) == 60.0
    patience.note_loss(worker, mv.errors.WorkerDied(0, range(2), "was killed"))
    assert patience.limit_s(worker) == 60.0
    patience.note_loss(worker, timeout(60.0))
    worker.mailbox.longest_step_s = 0.0  # the deadline of its replacement
    assert patience.limit_s(worker) == limit_s
    assert patience.limit_s(cast(Any, FakeWorker(0.0))) == 60.0


def with_default_limit(monkeypatch: pytest.MonkeyPatch, reply_s: float) -> None:
    """Set the default of `reply_s` to this, and the shortest limit to half a second."""
    monkeypatch.setattr(worker_waits, "SHORTEST_S", 0.5)
    monkeypatch.setattr(worker_waits, "TIMES_THE_LONGEST", 1.0)
    monkeypatch.setattr(plan_module, "REPLY_S", reply_s)


@pytest.mark.fault("A4")
@with_processes
@pytest.mark.parametrize("asked", ["step", "receive"])
def test_second_hang_of_a_worker_is_noticed_sooner(
    make: Make, config: Configuration, asked: str, monkeypatch: pytest.MonkeyPatch, logged_warnings: LoggedWarnings
) -> None:
    with_default_limit(monkeypatch, 3.0)
    kwargs = last_env(config, what="sleep", at=2)
    envs = make(
        Fault, env_kwargs=kwargs, autoreset="same_step", on_failure="restart", timeouts=mv.Timeouts(close_s=0.1)
    )
    envs.reset(seed=7)
    for k in range(4):
        if asked == "step":
            envs.step(actions(range(config.num_envs), k))
        else:
            envs.send(actions(range(config.num_envs), k))
            envs.receive()
    hangs = [line for line in logged_warnings() if "has not answered" in line]
    assert ["for 3 s" in hangs[0], "for 3 s" in hangs[1]] == [True, False] and len(hangs) == 2
    assert len([line for line in logged_warnings() if "because it has hung" in line]) == 1


@pytest.mark.fault("A4")
@with_processes
def test_given_reply_timeout_is_never_shortened(
    make: Make, config: Configuration, monkeypatch: pytest.MonkeyPatch, logged_warnings: LoggedWarnings
) -> None:
    monkeypatch.setattr(worker_waits, "SHORTEST_S", SHORT_S / 10)
    envs = hanging(make, config, autoreset="same_step", on_failure="restart")
    envs.reset(seed=7)
    for k in range(4):
        envs.step(actions(range(config.num_envs), k))
    hangs = [line for line in logged_warnings() if "has not answered" in line]
    assert len(hangs) == 2 and all(f"for {SHORT_S:g} s" in line for line in hangs)


@pytest.mark.fault("A4")
@with_processes
def test_reset_after_a_hang_has_the_deadline_of_a_reset(
    make: Make, config: Configuration, gate: Gate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_default_limit(monkeypatch, 3.0)
    folder = tmp_path / "hung"
    folder.mkdir()
    kwargs = last_env(config, folder=str(folder), gate=str(gate))
    envs = make(HangsThenWaits, env_kwargs=kwargs, autoreset="same_step", on_failure="restart")
    grants = Patience.grants_a_reset

    def granted(*arguments: Any) -> bool:
        found = grants(*arguments)
        if found:
            gate.wait_for_arrival()
            gate.open()
        return found

    monkeypatch.setattr(Patience, "grants_a_reset", granted)
    envs.reset(seed=7)
    for k in range(7):
        envs.step(actions(range(config.num_envs), k))
    assert (envs.failures.timeouts, envs.failures.worker_restarts) == (1, 1)


class MovesTheClock(Walk):
    """A step takes a second of `now_s`, a reset ten, and building it a hundred; its third step raises."""

    now_s = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).now_s += 100

    def reset(self, **kwargs: Any) -> Any:
        type(self).now_s += 10
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        type(self).now_s += 1
        if self.steps == 2:
            raise ValueError("third step")
        return super().step(action)


@pytest.mark.fault("A4")
@pytest.mark.parametrize("length", [2, 5], ids=["ends", "raises"])
def test_steps_are_timed_without_resets_and_without_building(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (env_recovery, episode_starts, worker_loop):
        monkeypatch.setattr(module, "monotonic_ns", lambda: MovesTheClock.now_s * 10**9)
    with mv.make_vec(MovesTheClock, 1, "thread", workers=1, autoreset="same_step", on_failure="restart") as envs:
        envs.set_attr("length", length)
        envs.reset(seed=7)
        for k in range(4):
            envs.step(actions(range(1), k))
        assert envs._executor.workers[0].mailbox.longest_step_s == 1.0
        assert envs.failures.env_restarts == (length == 5)


# -- Ctrl-C while something hangs ----------------------------------------------------------------------------------
class InterruptsAndHangs(Walk):
    """Env that sends Ctrl-C to the program in its first step, and hangs."""

    def __init__(self, program: int = 0, number: int = signal.SIGINT) -> None:
        super().__init__()
        self._program, self._number = program, number

    def step(self, action: Any) -> Any:
        if self._program:
            os.kill(self._program, self._number)
            time.sleep(3600)
        return super().step(action)


@pytest.mark.fault("G4", "A14")
@pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_request_does_not_wait_for_a_hanging_worker(
    config: Configuration, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop request is noted as in a run, which is saved first; the reply has no deadline."""
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.1)
    kwargs = last_env(config, program=os.getpid(), number=number)
    envs = config.make(InterruptsAndHangs, env_kwargs=kwargs, timeouts=mv.Timeouts(reply_s=None, close_s=0.2))
    envs.reset(seed=7)
    with StopRequests() as requests:
        with pytest.raises(StopWaiting):
            envs.step(actions(range(config.num_envs), 0))
        assert requests.received is number
        envs.close()


class HangsAnew(Walk):
    """Env that exits in its first step; its replacement hangs in its constructor after signalling the program."""

    def __init__(self, folder: str = "", program: int = 0) -> None:
        super().__init__()
        self._folder = folder
        if folder and os.listdir(folder):
            os.kill(program, signal.SIGINT)
            time.sleep(3600)

    def step(self, action: Any) -> Any:
        if self._folder:
            Path(self._folder, "once").touch()
            os._exit(3)
        return super().step(action)


@pytest.mark.fault("G4", "A14")
def test_stop_request_does_not_wait_for_a_replacement_that_hangs_while_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.1)
    kwargs = last_env(FORKSERVER, folder=str(tmp_path), program=os.getpid())
    envs = FORKSERVER.make(
        HangsAnew, env_kwargs=kwargs, on_failure="restart", timeouts=mv.Timeouts(reset_s=None, close_s=0.2)
    )
    envs.reset(seed=7)
    with StopRequests(), pytest.raises(StopWaiting):
        envs.step(actions(range(FORKSERVER.num_envs), 0))
    envs.close()


@pytest.mark.fault("G4", "A14")
def test_close_deadline_after_a_stop_request_starts_at_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it within the deadline of close; healthy workers still have a moment to close their envs."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(interrupts, "_hung_since", float("-inf"))
    with StopRequests() as requests:
        assert interrupts.close_by(5.0) == 105.0
        requests._note(signal.SIGINT, None)
        now.s += 3.0
        assert interrupts.close_by(5.0) == 108.0, "nothing hangs"
        with pytest.raises(StopWaiting):
            interrupts.stop_waiting()
    assert interrupts.close_by(5.0) == 105.0, "also when nothing is noted any more"
    now.s += 20.0
    assert interrupts.close_by(5.0) == now.s + interrupts.PATIENCE_S
    now.s += 60.0
    assert interrupts.close_by(5.0) == now.s + 5.0, "that is over"


@pytest.mark.fault("G4", "A14")
def test_waiting_is_abandoned_only_some_time_after_a_stop_request() -> None:
    with StopRequests() as requests:
        interrupts.stop_waiting()
        requests._note(signal.SIGINT, None)
        interrupts.stop_waiting()
    assert supervisor.HANGS_IN_A_ROW == 3
