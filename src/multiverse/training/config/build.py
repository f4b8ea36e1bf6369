"""Conversion of plain dicts to frozen dataclasses and back. A value that does not fit is an error with its place.

Types of fields: int, float, bool, str, None, Literal, lists, tuples, dicts with text keys, other
dataclasses, unions of these, and Any. An int is accepted as a float, True is not a number, and a list becomes a tuple.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.settings import check_bounds
from multiverse.core.wording import did_you_mean, nearest, short_repr

Config = TypeVar("Config")
NOTHING = "none"
"""Spelling of None in a shell and in files."""


class Located(dict[str, Any]):
    """Dict that knows the places of its keys: 'train.yaml, line 3: ppo.gamma', or '--gamma'."""

    def __init__(self, values: Mapping[str, Any], places: Mapping[str, str]) -> None:
        super().__init__(values)
        self.places = dict(places)


def place_of(mapping: Mapping[str, Any], key: Any, before: str = "") -> str:
    """Return the place of a key of this mapping; without a known place, `before` and its name."""
    if isinstance(mapping, Located) and key in mapping.places:
        return mapping.places[key]
    return f"{before}{key}"


def build(kind: type[Config], mapping: Mapping[str, Any], where: str = "") -> Config:
    """Return a config of this dataclass; `InvalidConfig` names the field, its value and what was expected.

    `where`: name of the mapping in errors.
    """
    return _build(kind, mapping, where or "config", f"{where}: " if where else "")


def _build(kind: type[Config], mapping: Mapping[str, Any], where: str, before: str) -> Config:
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    given: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in fields:
            hint = did_you_mean(str(key), list(fields))
            raise InvalidConfig(place_of(mapping, key, before), "there is no such setting", hint)
        given[key] = _value(hints[key], value, place_of(mapping, key, before))
    if missing := [name for name, field in fields.items() if name not in given and is_required(field)]:
        raise InvalidConfig(where, f"{', '.join(missing)} must be given")
    try:
        built = kind(**given)
        check_bounds(built)
        return built
    except InvalidConfig:
        raise
    except (ValueError, TypeError) as error:  # raised by the checks of the config itself
        if placed := _at_its_place(mapping, str(error)):
            raise placed from error
        if not before and isinstance(error, InvalidRequest):  # the error names the setting already
            raise
        raise InvalidConfig(where, str(error)) from error


def _at_its_place(mapping: Mapping[str, Any], message: str) -> InvalidConfig | None:
    """Return the error of a config about a value with the place of its key, if that is known: 'gamma=2: expected …'
    becomes 'train.yaml, line 3: policy.discount=2: expected …'."""
    match = re.match(r"(\w+)=(.*?): (.*)", message, re.DOTALL)
    if match is None or (place := place_of(mapping, match[1])) == match[1]:
        return None
    return InvalidConfig(place if isinstance(mapping.get(match[1]), bool) else f"{place}={match[2]}", match[3])


def as_plain(config: Any) -> dict[str, Any]:
    """Return a config as dicts, lists, numbers and text, from which `build` makes an equal one."""
    plain = _plain(config, "")
    if not isinstance(plain, dict):
        raise TypeError(f"expected a config, found {short_repr(config)}")
    return plain


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(kind: Any, value: Any, place: str) -> Any:
    """Return the value converted to this type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, place)
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in inner):
            allowed = ", ".join(map(str, inner))
            raise InvalidConfig(
                place, f"expected one of {allowed}, found {short_repr(value)}", _near_literal(value, inner)
            )
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, kind):
            return value
        return _build(kind, value, place, f"{place}.") if isinstance(value, Mapping) else _refuse(kind, value, place)
    if origin is not None or kind in (list, tuple, dict):
        return _container(kind, origin or kind, inner, value, place)
    return _scalar(kind, value, place)


def _scalar(kind: Any, value: Any, place: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if kind is float and type(value) is int:
        return float(value)
    if kind in (None, type(None)):
        return None if value is None else _refuse(kind, value, place)
    if isinstance(kind, type) and isinstance(value, kind) and (type(value) is not bool or kind in (bool, object)):
        return value
    return _refuse(kind, value, place)


def _one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    """Return the value as the first type that it has, else as the first to which it can be converted."""
    some = [kind for kind in kinds if kind is not type(None)]
    nothing = value is None or (isinstance(value, str) and value.lower() == NOTHING)
    if nothing and len(some) < len(kinds):
        return None
    if isinstance(value, Mapping):  # an error inside it is the most helpful one
        some = [kind for kind in some if dataclasses.is_dataclass(kind)] or some
    if len(some) == 1 and get_origin(some[0]) is Literal and len(some) < len(kinds):
        return _value(Literal[(*get_args(some[0]), NOTHING)], value, place)
    if len(some) == 1:
        return _value(some[0], value, place)
    for kind in sorted(some, key=lambda kind: kind is not type(value)):
        try:
            return _value(kind, value, place)
        except InvalidConfig:
            continue
    return _refuse(Union[kinds], value, place)  # noqa: UP007  the types are known only at run time


def _container(kind: Any, origin: Any, inner: tuple[Any, ...], value: Any, place: str) -> Any:
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _refuse(kind, value, place)
        of = inner[1] if inner else Any
        return {str(key): _value(of, one, place_of(value, key, f"{place}.")) for key, one in value.items()}
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        return _refuse(kind, value, place)
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        if len(value) != len(inner):
            raise InvalidConfig(place, f"expected {len(inner)} values, found {len(value)}")
        return tuple(_value(one, v, f"{place}[{i}]") for i, (one, v) in enumerate(zip(inner, value)))
    of = inner[0] if inner else Any
    built = [_value(of, one, f"{place}[{index}]") for index, one in enumerate(value)]
    return tuple(built) if origin is tuple else built


def _refuse(kind: Any, value: Any, place: str) -> typing.NoReturn:
    hint = ""
    if kind is int and isinstance(value, float) and value.is_integer():
        hint = f"Write {int(value):_}"
    raise InvalidConfig(place, f"expected {in_type_words(kind)}, found {_found(value)}", hint)


def _found(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    words = {str: "the text ", int: "", float: "", list: "the list ", tuple: "the list "}
    if isinstance(value, Mapping):
        return f"settings ({', '.join(map(str, list(value)[:5]))})"
    return f"{words.get(type(value), type(value).__name__ + ' ')}{short_repr(value)}"


def in_type_words(kind: Any) -> str:
    """Return a type in words: 'a whole number', 'a number or nothing', 'one of ppo, sac'."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "nothing"}
    if kind in words:
        return words[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(in_type_words(one) for one in inner)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}" if len(inner) > 1 else str(inner[0])
    if origin in (tuple, list) or kind in (tuple, list):
        return "a list" + (f" ({in_type_words(inner[0])} each)" if inner and inner[0] is not Any else "")
    if dataclasses.is_dataclass(kind) or (isinstance(origin, type) and issubclass(origin, Mapping)) or kind is dict:
        return "settings (name: value)"
    return getattr(kind, "__name__", str(kind))


def _near_literal(value: Any, allowed: tuple[Any, ...]) -> str:
    found = nearest(value, [one for one in allowed if isinstance(one, str)]) if isinstance(value, str) else []
    return f"Did you mean {found[0]}?" if found else ""


def _plain(value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: _plain(getattr(value, name), f"{place}.{name}".lstrip(".")) for name in named}
    if isinstance(value, Mapping):
        return {str(key): _plain(one, f"{place}.{key}".lstrip(".")) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{place}[{index}]") for index, one in enumerate(value)]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    key = place.removeprefix("network_kwargs.")
    instead = "" if key == place else f": pass it inside the network, network=functools.partial(Net, {key}=…)"
    raise InvalidConfig(place, f"{short_repr(value)} cannot be written to a file{instead}")


OLD_NAMES = {"agent": "algorithm"}
"""Old names (until 0.1) of config keys, flags, arguments and parts of a saved state, and their present names."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def with_current_names(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with the present names of its keys; see `OLD_NAMES`."""
    if both := [(old, new) for old, new in OLD_NAMES.items() if old in saved and new in saved]:
        raise InvalidConfig(
            place_of(saved, both[0][0]), f"this is the old name of {both[0][1]}, which is given too: leave one out"
        )
    values = {OLD_NAMES.get(key, key): value for key, value in saved.items()}
    if isinstance(saved, Located):
        return Located(values, {OLD_NAMES.get(key, key): place for key, place in saved.places.items()})
    return values


def accepts_old_names(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Accept the old names of arguments, with a `DeprecationWarning` that names the new ones."""

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for old in [name for name in kwargs if name in OLD_NAMES]:
            new = f"{OLD_NAMES[old]}=…; the old name will be removed in the next version"
            warnings.warn(f"{function.__name__}({old}=…) is deprecated, use {new}", DeprecationWarning, stacklevel=2)
        return function(*args, **with_current_names(kwargs))

    return called
