"""Bringing envs back to where they were: by playing the current episodes' actions again from their known seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.contracts.policy import Leaves
from multiverse.contracts.views import Array
from multiverse.experience.rollout import leaf_of
from multiverse.vector.single import VectorEnv


def bring_back(
    envs: VectorEnv, episodes: Sequence[int], actions: Sequence[Array | None], expected: Leaves
) -> tuple[Any, list[int]]:
    """(what the envs show now, those that could not be brought back).

    Env i plays episode `episodes[i]` again: its actions, from the seed its reset plan gives. If it then does not show
    what it showed before (it draws from a random generator that its seed does not set, or remembers earlier
    episodes), or its actions are not known, its episode is over: it has begun the next one.
    """
    envs.begin_at(episodes)
    lost = {i for i, known in enumerate(actions) if known is None}
    lengths = [0 if known is None else len(known) for known in actions]
    for t in range(max(lengths)):
        ids = [i for i, length in enumerate(lengths) if t < length and i not in lost]
        if not ids:
            break
        _, _, terminated, truncated, _ = envs.step(np.stack([actions[i][t] for i in ids]), env_ids=ids)  # type: ignore[index]
        lost.update(i for i, ended in zip(ids, terminated | truncated) if ended)
    shown = envs.observations()
    lost.update(i for i in range(envs.num_envs) if not _same(shown, expected, i))  # guard: a-replay-is-compared
    if lost:
        again = [i for i in sorted(lost) if envs.episode_counts[i] == episodes[i]]
        if again:
            envs.reset(env_ids=again)
    return envs.observations(), sorted(lost)


def _same(shown: Any, expected: Leaves, env: int) -> bool:
    """Bit for bit, as the rollout had it."""
    for path, rows in expected.items():
        now = np.asarray(leaf_of(shown, path)[env]).astype(rows.dtype)
        if now.tobytes() != rows[env].tobytes():
            return False
    return True
