"""One agent's row of the AgileRL drop-in's batch: whatever an env says of it, or that it says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from multiverse.contracts.env import SlotRow
from multiverse.contracts.layout import Group
from multiverse.interop.agilerl.rows import (
    MISSING,
    ODD,
    REWARD,
    TERMINATED,
    TRUNCATED,
    USUAL,
    Codes,
    code_of_end,
    code_of_reward,
    fitted,
    placeholder,
)

By = Mapping[str, Any]
"""agent → what was said of it."""

Odd = dict[tuple[str, int], Any]
"""What no column holds, by agent and which of the three it is."""


class ToldRow:
    """One agent's row of the batch."""

    def __init__(self, agent: str, group: Group, row: SlotRow) -> None:
        self.agent, self._row = agent, row
        space, write, target = group.observation_space, row.write_observation, row.plain_target
        self._write, self._fit, self._absent = write, fitted(space), placeholder(space)
        self._target = target
        self._shape: Any = None if target is None else target.shape
        self._dtype: Any = None if target is None else target.dtype
        self.hear = self._hearer()

    def see(self, observations: By) -> None:
        """What it observes, or a placeholder."""
        if self.agent not in observations:
            self._write(self._absent)
            return
        seen = observations[self.agent]
        if type(seen) is np.ndarray and seen.dtype is self._dtype and seen.shape == self._shape:
            self._target[...] = seen
        else:
            self._write(self._fit(seen))

    def be_there(self, there: bool) -> None:
        self._row.alive[self._row.slot] = self._row.acting[self._row.slot] = there

    hear: Callable[[By, By, By, Odd], Codes]
    """(rewards, terminated, truncated, odd): write what is said of this agent; returns what kinds of things it was."""

    def _hearer(self) -> Callable[[By, By, By, Odd], Codes]:
        """A closure, not a method: this runs for every agent at every step."""
        agent, slot, carefully = self.agent, self._row.slot, self._hear_carefully
        columns = self._row.rewards, self._row.terminated, self._row.truncated, self._row.alive, self._row.acting
        reward_column, end_column, cut_column, alive, acting = cast(Any, columns)

        def hear(rewards: By, terminated: By, truncated: By, odd: Odd) -> Codes:
            try:
                reward, end, cut = rewards[agent], terminated[agent], truncated[agent]
            except KeyError:
                return carefully(rewards, terminated, truncated, odd)
            codes = USUAL.get((type(reward), type(end), type(cut)))
            if codes is None:
                return carefully(rewards, terminated, truncated, odd)
            reward_column[slot], end_column[slot], cut_column[slot] = reward, end, cut
            alive[slot] = acting[slot] = not (end or cut)
            return codes

        return hear

    def _hear_carefully(self, rewards: By, terminated: By, truncated: By, odd: Odd) -> Codes:
        """The same, whatever is said, and whatever is not."""
        agent, row = self.agent, self._row
        self.be_there(agent in terminated and not (terminated[agent] or truncated.get(agent, False)))
        columns = (
            (REWARD, rewards, row.rewards, code_of_reward),
            (TERMINATED, terminated, row.terminated, code_of_end),
            (TRUNCATED, truncated, row.truncated, code_of_end),
        )
        codes = []
        for which, said, column, code_of in columns:
            code = code_of(said[agent]) if agent in said else MISSING
            if code == ODD:
                odd[agent, which] = said[agent]
            cast(Any, column)[row.slot] = 0 if code in (MISSING, ODD) else said[agent]
            codes.append(code)
        return cast(Codes, tuple(codes))
