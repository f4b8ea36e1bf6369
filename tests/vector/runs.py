"""Runs of vector envs for comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.equality import assert_same


def action(env_id: int, step: int) -> int:
    """The action of one env at one step, for envs with three actions."""
    return (3 * env_id + 2 * step) % 3


def actions(env_ids: Any, step: int) -> Any:
    return np.array([action(int(i), step) for i in env_ids])


def assert_same_run(envs: Any, reference: Any, steps: int, seed: int = 7) -> None:
    """Equal seeds and actions give equal results. Ended episodes are reset by mask unless the mode resets them."""
    num_envs, disabled = reference.num_envs, reference.metadata["autoreset_mode"].name == "DISABLED"
    reference.action_space.seed(seed)
    assert_same(envs.reset(seed=seed), reference.reset(seed=seed), "reset")
    for k in range(steps):
        batch = reference.action_space.sample()
        expected = reference.step(batch)
        assert_same(envs.step(batch), expected, f"step {k}")
        ended = expected[2] | expected[3]
        if disabled and ended.any():
            found = envs.reset(options={"reset_mask": ended})
            assert_same(found, reference.reset(options={"reset_mask": ended}), f"reset after step {k}")
    assert envs.num_envs == num_envs


def lock_step(envs: Any, steps: int, seed: int = 7) -> dict[int, list[Any]]:
    """Each env's own trajectory with the actions of `action`, in lock-step."""
    trajectories: dict[int, list[Any]] = {i: [] for i in range(envs.num_envs)}
    envs.reset(seed=seed)
    for k in range(steps):
        observations, rewards, terminated, truncated, infos = envs.step(actions(range(envs.num_envs), k))
        for i, rows in trajectories.items():
            rows.append(row_of(i, observations, rewards, terminated, truncated, infos))
    return trajectories


def row_of(row: int, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> Any:
    """The results of one step of one env."""
    said = {key: infos[key][row] for key in ("steps", "value", "resets") if key in infos and infos[f"_{key}"][row]}
    return observations[row].copy(), rewards[row], terminated[row], truncated[row], said
