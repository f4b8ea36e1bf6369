"""Adapter for a PettingZoo parallel env: one slot per agent, with absent agents masked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from multiverse.adapters.pettingzoo_env import AgentRow, PettingZooEnv, nonempty_infos
from multiverse.core.env import SlotRow
from multiverse.core.errors import BadValue
from multiverse.core.infos import require_dict

FEW = 8

Outcome = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""(rewards, terminated, truncated) of a step, by agent."""


class PettingZooParallelEnv(PettingZooEnv):
    """All agents act at the same time; each may end before the episode does, and return later.

    The env's `agents` are present. An agent that has ended is absent, even if the env still lists it; one that leaves
    without an end has terminated. A present agent without an observation, or with an observation but without a reward
    or ends, is an error of the env.
    """

    kind = "parallel"

    def bind(self, rows: Sequence[SlotRow]) -> None:
        super().bind(rows)
        self._present: Collection[str] = ()
        # Attributes that nearly every step needs, looked up once.
        self._each = [(row, row.agent, row.slot, row.alive_column, row.rewards, row.observe) for row in self._rows]

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        observations, infos = self._reset_env(seed, options, task)
        require_dict("what reset returned as infos", infos)
        self._present = present = _fast_lookup(self._env.agents)
        self._refuse_unknown(observations, present)
        for row in self._rows:
            agent = row.agent
            if agent not in present:
                row.write_absent()
                continue
            if agent not in observations:
                raise _missing("observation", agent)
            row.observe(observations[agent], infos.get(agent), True)
            row.write_presence(True, True)
        return self._infos_of_reset(infos)

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """Step with one action for every slot; those of absent agents are not used."""
        env, present, known, over = self._env, self._present, self._known, True
        chosen = {each[1]: action for each, action in zip(self._each, actions) if each[1] in present}
        observations, rewards, terminated, truncated, infos = env.step(chosen)
        if infos.__class__ is not dict:
            require_dict("what the env returned as infos", infos)
        self._present = present = _fast_lookup(env.agents)
        if not (known.issuperset(observations) and known.issuperset(present)):
            self._refuse_unknown(observations, present)
        outcome = rewards, terminated, truncated
        for row, agent, slot, alive, column, observe in self._each:
            if agent not in observations:
                _write_unobserved(row, agent in present, outcome)
                continue
            try:
                stays = agent in present and not (terminated[agent] or truncated[agent])
                reward = rewards[agent]
            except KeyError:
                raise _missing("reward, terminated or truncated", agent) from None
            if stays:
                over = False
            if not (stays and alive[slot]) and not _write_change(row, stays, outcome):
                continue
            observe(observations[agent], infos.get(agent), stays)
            try:
                column[slot] = reward
            except (TypeError, ValueError):
                row.write_reward(reward)  # raises with the reason
        return over, nonempty_infos(infos)


def _fast_lookup(agents: list[str]) -> Collection[str]:
    """Return the agents as a set; a few are looked up as fast in the env's own list, which need not be copied."""
    return agents if len(agents) <= FEW else set(agents)


def _write_change(row: AgentRow, stays: bool, outcome: Outcome) -> bool:
    """Write an agent that joins or ends in this step. Return False if it was absent before and after it: it had ended
    already, and the env still returns values for it."""
    _, terminated, truncated = outcome
    if not (stays or row.alive):
        _be_absent(row)
        return False
    cut = bool(truncated[row.agent])
    row.end(bool(terminated[row.agent]) or not (stays or cut), cut)
    row.write_presence(stays, stays)
    return True


def _write_unobserved(row: AgentRow, present: bool, outcome: Outcome) -> None:
    """Write an agent without an observation: it is absent, or has just ended and keeps its last observation."""
    rewards, terminated, truncated = outcome
    ended, cut = bool(terminated.get(row.agent, False)), bool(truncated.get(row.agent, False))
    if present and not (ended or cut):
        raise _missing("observation", row.agent)
    if row.alive:
        row.write_reward(rewards.get(row.agent, 0.0))
        row.end(ended or not cut, cut)
        row.write_presence(False, False)
    else:
        _be_absent(row)


def _be_absent(row: AgentRow) -> None:
    row.write_reward(0.0)
    row.end(False, False)
    row.write_absent()


def _missing(what: str, agent: str) -> BadValue:
    return BadValue(f"the env returned no {what} for {agent}, which is in its agents")


def all_at_once(env: Any) -> Any:
    """Return a parallel env over an AEC env in which all agents act at the same time."""
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)
