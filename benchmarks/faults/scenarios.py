"""What goes wrong, and how it is decided whether a library took it well. The same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.faults.contenders import TIMEOUT_S
from benchmarks.faults.envs import CAUSE, OTHER_CAUSE
from benchmarks.faults.judge import VICTIM, EndsWithNothingLeft, RightData, Rule, SaysSo


@dataclass(frozen=True)
class Scenario:
    """One row of the table."""

    title: str
    rule: Rule
    deed: str = "step_on"  # a method of the victim's `Program`
    env_options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    dtype: str = "float32"
    from_the_start: bool = False  # the fault is in making the envs: no good steps before it
    when_arrived: Literal["", "kill", "interrupt", "interrupt_group"] = ""  # what the watcher does to the program

    @property
    def opens_gate(self) -> bool:
        return any(options.get("what") == "wait_at_gate" for options in self.env_options.values())


def victim(what: str, **options: Any) -> dict[int, dict[str, Any]]:
    """One env goes wrong, the middle one."""
    return {VICTIM: {"what": what, **options}}


BY_KILL = SaysSo((r"SIGKILL|signal 9|exit ?code -9",))
NO_ANSWER = SaysSo((r"time ?out|timed out|not answered|no answer",))
RAISED = SaysSo((CAUSE,))
NOT_A_NUMBER = SaysSo((r"\bnan\b|not finite|non-finite",))

SCENARIOS: dict[str, Scenario] = {
    # -- a worker dies ---------------------------------------------------------------------------------------------
    "kill_idle": Scenario("worker killed (SIGKILL) between steps", BY_KILL, deed="kill_worker"),
    "kill_in_step": Scenario("worker killed (SIGKILL) in step", BY_KILL, env_options=victim("kill")),
    "kill_in_reset": Scenario(
        "worker killed (SIGKILL) in reset",
        SaysSo(BY_KILL.causes, all_rows_clean=True),
        deed="reset_again",
        env_options=victim("kill", phase="reset", at=2),
    ),
    "segfault": Scenario(
        "segmentation fault in step", SaysSo((r"SIGSEGV|signal 11|segmentation",)), env_options=victim("segfault")
    ),
    "exit": Scenario("os._exit(3) in step", SaysSo((r"exit(ed)?\b.{0,12}\b3\b",)), env_options=victim("exit")),
    # -- a worker does not answer ----------------------------------------------------------------------------------
    "stopped": Scenario("worker stopped (SIGSTOP)", NO_ANSWER, deed="stop_worker"),
    "hang": Scenario("step hangs in Python", NO_ANSWER, env_options=victim("hang")),
    "hang_gil": Scenario("step hangs in C, holding the GIL", NO_ANSWER, env_options=victim("hold_the_gil")),
    "late_reply": Scenario(
        f"step takes {1.5 * TIMEOUT_S:g} s, then stepping continues: stale results?",
        RightData({"step": NO_ANSWER.causes[0]}),
        deed="go_on_after_error",
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
        SaysSo((CAUSE, OTHER_CAUSE), who=(0, 2)),
        env_options={0: {"what": "raise"}, 2: {"what": "raise", "cause": OTHER_CAUSE}},
    ),
    # -- an env gives bad values -----------------------------------------------------------------------------------
    "nan_observation": Scenario("NaN in an observation", NOT_A_NUMBER, env_options=victim("nan_observation")),
    "short_observation": Scenario(
        "observation of shape (1,) for (3,)", SaysSo((r"shape",)), env_options=victim("short_observation")
    ),
    "huge_observation": Scenario(
        "1e300 in a float32 observation",
        SaysSo((r"\binf\b|finite|overflow|1e\+?300",)),
        env_options=victim("huge_observation"),
    ),
    "float_for_byte": Scenario(
        "300.0 in a uint8 observation",
        SaysSo((r"uint8|integer|float64|dtype|\b300\b",)),
        env_options=victim("float_for_byte"),
        dtype="uint8",
    ),
    "nan_reward": Scenario("NaN as reward", NOT_A_NUMBER, env_options=victim("nan_reward")),
    "unpicklable_info": Scenario(
        "info that cannot be pickled", SaysSo((r"pickle",), all_rows_clean=True), env_options=victim("unpicklable_info")
    ),
    # -- the caller ------------------------------------------------------------------------------------------------
    "too_few_actions": Scenario(
        "2 actions for 3 envs, then a right batch: stale results?",
        RightData({"short step": r"\b2\b.*\b3\b|\b3\b.*\b2\b|shorter|too few"}, must_raise="short step"),
        deed="too_few_actions",
    ),
    "interrupt": Scenario(
        "Ctrl-C in step (caller only), then stepping continues",
        RightData({"step": "KeyboardInterrupt"}),
        deed="go_on_after_error",
        env_options=victim("wait_at_gate"),
        when_arrived="interrupt",
    ),
    "interrupt_group": Scenario(
        "Ctrl-C in step (terminal: all processes), then stepping continues",
        RightData({"step": "KeyboardInterrupt"}),
        deed="go_on_after_error",
        env_options=victim("wait_at_gate"),
        when_arrived="interrupt_group",
    ),
    # -- the end ---------------------------------------------------------------------------------------------------
    "close_stopped": Scenario("close() with a stopped worker", EndsWithNothingLeft(), deed="stop_worker_and_close"),
    "close_child": Scenario(
        "close() with an env that left a child process running",
        EndsWithNothingLeft(),
        deed="close_only",
        env_options=victim("start_child", phase="constructor", at=1),
    ),
    "parent_killed": Scenario(
        "program killed (SIGKILL), workers idle", EndsWithNothingLeft(), deed="wait_for_the_end", when_arrived="kill"
    ),
    "parent_killed_in_step": Scenario(
        "program killed (SIGKILL), an env waits in step",
        EndsWithNothingLeft(),
        env_options=victim("hang"),
        when_arrived="kill",
    ),
    "parent_killed_gil": Scenario(
        "program killed (SIGKILL), an env holds the GIL",
        EndsWithNothingLeft(),
        env_options=victim("hold_the_gil"),
        when_arrived="kill",
    ),
    "parent_killed_child": Scenario(
        "program killed (SIGKILL), an env has a child process",
        EndsWithNothingLeft(),
        deed="wait_for_the_end",
        env_options=victim("start_child", phase="constructor", at=1),
        when_arrived="kill",
    ),
}
