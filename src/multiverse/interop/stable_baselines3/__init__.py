"""Stable-Baselines3's vector envs with our engine underneath: change the import, keep the rest.

`from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv`
"""

from __future__ import annotations

from multiverse.interop.stable_baselines3.vec_envs import DummyVecEnv, SubprocVecEnv

__all__ = ["DummyVecEnv", "SubprocVecEnv"]
