"""Batches that `receive` returns: of multi-agent envs by group [envs, agents, …] or by agent [envs, …].

`Poison` is the debug mode of `copy=False`, where the next step overwrites the observations that `step` returned, and
code that keeps them silently learns from the wrong ones. With `copy="poison"` each batch is a copy of its own, which is
filled with NaN (or the largest number of an integer type) at the moment at which a view would begin to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.infos import Infos
from multiverse.core.layout import Array

ByAgent = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step of some envs. S: slots in the batch (for single-agent envs: the envs), rows in order of `env_ids`.

    With `copy=False` the observations are views, valid until the next `send` to those envs.
    """

    env_ids: Array  # [envs] ascending
    observations: Any  # [S, *obs], nested like the space
    rewards: Array  # [S] float64
    terminated: Array  # [S] bool   the episode reached a terminal state
    truncated: Array  # [S] bool   the episode was cut off, e.g. by a time limit
    alive: Array  # [S] bool   the agent exists
    acting: Array  # [S] bool   the agent takes an action in the next step
    episode_returns: Array  # [S] float64  of the step's episode, up to and including this step
    episode_lengths: Array  # [envs] int64  likewise
    infos: dict[str, Any]  # Gymnasium's `_key` convention, arrays of length S


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """One step of a group.  n: envs in the batch, A: agents of the group."""

    agents: tuple[str, ...]
    observation_space: spaces.Space[Any]  # of one agent
    observations: Any  # [n, A, *obs], nested as the space is; a tuple of tuples for objects that no array can hold
    rewards: Array  # [n, A]
    terminated: Array  # [n, A] bool: the agent ended in this step
    truncated: Array  # [n, A] bool
    alive: Array  # [n, A] bool: the agent exists
    acting: Array  # [n, A] bool: the agent takes an action in the next step
    action_masks: Array | None  # [n, A, actions]; None where actions are not Discrete
    episode_returns: Array  # [n, A]
    episode_lengths: Array  # [n, A] number of steps in which the agent acted


@dataclass(frozen=True, slots=True)
class AgentsBatch:
    """One step of some envs, by group."""

    env_ids: Array  # [n]
    groups: dict[str, GroupBatch]
    infos: Infos

    def by_agent(self) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, Infos]:
        """(observations, rewards, terminated, truncated, infos): dicts agent → [n, …]."""
        observations: ByAgent = {}
        rewards: ByAgent = {}
        terminated: ByAgent = {}
        truncated: ByAgent = {}
        for group in self.groups.values():
            for i, agent in enumerate(group.agents):
                observations[agent] = _of_agent(group.observation_space, group.observations, i)
                rewards[agent] = group.rewards[:, i]
                terminated[agent], truncated[agent] = group.terminated[:, i], group.truncated[:, i]
        return observations, rewards, terminated, truncated, self.infos


@dataclass(frozen=True, slots=True)
class TurnRows:
    """The envs in which the agent to act belongs to one group."""

    env_ids: Array  # [m]
    observations: Any  # [m, *obs] of that agent
    action_masks: Array | None  # [m, actions]; None where actions are not Discrete


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of some envs.  n: envs in the batch, A: all agents, in the order of `TurnVectorEnv.agents`."""

    env_ids: Array  # [n]
    agents: Array  # [n] index of the agent to act; -1 where the episode is over (without autoreset)
    groups: dict[str, TurnRows]
    acting: Array  # [n, A] bool
    alive: Array  # [n, A] bool
    rewards: Array  # [n, A] since the agent's last action; reported when it next acts or ends
    terminated: Array  # [n, A] bool: ended in this step; its last observation is in infos["final_obs"]
    truncated: Array  # [n, A] bool
    episode_over: Array  # [n] bool: the episode ended, and (autoreset) a new one has begun
    infos: Infos = field(default_factory=dict)  # by agent; "final_obs": [n] dict agent → last observation

    @property
    def observations(self) -> Any:
        """[n, *obs] of the agent to act. With several groups, use `groups`."""
        return self._only_group().observations

    @property
    def action_masks(self) -> Any:
        """[n, actions] action mask of the agent to act."""
        return self._only_group().action_masks

    def _only_group(self) -> TurnRows:
        if len(self.groups) > 1:
            raise InvalidRequest(f"the env has several groups: use turn.groups[name]; names: {list(self.groups)}")
        return next(iter(self.groups.values()))


def _of_agent(space: spaces.Space[Any], batch: Any, i: int) -> Any:
    """Observations of agent i, from those of its group, whose leaves are arrays or tuples of tuples."""
    if isinstance(batch, np.ndarray):
        return batch[:, i]
    if isinstance(space, spaces.Dict):
        return {key: _of_agent(child, batch[key], i) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_of_agent(child, part, i) for child, part in zip(space.spaces, batch))
    return tuple(row[i] for row in batch)


class Poison:
    """Remembers which envs' rows were returned in which arrays, until they are poisoned."""

    def __init__(self) -> None:
        self._returned: list[tuple[Array, Array]] = []  # env id of each row, and the rows

    def add(self, observations: Any, ids: Array) -> Any:
        """Remember observations that are returned to the caller; returns them."""
        self._returned += [(ids, array) for array in _arrays(observations)]
        return observations

    def spoil(self, ids: Array) -> None:
        """Poison the rows that were returned for these envs, whose rows are about to be overwritten."""
        kept = []
        for owners, array in self._returned:
            gone = np.isin(owners, ids)
            array[gone] = _poison(array.dtype)  # guard: poison-spoils
            if not gone.all():
                kept.append((np.where(gone, -1, owners), array))
        self._returned = kept


def _arrays(observations: Any) -> Iterator[Array]:
    """The arrays of a nested batch; objects that the block cannot hold (text, graphs) are never overwritten."""
    if isinstance(observations, dict):
        for value in observations.values():
            yield from _arrays(value)
    elif isinstance(observations, tuple):
        for value in observations:
            if isinstance(value, np.ndarray | dict | tuple):
                yield from _arrays(value)
    elif isinstance(observations, np.ndarray):
        yield observations


def _poison(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.nan
    return True if dtype.kind == "b" else np.iinfo(dtype).max
