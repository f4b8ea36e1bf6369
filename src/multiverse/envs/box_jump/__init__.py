"""BoxJump: a team of boxes that walk and jump builds a tower, in Box2D.

`parallel_env` (or `v0`) and `v1` make the env's two versions, `published` the settings that published results are for;
each takes every argument of `BoxJump`.
"""

from typing import Any

from multiverse.envs.box_jump.env import BoxJump
from multiverse.envs.box_jump.setup import REWARD_MODES

__all__ = ["REWARD_MODES", "BoxJump", "parallel_env", "published", "v0", "v1"]


def v0(**arguments: Any) -> BoxJump:
    """Version 0: one physics step of 1/40 s an action; a box that falls is lost, and the episode goes on."""
    return BoxJump(**arguments)


def v1(**arguments: Any) -> BoxJump:
    """Version 1: six physics steps of 1/20 s an action; the episode ends when a box leaves the world."""
    return BoxJump(
        **{"physics_steps_per_action": 6, "physics_timestep_multiplier": 2.0, "termination_on_fall": True, **arguments}
    )


def published(**arguments: Any) -> BoxJump:
    """Version 0 as in published results: eight boxes, shown who they are, the best height and the time."""
    seen = {"agent_one_hot": True, "include_highest": True, "include_time": True}
    return v0(**{"num_boxes": 8, **seen, **arguments})


parallel_env = v0
