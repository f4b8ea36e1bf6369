"""What belongs to the whole process: global random generators, environment, working directory, settings."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np


def seed_global_generators(seed: int) -> None:
    """Put numpy's and Python's global generators into a known state."""
    np.random.seed(seed % 2**32)
    random.seed(seed)


def global_generators() -> tuple[tuple[str, Any], ...]:
    """The generators that everybody shares, by the name a user knows them by, as they stand now."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return ("np.random", (name, np.asarray(keys).tobytes(), *rest)), ("random", random.getstate())


def moved_generators(before: tuple[tuple[str, Any], ...]) -> list[str]:
    """The names of those that have been drawn from, or seeded, since."""
    return [name for (name, old), (_, new) in zip(before, global_generators()) if old != new]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What an env may not change for its neighbours."""

    environ: dict[str, str]
    cwd: str
    interrupt_handler: Any
    float_errors: dict[str, Any]

    @classmethod
    def now(cls) -> ProcessState:
        return cls(dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT), dict(np.geterr()))

    def changes_of_environment(self) -> str:
        """Variables by name only, since values may be secrets; and the working directory."""
        now = ProcessState.now()
        names = sorted(
            name for name in {*self.environ, *now.environ} if self.environ.get(name) != now.environ.get(name)
        )
        found = [f"environment variable{'s' * (len(names) > 1)} {', '.join(names)}"] if names else []
        found += [f"working directory {self.cwd} → {now.cwd}"] if self.cwd != now.cwd else []
        return "; ".join(found)

    def changes_of_settings(self) -> str:
        now = ProcessState.now()
        found = [f"np.seterr {self.float_errors} → {now.float_errors}"] if self.float_errors != now.float_errors else []
        found += ["the handler of Ctrl-C (SIGINT)"] if self.interrupt_handler != now.interrupt_handler else []
        return "; ".join(found)

    def restore(self) -> None:
        """As it was, for the checks that follow."""
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.cwd)
        if signal.getsignal(signal.SIGINT) != self.interrupt_handler:
            signal.signal(signal.SIGINT, self.interrupt_handler)
        np.seterr(**self.float_errors)
