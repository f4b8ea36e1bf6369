"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

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
