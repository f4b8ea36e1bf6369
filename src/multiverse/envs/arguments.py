"""Checks of single arguments of the built-in envs. Errors name the argument, its value and the expected values."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.plan import whole_number


def at_least(name: str, value: Any, least: int) -> int:
    number = whole_number(name, value)
    if number < least:
        raise InvalidRequest(f"{name}={number}: expected at least {least}")
    return number


def between(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """Return a finite number within these bounds."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not low <= value <= high:
        expected = f"a number from {low:g} to {high:g}" if math.isfinite(high) else f"a number, at least {low:g}"
        raise InvalidRequest(f"{name}={value!r}: expected {expected if math.isfinite(low) else 'a number'}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidRequest(f"{name}={value!r}: expected True or False")
    return bool(value)


def render_mode_of(value: Any) -> str | None:
    if value not in (None, "human", "rgb_array"):
        raise InvalidRequest(f"render_mode={value!r}: expected None, 'human' or 'rgb_array'")
    return None if value is None else str(value)
