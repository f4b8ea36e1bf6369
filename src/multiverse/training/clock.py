"""What a run has spent, and what it may spend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from multiverse.contracts.errors import InvalidRequest


@dataclass(slots=True)
class Clock:
    """Counts over the whole life of a run, resumes included."""

    env_steps: int = 0
    episodes: int = 0
    updates: int = 0
    seconds: float = 0.0
    lost_steps: int = 0

    def state(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Budget:
    """Whatever is spent first ends the run."""

    env_steps: int | None = None
    episodes: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise InvalidRequest("a run needs a budget: env_steps, episodes or minutes")
        for name, value in given.items():
            if not value > 0:
                raise InvalidRequest(f"{name}={value}: more than 0")

    def spent(self, clock: Clock) -> float:
        """From 0 to 1; 1 is all of it."""
        shares = [
            clock.env_steps / self.env_steps if self.env_steps else 0.0,
            clock.episodes / self.episodes if self.episodes else 0.0,
            clock.seconds / (60.0 * self.minutes) if self.minutes else 0.0,
        ]
        return min(1.0, max(shares))

    def seconds_left(self, clock: Clock) -> float:
        """As far as one can tell from the pace so far."""
        share = self.spent(clock)
        return clock.seconds * (1.0 - share) / share if share else float("inf")
