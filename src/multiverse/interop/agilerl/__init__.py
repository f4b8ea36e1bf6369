"""AgileRL's `AsyncPettingZooVecEnv` on our engine: only the import changes.

`from multiverse.interop.agilerl import AsyncPettingZooVecEnv`

It is imported at first use: workers load `env_side`, and must not load AgileRL and torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

if TYPE_CHECKING:
    from multiverse.interop.agilerl.async_vec_env import AsyncPettingZooVecEnv
    from multiverse.interop.agilerl.engine import AsyncState, Observations

__all__ = [
    "AlreadyPendingCallError",
    "AsyncPettingZooVecEnv",
    "AsyncState",
    "ClosedEnvironmentError",
    "NoAsyncCallError",
    "Observations",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from multiverse.interop.agilerl import async_vec_env

    return getattr(async_vec_env, name)
