"""Whose an array or dict is after it was handed over: observations and infos the caller's, actions too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from multiverse.env_checks.catalogue import found
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import Subject, WatchedEnv
from multiverse.env_checks.trajectory import Frame, Trajectory, difference, frozen, parts, rollout, steps_in

WATCHED_STEPS = 100

Afterwards = Callable[[Any, Any], None]
"""(action given, observation returned) → what a careless caller does to them."""


def check_ownership(subject: Subject) -> Iterator[Finding]:
    env, seed = subject.build(), subject.settings.seed
    actions = subject.actions(env, min(WATCHED_STEPS, subject.settings.compared_steps))
    found_before: dict[str, Finding] = {}
    for finding in _watched(env, actions, seed):
        found_before.setdefault(finding.code, finding)
    yield from found_before.values()
    alone = rollout(subject.build(), actions, subject.settings.compared_s, seed=seed)
    actions = actions[: steps_in(alone)]
    again = rollout(subject.build(), actions, seed=seed)
    if _apart(alone, again):
        return  # not even the same twice: nothing can be told from a comparison
    other = actions[::-1]
    words = _apart(alone, _careless(subject.build(), actions, seed, lambda given, _: _overwrite(given, other[0])))
    if words:
        yield found("action-kept", f"writing over an action after its step changed the episode: {words}")
    if "observation-reused" not in found_before:
        words = _apart(alone, _careless(subject.build(), actions, seed, lambda _, returned: _scribble(returned)))
        if words:
            yield found("observation-is-state", f"writing over a returned observation changed the episode: {words}")


# -- looking on ------------------------------------------------------------------------------------------------
def _watched(env: WatchedEnv, actions: list[Any], seed: int) -> Iterator[Finding]:
    """What was returned by a call, looked at again after the next one; may tell the same thing several times."""
    observation, info = env.reset(seed=seed)
    kept = (observation, frozen(observation), info, frozen(info), str(env.where))
    for action in actions:
        given = copy.deepcopy(action)
        observation, _, terminated, truncated, info = env.step(given)
        for words in parts(frozen(action), frozen(given), "the action"):
            yield found("action-changed", f"{words}, after the step it was given to, {env.where}")
        yield from _changed(kept, info, str(env.where))
        kept = (observation, frozen(observation), info, frozen(info), str(env.where))
        if terminated or truncated:
            observation, info = env.reset()
            yield from _changed(kept, info, str(env.where))
            kept = (observation, frozen(observation), info, frozen(info), str(env.where))


def _changed(kept: tuple[Any, Any, Any, Any, str], new_info: Any, where: str) -> Iterator[Finding]:
    observation, observed, info, told, when = kept
    for words in parts(observed, frozen(observation), "the observation"):
        yield found("observation-reused", f"{words}: it was returned {when} and changed {where}")
    if new_info is info:
        yield found("info-reused", f"the dict returned {when} is the same object as the one returned {where}")
    else:
        for words in parts(told, frozen(info), "info"):
            yield found("info-reused", f"{words}: it was returned {when} and changed {where}")


# -- being careless --------------------------------------------------------------------------------------------
def _careless(env: WatchedEnv, actions: list[Any], seed: int, afterwards: Afterwards) -> Trajectory:
    """A rollout by a caller who uses the arrays again; what is kept of it is copied before."""
    observation, info = env.reset(seed=seed)
    frames = [Frame(frozen(observation), info=frozen(info))]
    afterwards(None, observation)
    for action in actions:
        given = copy.deepcopy(action)
        observation, reward, terminated, truncated, info = env.step(given)
        frames.append(Frame(*map(frozen, (observation, reward, terminated, truncated, info))))
        afterwards(given, observation)
        if terminated or truncated:
            observation, info = env.reset()
            frames.append(Frame(frozen(observation), info=frozen(info)))
            afterwards(None, observation)
    return frames


def _apart(one: Trajectory, other: Trajectory) -> str:
    """Where what an agent sees parts; '' if nowhere."""
    where = difference(one, other)
    return "" if where is None or where.in_info_only else str(where)


def _overwrite(target: Any, source: Any) -> None:
    if isinstance(target, dict):
        for key in target:
            _overwrite(target[key], source[key])
    elif isinstance(target, tuple | list):
        for a, b in zip(target, source):
            _overwrite(a, b)
    elif isinstance(target, np.ndarray) and target.flags.writeable:
        target[...] = source


def _scribble(value: Any) -> None:
    """Put something else into every array."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            _scribble(item)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.flags.writeable:
        value[...] = value + 1 if value.dtype.kind != "b" else ~value
