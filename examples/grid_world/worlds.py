"""The grid worlds used for training. Worker processes import this module, so it must not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.wrappers import RecordEpisodeStatistics

from examples.grid_world.flatten_multi_agent_wrapper import FlattenMultiAgentWrapper
from examples.grid_world.video import EpisodeVideos
from multiverse.envs.grid_world import PRESETS, GridWorldEnvMultiAgent

TASKS = ("reach", "search", "watch")
REACH_STEPS = {"small": 25, "medium": 50, "large": 100}
"""Maximum episode length of `reach` and `search`. With the presets' limits, a random team reaches the target too."""

WIDEST_VIEW = 7
"""Width in cells of an observer's view from its highest altitude."""


def world_arguments(preset: str, task: str) -> dict[str, Any]:
    """Return the constructor arguments of a `GridWorldEnvMultiAgent`.

    `watch` is the unchanged preset: seeing the target is rewarded at every step and reaching it only once, so the best
    team stays within sight. `search` rewards only reaching the target, in less time: a step in the target's view has
    reward 0 (λ = 0), and any other step costs 0.01. No observer sees the target from outside that view. `reach` is
    `search` with the target's position observed. Grid, obstacles, team and target movement are always the preset's.
    """
    if task == "watch":
        return dict(PRESETS[preset])
    return {
        **PRESETS[preset],
        "max_steps": REACH_STEPS[preset],
        "lambda_fov": 0.0,
        "show_target_coords": task == "reach",
        "target_config": {"box_cells": WIDEST_VIEW},
    }


def make_env(preset: str = "small", task: str = "reach", videos: Path | None = None) -> gymnasium.Env[Any, Any]:
    """Return a flattened grid world that reports episode returns; with `videos`, it records some episodes."""
    # All envs of a Stable-Baselines3 vector env must have the same render mode. Frames are only drawn on request.
    world = GridWorldEnvMultiAgent(**world_arguments(preset, task), render_mode="rgb_array")
    # Not a VecMonitor of Stable-Baselines3 around all envs, with which every worker would load torch.
    env: gymnasium.Env[Any, Any] = RecordEpisodeStatistics(FlattenMultiAgentWrapper(world))
    return env if videos is None else EpisodeVideos(env, videos, name="env-0")
