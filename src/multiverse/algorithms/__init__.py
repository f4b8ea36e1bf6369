"""Algorithms by name; each is defined in one file.

A new algorithm is a file with a class that has a `Config` (see `algorithm.Algorithm`), and a line in `ALGORITHMS`. An
algorithm of yours is named `module:Class`, on the command line and in Python, and can derive from those here:

    from multiverse.algorithms import PPO, Loss

    class Mine(PPO):
        def loss(self, out, batch):
            return super().loss(out, batch).plus(confidence=0.1 * (out.log_prob**2).mean())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import colon_spelling, module_named
from multiverse.core.wording import nearest

if TYPE_CHECKING:  # for editors and type checkers; imported on demand
    from multiverse.algorithms.public import *  # noqa: F403

ALGORITHMS = {
    "ppo": "multiverse.algorithms.ppo:PPO",
    "a2c": "multiverse.algorithms.a2c:A2C",
    "taac": "multiverse.algorithms.taac:TAAC",
    "sac": "multiverse.algorithms.sac:SAC",
    "td3": "multiverse.algorithms.td3:TD3",
    "discrete_sac": "multiverse.algorithms.discrete_sac:DiscreteSAC",
    "dqn": "multiverse.algorithms.dqn:DQN",
}
"""Classes by name; imported on demand, and without torch until an algorithm is created."""

DEFAULT_ALGORITHM = next(iter(ALGORITHMS))
"""The algorithm that is used by default."""


def __getattr__(name: str) -> Any:
    public = importlib.import_module("multiverse.algorithms.public") if not name.startswith("_") else None
    if public is None or name not in public.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(public, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *importlib.import_module("multiverse.algorithms.public").__all__])


def known_name(name: str) -> str:
    """Return the name of a registered algorithm, given in any case; other names unchanged."""
    plain = name.lower().replace("-", "_")
    return plain if plain in ALGORITHMS else name


def algorithm_class(name: str) -> Any:
    """Return the class of the algorithm with this name or `module:Class`."""
    module, _, attribute = ALGORITHMS.get(known_name(name), name).partition(":")
    if not (module and attribute):
        near = colon_spelling(name) or next(iter(nearest(name, ALGORITHMS)), "")
        meant = f"; did you mean {near}?" if near else ""
        known = f"one of {', '.join(ALGORITHMS)}, or your module:Class"
        raise InvalidRequest(f"there is no algorithm {name!r}: {known}{meant}")
    try:
        kind = getattr(module_named(module), attribute)
    except InvalidRequest as error:
        raise InvalidRequest(f"algorithm {name!r}: {error}") from error
    except Exception as error:  # raised by the user's module
        if name in ALGORITHMS:
            raise
        raise InvalidRequest(f"algorithm {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(kind):
        raise InvalidRequest(f"algorithm {name!r} is {type(kind).__name__}: expected a class")
    return kind


def section_of(name: str) -> str:
    """Return the section of config files with the settings of this algorithm."""
    return name if name in ALGORITHMS else "settings"
