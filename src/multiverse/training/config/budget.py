"""Budget of a run, and the clock that counts what it has used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from multiverse.core.errors import InvalidRequest

PARTS = ("act", "step", "learn", "evaluate", "save", "other")
"""Parts of the time of a run."""


@dataclass(slots=True)
class Clock:
    """Counts and times of a run, over all its sessions."""

    env_steps: int = 0
    episodes: int = 0
    updates: int = 0
    seconds: float = 0.0
    lost_steps: int = 0
    act_s: float = 0.0  # of these seconds: choosing actions, …
    step_s: float = 0.0
    learn_s: float = 0.0
    evaluate_s: float = 0.0
    save_s: float = 0.0
    other_s: float = 0.0  # … and the rest: hooks, metrics

    def __post_init__(self) -> None:
        self.other_s += self.seconds - sum(getattr(self, f"{part}_s") for part in PARTS)  # 0.1 had no parts

    def spend(self, **parts_s: float) -> None:
        """Add time to these parts."""
        for part, part_s in parts_s.items():
            setattr(self, f"{part}_s", getattr(self, f"{part}_s") + part_s)
            self.seconds += part_s

    def shares_since(self, before: Clock) -> dict[str, float]:
        """Return the share of each part (0 to 1) of the time since another clock."""
        spent = {part: getattr(self, f"{part}_s") - getattr(before, f"{part}_s") for part in PARTS}
        return {part: part_s / (self.seconds - before.seconds or 1.0) for part, part_s in spent.items()}

    def state(self) -> dict[str, Any]:
        return asdict(self)


class Stopwatch:
    """Adds the time that passes to the parts of a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._looked_at = clock, time.perf_counter()

    @contextmanager
    def spending(self, part: str) -> Iterator[None]:
        self.lap()
        try:
            yield
        finally:
            self.lap(part)

    def lap(self, rest: str = "other", **parts_s: float) -> None:
        """Add the time since the last lap to these parts, and the remainder to the part `rest`."""
        now, before = time.perf_counter(), self._looked_at
        self._looked_at = now
        self._clock.spend(**parts_s, **{rest: now - before - sum(parts_s.values())})


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; it ends at the first one that is reached."""

    env_steps: int | None = None
    episodes: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise InvalidRequest("a run needs a budget: env_steps, episodes or minutes")
        for name, value in given.items():
            if not value > 0:
                raise InvalidRequest(f"{name}={value}: expected more than 0")

    def spent(self, clock: Clock) -> float:
        """Return the share of the budget that is used, from 0 to 1."""
        shares = [
            clock.env_steps / self.env_steps if self.env_steps else 0.0,
            clock.episodes / self.episodes if self.episodes else 0.0,
            clock.seconds / (60.0 * self.minutes) if self.minutes else 0.0,
        ]
        return min(1.0, max(shares))

    def spent_before_last_rollout(self, clock: Clock) -> float:
        """Return the share that was used before the last rollout, if all rollouts have the same length."""
        earlier = (clock.updates - 1) / clock.updates if clock.updates else 0.0
        counts = {"env_steps": round(clock.env_steps * earlier), "episodes": round(clock.episodes * earlier)}
        return self.spent(replace(clock, **counts, seconds=clock.seconds * earlier))

    def seconds_left(self, clock: Clock, since: Clock) -> float:
        """Estimate the remaining time from the pace since a moment (`since`): the pace changes, for example when a
        replay algorithm begins to learn. Evaluations are rare, so their time is averaged over the whole run."""
        left = [60.0 * self.minutes - clock.seconds] if self.minutes else []
        for name in ("env_steps", "episodes"):
            limit, done = getattr(self, name), getattr(clock, name)
            if limit and done:
                before = since if done > getattr(since, name) else Clock()
                took_s = (clock.seconds - clock.evaluate_s) - (before.seconds - before.evaluate_s)
                left.append((limit - done) * (took_s / (done - getattr(before, name)) + clock.evaluate_s / done))
        return max(0.0, min(left, default=float("inf")))
