"""Infos of many envs as one dict: Gymnasium's `_key` convention, for any number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiverse.core.errors import BadValue
from multiverse.core.wording import short_repr

Infos = dict[str, Any]


def require_dict(what: str, info: Any) -> None:
    """Raise `BadValue` unless the info that an env returned is a dict; None and [] are not."""
    if not isinstance(info, dict):
        raise BadValue(f"{what} is a {type(info).__name__}, not a dict: {short_repr(info)}")


def add_info(infos: Infos, info: Infos, row: int, rows: int) -> Infos:
    """Put one env's info into row `row` of a batch of `rows`, exactly as Gymnasium's vector envs do.

    Values of a key that do not fit into one array become objects; Gymnasium raises numpy's error instead.
    """
    for key, value in info.items():
        mask_key = f"_{key}"
        if key == "final_obs":
            array = infos[key] if key in infos else np.full(rows, None, dtype=object)
            array[row] = value
        elif isinstance(value, dict) != isinstance(infos.get(key, value), dict):
            raise BadValue(f"infos[{key!r}] is a {_kind(infos[key])} in one env and a {_kind(value)} in another")
        elif isinstance(value, dict):
            array = add_info(infos.get(key, {}), value, row, rows)
        else:
            array = _with_value(infos[key] if key in infos else empty_column(value, rows), row, value)
        mask = infos[mask_key] if mask_key in infos else np.zeros(rows, dtype=np.bool_)
        mask[row] = True
        infos[key], infos[mask_key] = array, mask
    return infos


def _kind(value: Any) -> str:
    return "dict" if isinstance(value, dict) else "value"


def _with_value(array: Any, row: int, value: Any) -> Any:
    """The column with one more value. Values that do not fit into one array (a number and a string, arrays of different
    shapes) become objects, where numpy would raise or broadcast."""
    if array.dtype != object and np.shape(value) != array.shape[1:]:
        array = _as_objects(array)
    try:
        array[row] = value
    except (TypeError, ValueError, OverflowError):
        array = _as_objects(array)
        array[row] = value
    return array


def _as_objects(array: Any) -> Any:
    objects = np.full(len(array), None, dtype=object)
    objects[:] = list(array) if array.ndim > 1 else array
    return objects


def empty_column(value: Any, rows: int) -> Any:
    """An empty column for the first value of a key: of its type if numeric, else of objects."""
    kind = type(value)
    if kind in (int, float, bool) or issubclass(kind, np.number):
        return np.zeros(rows, dtype=kind)
    if isinstance(value, np.ndarray):
        return np.zeros((rows, *value.shape), dtype=value.dtype)
    return np.full(rows, None, dtype=object)


def reordered_infos(infos: Infos, order: Any) -> Infos:
    """The rows of merged infos in another order."""
    return {k: reordered_infos(v, order) if isinstance(v, dict) else v[order] for k, v in infos.items()}


def row_info(infos: Infos, row: int) -> Infos:
    """The info of one env."""
    keys = [key for key in infos if f"_{key}" in infos and infos[f"_{key}"][row]]
    return {key: infos[key][row] for key in keys}
