"""What one step of one agent is worth. A pure function of what happened."""

from __future__ import annotations

REACHED = 1.0
NOTHING_SEEN = -0.01
NEW_CELL = 0.025


def step_reward(reached: bool, watched: bool, sees_target: bool, new_cell: bool, lambda_fov: float) -> float:
    """The first of these that holds, and 0.025 more for a cell that is new to the agent:

    it stands where the target is: 1; it is inside the target's own view: -λ; it sees the target: 1 - λ; else -0.01.
    """
    if reached:
        reward = REACHED
    elif watched:
        reward = -lambda_fov
    elif sees_target:
        reward = 1.0 - lambda_fov
    else:
        reward = NOTHING_SEEN
    return reward + NEW_CELL if new_cell else reward
