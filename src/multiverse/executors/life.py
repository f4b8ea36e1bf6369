"""What keeps a worker going, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from multiverse.core.errors import WorkerDied

OUT_OF_MEMORY = 87
"""The exit code of a worker that has ended itself because one of its envs ran out of memory."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended."""

    cause: str
    hint: str = ""
    peak_rss_bytes: int | None = None
    error: type[WorkerDied] = WorkerDied  # what the caller is told it with
    out_of_memory: bool = False  # it has ended itself, and its link may say which env was the cause


@dataclass(frozen=True, slots=True)
class State:
    """Of a worker that does not answer: what can be said of it, and its Python stack if it can be had."""

    text: str
    stack: str = ""
    rss_bytes: int | None = None


class Life(Protocol):
    """What keeps a worker going: a thread or a process."""

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable at its end."""

    @property
    def pid(self) -> int | None:
        """Of its process, if it has one of its own."""

    def death(self) -> Death: ...

    def state(self) -> State: ...

    def end(self, deadline: float) -> bool:
        """Wait for its end until the deadline, then force it; False where that is not possible and it lives on."""
