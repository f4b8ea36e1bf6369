"""The rows of one leaf, by env: what an env's agents have there is read and written together."""

from __future__ import annotations

from copy import copy
from typing import Any

from multiverse.contracts.layout import FieldName, Group
from multiverse.contracts.views import Array, Views


class EnvRows:
    """Of a contiguous range of envs; position 0 is the first of them."""

    def __init__(self, rows: Any, first: int, agents: int) -> None:
        self.rows, self._first, self._agents = rows, first, agents

    @property
    def is_array(self) -> bool:
        return not isinstance(self.rows, list)

    def copy(self) -> EnvRows:
        """The same values in memory of its own."""
        if self.is_array:
            return EnvRows(self.rows.copy(), 0, self._agents)
        return EnvRows(copy(self.rows), self._first, self._agents)

    def take(self, other: EnvRows, env: int) -> None:
        """The values that `other`, of the same envs, has for one of them."""
        if self.is_array:
            self.rows[env] = other.rows[env]
        else:
            self.rows[self._slots(env)] = other.rows[other._slots(env)]

    def take_all(self, other: EnvRows) -> None:
        self.rows[:] = other.rows

    def _slots(self, env: int) -> slice:
        """In a list, which holds every slot of the vector env."""
        start = (self._first + env) * self._agents
        return slice(start, start + self._agents)


def env_rows(views: Views, group: Group, name: FieldName, env_ids: range) -> EnvRows:
    """One leaf's rows of a range of envs: of an array [envs, *shape], with several agents [envs, agents, *shape]."""
    agents = len(group.agents)
    if name not in views.arrays:
        return EnvRows(views.objects[name], env_ids.start, agents)
    array: Array = views[name][views.layout.rows(group, env_ids)]
    if agents > 1:
        array = array.reshape(len(env_ids), agents, *array.shape[1:])
    return EnvRows(array, 0, agents)
