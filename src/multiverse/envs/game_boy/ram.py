"""Reads the fields of a game file from RAM, makes features of them, and computes rewards by the rules.

All this happens at every step, so with as few calls as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from multiverse.core.layout import Array
from multiverse.envs.game_boy.game_file import RamField, RewardRule, Values

LARGEST_GAP = 64
"""Largest gap between fields that are read together: an extra byte costs a twentieth of another read."""
Number = Callable[[list[int]], int | tuple[int, ...]]


class Ram:
    """Fields in the RAM of a game, read together."""

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
        """Return the features [features], float32 from 0 to 1."""
        row: list[float] = []
        for name, features, several, origin in self._observed:
            reference: Any = values[origin] if origin else 0
            if several:
                for number in values[name]:  # type: ignore[union-attr]
                    row += features(number - reference)
            else:
                row += features(values[name] - reference)
        return np.array(row, np.float32)


def _spans(fields: Sequence[RamField]) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """Return (parts of RAM to read, offset of each field in their concatenation)."""
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
        each = [int.from_bytes(bytes(raw[k : k + size]), "little") for k in range(at, end, size)]
        return tuple(each) if len(each) > 1 else each[0]

    return numbers


def _tables(field: RamField) -> Callable[[int], tuple[float, ...]]:
    """Return a function that maps a number to its features: a table, if it is a byte."""
    if field.bytes > 1:
        return field.features_of
    numbers = (*range(256), *(range(-255, 0) if field.origin else ()))  # negative indices count from the end
    return [field.features_of(number) for number in numbers].__getitem__


# -- rewards -----------------------------------------------------------------------------------------------------
class Rewards:
    """The reward rules in one episode, with the values that were seen and the rules that apply only once."""

    def __init__(self, rules: Sequence[RewardRule]) -> None:
        self._rules = list(enumerate(rules))
        self.scales: dict[str, float] = {}
        """Factor for the rewards of a field's rules, by its name."""

    @property
    def names(self) -> list[str]:
        """Names of the fields that rules use."""
        return sorted({rule.of[0] for _, rule in self._rules if rule.of})

    def begin(self, values: Values) -> None:
        """Begin an episode; its first values are not new."""
        self._before = values
        self._seen: dict[int, set[tuple[Any, ...]]] = {
            k: {_of(rule, values)} for k, rule in self._rules if rule.event == "new"
        }
        self._earned: set[int] = set()

    def earned(self, values: Values) -> float:
        """Return the reward of the step that led to these values."""
        total, before = 0.0, self._before
        for k, rule in self._rules:
            if k not in self._earned and (amount := self._amount(k, rule, before, values)):
                total += amount * self.scales.get(rule.of[0], 1.0) if rule.of and self.scales else amount
                if rule.once:
                    self._earned.add(k)
        self._before = values
        return total

    def _amount(self, k: int, rule: RewardRule, before: Values, now: Values) -> float:
        if rule.condition is not None:
            return rule.reward if rule.condition.holds(now) else 0.0
        if rule.event is None:
            return rule.reward
        if rule.event == "nearer":
            return self._nearer(rule, before, now)
        if rule.event in ("new", "changed"):
            current = _of(rule, now)
            if rule.event == "changed":
                return rule.reward if current != _of(rule, before) else 0.0
            if current in self._seen[k]:
                return 0.0
            self._seen[k].add(current)
            return rule.reward
        change = now[rule.of[0]] - before[rule.of[0]]  # type: ignore[operator]
        if rule.event == "decreased":
            change = -change
        if change <= 0:
            return 0.0
        return rule.reward if rule.each is None else rule.each * change

    def _nearer(self, rule: RewardRule, before: Values, now: Values) -> float:
        """Return the reward for a decrease of the distance along the axes; an increase has the negative reward."""
        if any(before[name] != now[name] for name in (*rule.to, *rule.within)):
            return 0.0
        pairs: Any = list(zip(rule.of, rule.to))
        gained = sum(abs(before[of] - now[to]) - abs(now[of] - now[to]) for of, to in pairs)  # type: ignore[operator]
        return rule.reward * gained

    def state(self) -> dict[str, Any]:
        """Return the state that is not in RAM."""
        seen = {str(k): [list(values) for values in sorted(known)] for k, known in self._seen.items()}
        return {"seen": seen, "earned": sorted(self._earned)}

    def load(self, state: Mapping[str, Any], values: Values) -> None:
        self._before = values
        self._seen = {int(k): {tuple(numbers) for numbers in known} for k, known in state["seen"].items()}
        self._earned = set(state["earned"])


def _of(rule: RewardRule, values: Values) -> tuple[Any, ...]:
    return tuple([values[name] for name in rule.of])
