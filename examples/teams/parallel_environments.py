"""Today this is `multiverse.make_vec(env, num_parallel)`: many envs of a team, here under the document's name.

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
    """Of one env's step, as PettingZoo has it: dicts from agents to what is theirs. Empty once its episode is over."""

    observations: Observations
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]


class ParallelEnvironmentManager:
    """So many envs of one team. In this process, one after the other (`executor="serial"`, as in the document), or
    wherever else `mv.make_vec` has them: `"process"` is true parallelism, `"auto"` finds out what is faster."""

    def __init__(
        self,
        env_name: str,
        env_kwargs: Mapping[str, Any] | None,
        num_parallel: int,
        executor: Literal["serial", "process", "hybrid", "thread", "auto"] = "serial",
    ) -> None:
        how: dict[str, Any] = {"env_kwargs": env_kwargs, "autoreset": "disabled"}
        self.engine = mv.make_vec(NAMES.get(env_name, env_name), num_parallel, executor, **how)
        if not isinstance(self.engine, mv.MultiAgentVectorEnv):
            self.engine.close()
            raise mv.errors.InvalidRequest(f"{env_name} is no team: expected an env of PettingZoo's parallel API")
        self.num_parallel, self._begun = num_parallel, False

    def __enter__(self) -> ParallelEnvironmentManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close_all()

    @property
    def agents(self) -> list[str]:
        """All there can be."""
        return self.engine.possible_agents

    def reset_all(self, seed: int | None = None) -> list[Observations]:
        """Everybody's first observations, for each env."""
        observations, _ = self.engine.reset(seed=seed)
        self._begun = True
        return [self._of(i, observations) for i in range(self.num_parallel)]

    def step_all(self, actions: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """One step of every env whose episode is not over; for the others, of which no action is taken, nothing."""
        if not self._begun:
            raise mv.errors.InvalidRequest(
                "nothing is being played: reset_all() first, and step_all() until close_all()"
            )
        if len(actions) != self.num_parallel:
            raise mv.errors.InvalidActions(f"actions for {len(actions)} envs, and there are {self.num_parallel}")
        acting = [self.acting(i) for i in range(self.num_parallel)]
        for i, (given, agents) in enumerate(zip(actions, acting)):
            if missing := [agent for agent in agents if agent not in given]:
                raise mv.errors.InvalidActions(f"env {i}: no action for {', '.join(missing)}")
            if strangers := [agent for agent in given if agent not in self.agents]:
                raise mv.errors.InvalidActions(
                    f"env {i}: there is no {', '.join(strangers)}, only {', '.join(self.agents)}"
                )
        under_way = [i for i, agents in enumerate(acting) if agents]
        if not under_way:
            return [Outcome({}, {}, {}, {}, {}) for _ in actions]
        rows = {agent: np.array([self._action(actions[i], agent) for i in under_way]) for agent in self.agents}
        stepped = self.engine.step(rows, env_ids=None if len(under_way) == self.num_parallel else under_way)
        outcomes = [Outcome({}, {}, {}, {}, {}) for _ in actions]
        for row, i in enumerate(under_way):
            observations, rewards, terminated, truncated = (
                {agent: batch[agent][row] for agent in acting[i]} for batch in stepped[:4]
            )
            infos = {agent: _row(stepped[4].get(agent, {}), row) for agent in acting[i]}
            outcomes[i] = Outcome(observations, rewards, terminated, truncated, infos)
        return outcomes

    def acting(self, env: int) -> list[str]:
        """Who acts there in the next step; nobody: its episode is over."""
        return [agent for agent in self.agents if self.engine.alive[agent][env]]

    def close_all(self) -> None:
        """End every worker; calling it twice does no harm."""
        self._begun = False
        self.engine.close()

    close = close_all

    def _of(self, env: int, observations: Mapping[str, Any]) -> Observations:
        return {agent: observations[agent][env] for agent in self.acting(env)}

    def _action(self, actions: Mapping[str, Any], agent: str) -> Any:
        """What it does; of an agent that is not there it does not matter, as long as it is an action."""
        space = self.engine.single_action_space(agent)
        return actions[agent] if agent in actions else np.full(space.shape, getattr(space, "start", 0), space.dtype)


def _row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Of infos of many envs, one env's: those that `_key` says are there."""
    there = [key for key in infos if f"_{key}" in infos and infos[f"_{key}"][row]]
    return {key: _row(infos[key], row) if isinstance(infos[key], Mapping) else infos[key][row] for key in there}
