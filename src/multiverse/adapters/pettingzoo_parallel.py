"""A PettingZoo parallel env as an Env: one slot per agent, those that are absent masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multiverse.adapters.agent_row import AgentRow
from multiverse.adapters.pettingzoo_env import PettingZooEnv, spoken
from multiverse.adapters.tasks import reset_to_task


class PettingZooParallelEnv(PettingZooEnv):
    """All agents act at once; each may end before the episode does, and come back later."""

    kind = "parallel"

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        if task is not None:
            observations, infos = reset_to_task(self._env, seed, options, task)
        else:
            observations, infos = self._env.reset(seed=seed, options=options)
        self._check_known(observations)
        for row in self._rows:
            if row.agent in observations:
                row.observe(observations[row.agent], infos.get(row.agent))
                row.be(True, True)
            else:
                row.see_nothing()
        return spoken(infos)

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """One action for every slot; those of absent agents are not passed on."""
        chosen = {row.agent: action for row, action in zip(self._rows, actions) if row.alive}
        observations, rewards, terminated, truncated, infos = self._env.step(chosen)
        self._check_known(observations)
        present = set(self._env.agents)
        for row in self._rows:
            agent = row.agent
            if agent not in observations:
                _leave(row)
                continue
            row.observe(observations[agent], infos.get(agent))
            row.earn(rewards.get(agent, 0.0))
            row.end(terminated.get(agent, False), truncated.get(agent, False))
            row.be(agent in present, agent in present)
        return not present, spoken(infos)


def _leave(row: AgentRow) -> None:
    """Not in what the env returns: an agent that was there until now has ended without a word."""
    row.end(row.alive, False)
    row.earn(0.0)
    row.see_nothing()


def all_at_once(env: Any) -> Any:
    """An AEC env in which, really, everybody acts at once, as a parallel one."""
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)
