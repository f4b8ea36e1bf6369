"""A PettingZoo parallel env as an Env: one slot per agent, those that are absent masked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from multiverse.adapters.agent_row import AgentRow
from multiverse.adapters.pettingzoo_env import PettingZooEnv, nonempty_infos
from multiverse.adapters.tasks import reset_to_task
from multiverse.core.env import SlotRow
from multiverse.core.errors import BadValue
from multiverse.core.infos import refuse_no_dict

FEW = 8

Outcome = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""(rewards, terminated, truncated) of a step, by agent."""


class PettingZooParallelEnv(PettingZooEnv):
    """All agents act at once; each may end before the episode does, and come back later.

    Who is there is what the env says in `agents`. An agent that it says has ended is not there any more, even if the
    env goes on to list it; one that leaves without a word has terminated. An agent that is there without an
    observation, or observes without a reward and its ends, is an error of the env.
    """

    kind = "parallel"

    def bind(self, rows: Sequence[SlotRow]) -> None:
        super().bind(rows)
        self._there: Collection[str] = ()
        # What nearly every step needs of a row, looked up once.
        self._each = [(row, row.agent, row.slot, row.alive_in, row.rewards, row.observe) for row in self._rows]

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        if task is not None:
            observations, infos = reset_to_task(self._env, seed, options, task)
        else:
            observations, infos = self._env.reset(seed=seed, options=options)
        refuse_no_dict("what reset returned as infos", infos)
        self._there = there = _few_or_a_set(self._env.agents)
        self._refuse_unknown(observations, there)
        for row in self._rows:
            agent = row.agent
            if agent not in there:
                row.be_absent()
                continue
            if agent not in observations:
                raise _missing("observation", agent)
            row.observe(observations[agent], infos.get(agent), True)
            row.be(True, True)
        return self._infos_of_reset(infos)

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """One action for every slot; those of absent agents are not passed on."""
        env, there, known, over = self._env, self._there, self._known, True
        chosen = {each[1]: action for each, action in zip(self._each, actions) if each[1] in there}
        observations, rewards, terminated, truncated, infos = env.step(chosen)
        if infos.__class__ is not dict:
            refuse_no_dict("what the env returned as infos", infos)
        self._there = there = _few_or_a_set(env.agents)
        if not (known.issuperset(observations) and known.issuperset(there)):
            self._refuse_unknown(observations, there)
        outcome = rewards, terminated, truncated
        for row, agent, slot, alive, column, observe in self._each:
            if agent not in observations:
                _go_unseen(row, agent in there, outcome)
                continue
            try:
                stays = agent in there and not (terminated[agent] or truncated[agent])
                reward = rewards[agent]
            except KeyError:
                raise _missing("reward, terminated or truncated", agent) from None
            if stays:
                over = False
            if not (stays and alive[slot]) and not _come_or_go(row, stays, outcome):
                continue
            observe(observations[agent], infos.get(agent), stays)
            try:
                column[slot] = reward
            except (TypeError, ValueError):
                row.earn(reward)  # which says what is wrong
        return over, nonempty_infos(infos)


def _few_or_a_set(agents: list[str]) -> Collection[str]:
    """For looking agents up: a few are found as fast in a list, and the env's own need not be copied."""
    return agents if len(agents) <= FEW else set(agents)


def _come_or_go(row: AgentRow, stays: bool, outcome: Outcome) -> bool:
    """An agent that was not there before this step, or is not after it. False if it was and is neither: it had ended
    before, and the env goes on about it."""
    _, terminated, truncated = outcome
    if not (stays or row.alive):
        _be_absent(row)
        return False
    cut = bool(truncated[row.agent])
    row.end(bool(terminated[row.agent]) or not (stays or cut), cut)
    row.be(stays, stays)
    return True


def _go_unseen(row: AgentRow, there: bool, outcome: Outcome) -> None:
    """The env returned no observation for this agent: it is absent, or it has just gone and keeps what it saw last."""
    rewards, terminated, truncated = outcome
    ended, cut = bool(terminated.get(row.agent, False)), bool(truncated.get(row.agent, False))
    if there and not (ended or cut):
        raise _missing("observation", row.agent)
    if row.alive:
        row.earn(rewards.get(row.agent, 0.0))
        row.end(ended or not cut, cut)
        row.be(False, False)
    else:
        _be_absent(row)


def _be_absent(row: AgentRow) -> None:
    row.earn(0.0)
    row.end(False, False)
    row.be_absent()


def _missing(what: str, agent: str) -> BadValue:
    return BadValue(f"the env returned no {what} for {agent}, which is there")


def all_at_once(env: Any) -> Any:
    """An AEC env in which, really, everybody acts at once, as a parallel one."""
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)
