"""What the turn-based and the parallel grid world have in common: arguments, spaces, seeds and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from multiverse.envs.arguments import render_mode_of
from multiverse.envs.grid_world.rendering import Renderer
from multiverse.envs.grid_world.setup import world_setup
from multiverse.envs.grid_world.views import observation_space
from multiverse.envs.grid_world.world import World
from multiverse.envs.pettingzoo_classes import checked_action
from multiverse.envs.pictures import Drawn


class GridWorld(Drawn):
    """One world with PettingZoo's names around it. Subclasses say when agents act."""

    metadata: ClassVar[dict[str, Any]] = {
        "name": "grid_world_v0",
        "render_modes": ["human", "rgb_array"],
        "render_fps": 10,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        size: int = 10,
        max_steps: int = 250,
        render_mode: str | None = None,
        agents: Sequence[Mapping[str, Any]] | None = None,
        target_config: Mapping[str, Any] | None = None,
        enable_obstacles: bool = False,
        num_obstacles: int = 3,
        intrinsic: bool = False,
        lambda_fov: float = 0.5,
        show_target_coords: bool = False,
        no_target: bool = False,
    ) -> None:
        self.setup = world_setup(
            size=size,
            max_steps=max_steps,
            agents=agents,
            target_config=target_config,
            enable_obstacles=enable_obstacles,
            num_obstacles=num_obstacles,
            intrinsic=intrinsic,
            lambda_fov=lambda_fov,
            show_target_coords=show_target_coords,
            no_target=no_target,
        )
        self.render_mode = render_mode_of(render_mode)
        self.world = World(self.setup)
        self.possible_agents = [agent.name for agent in self.setup.agents]
        self.agents: list[str] = []
        self.observation_spaces = {a.name: observation_space(self.setup, a) for a in self.setup.agents}
        self.action_spaces = {a.name: spaces.Discrete(a.num_actions) for a in self.setup.agents}
        self._num_actions = {a.name: a.num_actions for a in self.setup.agents}
        self._rng: np.random.Generator | None = None

    def observation_space(self, agent: str) -> spaces.Dict:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.action_spaces[agent]

    def _new_renderer(self) -> Renderer:
        return Renderer(self.setup, self.metadata["render_fps"])

    def _drawn(self) -> tuple[Any, ...]:
        return (self.world,)

    def _begin(self, seed: int | None) -> None:
        """A new episode: with a seed the same one every time, without the next one of the env's own generator."""
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        self.agents = self.possible_agents.copy()
        self.world.reset(self._rng)
        self._show()

    def _checked(self, agent: str, action: Any) -> int:
        return checked_action(agent, action, self._num_actions[agent])
