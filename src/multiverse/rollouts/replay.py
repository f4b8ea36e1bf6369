"""Replay: the latest steps of every slot, from which algorithms draw batches.

A ring of rows [capacity // slots, slots]. The next observation of a step is not stored twice: it is the observation of
the next row or, at the end of an episode, the final observation, which is stored apart. Rows are numbered from the
beginning of the run and never change, so that a checkpoint saves only the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array, Leaf
from multiverse.core.policy import Leaves
from multiverse.core.tables import SavedTable, Table
from multiverse.core.wording import format_bytes
from multiverse.policies.features import dtype_of, numeric_leaves, shape_of
from multiverse.rollouts.rollout import Rollout

VALID, TERMINATED, TRUNCATED, STARTS = (np.uint8(1 << bit) for bit in range(4))
ENDED = TERMINATED | TRUNCATED
TRIES = 8
"""Attempts to replace drawn rows that were lost, before all usable rows are enumerated."""


class NothingToDraw(InvalidRequest):
    """Replay contains no usable step."""


class ReplaySteps(NamedTuple):
    """Single steps, drawn from all slots.  N: number of steps."""

    observations: Leaves  # [N, …] per leaf
    actions: Array  # [N, …]
    rewards: Array  # [N] float32
    next_observations: Leaves  # [N, …] per leaf; at the end of an episode, its final observation
    terminated: Array  # [N] bool: the episode reached a terminal state; False at a time limit


class Sequences(NamedTuple):
    """Sequences of consecutive steps, each of one episode.  L: number of steps, B: number of sequences."""

    observations: Leaves  # [L + 1, B, …] per leaf: row t + 1 follows step t
    actions: Array  # [L, B, …]
    rewards: Array  # [L, B] float32
    terminated: Array  # [L, B] bool
    starts: Array  # [B] bool: it begins at the start of its episode
    mask: Array  # [L, B] bool: up to the end of the sequence; the rest is zero


class Replay:
    """The latest `capacity` steps of all slots."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action: tuple[tuple[int, ...], Any],
        slots: int,
        capacity: int,
        beside: Sequence[Leaf] = (),
    ) -> None:
        """`action`: (shape, dtype) of one action in rollouts. `beside`: leaves of rollouts that the space lacks."""
        from multiverse.executors.machine import memory_available  # help is shown without it

        if capacity < slots:
            raise InvalidRequest(f"buffer_size={capacity}: expected at least {slots}, a step of each env")
        self._slots, self._steps = slots, capacity // slots
        self._ring = self._steps + 1  # one more row for the observations after the newest steps
        leaves, (shape, dtype) = [*numeric_leaves(observation_space), *beside], action
        self._paths = [leaf.path for leaf in leaves]
        # These names are those of saved tables.
        observed = [(f"seen{k}", dtype_of(leaf), shape_of(leaf)) for k, leaf in enumerate(leaves)]
        others = [
            ("action", np.dtype(dtype), shape),
            ("reward", np.dtype(np.float32), ()),
            ("flags", np.dtype("u1"), ()),
        ]
        self._dtype = np.dtype([(name, kind, (slots, *of)) for name, kind, of in (*observed, *others)])
        if (needed := self._ring * self._dtype.itemsize) > memory_available():
            available = format_bytes(memory_available())
            raise InvalidRequest(
                f"buffer_size={capacity} needs {format_bytes(needed)} of memory, but {available} are free: reduce it"
            )
        columns = [*observed, *others]
        self._columns = {name: np.zeros((self._ring * slots, *of), kind) for name, kind, of in columns}  # row by row
        self._observations = {path: self._columns[f"seen{k}"] for k, path in enumerate(self._paths)}
        self._flags = self._columns["flags"]
        self._finals = _StepTable(np.dtype([("at", np.int64), *observed]))
        self.added = 0  # rows since the beginning of the run
        self._rewarded, self._searched = _StepTable(np.dtype([("at", np.int64)])), 0  # rewards up to this step
        self._run, self._longest = np.zeros(slots, np.int64), 0  # rows of the current episodes; of the longest one

    def __len__(self) -> int:
        """Number of stored steps, including lost ones."""
        return min(self.added, self._steps) * self._slots

    @property
    def _first(self) -> int:
        """Number of the oldest stored row."""
        return max(0, self.added - self._steps)

    # -- adding --------------------------------------------------------------------------------------------------
    def add(self, rollout: Rollout) -> None:
        """Add the rows of a rollout, or the last ones that fit."""
        skipped = max(0, rollout.steps - self._steps)
        flags = VALID * rollout.valid
        for flag, column in (
            (TERMINATED, rollout.terminated),
            (TRUNCATED, rollout.truncated),
            (STARTS, rollout.starts),
        ):
            flags |= flag * column
        self._count_runs(rollout)
        steps, slots, finals = rollout.ends()
        self._finals.add((self.added + steps) * self._slots + slots, list(finals.values()))
        for place, part in self._parts(self.added + skipped, self.added + rollout.steps):
            part = slice(part.start + skipped, part.stop + skipped)
            for path, rows in self._observations.items():
                rows[place] = _joined(rollout.observations[path][part])
            self._columns["action"][place] = _joined(rollout.actions[part])
            self._columns["reward"][place] = _joined(rollout.rewards[part])
            self._flags[place] = _joined(flags[part])
        self.added += rollout.steps
        self._write_last(rollout.last)
        self._finals.forget(self._first * self._slots)

    def _write_last(self, last: Leaves) -> None:
        """Write the observations after the newest rows to the place of the next ones."""
        ((after, _),) = self._parts(self.added, self.added + 1)
        for path, rows in self._observations.items():
            rows[after] = last[path]
        self._flags[after] = 0

    def _count_runs(self, rollout: Rollout) -> None:
        for starts in rollout.starts:
            self._run[starts] = 0
            self._run += 1
            self._longest = max(self._longest, int(self._run.max()))

    def _parts(self, first: int, last: int) -> list[tuple[slice, slice]]:
        """Places of the steps of these rows in the ring, and the rows of each part: two parts around the ring's end."""
        start, count = first % self._ring, last - first
        fits = min(count, self._ring - start)
        parts = [(start, 0, fits), (0, fits, count)] if fits < count else [(start, 0, count)]
        return [
            (slice(place * self._slots, (place + stop - begin) * self._slots), slice(begin, stop))
            for place, begin, stop in parts
        ]

    def _at(self, numbers: Array) -> Array:
        """Places of steps in the ring: step s of row r has the number r × slots + s."""
        return numbers % (self._ring * self._slots)

    # -- drawing -------------------------------------------------------------------------------------------------
    def rows(self, rng: np.random.Generator, count: int, rewarded: float = 0.0) -> ReplaySteps:
        """`count` steps, drawn with replacement from all that were not lost; the fraction `rewarded` of them from steps
        with a reward, if there are any."""
        numbers = self._drawn(rng, count, rewarded)
        at = self._at(numbers)
        following = self._at(numbers + self._slots)
        flags = self._flags[at]
        observations = {path: rows[at] for path, rows in self._observations.items()}
        after = {path: rows[following] for path, rows in self._observations.items()}
        ended = np.flatnonzero(flags & ENDED)
        if len(ended):
            for path, finals in zip(self._paths, self._finals.leaves_of(numbers[ended])):
                after[path][ended] = finals
        columns = self._columns
        return ReplaySteps(
            observations=observations,
            actions=columns["action"][at],
            rewards=columns["reward"][at],
            next_observations=after,
            terminated=(flags & TERMINATED) != 0,
        )

    def _drawn(self, rng: np.random.Generator, count: int, rewarded: float) -> Array:
        """[count] numbers of steps."""
        low, high = self._first * self._slots, self.added * self._slots
        if low == high:
            raise NothingToDraw("replay is empty: no step can be drawn yet")
        numbers = rng.integers(low, high, count)
        if rewarded and len(candidates := self._with_reward()):
            share = max(1, round(rewarded * count))
            numbers[:share] = candidates[rng.integers(0, len(candidates), share)]
        usable = self._usable(numbers)
        for _ in range(TRIES):
            if usable.all():
                return numbers
            lost = np.flatnonzero(~usable)
            numbers[lost] = rng.integers(low, high, len(lost))
            usable = self._usable(numbers)
        every = np.arange(low, high)
        every = every[self._usable(every)]
        if not len(every):
            raise NothingToDraw("all steps in replay were lost: no step can be drawn")
        lost = np.flatnonzero(~usable)
        numbers[lost] = every[rng.integers(0, len(every), len(lost))]
        return numbers

    def _with_reward(self) -> Array:
        """Numbers of all steps with a reward other than 0 that were not lost; only new steps are searched."""
        low, high = self._first * self._slots, self.added * self._slots
        new = np.arange(max(low, self._searched), high)
        at = self._at(new)
        new = new[(self._columns["reward"][at] != 0) & ((self._flags[at] & VALID) != 0)]
        self._rewarded.add(new, [])
        self._rewarded.forget(low)
        self._searched = high
        return self._rewarded.numbers()

    def _usable(self, numbers: Array) -> Array:
        """Bool: the step was not lost, and its next observation is known. An env that was lost between two rollouts
        begins an episode although the one before has not ended."""
        flags, following = self._flags[self._at(numbers)], self._flags[self._at(numbers + self._slots)]
        known = ((flags & ENDED) != 0) | ((following & STARTS) == 0)  # guard: replay-bridges-no-gap
        return np.asarray(((flags & VALID) != 0) & known)  # guard: replay-draws-no-lost-rows

    def sequences(
        self, rng: np.random.Generator, count: int, length: int | None = None, rewarded: float = 0.0
    ) -> Sequences:
        """`count` sequences of up to `length` consecutive steps of an episode; None: of whole episodes, as far as they
        are still stored. Each contains a step that is drawn as by `rows`, so long episodes are drawn more often, and is
        as long as its episode allows."""
        limit = min(self._longest, len(self) // self._slots, self._longest if length is None else length)
        drawn = self._drawn(rng, count, rewarded)
        back, ahead = (self._reach(drawn, limit - 1, way) for way in (-1, 1))
        if length is None:
            begin, lengths = back, back + ahead + 1
        else:  # at a random position around the drawn step
            lengths = np.minimum(back + ahead + 1, length)
            least, most = np.maximum(0, lengths - 1 - ahead), np.minimum(back, lengths - 1)
            begin = least + (rng.random(count) * (most - least + 1)).astype(np.int64)
        steps = np.arange(int(lengths.max()))[:, None]
        numbers = drawn + (steps - begin) * self._slots
        mask = steps < lengths
        return self._gathered(numbers, mask, lengths)

    def _gathered(self, numbers: Array, mask: Array, lengths: Array) -> Sequences:
        at, columns = self._at(numbers), self._columns
        flags = self._flags[at]
        last = numbers[lengths - 1, np.arange(len(lengths))]
        following, ended = self._at(last + self._slots), (self._flags[self._at(last)] & ENDED) != 0
        finals = self._finals.leaves_of(last[ended])
        observations = {}
        for k, (path, rows) in enumerate(self._observations.items()):
            leaf = np.zeros((len(mask) + 1, *mask.shape[1:], *rows.shape[1:]), rows.dtype)
            leaf[:-1][mask] = rows[at[mask]]
            after = rows[following]
            after[ended] = finals[k]
            leaf[lengths, np.arange(len(lengths))] = after
            observations[path] = leaf
        actions = columns["action"][at]
        actions[~mask] = 0
        rewards = np.where(mask, columns["reward"][at], np.float32(0))
        starts = (flags[0] & STARTS) != 0
        return Sequences(observations, actions, rewards, ((flags & TERMINATED) != 0) & mask, starts, mask)

    def _reach(self, numbers: Array, most: int, way: int) -> Array:
        """Number of usable steps of the same episode that precede (-1) or follow (1) each of these without a gap."""
        places = numbers + way * self._slots * np.arange(1, most + 1)[:, None]
        there = (places >= self._first * self._slots) & (places < self.added * self._slots)
        earlier = np.where(there, places, numbers) if way < 0 else np.where(there, places - self._slots, numbers)
        continues = (self._flags[self._at(earlier)] & ENDED) == 0
        joined = there & continues & self._usable(np.where(there, places, numbers)) & self._usable(earlier)
        return np.asarray(np.logical_and.accumulate(joined, axis=0).sum(axis=0))

    # -- saving --------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Tables, of which a checkpoint writes only the new rows, and a few small values."""
        ((after, _),) = self._parts(self.added, self.added + 1)
        return {
            "rows": Table(self._dtype, self._first, self.added, self._records),
            "finals": self._finals.table(),
            "last": {str(k): rows[after].copy() for k, rows in enumerate(self._observations.values())},
            "added": self.added,
            "run": self._run.copy(),
            "longest": self._longest,
        }

    def _records(self, first: int, last: int) -> Array:
        records = np.empty(last - first, self._dtype)
        for place, part in self._parts(first, last):
            for name, column in self._columns.items():
                records[name][part] = column[place].reshape(-1, self._slots, *column.shape[1:])
        return records

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore a state of a replay with the same spaces, slots and capacity; None leaves it empty, for a run that is
        resumed without its replay."""
        if state is None:
            return
        rows: SavedTable = state["rows"]
        self.added = int(state["added"])
        if (rows.first, rows.last) != (self._first, self.added):
            raise ValueError(f"expected rows {self._first} to {self.added}, got {rows.first} to {rows.last}")
        number = rows.first
        for piece in rows.pieces(self._dtype):
            for place, part in self._parts(number, number + len(piece)):
                for name, column in self._columns.items():
                    column[place] = _joined(piece[name][part])
            number += len(piece)
        self._finals.load(state["finals"])
        self._rewarded, self._searched = _StepTable(np.dtype([("at", np.int64)])), 0
        self._write_last({path: np.asarray(state["last"][str(k)]) for k, path in enumerate(self._paths)})
        self._run[...], self._longest = np.asarray(state["run"]), int(state["longest"])


def _joined(rows: Array) -> Array:
    """[T, S, …] → [T × S, …]"""
    return rows.reshape(-1, *rows.shape[2:])


class _StepTable:
    """Records of selected steps, in their order (such as final observations): a window that moves along an array, which
    grows if necessary."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype, self._kept, self._from, self._to = dtype, np.empty(64, dtype), 0, 0
        self._forgotten = 0

    def add(self, numbers: Array, leaves: list[Array]) -> None:
        """Add records of these steps, ascending."""
        if self._to + len(numbers) > len(self._kept):
            count = self._to - self._from
            size = max(len(self._kept), 2 * (count + len(numbers)))
            kept = np.empty(size, self._dtype)
            kept[:count] = self._kept[self._from : self._to]
            self._kept, self._from, self._to = kept, 0, count
        place = slice(self._to, self._to + len(numbers))
        self._kept["at"][place] = numbers
        for k, leaf in enumerate(leaves):
            self._kept[f"seen{k}"][place] = leaf
        self._to = place.stop

    def forget(self, before: int) -> None:
        """Remove records of steps before this number."""
        gone = int(np.searchsorted(self.numbers(), before))
        self._from, self._forgotten = self._from + gone, self._forgotten + gone

    def numbers(self) -> Array:
        """Numbers of the steps in the table."""
        return np.asarray(self._kept["at"][self._from : self._to])

    def leaves_of(self, numbers: Array) -> list[Array]:
        """[numbers, …] per leaf, of steps in the table."""
        places = self._from + np.searchsorted(self.numbers(), numbers)
        return [self._kept[name][places] for name in self._dtype.names[1:]]  # type: ignore[index]

    def table(self) -> Table:
        first, last, shift = self._forgotten, self._forgotten + self._to - self._from, self._from - self._forgotten
        return Table(self._dtype, first, last, lambda low, high: self._kept[low + shift : high + shift])

    def load(self, saved: SavedTable) -> None:
        count = saved.last - saved.first
        self._kept, self._from, self._to = np.empty(max(64, 2 * count), self._dtype), 0, 0
        for piece in saved.pieces(self._dtype):
            self._kept[self._to : self._to + len(piece)] = piece
            self._to += len(piece)
        self._forgotten = saved.first
