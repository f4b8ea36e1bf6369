"""Access to the slots of any vector env: of single agents, and of agents that act simultaneously or in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from multiverse.core.infos import Infos
from multiverse.core.layout import ACTING, EPISODE_LENGTH, EPISODE_RETURN, OBSERVATIONS, PRESENT, VALUES, Array
from multiverse.core.policy import Leaves
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.single import VectorEnv
from multiverse.vector.turns import TurnVectorEnv


def is_single(envs: BaseVectorEnv) -> bool:
    """Whether the vector env is for single agents."""
    return isinstance(envs, VectorEnv)


def step_slots(envs: BaseVectorEnv, actions: Sequence[Array], env_ids: Sequence[int]) -> Infos:
    """Step these envs, ascending, with an action for every slot: [envs, agents, …] of each group, [envs, …] of a single
    agent. Actions of slots that do not act are ignored."""
    subset = None if len(env_ids) == envs.num_envs else env_ids
    if isinstance(envs, VectorEnv):
        return envs.step(actions[0], env_ids=subset)[-1]
    by_group = {group.name: rows for group, rows in zip(envs.views.layout.groups, actions)}
    if isinstance(envs, TurnVectorEnv):
        turns = {name: rows[acting_of(envs, name)[env_ids]] for name, rows in by_group.items()}
        return cast(Infos, envs.step(turns, env_ids=subset).infos)
    return cast(Infos, envs.step(by_group, env_ids=subset)[-1])


def acting_of(envs: BaseVectorEnv, group: str) -> Array:
    """[envs, agents] bool: an action is required."""
    acting: Array = envs.views[(group, PRESENT)][ACTING].reshape(envs.num_envs, -1)
    return acting


def shown_by(envs: BaseVectorEnv, group: str, paths: Sequence[tuple[str | int, ...]]) -> Leaves:
    """Current observations of a group's slots, in the block."""
    return {path: envs.views[(group, OBSERVATIONS, *path)] for path in paths}


def sums(envs: BaseVectorEnv) -> tuple[Array, Array]:
    """(returns, lengths) of the current episode of every slot, group after group."""
    values = np.concatenate([envs.views[(group.name, VALUES)] for group in envs.views.layout.groups], axis=1)
    return values[EPISODE_RETURN], values[EPISODE_LENGTH].astype(np.int64)


def by_env(envs: BaseVectorEnv, column: Array) -> list[Array]:
    """A column of all slots, group after group, as [envs, agents] of each group."""
    parts, at = [], 0
    for group in envs.views.layout.groups:
        count = envs.num_envs * len(group.agents)
        parts.append(column[at : at + count].reshape(envs.num_envs, -1))
        at += count
    return parts
