"""Reads and writes the rows of one group of agents in the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidActions
from multiverse.core.layout import (
    ACTING,
    ACTION_MASKS,
    ACTIONS,
    ALIVE,
    ENDED,
    OBSERVATIONS,
    PRESENT,
    TERMINATED,
    TRUNCATED,
    VALUES,
    Array,
    Group,
    Leaf,
    Views,
    leaves,
)
from multiverse.ipc.space_rows import ActionWriter
from multiverse.vector.batches import ByAgent, GroupBatch

Rows = slice | Array
"""Envs: all of them, or an array of ids."""


class GroupReader:
    """Reads the rows of one group. n: number of requested envs, A: agents of the group."""

    def __init__(self, views: Views, group: Group) -> None:
        self.group, self._agents = group, len(group.agents)
        columns = {name: views[(group.name, name)] for name in (VALUES, ENDED, PRESENT)}
        by_env = {name: array.reshape(len(array), -1, self._agents) for name, array in columns.items()}
        self._rewards, self._lengths, self._returns = by_env[VALUES]
        self._ended, self._present = by_env[ENDED], by_env[PRESENT]
        names = [(group.name, OBSERVATIONS, *leaf.path) for leaf in leaves(group.observation_space)]
        self._leaves = [views.arrays[n] if n in views.arrays else views.objects[n] for n in names]
        self._leaves_by_env = [self._by_env(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in self._leaves]
        self._nest = _nester(group.observation_space, iter(range(len(names))))
        self._masks = views.arrays.get((group.name, ACTION_MASKS))

    def _by_env(self, array: Array) -> Array:
        return array.reshape(-1, self._agents, *array.shape[1:])

    # -- small columns, copies -----------------------------------------------------------------------------------
    def rewards(self, rows: Rows) -> Array:
        """[n, A]"""
        return self._rewards[rows].copy()

    def ended(self, rows: Rows) -> Array:
        """[2, n, A]: terminated, truncated."""
        return self._ended[:, rows].copy()

    def present(self, rows: Rows) -> Array:
        """[2, n, A]: alive, acting."""
        return self._present[:, rows].copy()

    def alive(self, rows: Rows) -> Array:
        return self._present[ALIVE, rows]

    def acting(self, rows: Rows) -> Array:
        return self._present[ACTING, rows]

    def action_masks(self, rows: Rows) -> Array | None:
        """[n, A, actions]"""
        return None if self._masks is None else self._by_env(self._masks)[rows].copy()

    def episode_returns(self, rows: Rows) -> Array:
        return self._returns[rows].copy()

    def episode_lengths(self, rows: Rows) -> Array:
        return self._lengths[rows].astype(np.int64)

    # -- observations --------------------------------------------------------------------------------------------
    def observed(self, rows: Rows, copy: bool) -> list[Any]:
        """Leaves of the group's observations, [n, A, …]: arrays or tuples of tuples."""
        return [self._rows_of(leaf, rows, copy) for leaf in self._leaves_by_env]

    def _rows_of(self, leaf: Any, rows: Rows, copy: bool) -> Any:
        if isinstance(leaf, list):
            return self._objects_of(leaf, rows, copy)
        return leaf.copy() if copy and isinstance(rows, slice) else leaf[rows]  # an index array copies anyway

    def _objects_of(self, objects: list[Any], rows: Rows, copy: bool) -> tuple[Any, ...]:
        agents = self._agents
        envs = range(len(objects) // agents) if isinstance(rows, slice) else rows.tolist()
        chosen = [objects[i * agents : (i + 1) * agents] for i in envs]
        return tuple(map(tuple, deepcopy(chosen) if copy else chosen))

    def of_slots(self, slots: Array) -> Any:
        """Copy of the observations of single slots, [slots, …], nested as the space is."""
        return self._nest(
            [
                tuple(deepcopy([leaf[i] for i in slots.tolist()])) if isinstance(leaf, list) else leaf[slots]
                for leaf in self._leaves
            ]
        )

    def masks_of_slots(self, slots: Array) -> Array | None:
        """[slots, actions] copy of their action masks."""
        return None if self._masks is None else self._masks[slots]

    # -- results of a step ---------------------------------------------------------------------------------------
    def fill(self, batch: tuple[ByAgent, ByAgent, ByAgent, ByAgent], rows: Rows, copy: bool) -> Any:
        """Add this group's agents to (observations, rewards, terminated, truncated); returns the observed leaves."""
        observations, rewards, terminated, truncated = batch
        observed, group_rewards, ended = self.observed(rows, copy), self.rewards(rows), self.ended(rows)
        for i, agent in enumerate(self.group.agents):
            observations[agent] = self._nest(
                [leaf[:, i] if isinstance(leaf, np.ndarray) else tuple(row[i] for row in leaf) for leaf in observed]
            )
            rewards[agent] = group_rewards[:, i]
            terminated[agent], truncated[agent] = ended[TERMINATED, :, i], ended[TRUNCATED, :, i]
        return observed

    def read(self, rows: Rows, copy: bool) -> GroupBatch:
        ended, present = self.ended(rows), self.present(rows)
        return GroupBatch(
            agents=self.group.agents,
            observation_space=self.group.observation_space,
            observations=self._nest(self.observed(rows, copy)),
            rewards=self.rewards(rows),
            terminated=ended[TERMINATED],
            truncated=ended[TRUNCATED],
            alive=present[ALIVE],
            acting=present[ACTING],
            action_masks=self.action_masks(rows),
            episode_returns=self.episode_returns(rows),
            episode_lengths=self.episode_lengths(rows),
        )


def _nester(space: spaces.Space[Any], numbers: Iterator[int]) -> Callable[[list[Any]], Any]:
    """Return a function that nests the leaves of a space as the space is."""
    if isinstance(space, spaces.Dict):
        items = [(key, _nester(child, numbers)) for key, child in space.spaces.items()]
        return lambda values: {key: nest(values) for key, nest in items}
    if isinstance(space, spaces.Tuple):
        parts = [_nester(child, numbers) for child in space.spaces]
        return lambda values: tuple([nest(values) for nest in parts])
    number = next(numbers)
    return lambda values: values[number]


def by_agent(readers: Sequence[GroupReader], name: str, rows: Rows) -> dict[str, Array]:
    """Return copies of one of the readers' arrays, such as "alive", as a dict agent → [n, …]."""
    arrays: dict[str, Array] = {}
    for reader in readers:
        array = getattr(reader, name)(rows)
        arrays.update({agent: array[:, i].copy() for i, agent in enumerate(reader.group.agents)})
    return arrays


class GroupWriter:
    """Writes the actions of one group: its methods validate them and return a function that writes them."""

    def __init__(self, views: Views, group: Group) -> None:
        self._group, self._agents, self._num_envs = group, len(group.agents), views.layout.num_envs
        self._writer = ActionWriter(group.action_space, views, (group.name, ACTIONS))
        self._alive = views[(group.name, PRESENT)][ALIVE].reshape(-1, self._agents)
        # Arrays of the space's own dtype, which learners send, need no further checks; others take the slow path.
        plain = views.arrays.get((group.name, ACTIONS))
        self._plain = plain if plain is not None and plain.dtype.kind in "iu" else np.empty(0, np.void)
        self._plain_of = [self._plain[i :: self._agents] for i in range(self._agents)]

    def prepared(self, actions: Mapping[str, Any], ids: Array | None) -> Callable[[], None]:
        """Prepare this group's part of a dict by agent or group, for these envs (None: all)."""
        name, agents = self._group.name, self._group.agents
        if ids is None and (fitting := self._fitting(actions)) is not None:
            return lambda: _copy_all(fitting)
        envs = np.arange(self._num_envs) if ids is None else ids
        if name in actions and (name not in agents or self._has_agent_axis(actions[name])):
            both = [agent for agent in agents if agent in actions and agent != name]
            if both:
                raise InvalidActions(f"actions for group {name!r} and for its agents {both}: pass only one of the two")
            slots = (envs[:, None] * self._agents + np.arange(self._agents)).reshape(-1)
            flat = _flattened(actions[name], self._group.action_space, len(envs), self._agents, name)
            return self._writer.prepared(flat, slots, len(slots))
        writes = []
        for position, agent in enumerate(agents):
            if agent in actions:
                slots = envs * self._agents + position
                writes.append(self._writer.prepared(actions[agent], slots, len(envs), f" of {agent}"))
            elif self._alive[envs, position].any():
                raise InvalidActions(f"no actions for {agent}, which is alive in some env")
        return lambda: _do_all(writes)

    def _fitting(self, actions: Mapping[str, Any]) -> list[tuple[Array, Array]] | None:
        """Return (target, actions) of every agent if all arrays fit exactly, else None."""
        if self._group.name in actions and self._group.name not in self._group.agents:
            return None
        pairs = []
        for target, agent in zip(self._plain_of, self._group.agents):
            given = actions.get(agent)
            if type(given) is not np.ndarray or given.dtype is not target.dtype or given.shape != target.shape:
                return None
            pairs.append((target, given))
        return pairs

    def _has_agent_axis(self, actions: Any) -> bool:
        """For a group with the name of its only agent: return whether these are the group's actions, [envs, 1, …]."""
        return self._agents == 1 and np.ndim(actions) == 2 + len(self._group.action_space.shape or ())

    def for_slots(self, actions: Any, slots: Array) -> Callable[[], None]:
        """Prepare the actions of single slots."""
        plain = self._plain
        exact = type(actions) is np.ndarray and actions.dtype is plain.dtype
        if exact and actions.shape == (len(slots), *plain.shape[1:]):
            return lambda: plain.__setitem__(slots, actions)
        return self._writer.prepared(actions, slots, len(slots))


def _do_all(writes: list[Callable[[], None]]) -> None:
    for write in writes:
        write()


def _copy_all(pairs: list[tuple[Array, Array]]) -> None:
    for target, given in pairs:
        target[...] = given


def _flattened(actions: Any, space: spaces.Space[Any], envs: int, agents: int, name: str) -> Any:
    """Return a group's actions [envs, agents, …] with one row per slot."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise InvalidActions(f"actions of group {name!r} are nested ({space}): pass them by agent")
    if not Leaf((), space).numeric:
        return _flattened_items(actions, envs, agents, name)
    try:
        array = np.asarray(actions)
    except (ValueError, TypeError) as error:
        raise InvalidActions(f"actions of group {name!r} cannot be converted to an array: {error}") from error
    if array.shape[:2] != (envs, agents):
        raise InvalidActions(f"actions of group {name!r} have shape {array.shape}, expected ({envs}, {agents}, …)")
    return array.reshape(envs * agents, *array.shape[2:])


def _flattened_items(actions: Any, envs: int, agents: int, name: str) -> list[Any]:
    """Do the same for actions that no array can hold."""
    by_env = [list(items) for items in actions] if isinstance(actions, list | tuple) else []
    if [len(items) for items in by_env] != [agents] * envs:
        raise InvalidActions(f"actions of group {name!r}: expected {envs} lists of {agents} actions")
    return [item for items in by_env for item in items]
