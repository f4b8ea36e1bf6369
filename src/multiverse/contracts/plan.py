"""The plan: what was chosen and why. Everything here that can change results is fixed once and can be reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from multiverse.contracts.errors import InvalidRequest

ExecutorName = Literal["auto", "serial", "thread", "process", "hybrid"]
StartMethod = Literal["forkserver", "fork", "spawn"]
Autoreset = Literal["next_step", "same_step", "disabled"]
Waiting = Literal["auto", "spin", "park"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a worker may take before that is an error; None waits for ever."""

    reply_s: float | None = 60.0
    reset_s: float | None = 300.0
    close_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("reply_s", "reset_s", "close_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidRequest(f"{name[:-2]}_timeout_s={value}: more than 0, or None for no limit")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a vector env runs: pass it back as `make_vec(..., plan=envs.plan)` to run the same way again."""

    executor: Literal["serial", "thread", "process", "hybrid"]
    workers: int  # threads or processes; the caller's own share in serial and hybrid is not one
    start_method: StartMethod | None  # None where nothing is started
    waiting: Literal["spin", "park"]
    why: str

    def __str__(self) -> str:
        started = f", {self.workers} worker{'s' * (self.workers != 1)}" if self.workers else ""
        method = f" ({self.start_method})" if self.start_method else ""
        return f"{self.executor}{started}{method}: {self.why}"
