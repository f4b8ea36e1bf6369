"""A host's own copy of the small columns: rewards, ends, and the running sums of each episode."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from multiverse.contracts.env import SlotRow
from multiverse.contracts.layout import ENDED, EPISODE_LENGTH, OBSERVATIONS, PRESENT, VALUES, Group
from multiverse.contracts.views import Views
from multiverse.memory.space_rows import row_writer

_add = np.add


class OwnColumns:
    """One group's small columns for the rows of one host: handed over whole, never cell by cell.

    Two hosts that write neighbouring cells of one cache line take it from each other at every store; so each
    writes memory of its own and copies it out once a step.
    """

    def __init__(self, views: Views, group: Group, rows: slice) -> None:
        self._views, self._group, self._first = views, group, rows.start
        shared = [views[(group.name, name)][:, rows] for name in (VALUES, ENDED, PRESENT)]
        self._shared_values, self._shared_ended, self._shared_present = shared
        count = rows.stop - rows.start
        # What a step adds to (length, return), in one call.
        self._added = np.zeros((2, count))
        ones, self.rewards = self._added
        ones[...] = 1.0
        self._shared_rewards, self.lengths, self.returns = self._shared_values
        self._sums = self._shared_values[EPISODE_LENGTH:]
        self.ended = np.zeros((2, count), np.bool_)
        self.present = np.zeros((2, count), np.bool_)

    def rows_of(self, env_index: int) -> list[SlotRow]:
        """The rows of one env, one per agent of the group."""
        group, rows = self._group, []
        columns = [memoryview(c) for c in (self.rewards, *self.ended, *self.present)]
        for agent in range(len(group.agents)):
            slot = env_index * len(group.agents) + agent
            write = row_writer(group.observation_space, self._views, (group.name, OBSERVATIONS), slot)
            plain = isinstance(group.observation_space, spaces.Box) and group.observation_space.shape
            target = self._views[(group.name, OBSERVATIONS)][slot] if plain else None
            rows.append(SlotRow(slot - self._first, write, target, *columns))
        return rows

    def add_step(self) -> None:
        """Every row has taken one step."""
        _add(self._sums, self._added, self._sums)
        self._shared_rewards[...] = self.rewards

    def add_step_of(self, rows: list[int]) -> None:
        """Some rows have."""
        self._sums[:, rows] += self._added[:, rows]
        self._shared_rewards[...] = self.rewards

    def begin(self, row: int) -> None:
        """A new episode begins in this row."""
        self.lengths[row] = self.returns[row] = 0.0

    def forget_reward(self, row: int) -> None:
        self.rewards[row] = self._shared_rewards[row] = 0.0

    def forget_rewards(self) -> None:
        self.rewards[...] = self._shared_rewards[...] = 0.0

    def hand_over_ends(self) -> None:
        self._shared_ended[...] = self.ended
        self._shared_present[...] = self.present
