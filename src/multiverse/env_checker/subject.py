"""The env under examination, inside the worker: built as often as a check needs it, with every call noted before."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from multiverse.adapters.agents import mask_of
from multiverse.adapters.env_source import Recipe, pettingzoo_kind
from multiverse.core.env import EnvKind
from multiverse.core.errors import RemoteError
from multiverse.env_checker.catalogue import found
from multiverse.env_checker.laboratory import BUILD, CLOSE, RESET, STEP, Seat, Where
from multiverse.env_checker.report import Finding

ByAgent = dict[Any, Any]


class TeamEnv:
    """Parallel: a step is one of the env. AEC: a step is one agent's decision, with what it takes until the next one;
    agents that have ended are removed on the way.

    Actions are given for everybody there can be. Of those that are not open to an agent, its mask takes another.
    """

    spec = None

    def __init__(self, foreign: Any, kind: EnvKind) -> None:
        self.foreign, self.in_turns = foreign, kind == "turns"
        self.possible_agents = tuple(getattr(foreign, "possible_agents", None) or ())
        self.observation_space = _by_agent(self.possible_agents, foreign.observation_space)
        self.action_space = _by_agent(self.possible_agents, foreign.action_space)
        self.masks: ByAgent = {}  # agent → what is open to it, where it says so
        self._there: list[Any] = []  # who acts next, of a parallel env
        self.over = False
        """Nobody is left."""

    @property
    def unwrapped(self) -> Any:
        return self.foreign.unwrapped

    @property
    def agents(self) -> list[Any]:
        """Who is there, as the env says."""
        return list(self.foreign.agents)

    def reset(self, **arguments: Any) -> Any:
        """What a parallel env returned; of an AEC env ({agent: observation}, {agent: info}) of whoever acts first."""
        self.masks, result = {}, self.foreign.reset(**arguments)
        if self.in_turns:
            agent = self.foreign.agent_selection
            observation, _, _, _, info = self.foreign.last()
            result = {agent: observation}, {agent: info}
        self._there = list(self.foreign.agents)
        self.over = not self._there
        self._note_masks(result)
        return result

    def step(self, actions: ByAgent) -> Any:
        """What a parallel env returned; of an AEC env the same five dicts, with those agents whose turn it was."""
        if self.in_turns:
            return self._turn(actions)
        result = self.foreign.step({agent: self._open(agent, actions) for agent in self._there})
        _, terminated, truncated = ended_in(result)
        self._there = [agent for agent in self.foreign.agents if not (terminated.get(agent) or truncated.get(agent))]
        self.over = not self._there
        self._note_masks(result)
        return result

    def _turn(self, actions: ByAgent) -> Any:
        env = self.foreign
        result: tuple[ByAgent, ...] = ({}, {}, {}, {}, {})
        env.step(self._open(env.agent_selection, actions))
        for _ in range(2 * len(self.possible_agents) + 1):
            if not env.agents:
                break
            agent = env.agent_selection
            for told, value in zip(result, env.last()):
                told[agent] = value
            if not (result[2][agent] or result[3][agent]):
                break
            env.step(None)
        else:
            raise RuntimeError(f"{agent} has ended and stays in agents, whatever steps are taken to remove it")
        self.over = not env.agents
        self._note_masks(result)
        return result

    def _open(self, agent: Any, actions: ByAgent) -> Any:
        action, mask = actions[agent], self.masks.get(agent)
        space = self.action_space[agent]
        if mask is None or not isinstance(space, spaces.Discrete) or np.shape(mask) != (space.n,) or not mask.any():
            return action  # what is wrong with the mask, the check of steps tells
        allowed = np.flatnonzero(mask)
        return space.start + allowed[(action - space.start) % len(allowed)]

    def _note_masks(self, result: Any) -> None:
        """Copies: what was returned is the caller's."""
        if not isinstance(result, tuple) or len(result) not in (2, 5):
            return
        for agent, mask in masks_in(result[0], result[-1]):
            self.masks[agent] = None if mask is None else np.array(mask)

    def close(self) -> None:
        self.foreign.close()


def masks_in(observations: Any, infos: Any) -> Iterable[tuple[Any, Any]]:
    """(agent, its action mask or None)."""
    if isinstance(observations, dict):
        for agent, seen in observations.items():
            yield agent, mask_of(seen, infos.get(agent) if isinstance(infos, dict) else None)


def ended_in(result: Any) -> tuple[ByAgent, ByAgent, ByAgent]:
    """(rewards, terminated, truncated) of a step, as far as they are dicts."""
    parts = result[1:4] if isinstance(result, tuple) and len(result) == 5 else ({}, {}, {})
    rewards, terminated, truncated = (part if isinstance(part, dict) else {} for part in parts)
    return rewards, terminated, truncated


def _by_agent(agents: Iterable[Any], space_of: Any) -> Any:
    """The spaces of all as one; as they are if one of them is none."""
    found = {agent: space_of(agent) for agent in agents}
    return spaces.Dict(found) if all(isinstance(space, spaces.Space) for space in found.values()) else found


# -- the env under examination ---------------------------------------------------------------------------------
Result = TypeVar("Result")

RAISED = {BUILD: "build-failed", RESET: "reset-raises", STEP: "step-raises", CLOSE: "close-raises"}
"""What it is called when the env raises."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How thorough the checks are."""

    seed: int = 0
    steps: int = 1000  # of the longest rollout
    from_factory: bool = True  # False: copies of one instance, which may have been used before
    one_at_a_time: bool = False  # no second env can be built beside the first
    rollout_s: float = 3.0  # slow envs are stepped for this long at most
    compared_steps: int = 300  # of each rollout that is compared with another
    compared_s: float = 1.0
    check_s: float = 30.0  # after so long a check is stopped at its next call of the env


class Stopwatch:
    """Says when a check has taken its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.perf_counter() + seconds

    @property
    def over(self) -> bool:
        return time.perf_counter() > self._until


class OutOfTime(Exception):
    """The env is too slow for the check to be finished."""

    def finding(self, check: str) -> Finding:
        return found("cut-short", f"the check of {check} was stopped {self.args[0]}")


class EnvRaised(Exception):
    """The env's own code raised."""

    def __init__(self, where: Where, error: BaseException) -> None:
        super().__init__(str(where))
        self.where, self.error = where, error

    def finding(self) -> Finding:
        return found(RAISED[self.where.phase], f"{self.words()}, {self.where}")

    def words(self) -> str:
        """Error, message and the line of the env's where it was raised."""
        remote = RemoteError.of(self.error)
        return f"{next(iter(str(remote).splitlines()), '')}{remote.place()}"


class WatchedEnv:
    """One env; each call says in the seat's row where it is, and what it raises is an `EnvRaised`."""

    def __init__(self, env: Any, subject: Subject) -> None:
        self.env, self._subject = env, subject
        self.where = Where()
        """The last call, in words."""

    def reset(self, **arguments: Any) -> Any:
        seed = arguments.get("seed")
        if seed is not None:
            self.where = Where(seed=seed)
        self.where = self.where._replace(phase=RESET, episode=self.where.episode + 1)
        return self._subject.ask(self.where, lambda: self.env.reset(**arguments))

    def step(self, action: Any) -> Any:
        self.where = self.where._replace(phase=STEP, step=self.where.step + 1)
        return self._subject.ask(self.where, lambda: self.env.step(action))

    def close(self) -> None:
        self.where = self.where._replace(phase=CLOSE)
        self._subject.ask(self.where, lambda: self.env.close())


class Subject:
    """Builds the env, and closes at the end of a check whatever that left open."""

    def __init__(self, seat: Seat, settings: Settings) -> None:
        self.settings, self._recipe = settings, _unchecked(seat.recipe)
        self._seat, self._watch = seat, Stopwatch(settings.check_s)
        self._open: list[WatchedEnv] = []

    def build(self) -> WatchedEnv:
        """A new env; `EnvRaised` if that fails."""
        if self.settings.one_at_a_time:
            self.close()
        self._open.append(WatchedEnv(self.ask(Where(BUILD), self._built), self))
        return self._open[-1]

    def _built(self) -> Any:
        env = self._recipe.build_foreign()
        kind = pettingzoo_kind(env)
        if kind is not None:
            return TeamEnv(env, kind)
        for name in ("observation_space", "action_space"):
            getattr(env, name, None)  # a property may raise as well
        return env

    def is_team(self) -> bool:
        """Whether the env has several agents; asked once in the life of a worker."""
        if self._seat.is_team is None:
            self._seat.is_team = isinstance(self.build().env, TeamEnv)
            self.close()
        return self._seat.is_team

    def ask(self, where: Where, call: Callable[[], Result]) -> Result:
        """One call of the env's code, noted first; `EnvRaised` with what it raises, `OutOfTime` instead of it."""
        if where.phase != CLOSE and self._watch.over:
            raise OutOfTime(f"{where}, after {self._watch.seconds:g} s")
        self._seat.note(where)
        try:
            return call()
        except (Exception, SystemExit) as error:
            raise EnvRaised(where, error) from error

    def actions(self, env: WatchedEnv, count: int) -> list[Any]:
        """The first so many actions that `action_space.seed(seed)` and then `sample()` give."""
        space = copy.deepcopy(env.env.action_space)
        space.seed(self.settings.seed)
        return [space.sample() for _ in range(count)]

    def close(self) -> None:
        """Close what is open; how that goes is the business of one check only."""
        for env in self._open:
            try:
                env.close()
            except EnvRaised:
                pass
        self._open.clear()


def _unchecked(recipe: Recipe) -> Recipe:
    """Without Gymnasium's own checker around an id's env: it would raise before we have seen what is wrong."""
    if isinstance(recipe.source, EnvSpec):
        return replace(recipe, kwargs={"disable_env_checker": True, **recipe.kwargs})
    return recipe
