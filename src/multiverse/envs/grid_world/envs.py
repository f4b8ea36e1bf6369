"""The grid world as PettingZoo envs: with agents that take turns (AEC), and with agents that act at once (parallel)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.envs.arguments import render_mode_of
from multiverse.envs.grid_world.rendering import Renderer
from multiverse.envs.grid_world.setup import world_setup
from multiverse.envs.grid_world.world import Observation, World, observation_space, observe
from multiverse.envs.pettingzoo_classes import AECEnv, ParallelEnv, Team


class GridWorld(Team):
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

    def _new_renderer(self) -> Renderer:
        return Renderer(self.setup, self.metadata["render_fps"])

    def _scene(self) -> World:
        return self.world

    def _begin(self, seed: int | None) -> None:
        """Begin an episode: with a seed the same one every time, without one the next of the env's own generator."""
        self.agents = self.possible_agents.copy()
        self.world.reset(self._seeded(seed))
        self._show()


# -- in turns --------------------------------------------------------------------------------------------------
class GridWorldEnvMultiAgent(GridWorld, AECEnv):  # type: ignore[misc, unused-ignore]
    """Agents on the ground and in the air look for a target that moves.

    **Steps.** In one step every agent acts once, in the order of `agents`; then time passes and the target may move.
    An episode ends for all agents together, at the end of the step in which one of them reached the target
    (terminated) or of step `max_steps` (truncated).

    **Cells** are (x, y), (0, 0) is the upper left one. Start cells are drawn at every `reset`; obstacles never cut a
    free cell off from the others.

    **Actions.** 0 right, 1 up, 2 left, 3 down, 4 stay; an observer also 5 higher, 6 same altitude, 7 lower. Whoever
    cannot move stays where it is: the grid ends, an obstacle or another agent is in the way. Agents block each other
    at every altitude. Observers start at altitude 1 of 3; from altitude 2 on they fly over obstacles, and do not sink
    into one.

    **Observations**, a Dict of int64 arrays: `agent` (x, y); `obstacles_fov` [k, k], the cells around the agent, the
    row above it first: 0 empty, 1 obstacle or outside, 2 another agent, 3 the target, -10 too far out for an
    observer's altitude; `target` (x, y) with `show_target_coords`. An observer sees 3×3, 5×5, 7×7 cells from altitudes
    1, 2, 3, and notices a target in view with probability 1.0, 0.66, 0.33, drawn once for each of its actions: what it
    overlooks is shown as empty. Its own cell has the code of what is below it.

    **Rewards**, for the agent that acts: 1 for reaching the target; else -λ inside the target's own view (3×3 cells);
    else 1-λ if it sees the target; else -0.01. With `intrinsic` 0.025 more for a cell that this agent has not been on.

    **The target** moves with probability `movement_speed` in a step, to a free cell beside it, and never onto an agent.

    Arguments:
        size, max_steps: cells along one side; steps of an episode.
        render_mode: None, "human" (a window, drawn after every action) or "rgb_array".
        agents: one dict per agent; None is one of each kind. Keys: `name`, `type` ("ground" or "observer"; left out, an
            observer is told by its keys), `show_target_coords`; ground: `fov_size` (odd, 5); observer: `fov_base_size`
            (odd, 3), `max_altitude` (3), `target_detection_probs`; drawing: `color`, `outline_width`, `box_scale`.
        target_config: `movement_speed` (0.3), `movement_range` (1, cells in one move), `smooth_movement` (False; True:
            it keeps its heading while it can), `box_cells` (3, side of its own view), `initial_position` (anywhere),
            `name`, and drawing as for agents.
        enable_obstacles, num_obstacles: without the first there are none.
        intrinsic: reward new cells.
        lambda_fov: λ, from -0.5 to 0.5.
        show_target_coords: whether observations have `target`.
        no_target: a world to explore, which only time ends.

    All randomness comes from the env's own generator: `reset(seed=...)` makes an episode repeatable.
    """

    agent_selection: str

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begins an episode; the first agent is to act. `options` is there for the API and not looked at."""
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
        """What the agent sees now; the others may have moved since it acted."""
        return observe(self.world, self.possible_agents.index(agent))

    def step(self, action: Any) -> None:
        """Lets the selected agent act. Once the episode is over, `step(None)` for each agent removes it."""
        if not self.agents:
            raise InvalidRequest("step() with no agent left: begin with reset()")
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


# -- all at once -----------------------------------------------------------------------------------------------
Step = tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class GridWorldParallel(GridWorld, ParallelEnv):  # type: ignore[misc, unused-ignore]
    """The world of `GridWorldEnvMultiAgent`, with the same arguments and rules; all agents act at once.

    They are carried out in the order of `agents`, so of two agents that want one cell the first gets it. The same seed
    and actions give the same episode as the turn-based env; observations are those after the step.
    """

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Begins an episode. `options` is there for the API and not looked at."""
        self._begin(seed)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Step:
        """One action for each agent; after the end of an episode there are no agents, and nothing happens."""
        if self._rng is None:
            raise InvalidRequest("step() before the first reset(): there is no world yet")
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
