"""Replay: the latest steps of every slot, kept as they were collected, to learn from again and again.

A ring of rows [capacity // slots, slots]. What a step led to is not kept twice: it is the next row's observation, or,
where an episode ended, its final observation, which lies apart. Rows are numbered since the very beginning and never
change once they are there, so that a checkpoint saves only the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest, in_bytes
from multiverse.core.layout import Leaf
from multiverse.core.policy import Leaves
from multiverse.core.tables import SavedTable, Table
from multiverse.core.views import Array
from multiverse.policies.features import dtype_of, numeric_leaves, shape_of
from multiverse.rollouts.rollout import Rollout

VALID, TERMINATED, TRUNCATED, STARTS = (np.uint8(1 << bit) for bit in range(4))
ENDED = TERMINATED | TRUNCATED
TRIES = 8
"""To draw rows anew in place of those that were lost, before all others are looked up."""


class NothingToDraw(InvalidRequest):
    """Replay holds no step that could be learned from."""


class Rows(NamedTuple):
    """Single steps.  N of them, drawn from all slots."""

    observations: Leaves  # [N, …] per leaf
    actions: Array  # [N, …]
    rewards: Array  # [N] float32
    next_observations: Leaves  # [N, …] what the step led to; where an episode ended, its final observation
    terminated: Array  # [N] bool: the task ended there; a time-out is none


class Sequences(NamedTuple):
    """Consecutive steps of one episode each.  L steps, B sequences."""

    observations: Leaves  # [L + 1, B, …] per leaf: row t + 1 is what step t led to
    actions: Array  # [L, B, …]
    rewards: Array  # [L, B] float32
    terminated: Array  # [L, B] bool
    starts: Array  # [B] bool: it begins where its episode does
    mask: Array  # [L, B] bool: up to the sequence's end; all else is zero


class Replay:
    """The latest `capacity` steps of so many slots."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action: tuple[tuple[int, ...], Any],
        slots: int,
        capacity: int,
        beside: Sequence[Leaf] = (),
    ) -> None:
        """`action`: (shape, dtype) of one action as the rollout holds it. `beside`: what it has beside the space's
        leaves."""
        from multiverse.executors.machine import memory_available  # help is shown without it

        if capacity < slots:
            raise InvalidRequest(f"buffer_size={capacity}: at least one step of each of the {slots} envs")
        self._slots, self._steps = slots, capacity // slots
        self._ring = self._steps + 1  # one row shows what the newest steps led to
        kinds, (shape, dtype) = [*numeric_leaves(observation_space), *beside], action
        self._paths = [leaf.path for leaf in kinds]
        seen = [(f"seen{k}", dtype_of(leaf), shape_of(leaf)) for k, leaf in enumerate(kinds)]
        did = [("action", np.dtype(dtype), shape), ("reward", np.dtype(np.float32), ()), ("flags", np.dtype("u1"), ())]
        self._dtype = np.dtype([(name, kind, (slots, *of)) for name, kind, of in (*seen, *did)])
        if (needed := self._ring * self._dtype.itemsize) > memory_available():
            available = in_bytes(memory_available())
            raise InvalidRequest(
                f"buffer_size={capacity}: {in_bytes(needed)}, and {available} of memory are available: a smaller one"
            )
        columns = [*seen, *did]
        self._columns = {name: np.zeros((self._ring * slots, *of), kind) for name, kind, of in columns}  # row by row
        self._seen = {path: self._columns[f"seen{k}"] for k, path in enumerate(self._paths)}
        self._flags = self._columns["flags"]
        self._finals = _OfSteps(np.dtype([("at", np.int64), *seen]))
        self.added = 0  # rows of all slots, since the beginning
        self._rewarded, self._looked_up = _OfSteps(np.dtype([("at", np.int64)])), 0  # with a reward; up to which step
        self._run, self._longest = np.zeros(slots, np.int64), 0  # of episodes: rows so far; of the longest one

    def __len__(self) -> int:
        """Steps that are in it, lost ones too."""
        return min(self.added, self._steps) * self._slots

    @property
    def _first(self) -> int:
        """The oldest row that is still there."""
        return max(0, self.added - self._steps)

    # -- adding --------------------------------------------------------------------------------------------------
    def add(self, rollout: Rollout) -> None:
        """All of its rows, or the last ones that there is room for."""
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
            for path, seen in self._seen.items():
                seen[place] = _joined(rollout.observations[path][part])
            self._columns["action"][place] = _joined(rollout.actions[part])
            self._columns["reward"][place] = _joined(rollout.rewards[part])
            self._flags[place] = _joined(flags[part])
        self.added += rollout.steps
        self._show(rollout.last)
        self._finals.forget(self._first * self._slots)

    def _show(self, last: Leaves) -> None:
        """What the newest rows led to stands where the next ones will."""
        ((after, _),) = self._parts(self.added, self.added + 1)
        for path, seen in self._seen.items():
            seen[after] = last[path]
        self._flags[after] = 0

    def _count_runs(self, rollout: Rollout) -> None:
        for starts in rollout.starts:
            self._run[starts] = 0
            self._run += 1
            self._longest = max(self._longest, int(self._run.max()))

    def _parts(self, first: int, last: int) -> list[tuple[slice, slice]]:
        """Where the steps of these rows are in the ring, and which of the rows they are: two parts around its end."""
        start, count = first % self._ring, last - first
        fits = min(count, self._ring - start)
        parts = [(start, 0, fits), (0, fits, count)] if fits < count else [(start, 0, count)]
        return [
            (slice(place * self._slots, (place + stop - begin) * self._slots), slice(begin, stop))
            for place, begin, stop in parts
        ]

    def _at(self, numbers: Array) -> Array:
        """Where in the ring steps are: step s of row r has the number r × slots + s."""
        return numbers % (self._ring * self._slots)

    # -- drawing -------------------------------------------------------------------------------------------------
    def rows(self, rng: np.random.Generator, count: int, rewarded: float = 0.0) -> Rows:
        """So many steps, each drawn from all that were not lost, with replacement; this fraction of them from those
        with a reward, as soon as there are any."""
        numbers = self._drawn(rng, count, rewarded)
        at = self._at(numbers)
        following = self._at(numbers + self._slots)
        flags = self._flags[at]
        observations = {path: seen[at] for path, seen in self._seen.items()}
        after = {path: seen[following] for path, seen in self._seen.items()}
        ended = np.flatnonzero(flags & ENDED)
        if len(ended):
            for path, finals in zip(self._paths, self._finals.found(numbers[ended])):
                after[path][ended] = finals
        columns = self._columns
        return Rows(observations, columns["action"][at], columns["reward"][at], after, (flags & TERMINATED) != 0)

    def _drawn(self, rng: np.random.Generator, count: int, rewarded: float) -> Array:
        """[count] numbers of steps."""
        low, high = self._first * self._slots, self.added * self._slots
        if low == high:
            raise NothingToDraw("replay is empty: nothing can be drawn from it yet")
        numbers = rng.integers(low, high, count)
        if rewarded and len(those := self._with_reward()):
            some = max(1, round(rewarded * count))
            numbers[:some] = those[rng.integers(0, len(those), some)]
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
            raise NothingToDraw("replay holds no step that was not lost: nothing can be drawn from it")
        lost = np.flatnonzero(~usable)
        numbers[lost] = every[rng.integers(0, len(every), len(lost))]
        return numbers

    def _with_reward(self) -> Array:
        """Numbers of all steps that had a reward other than 0 and were not lost; of those, new ones are looked up."""
        low, high = self._first * self._slots, self.added * self._slots
        new = np.arange(max(low, self._looked_up), high)
        at = self._at(new)
        new = new[(self._columns["reward"][at] != 0) & ((self._flags[at] & VALID) != 0)]
        self._rewarded.add(new, [])
        self._rewarded.forget(low)
        self._looked_up = high
        return self._rewarded.numbers()

    def _usable(self, numbers: Array) -> Array:
        """Bool: it was a step, and it is known what it led to. An env that was lost between two rollouts begins an
        episode though the one before has not ended."""
        flags, following = self._flags[self._at(numbers)], self._flags[self._at(numbers + self._slots)]
        known = ((flags & ENDED) != 0) | ((following & STARTS) == 0)  # guard: replay-bridges-no-gap
        return np.asarray(((flags & VALID) != 0) & known)  # guard: replay-draws-no-lost-rows

    def sequences(
        self, rng: np.random.Generator, count: int, length: int | None = None, rewarded: float = 0.0
    ) -> Sequences:
        """So many sequences of up to `length` consecutive steps of an episode; None: of whole episodes, as far as they
        are still there. Each is around a step drawn as `rows` draws, so long episodes are drawn more often; it is as
        long as it may be wherever its episode is."""
        limit = min(self._longest, len(self) // self._slots, self._longest if length is None else length)
        drawn = self._drawn(rng, count, rewarded)
        back, ahead = (self._reach(drawn, limit - 1, way) for way in (-1, 1))
        if length is None:
            begin, lengths = back, back + ahead + 1
        else:  # anywhere around the drawn step, where the episode has that much
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
        finals = self._finals.found(last[ended])
        observations = {}
        for k, (path, seen) in enumerate(self._seen.items()):
            shown = np.zeros((len(mask) + 1, *mask.shape[1:], *seen.shape[1:]), seen.dtype)
            shown[:-1][mask] = seen[at[mask]]
            after = seen[following]
            after[ended] = finals[k]
            shown[lengths, np.arange(len(lengths))] = after
            observations[path] = shown
        actions = columns["action"][at]
        actions[~mask] = 0
        rewards = np.where(mask, columns["reward"][at], np.float32(0))
        starts = (flags[0] & STARTS) != 0
        return Sequences(observations, actions, rewards, ((flags & TERMINATED) != 0) & mask, starts, mask)

    def _reach(self, numbers: Array, most: int, way: int) -> Array:
        """How many steps of the same episode, usable all, lie before (-1) or after (1) these without a gap."""
        places = numbers + way * self._slots * np.arange(1, most + 1)[:, None]
        there = (places >= self._first * self._slots) & (places < self.added * self._slots)
        earlier = np.where(there, places, numbers) if way < 0 else np.where(there, places - self._slots, numbers)
        goes_on = (self._flags[self._at(earlier)] & ENDED) == 0
        joined = there & goes_on & self._usable(np.where(there, places, numbers)) & self._usable(earlier)
        return np.asarray(np.logical_and.accumulate(joined, axis=0).sum(axis=0))

    # -- saving --------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Tables of which only what is new has to be written, and a little more."""
        ((after, _),) = self._parts(self.added, self.added + 1)
        return {
            "rows": Table(self._dtype, self._first, self.added, self._records),
            "finals": self._finals.table(),
            "last": {str(k): seen[after].copy() for k, seen in enumerate(self._seen.values())},
            "added": self.added,
            "run": self._run.copy(),
            "longest": self._longest,
        }

    def _records(self, first: int, last: int) -> Array:
        found = np.empty(last - first, self._dtype)
        for place, part in self._parts(first, last):
            for name, column in self._columns.items():
                found[name][part] = column[place].reshape(-1, self._slots, *column.shape[1:])
        return found

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Be the one whose state this was, with the same spaces, slots and capacity; None: stay empty, as a run that is
        resumed without its replay."""
        if state is None:
            return
        rows: SavedTable = state["rows"]
        self.added = int(state["added"])
        if (rows.first, rows.last) != (self._first, self.added):
            raise ValueError(f"rows {rows.first} to {rows.last} instead of {self._first} to {self.added}")
        number = rows.first
        for piece in rows.pieces(self._dtype):
            for place, part in self._parts(number, number + len(piece)):
                for name, column in self._columns.items():
                    column[place] = _joined(piece[name][part])
            number += len(piece)
        self._finals.load(state["finals"])
        self._rewarded, self._looked_up = _OfSteps(np.dtype([("at", np.int64)])), 0
        self._show({path: np.asarray(state["last"][str(k)]) for k, path in enumerate(self._paths)})
        self._run[...], self._longest = np.asarray(state["run"]), int(state["longest"])


def _joined(rows: Array) -> Array:
    """[T, S, …] → [T × S, …]"""
    return rows.reshape(-1, *rows.shape[2:])


class _OfSteps:
    """Something of some of the steps, in their order (of ended episodes, what they showed last): one array that moves
    on, and grows if it must."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype, self._kept, self._from, self._to = dtype, np.empty(64, dtype), 0, 0
        self._forgotten = 0

    def add(self, numbers: Array, leaves: list[Array]) -> None:
        """`numbers`: of these steps, ascending."""
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
        """Those of steps before this number."""
        gone = int(np.searchsorted(self.numbers(), before))
        self._from, self._forgotten = self._from + gone, self._forgotten + gone

    def numbers(self) -> Array:
        """Of all that are there."""
        return np.asarray(self._kept["at"][self._from : self._to])

    def found(self, numbers: Array) -> list[Array]:
        """[numbers, …] per leaf."""
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
