"""`make_vec`: makes a vector env from the user's options."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from gymnasium.vector import AutoresetMode

from multiverse.adapters.agents import DEFAULT_AGENTS, AgentOptions
from multiverse.adapters.env_source import EnvSource, Wrapper
from multiverse.core.errors import InvalidRequest
from multiverse.core.failures import FailureOptions, OnFailure
from multiverse.core.plan import (
    DEFAULT_RAY,
    DEFAULT_TIMEOUTS,
    ON_RAY,
    Autoreset,
    ExecutorName,
    Plan,
    RayOptions,
    Timeouts,
    WorkerOptions,
)
from multiverse.core.reset_plan import ResetPlan
from multiverse.vector.base import Copy
from multiverse.vector.opening import VectorOptions, open_envs
from multiverse.vector.single import VectorEnv

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

OPTIONS: dict[str, type[Any]] = {
    "executor": RayOptions,
    "workers": WorkerOptions,
    "on_failure": FailureOptions,
    "timeouts": Timeouts,
    "agents": AgentOptions,
}
"""Parameters of `make_vec` that take options."""
PLAIN_FIELDS = {"workers": "count", "on_failure": "on_failure"}
"""Field that a plain value of the parameter stands for."""
OLD_KEYWORDS = {
    "start_method": ("workers", "start_method"),
    "waiting": ("workers", "waiting"),
    "restarts_per_minute": ("on_failure", "restarts_per_minute"),
    "worker_memory_limit": ("on_failure", "worker_memory_limit"),
    "on_bad_value": ("on_failure", "on_bad_value"),
    "reply_timeout_s": ("timeouts", "reply_s"),
    "reset_timeout_s": ("timeouts", "reset_s"),
    "close_timeout_s": ("timeouts", "close_s"),
    "groups": ("agents", "groups"),
    "possible_agents": ("agents", "possible_agents"),
    "parallel": ("agents", "parallel"),
    "state": ("agents", "state"),
    "ray_address": ("executor", "address"),
    "cpus_per_worker": ("executor", "cpus_per_worker"),
    "gpus_per_worker": ("executor", "gpus_per_worker"),
}
"""Deprecated keywords, removed in the next version: the parameter that replaces each, and the field of its options."""


def takes_old_keywords(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Accept `OLD_KEYWORDS` for one version, each with a `DeprecationWarning` that names its replacement."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        old = {name: kwargs.pop(name) for name in OLD_KEYWORDS if name in kwargs}
        if not old:
            return function(*args, **kwargs)
        given = signature.bind_partial(*args, **kwargs).arguments
        fields: dict[str, dict[str, Any]] = {}
        for name, value in old.items():
            parameter, field = OLD_KEYWORDS[name]
            new = f"{parameter}={OPTIONS[parameter].__name__}({field}=…)"
            warnings.warn(f"make_vec({name}=…) is now {new}", DeprecationWarning, stacklevel=2)
            if isinstance(given.get(parameter), OPTIONS[parameter]):
                raise InvalidRequest(f"{name}= and {parameter}= cannot be used together: pass {new} instead of {name}=")
            fields.setdefault(parameter, {})[field] = value
        for parameter, options in fields.items():
            given[parameter] = _with_plain_value(parameter, given.get(parameter), options)
        return cast("Callable[..., Result]", function)(**given)

    return called


def _with_plain_value(parameter: str, plain: Any, fields: dict[str, Any]) -> Any:
    """Return options with these fields and the plain value of the parameter."""
    if parameter in PLAIN_FIELDS and plain is not None:
        fields = {PLAIN_FIELDS[parameter]: plain, **fields}
    options = OPTIONS[parameter](**fields)
    if parameter != "executor" or plain == ON_RAY or (plain in (None, "auto") and options.address is not None):
        return options
    if plain not in (None, "auto") and options != DEFAULT_RAY:
        raise InvalidRequest(f"{', '.join(fields)}: only for executor={ON_RAY!r}; got executor={plain!r}")
    return plain or "auto"


@takes_old_keywords
def make_vec(
    env: EnvSource,
    num_envs: int | None = None,
    executor: ExecutorName | RayOptions = "auto",
    *,
    workers: int | WorkerOptions | None = None,
    plan: Plan | os.PathLike[str] | str | None = None,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    wrappers: Sequence[Wrapper] | Sequence[Sequence[Wrapper]] | None = None,
    render_mode: str | None = None,
    autoreset: Autoreset | AutoresetMode | None = None,
    copy: Copy = True,
    infos: bool = True,
    reset_plan: ResetPlan | None = None,
    tasks: Sequence[Any] | None = None,
    on_failure: OnFailure | FailureOptions = "raise",
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    agents: AgentOptions = DEFAULT_AGENTS,
) -> VectorEnv:
    """Make a vector env of `num_envs` copies of `env`: a `VectorEnv`, which is a `gymnasium.vector.VectorEnv`.

    A PettingZoo parallel env gives a `MultiAgentVectorEnv`, an AEC env a `TurnVectorEnv` (for type checkers the result
    is always a `VectorEnv`).

    `executor`, `workers` and `on_failure` take a plain value, or an options object with further settings:
    `on_failure="restart"`, or `on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=3)`.

    Notes: `reset(seed=3)` seeds env i with 3 + i, also where only some envs are reset: `reset(env_ids=[1, 5], seed=3)`
    seeds them with 4 and 8. Actions are cast to the dtype of the action space (float64 to a float32 `Box`; Gymnasium's
    `SyncVectorEnv` passes them on unchanged). With `"hybrid"`, `send` starts steps in the workers only; the caller's
    own share of the envs steps inside `receive`.

    Args:
        env: a Gymnasium id, `"module:name"` of a callable that builds an env, such a callable (lambdas, closures and
            local classes too), or a list with one callable per env.
        num_envs: number of envs; not needed with a list.
        executor: where envs run: `"serial"` in the caller, `"thread"`, `"process"`, `"hybrid"` (processes, and a share
            in the caller), `"ray"` (a Ray cluster; `RayOptions` for its address and for the resources of each worker),
            or `"auto"`, which steps one throwaway env for a moment and chooses among those of this machine.
        workers: number of threads or processes, each of which hosts many envs, or `WorkerOptions`, which also set
            the start method and how workers wait. Default: the usable cores; with four or more, `"process"` leaves one
            of them to the caller, unless every env can have its own.
        plan: run exactly as another vector env did (`envs.plan`), or as in a file of `multiverse tune`, without
            measuring; instead of `executor` and `workers`. A file also sets `num_envs` if it is not given.
        env_kwargs: arguments of the id or the callable; one dict for all envs, or a list with one per env.
        wrappers: applied in order; one list for all envs, or a list of lists with one per env.
        render_mode: as in `gymnasium.make`; `"human"` opens a window for env 0 and runs serial.
        autoreset: `"next_step"` (default, as in Gymnasium), `"same_step"` (default for envs whose agents act in turn)
            or `"disabled"`; or Gymnasium's own `AutoresetMode`.
        copy: False returns observations as views of shared memory, which the next step overwrites. `"poison"` debugs
            code that uses False: the results of a step are filled with NaN when the next step begins.
        infos: False drops the envs' infos (final observations stay).
        reset_plan: (env id, episode) → `ResetRequest`, evaluated where the env runs, at every reset. `DerivedSeeds`
            seeds every episode; `DrawnTasks` draws its task as well.
        tasks: all tasks, sent to the workers once; `reset(tasks=[…])` and the reset plan then name them by index. An
            env gets its task through its `reset_task` method, or as `options["task"]` if it has none.
        on_failure: `"raise"`, or `"restart"`: an env that raises, and a worker process that dies or hangs, is
            replaced; its row is truncated, with reward 0 and `infos["restarted"]`. `FailureOptions` also limits
            restarts and memory, and sets the handling of NaN and infinite values.
        timeouts: time limits of steps, resets and `close`.
        agents: for PettingZoo envs: groups of agents that share a policy, all possible agents, and more.
    """
    for name, value, kind in (("timeouts", timeouts, Timeouts), ("agents", agents, AgentOptions)):
        if not isinstance(value, kind):
            raise InvalidRequest(f"{name}={value!r:.60}: expected mv.{kind.__name__}(…)")
    options = VectorOptions(
        executor=ON_RAY if isinstance(executor, RayOptions) else executor,
        ray=executor if isinstance(executor, RayOptions) else DEFAULT_RAY,
        workers=workers if isinstance(workers, WorkerOptions) else WorkerOptions(count=workers),
        plan=plan,
        env_kwargs=env_kwargs,
        wrappers=wrappers,
        render_mode=render_mode,
        autoreset=autoreset,
        copy=copy,
        infos=infos,
        reset_plan=reset_plan,
        tasks=tasks,
        failures=on_failure if isinstance(on_failure, FailureOptions) else FailureOptions(on_failure=on_failure),
        timeouts=timeouts,
        agents=agents,
    )
    return cast(VectorEnv, open_envs(env, num_envs, options).bind())
