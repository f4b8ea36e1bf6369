"""Gymnasium's vector envs with our engine underneath: replace `gymnasium.vector` by this module in the import.

`from multiverse.interop.gymnasium import AsyncVectorEnv, SyncVectorEnv`
"""

from __future__ import annotations

from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from multiverse.interop.gymnasium.vector_envs import AsyncVectorEnv, SyncVectorEnv

__all__ = ["AsyncState", "AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv"]
