"""How reset behaves: what it takes, and what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from multiverse.env_checks.catalogue import found
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import EnvRaised, Subject, WatchedEnv
from multiverse.env_checks.values import Tally, misfits


def check_reset(subject: Subject) -> Iterator[Finding]:
    """Plain, with a seed, with options, twice in a row; what comes back is looked at each time."""
    env = subject.build()
    space = env.env.observation_space
    yield from _default_seed(env.env.unwrapped.reset)
    seed, tally, done = subject.settings.seed, Tally(), 0
    calls: list[dict[str, Any]] = [{}, {"seed": seed}, {"seed": seed, "options": None}, {"options": {}}, {}]
    for arguments in calls:
        try:
            result = env.reset(**arguments)
        except EnvRaised as raised:
            yield _raised(raised, arguments)
            return
        problem = reset_problem(result)
        if problem is not None:
            yield problem
            return
        done += 1
        for misfit in misfits(space, result[0]):
            tally.add(misfit, f"after {_call(arguments)}")
    yield from tally.findings(done)
    yield from replaced_space(env, space)


def _default_seed(reset: Any) -> Iterator[Finding]:
    try:
        parameter = inspect.signature(reset).parameters.get("seed")
    except (TypeError, ValueError):  # native code does not say
        return
    if parameter is not None and parameter.default not in (None, inspect.Parameter.empty):
        yield found("seed-default", f"reset(seed={parameter.default!r}) is what reset() without a seed means")


def reset_problem(result: Any) -> Finding | None:
    """What keeps a reset's result from being read."""
    if not isinstance(result, tuple):
        return found("reset-return", f"reset returned {type(result).__name__}, not the tuple (observation, info)")
    if len(result) != 2:
        return found("reset-return", f"reset returned a tuple of {len(result)}, not (observation, info)")
    if not isinstance(result[1], dict):
        return found("info-not-dict", f"reset's info is {type(result[1]).__name__}: {result[1]!r:.60}")
    return None


def replaced_space(env: WatchedEnv, space: Any) -> Iterator[Finding]:
    """Whether the env has another observation space by now."""
    if env.env.observation_space != space:
        words = f"observation_space was {space} and is {env.env.observation_space} {env.where}"
        yield found("space-replaced", words)


def _raised(raised: EnvRaised, arguments: dict[str, Any]) -> Finding:
    refused = isinstance(raised.error, TypeError) and "unexpected keyword argument" in str(raised.error)
    if refused and arguments:
        return found("reset-signature", f"{_call(arguments)} raised {raised.words()}")
    seen = f"{_call(arguments)} raised {raised.words()}"
    return found("reset-raises", seen, "warning" if arguments.get("options") == {} else None)


def _call(arguments: dict[str, Any]) -> str:
    return f"reset({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
