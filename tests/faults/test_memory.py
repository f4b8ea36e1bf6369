"""Row A15: an env that leaks. Its worker process is replaced, at a MemoryError and above a limit; growth is logged."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.plan import number_of_bytes
from multiverse.executors import worker_memory
from multiverse.executors.worker_memory import SAMPLES, WORTH_A_WARNING, Growth
from tests.envs import Walk
from tests.faults.conftest import LoggedWarnings
from tests.faults.episode_envs import RunsOutOfMemory
from tests.faults.unlucky_envs import Leaks
from tests.rollouts.envs import Stumbles
from tests.rollouts.test_whole_episodes import network
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

MIB = 1 << 20
with_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, HYBRID], ids=str)


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


def steps(envs: mv.VectorEnv, count: int) -> list[bool]:
    """Take `count` steps and return for each whether the last env was restarted."""
    found = []
    for k in range(count):
        *_, infos = envs.step(actions(range(envs.num_envs), k))
        found.append(bool(infos.get("restarted", [False])[-1]))
    return found


# -- MemoryError ---------------------------------------------------------------------------------------------------
@pytest.mark.fault("A15")
@with_processes
@pytest.mark.parametrize("phase", ["step", "reset", "constructor"])
def test_memory_error_of_an_env_replaces_its_worker(
    make: Make, config: Configuration, phase: str, tmp_path: Path, logged_warnings: LoggedWarnings
) -> None:
    """In the constructor of an env that replaces one that raised."""
    kwargs = last_env(config, note=str(tmp_path / "note"), phase=phase)
    envs = make(Leaks, env_kwargs=kwargs, autoreset="same_step", on_failure="restart")
    envs.reset(seed=7)
    before = envs.worker_pids
    assert sum(steps(envs, 6)) == 1
    assert (envs.failures.worker_restarts, envs.failures.env_restarts) == (1, 0)
    assert [pid in before for pid in envs.worker_pids] == [True] * (len(before) - 1) + [False]
    (line,) = [line for line in logged_warnings() if "restart 1" in line]
    assert "one of its envs ran out of memory" in line and f"env {config.num_envs - 1}" in line
    assert "MemoryError: all of it is in use" in line


@pytest.mark.fault("A15")
@pytest.mark.parametrize("config", [SERIAL, THREAD], ids=str)
def test_memory_error_replaces_the_env_where_no_process_can_be_replaced(
    make: Make, config: Configuration, tmp_path: Path
) -> None:
    kwargs = last_env(config, note=str(tmp_path / "note"), phase="step")
    envs = make(Leaks, env_kwargs=kwargs, on_failure="restart")
    envs.reset(seed=7)
    assert sum(steps(envs, 4)) == 1 and envs.failures.env_restarts == 1


@pytest.mark.fault("A15")
def test_memory_error_without_restarts_is_an_error_of_its_env(tmp_path: Path) -> None:
    with mv.make_vec(Leaks, 1, "process", env_kwargs={"note": str(tmp_path / "note"), "phase": "step"}) as envs:
        envs.reset(seed=7)
        with pytest.raises(mv.errors.EnvFailed, match="MemoryError"):
            steps(envs, 4)
        envs.reset(seed=7)
        steps(envs, 2)


@pytest.mark.fault("A15")
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs the size of the address space")
def test_env_that_leaks_up_to_the_limit_of_its_address_space_is_always_replaced() -> None:
    kwargs = {"phase": "step", "leak_bytes": 16 * MIB, "limit_bytes": 128 * MIB}
    with mv.make_vec(Leaks, 1, "process", env_kwargs=kwargs, on_failure="restart") as envs:
        envs.reset(seed=7)
        steps(envs, 40)
        assert envs.failures.worker_restarts >= 2 and envs.failures.env_restarts == 0


@pytest.mark.fault("A15")
def test_memory_error_while_whole_episodes_are_collected_replaces_the_worker(tmp_path: Path) -> None:
    with mv.make_vec(Stumbles, 1, "serial") as envs:
        policy = network(envs)
    kwargs = {"note": str(tmp_path / "note")}
    with mv.EpisodeCollector(RunsOutOfMemory, mv.DerivedSeeds(8), num_envs=1, workers=1, env_kwargs=kwargs,
                           on_failure="restart") as workers:  # fmt: skip
        before = workers.worker_pids
        assert workers.collect(policy, 3).dropped == 3 and workers.worker_pids != before


# -- a limit ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[int | None, int]:
    """Memory of processes, set by the test; others hold 1 MiB. It is checked before every request."""
    sizes: dict[int | None, int] = {}
    monkeypatch.setattr(worker_memory, "rss_bytes", lambda pid: sizes.get(pid, MIB))
    monkeypatch.setattr(worker_memory, "LOOK_EVERY_S", 0.0)
    return sizes


@pytest.mark.fault("A15")
@with_processes
@pytest.mark.parametrize("asked", ["step", "send", "reset"])
def test_worker_above_its_memory_limit_is_replaced_before_the_next_request(
    make: Make, config: Configuration, asked: str, held: dict[int | None, int], logged_warnings: LoggedWarnings
) -> None:
    envs = make(Walk, on_failure=mv.FailureOptions(on_failure="restart", worker_memory_limit="2 MiB"))
    envs.reset(seed=7)
    assert not any(steps(envs, 2))
    held[pid := envs.worker_pids[-1]] = 3 * MIB
    if asked == "step":
        assert steps(envs, 1) == [True]
    elif asked == "send":
        envs.send(actions(range(config.num_envs), 0))
        assert envs.receive().infos["restarted"][-1]
    else:  # costs nothing: the episodes end there anyway
        envs.reset(seed=7)
    assert pid not in envs.worker_pids and not any(steps(envs, 2))
    assert envs.failures.worker_restarts == 1
    (line,) = [line for line in logged_warnings() if "restart 1" in line]
    assert "used 3.0 MiB, more than worker_memory_limit=2.0 MiB" in line and "out of memory" not in line


@pytest.mark.fault("A15")
def test_worker_that_was_busy_at_the_last_look_is_checked_before_its_own_next_request(
    held: dict[int | None, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in asynchronous runs, where one worker gets a request while the others are busy."""
    failures = mv.FailureOptions(on_failure="restart", worker_memory_limit="2MiB")
    with mv.make_vec(Walk, 2, "process", workers=2, on_failure=failures) as envs:
        envs.reset(seed=7)
        before = envs.worker_pids
        envs.send(np.array([0]), [1])
        held[before[1]] = 3 * MIB
        monkeypatch.setattr(worker_memory, "LOOK_EVERY_S", 3600.0)
        envs.send(np.array([0]), [0])
        assert not envs.receive(min_envs=2).infos.get("restarted", np.zeros(2)).any()
        envs.send(np.array([0]), [1])
        assert envs.receive().infos["restarted"].tolist() == [True]
        assert envs.worker_pids[0] == before[0] and envs.worker_pids[1] != before[1]


@pytest.mark.fault("A15")
def test_worker_that_really_leaks_is_replaced_above_its_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with mv.make_vec(Leaks, 1, "process", env_kwargs={"phase": "step"}) as envs:
        envs.reset(seed=7)
        size = worker_memory.rss_bytes(envs.worker_pids[0])
    assert size is not None
    monkeypatch.setattr(worker_memory, "LOOK_EVERY_S", 0.0)
    kwargs = {"phase": "step", "leak_bytes": 16 * MIB, "touch": True}
    with mv.make_vec(
        Leaks,
        1,
        "process",
        env_kwargs=kwargs,
        on_failure=mv.FailureOptions(on_failure="restart", worker_memory_limit=size + 48 * MIB),
    ) as envs:
        envs.reset(seed=7)
        steps(envs, 16)
        assert envs.failures.worker_restarts >= 1


@pytest.mark.fault("A15")
def test_training_replaces_workers_above_the_memory_limit(
    tmp_path: Path, held: dict[int | None, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int | None] = []

    def grown_at_the_third_look(pid: int | None) -> int:
        looks.append(pid)
        return 3 * MIB if len(looks) == 6 else MIB

    monkeypatch.setattr(worker_memory, "rss_bytes", grown_at_the_third_look)
    settings: dict[str, Any] = {"executor": "process", "workers": 1, "num_envs": 2, "evaluate_every": 0}
    run = mv.train(Walk, "a2c", env_steps=200, steps_per_env=10, evaluation_episodes=1, **settings,
                   worker_memory_limit="2MiB", run_dir=tmp_path / "run")  # fmt: skip
    assert run.summary["finished"] and run.summary["failures"]["worker_restarts"] == 1
    assert "worker_memory_limit: 2MiB" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.fault("A15")
def test_memory_limit_below_what_a_new_worker_holds_is_refused(held: dict[int | None, int]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"uses 1\.0 MiB right after building its envs"):
        mv.make_vec(Walk, 1, "process", on_failure=mv.FailureOptions(on_failure="restart", worker_memory_limit="1MB"))


def test_memory_limit_needs_restarts() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="on_failure='restart'"):
        mv.make_vec(Walk, 1, "process", on_failure=mv.FailureOptions(worker_memory_limit="2GiB"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [(5, 5), ("5", 5), ("2GiB", 2 << 30), ("1.5 KiB", 1536), ("500MB", 500_000_000), ("7b", 7), ("1 tib", 1 << 40)],
)
def test_memory_amounts_are_parsed(given: int | str, expected: int) -> None:
    assert number_of_bytes("limit", given) == expected


@pytest.mark.parametrize("given", ["", "much", "2 Gib i", "-1", 0, True, "1.2.3MB", "GiB"])
def test_invalid_memory_amounts_are_refused(given: Any) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"^limit="):
        number_of_bytes("limit", given)


# -- growth ----------------------------------------------------------------------------------------------------------
def looks_until_warned(sizes: list[int]) -> int | None:
    growth = Growth()
    return next((k for k, size in enumerate(sizes) if growth.warns(5.0 * k, size)), None)


@pytest.mark.fault("A15")
@pytest.mark.parametrize("each", [MIB, 10 * MIB, WORTH_A_WARNING])
def test_steady_growth_is_warned_of_when_large_enough(each: int) -> None:
    warned = looks_until_warned([100 * MIB + k * each for k in range(2000)])
    assert warned is not None and WORTH_A_WARNING <= warned * each <= max(2 * WORTH_A_WARNING, SAMPLES * each)


@pytest.mark.fault("A15")
def test_single_allocation_is_not_steady_growth() -> None:
    sizes = [100 * MIB, *[100 * MIB + 4 * WORTH_A_WARNING + k * 1000 for k in range(1000)]]
    assert looks_until_warned(sizes) is None


@pytest.mark.fault("A15")
def test_growth_is_warned_of_again_when_the_memory_has_doubled() -> None:
    growth = Growth()
    warned = [size for k in range(1000) if growth.warns(5.0 * k, size := (100 + 10 * k) * MIB)]
    assert len(warned) > 2 and all(b >= 2 * a for a, b in itertools.pairwise(warned))


@pytest.mark.fault("A15")
def test_worker_whose_memory_grows_is_named_with_its_envs_and_the_flag(
    held: dict[int | None, int], logged_warnings: LoggedWarnings
) -> None:
    with FORKSERVER.make(Walk) as envs:
        envs.reset(seed=7)
        for k in range(10):
            held[envs.worker_pids[-1]] = (k + 1) * WORTH_A_WARNING
            steps(envs, 1)
    line, *_ = [line for line in logged_warnings() if "grows steadily" in line]
    assert "worker 1 (envs 2-3)" in line and "--worker-memory-limit" in line and "more than" in line
