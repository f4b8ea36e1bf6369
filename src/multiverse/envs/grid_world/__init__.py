"""A grid world for several agents: on the ground and in the air they look for a target that moves.

`GridWorldEnvMultiAgent` is the turn-based env (PettingZoo AEC), `GridWorldParallel` the same world with all agents
acting at once, `make(preset=...)` either of them in one of the sizes in `PRESETS`.
"""

from multiverse.envs.grid_world.aec import GridWorldEnvMultiAgent
from multiverse.envs.grid_world.parallel import GridWorldParallel
from multiverse.envs.grid_world.presets import PRESETS, make

__all__ = ["PRESETS", "GridWorldEnvMultiAgent", "GridWorldParallel", "make"]
