"""The judge: from what was seen of a program to one outcome. It knows no library, and the same rule holds for all."""

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
GOES_ON, RIGHT_DATA, CLEAN_END = "continues", "right data", "clean end"
GOOD = frozenset({RIGHT_ERROR, GOES_ON, RIGHT_DATA, CLEAN_END})

MEANING = {
    RIGHT_ERROR: "an exception whose text states the cause; it, or stderr, names the env or worker",
    VAGUE_ERROR: "an exception that states the cause but not the env, or only one of two causes",
    WRONG_ERROR: "an exception that does not state the cause; its type is given",
    GOES_ON: "the lost row is marked, its env is reset, and all other rows are bit-identical to a clean serial run",
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
    seconds: float | None = None  # from the fault to what decided; None where nothing ever came


@dataclass(slots=True)
class Seen:
    """What the one that watched a program saw of it."""

    events: list[Event] = field(default_factory=list)
    stderr: str = ""
    hung_after: str | None = None  # the last event before the limit passed; None if the program ended
    killed: bool = False  # by the watcher, as the scenario asks
    left: list[str] = field(default_factory=list)  # processes 1 s after the end
    dtype: str = "float32"

    def since_fault(self) -> Iterator[Event]:
        """What the program's calls gave from the fault on, up to its close."""
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
    """How one scenario is decided."""

    def __call__(self, seen: Seen) -> Verdict: ...

    def __str__(self) -> str:
        """For the reader of the table."""


# -- rules ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SaysSo:
    """The first call that gives anything must raise, with every cause; or the row is marked and the run goes on."""

    causes: tuple[str, ...]  # regular expressions, any case; the exception's type and text must have each
    who: tuple[int, ...] = (VICTIM,)
    all_rows_clean: bool = False  # also the victim's: what was lost had not begun

    def __call__(self, seen: Seen) -> Verdict:
        events = list(seen.since_fault())
        raised = next((event for event in events if event["event"] == "raised"), None)
        if raised is not None:
            return self.of_error(raised, seen)
        if seen.hung_in_fault:
            return Verdict(HANG)
        return goes_on(events, seen, () if self.all_rows_clean else self.who)

    def of_error(self, raised: Event, seen: Seen) -> Verdict:
        """Right, vague or wrong, by what it says."""
        found = [bool(re.search(cause, raised["text"], re.IGNORECASE | re.DOTALL)) for cause in self.causes]
        named = all(_names(env_id, raised["text"] + seen.stderr) for env_id in self.who)
        where = "" if raised["call"] == "step" else f" from {raised['call']}"
        seconds = seen.seconds(raised)
        if not any(found):
            return Verdict(WRONG_ERROR, f"{raised['type']}{where}", seconds)
        if not all(found):
            return Verdict(VAGUE_ERROR, f"{raised['type']}, {sum(found)} of {len(found)} causes", seconds)
        return Verdict(RIGHT_ERROR if named else VAGUE_ERROR, raised["type"], seconds)

    def __str__(self) -> str:
        envs = " and ".join(str(env_id) for env_id in self.who)
        causes = " and ".join(f"`{cause}`" for cause in self.causes)
        otherwise = "every row is the clean run's" if self.all_rows_clean else "the run continues"
        return f"an error that matches {causes} and names env or worker {envs}; or {otherwise}"


@dataclass(frozen=True)
class RightData:
    """Whatever is returned must be the clean run's; errors are fine where they say what they must."""

    errors: dict[str, str]  # call → what its exception may (and, where `must_raise`, must) say
    must_raise: str = ""

    def __call__(self, seen: Seen) -> Verdict:
        events = list(seen.since_fault())
        results = [event for event in events if event["event"] == "returned"]
        lost = tuple({i for e in results for i, row in enumerate(e["rows"] or []) if row["marked"]})
        if any(event["rows"] for event in results):
            verdict = goes_on(results, seen, lost)
            if verdict.outcome not in GOOD:
                return verdict
        if seen.hung_in_fault:
            return Verdict(HANG)
        for event in events:
            if (error := self.of_error(event)) is not None:
                return Verdict(*error, seen.seconds(event))
        return Verdict(GOES_ON if lost else RIGHT_DATA, "", seen.seconds(events[0]))

    def of_error(self, event: Event) -> tuple[str, str] | None:
        """What is wrong with a call that raised, or with one that should have."""
        if event["event"] == "returned":
            return (SILENT, "no error") if event["call"] == self.must_raise else None
        allowed = self.errors.get(event["call"])
        if allowed is None or not re.search(allowed, event["text"], re.IGNORECASE | re.DOTALL):
            return WRONG_ERROR, f"{event['type']} from {event['call']}"
        return None

    def __str__(self) -> str:
        told = "; ".join(f"{call} may raise what matches `{text}`" for call, text in self.errors.items())
        told = told.replace(f"{self.must_raise} may", f"{self.must_raise} must") if self.must_raise else told
        return f"every row returned is the clean run's, or the lost env's row is marked{'; ' if told else ''}{told}"


@dataclass(frozen=True)
class EndsWithNothingLeft:
    """The program's end takes everything with it."""

    def __call__(self, seen: Seen) -> Verdict:
        begun = next((e["at"] for e in seen.events if e["event"] == "begin"), None)
        if seen.hung_after is not None or begun is None:
            return Verdict(HANG)
        raised = next((e for e in seen.events if e["event"] == "raised"), None)
        if raised is not None:
            return Verdict(WRONG_ERROR, f"{raised['type']} from {raised['call']}", seen.seconds(raised))
        if seen.left:
            return Verdict(ORPHAN, f"{len(seen.left)} left")
        closed = next((e for e in seen.events if e["event"] == "closed"), None)
        return Verdict(CLEAN_END, "", None if closed is None else seen.seconds(closed))

    def __str__(self) -> str:
        return "no exception, an end within the limit, and none of its processes 1 s later"


def goes_on(events: list[Event], seen: Seen, lost: tuple[int, ...]) -> Verdict:
    """Are the lost rows marked, do their envs begin anew, and are all others as if nothing had happened?"""
    results = [event for event in events if event["rows"]]
    if not results:
        return Verdict(WRONG_ERROR, "no result and no error")
    for event in results:
        for env_id, row in enumerate(event["rows"]):
            if env_id not in lost and (wrong := wrong_data(row, env_id, event["step"], seen.dtype)):
                return Verdict(wrong, f"env {env_id}", seen.seconds(event))
    seconds = seen.seconds(events[0])
    for row, later in ((results[0]["rows"][env_id], results[-1]["rows"][env_id]) for env_id in lost):
        if not (row["marked"] and row["ended"]) or not later["observation"][0] < FAULT_AT:
            return Verdict(SILENT, f"returns {_shown(row)}", seconds)
    return Verdict(GOES_ON if lost else RIGHT_DATA, "", seconds)


# -- what rows and texts say ---------------------------------------------------------------------------------------
def wrong_data(row: dict[str, Any], env_id: int, step: int, dtype: str) -> str:
    """Empty if the row is the clean run's for that step; otherwise what it is."""
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
    """Does the text say "env 1", "Worker-1", "envs 0, 1" or the like?"""
    lists = re.findall(r"\b(?:env|worker)s?[ \-#:=(\[]*(\d[\d, ]*)", text, re.IGNORECASE)
    return any(str(env_id) in re.findall(r"\d+", found) for found in lists)


def _shown(row: dict[str, Any]) -> str:
    values = ", ".join(f"{value:g}" for value in row["observation"])
    return f"[{values}], reward {row['reward']:g}"
