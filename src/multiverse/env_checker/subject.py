"""The env under examination, inside the worker: built as often as a check wants, with every call noted first."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gymnasium.envs.registration import EnvSpec

from multiverse.adapters.env_source import Recipe, pettingzoo_kind
from multiverse.core.errors import RemoteError
from multiverse.env_checker.catalogue import found
from multiverse.env_checker.laboratory import BUILD, CLOSE, RESET, STEP, Seat, Where
from multiverse.env_checker.report import Finding
from multiverse.env_checker.team_env import TeamEnv

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
