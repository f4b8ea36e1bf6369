"""BoxJump as published, for teams that decide only now and then: what they are measured in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multiverse.envs.box_jump import BoxJump
from multiverse.envs.box_jump.env import Step

PUBLISHED_STEPS = 400


class HeldBoxes(BoxJump):
    """The env of these arguments with one physics step an action and 401 of them an episode; actions are held for as
    many as `physics_steps_per_action` says. `towers`: takes the tallest tower of every episode."""

    def __init__(self, towers: list[float], *, physics_steps_per_action: int = 1, **arguments: Any) -> None:
        super().__init__(**{**arguments, "max_timestep": PUBLISHED_STEPS})
        self._towers, self._held = towers, physics_steps_per_action

    def step(self, actions: Mapping[str, Any]) -> Step:
        observations, gained, terminated, truncated, infos = super().step(actions)
        for _ in range(1, self._held):
            if not self.agents:
                break
            observations, rewards, terminated, truncated, infos = super().step(actions)
            gained = {agent: gained[agent] + reward for agent, reward in rewards.items()}
        if not self.agents:
            self._towers.append(self.tallest_tower)
        return observations, gained, terminated, truncated, infos
