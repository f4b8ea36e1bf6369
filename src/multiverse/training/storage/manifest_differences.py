"""In what two checkpoints, or a checkpoint and a run that wants to go on from it, differ: in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from multiverse.contracts.errors import in_words

MOST_SENTENCES = 20


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Sentences: another version, config fields changed from one value to another, arrays of other shapes.

    `config` and `arrays` are compared where both have them; `arrays` maps names to shape and dtype.
    """
    found = list(_version(old, new))
    if "config" in old and "config" in new:
        found += _bounded(_fields(old["config"], new["config"], ""))
    if "arrays" in old and "arrays" in new:
        found += _bounded(_arrays(old["arrays"], new["arrays"]))
    return found


def _version(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, now = old.get("multiverse"), new.get("multiverse")
    if before is not None and now is not None and before != now:
        yield f"It was written by multiverse {before}; this is {now}."


def _fields(old: Any, new: Any, place: str) -> Iterator[str]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if old != new and not (old != old and new != new):  # two NaNs are the same
            yield f"{place} changed from {in_words(old)} to {in_words(new)}."
        return
    for key in [*old, *(key for key in new if key not in old)]:
        inner = f"{place}.{key}" if place else str(key)
        if key not in new:
            yield f"{inner} was {in_words(old[key])} and is no longer there."
        elif key not in old:
            yield f"{inner} is new, with {in_words(new[key])}."
        else:
            yield from _fields(old[key], new[key], inner)


def _arrays(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"The array {name} {_looks(old[name])} is not used now."
        elif name not in old:
            yield f"The array {name} {_looks(new[name])} is missing in it."
        elif _looks(old[name]) != _looks(new[name]):
            yield f"The array {name} was {_looks(old[name])} and is {_looks(new[name])} now."


def _looks(array: Mapping[str, Any]) -> str:
    return f"{list(array['shape'])} {array['dtype']}"


def _bounded(sentences: Iterator[str]) -> list[str]:
    found = list(sentences)
    more = [f"And {len(found) - MOST_SENTENCES} more of this kind."] if len(found) > MOST_SENTENCES else []
    return found[:MOST_SENTENCES] + more
