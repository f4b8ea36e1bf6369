"""What the drop-in takes from AgileRL where that is installed: two base classes and an enum, for `isinstance` and `==`.

AgileRL's training loops ask `isinstance(env, PettingZooVecEnv)`, so the base must be there whether or not the program
has imported AgileRL by then; that import brings torch, in the caller alone. Where it is not installed nothing is
imported. Nothing of theirs is ever called.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

from gymnasium.vector.async_vector_env import AsyncState as GymnasiumState

log = logging.getLogger("multiverse")


def _peer() -> Any:
    """AgileRL's module; None where it is not installed, or its own dependencies are not."""
    try:
        return importlib.import_module("agilerl.vector.pz_async_vec_env")
    except ImportError as error:
        if error.name != "agilerl":
            log.warning("agilerl cannot be imported (%s): isinstance(env, PettingZooVecEnv) will be false", error)
        return None


_module = _peer()
VecEnvBase: Any = getattr(_module, "PettingZooVecEnv", object)
ObservationsBase: Any = getattr(_module, "Observations", Mapping)  # theirs is one too
AsyncState: Any = getattr(_module, "AsyncState", GymnasiumState)  # equal by name and value
"""What is under way: DEFAULT (nothing), WAITING_RESET, WAITING_STEP or WAITING_CALL."""
