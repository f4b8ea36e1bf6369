"""What a step is worth: every mode of BoxJump, for one physics step."""

from __future__ import annotations

from multiverse.envs.box_jump.world import BELOW_FLOOR, World

ALL_AT_ONCE = ("highest", "highest_stable")
"""Modes that pay what was gained; the others pay in every step, hence a share of the episode's steps."""


def shown_best(world: World) -> float:
    """The best height so far, in the eyes of the reward."""
    return world.best_stable if world.setup.reward_mode == "highest_stable" else world.best


def step_rewards(world: World, gained: float) -> list[float]:
    """Each box's reward for the physics step that has been pushed for; `gained`: of the best height.

    A box outside the world gets `penalty_fall_termination` where that ends the episode; one below the floor pays its
    part of `penalty_fall`, in place of its reward.
    """
    setup = world.setup
    share = 1 / (setup.max_timestep * setup.physics_steps_per_action)
    scale = (1.0 if setup.reward_mode in ALL_AT_ONCE else share) / setup.num_boxes
    rewards = [worth * scale for worth in _worths(world, gained)]
    for i, height in enumerate(world.heights):
        if height < BELOW_FLOOR:
            rewards[i] = -setup.penalty_fall * share
    if setup.termination_on_fall:
        for i, out in enumerate(world.outside()):
            if out:
                rewards[i] = setup.penalty_fall_termination
    return rewards


def _worths(world: World, gained: float) -> list[float]:
    mode, heights = world.setup.reward_mode, world.heights
    if mode == "height_sq":
        return [height**2 for height in heights]
    if mode == "stable_sum":
        return [50 * height**2 if stable else 0.0 for height, stable in zip(heights, world.stable)]
    return [_shared_worth(world, gained)] * len(heights)


def _shared_worth(world: World, gained: float) -> float:
    """What every box gets alike."""
    mode = world.setup.reward_mode
    if mode in ALL_AT_ONCE:
        return gained
    top = world.stable_top if "stable" in mode else max(world.heights)
    return 10 * top**2 if mode.endswith("_sq") else 50 * top
