"""Names that have changed: what was saved or typed with the old ones still works for one version, with a note."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from multiverse.training.config.build import Located

OLD_NAMES = {"agent": "algorithm"}
"""Of config keys, flags, arguments and parts of a saved state. Until 0.1 → since 0.2."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_todays_names(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A config, a checkpoint's state or its manifest, as this version would have written it."""
    values = {OLD_NAMES.get(key, key): value for key, value in saved.items()}
    for part in ("session", "config"):  # of a state, and of a manifest
        if isinstance(values.get(part), Mapping):
            values[part] = in_todays_names(values[part])
    if isinstance(saved, Located):
        return Located(values, {OLD_NAMES.get(key, key): place for key, place in saved.places.items()})
    return values


def takes_old_names(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Arguments may have their old names, with a `DeprecationWarning` that says the new one."""

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for old in [name for name in kwargs if name in OLD_NAMES]:
            told = f"{function.__name__}({old}=…) is {OLD_NAMES[old]}=… now; the old name goes in the next version"
            warnings.warn(told, DeprecationWarning, stacklevel=2)
        return function(*args, **in_todays_names(kwargs))

    return called
