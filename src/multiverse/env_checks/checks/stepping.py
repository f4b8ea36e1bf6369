"""What step returns, over many steps and episodes; and what it does when it is called out of turn."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from multiverse.contracts.layout import Path
from multiverse.env_checks.catalogue import found
from multiverse.env_checks.checks.resetting import replaced_space
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import EnvRaised, Stopwatch, Subject, WatchedEnv
from multiverse.env_checks.trajectory import advance, begin
from multiverse.env_checks.values import Misfit, Tally, misfits

NO_PATH: Path = ()
FEWEST_EQUAL_EPISODES = 3
STEPS_OUT_OF_TURN = 3


def check_steps(subject: Subject) -> Iterator[Finding]:
    """One long rollout, every value looked at; what was seen before an exception is told too."""
    env, settings = subject.build(), subject.settings
    log, watch = StepLog(env), Stopwatch(settings.rollout_s)
    problem: Finding | None = None
    try:
        log.begin(seed=settings.seed)
        for action in subject.actions(env, settings.steps):
            problem = log.step(action)
            if problem is not None or watch.over:
                break
    except EnvRaised as raised:
        problem = raised.finding()
    yield from log.tally.findings(log.steps + log.resets)
    if problem is not None:
        yield problem
        return
    yield from log.ends.findings(log.steps)
    yield from replaced_space(env, log.space)


class StepLog:
    """Steps an env, resets it after each end, and counts what does not fit."""

    def __init__(self, env: WatchedEnv) -> None:
        self._env, self.space = env, env.env.observation_space
        self.tally, self.ends = Tally(), Ends()
        self.steps = self.resets = 0

    def begin(self, **arguments: Any) -> None:
        observation, _ = self._env.reset(**arguments)
        self.resets += 1
        self._add(misfits(self.space, observation))

    def step(self, action: Any) -> Finding | None:
        """One step, and a reset if it ends the episode; returns what keeps its result from being read."""
        result = self._env.step(copy.deepcopy(action))
        problem = step_problem(result)
        if problem is not None:
            return problem
        observation, reward, terminated, truncated, _ = result
        self.steps += 1
        self._add((*misfits(self.space, observation), *_reward(reward), *_ends(terminated, truncated)))
        if _true(terminated) or _true(truncated):
            self.ends.add(self.steps, _true(terminated))
            self.begin()
        return None

    def _add(self, found_now: Iterable[Misfit]) -> None:
        for misfit in found_now:
            self.tally.add(misfit, str(self._env.where))


def step_problem(result: Any) -> Finding | None:
    """What keeps a step's result from being read."""
    if not isinstance(result, tuple):
        return found("step-return", f"step returned {type(result).__name__}, not a tuple of five")
    if len(result) != 5:
        old = ": the old (observation, reward, done, info)?" if len(result) == 4 else ""
        return found("step-return", f"step returned a tuple of {len(result)}, not of five{old}")
    if not isinstance(result[4], dict):
        return found("info-not-dict", f"step's info is {type(result[4]).__name__}: {result[4]!r:.60}")
    return None


class Ends:
    """How episodes ended, and after how many steps."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._last, self._truncations = 0, 0

    def add(self, step: int, terminated: bool) -> None:
        self.lengths.append(step - self._last)
        self._last = step
        self._truncations += not terminated

    def findings(self, steps: int) -> Iterator[Finding]:
        if not self.lengths:
            yield found("never-ends", f"no episode ended in {steps} steps of random actions")
        equal = len(set(self.lengths)) == 1 and len(self.lengths) >= FEWEST_EQUAL_EPISODES
        if equal and self.lengths[0] > 1 and not self._truncations:
            words = f"all {len(self.lengths)} episodes ended after exactly {self.lengths[0]} steps with terminated=True"
            yield found("time-limit-as-terminated", words)


def _true(end: Any) -> bool:
    try:
        return bool(end)
    except Exception:  # an array of several
        return False


def _reward(reward: Any) -> Iterator[Misfit]:
    try:
        number = float(np.asarray(reward).item() if isinstance(reward, np.ndarray) else reward)
    except (TypeError, ValueError):
        yield Misfit("reward-not-number", NO_PATH, f"the reward is {type(reward).__name__}: {reward!r:.60}")
        return
    if isinstance(reward, str):
        yield Misfit("reward-not-number", NO_PATH, f"the reward is the text {reward!r}")
    elif getattr(reward, "shape", ()) != ():
        yield Misfit("reward-array", NO_PATH, f"the reward is an array of shape {reward.shape}: {reward!r:.60}")
    if not math.isfinite(number):
        yield Misfit("reward-not-finite", NO_PATH, f"the reward is {number}")


def _ends(terminated: Any, truncated: Any) -> Iterator[Misfit]:
    for name, end in (("terminated", terminated), ("truncated", truncated)):
        if isinstance(end, bool | np.bool_):
            continue
        number = isinstance(end, int | float | np.generic) or (isinstance(end, np.ndarray) and end.size == 1)
        code = "end-not-bool-like" if number else "end-not-bool"
        yield Misfit(code, (name,), f"{name} is {type(end).__name__}: {end!r:.60}")


# -- out of turn -----------------------------------------------------------------------------------------------
def check_order(subject: Subject) -> Iterator[Finding]:
    """A step before the first reset, and steps after an end: to raise is fine; not to notice is told."""
    env = subject.build()
    actions = subject.actions(env, subject.settings.compared_steps)
    if subject.settings.from_factory and _steps_quietly(env, actions[:1]):
        yield found("step-before-reset", "step() before any reset() returned as if nothing were wrong")
    env = subject.build()
    begin(env, subject.settings.seed)
    watch = Stopwatch(subject.settings.compared_s)
    for action in actions:
        if advance(env, action).ended:
            if _steps_quietly(env, actions[:STEPS_OUT_OF_TURN]):
                yield found("step-after-end", f"{STEPS_OUT_OF_TURN} more steps after an end went on as if it were none")
            begin(env, None)
            return
        if watch.over:
            return


def _steps_quietly(env: Any, actions: list[Any]) -> bool:
    """Whether all these steps pass, and none of them says that the episode is over."""
    try:
        ends = [advance(env, action).ended for action in actions]
    except EnvRaised:
        return False
    return not any(ends)
