"""Checks of the ownership of arrays and dicts, and of the pickling of infos.

Observations, infos and actions belong to the caller. Infos must be picklable; whether the env itself is picklable is
only reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from multiverse.env_checker.catalogue import make_finding
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject, WatchedEnv
from multiverse.env_checker.trajectory import Actions, Frame, calls, difference, differences, frozen, rollout, steps_in
from multiverse.ipc.link import PipeLink

WATCHED_STEPS = 100
PACKED_STEPS = 50


def check_ownership(subject: Subject) -> Iterator[Finding]:
    """Compare returned values again after the next call, then overwrite them as a careless caller would."""
    env, seed = subject.build(), subject.settings.seed
    actions = subject.actions(env, min(WATCHED_STEPS, subject.settings.compared_steps))
    changed: dict[str, Finding] = {}  # the first finding of each kind
    for finding in _changes(env, actions, seed):
        changed.setdefault(finding.code, finding)
    yield from changed.values()
    reference = rollout(subject.build(), actions, subject.settings.compared_s, seed=seed)
    actions = actions[: steps_in(reference)]
    other = actions[::-1]

    def careless(afterwards: Callable[[Frame], None]) -> str:
        """Describe how an episode differs if the caller does this after each call."""
        frames = []
        for call in calls(subject.build(), actions, seed=seed):
            frames.append(call.frozen())
            afterwards(call)
        return difference(reference, frames)

    if careless(lambda call: None):
        return  # episodes are not repeatable, so a comparison says nothing
    if words := careless(lambda call: _overwrite(call.action, other[0])):
        yield make_finding("action-kept", f"writing over an action after its step changed the episode: {words}")
    if "observation-reused" not in changed and (words := careless(lambda call: _scribble(call.observation))):
        evidence = f"writing over a returned observation changed the episode: {words}"
        yield make_finding("observation-is-state", evidence)


def _changes(env: WatchedEnv, actions: Actions, seed: int) -> Iterator[Finding]:
    """Yield findings about values that the next call changed; may yield equal findings."""
    chosen, before = iter(actions), None
    for call in calls(env, actions, seed=seed):
        where = str(env.where)
        if call.action is not None:
            for words in differences(frozen(next(chosen)), frozen(call.action), "the action"):
                yield make_finding("action-changed", f"{words}, after the step that got it, {where}")
        if before is not None:
            last, kept, when = before
            for words in differences(kept.observation, frozen(last.observation), "the observation"):
                yield make_finding("observation-reused", f"{words}: it was returned {when} and changed {where}")
            if call.info is last.info:
                evidence = f"the dict returned {when} is the same object as the one returned {where}"
                yield make_finding("info-reused", evidence)
            else:
                for words in differences(kept.info, frozen(last.info), "info"):
                    yield make_finding("info-reused", f"{words}: it was returned {when} and changed {where}")
        before = (call, call.frozen(), where)


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
    """Change the values of every array."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            _scribble(item)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.flags.writeable:
        value[...] = value + 1 if value.dtype.kind != "b" else ~value


# -- pickling --------------------------------------------------------------------------------------------------
def check_serialization(subject: Subject) -> Iterator[Finding]:
    """Pickle infos, and the env itself, as a worker does."""
    env = subject.build()
    unpicklable: dict[str, str] = {}
    for call in calls(env, subject.actions(env, PACKED_STEPS), seed=subject.settings.seed):
        _note_unpicklable(call.info, str(env.where), unpicklable)
    for words in unpicklable.values():
        yield make_finding("info-cannot-travel", words)
    if why := _unpicklable(env.env):
        yield make_finding("env-cannot-be-pickled", why)


def _note_unpicklable(info: dict[Any, Any], where: str, noted: dict[str, str], name: str = "info") -> None:
    """Note each key that cannot be pickled once, with the innermost dict that holds it."""
    if not _unpicklable(info):
        return
    for key, value in info.items():
        path, why = f"{name}[{key!r}]", _unpicklable(value)
        if why and isinstance(value, dict):
            _note_unpicklable(value, where, noted, path)
        elif why:
            noted.setdefault(path, f"{path} is a {type(value).__name__}, {where}: {why}")


def _unpicklable(value: Any) -> str:
    """Return why a worker could not send this; '' if it could."""
    link = PipeLink(None, by_name_first=True)  # type: ignore[arg-type]  # nothing is sent: only packed
    try:
        link.pack(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
