"""Rows A1, A2, C3: however and whenever a worker dies, the error names worker, signal, call and size of memory."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import LEAK_BYTES, Fault, Gate
from tests.faults.value_envs import DiesWhileWritten
from tests.processes import still_alive
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

DEATHS = {
    "kill": "was killed by SIGKILL",
    "segv": "was killed by SIGSEGV",
    "abort": "was killed by SIGABRT",
    "exit": "exited with code 3",
}
PHASES = ["step", "reset", "idle"]
CASES = [
    *((FORKSERVER, what, phase) for what, phase in itertools.product(DEATHS, PHASES)),
    *((config, "segv", "step") for config in (FORK, SPAWN, HYBRID)),
]
matrix = pytest.mark.parametrize(("config", "what", "phase"), CASES, ids=str)
in_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
PATIENCE_S = 8  # not reached: deaths are noticed at once


def dying(config: Configuration, what: str, phase: str) -> list[dict[str, Any]]:
    """The last env ends its worker in its second reset or step (or when the gate opens)."""
    return [{}] * (config.num_envs - 1) + [{"what": what, "phase": phase, "at": 2}]


def bring_about(envs: Any, phase: str, gate: Gate) -> None:
    """Continue up to the moment before the death is noticed."""
    if phase == "idle":
        pid = envs.worker_pids[-1]
        envs.call("fail_when_opened", str(gate), env_ids=[envs.num_envs - 1])
        gate.wait_for_arrival()
        gate.open()
        assert still_alive([pid]) == []


def ask(envs: Any, phase: str, step: int) -> Any:
    return envs.reset(seed=7) if phase == "reset" else envs.step(actions(range(envs.num_envs), step))


@pytest.mark.fault("A1")
@matrix
def test_death_error_names_worker_cause_command_and_memory(
    make: Make, config: Configuration, what: str, phase: str, gate: Gate
) -> None:
    envs = make(
        Fault, env_kwargs=dying(config, what, phase), timeouts=mv.Timeouts(reply_s=PATIENCE_S, reset_s=PATIENCE_S)
    )
    envs.reset(seed=7)
    ask(envs, "step", 0)
    bring_about(envs, phase, gate)
    with pytest.raises(mv.errors.WorkerDied) as caught:
        ask(envs, phase, 1)
    error = caught.value
    assert (error.worker, error.env_ids) == ((config.workers or 0) - 1, config.last_range)
    assert error.cause.startswith(DEATHS[what])
    assert error.command == {"idle": "step"}.get(phase, phase)
    assert error.rss_bytes is not None and error.rss_bytes > 10_000_000  # Python and numpy alone are more
    for part in (DEATHS[what], f"during {error.command}", "MiB", f"envs {error.env_ids.start}"):
        assert part in str(error)
    envs.close()


@pytest.mark.fault("A1")
@matrix
def test_other_envs_continue_as_serial_envs_if_a_worker_is_replaced(
    make: Make, config: Configuration, what: str, phase: str, gate: Gate
) -> None:
    envs = make(
        Fault, env_kwargs=dying(config, what, phase), on_failure="restart",
        timeouts=mv.Timeouts(reply_s=PATIENCE_S, reset_s=PATIENCE_S),
    )  # fmt: skip
    others = [i for i in range(config.num_envs) if i not in config.last_range]
    with SERIAL.make(Walk, config.num_envs) as oracle:
        for one in (envs, oracle):
            one.reset(seed=7)
        assert_rows_equal(ask(envs, "step", 0), ask(oracle, "step", 0), others)
        bring_about(envs, phase, gate)
        assert_rows_equal(ask(envs, phase, 1), ask(oracle, phase, 1), others)
        for k in (2, 3):  # the next step is the new env's second: it would die again
            assert_rows_equal(ask(envs, "step", k), ask(oracle, "step", k), others)
    assert envs.failures.worker_restarts == 1


def assert_rows_equal(found: Any, expected: Any, rows: list[int]) -> None:
    """Compare the arrays of a step or a reset, for some envs."""
    assert_same([part[rows] for part in found[:-1]], [part[rows] for part in expected[:-1]])


@pytest.mark.fault("A2")
@in_processes
def test_killed_worker_is_possibly_out_of_memory_and_its_peak_is_reported(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=[{}] * (config.num_envs - 1) + [{"what": "leak"}])
    envs.reset(seed=7)
    envs.step(actions(range(config.num_envs), 0))
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied, match="possibly out of memory") as caught:
        envs.step(actions(range(config.num_envs), 1))
    assert caught.value.rss_bytes is not None and caught.value.rss_bytes > LEAK_BYTES
    assert "possibly out of memory" in caught.value.hint
    assert f"{caught.value.rss_bytes / 2**20:.0f} MiB" in str(caught.value)


@pytest.mark.fault("A2")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
def test_other_deaths_are_not_attributed_to_memory(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=dying(config, "segv", "reset"))
    envs.reset(seed=7)
    with pytest.raises(mv.errors.WorkerDied) as caught:
        envs.reset(seed=7)
    assert "memory" not in str(caught.value)


@pytest.mark.fault("A2")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
def test_restarts_after_out_of_memory_are_logged_and_wait_longer_each_time(
    make: Make, config: Configuration, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multiverse.executors import supervisor

    waited: list[float] = []
    monkeypatch.setattr(supervisor.time, "sleep", waited.append)
    envs = make(Walk, on_failure="restart")
    envs.reset(seed=7)
    for k in range(3):
        os.kill(envs.worker_pids[-1], signal.SIGKILL)
        envs.step(actions(range(config.num_envs), k))
    assert sum("possibly out of memory" in message for message in caplog.messages) == 3
    assert len(waited) == 3 and waited == sorted(set(waited))


@pytest.mark.fault("C3")
@pytest.mark.parametrize(
    ("config", "autoreset"),
    [(FORKSERVER, "same_step"), *((config, "next_step") for config in (FORKSERVER, FORK, SPAWN, HYBRID))],
    ids=str,
)
def test_half_written_row_of_a_dying_worker_is_never_returned(
    make: Make, config: Configuration, autoreset: str
) -> None:
    """The last env dies in the middle of its row, after its neighbour's row is written."""
    envs = make(
        DiesWhileWritten,
        env_kwargs=[{}] * (config.num_envs - 1) + [{"at": 3}],
        autoreset=autoreset,
        on_failure="restart",
    )
    envs.reset(seed=7)
    for k in range(2):
        envs.step(actions(range(config.num_envs), k))
    observations, _, _, truncated, infos = envs.step(actions(range(config.num_envs), 2))
    for i in range(config.num_envs):
        lost = i in config.last_range
        shown = {part: observations[part][i] for part in ("a", "b")}
        if lost and autoreset == "same_step":
            assert (shown["a"] == 0).all() and (shown["b"] == 0).all()  # the next episode has begun
            shown = infos["final_obs"][i]
        assert shown["a"].tolist() == shown["b"].tolist() == [2.0 if lost else 3.0] * 2
        assert truncated[i] == lost


@pytest.mark.fault("C3")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
def test_view_shows_the_last_delivered_row_of_a_lost_worker(make: Make, config: Configuration) -> None:
    envs = make(
        DiesWhileWritten,
        env_kwargs=[{}] * (config.num_envs - 1) + [{"at": 2}],
        copy=False,
        on_failure="restart",
    )
    envs.reset(seed=7)
    envs.step(actions(range(config.num_envs), 0))
    observations, *_ = envs.step(actions(range(config.num_envs), 1))
    for part in ("a", "b"):
        assert observations[part][list(config.last_range)].tolist() == [[1.0, 1.0]] * len(config.last_range)
