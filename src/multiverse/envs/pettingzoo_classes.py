"""PettingZoo's base classes, or one sentence about how to get them. The built-in multi-agent envs start from here."""

from __future__ import annotations

try:
    from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(
        "this env is a PettingZoo env, and PettingZoo is not installed: pip install 'multiverse[pettingzoo]'"
    ) from error

__all__ = ["AECEnv", "ParallelEnv"]
