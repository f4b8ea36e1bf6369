"""Checks that an episode depends only on its seed and actions, not on earlier episodes or other envs in the process."""

from __future__ import annotations

import math
import os
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.env_checker.catalogue import found
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject, WatchedEnv
from multiverse.env_checker.trajectory import (
    Actions,
    Trajectory,
    advance,
    apart,
    begin,
    episode,
    infos_apart,
    rollout,
    steps_in,
)


def check_sharing(subject: Subject) -> Iterator[Finding]:
    """Alone first, then two in turn; and what the process looks like afterwards."""
    before = ProcessState.now()
    try:
        yield from _episodes(subject)
        subject.close()
        environment, settings = before.changes_of_environment(), before.changes_of_settings()
    finally:
        before.restore()
    if environment:
        yield found("environment-changed", f"after building, stepping and closing: {environment}")
    if settings:
        yield found("process-settings-changed", f"after building, stepping and closing: {settings}")


def _episodes(subject: Subject) -> Iterator[Finding]:
    env, settings = subject.build(), subject.settings
    actions = subject.actions(env, settings.compared_steps)
    generators = global_generators()
    first = rollout(env, actions, settings.compared_s, seed=settings.seed)
    moved = moved_generators(generators)
    actions = actions[: steps_in(first)]
    alone = (first, rollout(subject.build(), actions, seed=settings.seed + 1))
    if apart(first, rollout(subject.build(), actions, seed=settings.seed)):
        return  # it is not even the same alone: the seeds' check has told that
    seed_global_generators(settings.seed + 1)
    words = _apart(alone, in_turn([subject.build(), subject.build()], actions, settings.seed))
    if words and moved:
        words = f"two envs in one process, stepped in turn, part from what each does alone {words}"
        yield found("global-rng", f"{words}; {' and '.join(moved)} moved meanwhile")
    elif words:
        yield found("instances-share-state", f"two envs stepped in turn part from what each does alone {words}")
    elif moved:
        yield found("global-rng-touched", f"a rollout moved the global generator of {' and '.join(moved)}")


def in_turn(envs: Sequence[WatchedEnv], actions: Actions, seed: int) -> list[Trajectory]:
    """Each env's trajectory, with seeds seed, seed + 1 and so on, one step of each after another."""
    found_so_far = [[begin(env, seed + i).frozen()] for i, env in enumerate(envs)]
    for action in actions:
        for env, frames in zip(envs, found_so_far):
            frames.append(advance(env, action).frozen())
            if frames[-1].ended:
                frames.append(begin(env).frozen())
    return found_so_far


def _apart(alone: Sequence[Trajectory], together: Sequence[Trajectory]) -> str:
    """Where an agent sees the first difference; '' if nowhere."""
    for number, (one, other) in enumerate(zip(alone, together)):
        words = apart(one, other)
        if words:
            return f"(env {number}) {words}"
    return ""


# -- what belongs to the whole process -------------------------------------------------------------------------
def seed_global_generators(seed: int) -> None:
    """Put numpy's and Python's global generators into a known state."""
    np.random.seed(seed % 2**32)
    random.seed(seed)


def global_generators() -> tuple[tuple[str, Any], ...]:
    """The generators that everybody shares, by the name a user knows them by, as they stand now."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return ("np.random", (name, np.asarray(keys).tobytes(), *rest)), ("random", random.getstate())


def moved_generators(before: tuple[tuple[str, Any], ...]) -> list[str]:
    """The names of those that have been drawn from, or seeded, since."""
    return [name for (name, old), (_, new) in zip(before, global_generators()) if old != new]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What an env may not change for its neighbours."""

    environ: dict[str, str]
    cwd: str
    interrupt_handler: Any
    float_errors: dict[str, Any]

    @classmethod
    def now(cls) -> ProcessState:
        return cls(dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT), dict(np.geterr()))

    def changes_of_environment(self) -> str:
        """Variables by name only, since values may be secrets; and the working directory."""
        now = ProcessState.now()
        names = sorted(
            name for name in {*self.environ, *now.environ} if self.environ.get(name) != now.environ.get(name)
        )
        found = [f"environment variable{'s' * (len(names) > 1)} {', '.join(names)}"] if names else []
        found += [f"working directory {self.cwd} → {now.cwd}"] if self.cwd != now.cwd else []
        return "; ".join(found)

    def changes_of_settings(self) -> str:
        now = ProcessState.now()
        found = [f"np.seterr {self.float_errors} → {now.float_errors}"] if self.float_errors != now.float_errors else []
        found += ["the handler of Ctrl-C (SIGINT)"] if self.interrupt_handler != now.interrupt_handler else []
        return "; ".join(found)

    def restore(self) -> None:
        """As it was, for the checks that follow."""
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.cwd)
        if signal.getsignal(signal.SIGINT) != self.interrupt_handler:
            signal.signal(signal.SIGINT, self.interrupt_handler)
        np.seterr(**self.float_errors)


# -- seeds -----------------------------------------------------------------------------------------------------
CUT_AFTER = 3  # steps of an episode that is left in its middle
EPISODES = 6  # compared where chance could make two of them equal


def check_seeds(subject: Subject) -> Iterator[Finding]:
    """Two new envs with one seed; then a used env; then other seeds, and none."""
    env, settings = subject.build(), subject.settings
    seed = settings.seed
    actions = subject.actions(env, settings.compared_steps)
    first = rollout(env, actions, settings.compared_s, seed=seed)
    actions = actions[: steps_in(first)]
    second = rollout(subject.build(), actions, seed=seed)
    words = apart(first, second)
    other_infos = "" if words else infos_apart(first, second)
    if (words or other_infos) and getattr(env.env.spec, "nondeterministic", False):
        yield found("nondeterministic", f"two envs with seed {seed} part {words or other_infos}")
        return
    if words:
        yield _cause(subject, actions, f"two new envs, both with reset(seed={seed}) and the same actions, part {words}")
        return
    if other_infos:
        yield found("infos-differ", f"the same seed {seed} and actions gave other infos {other_infos}")
    yield from _leaks(subject, actions, first)
    yield from _variety(subject, actions)


def _cause(subject: Subject, actions: Actions, seen: str) -> Finding:
    """Whether fixing the global generators makes two runs equal: then it is they that drive the env."""
    runs = []
    for _ in range(2):
        seed_global_generators(subject.settings.seed)
        runs.append(rollout(subject.build(), actions, seed=subject.settings.seed))
    if apart(*runs):
        return found("seed-ignored", seen)
    return found("global-rng", f"{seen}; with np.random.seed() and random.seed() set before, they do not")


# -- a used env ------------------------------------------------------------------------------------------------
def _leaks(subject: Subject, actions: Actions, first: Trajectory) -> Iterator[Finding]:
    """The first rollout once more, on an env that has played before: cut in the middle, and played to an end."""
    seed, backwards = subject.settings.seed, actions[::-1]  # other actions than those to come
    for name, others, seconds in (
        ("left in its middle", actions[:CUT_AFTER], math.inf),
        ("that had ended", backwards, subject.settings.compared_s),
    ):
        env = subject.build()
        for other in (seed + 1, seed + 2):
            episode(env, others, seconds, seed=other)
        words = apart(first, rollout(env, actions, seed=seed))
        if words:
            seen = f"reset(seed={seed}) after another episode {name} gave another episode than on a new env, {words}"
            yield found("state-leaks", seen)
            return


# -- other seeds -----------------------------------------------------------------------------------------------
def _variety(subject: Subject, actions: Actions) -> Iterator[Finding]:
    env, seed = subject.build(), subject.settings.seed
    begun_with = [episode(env, actions, seed=number) for number in range(seed, seed + EPISODES)]
    episode(env, actions, seed=seed)
    unseeded = [episode(env, actions) for _ in range(EPISODES)]
    by_seed, by_chance = _vary(begun_with), _vary([begun_with[0], *unseeded])
    if by_seed and not by_chance:
        words = f"{EPISODES} episodes after reset(seed={seed}), each begun by reset(), were equal to it bit for bit"
        yield found("episodes-repeat", words)
    if not by_seed and by_chance:
        words = f"seeds {seed} to {seed + EPISODES - 1} gave one and the same episode; unseeded ones differ"
        yield found("seeds-alike", words)
    if not by_seed and not by_chance:
        words = f"{EPISODES} seeds and {EPISODES} unseeded episodes with the same actions were all equal"
        yield found("no-randomness", words)


def _vary(episodes: Sequence[Trajectory]) -> bool:
    """Whether an agent could tell any of these episodes from the first."""
    first = episodes[0]
    return any(len(other) != len(first) or apart(first, other) for other in episodes[1:])
