"""Encoding of a training state as JSON and named arrays, and its exact decoding.  Independent of files.

A state is a dict with text keys. Its leaves are None, bool, int of any size, float (also NaN and infinities), str,
numpy arrays and scalars of any numeric or bool dtype; lists, tuples and dicts of these. Anything else is refused by
name, because it could not be restored exactly.

In JSON an array is `{"$array": name}`. Its name is its place in the state, `session/envs/episodes`. Keys of the state
that begin with `$` get another `$`. A `Table`, of which only new records are written, is `{"$table": name, …}`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from multiverse.core.tables import Table

State = Mapping[str, Any]
Arrays = dict[str, Any]
"""Arrays and tables by name."""

_KINDS = "biufc"
_PLAIN = frozenset(np.dtype(code) for code in "?bhiqBHIQefdF")  # dtypes of safetensors; others are stored as bytes
_LARGEST_JSON_INT = 2**63
_RESERVED = "__metadata__"
_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(state: State) -> tuple[bytes, Arrays]:
    """Return the JSON text of a state, and its tables and (contiguous) arrays by name, in dtypes of safetensors."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state must be a dict, not a {type(state).__name__}")
    arrays: Arrays = {}
    tree = _encode(state, (), arrays)
    return json.dumps(tree, allow_nan=False, separators=(",", ":")).encode(), arrays


def decode(text: bytes, arrays: Arrays) -> dict[str, Any]:
    """Return the state, which takes ownership of the arrays. In place of a table `arrays` has a function, which is
    called with its entry in the text. ValueError, TypeError, KeyError or RecursionError if the text is invalid."""
    state = _decode(json.loads(text), arrays)
    if not isinstance(state, dict):
        raise ValueError("the state is not a dict")
    return state


def _encode(value: Any, place: tuple[str, ...], arrays: Arrays) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_LARGEST_JSON_INT <= value < _LARGEST_JSON_INT else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if kind is list:
        return [_encode(one, (*place, str(index)), arrays) for index, one in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [_encode(one, (*place, str(index)), arrays) for index, one in enumerate(value)]}
    if isinstance(value, Mapping):
        return {_key(key, place): _encode(one, (*place, key), arrays) for key, one in value.items()}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return {"$scalar": value.tobytes().hex(), "dtype": value.dtype.str}
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS and not isinstance(value, np.ma.MaskedArray):
        return _encode_array(np.asarray(value), place, arrays)
    if isinstance(value, Table):
        name = _named(place)
        arrays[name] = value
        return {"$table": name, "first": value.first, "last": value.last}
    what = f"an array of dtype {value.dtype}" if isinstance(value, np.ndarray) else f"a {kind.__qualname__}"
    raise TypeError(
        f"{'.'.join(place) or 'the state'} is {what}: a checkpoint holds only numbers, text, arrays, lists and dicts"
    )


def _key(key: Any, place: tuple[str, ...]) -> str:
    if type(key) is not str:
        raise TypeError(f"{'.'.join(place) or 'the state'} has the key {key!r}: keys must be text")
    return f"${key}" if key.startswith("$") else key


def _named(place: tuple[str, ...]) -> str:
    return "/".join(_SURROGATE.sub(_escaped, part.replace("~", "~0").replace("/", "~1")) for part in place)


def _escaped(surrogate: re.Match[str]) -> str:
    """Escape a lone surrogate, which a name in Python may have, but not UTF-8, in which safetensors stores names."""
    return f"~{ord(surrogate[0]):x}"


def _encode_array(array: np.ndarray[Any, Any], place: tuple[str, ...], arrays: Arrays) -> dict[str, Any]:
    name = _named(place)
    if name == _RESERVED:
        raise TypeError(f"{_RESERVED} is a name that safetensors reserves")
    # safetensors writes memory as it is, so the array must be in C order. (ascontiguousarray would add a dimension to
    # 0-d arrays.)
    array = array if array.flags.c_contiguous else array.copy(order="C")
    if array.dtype in _PLAIN and array.dtype.isnative:
        arrays[name] = array
        return {"$array": name}
    arrays[name] = np.frombuffer(array.tobytes(), np.uint8)
    return {"$array": name, "dtype": array.dtype.str, "shape": list(array.shape)}


def _decode(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, list):
        return [_decode(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    for tag, decode_tagged in _TAGS.items():
        if tag in value:
            return decode_tagged(value, arrays)
    return {_plain_key(key): _decode(one, arrays) for key, one in value.items()}


def _plain_key(key: str) -> str:
    if key.startswith("$") and not key.startswith("$$"):
        raise ValueError(f"the tag {key!r} is unknown")
    return key.removeprefix("$")


def _decode_array(value: dict[str, Any], arrays: Arrays) -> np.ndarray[Any, Any]:
    if value["$array"] not in arrays:
        raise ValueError(f"the array {value['$array']!r} is missing, or named twice")
    array = arrays.pop(value["$array"])  # guard: no-array-is-named-twice
    if "dtype" in value:
        array = np.frombuffer(array.tobytes(), _numeric(value["dtype"])).reshape(value["shape"])
    return np.asarray(array) if array.flags.writeable else np.array(array)


def _decode_table(value: dict[str, Any], arrays: Arrays) -> Any:
    if value["$table"] not in arrays:
        raise ValueError(f"the table {value['$table']!r} is missing, or named twice")
    return arrays.pop(value["$table"])(value)


def _decode_scalar(value: dict[str, Any], arrays: Arrays) -> Any:
    return np.frombuffer(bytes.fromhex(value["$scalar"]), _numeric(value["dtype"]), count=1)[0]


def _numeric(name: str) -> np.dtype[Any]:
    """Return the numeric dtype of this name. Other names of numpy may mean records or objects, and are refused."""
    if not re.fullmatch(rf"[<>|][{_KINDS}]\d{{1,2}}", name):
        raise ValueError(f"{name!r} is not a numeric dtype")
    return np.dtype(name)


_TAGS: dict[str, Callable[[dict[str, Any], Arrays], Any]] = {
    "$array": _decode_array,
    "$table": _decode_table,
    "$scalar": _decode_scalar,
    "$tuple": lambda value, arrays: tuple(_decode(value["$tuple"], arrays)),
    "$int": lambda value, arrays: int(value["$int"], 16),
    "$float": lambda value, arrays: struct.unpack(">d", bytes.fromhex(value["$float"]))[0],
}
