"""Document 000: an AEC grid world, flattened, and trained on many environments in parallel. See README.md.

    from examples.grid_world import AsyncPettingZooVecEnv, DummyVecEnv, FlattenMultiAgentWrapper
    from examples.grid_world import GridWorldEnvMultiAgent, SubprocVecEnv

Names are imported on first use: worker processes import this package too, and must not load torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULE_OF = {
    "AsyncPettingZooVecEnv": "multiverse.interop.agilerl",
    "DummyVecEnv": "multiverse.interop.stable_baselines3",
    "FlattenMultiAgentWrapper": "examples.grid_world.flatten_multi_agent_wrapper",
    "GridWorldEnvMultiAgent": "multiverse.envs.grid_world",
    "SubprocVecEnv": "multiverse.interop.stable_baselines3",
}

__all__ = [
    "AsyncPettingZooVecEnv",
    "DummyVecEnv",
    "FlattenMultiAgentWrapper",
    "GridWorldEnvMultiAgent",
    "SubprocVecEnv",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
