"""Stable-Baselines3's vector envs on our engine: only the import changes.

`from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv`

They are imported at first use: workers load `env_side`, and must not load Stable-Baselines3 and torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiverse.interop.stable_baselines3.vec_envs import DummyVecEnv, SubprocVecEnv

__all__ = ["DummyVecEnv", "SubprocVecEnv"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from multiverse.interop.stable_baselines3 import vec_envs
    except ModuleNotFoundError as error:
        if error.name != "stable_baselines3":
            raise
        problem = "this needs Stable-Baselines3, which is not installed: pip install 'multiverse[peers]'"
        raise ModuleNotFoundError(problem, name=error.name) from error

    return getattr(vec_envs, name)
