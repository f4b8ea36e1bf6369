"""Checks of what is handed over: who owns an array or dict afterwards, and what a worker process can send back.

Observations and infos belong to the caller, and so do actions. Infos must be picklable; whether the env itself is
picklable is only reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from multiverse.env_checker.catalogue import found
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject, WatchedEnv
from multiverse.env_checker.trajectory import Actions, Frame, Trajectory, apart, calls, frozen, parts, rollout, steps_in
from multiverse.ipc.link import PipeLink

WATCHED_STEPS = 100
PACKED_STEPS = 50


def check_ownership(subject: Subject) -> Iterator[Finding]:
    env, seed = subject.build(), subject.settings.seed
    actions = subject.actions(env, min(WATCHED_STEPS, subject.settings.compared_steps))
    found_before: dict[str, Finding] = {}
    for finding in _watched(env, actions, seed):
        found_before.setdefault(finding.code, finding)
    yield from found_before.values()
    alone = rollout(subject.build(), actions, subject.settings.compared_s, seed=seed)
    actions = actions[: steps_in(alone)]
    if apart(alone, rollout(subject.build(), actions, seed=seed)):
        return  # not even the same twice: nothing can be told from a comparison
    other = actions[::-1]
    words = apart(alone, _careless(subject.build(), actions, seed, lambda call: _overwrite(call.action, other[0])))
    if words:
        yield found("action-kept", f"writing over an action after its step changed the episode: {words}")
    if "observation-reused" not in found_before:
        words = apart(alone, _careless(subject.build(), actions, seed, lambda call: _scribble(call.observation)))
        if words:
            yield found("observation-is-state", f"writing over a returned observation changed the episode: {words}")


# -- looking on ------------------------------------------------------------------------------------------------
def _watched(env: WatchedEnv, actions: Actions, seed: int) -> Iterator[Finding]:
    """What was returned by a call, looked at again after the next one; may tell the same thing several times."""
    chosen, before = iter(actions), None
    for call in calls(env, actions, seed=seed):
        where = str(env.where)
        if call.action is not None:
            for words in parts(frozen(next(chosen)), frozen(call.action), "the action"):
                yield found("action-changed", f"{words}, after the step it was given to, {where}")
        if before is not None:
            yield from _changed(*before, call.info, where)
        before = (call, call.frozen(), where)


def _changed(call: Frame, kept: Frame, when: str, new_info: Any, where: str) -> Iterator[Finding]:
    """What the objects that a call returned, and a copy of them, tell after the next one."""
    for words in parts(kept.observation, frozen(call.observation), "the observation"):
        yield found("observation-reused", f"{words}: it was returned {when} and changed {where}")
    if new_info is call.info:
        yield found("info-reused", f"the dict returned {when} is the same object as the one returned {where}")
    else:
        for words in parts(kept.info, frozen(call.info), "info"):
            yield found("info-reused", f"{words}: it was returned {when} and changed {where}")


# -- being careless --------------------------------------------------------------------------------------------
def _careless(env: WatchedEnv, actions: Actions, seed: int, afterwards: Callable[[Frame], None]) -> Trajectory:
    """A rollout by a caller who uses the arrays again; what is kept of it is copied before."""
    frames = []
    for call in calls(env, actions, seed=seed):
        frames.append(call.frozen())
        afterwards(call)
    return frames


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


# -- travelling ------------------------------------------------------------------------------------------------
def check_travelling(subject: Subject) -> Iterator[Finding]:
    env = subject.build()
    unpicklable: dict[str, str] = {}
    for call in calls(env, subject.actions(env, PACKED_STEPS), seed=subject.settings.seed):
        _note_unpicklable(call.info, str(env.where), unpicklable)
    for words in unpicklable.values():
        yield found("info-cannot-travel", words)
    why = _cannot_be_packed(env.env)
    if why:
        yield found("env-cannot-be-pickled", why)


def _note_unpicklable(info: dict[Any, Any], where: str, unpicklable: dict[str, str], name: str = "info") -> None:
    """Each key that cannot travel, once, with the innermost dict that holds it."""
    if not _cannot_be_packed(info):
        return
    for key, value in info.items():
        called = f"{name}[{key!r}]"
        why = _cannot_be_packed(value)
        if why and isinstance(value, dict):
            _note_unpicklable(value, where, unpicklable, called)
        elif why:
            unpicklable.setdefault(called, f"{called} is a {type(value).__name__}, {where}: {why}")


def _cannot_be_packed(value: Any) -> str:
    """Why a worker could not send this, by the way a worker does send; '' if it could."""
    link = PipeLink(None, by_name_first=True)  # type: ignore[arg-type]  # nothing is sent: only packed
    try:
        link.pack(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
