"""The judge: derives one outcome from the record of a program, by the same rules for all libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.faults.envs import FAULT_AT, NUM_ACTIONS, action_at, clean_run

SEED, NUM_ENVS, VICTIM = 7, 3, 1
Event = dict[str, Any]

HANG, RIGHT_ERROR, VAGUE_ERROR, WRONG_ERROR = "hang", "right error", "vague error", "wrong error"
STALE, WRONG_DATA, SILENT, ORPHAN = "stale data", "wrong data", "silent", "orphan"
CONTINUES, RIGHT_DATA, CLEAN_END = "continues", "right data", "clean end"
GOOD = frozenset({RIGHT_ERROR, CONTINUES, RIGHT_DATA, CLEAN_END})

MEANING = {
    RIGHT_ERROR: "an exception whose text states the cause; it, or stderr, names the env or worker",
    VAGUE_ERROR: "an exception that states the cause but not the env, or only one of two causes",
    WRONG_ERROR: "an exception that does not state the cause; its type is given",
    CONTINUES: "the lost row is marked, its env is reset, and all other rows are bit-identical to a clean serial run",
    RIGHT_DATA: "every row is bit-identical to a clean serial run",
    STALE: "a row holds the result of an earlier call",
    WRONG_DATA: "a row holds values that no call of a clean run returns",
    SILENT: "the bad value is returned without an error",
    HANG: "no result within the limit",
    CLEAN_END: "the program ends or was ended, and 1 s later none of its processes is left",
    ORPHAN: "processes are left 1 s after the program ended",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cell of the table."""

    outcome: str
    note: str = ""
    seconds: float | None = None  # from the fault to the deciding event; None if there was none


@dataclass(slots=True)
class Record:
    """Record of a program's events and remaining processes."""

    events: list[Event] = field(default_factory=list)
    stderr: str = ""
    hung_after: str | None = None  # the last event before the limit passed; None if the program ended
    killed: bool = False  # by the watcher, as the scenario asks
    left: list[str] = field(default_factory=list)  # processes 1 s after the end
    dtype: str = "float32"

    def since_fault(self) -> Iterator[Event]:
        """Yield the events of calls from the fault up to `close`."""
        begun = [i for i, event in enumerate(self.events) if event["event"] == "begin"]
        for event in self.events[begun[-1] :] if begun else []:
            if event["event"] in ("returned", "raised") and event["call"] != "close":
                yield event

    def seconds(self, event: Event) -> float:
        begin = [e["at"] for e in self.events if e["event"] == "begin" and e["at"] <= event["at"]]
        return float(event["at"] - begin[-1])

    @property
    def hung_in_fault(self) -> bool:
        return self.hung_after not in (None, "closing", "closed", "end") and not self.killed


class Rule(Protocol):
    """Rule that decides the outcome of a scenario."""

    def __call__(self, record: Record) -> Verdict: ...

    def __str__(self) -> str:
        """Return the rule as text for the table."""


# -- rules ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ReportsCause:
    """The first call with a result must raise an error with every cause; or the row is marked and the run continues."""

    causes: tuple[str, ...]  # regular expressions, any case; the exception's type and text must have each
    who: tuple[int, ...] = (VICTIM,)
    all_rows_clean: bool = False  # including the victim's row, because the lost call had not started

    def __call__(self, record: Record) -> Verdict:
        events = list(record.since_fault())
        raised = next((event for event in events if event["event"] == "raised"), None)
        if raised is not None:
            return self.classify_error(raised, record)
        if record.hung_in_fault:
            return Verdict(HANG)
        return check_continued(events, record, () if self.all_rows_clean else self.who)

    def classify_error(self, raised: Event, record: Record) -> Verdict:
        """Classify an error as right, vague or wrong by its text."""
        matches = [bool(re.search(cause, raised["text"], re.IGNORECASE | re.DOTALL)) for cause in self.causes]
        named = all(_names(env_id, raised["text"] + record.stderr) for env_id in self.who)
        where = "" if raised["call"] == "step" else f" from {raised['call']}"
        seconds = record.seconds(raised)
        if not any(matches):
            return Verdict(WRONG_ERROR, f"{raised['type']}{where}", seconds)
        if not all(matches):
            return Verdict(VAGUE_ERROR, f"{raised['type']}, {sum(matches)} of {len(matches)} causes", seconds)
        return Verdict(RIGHT_ERROR if named else VAGUE_ERROR, raised["type"], seconds)

    def __str__(self) -> str:
        envs = " and ".join(str(env_id) for env_id in self.who)
        causes = " and ".join(f"`{cause}`" for cause in self.causes)
        otherwise = "every row is the clean run's" if self.all_rows_clean else "the run continues"
        return f"an error that matches {causes} and names env or worker {envs}; or {otherwise}"


@dataclass(frozen=True)
class RightData:
    """All returned rows must be those of the clean run; errors are accepted if their text matches."""

    errors: dict[str, str]  # maps calls to patterns for exceptions that are allowed, or required for `must_raise`
    must_raise: str = ""

    def __call__(self, record: Record) -> Verdict:
        events = list(record.since_fault())
        results = [event for event in events if event["event"] == "returned"]
        lost = tuple({i for e in results for i, row in enumerate(e["rows"] or []) if row["marked"]})
        if any(event["rows"] for event in results):
            verdict = check_continued(results, record, lost)
            if verdict.outcome not in GOOD:
                return verdict
        if record.hung_in_fault:
            return Verdict(HANG)
        for event in events:
            if (error := self.classify_error(event)) is not None:
                return Verdict(*error, record.seconds(event))
        return Verdict(CONTINUES if lost else RIGHT_DATA, "", record.seconds(events[0]))

    def classify_error(self, event: Event) -> tuple[str, str] | None:
        """Return the problem of a call that raised, or should have raised, or None."""
        if event["event"] == "returned":
            return (SILENT, "no error") if event["call"] == self.must_raise else None
        allowed = self.errors.get(event["call"])
        if allowed is None or not re.search(allowed, event["text"], re.IGNORECASE | re.DOTALL):
            return WRONG_ERROR, f"{event['type']} from {event['call']}"
        return None

    def __str__(self) -> str:
        allowed = "; ".join(f"{call} may raise what matches `{text}`" for call, text in self.errors.items())
        allowed = allowed.replace(f"{self.must_raise} may", f"{self.must_raise} must") if self.must_raise else allowed
        return (
            f"every row returned is the clean run's, or the lost env's row is marked{'; ' if allowed else ''}{allowed}"
        )


@dataclass(frozen=True)
class EndsWithNothingLeft:
    """The program must end within the limit and leave no processes."""

    def __call__(self, record: Record) -> Verdict:
        begun = next((e["at"] for e in record.events if e["event"] == "begin"), None)
        if record.hung_after is not None or begun is None:
            return Verdict(HANG)
        raised = next((e for e in record.events if e["event"] == "raised"), None)
        if raised is not None:
            return Verdict(WRONG_ERROR, f"{raised['type']} from {raised['call']}", record.seconds(raised))
        if record.left:
            return Verdict(ORPHAN, f"{len(record.left)} left")
        closed = next((e for e in record.events if e["event"] == "closed"), None)
        return Verdict(CLEAN_END, "", None if closed is None else record.seconds(closed))

    def __str__(self) -> str:
        return "no exception, an end within the limit, and none of its processes 1 s later"


def check_continued(events: list[Event], record: Record, lost: tuple[int, ...]) -> Verdict:
    """Check that lost rows are marked, their envs are reset, and all other rows are those of a clean run."""
    results = [event for event in events if event["rows"]]
    if not results:
        return Verdict(WRONG_ERROR, "no result and no error")
    for event in results:
        for env_id, row in enumerate(event["rows"]):
            if env_id not in lost and (wrong := wrong_data(row, env_id, event["step"], record.dtype)):
                return Verdict(wrong, f"env {env_id}", record.seconds(event))
    seconds = record.seconds(events[0])
    for row, later in ((results[0]["rows"][env_id], results[-1]["rows"][env_id]) for env_id in lost):
        if not (row["marked"] and row["ended"]) or not later["observation"][0] < FAULT_AT:
            return Verdict(SILENT, f"returns {_shown(row)}", seconds)
    return Verdict(CONTINUES if lost else RIGHT_DATA, "", seconds)


# -- rows and texts ------------------------------------------------------------------------------------------------
def wrong_data(row: dict[str, Any], env_id: int, step: int, dtype: str) -> str:
    """Return "" if the row is that of the clean run at this step, else its kind of error."""
    actions = [action_at(k) for k in range(1, step + 1)]
    clean = list(clean_run(env_id, SEED, actions, dtype))
    refused = list(clean_run(env_id, SEED, [*actions[:-1], NUM_ACTIONS - 1], dtype))[-1]
    observation, reward = clean[-1]
    if row["observation"] == observation and row["reward"] == reward:
        return ""
    earlier = [*clean[:-1], refused]
    stale = row["observation"] in [o for o, _ in earlier] or row["reward"] in [r for _, r in earlier]
    return STALE if stale else WRONG_DATA


def _names(env_id: int, text: str) -> bool:
    """Return whether the text names the env: "env 1", "Worker-1", "envs 0, 1" or similar."""
    lists = re.findall(r"\b(?:env|worker)s?[ \-#:=(\[]*(\d[\d, ]*)", text, re.IGNORECASE)
    return any(str(env_id) in re.findall(r"\d+", numbers) for numbers in lists)


def _shown(row: dict[str, Any]) -> str:
    values = ", ".join(f"{value:g}" for value in row["observation"])
    return f"[{values}], reward {row['reward']:g}"
