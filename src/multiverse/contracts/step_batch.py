"""StepBatch: one step of some envs, as `receive` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from multiverse.contracts.views import Array


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step of some envs. S: slots in the batch (for single-agent envs: the envs), rows in order of `env_ids`.

    With `copy=False` the observations are views, valid until the next `send` to those envs.
    """

    env_ids: Array  # [envs] ascending
    observations: Any  # [S, *obs], nested like the space
    rewards: Array  # [S] float64
    terminated: Array  # [S] bool   the task ended
    truncated: Array  # [S] bool   we stopped watching
    alive: Array  # [S] bool   the agent exists
    acting: Array  # [S] bool   an action is wanted from it now
    episode_returns: Array  # [S] float64  of the episode this step belongs to, this step included
    episode_lengths: Array  # [envs] int64  likewise
    infos: dict[str, Any]  # Gymnasium's `_key` convention, arrays of length S
