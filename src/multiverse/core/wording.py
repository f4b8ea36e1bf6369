"""Text for messages: ids, sizes, counts and values in one line, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


def describe_ids(ids: range) -> str:
    """'24-31' for a range, '7' for one env."""
    return str(ids.start) if len(ids) == 1 else f"{ids.start}-{ids.stop - 1}"


def format_bytes(count: int) -> str:
    """'3.9 GiB'."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"


def short_repr(value: Any) -> str:
    """A value in one short line, also if its repr fails."""
    try:
        scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
        text = (str if scalar else repr)(value)
    except Exception:
        text = f"<a {type(value).__name__} that cannot be shown>"
    return _in_short(text)


ROUNDING_ERROR = 1e-9


def format_return(value: float) -> str:
    """A return: '493.1', '2,792.8', '0.004' (small values keep their digits), and '0.0' for rounding errors."""
    if abs(value) < ROUNDING_ERROR:
        return "0.0"
    if not abs(value) < 0.95:
        return f"{value:,.1f}"
    return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.1e}"


def pluralize(number: int, what: str) -> str:
    """'1 episode', '2,048 episodes'."""
    return f"{number:,} {what}{'s' * (number != 1 and what != 'info')}"


def short_error(error: BaseException) -> str:
    """A foreign error in one short line: "KeyError: 'session'"."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return _in_short(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _in_short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:117] + "..."


# -- suggestions -------------------------------------------------------------------------------------------------
MOST_LISTED = 24
"""Maximum number of names in a hint."""


def nearest(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The most similar known names, best first; capitals, `-` and `_` make no difference."""
    by_form = {_form(candidate): candidate for candidate in known}
    return [by_form[form] for form in difflib.get_close_matches(_form(name), by_form, n=most, cutoff=cutoff)]


def did_you_mean(name: str, known: Sequence[str], others: Iterable[str] = ()) -> str:
    """'Did you mean …?'; if no name is similar, a list of all names, or of the nearest three if there are many.

    `others`: further spellings to match that are not listed.
    """
    for meant in nearest(name, (*known, *others)):
        return f"Did you mean {meant}?"
    if len(known) > MOST_LISTED:
        return f"The nearest are: {', '.join(nearest(name, known, most=3, cutoff=0.0))}"
    return f"There are: {', '.join(sorted(known)) or 'none'}"


def _form(name: str) -> str:
    return name.lower().replace("-", "_")
