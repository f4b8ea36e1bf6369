"""Tasks: how a meta-RL env is told which goal, velocity or direction its next episode has."""

from __future__ import annotations

from typing import Any

import gymnasium


def reset_to_task(env: Any, seed: int | None, options: dict[str, Any] | None, task: Any) -> Any:
    """Reset `env` to `task`: through its `reset_task` hook if it has one, else as `options["task"]`."""
    hook = _hook(env)
    if hook is not None:
        hook(task)
        return env.reset(seed=seed, options=options)
    return env.reset(seed=seed, options={**(options or {}), "task": task})


def _hook(env: Any) -> Any:
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr("reset_task") if env.has_wrapper_attr("reset_task") else None
    return getattr(env, "reset_task", None) or getattr(env.unwrapped, "reset_task", None)
