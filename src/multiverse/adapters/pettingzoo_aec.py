"""A PettingZoo AEC env as an Env: fixed slots, one of which acts at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multiverse.adapters.pettingzoo_env import PettingZooEnv, spoken
from multiverse.adapters.tasks import reset_to_task
from multiverse.contracts.env import SlotRow


class PettingZooTurnEnv(PettingZooEnv):
    """A step is one agent's action. What a slot has earned since its own last action is told where it next acts or
    ends; steps that only remove agents which have ended happen here."""

    kind = "turns"

    def bind(self, rows: Sequence[SlotRow]) -> None:
        super().bind(rows)
        self._row_of = {row.agent: row for row in self._rows}
        self._position = {row.agent: i for i, row in enumerate(self._rows)}

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        if task is not None:
            reset_to_task(self._env, seed, options, task)
        else:
            self._env.reset(seed=seed, options=options)
        self._check_known(self._env.agents)
        for row in self._rows:
            row.see_nothing()
        for agent in self._env.agents:
            self._row_of[agent].be(True, False)
        agent = self._env.agent_selection
        observation, _, _, _, info = self._env.last()
        self._row_of[agent].observe(observation, info)
        self._row_of[agent].be(True, True)
        return spoken({agent: info})

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """One action for every slot; only that of the acting one is taken."""
        env = self._env
        for row in self._rows:
            row.earn(0.0)
            row.end(False, False)
        agent = env.agent_selection
        env.step(actions[self._position[agent]])
        self._row_of[agent].be(True, False)
        infos: dict[str, Any] = {}
        while env.agents:  # on to whoever has to decide next
            agent = env.agent_selection
            observation, reward, terminated, truncated, infos[agent] = env.last()
            row = self._row_of[agent]
            row.observe(observation, infos[agent])
            row.earn(reward)
            if not (terminated or truncated):
                self._welcome(env.agents)
                row.be(True, True)
                return False, spoken(infos)
            row.end(terminated, truncated)
            row.be(False, False)
            env.step(None)
        for row in self._rows:
            if row.alive:  # the episode is over: whoever was not told yet is now
                row.end(True, False)
                row.be(False, False)
        return True, spoken(infos)

    def _welcome(self, agents: Sequence[str]) -> None:
        """Agents that have joined in the middle of an episode."""
        self._check_known(agents)
        for agent in agents:
            row = self._row_of[agent]
            if not row.alive:
                row.be(True, False)
