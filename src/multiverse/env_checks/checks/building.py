"""It can be built, twice, and closed, twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium

from multiverse.env_checks.catalogue import found
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import EnvRaised, Subject, WatchedEnv


def check_building(subject: Subject) -> Iterator[Finding]:
    """Two envs side by side, each closed and closed again."""
    first = subject.build()
    if not isinstance(first.env, gymnasium.Env):
        yield found("not-an-env", f"the factory returned {_what(first.env)}")
        return
    envs = [first]
    try:
        envs.append(subject.build())
    except EnvRaised as raised:
        yield found("build-again-failed", f"a second env beside the first: {raised.words()}")
    if envs[-1].env is first.env and len(envs) == 2:
        yield found("same-env-again", f"two calls of the factory returned one and the same {type(first.env).__name__}")
        envs.pop()
    for env in envs:
        problem = _closed_twice(env)
        if problem is not None:
            yield problem
            return


def _what(env: Any) -> str:
    kind = type(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        return f"{kind.__qualname__}, a vector env already: one single env is wanted"
    return f"{kind.__module__}.{kind.__qualname__}, which is not a gymnasium.Env"


def _closed_twice(env: WatchedEnv) -> Finding | None:
    try:
        env.close()
    except EnvRaised as raised:
        return raised.finding()
    try:
        env.close()
    except EnvRaised as raised:
        return found("close-twice", f"the second close() raised {raised.words()}")
    return None
