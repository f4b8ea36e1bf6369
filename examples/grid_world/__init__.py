"""The first document, working: an AEC grid world, flattened, trained over many envs. README.md walks through it.

    from examples.grid_world import AsyncPettingZooVecEnv, DummyVecEnv, FlattenMultiAgentWrapper
    from examples.grid_world import GridWorldEnvMultiAgent, SubprocVecEnv

Names are imported when they are first used: worker processes come by here too, and must not load torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME_OF = {
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
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
