"""The grid world with agents that take turns: PettingZoo's AEC API."""

from __future__ import annotations

from typing import Any

from multiverse.core.errors import InvalidRequest
from multiverse.envs.grid_world.base import GridWorld
from multiverse.envs.grid_world.views import Observation, observe
from multiverse.envs.pettingzoo_classes import AECEnv


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
