"""Batches, as `receive` returns them; of envs with several agents by group [envs, agents, …], or by agent [envs, …]."""

from __future__ import annotations

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
    terminated: Array  # [S] bool   the task ended
    truncated: Array  # [S] bool   we stopped watching
    alive: Array  # [S] bool   the agent exists
    acting: Array  # [S] bool   an action is wanted from it now
    episode_returns: Array  # [S] float64  of the episode this step belongs to, this step included
    episode_lengths: Array  # [envs] int64  likewise
    infos: dict[str, Any]  # Gymnasium's `_key` convention, arrays of length S


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """One step of a group.  n: envs in the batch, A: agents of the group."""

    agents: tuple[str, ...]
    observation_space: spaces.Space[Any]  # of one agent
    observations: Any  # [n, A, *obs], nested as the space is; what no array can hold: a tuple of tuples
    rewards: Array  # [n, A]
    terminated: Array  # [n, A] bool: the agent ended in this step
    truncated: Array  # [n, A] bool
    alive: Array  # [n, A] bool: it is there
    acting: Array  # [n, A] bool: an action is wanted from it now
    action_masks: Array | None  # [n, A, actions]; None where actions are not Discrete
    episode_returns: Array  # [n, A]
    episode_lengths: Array  # [n, A] steps that it has taken: in which it acted


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
    """The envs in which an agent of one group has to act."""

    env_ids: Array  # [m]
    observations: Any  # [m, *obs] what that agent sees
    action_masks: Array | None  # [m, actions]; None where actions are not Discrete


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of some envs.  n: envs in the batch, A: all agents, in the order of `TurnVectorEnv.agents`."""

    env_ids: Array  # [n]
    agents: Array  # [n] index of the agent to act; -1 where none is (an episode that is over, without autoreset)
    groups: dict[str, TurnRows]
    acting: Array  # [n, A] bool
    alive: Array  # [n, A] bool
    rewards: Array  # [n, A] since the slot's own last action, told where it next acts or ends
    terminated: Array  # [n, A] bool: ended in this step; told exactly once, what it saw last is in infos["final_obs"]
    truncated: Array  # [n, A] bool
    episode_over: Array  # [n] bool: the episode ended, and (autoreset) a new one has begun
    infos: Infos = field(default_factory=dict)  # by agent; "final_obs": [n] dict agent → observation, of who ended

    @property
    def observations(self) -> Any:
        """[n, *obs] what the agent to act sees; where there are several groups: `groups`."""
        return self._only_group().observations

    @property
    def action_masks(self) -> Any:
        """[n, actions] what is open to it."""
        return self._only_group().action_masks

    def _only_group(self) -> TurnRows:
        if len(self.groups) > 1:
            raise InvalidRequest(f"there are several groups: turn.groups[name], with name of {list(self.groups)}")
        return next(iter(self.groups.values()))


def _of_agent(space: spaces.Space[Any], batch: Any, i: int) -> Any:
    """Agent i's share of a group's observations: of every leaf, which is an array or a tuple of tuples."""
    if isinstance(batch, np.ndarray):
        return batch[:, i]
    if isinstance(space, spaces.Dict):
        return {key: _of_agent(child, batch[key], i) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_of_agent(child, part, i) for child, part in zip(space.spaces, batch))
    return tuple(row[i] for row in batch)
