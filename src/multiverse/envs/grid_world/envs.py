"""The grid world as PettingZoo envs: turn-based (AEC), and with agents that act at the same time (parallel)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.envs.arguments import render_mode_of
from multiverse.envs.grid_world.setup import Look, WorldSetup, world_setup
from multiverse.envs.grid_world.world import Body, Observation, Target, World, observation_space, observe
from multiverse.envs.teams import AECEnv, ParallelEnv, Pictures, Team


class GridWorld(Team):
    """A world with PettingZoo's attributes. Subclasses define when agents act."""

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

    def _new_renderer(self) -> Renderer:
        return Renderer(self.setup, self.metadata["render_fps"])

    def _scene(self) -> World:
        return self.world

    def _begin(self, seed: int | None) -> None:
        """Begin an episode; without a seed with the env's current generator."""
        self.agents = self.possible_agents.copy()
        self.world.reset(self._seeded(seed))
        self._show()


# -- turn-based ------------------------------------------------------------------------------------------------
class GridWorldEnvMultiAgent(GridWorld, AECEnv):  # type: ignore[misc, unused-ignore]
    """Agents on the ground and in the air search for a moving target.

    **Steps.** In one step every agent acts once, in the order of `agents`; then the target may move. An episode ends
    for all agents together, at the end of the step in which one of them reached the target (terminated) or of step
    `max_steps` (truncated).

    **Cells** are (x, y), (0, 0) is the upper left one. Start cells are drawn at every `reset`; obstacles never separate
    free cells from each other.

    **Actions.** 0 right, 1 up, 2 left, 3 down, 4 stay; an observer also 5 higher, 6 same altitude, 7 lower. Moves off
    the grid, into an obstacle or into another agent have no effect. Agents block each other at every altitude.
    Observers start at altitude 1 of 3; from altitude 2 on they fly over obstacles, and cannot descend into one.

    **Observations**, a Dict of int64 arrays: `agent` (x, y); `obstacles_fov` [k, k], the cells around the agent, the
    row above it first: 0 empty, 1 obstacle or outside, 2 another agent, 3 the target, -10 beyond the view at an
    observer's altitude; `target` (x, y) with `show_target_coords`. An observer sees 3×3, 5×5, 7×7 cells from altitudes
    1, 2, 3, and detects a target in view with probability 1.0, 0.66, 0.33, drawn once for each of its actions: an
    undetected target is shown as empty. An agent's own cell has the code of what is below it.

    **Rewards**, for the agent that acts: 1 for reaching the target; otherwise -λ inside the target's own view (3×3
    cells); otherwise 1-λ if it sees the target; otherwise -0.01. `intrinsic` adds 0.025 for a cell that is new to the
    agent.

    **The target** moves with probability `movement_speed` per step, to a free neighbouring cell, never onto an agent.

    Arguments:
        size, max_steps: cells along one side; steps of an episode.
        render_mode: None, "human" (a window, drawn after every action) or "rgb_array".
        agents: one dict per agent; None is one of each kind. Keys: `name`, `type` ("ground" or "observer"; without it
            the keys decide), `show_target_coords`; ground: `fov_size` (odd, 5); observer: `fov_base_size` (odd, 3),
            `max_altitude` (3), `target_detection_probs`; drawing: `color`, `outline_width`, `box_scale`.
        target_config: `movement_speed` (0.3), `movement_range` (1, cells in one move), `smooth_movement` (False; True:
            it keeps its heading while it can), `box_cells` (3, side of its own view), `initial_position` (anywhere),
            `name`, and drawing as for agents.
        enable_obstacles, num_obstacles: there are obstacles only with `enable_obstacles=True`.
        intrinsic: whether new cells are rewarded.
        lambda_fov: λ, from -0.5 to 0.5.
        show_target_coords: whether observations have `target`.
        no_target: True leaves the target out; episodes then end only after `max_steps`.

    All randomness comes from the env's own generator: `reset(seed=...)` makes an episode repeatable.
    """

    agent_selection: str

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode, with the first agent to act. `options` has no effect."""
        self._begin(seed)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._turn = 0
        self.agent_selection = self.agents[0]
        self._skip_agent_selection = None

    def observe(self, agent: str) -> Observation:
        """Return the agent's current observation; others may have moved since it acted."""
        return observe(self.world, self.possible_agents.index(agent))

    def step(self, action: Any) -> None:
        """Step the selected agent. After the episode, `step(None)` removes each agent."""
        if not self.agents:
            raise InvalidRequest("step() without agents: call reset() first")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        reward = self.world.act(self._turn, self._checked(agent, action))
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.rewards[agent] = self._cumulative_rewards[agent] = reward
        self._turn += 1
        if self._turn == len(self.agents):
            self._end_step()
        self.agent_selection = self.agents[self._turn]
        self._show()

    def _end_step(self) -> None:
        self._turn = 0
        self.world.end_step()
        if self.world.reached:
            self.terminations = dict.fromkeys(self.agents, True)
        elif self.world.out_of_time:
            self.truncations = dict.fromkeys(self.agents, True)


# -- parallel --------------------------------------------------------------------------------------------------
Step = tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class GridWorldParallel(GridWorld, ParallelEnv):  # type: ignore[misc, unused-ignore]
    """The world of `GridWorldEnvMultiAgent`, with the same arguments and rules; all agents act at the same time.

    Actions are executed in the order of `agents`, so the first of two agents that move to one cell gets it. The same
    seed and actions give the same episode as in the turn-based env; observations are those after the step.
    """

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Begin an episode. `options` has no effect."""
        self._begin(seed)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Step with one action for each agent. After the end of an episode there are none, and a step has no effect."""
        if self._rng is None:
            raise InvalidRequest("step() before the first reset(): call reset() first")
        agents = self.agents
        checked = self._all_checked(actions)
        rewards = {agent: self.world.act(index, checked[index]) for index, agent in enumerate(agents)}
        if agents:
            self.world.end_step()
        reached = self.world.reached
        late = self.world.out_of_time and not reached
        step: Step = (
            self._observations(),
            rewards,
            dict.fromkeys(agents, reached),
            dict.fromkeys(agents, late),
            {agent: {} for agent in agents},
        )
        if reached or late:
            self.agents = []
        self._show()
        return step

    def _observations(self) -> dict[str, Observation]:
        return {agent: observe(self.world, index) for index, agent in enumerate(self.agents)}


# -- pictures --------------------------------------------------------------------------------------------------
PICTURE_PIXELS = 600
SMALLEST_CELL = 4
FLOOR, LINES, OBSTACLE, DOT = (250, 250, 247), (224, 224, 220), (72, 76, 84), (255, 255, 255)


class Renderer(Pictures):
    """Draws worlds of one setup."""

    def __init__(self, setup: WorldSetup, frames_per_second: int) -> None:
        self._setup = setup
        self._cell = max(SMALLEST_CELL, PICTURE_PIXELS // setup.size)
        side = self._cell * setup.size
        super().__init__("the grid world", "pettingzoo", (side, side), frames_per_second)

    def _draw(self, world: World) -> None:
        self._surface.fill(FLOOR)
        self._draw_lines()
        for x, y in world.obstacles:
            self._surface.fill(OBSTACLE, self._square(x, y, 0))
        if world.target is not None and self._setup.target is not None:
            self._draw_target(world.target, self._setup.target.look, self._setup.target.view_cells // 2)
        for body in world.bodies:
            self._draw_body(body)

    def _draw_lines(self) -> None:
        cell, end = self._cell, self._cell * self._setup.size
        for at in range(0, end, cell):
            self._pygame.draw.line(self._surface, LINES, (at, 0), (at, end))
            self._pygame.draw.line(self._surface, LINES, (0, at), (end, at))

    def _draw_target(self, target: Target, look: Look, radius: int) -> None:
        """Draw a triangle, in the frame of its view."""
        x, y, half = *self._middle(target.x, target.y), self._half(look)
        corners = [(x, y - half), (x - half, y + half), (x + half, y + half)]
        self._pygame.draw.polygon(self._surface, look.color, corners)
        self._pygame.draw.rect(self._surface, look.color, self._square(target.x, target.y, radius), look.outline_width)

    def _draw_body(self, body: Body) -> None:
        """Draw an agent in the frame of its view: on the ground a disc, in the air a square with a dot per level."""
        look = body.setup.look
        x, y, half = *self._middle(body.x, body.y), self._half(look)
        if body.setup.flies:
            self._pygame.draw.rect(self._surface, look.color, (x - half, y - half, 2 * half, 2 * half))
            for level in range(body.altitude):
                at = (x + (level - (body.altitude - 1) / 2) * half * 0.6, y)
                self._pygame.draw.circle(self._surface, DOT, at, max(1, half // 6))
        else:
            self._pygame.draw.circle(self._surface, look.color, (x, y), half)
        self._pygame.draw.rect(self._surface, look.color, self._square(body.x, body.y, body.radius), look.outline_width)

    def _square(self, x: int, y: int, radius: int) -> tuple[int, int, int, int]:
        """Return left, top, width and height of the cells within `radius`."""
        side = (2 * radius + 1) * self._cell
        return (x - radius) * self._cell, (y - radius) * self._cell, side, side

    def _middle(self, x: int, y: int) -> tuple[int, int]:
        return x * self._cell + self._cell // 2, y * self._cell + self._cell // 2

    def _half(self, look: Look) -> int:
        return max(1, int(self._cell * look.box_scale / 2))
