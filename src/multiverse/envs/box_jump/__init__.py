"""BoxJump: a team of boxes walks, jumps and builds a tower, in Box2D.

`parallel_env` (or `v0`) and `v1` make the two versions of the env, `published` the settings of published results; each
takes every argument of `BoxJump`.
"""

from typing import Any

from multiverse.envs.box_jump.env import BoxJump
from multiverse.envs.box_jump.setup import REWARD_MODES

__all__ = ["REWARD_MODES", "BoxJump", "parallel_env", "published", "v0", "v1"]


def v0(**arguments: Any) -> BoxJump:
    """Make version 0: one physics step of 1/40 s per action; the episode continues after a box has fallen."""
    return BoxJump(**arguments)


def v1(**arguments: Any) -> BoxJump:
    """Make version 1: six physics steps of 1/20 s per action; the episode ends when a box leaves the world."""
    return BoxJump(
        **{"physics_steps_per_action": 6, "physics_timestep_multiplier": 2.0, "termination_on_fall": True, **arguments}
    )


def published(**arguments: Any) -> BoxJump:
    """Make version 0 as in published results: eight boxes that observe their index, the best height and the time."""
    observed = {"agent_one_hot": True, "include_highest": True, "include_time": True}
    return v0(**{"num_boxes": 8, **observed, **arguments})


parallel_env = v0
