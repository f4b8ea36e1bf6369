"""Start-up: progress messages if it takes long, windows in the user's process, equal shares."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.adapters.env_source import Recipe
from multiverse.core.plan import ExecutorName
from multiverse.executors import machine, startup
from multiverse.executors.choose import decide
from multiverse.executors.startup import ranges
from multiverse.executors.worker_loop import Assignment
from tests.envs import Walk, Window
from tests.fault_envs import Gate, Gated


@pytest.mark.parametrize(("num_envs", "parts"), [(8, 2), (5, 3), (7, 7), (10, 4), (1, 1), (3, 2)])
def test_ranges_are_contiguous_and_differ_by_at_most_one(num_envs: int, parts: int) -> None:
    shares = ranges(num_envs, parts)
    assert [i for share in shares for i in share] == list(range(num_envs))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == min(sizes)  # the caller's share comes first, and the caller has more to do


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_slow_start_logs_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: Any) -> None:
    gate = Gate(tmp_path / "gate")
    said: list[str] = []
    opener = threading.Thread(target=lambda: (gate.wait_for_arrival(), gate.open()))

    class OpensTheGate(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not said:
                opener.start()
            said.append(record.getMessage())

    handler, log = OpensTheGate(), logging.getLogger("multiverse")
    monkeypatch.setattr(startup, "PROGRESS_AFTER_S", 0.0)
    log.addHandler(handler)
    try:
        kwargs = [{}, {"gate": str(gate), "phase": "constructor"}]
        with mv.make_vec(Gated, 2, executor, workers=2, env_kwargs=kwargs) as envs:
            envs.reset(seed=0)
    finally:
        log.removeHandler(handler)
        opener.join()
    assert any("of 2 workers ready" in line for line in said)


@pytest.mark.parametrize("executor", ["auto", "process", "serial"])
def test_human_window_selects_serial_with_a_log_line(executor: Any, caplog: pytest.LogCaptureFixture) -> None:
    with mv.make_vec(Window, 3, executor, render_mode="human") as envs:
        assert envs.plan.executor == "serial"
        assert executor == "serial" or "window" in envs.plan.why
        assert envs.get_attr("render_mode") == ("human", None, None)
        assert envs.render_mode == "human"
        envs.reset(seed=0)
    assert any("running serial" in m for m in caplog.messages) == (executor != "serial")


def test_human_window_by_keyword_selects_serial() -> None:
    with mv.make_vec(Window, 2, "process", env_kwargs={"render_mode": "human"}) as envs:
        assert envs.plan.executor == "serial"


def test_rgb_frames_work_in_process_workers() -> None:
    with mv.make_vec(Window, 2, "process", workers=1, render_mode="rgb_array") as envs:
        assert envs.plan.executor == "process"
        assert envs.get_attr("render_mode") == ("rgb_array",) * 2


@pytest.mark.parametrize(
    ("cores", "workers"),
    [(1, (1, 1, 1)), (3, (3, 3, 2)), (4, (4, 3, 3)), (5, (5, 4, 4)), (6, (6, 6, 5)), (16, (6, 6, 5))],
)
def test_default_worker_count_leaves_one_core_to_the_caller_from_four_cores(
    cores: int, workers: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With six envs: with six cores or more, each env has its own core."""
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    recipes = [Recipe(Walk)] * 6
    executors: list[ExecutorName] = ["thread", "process", "hybrid"]
    plans = [decide(executor, recipes) for executor in executors]
    assert tuple(plan.workers for plan in plans) == workers
    said = [f"one of the {cores} cores is the caller's" in str(plan) for plan in plans]
    assert said == [False, cores in (4, 5), False]
    result = decide("process", recipes, mv.WorkerOptions(count=6))
    assert result.workers == 6 and result.why == "as requested"


@pytest.mark.parametrize(
    ("executor", "workers", "awake"),
    [
        ("process", 2, [True, True]),
        ("process", 4, [True, True, True, False]),
        ("process", 5, [False] * 5),
        ("hybrid", 3, [False] * 4),
        ("thread", 2, [False] * 2),
    ],
)
def test_workers_stay_awake_on_cores_beside_that_of_the_caller(
    executor: Any, workers: int, awake: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Exception):
        pass

    def tell(plan: mv.Plan, shares: list[Assignment], *_: Any) -> Any:
        raise Told([share.spare_core for share in shares])

    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    monkeypatch.setattr(startup, "StartedHosts", tell)
    with pytest.raises(Told) as caught:
        mv.make_vec(Walk, 8, executor, workers=workers)
    assert caught.value.args == (awake,)


def test_restartable_vector_env_leaves_a_core_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    with mv.make_vec(Walk, 5, on_failure="restart") as envs:
        assert len(envs.worker_pids) == envs.plan.workers == 3
        assert "one of the 4 cores is the caller's" in str(envs.plan)


@pytest.mark.fault("E4")
def test_no_internet_socket_is_opened() -> None:
    import psutil

    with mv.make_vec(Walk, 2, "process", workers=2) as envs:
        envs.reset(seed=0)
        for pid in {*envs.call("process_id"), psutil.Process().pid}:
            assert [c for c in psutil.Process(pid).net_connections() if c.family.name != "AF_UNIX"] == []


def test_env_can_start_processes() -> None:
    """Workers are not daemonic."""

    class Starts(Walk):
        def answer(self) -> int:
            import multiprocessing

            context = multiprocessing.get_context("fork")
            queue = context.SimpleQueue()
            child = context.Process(target=queue.put, args=(42,))
            child.start()
            found = queue.get()
            child.join()
            return int(found)

    with mv.make_vec(Starts, 2, "process", workers=2) as envs:
        assert envs.call("answer") == (42, 42)


PROGRAM_WITH_CLOSED_STREAMS = """
import os
import sys
import multiverse as mv
from tests.fault_envs import WritesToStandardStreams
with mv.make_vec(WritesToStandardStreams, 2, sys.argv[1], workers=1) as envs:
    for closed in map(int, sys.argv[2:]):
        assert os.path.samestat(os.fstat(closed), os.stat(os.devnull)), f"{closed} is {os.fstat(closed)}"
    envs.reset(seed=0)
    for _ in range(20):
        envs.step([0, 0])
"""


@pytest.mark.fault("A17")
@pytest.mark.parametrize("executor", ["process", "hybrid"])
@pytest.mark.parametrize("closed", ["1", "2", "0 1 2"])
def test_output_of_envs_to_closed_streams_goes_to_the_null_device(executor: str, closed: str) -> None:
    close = " ".join(f"{descriptor}>&-" for descriptor in closed.split())
    program = [sys.executable, "-c", PROGRAM_WITH_CLOSED_STREAMS, executor, *closed.split()]
    run = subprocess.run(["sh", "-c", f'exec "$@" {close}', "sh", *program], cwd=Path(__file__).parents[2], timeout=60)
    assert run.returncode == 0
