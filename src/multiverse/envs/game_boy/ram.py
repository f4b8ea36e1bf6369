"""Reading what a game file names in RAM, and making features of it: at every step, so with as few calls as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from multiverse.core.views import Array
from multiverse.envs.game_boy.game_file import RamField, Values

LARGEST_GAP = 64
"""Between two fields that are read in one go: to read a byte more costs a twentieth of another read."""
Number = Callable[[list[int]], int | tuple[int, ...]]


class Ram:
    """Fields of a game's RAM, read together."""

    def __init__(self, fields: Sequence[RamField]) -> None:
        self._spans, places = _spans(fields)
        plain = [field for field in fields if field.bytes == field.count == 1 and field.bit is None]
        self._names = [field.name for field in plain]
        self._plain = _all_of([places[field.name] for field in plain])
        self._others = [(field.name, _reader(field, places[field.name])) for field in fields if field not in plain]
        observed = [field for field in fields if field.feature]
        self.num_features = sum(field.size for field in observed)
        self._observed = [(field.name, _tables(field), field.count > 1, field.origin) for field in observed]

    def read(self, memory: Any) -> Values:
        raw: list[int] = []
        for start, stop in self._spans:
            raw += memory[start:stop]
        values: Values = dict(zip(self._names, self._plain(raw)))
        for name, number in self._others:
            values[name] = number(raw)
        return values

    def features(self, values: Values) -> Array:
        """[features] float32, from 0 to 1."""
        row: list[float] = []
        for name, features, several, origin in self._observed:
            here: Any = values[origin] if origin else 0
            if several:
                for number in values[name]:  # type: ignore[union-attr]
                    row += features(number - here)
            else:
                row += features(values[name] - here)
        return np.array(row, np.float32)


def _spans(fields: Sequence[RamField]) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """(parts of RAM to read, where each field begins in all of them together)."""
    spans: list[tuple[int, int]] = []
    places, before = {}, 0  # before: bytes in all spans but the last
    for field in sorted(fields, key=lambda field: field.address):
        end = field.address + field.bytes * field.count
        if spans and field.address <= spans[-1][1] + LARGEST_GAP:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            before += spans[-1][1] - spans[-1][0] if spans else 0
            spans.append((field.address, end))
        places[field.name] = before + field.address - spans[-1][0]
    return spans, places


def _all_of(places: Sequence[int]) -> Callable[[list[int]], Sequence[int]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda raw: [raw[place] for place in places]


def _reader(field: RamField, at: int) -> Number:
    if (bit := field.bit) is not None:
        return lambda raw: raw[at] >> bit & 1
    size, end = field.bytes, at + field.bytes * field.count
    if size == 1:
        return lambda raw: tuple(raw[at:end])

    def numbers(raw: list[int]) -> int | tuple[int, ...]:
        found = [int.from_bytes(bytes(raw[k : k + size]), "little") for k in range(at, end, size)]
        return tuple(found) if len(found) > 1 else found[0]

    return numbers


def _tables(field: RamField) -> Callable[[int], tuple[float, ...]]:
    """Number → its features; looked up, where a number is a byte."""
    if field.bytes > 1:
        return field.features_of
    numbers = (*range(256), *(range(-255, 0) if field.origin else ()))  # a list counts back from its end
    return [field.features_of(number) for number in numbers].__getitem__
