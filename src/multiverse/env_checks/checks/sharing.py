"""Several envs in one process: none may change another's episodes, nor what belongs to the process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from multiverse.env_checks.catalogue import found
from multiverse.env_checks.global_state import ProcessState, global_generators, moved_generators, seed_global_generators
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import Subject, WatchedEnv
from multiverse.env_checks.trajectory import Trajectory, advance, begin, difference, rollout, steps_in


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
    if _apart(alone, (rollout(subject.build(), actions, seed=settings.seed), alone[1])):
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


def in_turn(envs: Sequence[WatchedEnv], actions: Sequence[Any], seed: int) -> list[Trajectory]:
    """Each env's trajectory, with seeds seed, seed + 1 and so on, one step of each after another."""
    found_so_far = [[begin(env, seed + i)] for i, env in enumerate(envs)]
    for action in actions:
        for env, frames in zip(envs, found_so_far):
            frames.append(advance(env, action))
            if frames[-1].ended:
                frames.append(begin(env, None))
    return found_so_far


def _apart(alone: Sequence[Trajectory], together: Sequence[Trajectory]) -> str:
    """Where an agent sees the first difference; '' if nowhere."""
    for number, (one, other) in enumerate(zip(alone, together)):
        where = difference(one, other)
        if where is not None and not where.in_info_only:
            return f"(env {number}) {where}"
    return ""
