"""The scenarios: the faults, and the rules that decide their outcomes, the same for all libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.faults.contenders import TIMEOUT_S
from benchmarks.faults.envs import CAUSE, OTHER_CAUSE
from benchmarks.faults.judge import VICTIM, EndsWithNothingLeft, ReportsCause, RightData, Rule


@dataclass(frozen=True)
class Scenario:
    """One row of the table."""

    title: str
    rule: Rule
    action: str = "step_on"  # a method of the victim's `Program`
    env_options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    dtype: str = "float32"
    from_the_start: bool = False  # the fault happens when the envs are created, without good steps before
    on_arrival: Literal["", "kill", "interrupt", "interrupt_group"] = (
        ""  # action of the watcher when the fault is reached
    )

    @property
    def opens_gate(self) -> bool:
        return any(options.get("what") == "wait_at_gate" for options in self.env_options.values())


def victim(what: str, **options: Any) -> dict[int, dict[str, Any]]:
    """Return env options with a fault in the middle env."""
    return {VICTIM: {"what": what, **options}}


BY_KILL = ReportsCause((r"SIGKILL|signal 9|exit ?code -9",))
NO_ANSWER = ReportsCause((r"time ?out|timed out|not answered|no answer",))
RAISED = ReportsCause((CAUSE,))
NOT_A_NUMBER = ReportsCause((r"\bnan\b|not finite|non-finite",))

SCENARIOS: dict[str, Scenario] = {
    # -- a worker dies ---------------------------------------------------------------------------------------------
    "kill_idle": Scenario("worker killed (SIGKILL) between steps", BY_KILL, action="kill_worker"),
    "kill_in_step": Scenario("worker killed (SIGKILL) in step", BY_KILL, env_options=victim("kill")),
    "kill_in_reset": Scenario(
        "worker killed (SIGKILL) in reset",
        ReportsCause(BY_KILL.causes, all_rows_clean=True),
        action="reset_again",
        env_options=victim("kill", phase="reset", at=2),
    ),
    "segfault": Scenario(
        "segmentation fault in step", ReportsCause((r"SIGSEGV|signal 11|segmentation",)), env_options=victim("segfault")
    ),
    "exit": Scenario("os._exit(3) in step", ReportsCause((r"exit(ed)?\b.{0,12}\b3\b",)), env_options=victim("exit")),
    # -- a worker does not answer ----------------------------------------------------------------------------------
    "stopped": Scenario("worker stopped (SIGSTOP)", NO_ANSWER, action="stop_worker"),
    "hang": Scenario("step hangs in Python", NO_ANSWER, env_options=victim("hang")),
    "hang_gil": Scenario("step hangs in C, holding the GIL", NO_ANSWER, env_options=victim("hold_the_gil")),
    "late_reply": Scenario(
        f"step takes {1.5 * TIMEOUT_S:g} s, then stepping continues: stale results?",
        RightData({"step": NO_ANSWER.causes[0]}),
        action="continue_after_error",
        env_options=victim("be_slow", slow_s=1.5 * TIMEOUT_S),
    ),
    # -- an env raises ---------------------------------------------------------------------------------------------
    "raise": Scenario("exception in step", RAISED, env_options=victim("raise")),
    "raise_in_constructor": Scenario(
        "exception in the constructor",
        RAISED,
        from_the_start=True,
        env_options=victim("raise", phase="constructor", at=1),
    ),
    "raise_two_arguments": Scenario(
        "exception with two constructor arguments", RAISED, env_options=victim("raise_two_arguments")
    ),
    "raise_unpicklable": Scenario("exception that cannot be pickled", RAISED, env_options=victim("raise_unpicklable")),
    "raise_twice": Scenario(
        "two envs raise in one batch",
        ReportsCause((CAUSE, OTHER_CAUSE), who=(0, 2)),
        env_options={0: {"what": "raise"}, 2: {"what": "raise", "cause": OTHER_CAUSE}},
    ),
    # -- an env gives bad values -----------------------------------------------------------------------------------
    "nan_observation": Scenario("NaN in an observation", NOT_A_NUMBER, env_options=victim("nan_observation")),
    "short_observation": Scenario(
        "observation of shape (1,) for (3,)", ReportsCause((r"shape",)), env_options=victim("short_observation")
    ),
    "huge_observation": Scenario(
        "1e300 in a float32 observation",
        ReportsCause((r"\binf\b|finite|overflow|1e\+?300",)),
        env_options=victim("huge_observation"),
    ),
    "float_for_byte": Scenario(
        "300.0 in a uint8 observation",
        ReportsCause((r"uint8|integer|float64|dtype|\b300\b",)),
        env_options=victim("float_for_byte"),
        dtype="uint8",
    ),
    "nan_reward": Scenario("NaN as reward", NOT_A_NUMBER, env_options=victim("nan_reward")),
    "unpicklable_info": Scenario(
        "info that cannot be pickled",
        ReportsCause((r"pickle",), all_rows_clean=True),
        env_options=victim("unpicklable_info"),
    ),
    # -- the caller ------------------------------------------------------------------------------------------------
    "too_few_actions": Scenario(
        "2 actions for 3 envs, then a right batch: stale results?",
        RightData({"short step": r"\b2\b.*\b3\b|\b3\b.*\b2\b|shorter|too few"}, must_raise="short step"),
        action="too_few_actions",
    ),
    "interrupt": Scenario(
        "Ctrl-C in step (caller only), then stepping continues",
        RightData({"step": "KeyboardInterrupt"}),
        action="continue_after_error",
        env_options=victim("wait_at_gate"),
        on_arrival="interrupt",
    ),
    "interrupt_group": Scenario(
        "Ctrl-C in step (terminal: all processes), then stepping continues",
        RightData({"step": "KeyboardInterrupt"}),
        action="continue_after_error",
        env_options=victim("wait_at_gate"),
        on_arrival="interrupt_group",
    ),
    # -- the end ---------------------------------------------------------------------------------------------------
    "close_stopped": Scenario("close() with a stopped worker", EndsWithNothingLeft(), action="stop_worker_and_close"),
    "close_child": Scenario(
        "close() with an env that left a child process running",
        EndsWithNothingLeft(),
        action="close_only",
        env_options=victim("start_child", phase="constructor", at=1),
    ),
    "parent_killed": Scenario(
        "program killed (SIGKILL), workers idle", EndsWithNothingLeft(), action="wait_for_the_end", on_arrival="kill"
    ),
    "parent_killed_in_step": Scenario(
        "program killed (SIGKILL), an env waits in step",
        EndsWithNothingLeft(),
        env_options=victim("hang"),
        on_arrival="kill",
    ),
    "parent_killed_gil": Scenario(
        "program killed (SIGKILL), an env holds the GIL",
        EndsWithNothingLeft(),
        env_options=victim("hold_the_gil"),
        on_arrival="kill",
    ),
    "parent_killed_child": Scenario(
        "program killed (SIGKILL), an env has a child process",
        EndsWithNothingLeft(),
        action="wait_for_the_end",
        env_options=victim("start_child", phase="constructor", at=1),
        on_arrival="kill",
    ),
}
