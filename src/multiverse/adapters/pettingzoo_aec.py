"""A PettingZoo AEC env as an Env: fixed slots, one of which acts at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multiverse.adapters.agent_row import AgentRow
from multiverse.adapters.pettingzoo_env import PettingZooEnv, nonempty_infos
from multiverse.adapters.tasks import reset_to_task
from multiverse.core.env import SlotRow
from multiverse.core.errors import BadValue


class PettingZooTurnEnv(PettingZooEnv):
    """A step is one agent's action. What a slot has earned since its own last action is told where it next acts or
    ends; steps that only remove agents which have ended happen here."""

    kind = "turns"

    def bind(self, rows: Sequence[SlotRow]) -> None:
        super().bind(rows)
        self._row_of = {row.agent: row for row in self._rows}
        self._position = {row.agent: i for i, row in enumerate(self._rows)}
        self._told: list[AgentRow] = []  # those with a reward of the last step
        self._gone: list[AgentRow] = []  # those that ended in it
        self._there: list[str] = []

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        if task is not None:
            reset_to_task(self._env, seed, options, task)
        else:
            self._env.reset(seed=seed, options=options)
        self._there = list(self._env.agents)
        self._refuse_unknown(self._there)
        for row in self._rows:
            row.be_absent()
        for agent in self._there:
            self._row_of[agent].be(True, False)
        agent = self._env.agent_selection
        observation, _, _, _, info = self._env.last()
        self._row_of[agent].observe(observation, info, True)
        self._row_of[agent].be(True, True)
        return self._infos_of_reset({agent: info})

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """One action for every slot; only that of the acting one is taken."""
        env = self._env
        for row in self._told:
            row.earn(0.0)
        for row in self._gone:
            row.end(False, False)
        self._told, self._gone = [], []
        agent = env.agent_selection
        env.step(actions[self._position[agent]])
        self._row_of[agent].be(True, False)
        infos: dict[str, Any] = {}
        while agents := env.agents:  # on to whoever has to decide next
            if agents != self._there:
                self._refuse_unknown(agents)
            agent = env.agent_selection
            observation, reward, terminated, truncated, infos[agent] = env.last()
            row = self._row_of[agent]
            row.observe(observation, infos[agent], not (terminated or truncated))
            row.earn(reward)
            self._told.append(row)
            if not (terminated or truncated):
                if self._gone or agents != self._there:
                    self._see_who_is_there(agents)
                row.be(True, True)
                return False, nonempty_infos(infos)
            self._end(row, bool(terminated), bool(truncated))
            self._check_progress(agent)
            env.step(None)
        self._see_who_is_there(())
        return True, nonempty_infos(infos)

    def _see_who_is_there(self, agents: Sequence[str]) -> None:
        """Agents join in the middle of an episode, or go without the step that would have told their end."""
        self._there = list(agents)
        for row in self._rows:
            if row.alive != (row.agent in agents):
                if row.alive:
                    self._tell_end(row)
                else:
                    row.be(True, False)

    def _tell_end(self, row: AgentRow) -> None:
        """As far as the env still knows; its last observation stays the one it had."""
        env, agent = self._env, row.agent
        truncated = bool(env.truncations.get(agent, False))
        terminated = bool(env.terminations.get(agent, False)) or not truncated
        row.earn(env._cumulative_rewards.get(agent, 0.0))
        self._told.append(row)
        self._end(row, terminated, truncated)

    def _end(self, row: AgentRow, terminated: bool, truncated: bool) -> None:
        row.end(terminated, truncated)
        row.be(False, False)
        self._gone.append(row)

    def _check_progress(self, agent: str) -> None:
        if len(self._gone) > 2 * len(self._rows):
            raise BadValue(f"{agent} has ended and stays in the env's agents, whatever steps are taken to remove it")
