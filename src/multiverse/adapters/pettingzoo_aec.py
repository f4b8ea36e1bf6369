"""Adapter for a PettingZoo AEC env: fixed slots, one of which acts at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multiverse.adapters.pettingzoo_env import AgentRow, PettingZooEnv, nonempty_infos
from multiverse.core.env import SlotRow
from multiverse.core.errors import BadValue


class PettingZooTurnEnv(PettingZooEnv):
    """A step is one agent's action. The reward since an agent's last action is reported when it next acts or ends.
    Steps that only remove agents that have ended happen here."""

    kind = "turns"

    def bind(self, rows: Sequence[SlotRow]) -> None:
        super().bind(rows)
        self._row_of = {row.agent: row for row in self._rows}
        self._position = {row.agent: i for i, row in enumerate(self._rows)}
        self._rewarded: list[AgentRow] = []  # rows with a reward of the last step
        self._ended: list[AgentRow] = []  # rows of agents that ended in it
        self._present: list[str] = []

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        self._reset_env(seed, options, task)
        self._present = list(self._env.agents)
        self._refuse_unknown(self._present)
        for row in self._rows:
            row.write_absent()
        for agent in self._present:
            self._row_of[agent].write_presence(True, False)
        agent = self._env.agent_selection
        observation, _, _, _, info = self._env.last()
        self._row_of[agent].observe(observation, info, True)
        self._row_of[agent].write_presence(True, True)
        return self._infos_of_reset({agent: info})

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """Step with one action for every slot; only that of the agent to act is used."""
        env = self._env
        for row in self._rewarded:
            row.write_reward(0.0)
        for row in self._ended:
            row.end(False, False)
        self._rewarded, self._ended = [], []
        agent = env.agent_selection
        env.step(actions[self._position[agent]])
        self._row_of[agent].write_presence(True, False)
        infos: dict[str, Any] = {}
        while agents := env.agents:  # until an agent has to act
            if agents != self._present:
                self._refuse_unknown(agents)
            agent = env.agent_selection
            observation, reward, terminated, truncated, infos[agent] = env.last()
            row = self._row_of[agent]
            row.observe(observation, infos[agent], not (terminated or truncated))
            row.write_reward(reward)
            self._rewarded.append(row)
            if not (terminated or truncated):
                if self._ended or agents != self._present:
                    self._update_present(agents)
                row.write_presence(True, True)
                return False, nonempty_infos(infos)
            self._end(row, bool(terminated), bool(truncated))
            self._check_progress(agent)
            env.step(None)
        self._update_present(())
        return True, nonempty_infos(infos)

    def _update_present(self, agents: Sequence[str]) -> None:
        """Write agents that join during an episode, and ends of agents that leave without taking a step."""
        self._present = list(agents)
        for row in self._rows:
            if row.alive != (row.agent in agents):
                if row.alive:
                    self._end_absent(row)
                else:
                    row.write_presence(True, False)

    def _end_absent(self, row: AgentRow) -> None:
        """Write the end of an agent that has left, as far as the env still knows it; its last observation stays."""
        env, agent = self._env, row.agent
        truncated = bool(env.truncations.get(agent, False))
        terminated = bool(env.terminations.get(agent, False)) or not truncated
        row.write_reward(env._cumulative_rewards.get(agent, 0.0))
        self._rewarded.append(row)
        self._end(row, terminated, truncated)

    def _end(self, row: AgentRow, terminated: bool, truncated: bool) -> None:
        row.end(terminated, truncated)
        row.write_presence(False, False)
        self._ended.append(row)

    def _check_progress(self, agent: str) -> None:
        if len(self._ended) > 2 * len(self._rows):
            raise BadValue(f"{agent} has ended and stays in the env's agents after the steps that remove it")
