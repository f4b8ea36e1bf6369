"""Which grid world is trained in, and how one env of it is built. Worker processes import this: no torch in here."""

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
"""Steps of an episode when the target is to be reached: at the presets' own limits chance alone gets a team there."""

WIDEST_VIEW = 7
"""Cells along one side of what an observer sees from its highest altitude."""


def world_arguments(preset: str, task: str) -> dict[str, Any]:
    """Constructor arguments of a `GridWorldEnvMultiAgent`.

    `watch` is the preset as it is: seeing the target pays at every step and reaching it only once, so the best team
    stays within sight. In `search` only reaching it pays: nobody sees the target from outside the target's own view,
    where λ = 0 makes a step worth nothing, and everywhere else it costs 0.01; and there is less time. `reach` is that
    with the target's place shown. Grid, obstacles, team and the target's ways are the preset's in all of them.
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
    """One flattened grid world, which tells the return of an episode at its end; with `videos` it records some."""
    # All envs of a Stable-Baselines3 vector env must have one render mode. None is drawn unless somebody asks.
    world = GridWorldEnvMultiAgent(**world_arguments(preset, task), render_mode="rgb_array")
    # Here, and not in a VecMonitor of Stable-Baselines3's around all envs: that has every worker load torch.
    env: gymnasium.Env[Any, Any] = RecordEpisodeStatistics(FlattenMultiAgentWrapper(world))
    return env if videos is None else EpisodeVideos(env, videos, name="env-0")
