"""One agent's row of the batch: what it sees, earns and may do, or that it is not there."""

from __future__ import annotations

from typing import Any, cast

from multiverse.adapters.agents import absent_observation, mask_in
from multiverse.contracts.env import SlotRow
from multiverse.contracts.errors import BadValue
from multiverse.contracts.layout import Group


class AgentRow:
    """Written by an env's adapter at every step. Rewards and ends are the host's to clear when an episode begins."""

    def __init__(self, agent: str, group: Group, row: SlotRow) -> None:
        self.agent, self._mask = agent, row.action_mask
        self._absent = absent_observation(group.observation_space)
        self._slot, self._write, self._rewards = row.slot, row.write_observation, cast(Any, row.rewards)
        self._alive, self._acting = row.alive, row.acting
        self._terminated, self._truncated = row.terminated, row.truncated

    @property
    def alive(self) -> bool:
        return bool(self._alive[self._slot])

    def observe(self, observation: Any, info: Any) -> None:
        """What it sees, and which actions are open to it."""
        self._write(observation)
        if self._mask is not None:
            given = mask_in(observation, info)
            self._mask[...] = 1 if given is None else given

    def see_nothing(self) -> None:
        """It is not there."""
        self._write(self._absent)
        self.be(False, False)

    def be(self, alive: bool, acting: bool) -> None:
        self._alive[self._slot], self._acting[self._slot] = alive, acting

    def earn(self, reward: Any) -> None:
        try:
            self._rewards[self._slot] = reward
        except (TypeError, ValueError) as error:
            raise BadValue(f"the reward of {self.agent} is {reward!r}, which is no number") from error

    def end(self, terminated: Any, truncated: Any) -> None:
        self._terminated[self._slot], self._truncated[self._slot] = bool(terminated), bool(truncated)
