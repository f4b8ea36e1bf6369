"""`auto`: at most one throwaway env, a small cost model, and no probe if the answer is known."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.adapters.env_source import Recipe
from multiverse.core.errors import RemoteError
from multiverse.core.plan import ExecutorName, PlannedExecutor
from multiverse.env_checker.resources import suggestion
from multiverse.executors import choose, machine, startup
from multiverse.executors.backends import BACKENDS
from multiverse.executors.choose import HAND_OVER_S, PER_STEP_S, PER_WORKER_S, Probe, predicted
from tests.envs import AnySpace, CountsConstructions, InProcess, Walk, constructions
from tests.fault_envs import Fault


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_cores(count: int) -> None:
        monkeypatch.setattr(machine, "usable_cores", lambda: count)

    set_cores(2)
    return set_cores


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the result of the probe; returns the calls of the probe."""
    asked: list[Any] = []

    def say(answer: Probe | Exception | None) -> list[Any]:
        def answer_it(*arguments: Any) -> Probe | None:
            asked.append(arguments)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(choose, "probe_env", answer_it)
        return asked

    return say


def plan_of(num_envs: int, **options: Any) -> mv.Plan:
    with mv.make_vec(Walk, num_envs, **options) as envs:
        return envs.plan


def test_every_named_executor_is_in_the_table() -> None:
    assert set(BACKENDS) == set(get_args(PlannedExecutor)) == set(get_args(ExecutorName)) - {"auto"}


def test_predicted_times_are_sums_of_costs() -> None:
    each = 10e-6 + PER_STEP_S
    alone, shared = predicted(10e-6, 7, 2)
    assert alone == pytest.approx(7 * each)
    assert shared == pytest.approx(3 * each + HAND_OVER_S + 2 * PER_WORKER_S)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(("step_us", "num_envs", "executor"), [(1000, 8, "hybrid"), (0.1, 2, "serial")])
def test_slow_envs_are_shared_and_fast_ones_are_not(probe: Any, step_us: float, num_envs: int, executor: str) -> None:
    probe(Probe(step_us * 1e-6, False))
    plan = plan_of(num_envs)
    assert plan.executor == executor
    assert "auto: a step takes" in plan.why
    assert plan.executor in str(plan)


@pytest.mark.usefixtures("cores")
def test_restartable_envs_run_in_processes(probe: Any) -> None:
    asked = probe(Probe(1.0, False))
    assert plan_of(4, on_failure="restart").executor == "process" and asked == []


def test_one_env_is_serial_without_a_probe(probe: Any, cores: Any) -> None:
    asked = probe(Probe(1.0, False))
    assert plan_of(1).executor == "serial"
    cores(1)
    assert plan_of(8).executor == "serial"
    assert asked == []


@pytest.mark.usefixtures("cores")
def test_given_executor_is_not_probed(probe: Any) -> None:
    asked = probe(Probe(1.0, False))
    for executor in ("serial", "thread", "process", "hybrid"):
        assert plan_of(2, executor=executor).why == "as requested"
    assert asked == []


@pytest.mark.usefixtures("cores")
def test_hybrid_with_one_env_is_serial_with_a_reason() -> None:
    plan = plan_of(1, executor="hybrid")
    assert (plan.executor, plan.workers) == ("serial", 0)
    assert "one env" in plan.why


@pytest.mark.usefixtures("cores")
def test_plan_is_followed_without_a_probe(probe: Any) -> None:
    asked = probe(Probe(1.0, False))
    plan = mv.Plan("hybrid", 1, "fork", "park", "measured last week")
    assert plan_of(4, plan=plan) == plan
    assert asked == []


@pytest.mark.parametrize(
    "options",
    [{"executor": "serial"}, {"workers": 1}, {"workers": mv.WorkerOptions(start_method="fork")}, {"num_envs": 2}],
    ids=str,
)
def test_plan_that_contradicts_other_arguments_is_refused(options: dict[str, Any]) -> None:
    plan = mv.Plan("hybrid", 2, "fork", "park", "measured last week")
    with pytest.raises(mv.errors.InvalidRequest, match="plan"):
        mv.make_vec(Walk, **{"num_envs": 4, "plan": plan, **options})


@pytest.mark.usefixtures("cores")
def test_auto_builds_at_most_one_additional_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an idle machine; on a busy one two executors are tried, with separate envs."""
    monkeypatch.setattr(choose, "BUSY_SHARE", 2.0)
    monkeypatch.setattr(choose, "SLOW_BUILD_S", 60.0)
    path = tmp_path / "built"
    with mv.make_vec(CountsConstructions, 4, env_kwargs={"path": str(path)}) as envs:
        assert constructions(path) == 5
        envs.reset(seed=0)
        assert envs.get_attr("resets") == (1,) * 4
        assert envs.get_attr("steps") == (0,) * 4


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("executor", ["serial", "thread", "process", "hybrid"])
def test_given_executor_builds_no_additional_env(tmp_path: Path, executor: Any) -> None:
    path = tmp_path / "built"
    with mv.make_vec(CountsConstructions, 4, executor, env_kwargs={"path": str(path)}):
        assert constructions(path) == 4


@pytest.mark.usefixtures("cores")
def test_probe_steps_a_real_env() -> None:
    with mv.make_vec("CartPole-v1", 4) as envs:
        assert "auto: " in envs.plan.why
        assert envs.plan.executor in ("serial", "hybrid")
        envs.reset(seed=0)
        envs.step(np.zeros(4, np.int64))


@pytest.mark.usefixtures("cores")
def test_probe_stops_waiting_for_a_slow_constructor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.fault_envs import Gate, Gated

    gate = Gate(tmp_path / "gate")
    monkeypatch.setattr(choose, "SLOW_BUILD_S", 0.05)
    recipe = choose.Recipe(Gated, {"gate": str(gate), "phase": "constructor"})
    assert choose.probe_env(recipe, "forkserver") is None


@pytest.mark.usefixtures("cores")
def test_env_that_is_slow_to_build_runs_in_processes(probe: Any) -> None:
    probe(None)
    plan = plan_of(4)
    assert plan.executor == "process"
    assert "to build" in plan.why


@pytest.mark.fault("G6")
@pytest.mark.usefixtures("cores")
def test_hanging_constructor_in_the_probe_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "SLOW_BUILD_S", 0.3)
    with pytest.raises(mv.errors.ReplyTimeout, match="start"):
        mv.make_vec(
            Fault,
            2,
            env_kwargs={"what": "sleep", "phase": "constructor"},
            timeouts=mv.Timeouts(reset_s=0.5, close_s=0.1),
        )


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("executor", ["auto", "process", "thread", "hybrid"])
def test_env_marked_in_process_is_serial(tmp_path: Path, executor: Any) -> None:
    path = tmp_path / "built"
    with mv.make_vec(InProcess, 3, executor, env_kwargs={"path": str(path)}) as envs:
        assert envs.plan.executor == "serial"
        assert "in_process" in envs.plan.why
        envs.reset(seed=0)


# -- a busy machine ----------------------------------------------------------------------------------------------
@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the result of the comparison on a busy machine; returns its calls."""
    asked: list[Any] = []

    def say(answer: tuple[float, float] | Exception) -> list[Any]:
        def answer_it(*arguments: Any) -> tuple[float, float]:
            asked.append(arguments)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(choose, "tried", answer_it)
        return asked

    return say


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(("hybrid_s", "executor"), [(9e-3, "serial"), (5e-3, "hybrid")])
def test_busy_machine_measures_both_executors_and_reports_it(
    probe: Any, tried: Any, hybrid_s: float, executor: str
) -> None:
    probe(Probe(1e-3, False, 0.4))
    asked = tried((8e-3, hybrid_s))
    plan = plan_of(8)
    assert plan.executor == executor and len(asked) == 1
    assert "measured, because other programs used 40% of the cores: 8000 µs serial" in plan.why


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("answer", [Probe(1e-3, False, 0.02), Probe(1e-7, False, 0.9)], ids=["idle", "cheap"])
def test_known_answer_is_not_measured(probe: Any, tried: Any, answer: Probe) -> None:
    probe(answer)
    asked = tried((1.0, 1.0))
    plan_of(8)
    assert asked == []


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    "error", [startup.TooSlow("not in time"), mv.errors.EnvFailed("raised", 0, [RemoteError("A", "", "")])]
)
def test_failed_measurement_on_a_busy_machine_gives_serial(probe: Any, tried: Any, error: Exception) -> None:
    probe(Probe(1e-3, False, 0.4))
    tried(error)
    plan = plan_of(8)
    assert plan.executor == "serial"
    assert "other programs used 40% of the cores, and hybrid could not be tried" in plan.why


@pytest.mark.fault("G6")
@pytest.mark.usefixtures("cores")
def test_env_that_kills_the_comparison_runs_in_processes(probe: Any, tried: Any) -> None:
    probe(Probe(1e-3, False, 0.4))
    tried(mv.errors.WorkerDied(0, range(1), "was killed by SIGSEGV"))
    plan = plan_of(8)
    assert plan.executor == "process" and "SIGSEGV" in plan.why


HYBRID = mv.Plan("hybrid", 1, "forkserver", "auto", "")


@pytest.mark.parametrize(
    "env",
    [
        Walk,
        partial(AnySpace, spaces.Text(4), spaces.Dict({"a": spaces.Discrete(3, start=2), "b": spaces.Text(4)})),
    ],
    ids=["single", "objects"],
)
def test_comparison_steps_real_envs(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "TRY_S", 0.02)
    serial_s, hybrid_s = choose.tried([Recipe(env) for _ in range(4)], HYBRID)
    assert serial_s > 0.0 and hybrid_s > 0.0


def test_env_that_raises_in_a_comparison_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "TRY_S", 0.02)
    with pytest.raises(mv.errors.EnvFailed, match="asked to fail"):
        choose.tried([Recipe(Fault, {"what": "raise", "at": 2}) for _ in range(2)], HYBRID)


@pytest.mark.usefixtures("cores")
def test_env_that_cannot_be_built_is_an_error_with_its_cause() -> None:
    with pytest.raises(mv.errors.EnvFailed, match="asked to fail"):
        mv.make_vec(Fault, 3, env_kwargs={"what": "raise", "phase": "constructor"})


@pytest.mark.usefixtures("cores")
def test_env_that_raises_in_the_probe_runs_serially() -> None:
    with mv.make_vec(Fault, 3, env_kwargs={"what": "raise", "at": 3}) as envs:
        assert envs.plan.executor == "serial"
        assert "the probe failed" in envs.plan.why
        envs.reset(seed=0)
        envs.step(np.zeros(3, np.int64))


@pytest.mark.fault("G6")
@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("what", ["kill", "exit", "segv"])
def test_env_that_kills_the_probe_runs_in_processes(what: str) -> None:
    with mv.make_vec(Fault, 3, env_kwargs={"what": what, "at": 3}, workers=1) as envs:
        assert envs.plan.executor == "process" and "WorkerDied" in envs.plan.why
        envs.reset(seed=0)
        with pytest.raises(mv.errors.WorkerDied):
            for _ in range(3):
                envs.step(np.zeros(3, np.int64))


@pytest.mark.fault("G6")
@pytest.mark.usefixtures("cores")
def test_env_that_kills_the_probe_while_built_is_an_error_with_its_cause() -> None:
    with pytest.raises(mv.errors.WorkerDied, match="exited with code 3"):
        mv.make_vec(Fault, 3, env_kwargs={"what": "exit", "phase": "constructor"})


@pytest.mark.fault("G6")
@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("phase", ["reset", "step"])
def test_env_that_hangs_the_probe_runs_in_processes(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "HOPELESS_S", 0.3)
    with mv.make_vec(
        Fault,
        2,
        env_kwargs={"what": "sleep", "phase": phase},
        workers=1,
        timeouts=mv.Timeouts(reply_s=0.3, reset_s=3.0, close_s=0.1),
    ) as envs:
        assert envs.plan.executor == "process" and "ReplyTimeout" in envs.plan.why
        if phase == "step":
            envs.reset(seed=0)
            with pytest.raises(mv.errors.ReplyTimeout):
                envs.step(np.zeros(2, np.int64))


@pytest.mark.usefixtures("cores")
def test_factory_that_cannot_be_pickled_runs_serially() -> None:
    import threading

    lock = threading.Lock()
    with mv.make_vec(lambda: Walk() if lock else None, 3) as envs:
        assert envs.plan.executor == "serial"


@pytest.mark.usefixtures("cores")
def test_choice_is_logged_in_one_line(probe: Any, caplog: pytest.LogCaptureFixture) -> None:
    probe(Probe(1e-3, False))
    with caplog.at_level(logging.INFO, logger="multiverse"):
        plan = plan_of(4)
    assert caplog.messages == [f"executor={plan}"]


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("waiting", "executor", "expected"),
    [("auto", "process", "auto"), ("auto", "thread", "park"), ("park", "process", "park"), ("spin", "thread", "spin")],
)
def test_default_waiting_is_park_for_threads_and_auto_for_processes(waiting: Any, executor: Any, expected: str) -> None:
    assert plan_of(2, executor=executor, workers=mv.WorkerOptions(waiting=waiting)).waiting == expected


@pytest.mark.parametrize("step_s", [1e-6, 3e-6, 6e-6, 20e-6, 1e-3])
@pytest.mark.parametrize("cores", [2, 8])
def test_check_env_suggests_the_choice_of_auto(cores: int, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    monkeypatch.setattr(choose, "probe_env", lambda *_: choose.Probe(step_s, False))
    taken = [
        choose.decide("auto", [None] * count).executor  # type: ignore[list-item]
        for count in (8, 64)
    ]
    said = suggestion(step_s, {}, busy_share=0.0)
    assert said == f"on these {cores} cores that suggests 8 envs {taken[0]}, 64 envs {taken[1]}"
    assert suggestion(step_s, {}, busy_share=0.5).endswith(
        "but other programs use 50 % of them now: measure to be sure"
    )
    assert suggestion(step_s, {"in_process": True}, 0.0).endswith("executor='serial'")
