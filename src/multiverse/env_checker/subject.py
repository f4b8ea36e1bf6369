"""The env that is checked, in the worker: built as often as a check needs it; every call is noted before it is made."""

from __future__ import annotations

import contextlib
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
from multiverse.core.errors import InvalidRequest, RemoteError
from multiverse.core.plan import whole_number
from multiverse.env_checker.catalogue import make_finding
from multiverse.env_checker.laboratory import BUILD, CLOSE, RESET, STEP, Seat, Where
from multiverse.env_checker.report import Finding

ByAgent = dict[Any, Any]


class TeamEnv:
    """A PettingZoo env as the checks step it: all values by agent, unchanged.

    A step of a parallel env is one of the env; of an AEC env it is one agent's action and all steps until the next
    agent acts, in which agents that have ended are removed. Actions are given for all possible agents; one that the
    mask of its agent closes is replaced by an open one.
    """

    spec = None

    def __init__(self, foreign: Any, kind: EnvKind) -> None:
        self.foreign, self.in_turns = foreign, kind == "turns"
        self.possible_agents = tuple(getattr(foreign, "possible_agents", None) or ())
        self.observation_space = _by_agent(self.possible_agents, foreign.observation_space)
        self.action_space = _by_agent(self.possible_agents, foreign.action_space)
        self.masks: ByAgent = {}  # agent → action mask or None
        self._there: list[Any] = []  # agents that act next, of a parallel env
        self.over = False
        """Whether no agent is left."""

    @property
    def unwrapped(self) -> Any:
        return self.foreign.unwrapped

    @property
    def agents(self) -> list[Any]:
        """The agents that the env lists now."""
        return list(self.foreign.agents)

    def reset(self, **arguments: Any) -> Any:
        """Return the result of a parallel env; of an AEC env observation and info of the first agent, as such dicts."""
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
        """Return the results of a parallel env; of an AEC env the same five dicts, of the selected agents."""
        if self.in_turns:
            return self._turn(actions)
        result = self.foreign.step({agent: self._open(agent, actions) for agent in self._there})
        parts = result[2:4] if isinstance(result, tuple) and len(result) == 5 else ()
        ended = {agent for part in parts if isinstance(part, dict) for agent, end in part.items() if end}
        self._there = [agent for agent in self.foreign.agents if agent not in ended]
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
            for values, value in zip(result, env.last()):
                values[agent] = value
            if not (result[2][agent] or result[3][agent]):
                break
            env.step(None)
        else:
            raise RuntimeError(f"{agent} has ended and stays in agents after the steps that remove it")
        self.over = not env.agents
        self._note_masks(result)
        return result

    def _open(self, agent: Any, actions: ByAgent) -> Any:
        action, mask = actions[agent], self.masks.get(agent)
        space = self.action_space[agent]
        if mask is None or not isinstance(space, spaces.Discrete) or np.shape(mask) != (space.n,) or not mask.any():
            return action  # a wrong mask is reported by the check of steps
        allowed = np.flatnonzero(mask)
        return space.start + allowed[(action - space.start) % len(allowed)]

    def _note_masks(self, result: Any) -> None:
        """Keep copies of the masks, which belong to the caller."""
        if not isinstance(result, tuple) or len(result) not in (2, 5):
            return
        for agent, mask in masks_in(result[0], result[-1]):
            self.masks[agent] = None if mask is None else np.array(mask)

    def close(self) -> None:
        self.foreign.close()


def masks_in(observations: Any, infos: Any) -> Iterable[tuple[Any, Any]]:
    """Yield each agent with its action mask, or None."""
    if isinstance(observations, dict):
        for agent, observation in observations.items():
            yield agent, mask_of(observation, infos.get(agent) if isinstance(infos, dict) else None)


def _by_agent(agents: Iterable[Any], space_of: Any) -> Any:
    """Return the spaces of all agents as one `Dict`, or as a plain dict if one of them is not a space."""
    by_agent = {agent: space_of(agent) for agent in agents}
    return spaces.Dict(by_agent) if all(isinstance(space, spaces.Space) for space in by_agent.values()) else by_agent


# -- any env ---------------------------------------------------------------------------------------------------
Result = TypeVar("Result")

RAISED = {BUILD: "build-failed", RESET: "reset-raises", STEP: "step-raises", CLOSE: "close-raises"}
"""Code of the finding when the env raises."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of `check_env`, and limits of the checks."""

    seed: int = 0
    steps: int = 1000  # of the longest rollout
    timeout_s: float = 60.0  # without a response; a check is stopped at its next call of the env after half of it
    from_factory: bool = True  # False: copies of one instance, which may have been used before
    one_at_a_time: bool = False  # no second env can be built beside the first
    rollout_s: float = 3.0  # slow envs are stepped for this long at most
    compared_steps: int = 300  # of each rollout that is compared with another
    compared_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("seed", "steps"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if not 0 <= self.seed < 2**31:
            raise InvalidRequest(f"seed={self.seed}: expected a number from 0 to {2**31 - 1}")
        if self.steps < 1:
            raise InvalidRequest(f"steps={self.steps}: expected at least 1")
        if not self.timeout_s > 0:
            raise InvalidRequest(f"timeout_s={self.timeout_s}: expected more than 0")


class Stopwatch:
    """Measures whether a check has used its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.perf_counter() + seconds

    @property
    def over(self) -> bool:
        return time.perf_counter() > self._until


class OutOfTime(Exception):
    """The env is too slow for the check to finish."""

    def finding(self, check: str) -> Finding:
        return make_finding("cut-short", f"the check of {check} was stopped {self.args[0]}")


class EnvRaised(Exception):
    """The code of the env raised an exception."""

    def __init__(self, where: Where, error: BaseException) -> None:
        super().__init__(str(where))
        self.where, self.error = where, error

    def finding(self) -> Finding:
        return make_finding(RAISED[self.where.phase], f"{self.words()}, {self.where}")

    def words(self) -> str:
        """Return the type, message and line of the exception."""
        remote = RemoteError.of(self.error)
        return f"{next(iter(str(remote).splitlines()), '')}{remote.place()}"


class WatchedEnv:
    """One env: each call is noted in the row of the seat, and its exceptions become `EnvRaised`."""

    def __init__(self, env: Any, subject: Subject) -> None:
        self.env, self._subject = env, subject
        self.where = Where()
        """The last call."""

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
    """Builds the env, and closes the envs that a check left open."""

    def __init__(self, seat: Seat, settings: Settings) -> None:
        self.settings, self._recipe = settings, _unchecked(seat.recipe)
        self._seat, self._watch = seat, Stopwatch(settings.timeout_s / 2)
        self._open: list[WatchedEnv] = []

    def build(self) -> WatchedEnv:
        """Return a new env; `EnvRaised` if that fails."""
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
            getattr(env, name, None)  # a property may raise, too
        return env

    def ask(self, where: Where, call: Callable[[], Result]) -> Result:
        """Note the call, then make it; raise `EnvRaised` if it raises, `OutOfTime` if no time is left for it."""
        if where.phase != CLOSE and self._watch.over:
            raise OutOfTime(f"{where}, after {self._watch.seconds:g} s")
        self._seat.note(where)
        try:
            return call()
        except (Exception, SystemExit) as error:
            raise EnvRaised(where, error) from error

    def actions(self, env: WatchedEnv, count: int) -> list[Any]:
        """Return `count` samples of the action space, after `action_space.seed(seed)`."""
        space = copy.deepcopy(env.env.action_space)
        space.seed(self.settings.seed)
        return [space.sample() for _ in range(count)]

    def close(self) -> None:
        """Close all open envs; errors are ignored, since one check is about them."""
        for env in self._open:
            with contextlib.suppress(EnvRaised):
                env.close()
        self._open.clear()


def _unchecked(recipe: Recipe) -> Recipe:
    """Return the recipe without Gymnasium's own checker, which would raise before these checks find the cause."""
    if isinstance(recipe.source, EnvSpec):
        return replace(recipe, kwargs={"disable_env_checker": True, **recipe.kwargs})
    return recipe
