"""`check_env` as a whole: its arguments, its results and errors, and its safety against harmful envs."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import gymnasium as gym
import pytest

import multiverse as mv
from multiverse.env_checker import CheckReport, laboratory
from multiverse.env_checker.examine import CHECKS, examine, source_of
from multiverse.env_checker.repeatability import ProcessState, global_generators
from multiverse.env_checker.subject import Settings
from multiverse.executors import machine
from multiverse.executors.launch.fork_server import fork_server
from multiverse.measure import descendants
from tests.env_checker import broken_envs as broken
from tests.processes import still_alive

LONG_ENOUGH_S = 4.0
"""For everything but a hang, also on a busy machine."""


def report_on(env: Any, wrappers: Any = None, **settings: Any) -> CheckReport:
    return examine(source_of(env, None, wrappers), Settings(**settings))


def seen(report: CheckReport, code: str) -> str:
    (finding,) = [finding for finding in report.findings if finding.code == code]
    return finding.seen


# -- what comes out --------------------------------------------------------------------------------------------
def test_valid_env_passes_every_check() -> None:
    report = mv.check_env(broken.Healthy)
    assert report.codes == ("cost",)
    assert report.ok and not report.skipped
    assert [run.name for run in report.checks] == list(CHECKS)
    assert report.summary == "Healthy: 0 errors, 0 warnings, 1 info"


def test_errors_are_raised_with_every_finding() -> None:
    with pytest.raises(mv.errors.EnvCheckFailed) as raised:
        mv.check_env(broken.OddReward, env_kwargs={"odd": float("nan")}, seed=5, steps=100)
    message, report = str(raised.value), raised.value.report
    assert isinstance(raised.value, AssertionError) and isinstance(raised.value, mv.MultiverseError)
    assert message.startswith("OddReward: 1 error, 0 warnings, 1 info\nerror [reward-not-finite] the reward is nan")
    assert all(finding.seen in message and finding.remedy in message for finding in report.findings)
    assert report.findings[0].severity == "error" and "reset(seed=5)" in report.findings[0].seen


def test_warnings_are_logged_and_strict_raises_for_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "multiverse"):
        report = mv.check_env(broken.ReusesInfo, steps=50)
    assert [finding.code for finding in report.warnings] == ["info-reused"]
    assert "ReusesInfo: info-reused: the dict returned" in caplog.text
    with pytest.raises(mv.errors.EnvCheckFailed, match="info-reused"):
        report.raise_for_errors(strict=True)


def test_exception_met_by_many_checks_is_reported_once() -> None:
    report = report_on(broken.StepRaises, steps=100)
    assert report.codes == ("step-raises",)
    assert {run.skipped_because for run in report.skipped} == {"after step-raises"}


def test_step_named_in_a_finding_can_be_repeated() -> None:
    env, step = broken.StepRaises(), 0
    env.action_space.seed(6)
    env.reset(seed=6)
    with pytest.raises(ZeroDivisionError):
        while True:
            step += 1
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
    assert f"in step {step} after reset(seed=6)" in seen(report_on(broken.StepRaises, seed=6), "step-raises")


def test_weaker_of_two_findings_about_one_cause_is_omitted() -> None:
    report = report_on(broken.GlobalNumpy, steps=50)
    assert [code for code in report.codes if code.startswith("global")] == ["global-rng"]


# -- what goes in ----------------------------------------------------------------------------------------------
def test_env_instance_is_copied_and_not_modified() -> None:
    env = broken.Healthy()
    report = mv.check_env(env, steps=50)
    assert report.codes == ("checked-as-instance", "cost") and report.env == "Healthy"
    assert not hasattr(env, "state")  # it was not touched


def test_env_instance_with_a_spec_is_built_again() -> None:
    with gym.make("CartPole-v1") as env:
        report = mv.check_env(env, steps=50)
    assert report.codes == ("checked-as-instance", "cost")
    assert "built again from its spec 'CartPole-v1'" in seen(report, "checked-as-instance")


def test_env_instance_that_cannot_be_copied_is_refused_with_a_factory_suggestion() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"check_env\(lambda: HoldsLock\(...\)\)"):
        mv.check_env(broken.HoldsLock())


def test_factory_that_cannot_be_pickled_is_checked_with_a_finding() -> None:
    lock = threading.Lock()

    def make() -> Any:
        with lock:
            return broken.Healthy()

    report = mv.check_env(make, steps=50)
    assert report.codes == ("factory-cannot-travel", "cost") and not report.skipped
    assert "lock" in seen(report, "factory-cannot-travel")


def test_wrappers_are_checked_too() -> None:
    report = report_on(broken.Healthy, wrappers=[lambda env: (env, "wrapped")])
    assert report.codes == ("not-an-env",) and "builtins.tuple" in seen(report, "not-an-env")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("NoSuchEnv-v0", {}), "NoSuchEnv"),
        (([broken.Healthy], {}), "pass its items one at a time"),
        ((broken.Healthy, {"seed": -1}), "seed=-1"),
        ((broken.Healthy, {"seed": 1.5}), "seed=1.5"),
        ((broken.Healthy, {"steps": 0}), "steps=0"),
        ((broken.Healthy, {"timeout_s": 0}), "timeout_s=0"),
        ((broken.Healthy(), {"env_kwargs": {"a": 1}}), "built already"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[Any, dict[str, Any]], said: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=said):
        mv.check_env(arguments[0], **arguments[1])


# -- no harm ---------------------------------------------------------------------------------------------------
def test_hang_is_a_finding_with_its_place() -> None:
    before = descendants()
    report = report_on(broken.Hangs, timeout_s=LONG_ENOUGH_S, steps=50)
    assert report.codes == ("hangs",)
    assert "no answer for 4 s in step 5 after reset(seed=0)" in seen(report, "hangs")
    assert "wait_for_ever (" in seen(report, "hangs") and "broken_envs.py" in seen(report, "hangs")
    assert len(report.skipped) == len(CHECKS) - 4
    left = descendants() - before - {fork_server().pid}
    assert still_alive(left) == []


def test_segmentation_fault_is_a_finding_with_its_line() -> None:
    report = report_on(broken.Crashes, steps=50)
    assert report.codes == ("crashes",)
    assert "was killed by SIGSEGV in step 5 after reset(seed=0)" in seen(report, "crashes")
    assert "called by crash_here (" in seen(report, "crashes") and "broken_envs.py" in seen(report, "crashes")


def test_exit_is_a_finding_with_the_last_output() -> None:
    report = report_on(broken.Exits)
    assert "exited with code 3 in reset()" in seen(report, "crashes")
    assert "its last output: the simulator says: licence expired" in seen(report, "crashes")


def test_checks_after_a_crash_continue() -> None:
    report = report_on(broken.CrashesAsSecond, steps=50)
    assert report.codes == ("crashes", "cost") and not report.skipped
    assert "exited with code 4 in step 2 after reset(seed=0)" in seen(report, "crashes")


def test_env_that_exists_once_per_process_is_checked_alone() -> None:
    report = report_on(broken.OnePerProcess, steps=50)
    assert report.codes == ("build-again-failed", "cost")
    assert [run.name for run in report.skipped] == ["two envs in one process"]


def test_output_of_the_env_is_suppressed(capfd: pytest.CaptureFixture[str]) -> None:
    assert mv.check_env(broken.Prints, steps=50).codes == ("cost",)
    assert capfd.readouterr() == ("", "")


def test_checks_leave_the_calling_process_unchanged() -> None:
    fork_server()  # it stays for the program's life
    before = state_of_this_process()
    for env in (broken.SetsVariable, broken.Crashes):
        report_on(env, steps=20)
    assert state_of_this_process() == before


def state_of_this_process() -> tuple[Any, ...]:
    gc.collect()  # mapped memory goes with the last array over it
    held = (machine.open_descriptors(), descendants())
    return held, ProcessState.now(), global_generators()


def test_checks_run_in_process_without_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laboratory, "usable_here", lambda: False)
    report = report_on(broken.Healthy, steps=50)
    assert report.codes == ("not-isolated", "cost")
