"""The grid world with agents that act together: PettingZoo's parallel API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multiverse.core.errors import InvalidRequest
from multiverse.envs.grid_world.base import GridWorld
from multiverse.envs.grid_world.views import Observation, observe
from multiverse.envs.pettingzoo_classes import ParallelEnv, refuse_other_agents

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

    def _all_checked(self, actions: Mapping[str, Any]) -> list[int]:
        """Every action before the first is carried out: a refused step leaves no trace."""
        refuse_other_agents(actions, self.agents)
        return [self._checked(agent, actions[agent]) for agent in self.agents]
