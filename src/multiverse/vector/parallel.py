"""Vector env over envs whose agents act at the same time: dicts agent → batch, and arrays by group for learners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from multiverse.core.errors import InvalidActions, InvalidRequest
from multiverse.core.infos import Infos, reordered_infos
from multiverse.core.layout import OBSERVATIONS, STATE, Array, Group, from_leaves, leaves
from multiverse.vector.base import BaseVectorEnv, Running
from multiverse.vector.batches import AgentsBatch, ByAgent
from multiverse.vector.group_rows import GroupReader, GroupWriter, Rows, by_agent

ALL: Rows = slice(None)
AgentsStep = tuple[ByAgent, ByAgent, ByAgent, ByAgent, Infos]


class _StatesNotRequested(InvalidRequest, AttributeError):
    """Also an `AttributeError`, so that `hasattr(envs, "states")` is False."""


class BaseMultiAgentVectorEnv(BaseVectorEnv):
    """Base class of vector envs with several agents: agents, groups and their spaces."""

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        views, groups = running.executor.views, running.description.groups
        self.groups = {group.name: group.agents for group in groups}
        self.agents = tuple(agent for group in groups for agent in group.agents)
        """All possible agents, in the order of the groups; `alive` says which exist now."""
        self._readers = [GroupReader(views, group) for group in groups]
        self._writers = {group.name: GroupWriter(views, group) for group in groups}
        self._group_of = {agent: group for group in groups for agent in group.agents}
        self._keys = frozenset((*self._group_of, *self._writers))  # of a dict of actions

    @property
    def possible_agents(self) -> list[str]:
        return list(self.agents)

    def single_observation_space(self, agent: str) -> spaces.Space[Any]:
        """Observation space of one agent in one env."""
        return self._group(agent).observation_space

    def single_action_space(self, agent: str) -> spaces.Space[Any]:
        """Action space of one agent in one env."""
        return self._group(agent).action_space

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Observation space of one agent in all envs."""
        return batch_space(self.single_observation_space(agent), self.num_envs)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Action space of one agent in all envs: `envs.action_space(agent).sample()` is a batch of its actions."""
        return batch_space(self.single_action_space(agent), self.num_envs)

    @property
    def episode_returns(self) -> dict[str, Array]:
        """agent → [num_envs] summed reward in its env's episode, up to and including the env's last step. An agent
        that leaves and returns keeps its sum."""
        return by_agent(self._readers, "episode_returns", ALL)

    @property
    def episode_lengths(self) -> dict[str, Array]:
        """agent → [num_envs] number of steps in which it acted, up to and including the env's last step."""
        return by_agent(self._readers, "episode_lengths", ALL)

    @property
    def states(self) -> Any:
        """[num_envs, …] `state()` of each env after its last step or reset; after a `"same_step"` autoreset that of the
        new episode. Only with `make_vec(..., agents=AgentOptions(state=True))`."""
        views = self._executor.views
        if (space := views.layout.state_space) is None:
            raise _StatesNotRequested(
                "states: the envs' state() is not collected; pass make_vec(..., agents=AgentOptions(state=True))"
            )
        paths = [leaf.path for leaf in leaves(space)]
        return from_leaves(space, {path: views[(STATE, OBSERVATIONS, *path)].copy() for path in paths})

    def _group(self, agent: str) -> Group:
        if agent not in self._group_of:
            raise InvalidRequest(f"unknown agent {agent!r}; the agents are {list(self.agents)}")
        return self._group_of[agent]

    def _groups_batch(self, ids: Array | None, infos: Infos, copy: bool) -> AgentsBatch:
        rows = self._all_ids if ids is None else ids
        groups = {reader.group.name: reader.read(ALL if ids is None else ids, copy) for reader in self._readers}
        for batch in groups.values():
            self._returned(batch.observations, rows)
        return AgentsBatch(rows.copy(), groups, infos)

    def episodes_over(self, ids: Array) -> Array:
        """[ids] bool: whether no agent is left."""
        return np.logical_and.reduce([~reader.alive(ids).any(axis=1) for reader in self._readers])  # type: ignore[no-any-return]


class MultiAgentVectorEnv(BaseMultiAgentVectorEnv):
    """Made by `multiverse.make_vec` from a PettingZoo parallel env.

    `step` takes and returns dicts agent → batch [num_envs, …]. Actions and results of a group (agents that share a
    policy) can also be one array [num_envs, agents, …]: `envs.step({"group": actions})`, `envs.by_group()`. Absent
    agents have reward 0, an observation of zeros, and False in `envs.alive`; their actions are ignored.
    """

    def by_group(self) -> AgentsBatch:
        """Return the last batch by group, as arrays [num_envs, agents, …] for learners."""
        if self._state.sent:
            raise self._state.pending_step()
        return self._groups_batch(None, {}, copy=True)

    @property
    def alive(self) -> dict[str, Array]:
        """agent → [num_envs] bool: whether it exists, and acts in the next step."""
        return by_agent(self._readers, "alive", ALL)

    @property
    def action_masks(self) -> dict[str, Array]:
        """agent → [num_envs, actions] 1 where the action is available; for agents with Discrete actions."""
        return by_agent([r for r in self._readers if r.group.masks], "action_masks", ALL)

    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        """Keys are agents or groups, with every agent that is alive in some env. Nothing is written before all actions
        are validated."""
        if not isinstance(actions, Mapping):
            raise InvalidActions(f"actions are a {type(actions).__name__}: expected a dict agent (or group) → batch")
        if not self._keys.issuperset(actions):
            unknown = [key for key in actions if key not in self._keys]
            known = f"agents {list(self.agents)} and groups {list(self._writers)}"
            raise InvalidActions(f"actions for unknown agents or groups {unknown}; there are {known}")
        writes = [writer.prepared(actions, ids) for writer in self._writers.values()]
        for write in writes:
            write()

    def _step_result(self, infos: Infos) -> AgentsStep:
        return (*self._dicts(None), infos)

    def _dicts(self, ids: Array | None) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent]:
        """Return (observations, rewards, terminated, truncated) by agent."""
        batch: tuple[ByAgent, ByAgent, ByAgent, ByAgent] = ({}, {}, {}, {})
        for reader in self._readers:
            observed = reader.fill(batch, ALL if ids is None else ids, self.copy)
            self._returned(tuple(observed), self._all_ids if ids is None else ids)
        return batch

    def _batch(self, ids: Array, infos: Infos) -> AgentsBatch:
        return self._groups_batch(ids, infos, self.copy)

    def _reordered(self, batch: AgentsBatch, ids: Array) -> AgentsStep:
        infos = batch.infos and reordered_infos(batch.infos, np.searchsorted(batch.env_ids, ids))
        return (*self._dicts(ids), infos)

    def _first_observations(self, ids: Array | None) -> ByAgent:
        return self._dicts(ids)[0]
