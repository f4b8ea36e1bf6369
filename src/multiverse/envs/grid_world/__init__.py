"""A grid world for several agents, which search for a moving target on the ground and in the air.

`GridWorldEnvMultiAgent` is the turn-based env (PettingZoo AEC), `GridWorldParallel` the same world with agents that act
at the same time; `make(preset=...)` makes either in one of the sizes in `PRESETS`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from multiverse.core.errors import InvalidRequest
from multiverse.envs.grid_world.envs import GridWorldEnvMultiAgent, GridWorldParallel

__all__ = ["PRESETS", "GridWorldEnvMultiAgent", "GridWorldParallel", "make"]


def _preset(size: int, max_steps: int, num_obstacles: int) -> Mapping[str, Any]:
    return MappingProxyType(
        {"size": size, "max_steps": max_steps, "enable_obstacles": True, "num_obstacles": num_obstacles}
    )


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"small": _preset(10, 250, 3), "medium": _preset(15, 250, 4), "large": _preset(20, 500, 5)}
)
"""Constructor arguments of each preset: size, steps and obstacles."""


def make(
    preset: str = "small", *, parallel: bool = False, **arguments: Any
) -> GridWorldEnvMultiAgent | GridWorldParallel:
    """Make a grid world with the arguments of a preset; keywords add to them or replace them.

    `parallel=True` makes the `GridWorldParallel` of the same world.
    """
    if preset not in PRESETS:
        raise InvalidRequest(f"preset={preset!r}: expected one of {', '.join(map(repr, PRESETS))}")
    made = GridWorldParallel if parallel else GridWorldEnvMultiAgent
    return made(**{**PRESETS[preset], **arguments})
