"""What must be pickled to come back from a worker process: infos. That the env itself can be is only told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from multiverse.env_checks.catalogue import found
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import Subject
from multiverse.memory.link import PipeLink

STEPS = 50


def check_travelling(subject: Subject) -> Iterator[Finding]:
    env, seed = subject.build(), subject.settings.seed
    told: dict[str, str] = {}
    _, info = env.reset(seed=seed)
    _note_unpicklable(info, str(env.where), told)
    for action in subject.actions(env, STEPS):
        _, _, terminated, truncated, info = env.step(action)
        _note_unpicklable(info, str(env.where), told)
        if terminated or truncated:
            _, info = env.reset()
            _note_unpicklable(info, str(env.where), told)
    for words in told.values():
        yield found("info-cannot-travel", words)
    why = cannot_be_packed(env.env)
    if why:
        yield found("env-cannot-be-pickled", why)


def _note_unpicklable(info: dict[Any, Any], where: str, told: dict[str, str], name: str = "info") -> None:
    """Each key that cannot travel, once, with the innermost dict that holds it."""
    if not cannot_be_packed(info):
        return
    for key, value in info.items():
        called = f"{name}[{key!r}]"
        why = cannot_be_packed(value)
        if why and isinstance(value, dict):
            _note_unpicklable(value, where, told, called)
        elif why:
            told.setdefault(called, f"{called} is a {type(value).__name__}, {where}: {why}")


def cannot_be_packed(value: Any) -> str:
    """Why a worker could not send this, by the way a worker does send; '' if it could."""
    link = PipeLink(None, by_name_first=True)  # type: ignore[arg-type]  # nothing is sent: only packed
    try:
        link.pack(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
