"""Batches of envs with several agents: by group [envs, agents, …], or by agent [envs, …]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.contracts.errors import InvalidActions
from multiverse.contracts.infos import Infos, reordered_infos
from multiverse.contracts.layout import ACTION_MASKS, ACTIONS, ENDED, OBSERVATIONS, PRESENT, VALUES, Group
from multiverse.contracts.views import Array, Views
from multiverse.memory.space_rows import ActionWriter, BatchReader


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """One step of a group.  n: envs in the batch, A: agents of the group."""

    agents: tuple[str, ...]
    observations: Any  # [n, A, *obs], nested as the space is
    rewards: Array  # [n, A]
    terminated: Array  # [n, A] bool: the agent ended in this step
    truncated: Array  # [n, A] bool
    alive: Array  # [n, A] bool: it is there
    acting: Array  # [n, A] bool: an action is wanted from it now
    action_masks: Array | None  # [n, A, actions]; None where actions are not Discrete
    episode_returns: Array  # [n, A]
    episode_lengths: Array  # [n, A] steps that it has taken


@dataclass(frozen=True, slots=True)
class AgentsBatch:
    """One step of some envs, by group."""

    env_ids: Array  # [n]
    groups: dict[str, GroupBatch]
    infos: Infos

    def by_agent(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], Infos]:
        """(observations, rewards, terminated, truncated, infos): dicts agent → [n, …]."""
        observations: dict[str, Any] = {}
        rewards: dict[str, Any] = {}
        terminated: dict[str, Any] = {}
        truncated: dict[str, Any] = {}
        for group in self.groups.values():
            for i, agent in enumerate(group.agents):
                observations[agent] = _column(group.observations, i)
                rewards[agent] = group.rewards[:, i]
                terminated[agent], truncated[agent] = group.terminated[:, i], group.truncated[:, i]
        return observations, rewards, terminated, truncated, self.infos


class GroupReader:
    """Reads one group's rows out of the block."""

    def __init__(self, views: Views, group: Group) -> None:
        self.group, self._agents = group, len(group.agents)
        self._observations = BatchReader(group.observation_space, views, (group.name, OBSERVATIONS))
        self._rewards, self._lengths, self._returns = (self._by_env(c) for c in views[(group.name, VALUES)])
        self._terminated, self._truncated = (self._by_env(c) for c in views[(group.name, ENDED)])
        self._alive, self._acting = (self._by_env(c) for c in views[(group.name, PRESENT)])
        masks = views.arrays.get((group.name, ACTION_MASKS))
        self._masks = None if masks is None else self._by_env(masks)

    def _by_env(self, array: Array) -> Array:
        return array.reshape(-1, self._agents, *array.shape[1:])

    def alive(self, ids: Array) -> Array:
        return self._alive[ids]

    def acting(self, ids: Array) -> Array:
        return self._acting[ids]

    def action_masks(self, ids: Array) -> Array | None:
        return None if self._masks is None else self._masks[ids]

    def read(self, ids: Array | None, copy: bool) -> GroupBatch:
        rows: Any = slice(None) if ids is None else ids
        return GroupBatch(
            agents=self.group.agents,
            observations=self.observations(ids, copy),
            rewards=self._rewards[rows].copy(),
            terminated=self._terminated[rows].copy(),
            truncated=self._truncated[rows].copy(),
            alive=self._alive[rows].copy(),
            acting=self._acting[rows].copy(),
            action_masks=None if self._masks is None else self._masks[rows].copy(),
            episode_returns=self._returns[rows].copy(),
            episode_lengths=self._lengths[rows].astype(np.int64),
        )

    def observations(self, ids: Array | None, copy: bool) -> Any:
        if ids is None:
            found = self._observations.all_rows(copy)
        else:
            slots = (ids[:, None] * self._agents + np.arange(self._agents)).reshape(-1)
            found = self._observations.rows(slots, copy)
        return _per_env(found, self._agents)

    def observation_rows(self, slots: Array) -> Any:
        """[slots, …] of single slots, a copy."""
        return self._observations.rows(slots, True)


class GroupWriter:
    """Writes one group's actions into the block."""

    def __init__(self, views: Views, group: Group) -> None:
        self._group, self._agents, self._num_envs = group, len(group.agents), views.layout.num_envs
        self._writer = ActionWriter(group.action_space, views, (group.name, ACTIONS))
        self._alive = views[(group.name, PRESENT)][0].reshape(-1, self._agents)

    def checked(self, actions: Mapping[str, Any], ids: Array | None) -> Callable[[], None]:
        """What writes this group's share of the actions, once they are known to be right."""
        envs = np.arange(self._num_envs) if ids is None else ids
        name = self._group.name
        if name in actions and name not in self._group.agents:
            both = [agent for agent in self._group.agents if agent in actions]
            if both:
                raise InvalidActions(f"actions for group {name!r} and for its agents {both}: pass one of the two")
            slots = (envs[:, None] * self._agents + np.arange(self._agents)).reshape(-1)
            flat = _flattened(actions[name], self._group.action_space, len(envs), self._agents, name)
            return self._writer.prepared(flat, slots, len(slots))
        writes = []
        for position, agent in enumerate(self._group.agents):
            if agent in actions:
                slots = envs * self._agents + position
                writes.append(self._writer.prepared(actions[agent], slots, len(envs), f" of {agent}"))
            elif self._alive[envs, position].any():
                raise InvalidActions(f"no actions for {agent}, which is alive in some env")

        def write_all() -> None:
            for write in writes:
                write()

        return write_all

    def prepared(self, actions: Any, slots: Array) -> Callable[[], None]:
        """What writes the actions of single slots, once they are known to be right."""
        return self._writer.prepared(actions, slots, len(slots))


def by_agent(readers: Sequence[GroupReader], what: str, ids: Array) -> dict[str, Array]:
    """One of a reader's arrays as a dict agent → [n, …], copies."""
    found: dict[str, Array] = {}
    for reader in readers:
        array = getattr(reader, what)(ids)
        found.update({agent: array[:, i].copy() for i, agent in enumerate(reader.group.agents)})
    return found


def reordered_rows(batch: AgentsBatch, ids: Array) -> AgentsBatch:
    """The same batch with its rows in the order of `ids`."""
    order = np.searchsorted(batch.env_ids, ids)
    if (order == np.arange(len(ids))).all():
        return batch
    groups = {}
    for name, group in batch.groups.items():
        fields = {field: getattr(group, field) for field in GroupBatch.__slots__ if field != "agents"}
        groups[name] = GroupBatch(group.agents, **{key: _rows(value, order) for key, value in fields.items()})
    return AgentsBatch(ids, groups, batch.infos and reordered_infos(batch.infos, order))


def _column(value: Any, i: int) -> Any:
    return _mapped(value, lambda array: array[:, i], lambda items: tuple(row[i] for row in items))


def _rows(value: Any, order: Array) -> Any:
    return _mapped(value, lambda array: array[order], lambda items: tuple(items[i] for i in order))


def _per_env(value: Any, agents: int) -> Any:
    def regroup(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(items[i : i + agents] for i in range(0, len(items), agents))

    return _mapped(value, lambda array: array.reshape(-1, agents, *array.shape[1:]), regroup)


def _mapped(value: Any, on_array: Callable[[Array], Any], on_items: Callable[[tuple[Any, ...]], Any]) -> Any:
    """The same for every leaf of a nested batch. A tuple of anything but arrays is a leaf that no array can hold."""
    if value is None or isinstance(value, np.ndarray):
        return None if value is None else on_array(value)
    if isinstance(value, dict):
        return {key: _mapped(child, on_array, on_items) for key, child in value.items()}
    if isinstance(value, tuple) and all(isinstance(child, np.ndarray | dict) for child in value):
        return tuple(_mapped(child, on_array, on_items) for child in value)
    return on_items(value)


def _flattened(actions: Any, space: spaces.Space[Any], envs: int, agents: int, name: str) -> Any:
    """A group's actions [envs, agents, …] with one row per slot."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise InvalidActions(f"actions of group {name!r} are nested ({space}): pass them agent by agent")
    array = np.asarray(actions)
    if array.shape[:2] != (envs, agents):
        raise InvalidActions(f"actions of group {name!r} have shape {array.shape}, expected ({envs}, {agents}, …)")
    return array.reshape(envs * agents, *array.shape[2:])
