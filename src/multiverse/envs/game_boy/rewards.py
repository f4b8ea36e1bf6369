"""What a step earns by a game's rules, from what lay in RAM before it and what lies there now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multiverse.envs.game_boy.game_file import RewardRule, Values


class Rewards:
    """The rules through one episode: what has been seen, and what has been earned that is earned once."""

    def __init__(self, rules: Sequence[RewardRule]) -> None:
        self._rules = list(enumerate(rules))
        self.scales: dict[str, float] = {}
        """Name of what a rule is about → what its rewards are multiplied by."""

    @property
    def names(self) -> list[str]:
        """What there are rules about."""
        return sorted({rule.of[0] for _, rule in self._rules if rule.of})

    def begin(self, values: Values) -> None:
        """An episode begins like this; what is so at its beginning is not new."""
        self._before = values
        self._seen: dict[int, set[tuple[Any, ...]]] = {
            k: {_of(rule, values)} for k, rule in self._rules if rule.event == "new"
        }
        self._earned: set[int] = set()

    def earned(self, values: Values) -> float:
        """By the step that has led here."""
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
            found = _of(rule, now)
            if rule.event == "changed":
                return rule.reward if found != _of(rule, before) else 0.0
            if found in self._seen[k]:
                return 0.0
            self._seen[k].add(found)
            return rule.reward
        change = now[rule.of[0]] - before[rule.of[0]]  # type: ignore[operator]
        if rule.event == "decreased":
            change = -change
        if change <= 0:
            return 0.0
        return rule.reward if rule.each is None else rule.each * change

    def _nearer(self, rule: RewardRule, before: Values, now: Values) -> float:
        """By how much the distance, along the axes, has shrunk; going away costs as much."""
        if any(before[name] != now[name] for name in (*rule.to, *rule.within)):
            return 0.0
        pairs: Any = list(zip(rule.of, rule.to))
        gained = sum(abs(before[of] - now[to]) - abs(now[of] - now[to]) for of, to in pairs)  # type: ignore[operator]
        return rule.reward * gained

    def state(self) -> dict[str, Any]:
        """Beside what lies in RAM."""
        seen = {str(k): [list(one) for one in sorted(found)] for k, found in self._seen.items()}
        return {"seen": seen, "earned": sorted(self._earned)}

    def load(self, state: Mapping[str, Any], values: Values) -> None:
        self._before = values
        self._seen = {int(k): {tuple(one) for one in found} for k, found in state["seen"].items()}
        self._earned = set(state["earned"])


def _of(rule: RewardRule, values: Values) -> tuple[Any, ...]:
    return tuple([values[name] for name in rule.of])
