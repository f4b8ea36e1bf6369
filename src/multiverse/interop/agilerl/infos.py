"""Infos as AgileRL has them: every agent is there in every batch, with a mask beside each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.contracts.infos import Infos, empty_column
from multiverse.interop.agilerl.env_side import Said


def by_agent(said: Infos, agents: Sequence[str], rows: int) -> Infos:
    """One batch of what the envs said: agent → its infos, `_agent` → all True, for AgileRL leaves nobody out."""
    infos: Infos = {}
    for agent in agents:
        if agent not in said:
            infos[agent], infos[f"_{agent}"] = {}, np.ones(rows, np.bool_)
            continue
        for row, what in enumerate(said[agent].tolist()):
            add_info(infos, {agent: {} if what is None else what.info if isinstance(what, Said) else what}, row, rows)
    return infos


def add_info(infos: Infos, info: Infos, row: int, rows: int) -> Infos:
    """Put one env's info into row `row` of a batch of `rows`. None is a NaN; values that do not fit each other become
    objects, where AgileRL raises what numpy raises."""
    for key, value in info.items():
        found = infos.get(key)
        if isinstance(value, dict) and (found is None or isinstance(found, dict)):
            infos[key] = add_info(found or {}, value, row, rows)
        elif isinstance(found, dict):
            found[row] = value
        else:
            infos[key] = _with_value(_empty_like(value, rows) if found is None else found, row, value)
        infos.setdefault(f"_{key}", np.zeros(rows, np.bool_))[row] = True
    return infos


def _empty_like(value: Any, rows: int) -> Any:
    """The column that the first value of a key calls for."""
    return np.full(rows, np.nan, np.float32) if value is None else empty_column(value, rows)


def _with_value(column: Any, row: int, value: Any) -> Any:
    try:
        if column.dtype == object or np.shape(value) == column.shape[1:]:
            column[row] = value
            return column
    except (TypeError, ValueError, OverflowError):
        pass
    objects = np.full(len(column), None, object)
    for i, one in enumerate(column):
        objects[i] = one
    objects[row] = value
    return objects
