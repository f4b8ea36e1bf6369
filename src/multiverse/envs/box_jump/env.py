"""BoxJump with PettingZoo's parallel API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.envs.arguments import render_mode_of
from multiverse.envs.box_jump.rendering import Renderer
from multiverse.envs.box_jump.setup import PHYSICS_STEPS_PER_S, Setup
from multiverse.envs.box_jump.world import Floats, Views, World, shown_best, step_rewards
from multiverse.envs.teams import ParallelEnv, Team

Step = tuple[dict[str, Floats], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]

NUM_ACTIONS = 4
METADATA: dict[str, Any] = {
    "name": "box_jump",
    "render_modes": ["human", "rgb_array"],
    "render_fps": PHYSICS_STEPS_PER_S,
    "is_parallelizable": True,
}


class BoxJump(Team, ParallelEnv):  # type: ignore[misc, unused-ignore]
    """A team of boxes walks, jumps and builds a tower to get as high as possible.

    **Actions**: 0 nothing, 1 left, 2 right, 3 jump. A box is pushed sideways while it is slower than 2. It jumps if it
    is *stable*: its vertical speed was below 0.5 in each of the last 10 physics steps.

    **Observations** (float32): x from -1 to 1, height (boxes above the floor; -1: fallen), vx, vy, quarter turns from
    -0.5 to 0.5, angular speed, distance to the next box left, right, above and below (1: none; below: the floor),
    whether it can jump; then the optional parts: the best height so far (`include_highest`), the time from 0 to 1
    (`include_time`), one-hot of the box (`agent_one_hot`), number of boxes (`include_num_boxes`).

    **Rewards** by `reward_mode`, T being `max_timestep` and N the boxes:

    - `highest`: increase of the best height, ÷ N, for all boxes: the team's return is the height gained;
    - `highest_stable`: the same for the best height of a stable box;
    - `height_sq`, `stable_sum`: each box's own height², ÷ NT; the latter times 50, and only while it is stable;
    - `dense_height`, `dense_height_sq`: 50 times the highest box's height, or 10 times its square, ÷ NT, for all boxes;
    - `dense_height_stable`, `dense_height_stable_sq`: the same for the highest stable box.

    A box below the floor gets -`penalty_fall` ÷ T in every step instead. Heights are those before the physics step.

    **Episodes** are truncated after `max_timestep` + 1 steps, of which the last has reward 0. With
    `termination_on_fall` they end when a box leaves the world to the left or right, and its reward is
    `penalty_fall_termination`.

    Other arguments: `world_width`, `gravity`, `friction`, `angular_damping`, `fixed_rotation` (boxes never tip over);
    `spacing` and `random_spacing` of the initial row; `physics_steps_per_action` and `physics_timestep_multiplier`
    (forces are divided by it); `render_mode` None, "human" or "rgb_array".

    All randomness comes from the env's own generator: `reset(seed=...)` makes an episode repeatable.
    """

    metadata: dict[str, Any] = METADATA

    def __init__(
        self,
        num_boxes: int = 4,
        *,
        world_width: float = 30.0,
        gravity: float = 10.0,
        friction: float = 0.8,
        spacing: float = 1.5,
        random_spacing: float = 0.5,
        angular_damping: float = 1.0,
        fixed_rotation: bool = False,
        max_timestep: int = 400,
        reward_mode: str = "highest",
        penalty_fall: float = 20.0,
        physics_steps_per_action: int = 1,
        physics_timestep_multiplier: float = 1.0,
        termination_on_fall: bool = False,
        penalty_fall_termination: float = -100.0,
        agent_one_hot: bool = False,
        include_highest: bool = False,
        include_time: bool = False,
        include_num_boxes: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.setup = Setup(
            num_boxes=num_boxes,
            world_width=world_width,
            gravity=gravity,
            friction=friction,
            spacing=spacing,
            random_spacing=random_spacing,
            angular_damping=angular_damping,
            fixed_rotation=fixed_rotation,
            max_timestep=max_timestep,
            reward_mode=reward_mode,
            penalty_fall=penalty_fall,
            physics_steps_per_action=physics_steps_per_action,
            physics_timestep_multiplier=physics_timestep_multiplier,
            termination_on_fall=termination_on_fall,
            penalty_fall_termination=penalty_fall_termination,
            agent_one_hot=agent_one_hot,
            include_highest=include_highest,
            include_time=include_time,
            include_num_boxes=include_num_boxes,
        )
        self.render_mode = render_mode_of(render_mode)
        self.metadata = {**METADATA, "render_fps": max(1, round(1 / self.setup.action_s))}
        self.world = World(self.setup)
        self.timestep = 0
        self.possible_agents = [f"box-{i}" for i in range(1, num_boxes + 1)]
        self.agents: list[str] = []
        self._views = Views(self.setup)
        self.observation_spaces = dict.fromkeys(self.possible_agents, self._views.space())
        self.action_spaces = {agent: spaces.Discrete(NUM_ACTIONS) for agent in self.possible_agents}
        self.state_space = self._views.state_space()

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Floats], dict[str, dict[str, Any]]]:
        """Begin an episode. `options` has no effect."""
        self.agents = self.possible_agents.copy()
        self.timestep = 0
        self.world.reset(self._seeded(seed))
        self._show()
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Step with one action for each box. After the end of an episode there are none, and a step has no effect."""
        if self._rng is None:
            raise InvalidRequest("step() before the first reset(): call reset() first")
        agents, checked = self.agents, self._all_checked(actions)
        if not agents:
            return {}, {}, {}, {}, {}
        rewards, fallen = self._act(checked)
        self.timestep += 1
        late = self.timestep > self.setup.max_timestep and not fallen
        if late:
            rewards = [0.0] * len(agents)
        if late or fallen:
            self.agents = []
        return (
            self._observations(agents),
            dict(zip(agents, rewards)),
            dict.fromkeys(agents, fallen),
            dict.fromkeys(agents, late),
            {agent: {} for agent in agents},
        )

    def state(self) -> Floats:
        """Return the observations of all boxes in one array, for central critics."""
        return self._views.state(self._views.observations(self.world, self.timestep))

    @property
    def tallest_tower(self) -> float:
        """Best height so far of a stable box, such as one on a tower that stood for 10 physics steps."""
        return self.world.best_stable

    def _new_renderer(self) -> Renderer:
        return Renderer(self.setup)

    def _scene(self) -> tuple[World, int]:
        return self.world, self.timestep

    def _act(self, actions: list[int]) -> tuple[list[float], bool]:
        """Take the physics steps of one action; return each box's reward, and whether a box has left the world."""
        total = [0.0] * len(actions)
        for _ in range(self.setup.physics_steps_per_action):
            before = shown_best(self.world)
            self.world.push(actions)
            rewards = step_rewards(self.world, shown_best(self.world) - before)
            total = [a + b for a, b in zip(total, rewards)]
            fallen = self.setup.termination_on_fall and any(self.world.outside())
            self.world.advance()
            self._show()
            if fallen:
                return total, True
        return total, False

    def _observations(self, agents: list[str]) -> dict[str, Floats]:
        return dict(zip(agents, self._views.observations(self.world, self.timestep)))
