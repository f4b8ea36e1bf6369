"""Numeric info scalars as columns of the block; each key is announced once by pipe.

Every host numbers its columns in the order in which keys first appear, so no negotiation is needed. The tables are
usually equal, and then a step's infos of all envs are one copy. All other values of infos are sent by pipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.core.errors import InEnv
from multiverse.core.infos import Infos, add_info
from multiverse.core.layout import INFO_MASKS, INFO_VALUES, MAX_INFO_COLUMNS, Array, Views

Column = tuple[str, type]
"""A key and the type of its values: a key with values of several types gets a column for each type."""

Announcement = tuple[int, str, type]
"""A column's number, key and type; if an announcement is lost, only that column's data is."""

_INTEGRAL = {int, bool, np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint16, np.uint32}
_STORED_TYPES = {float, int, np.float64, np.int64}
"""Types that need no cast from the 64-bit columns."""
_NUMERIC = {float, np.float64, np.float32, np.float16} | _INTEGRAL


class InfoWriter:
    """Used where the envs run: writes numeric values into the columns of the range's rows and returns the rest."""

    def __init__(self, views: Views, rows: slice) -> None:
        self._floats = [memoryview(row) for row in views[INFO_VALUES][:, rows]]
        self._integers = [memoryview(row) for row in views[INFO_VALUES].view(np.int64)[:, rows]]
        self._masks = [memoryview(row) for row in views[INFO_MASKS][:, rows]]
        self._mask_block = views[INFO_MASKS][:, rows]
        self._mask_block[...] = False  # guard: nobody-speaks-for-the-dead
        self._columns: dict[Column, tuple[memoryview, memoryview]] = {}
        self.wrote = False  # since the last clear
        self.announced: list[Announcement] = []  # since the last `take_announcements`

    def clear(self) -> None:
        """Clear the masks before a step."""
        self._mask_block[: len(self._columns)] = False
        self.wrote = False

    def write(self, row: int, info: Infos) -> Infos | None:
        """Write the info of row `row` of the range; returns the values that no column can hold, or None."""
        left: Infos | None = None
        for key, value in info.items():
            column = self._columns.get((key, type(value)))
            if column is None and type(value) in _NUMERIC and type(key) is str and key != "final_obs":
                column = self._new_column(key, type(value))
            if column is not None:
                try:
                    column[0][row] = value
                    column[1][row] = True
                    continue
                except (ValueError, OverflowError):  # an int with more than 64 bits
                    pass
            if left is None:
                left = {}
            left[key] = value
        self.wrote = True
        return left

    def forget(self, row: int) -> None:
        """Discard what was written for a row in this step."""
        self._mask_block[: len(self._columns), row] = False

    def _new_column(self, key: str, kind: type) -> tuple[memoryview, memoryview] | None:
        number = len(self._columns)
        if number == MAX_INFO_COLUMNS:
            return None
        values = self._integers if kind in _INTEGRAL else self._floats
        column = self._columns[(key, kind)] = (values[number], self._masks[number])
        self.announced.append((number, key, kind))
        return column

    def take_announcements(self) -> list[Announcement]:
        new, self.announced = self.announced, []
        return new


_UNKNOWN: Column = ("", float)


class InfoReader:
    """Used by the caller: merges one step's columns of all hosts, and what came by pipe, into one infos dict."""

    def __init__(self, views: Views, host_rows: Sequence[slice]) -> None:
        self._values, self._masks = views[INFO_VALUES], views[INFO_MASKS]
        self._host_rows = list(host_rows)
        self._tables: list[list[Column]] = [[] for _ in host_rows]
        self._uniform = True  # every host has the same table, and no key has two columns
        self._reads: list[tuple[str, str, bool, type | None]] = []
        """If uniform, for each column: its key, its mask's key, whether it holds integers, and the type to cast to."""

    def announce(self, host: int, columns: list[Announcement]) -> None:
        table = self._tables[host]
        for number, key, kind in columns:
            table += [_UNKNOWN] * (number + 1 - len(table))
            table[number] = (key, kind)
        table = self._tables[0]
        known = not any(column is _UNKNOWN for column in table)
        equal = all(other == table for other in self._tables)
        self._uniform = known and equal and len({key for key, _ in table}) == len(table)
        self._reads = [
            (key, f"_{key}", kind in _INTEGRAL, None if kind in _STORED_TYPES else kind) for key, kind in table
        ]

    def forget(self, host: int) -> None:
        """Forget a host's columns after it was replaced: the new host numbers its own."""
        self._tables[host] = []
        self._uniform = False

    def whole_batch(self, wrote: Sequence[bool], left: dict[int, Infos]) -> Infos:
        """Infos of all envs. `wrote`: which hosts used their columns; `left`: by env id, what came by pipe."""
        if self._uniform and all(wrote) and not left:
            return self._from_columns()
        if not any(wrote):
            return self._merged(range(self._values.shape[1]), left)
        return self._merged(range(self._values.shape[1]), self._env_infos(wrote, left))

    def partial_batch(self, env_ids: Array, wrote: Sequence[bool], left: dict[int, Infos]) -> Infos:
        """Infos of some envs, rows in the order of `env_ids`."""
        return self._merged(env_ids.tolist(), self._env_infos(wrote, left))

    def each_env(self, wrote: Sequence[bool], left: dict[int, Infos]) -> list[Infos]:
        """Infos of all envs, unmerged: one dict per env."""
        if not left and not any(wrote):
            return [{} for _ in range(self._values.shape[1])]
        keys = [key for key, _ in self._tables[0]]
        if keys and self._uniform and all(wrote) and not left and self._masks[: len(keys)].all():
            columns = [_listed(column, kind) for column, (_, kind) in zip(self._values, self._tables[0])]
            return [dict(zip(keys, values)) for values in zip(*columns)]
        by_env = self._env_infos(wrote, left)
        return [by_env.get(env_id) or {} for env_id in range(self._values.shape[1])]

    def _from_columns(self) -> Infos:
        count = len(self._reads)
        floats, masks = self._values[:count].copy(), self._masks[:count].copy()
        integers, infos = floats.view(np.int64), Infos()
        complete = np.count_nonzero(masks) == masks.size  # four times as fast as numpy's all()
        if not complete:
            integers[~masks] = 0  # all bits zero, which is also the float 0.0
        for k, (key, mask_key, integral, kind) in enumerate(self._reads):  # hot: as few numpy calls as possible
            mask = masks[k]
            if complete or mask.any():
                column = integers[k] if integral else floats[k]
                infos[key], infos[mask_key] = column if kind is None else column.astype(kind), mask
        return infos

    def _env_infos(self, wrote: Sequence[bool], left: dict[int, Infos]) -> dict[int, Infos]:
        """Every env's info rebuilt from the columns, for hosts or envs with different keys."""
        infos: dict[int, Infos] = {}
        for host, rows in enumerate(self._host_rows):
            if not wrote[host]:
                continue
            for number, (key, kind) in enumerate(self._tables[host]):
                if self._tables[host][number] is _UNKNOWN:
                    continue
                env_ids = np.flatnonzero(self._masks[number, rows]) + rows.start
                for env_id, value in zip(env_ids.tolist(), _typed(self._values[number, env_ids], kind)):
                    infos.setdefault(env_id, {})[key] = kind(value)
        for env_id, rest in left.items():
            infos.setdefault(env_id, {}).update(rest)
        return infos

    def _merged(self, env_ids: Sequence[int], by_env: dict[int, Infos]) -> Infos:
        infos: Infos = {}
        for row, env_id in enumerate(env_ids):
            if env_id in by_env:
                try:
                    add_info(infos, by_env[env_id], row, len(env_ids))
                except Exception as error:
                    raise InEnv(env_id, error) from error
        return infos


def _typed(column: Array, kind: type) -> Array:
    column = column.view(np.int64) if kind in _INTEGRAL else column
    return column if kind in _STORED_TYPES else column.astype(kind)


def _listed(column: Array, kind: type) -> list[Any]:
    """The values in their original types: Python's numbers, or numpy's scalars."""
    typed = _typed(column, kind)
    return typed.tolist() if kind in (float, int, bool) else list(typed)
