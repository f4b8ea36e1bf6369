"""AgileRL's `AsyncPettingZooVecEnv` with our engine underneath: change the import, keep the rest.

`from multiverse.interop.agilerl import AsyncPettingZooVecEnv`
"""

from __future__ import annotations

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from multiverse.interop.agilerl.async_vec_env import AsyncPettingZooVecEnv, Observations
from multiverse.interop.agilerl.peer import AsyncState

__all__ = [
    "AlreadyPendingCallError",
    "AsyncPettingZooVecEnv",
    "AsyncState",
    "ClosedEnvironmentError",
    "NoAsyncCallError",
    "Observations",
]
