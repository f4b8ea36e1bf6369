"""Parallel environments of one team with the document's name. In multiverse: `mv.make_vec(env, num_parallel)`.

manager = ParallelEnvironmentManager("boxjump", {"num_boxes": 4}, num_parallel=8)
observations = manager.reset_all(seed=0)                       # env i gets seed + i
outcomes = manager.step_all([{"box-1": 3, …}, …])              # one dict of actions for each env
manager.close_all()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import multiverse as mv
from examples.teams.settings import NAMES

Observations = dict[str, Any]


class Outcome(NamedTuple):
    """Result of a step of one env: dicts by agent, as in PettingZoo. Empty once the episode is over."""

    observations: Observations
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]


class ParallelEnvironmentManager:
    """Vector of `num_parallel` environments of one team.

    `executor` is that of `mv.make_vec`: `"serial"` steps the environments one after another in this process, as in the
    document; `"process"` is true parallelism; `"auto"` measures which is faster.
    """

    def __init__(
        self,
        env_name: str,
        env_kwargs: Mapping[str, Any] | None,
        num_parallel: int,
        executor: Literal["serial", "process", "hybrid", "thread", "auto"] = "serial",
    ) -> None:
        options: dict[str, Any] = {"env_kwargs": env_kwargs, "autoreset": "disabled"}
        self.engine = mv.make_vec(NAMES.get(env_name, env_name), num_parallel, executor, **options)
        if not isinstance(self.engine, mv.MultiAgentVectorEnv):
            self.engine.close()
            raise mv.errors.InvalidRequest(
                f"{env_name} is not a multi-agent env: expected an env of PettingZoo's parallel API"
            )
        self.num_parallel, self._started = num_parallel, False

    def __enter__(self) -> ParallelEnvironmentManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close_all()

    @property
    def agents(self) -> list[str]:
        """Names of all possible agents."""
        return self.engine.possible_agents

    def reset_all(self, seed: int | None = None) -> list[Observations]:
        """Reset all environments; return the observations of each, by agent."""
        observations, _ = self.engine.reset(seed=seed)
        self._started = True
        return [self._env_observations(i, observations) for i in range(self.num_parallel)]

    def step_all(self, actions: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Step every env whose episode is not over; the outcome of the others is empty."""
        if not self._started:
            raise mv.errors.InvalidRequest("no episode is running: call reset_all() before step_all()")
        if len(actions) != self.num_parallel:
            raise mv.errors.InvalidActions(f"expected actions for {self.num_parallel} envs, got {len(actions)}")
        acting = [self.acting(i) for i in range(self.num_parallel)]
        for i, (given, agents) in enumerate(zip(actions, acting)):
            if missing := [agent for agent in agents if agent not in given]:
                raise mv.errors.InvalidActions(f"env {i}: no action for {', '.join(missing)}")
            if unknown := [agent for agent in given if agent not in self.agents]:
                raise mv.errors.InvalidActions(
                    f"env {i}: unknown agents {', '.join(unknown)}; the agents are {', '.join(self.agents)}"
                )
        running = [i for i, agents in enumerate(acting) if agents]
        if not running:
            return [Outcome({}, {}, {}, {}, {}) for _ in actions]
        rows = {agent: np.array([self._action(actions[i], agent) for i in running]) for agent in self.agents}
        stepped = self.engine.step(rows, env_ids=None if len(running) == self.num_parallel else running)
        outcomes = [Outcome({}, {}, {}, {}, {}) for _ in actions]
        for row, i in enumerate(running):
            observations, rewards, terminated, truncated = (
                {agent: batch[agent][row] for agent in acting[i]} for batch in stepped[:4]
            )
            infos = {agent: _row(stepped[4].get(agent, {}), row) for agent in acting[i]}
            outcomes[i] = Outcome(observations, rewards, terminated, truncated, infos)
        return outcomes

    def acting(self, env: int) -> list[str]:
        """Return the agents that act in this env in the next step; empty if its episode is over."""
        return [agent for agent in self.agents if self.engine.alive[agent][env]]

    def close_all(self) -> None:
        """Stop all workers. Calling this method again has no effect."""
        self._started = False
        self.engine.close()

    close = close_all

    def _env_observations(self, env: int, observations: Mapping[str, Any]) -> Observations:
        return {agent: observations[agent][env] for agent in self.acting(env)}

    def _action(self, actions: Mapping[str, Any], agent: str) -> Any:
        """Return the agent's action; for an absent agent any valid action, which is ignored."""
        space = self.engine.single_action_space(agent)
        return actions[agent] if agent in actions else np.full(space.shape, getattr(space, "start", 0), space.dtype)


def _row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the infos of one env: the keys that its `_key` mask marks as present."""
    present = [key for key in infos if f"_{key}" in infos and infos[f"_{key}"][row]]
    return {key: _row(infos[key], row) if isinstance(infos[key], Mapping) else infos[key][row] for key in present}
