"""The value guard: checks the values that envs return before a learner uses them.

A NaN or an infinite number in an observation or a reward ruins a learner permanently, and its origin cannot be found
once it is in a batch. So each range is checked as a whole after its envs have stepped, in under a microsecond, and row
by row only if that check fails. Numbers outside their space's bounds are counted, with one warning, because
observations of well-known envs leave their bounds.
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
from multiverse.core.layout import BAD_VALUES, COUNTS, OBSERVATIONS, OUT_OF_BOUNDS, Array, Group, Leaf, Views, leaves
from multiverse.ipc.env_rows import env_rows
from multiverse.ipc.own_columns import RangeColumns
from multiverse.ipc.space_rows import leaf_name

FEW_NUMBERS = 512

_clip: Any = getattr(np, "_core", None) or np.core
_clip = _clip.umath.clip  # the ufunc behind np.clip, whose wrapper takes three times as long


class _Watched:
    """One numeric leaf of some rows of observations, and its bounds: all [envs, *shape] or, for groups with several
    agents, [envs, agents, *shape].

    The bounds of floats are always finite, so that infinite numbers are outside them. They are None for integers whose
    dtype alone keeps them within the space.
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
        """A view of one row, over the same memory."""
        view = copy(self)
        for name in ("rows", "low", "high", "_scratch"):
            array = getattr(self, name)
            setattr(view, name, None if array is None else array[i : i + 1])
        return view

    def clean(self) -> Callable[[], bool] | None:
        """A function that returns whether all numbers are finite and within bounds; None if that is always true.

        Clipping does not change such numbers. Memoryviews are compared by value, so a NaN is never equal to itself;
        above a few hundred numbers it is faster to compare bytes, and to find NaNs by a product with zeros.
        """
        if self.low is None or self.high is None:
            return None
        clip, values, scratch = _clip, self.rows.reshape(-1), self._scratch.reshape(-1)
        low, high = self.low.reshape(-1), self.high.reshape(-1)
        plain = values.dtype.char in "fdbBhHiIlLqQ?"  # dtypes that memoryviews can compare
        if values.size == 1 and plain:
            number, least, most = values.data, low.item(), high.item()
            return lambda: least <= number[0] <= most  # guard: a-single-number-is-looked-at
        if values.size <= FEW_NUMBERS and plain:
            actual, clipped = memoryview(cast(Any, values)), memoryview(cast(Any, scratch))

            def few_are_clean() -> bool:
                clip(values, low, high, scratch)
                return actual == clipped  # guard: observations-are-looked-at

            return few_are_clean
        zeros = np.zeros_like(values)
        dot = values.dot if self.is_float else lambda _: 0  # integers are never NaN

        def many_are_clean() -> bool:
            clip(values, low, high, scratch)
            # guard: large-observations-are-looked-at
            return bool(scratch.tobytes() == values.tobytes() and dot(zeros) == 0)

        return many_are_clean

    # -- row by row ------------------------------------------------------------------------------------------
    def not_finite(self, i: int) -> BadValue | None:
        row = self.rows[i]
        if not self.is_float or self._usable(row).all():
            return None
        index = tuple(int(k) for k in np.argwhere(~self._usable(row))[0])
        value, (what, place) = row[index], self._place(index)
        dtype = row.dtype if np.isinf(value) else "float32, which networks use: scale it in the env"
        why = "" if np.isnan(value) else f" ({'or ' * bool(np.isinf(value))}too large for {dtype})"
        return BadValue(f"{what} is {value}{why}{place}")

    def _usable(self, values: Array) -> Array:
        """[values] bool: finite in the dtype that learners use."""
        return np.asarray(np.abs(values) <= self._most)  # guard: what-overflows-float32-is-not-learned-from

    def _place(self, index: tuple[int, ...]) -> tuple[str, str]:
        """(name of the leaf and agent, position in it) of a number, for messages."""
        several = len(self._group.agents) > 1
        agent = _agent_text(self._group, index[0] if several else 0)
        return leaf_name(self._name) + agent, _index_text(index[1:] if several else index)

    def outside(self) -> Array:
        """[envs] bool: rows with numbers outside their bounds."""
        beyond = self._beyond(slice(None))
        return np.asarray(beyond.reshape(len(beyond), -1).any(axis=1))

    def describe_outside(self, i: int) -> str:
        """Text about the first number of row `i` that is outside its bounds; '' if there is none."""
        outside = np.argwhere(self._beyond(i))
        if not len(outside) or self.low is None or self.high is None:
            return ""
        index = tuple(int(k) for k in outside[0])
        what, place = self._place(index)
        return f"{what} is {self.rows[i][index]}{place}, its space says {self.low[i][index]} to {self.high[i][index]}"

    def _beyond(self, rows: int | slice) -> Array:
        """Mask of finite numbers outside their bounds; numbers that are not finite are bad values instead."""
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


def _agent_text(group: Group, position: int) -> str:
    """The agent's name, for envs with several agents."""
    return f" of {group.agents[position]}" if group.may_be_absent else ""


def _index_text(index: tuple[int, ...]) -> str:
    return f" at index {index[0] if len(index) == 1 else index}" if index else ""


class _GroupRows:
    """Observations and rewards of one group of agents, in the envs of one range."""

    def __init__(self, views: Views, group: Group, env_ids: range, own_rewards: Array, float32: bool) -> None:
        self._group, self._most = group, _largest(own_rewards.dtype, float32)
        numeric = [leaf for leaf in leaves(group.observation_space) if leaf.numeric]
        self.watched = [_Watched(leaf, views, group, env_ids, float32) for leaf in numeric]
        agents = len(group.agents)
        self._rewards = own_rewards.reshape(len(env_ids), agents)
        rewards = memoryview(cast(Any, own_rewards))
        self.suspicious = _checker(self.watched, rewards, self._most)
        self.suspicious_in = [
            _checker([watched.row(i) for watched in self.watched], rewards[i * agents : (i + 1) * agents], self._most)
            for i in range(len(env_ids))
        ]

    def not_finite(self, i: int) -> BadValue | None:
        error, rewards = self.observation_not_finite(i), self._rewards[i]
        bad = next(((k, reward) for k, reward in enumerate(rewards.tolist()) if not abs(reward) <= self._most), None)
        if error is not None or bad is None:
            return error
        large = " (too large for float32, which networks use: scale it in the env)" * math.isfinite(bad[1])
        return BadValue(f"the reward{_agent_text(self._group, bad[0])} is {bad[1]}{large}")

    def observation_not_finite(self, i: int) -> BadValue | None:
        return next((bad for watched in self.watched if (bad := watched.not_finite(i)) is not None), None)

    def describe_outside(self, i: int) -> str:
        """Text about the first number of env `i` that is outside its bounds; '' if there is none."""
        return next(filter(None, (watched.describe_outside(i) for watched in self.watched)), "")

    def clip(self, i: int) -> None:
        for watched in self.watched:
            watched.clip(i)
        rewards = self._rewards[i]
        rewards[~(np.abs(rewards) <= self._most)] = 0.0  # guard: a-clipped-reward-is-nothing


class ValueGuard:
    """Checks one range of envs. `mode` is the caller's `on_bad_value`, other than "off". `float32`: a learner casts the
    values to float32, so those that overflow it are bad too."""

    suspicious: Callable[[], bool]
    """Called after every step of the range: whether its rows have to be checked one by one."""

    def __init__(
        self, mode: OnBadValue, views: Views, env_ids: range, own: RangeColumns, float32: bool = False
    ) -> None:
        self.mode, self._first, self._count = mode, env_ids.start, len(env_ids)
        counts = views[COUNTS][:, env_ids.start : env_ids.stop]
        self._bad_values, self._out_of_bounds = counts[BAD_VALUES], counts[OUT_OF_BOUNDS]
        rewards = [*(columns.rewards for columns in own.groups), np.zeros(len(env_ids))]  # a state has none
        groups = zip(views.layout.shown, rewards)
        self._groups = [_GroupRows(views, group, env_ids, column, float32) for group, column in groups]
        checks = [group.suspicious for group in self._groups]
        self.suspicious = checks[0] if len(checks) == 1 else lambda: any(check() for check in checks)
        self.warnings: list[str] = []

    # -- after a step of the range -----------------------------------------------------------------------------
    def bad_rows(self, chosen: Sequence[int]) -> dict[int, BadValue]:
        """Errors of the envs among `chosen` that returned numbers that are not finite."""
        return {i: bad for group in self._groups for i in chosen if (bad := group.not_finite(i)) is not None}

    def rows_outside(self) -> list[int]:
        """Envs whose observations are outside their bounds."""
        outside = np.zeros(self._count, np.bool_)
        for group in self._groups:
            for watched in group.watched:
                outside |= watched.outside()
        return np.flatnonzero(outside).tolist()

    # -- at an episode's end and start -------------------------------------------------------------------------
    def check_end(self, i: int) -> None:
        """Check (or clip) what env `i` returned, before the next episode overwrites its row; raises `BadValue`."""
        for group in self._groups:
            self._check(group, i, group.not_finite)

    def check_start(self, i: int) -> None:
        """Likewise for the first observation after a reset; bad ones are counted here."""
        for group in self._groups:
            try:
                self._check(group, i, group.observation_not_finite)
            except BadValue:
                self.count(i)
                raise

    def _check(self, group: _GroupRows, i: int, not_finite: Callable[[int], BadValue | None]) -> None:
        if group.suspicious_in[i]():
            if self.mode == "clip":
                self._clip(group, i)
                return
            bad = not_finite(i)
            if bad is not None:
                raise bad
            self._count_outside(group, i)

    # -- counters ----------------------------------------------------------------------------------------------
    def count(self, i: int) -> bool:
        """Count a bad value of env `i`; True if it is its first."""
        self._bad_values[i] += 1
        return bool(self._bad_values[i] == 1)

    def count_outside(self, i: int) -> None:
        """Count a step of env `i` if it is outside its bounds, with a warning for the env's first."""
        for group in self._groups:
            self._count_outside(group, i)

    def _count_outside(self, group: _GroupRows, i: int) -> None:
        outside = group.describe_outside(i)
        if outside:
            if not self._out_of_bounds[i]:  # guard: outside-is-told-once
                env_id = self._first + i
                # guard: outside-is-told
                self.warnings.append(f"env {env_id}: {outside}; from now on counted in envs.failures.out_of_bounds")
            self._out_of_bounds[i] += 1

    def clip(self, i: int) -> None:
        """Move what env `i` returned to the nearest finite numbers within bounds."""
        for group in self._groups:
            self._clip(group, i)

    def _clip(self, group: _GroupRows, i: int) -> None:
        if group.not_finite(i) is not None:
            self.count(i)
        if group.describe_outside(i):
            self._out_of_bounds[i] += 1
        group.clip(i)

    def take_warnings(self) -> list[str]:
        warnings, self.warnings = self.warnings, []
        return warnings


def _checker(watched: list[_Watched], rewards: Any, most: float) -> Callable[[], bool]:
    """A function that checks some rows as a whole. It runs at every step, so everything is prepared here."""
    leaves_clean = [clean for w in watched if (clean := w.clean()) is not None]
    if len(leaves_clean) == 1:
        (clean,) = leaves_clean

        def one_leaf_suspicious() -> bool:
            # guard: rewards-beside-one-array-are-looked-at
            return not sum(map(abs, rewards)) <= most or not clean()  # all comparisons with NaN are false

        return one_leaf_suspicious

    def any_leaf_suspicious() -> bool:
        for clean in leaves_clean:
            if not clean():
                return True
        return not sum(map(abs, rewards)) <= most  # guard: rewards-are-looked-at

    return any_leaf_suspicious


def _largest(dtype: np.dtype[Any], float32: bool) -> float:
    """Largest finite number of a float dtype, or of float32 if values are cast to it."""
    return float(min(np.finfo(dtype).max, np.finfo(np.float32).max if float32 else np.inf))


def _bounds(space: spaces.Space[Any], array: Array, most: float) -> tuple[Array, Array] | None:
    """Lowest and highest values of one row; None if every number of the dtype is allowed."""
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
