"""What the AgileRL drop-in shows of its envs, as the first of them says it."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from gymnasium.vector.utils import batch_space

Spaces = dict[str, spaces.Space[Any]]


class Described:
    """Agents and spaces. They are those of an env that was built in the caller, and closed again."""

    def _look_at(self, env: Any, num_envs: int) -> None:
        """Take over what an env of the caller's own says about all of them."""
        self.metadata = env.metadata if hasattr(env, "metadata") else env.unwrapped.metadata
        self.render_mode = (
            env.render_mode if hasattr(env, "render_mode") else getattr(env.unwrapped, "render_mode", None)
        )
        self.agents = self.possible_agents = list(env.possible_agents)
        self.num_envs, self.num_agents = num_envs, len(self.agents)
        self._single_observation_spaces: Spaces = {agent: env.observation_space(agent) for agent in self.agents}
        self._single_action_spaces: Spaces = {agent: env.action_space(agent) for agent in self.agents}
        env.close()
        self._observation_spaces: Spaces = _batched(self._single_observation_spaces, num_envs)
        self._action_spaces: Spaces = _batched(self._single_action_spaces, num_envs)

    def single_observation_space(self, agent: str) -> spaces.Space[Any]:
        """What one agent of one env sees."""
        return self._single_observation_spaces[agent]

    def single_action_space(self, agent: str) -> spaces.Space[Any]:
        """What one agent of one env can do."""
        return self._single_action_spaces[agent]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """What one agent sees, in all envs."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """What one agent can do, in all envs."""
        return self._action_spaces[agent]


def _batched(single: Spaces, num_envs: int) -> Spaces:
    return {agent: batch_space(space, num_envs) for agent, space in single.items()}
