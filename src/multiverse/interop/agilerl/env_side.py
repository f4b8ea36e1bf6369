"""The AgileRL drop-in, where the envs run: one env, asked and heard as AgileRL's worker does it. Imports nothing of
AgileRL's, which would bring torch along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import CloudpickleWrapper

from multiverse.adapters.agents import AgentOptions, groups_of
from multiverse.adapters.env_source import Recipe
from multiverse.adapters.pettingzoo_env import PettingZooEnv
from multiverse.core.env import Env, EnvDescription, SlotRow
from multiverse.core.layout import Group
from multiverse.interop.agilerl.rows import (
    MISSING,
    ODD,
    ODDITIES,
    REWARD,
    TERMINATED,
    TRUNCATED,
    USUAL,
    Codes,
    action_row,
    code_of_end,
    code_of_reward,
    everybody,
    fitted,
    is_array,
    placeholder,
    stored,
)
from multiverse.interop.env_side import TakesGiven, own

By = Mapping[str, Any]
"""agent → what was said of it."""

Odd = dict[tuple[str, int], Any]
"""What no column holds, by agent and which of the three it is."""


class OfItsOwn:
    """An env function that shares nothing with others of its worker: each builds from a copy of what it holds.

    `[lambda: env] * 8` means eight envs to AgileRL, whose envs have a process each.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._packed = CloudpickleWrapper(env_fn).__getstate__()

    def __call__(self) -> Any:
        function: Any = CloudpickleWrapper.__new__(CloudpickleWrapper)
        function.__setstate__(self._packed)
        return function()


class AgileRecipe(Recipe):
    """Builds an env as AgileRL has it: the agents are those that the first env said."""

    __slots__ = ()

    def build(self) -> Env:
        return AgileEnv(self.build_foreign(), self.agents)


class Said:
    """One agent's info, left alone on its way."""

    __slots__ = ("info",)

    def __init__(self, info: Any) -> None:
        self.info = info

    def __repr__(self) -> str:
        return repr(self.info)


class ToldRow:
    """One agent's row of the batch."""

    def __init__(self, agent: str, group: Group, row: SlotRow) -> None:
        self.agent, self._row = agent, row
        space, write, target = group.observation_space, row.write_observation, row.plain_target
        self._write, self._fit, self._absent = write, fitted(space), placeholder(space)
        self._target = target
        self._shape: Any = None if target is None else target.shape
        self._dtype: Any = None if target is None else target.dtype
        self.hear = self._hearer()

    def see(self, observations: By) -> None:
        """What it observes, or a placeholder."""
        if self.agent not in observations:
            self._write(self._absent)
            return
        seen = observations[self.agent]
        if type(seen) is np.ndarray and seen.dtype is self._dtype and seen.shape == self._shape:
            self._target[...] = seen
        else:
            self._write(self._fit(seen))

    def be_there(self, there: bool) -> None:
        self._row.alive[self._row.slot] = self._row.acting[self._row.slot] = there

    hear: Callable[[By, By, By, Odd], Codes]
    """(rewards, terminated, truncated, odd): write what is said of this agent; returns what kinds of things it was."""

    def _hearer(self) -> Callable[[By, By, By, Odd], Codes]:
        """A closure, not a method: this runs for every agent at every step."""
        agent, slot, carefully = self.agent, self._row.slot, self._hear_carefully
        columns = self._row.rewards, self._row.terminated, self._row.truncated, self._row.alive, self._row.acting
        reward_column, end_column, cut_column, alive, acting = cast(Any, columns)

        def hear(rewards: By, terminated: By, truncated: By, odd: Odd) -> Codes:
            try:
                reward, end, cut = rewards[agent], terminated[agent], truncated[agent]
            except KeyError:
                return carefully(rewards, terminated, truncated, odd)
            codes = USUAL.get((type(reward), type(end), type(cut)))
            if codes is None:
                return carefully(rewards, terminated, truncated, odd)
            reward_column[slot], end_column[slot], cut_column[slot] = reward, end, cut
            alive[slot] = acting[slot] = not (end or cut)
            return codes

        return hear

    def _hear_carefully(self, rewards: By, terminated: By, truncated: By, odd: Odd) -> Codes:
        """The same, whatever is said, and whatever is not."""
        agent, row = self.agent, self._row
        self.be_there(agent in terminated and not (terminated[agent] or truncated.get(agent, False)))
        columns = (
            (REWARD, rewards, row.rewards, code_of_reward),
            (TERMINATED, terminated, row.terminated, code_of_end),
            (TRUNCATED, truncated, row.truncated, code_of_end),
        )
        codes = []
        for which, said, column, code_of in columns:
            code = code_of(said[agent]) if agent in said else MISSING
            if code == ODD:
                odd[agent, which] = said[agent]
            cast(Any, column)[row.slot] = 0 if code in (MISSING, ODD) else said[agent]
            codes.append(code)
        return cast(Codes, tuple(codes))


class AgileEnv(PettingZooEnv, TakesGiven):
    """A parallel env of which nothing is asked but its spaces, `reset`, `step` and `close`.

    What it says is taken as it is: an agent is there if it is among what was returned. When everybody that it speaks of
    has ended, the episode is over.
    """

    kind = "parallel"

    def __init__(self, env: Any, options: AgentOptions) -> None:
        self._env, self._agents = env, tuple(options.possible_agents or env.possible_agents)
        in_the_block = SimpleNamespace(
            observation_space=lambda agent: stored(env.observation_space(agent)),
            action_space=lambda agent: action_row(env.action_space(agent)),
        )
        self._groups = (*groups_of(in_the_block, self._agents, AgentOptions()), everybody(len(self._agents)))
        self.description = EnvDescription(groups=self._groups, kind=self.kind)
        self._given = []
        self._odd: Odd = {}
        self._ended = False  # so that the next reset is the one that follows an end

    def bind(self, rows: Sequence[SlotRow]) -> None:
        owners = [(agent, group) for group in self._groups for agent in group.agents]
        found = {agent: (i, group, row) for i, ((agent, group), row) in enumerate(zip(owners, rows))}
        self._each = [ToldRow(agent, group, row) for agent in self._agents for _, group, row in [found[agent]]]
        self._takers = [(agent, found[agent][0], _taker(self._env.action_space(agent))) for agent in self._agents]
        self._write_codes = rows[-1].write_observation
        self._codes: list[Codes] = []

    # -- reset and step ------------------------------------------------------------------------------------------
    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        self._given.clear()
        if self._ended:
            self._ended = False
            observations, infos = self._env.reset()
        else:
            self._odd = {}
            observations, infos = self._env.reset(seed=seed, options=own(options))
        for row in self._each:
            row.see(observations)
            row.be_there(row.agent in observations)
        return self._spoken(infos)

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """One action for every agent, and at last whom they are for; those that were given by pipe come first."""
        chosen = self._given.pop() if self._given else self._chosen(actions)
        observations, rewards, terminated, truncated, infos = self._env.step(chosen)
        over = all(end or truncated.get(agent, False) for agent, end in terminated.items())
        self._odd = {}
        codes = [row.hear(rewards, terminated, truncated, self._odd) for row in self._each]
        if codes != self._codes:
            self._write_codes(np.array(codes, np.uint8))
            self._codes = codes
        self._ended = over
        if over:  # what is shown is the reset's
            return True, {}
        for row in self._each:
            row.see(observations)
        return False, self._spoken(infos)

    def _chosen(self, actions: Sequence[Any]) -> dict[str, Any]:
        given = actions[-1].tobytes()
        if 0 not in given:
            return {agent: take(actions[i]) for agent, i, take in self._takers}
        return {agent: take(actions[i]) for (agent, i, take), there in zip(self._takers, given) if there}

    def _spoken(self, infos: By) -> dict[str, Any]:
        """What is more than an empty dict, agent by agent; and whatever no column could hold."""
        found: dict[str, Any] = {}
        for agent, info in infos.items():
            if (info or type(info) is not dict) and agent in self._agents:
                found[agent] = Said(info)
        if self._odd:
            found[ODDITIES] = Said(self._odd)
        return found

    # -- whatever else can be asked ------------------------------------------------------------------------------
    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of the outermost wrapper, with arguments of its own."""
        found = getattr(self._env, name)
        return found(*own(args), **own(kwargs)) if callable(found) else found

    def set_attr(self, name: str, value: Any) -> None:
        setattr(self._env, name, own(value))


def _taker(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """From an action in the block to the one that the env gets: an int, or an array without axes of length one."""
    if not is_array(space) or (not space.shape and isinstance(space, spaces.Box)):
        return np.asarray
    if not space.shape:
        return int
    return (lambda action: action.squeeze()) if 1 in space.shape else (lambda action: action)
