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

from multiverse.env_checker.catalogue import make_finding
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject, WatchedEnv
from multiverse.env_checker.trajectory import (
    Actions,
    Trajectory,
    advance,
    begin,
    difference,
    episode,
    rollout,
    steps_in,
)

CUT_AFTER = 3  # steps of an episode that is not finished
EPISODES = 6  # compared where two of them could be equal by chance


# -- seeds -----------------------------------------------------------------------------------------------------
def check_seeds(subject: Subject) -> Iterator[Finding]:
    """Compare two new envs with one seed, then a used env, then episodes with other seeds and without."""
    env, settings = subject.build(), subject.settings
    seed = settings.seed
    actions = subject.actions(env, settings.compared_steps)
    first = rollout(env, actions, settings.compared_s, seed=seed)
    actions = actions[: steps_in(first)]
    second = rollout(subject.build(), actions, seed=seed)
    words = difference(first, second)
    other_infos = "" if words else difference(first, second, of_infos=True)
    if (words or other_infos) and getattr(env.env.spec, "nondeterministic", False):
        yield make_finding("nondeterministic", f"two envs with seed {seed} differ {words or other_infos}")
        return
    if words:
        evidence = f"two new envs, both with reset(seed={seed}) and the same actions, differ {words}"
        yield _cause(subject, actions, evidence)
        return
    if other_infos:
        yield make_finding("infos-differ", f"the same seed {seed} and actions gave other infos {other_infos}")
    yield from _leaks(subject, actions, first)
    yield from _variety(subject, actions)


def _cause(subject: Subject, actions: Actions, evidence: str) -> Finding:
    """Return the finding: `global-rng` if seeding the global generators makes two rollouts equal."""
    rollouts = []
    for _ in range(2):
        seed_global_generators(subject.settings.seed)
        rollouts.append(rollout(subject.build(), actions, seed=subject.settings.seed))
    if difference(rollouts[0], rollouts[1]):
        return make_finding("seed-ignored", evidence)
    return make_finding("global-rng", f"{evidence}; after np.random.seed() and random.seed() they are equal")


def _leaks(subject: Subject, actions: Actions, first: Trajectory) -> Iterator[Finding]:
    """Repeat the first rollout on an env whose earlier episodes were not finished, and on one whose episodes ended."""
    seed, backwards = subject.settings.seed, actions[::-1]  # other actions than those to come
    for name, others, seconds in (
        ("that was not finished", actions[:CUT_AFTER], math.inf),
        ("that had ended", backwards, subject.settings.compared_s),
    ):
        env = subject.build()
        for other in (seed + 1, seed + 2):
            episode(env, others, seconds, seed=other)
        words = difference(first, rollout(env, actions, seed=seed))
        if words:
            evidence = f"reset(seed={seed}) after another episode {name} gave another episode than on a new env"
            yield make_finding("state-leaks", f"{evidence}, {words}")
            return


def _variety(subject: Subject, actions: Actions) -> Iterator[Finding]:
    """Compare episodes with different seeds, and episodes without."""
    env, seed = subject.build(), subject.settings.seed
    seeded = [episode(env, actions, seed=number) for number in range(seed, seed + EPISODES)]
    episode(env, actions, seed=seed)
    unseeded = [episode(env, actions) for _ in range(EPISODES)]
    by_seed, by_chance = (
        any(len(other) != len(seeded[0]) or difference(seeded[0], other) for other in others)
        for others in (seeded[1:], unseeded)
    )
    if by_seed and not by_chance:
        evidence = f"{EPISODES} episodes after reset(seed={seed}), each begun by reset(), were equal to it bit for bit"
        yield make_finding("episodes-repeat", evidence)
    if not by_seed and by_chance:
        evidence = f"seeds {seed} to {seed + EPISODES - 1} gave the same episode; unseeded ones differ"
        yield make_finding("seeds-alike", evidence)
    if not by_seed and not by_chance:
        evidence = f"{EPISODES} seeds and {EPISODES} unseeded episodes with the same actions were all equal"
        yield make_finding("no-randomness", evidence)


# -- several envs in one process -------------------------------------------------------------------------------
def check_sharing(subject: Subject) -> Iterator[Finding]:
    """Play episodes alone, then in two envs in turn, and compare the state of the process before and after."""
    before = ProcessState.now()
    try:
        yield from _shared_state(subject)
        subject.close()
        environment, settings = before.changes_of_environment(), before.changes_of_settings()
    finally:
        before.restore()
    if environment:
        yield make_finding("environment-changed", f"after building, stepping and closing: {environment}")
    if settings:
        yield make_finding("process-settings-changed", f"after building, stepping and closing: {settings}")


def _shared_state(subject: Subject) -> Iterator[Finding]:
    env, settings = subject.build(), subject.settings
    actions = subject.actions(env, settings.compared_steps)
    generators = global_generators()
    first = rollout(env, actions, settings.compared_s, seed=settings.seed)
    moved = [name for name, state in global_generators().items() if state != generators[name]]
    actions = actions[: steps_in(first)]
    alone = (first, rollout(subject.build(), actions, seed=settings.seed + 1))
    if difference(first, rollout(subject.build(), actions, seed=settings.seed)):
        return  # episodes differ even alone, which `check_seeds` reports
    seed_global_generators(settings.seed + 1)
    together = _in_turn([subject.build(), subject.build()], actions, settings.seed)
    differs = [f"(env {i}) {words}" for i in range(2) if (words := difference(alone[i], together[i]))]
    if differs and moved:
        evidence = f"two envs in one process, stepped in turn, differ from each alone {differs[0]}"
        yield make_finding("global-rng", f"{evidence}; they advanced {' and '.join(moved)}")
    elif differs:
        evidence = f"two envs stepped in turn differ from each alone {differs[0]}"
        yield make_finding("instances-share-state", evidence)
    elif moved:
        yield make_finding("global-rng-touched", f"a rollout advanced the global generator of {' and '.join(moved)}")


def _in_turn(envs: Sequence[WatchedEnv], actions: Actions, seed: int) -> list[Trajectory]:
    """Return the trajectory of each env, with seeds seed, seed + 1 and so on, for envs that step in turn."""
    trajectories = [[begin(env, seed + i).frozen()] for i, env in enumerate(envs)]
    for action in actions:
        for env, frames in zip(envs, trajectories):
            frames.append(advance(env, action).frozen())
            if frames[-1].ended:
                frames.append(begin(env).frozen())
    return trajectories


# -- state of the process --------------------------------------------------------------------------------------
def seed_global_generators(seed: int) -> None:
    """Seed the global generators of numpy and Python."""
    np.random.seed(seed % 2**32)
    random.seed(seed)


def global_generators() -> dict[str, Any]:
    """Return the state of each generator that the whole process shares, by its name."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {"np.random": (name, np.asarray(keys).tobytes(), *rest), "random": random.getstate()}


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State of the process that an env must not change for others."""

    environ: dict[str, str]
    cwd: str
    interrupt_handler: Any
    float_errors: dict[str, Any]

    @classmethod
    def now(cls) -> ProcessState:
        return cls(dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT), dict(np.geterr()))

    def changes_of_environment(self) -> str:
        """Describe changed variables, by name only since values may be secrets, and the working directory."""
        now = ProcessState.now()
        names = sorted(n for n in {*self.environ, *now.environ} if self.environ.get(n) != now.environ.get(n))
        changes = [f"environment variable{'s' * (len(names) > 1)} {', '.join(names)}"] if names else []
        changes += [f"working directory {self.cwd} → {now.cwd}"] if self.cwd != now.cwd else []
        return "; ".join(changes)

    def changes_of_settings(self) -> str:
        """Describe changed handling of floating-point errors and of Ctrl-C."""
        before, now = self.float_errors, ProcessState.now()
        changes = [f"np.seterr {before} → {now.float_errors}"] if before != now.float_errors else []
        changes += ["the handler of Ctrl-C (SIGINT)"] if self.interrupt_handler != now.interrupt_handler else []
        return "; ".join(changes)

    def restore(self) -> None:
        """Restore this state for the checks that follow."""
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.cwd)
        if signal.getsignal(signal.SIGINT) != self.interrupt_handler:
            signal.signal(signal.SIGINT, self.interrupt_handler)
        np.seterr(**self.float_errors)
