"""What all drop-ins have in common: our vector env with the originals' manners.

It looks at no values, knows no deadlines but the caller's, parks while it waits (an original's user expects idle
workers to cost nothing), and hands an env's own exception back where its type is one that everybody knows.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from multiprocessing import get_all_start_methods, get_start_method
from typing import Any, TypeVar, cast, get_args

import gymnasium.error

from multiverse.adapters.agents import NOTHING_SAID, AgentOptions
from multiverse.adapters.env_source import Recipe, recipes
from multiverse.contracts import errors
from multiverse.contracts.errors import EnvFailed, RemoteError
from multiverse.contracts.failures import FailurePolicy
from multiverse.contracts.plan import Autoreset, ExecutorName, StartMethod, Timeouts, Waiting
from multiverse.executors import startup
from multiverse.executors.choose import decide
from multiverse.vector.base import BaseVectorEnv, Running

CLOSE_S = 60.0
"""How long `close` waits for envs that are in the middle of something, where an original would wait for ever."""

Kind = TypeVar("Kind", bound=BaseVectorEnv)


def start(
    env_fns: Sequence[Callable[[], Any]],
    executor: ExecutorName,
    autoreset: Autoreset,
    *,
    kind: Callable[..., Kind],
    copy: bool = True,
    workers: int | None = None,
    start_method: StartMethod | None = None,
    waiting: Waiting = "park",
    recipe: type[Recipe],
    agents: AgentOptions = NOTHING_SAID,
    bounds_may_differ: bool = False,
) -> Kind:
    """A running vector env of that kind, one env per function; `recipe` says how each is built where it runs."""
    each = [recipe(r.source, r.kwargs, r.wrappers, agents) for r in recipes(list(env_fns), None, None, None)]
    plan = decide(executor, workers, start_method, waiting, each)
    failure_policy, timeouts = FailurePolicy(on_bad_value="off"), Timeouts(None, None, CLOSE_S)
    started, description = startup.start(
        plan,
        each,
        autoreset,
        True,
        None,
        failure_policy=failure_policy,
        timeouts=timeouts,
        bounds_may_differ=bounds_may_differ,
    )
    return kind(Running(started, description, plan, autoreset, copy, True, failure_policy))


def start_method_of(context: str | None) -> StartMethod:
    """The start method a `multiprocessing` context stands for; None: the program's own default, as the originals do."""
    method = get_start_method(allow_none=True) or get_all_start_methods()[0] if context is None else context
    if method not in get_args(StartMethod):
        raise ValueError(f"cannot find context for {context!r}")
    return cast(StartMethod, method)


# -- exceptions ------------------------------------------------------------------------------------------------
_KNOWN = {"builtins": builtins, "gymnasium.error": gymnasium.error, errors.__name__: errors}


def given_back(error: EnvFailed) -> Exception:
    """The last failure as its env raised it, if its type is a builtin, Gymnasium's or ours; else the error itself.

    Raise it `from error`, which lists all failures with their tracebacks.
    """
    return _as_raised(error.failures[-1]) or error


def _as_raised(failure: RemoteError) -> Exception | None:
    found = getattr(_KNOWN.get(failure.module), failure.type_name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        return found(failure.message)
    except Exception:  # one that takes more than a message
        return None
