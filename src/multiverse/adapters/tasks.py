"""Tasks: how a meta-RL env is told which goal, velocity or direction its next episode has."""

from __future__ import annotations

from typing import Any

import gymnasium


def reset_to_task(
    env: gymnasium.Env[Any, Any], seed: int | None, options: dict[str, Any] | None, task: Any
) -> tuple[Any, dict[str, Any]]:
    """Reset `env` to `task`: through its `reset_task` hook if it has one, else as `options["task"]`."""
    if env.has_wrapper_attr("reset_task"):
        env.get_wrapper_attr("reset_task")(task)
        return env.reset(seed=seed, options=options)
    return env.reset(seed=seed, options={**(options or {}), "task": task})
