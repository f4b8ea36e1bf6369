"""Infos of many envs as one dict: Gymnasium's `_key` convention, for any number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

Infos = dict[str, Any]


def add_info(infos: Infos, info: Infos, row: int, rows: int) -> Infos:
    """Put one env's info into row `row` of a batch of `rows`, exactly as Gymnasium's vector envs do."""
    for key, value in info.items():
        mask_key = f"_{key}"
        if key == "final_obs":
            array = infos[key] if key in infos else np.full(rows, None, dtype=object)
            array[row] = value
        elif isinstance(value, dict):
            array = add_info(infos.get(key, {}), value, row, rows)
        else:
            array = infos[key] if key in infos else _empty_like(value, rows)
            array[row] = value
        mask = infos[mask_key] if mask_key in infos else np.zeros(rows, dtype=np.bool_)
        mask[row] = True
        infos[key], infos[mask_key] = array, mask
    return infos


def _empty_like(value: Any, rows: int) -> Any:
    """The column that the first value of a key calls for: its own type if numeric, else objects."""
    kind = type(value)
    if kind in (int, float, bool) or issubclass(kind, np.number):
        return np.zeros(rows, dtype=kind)
    if isinstance(value, np.ndarray):
        return np.zeros((rows, *value.shape), dtype=value.dtype)
    return np.full(rows, None, dtype=object)
