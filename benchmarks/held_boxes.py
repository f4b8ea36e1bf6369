"""BoxJump variants for measurements: with held actions, and with teams of different sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.envs.box_jump import BoxJump
from multiverse.envs.box_jump.env import Step
from multiverse.envs.teams import ParallelEnv

PUBLISHED_STEPS = 400


class HeldBoxes(BoxJump):
    """BoxJump with one physics step per env step and 401 env steps per episode.

    Each action is held for `physics_steps_per_action` steps. Every episode's tallest tower is appended to `towers`.
    """

    def __init__(self, towers: list[float], *, physics_steps_per_action: int = 1, **arguments: Any) -> None:
        super().__init__(**{**arguments, "max_timestep": PUBLISHED_STEPS})
        self._towers, self._held = towers, physics_steps_per_action

    def step(self, actions: Mapping[str, Any]) -> Step:
        observations, total_rewards, terminated, truncated, infos = super().step(actions)
        for _ in range(1, self._held):
            if not self.agents:
                break
            observations, rewards, terminated, truncated, infos = super().step(actions)
            total_rewards = {agent: total_rewards[agent] + reward for agent, reward in rewards.items()}
        if not self.agents:
            self._towers.append(self.tallest_tower)
        return observations, total_rewards, terminated, truncated, infos


class TeamsOfSizes(ParallelEnv):  # type: ignore[misc, unused-ignore]
    """BoxJump with a number of boxes drawn from `sizes` for every episode; further boxes are absent."""

    metadata = BoxJump.metadata

    def __init__(self, sizes: Sequence[int], num_boxes: int = 0, **arguments: Any) -> None:
        """Create one env per size. `num_boxes`, which a preset may set, is ignored."""
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
