"""Rows of one leaf by env: the values of all agents of an env are read and written together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multiverse.core.layout import FieldName, Group, leaves
from multiverse.core.views import Array, Views


class EnvRows:
    """Rows of a contiguous range of envs; position 0 is its first env."""

    def __init__(self, rows: Any, first: int, agents: int) -> None:
        self.rows, self._first, self._agents = rows, first, agents
        self.is_array = not isinstance(rows, list)

    def copy(self) -> EnvRows:
        """A copy in separate memory."""
        return EnvRows(self.rows.copy(), self._first, self._agents)

    def take(self, other: EnvRows, env: int) -> None:
        """Copy the values of one env from `other`, which has the same envs."""
        if self.is_array:
            self.rows[env] = other.rows[env]
        else:
            self.rows[self._slots(env)] = other.rows[other._slots(env)]

    def take_all(self, other: EnvRows) -> None:
        """Copy the values of all envs from `other`."""
        self.rows[:] = other.rows

    def _slots(self, env: int) -> slice:
        """An env's slots in a list, which holds all slots of the vector env."""
        start = (self._first + env) * self._agents
        return slice(start, start + self._agents)


def env_rows(views: Views, group: Group, name: FieldName, env_ids: range) -> EnvRows:
    """One leaf's rows of a range of envs: [envs, *shape], or [envs, agents, *shape] with several agents."""
    agents = len(group.agents)
    if name not in views.arrays:
        return EnvRows(views.objects[name], env_ids.start, agents)
    array: Array = views[name][views.layout.rows(group, env_ids)]
    if agents > 1:
        array = array.reshape(len(env_ids), agents, *array.shape[1:])
    return EnvRows(array, 0, agents)


def observation_rows(views: Views, kind: str, env_ids: range) -> list[EnvRows]:
    """Rows of every observation leaf of every group, and of the global states; `kind`: OBSERVATIONS or
    FINAL_OBSERVATIONS."""
    return [
        env_rows(views, group, (group.name, kind, *leaf.path), env_ids)
        for group in views.layout.shown
        for leaf in leaves(group.observation_space)
    ]


def mask_rows(views: Views, name: str, env_ids: range) -> list[EnvRows]:
    """Rows of the action masks of every group that has them; `name`: ACTION_MASKS or FINAL_ACTION_MASKS."""
    masked = [group for group in views.layout.groups if group.masks]
    return [env_rows(views, group, (group.name, name), env_ids) for group in masked]


def object_rows(views: Views, names: Iterable[FieldName], env_ids: range) -> dict[FieldName, list[Any]]:
    """Rows of a range of envs of the leaves that no array can hold, as they are sent by pipe."""
    return {name: views.objects[name][views.layout.rows_of_field(name, env_ids)] for name in names}


def put_object_rows(views: Views, objects: Mapping[FieldName, list[Any]], env_ids: range) -> None:
    """Store rows that came by pipe."""
    for name, values in objects.items():
        views.objects[name][views.layout.rows_of_field(name, env_ids)] = values
