"""One agent's row of the batch: what it sees, earns and may do, or that it is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from multiverse.adapters.action_masks import mask_writer
from multiverse.adapters.agents import absent_observation, masks_are_observed
from multiverse.core.env import ACTION_MASK, SlotRow
from multiverse.core.errors import BadValue
from multiverse.core.layout import Group


class AgentRow:
    """Written by an env's adapter at every step. What an agent may do while it is absent is left open: all of its
    action mask is 1, so that whoever samples for every row has something to sample from."""

    def __init__(self, agent: str, group: Group, row: SlotRow) -> None:
        self.agent, self._mask = agent, row.action_mask
        self._absent = absent_observation(group.observation_space)
        self._write, self.rewards, self._acting = row.write_observation, cast(Any, row.rewards), row.acting
        self._terminated, self._truncated = row.terminated, row.truncated
        self.slot, self.alive_in = row.slot, row.alive
        self.observe = _observer(agent, group, row)

    @property
    def alive(self) -> bool:
        return self.alive_in[self.slot]  # type: ignore[return-value]  # a memoryview of bools holds bools

    observe: Callable[[Any, Any, bool], None]
    """(observation, info, whether it acts next): what it sees, and which actions are open to it."""

    def earn(self, reward: Any) -> None:
        try:
            self.rewards[self.slot] = reward
        except (TypeError, ValueError) as error:
            raise BadValue(f"the reward of {self.agent} is {reward!r}, which is no number") from error

    def end(self, terminated: bool, truncated: bool) -> None:
        self._terminated[self.slot], self._truncated[self.slot] = terminated, truncated

    def be(self, alive: bool, acting: bool) -> None:
        self.alive_in[self.slot], self._acting[self.slot] = alive, acting

    def be_absent(self) -> None:
        """It is not there; rewards and ends are told separately."""
        self._write(self._absent)
        if self._mask is not None:
            self._mask[...] = 1
        self.be(False, False)


def _observer(agent: str, group: Group, row: SlotRow) -> Callable[[Any, Any, bool], None]:
    """A closure, not a method: this runs for every agent at every step."""
    write, target, mask = row.write_observation, row.plain_target, row.action_mask
    shape, dtype = (target.shape, target.dtype) if target is not None else (None, None)
    array, in_observation = np.ndarray, masks_are_observed(group.observation_space)
    write_mask = None if mask is None else mask_writer(mask, group.action_space, agent)

    def observe(observation: Any, info: Any, acts: bool) -> None:
        if type(observation) is array and observation.dtype is dtype and observation.shape == shape:
            target[...] = observation
        else:
            write(observation)
        if write_mask is not None:
            write_mask(observation[ACTION_MASK] if in_observation else info.get(ACTION_MASK) if info else None, acts)

    return observe
