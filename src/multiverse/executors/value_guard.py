"""The value guard: what envs return is looked at before anybody learns from it.

A NaN or an infinite number in an observation or a reward ruins a learner for good, and says nothing of where it came
from once it is in a batch. So each range is looked at as a whole after its envs have stepped, in under a microsecond,
and closely only when there is something to find.
Numbers outside their space's bounds are counted and told once: well-known envs leave their boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import BadValue
from multiverse.core.failures import OnBadValue
from multiverse.core.layout import BAD_VALUES, COUNTS, OBSERVATIONS, OUT_OF_BOUNDS, Group, Leaf, leaves
from multiverse.core.views import Array, Views
from multiverse.ipc.env_rows import env_rows
from multiverse.ipc.own_columns import RangeColumns
from multiverse.ipc.space_rows import called

FEW_NUMBERS = 512

_clip: Any = getattr(np, "_core", None) or np.core
_clip = _clip.umath.clip  # the ufunc behind np.clip, whose wrapper takes three times as long


class _Watched:
    """One numeric leaf of some rows of observations, and the bounds it is compared with, all [envs, *shape]; where an
    env has several agents in the group, [envs, agents, *shape].

    A float's bounds are finite, so that an infinite number is outside them even where its space has none; integers
    whose type alone keeps them in bounds have none (None).
    """

    def __init__(self, leaf: Leaf, views: Views, group: Group, env_ids: range, float32: bool) -> None:
        self._name, self._group = (group.name, OBSERVATIONS, *leaf.path), group
        self.rows: Array = env_rows(views, group, self._name, env_ids).rows
        self.is_float = self.rows.dtype.kind == "f"
        self._most = _largest(self.rows.dtype, float32) if self.is_float else math.inf
        bounds, shape = _bounds(leaf.space, self.rows, self._most), self.rows.shape
        self.low: Array | None = None if bounds is None else np.broadcast_to(bounds[0], shape).copy()
        self.high: Array | None = None if bounds is None else np.broadcast_to(bounds[1], shape).copy()
        self._scratch = np.empty_like(self.rows)

    def row(self, i: int) -> _Watched:
        """The same of one row, over the same memory."""
        one = copy(self)
        for name in ("rows", "low", "high", "_scratch"):
            array = getattr(self, name)
            setattr(one, name, None if array is None else array[i : i + 1])
        return one

    def clean(self) -> Callable[[], bool] | None:
        """A function that tells whether every number is one, and inside its bounds; None if that cannot fail.

        Clipping leaves such numbers as they are. Memoryviews are compared by value, so a NaN is never equal to
        itself; past a few hundred numbers comparing bytes, and a product with zeros to find the NaNs, is faster.
        """
        if self.low is None or self.high is None:
            return None
        clip, values, scratch = _clip, self.rows.reshape(-1), self._scratch.reshape(-1)
        low, high = self.low.reshape(-1), self.high.reshape(-1)
        plain = values.dtype.char in "fdbBhHiIlLqQ?"  # what memoryviews know
        if values.size == 1 and plain:
            number, least, most = values.data, low.item(), high.item()
            return lambda: least <= number[0] <= most  # guard: a-single-number-is-looked-at
        if values.size <= FEW_NUMBERS and plain:
            found, expected = memoryview(cast(Any, values)), memoryview(cast(Any, scratch))

            def few_are_clean() -> bool:
                clip(values, low, high, scratch)
                return found == expected  # guard: observations-are-looked-at

            return few_are_clean
        zeros = np.zeros_like(values)
        dot = values.dot if self.is_float else lambda _: 0  # no whole number is NaN

        def many_are_clean() -> bool:
            clip(values, low, high, scratch)
            # guard: large-observations-are-looked-at
            return bool(scratch.tobytes() == values.tobytes() and dot(zeros) == 0)

        return many_are_clean

    # -- closely ---------------------------------------------------------------------------------------------
    def not_finite(self, i: int) -> BadValue | None:
        row = self.rows[i]
        if not self.is_float or self._usable(row).all():
            return None
        index = tuple(int(k) for k in np.argwhere(~self._usable(row))[0])
        value, (what, place) = row[index], self._place(index)
        dtype = row.dtype if np.isinf(value) else "float32, in which networks learn: scale it in the env"
        why = "" if np.isnan(value) else f" ({'or ' * bool(np.isinf(value))}too large for {dtype})"
        return BadValue(f"{what} is {value}{why}{place}")

    def _usable(self, values: Array) -> Array:
        """Which floats are finite where they are learned from."""
        return np.asarray(np.abs(values) <= self._most)  # guard: what-overflows-float32-is-not-learned-from

    def _place(self, index: tuple[int, ...]) -> tuple[str, str]:
        """What a number belongs to and where in it that is, in words."""
        several = len(self._group.agents) > 1
        whose = _of(self._group, index[0] if several else 0)
        return called(self._name) + whose, _at(index[1:] if several else index)

    def outside(self) -> Array:
        """[envs] bool: which rows have numbers outside their bounds."""
        beyond = self._beyond(slice(None))
        return np.asarray(beyond.reshape(len(beyond), -1).any(axis=1))

    def describe_outside(self, i: int) -> str:
        """The first number of row `i` outside its bounds, in words; '' if there is none."""
        found = np.argwhere(self._beyond(i))
        if not len(found) or self.low is None or self.high is None:
            return ""
        index = tuple(int(k) for k in found[0])
        what, place = self._place(index)
        return f"{what} is {self.rows[i][index]}{place}, its space says {self.low[i][index]} to {self.high[i][index]}"

    def _beyond(self, rows: int | slice) -> Array:
        """Which numbers are outside their bounds; those that are not finite count as bad instead."""
        values: Array = self.rows[rows]
        if self.low is None or self.high is None:
            return np.zeros(values.shape, np.bool_)
        beyond: Array = (values < self.low[rows]) | (values > self.high[rows])
        return beyond & self._usable(values) if self.is_float else beyond

    def clip(self, i: int) -> None:
        row = self.rows[i : i + 1]
        if self.is_float:
            np.nan_to_num(row, copy=False, posinf=self._most, neginf=-self._most)
        if self.low is not None and self.high is not None:
            np.clip(row, self.low[i : i + 1], self.high[i : i + 1], out=row)  # guard: a-clipped-value-is-inside


def _of(group: Group, position: int) -> str:
    """Whose it is, where an env has agents."""
    return f" of {group.agents[position]}" if group.may_be_absent else ""


def _at(index: tuple[int, ...]) -> str:
    return f" at index {index[0] if len(index) == 1 else index}" if index else ""


class _GroupRows:
    """What the envs of one range return for one group of agents."""

    def __init__(self, views: Views, group: Group, env_ids: range, own_rewards: Array, float32: bool) -> None:
        self._group, self._most = group, _largest(own_rewards.dtype, float32)
        numeric = [leaf for leaf in leaves(group.observation_space) if leaf.numeric]
        self.watched = [_Watched(leaf, views, group, env_ids, float32) for leaf in numeric]
        agents = len(group.agents)
        self._rewards = own_rewards.reshape(len(env_ids), agents)
        rewards = memoryview(cast(Any, own_rewards))
        self.look = _looker(self.watched, rewards, self._most)
        self.look_at = [
            _looker([watched.row(i) for watched in self.watched], rewards[i * agents : (i + 1) * agents], self._most)
            for i in range(len(env_ids))
        ]

    def not_finite(self, i: int) -> BadValue | None:
        found, rewards = self.observation_not_finite(i), self._rewards[i]
        bad = next(((k, reward) for k, reward in enumerate(rewards.tolist()) if not abs(reward) <= self._most), None)
        if found is not None or bad is None:
            return found
        large = " (too large for float32, in which networks learn: scale it in the env)" * math.isfinite(bad[1])
        return BadValue(f"the reward{_of(self._group, bad[0])} is {bad[1]}{large}")

    def observation_not_finite(self, i: int) -> BadValue | None:
        return next((bad for watched in self.watched if (bad := watched.not_finite(i)) is not None), None)

    def describe_outside(self, i: int) -> str:
        """The first number of env `i` outside its bounds, in words; '' if there is none."""
        return next(filter(None, (watched.describe_outside(i) for watched in self.watched)), "")

    def clip(self, i: int) -> None:
        for watched in self.watched:
            watched.clip(i)
        rewards = self._rewards[i]
        rewards[~(np.abs(rewards) <= self._most)] = 0.0  # guard: a-clipped-reward-is-nothing


class ValueGuard:
    """Of one range of envs. `mode` is the caller's `on_bad_value`, other than "off". `float32`: a learner casts what
    the envs return to it, and what overflows there is bad too."""

    look: Callable[[], bool]
    """Called after every step of the range: whether there is something to look at more closely."""

    def __init__(
        self, mode: OnBadValue, views: Views, env_ids: range, own: RangeColumns, float32: bool = False
    ) -> None:
        self.mode, self._first, self._count = mode, env_ids.start, len(env_ids)
        counts = views[COUNTS][:, env_ids.start : env_ids.stop]
        self._bad_values, self._out_of_bounds = counts[BAD_VALUES], counts[OUT_OF_BOUNDS]
        rewards = [*(columns.rewards for columns in own.groups), np.zeros(len(env_ids))]  # a state has none
        groups = zip(views.layout.shown, rewards)
        self._groups = [_GroupRows(views, group, env_ids, column, float32) for group, column in groups]
        looks = [group.look for group in self._groups]
        self.look = looks[0] if len(looks) == 1 else lambda: any(look() for look in looks)
        self.warnings: list[str] = []

    # -- after a step of the range -----------------------------------------------------------------------------
    def bad_rows(self, chosen: Sequence[int]) -> dict[int, BadValue]:
        """Which of the envs that have stepped returned numbers that are none."""
        return {i: bad for group in self._groups for i in chosen if (bad := group.not_finite(i)) is not None}

    def rows_outside(self) -> list[int]:
        """Which envs' observations are outside their bounds."""
        found = np.zeros(self._count, np.bool_)
        for group in self._groups:
            for watched in group.watched:
                found |= watched.outside()
        return np.flatnonzero(found).tolist()

    # -- at an episode's end and start -------------------------------------------------------------------------
    def check_end(self, i: int) -> None:
        """Before the next episode begins in its row: what env `i` returned is fit for use, or made so, or raised."""
        for group in self._groups:
            self._check(group, i, group.not_finite)

    def check_start(self, i: int) -> None:
        """After a reset: the same for the first observation, of which a bad one is counted here."""
        for group in self._groups:
            try:
                self._check(group, i, group.observation_not_finite)
            except BadValue:
                self.count(i)
                raise

    def _check(self, group: _GroupRows, i: int, not_finite: Callable[[int], BadValue | None]) -> None:
        if group.look_at[i]():
            if self.mode == "clip":
                self._clip(group, i)
                return
            bad = not_finite(i)
            if bad is not None:
                raise bad
            self._count_outside(group, i)

    # -- what was found ----------------------------------------------------------------------------------------
    def count(self, i: int) -> bool:
        """One more bad value of env `i`; True if it is its first."""
        self._bad_values[i] += 1
        return bool(self._bad_values[i] == 1)

    def count_outside(self, i: int) -> None:
        """One more step of env `i` outside its bounds, if it is; the first of its life is told."""
        for group in self._groups:
            self._count_outside(group, i)

    def _count_outside(self, group: _GroupRows, i: int) -> None:
        said = group.describe_outside(i)
        if said:
            if not self._out_of_bounds[i]:  # guard: outside-is-told-once
                env_id = self._first + i
                # guard: outside-is-told
                self.warnings.append(f"env {env_id}: {said}; counted from now on in envs.failures.out_of_bounds")
            self._out_of_bounds[i] += 1

    def clip(self, i: int) -> None:
        """Put what env `i` returned at the nearest number that is one, and inside its bounds."""
        for group in self._groups:
            self._clip(group, i)

    def _clip(self, group: _GroupRows, i: int) -> None:
        if group.not_finite(i) is not None:
            self.count(i)
        if group.describe_outside(i):
            self._out_of_bounds[i] += 1
        group.clip(i)

    def take_warnings(self) -> list[str]:
        said, self.warnings = self.warnings, []
        return said


def _looker(watched: list[_Watched], rewards: Any, most: float) -> Callable[[], bool]:
    """A function that looks at some rows as a whole. It runs at every step, so what can be prepared is."""
    leaves_clean = [clean for w in watched if (clean := w.clean()) is not None]
    if len(leaves_clean) == 1:
        (clean,) = leaves_clean

        def one_leaf_odd() -> bool:
            # guard: rewards-beside-one-array-are-looked-at
            return not sum(map(abs, rewards)) <= most or not clean()  # no comparison holds for NaN

        return one_leaf_odd

    def any_leaf_odd() -> bool:
        for clean in leaves_clean:
            if not clean():
                return True
        return not sum(map(abs, rewards)) <= most  # guard: rewards-are-looked-at

    return any_leaf_odd


def _largest(dtype: np.dtype[Any], float32: bool) -> float:
    """Largest finite number of a float type; of float32, if that is what it is cast to."""
    return float(min(np.finfo(dtype).max, np.finfo(np.float32).max if float32 else np.inf))


def _bounds(space: spaces.Space[Any], array: Array, most: float) -> tuple[Array, Array] | None:
    """Lowest and highest values of one row; None where every number of the type is allowed."""
    if array.dtype.kind == "f":
        return np.maximum(space.low, -most), np.minimum(space.high, most)  # type: ignore[attr-defined]
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.nvec - 1)
    else:  # MultiBinary
        low, high = np.zeros((), array.dtype), np.ones((), array.dtype)
    least, largest = _limits(array.dtype)
    if (low <= least).all() and (high >= largest).all():
        return None
    return low.astype(array.dtype), high.astype(array.dtype)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
