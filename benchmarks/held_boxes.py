"""BoxJump as published, for teams that decide only now and then: what they are measured in; and teams of many sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.envs.box_jump import BoxJump
from multiverse.envs.box_jump.env import Step
from multiverse.envs.teams import ParallelEnv

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


class TeamsOfSizes(ParallelEnv):  # type: ignore[misc, unused-ignore]
    """BoxJump with another number of boxes in every episode, drawn from `sizes`: those beyond it are not there."""

    metadata = BoxJump.metadata

    def __init__(self, sizes: Sequence[int], num_boxes: int = 0, **arguments: Any) -> None:
        """`num_boxes`: a preset's, of one size; not meant here."""
        self._envs, self._rng = [BoxJump(size, **arguments) for size in sizes], np.random.default_rng()
        self._env = max(self._envs, key=lambda env: env.setup.num_boxes)
        self.possible_agents, self.render_mode = self._env.possible_agents, None
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    @property
    def agents(self) -> list[str]:
        return self._env.agents

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._env = self._envs[int(self._rng.integers(len(self._envs)))]
        return self._env.reset(int(self._rng.integers(2**31)), options)

    def step(self, actions: Mapping[str, Any]) -> Step:
        return self._env.step(actions)

    def close(self) -> None:
        for env in self._envs:
            env.close()
