"""Opens envs: validates the options of `make_vec`, starts workers that build and describe envs, and binds them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, cast, get_args

from gymnasium.vector import AutoresetMode

from multiverse.adapters.agents import DEFAULT_AGENTS, AgentOptions
from multiverse.adapters.env_source import EnvSource, Recipe, Wrapper, recipes
from multiverse.core.env import EnvKind
from multiverse.core.errors import InvalidRequest
from multiverse.core.failures import DEFAULT_POLICY, FailureOptions
from multiverse.core.imports import refuse_in_import
from multiverse.core.layout import Field
from multiverse.core.plan import (
    DEFAULT_RAY,
    DEFAULT_TIMEOUTS,
    DEFAULT_WORKERS,
    IN_CALLER,
    Autoreset,
    ExecutorName,
    Plan,
    PlannedExecutor,
    RayOptions,
    StartMethod,
    Timeouts,
    Waiting,
    WorkerOptions,
    autoreset_for,
    check_choices,
    read_plan,
    whole_number,
)
from multiverse.core.reset_plan import ResetPlan, warn_of_missing_tasks
from multiverse.executors import startup
from multiverse.executors.backends import BACKENDS, backend_of
from multiverse.executors.choose import decide
from multiverse.executors.env_range import RangeConfig
from multiverse.executors.machine import usable_cores
from multiverse.vector.base import BaseVectorEnv, Copy, Running
from multiverse.vector.parallel import MultiAgentVectorEnv
from multiverse.vector.single import VectorEnv
from multiverse.vector.turns import TurnVectorEnv

log = logging.getLogger("multiverse")

VECTOR_ENVS: dict[EnvKind, type[BaseVectorEnv]] = {
    "single": VectorEnv,
    "parallel": MultiAgentVectorEnv,
    "turns": TurnVectorEnv,
}


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """Arguments of `make_vec`, which documents them, with options in place of plain values."""

    executor: ExecutorName = "auto"
    ray: RayOptions = DEFAULT_RAY
    workers: WorkerOptions = DEFAULT_WORKERS
    plan: Plan | os.PathLike[str] | str | None = None
    autoreset: Autoreset | AutoresetMode | None = None
    copy: Copy = True
    infos: bool = True
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    wrappers: Sequence[Wrapper] | Sequence[Sequence[Wrapper]] | None = None
    render_mode: str | None = None
    reset_plan: ResetPlan | None = None
    tasks: Sequence[Any] | None = None
    failures: FailureOptions = DEFAULT_POLICY
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    agents: AgentOptions = DEFAULT_AGENTS


class OpenedEnvs:
    """Envs that are built and described, but not yet bound. As a context manager it closes them at its end, unless
    `bind` has made a vector env of them."""

    def __init__(self, hosts: startup.StartedHosts, plan: Plan, options: VectorOptions) -> None:
        self._hosts, self._options, self._bound = hosts, options, False
        self.plan, self.description = plan, hosts.description

    def bind(self, fields: Sequence[Field] = ()) -> BaseVectorEnv:
        """Make the vector env. `fields`: further arrays that the caller shares with the workers (`envs.views`)."""
        options = self._options
        agents = replace(options.agents, masks=None, state=False)  # the hosts refuse a missing state
        if self.description.kind == "single" and agents != DEFAULT_AGENTS:
            self.close()
            names = [name for name, value in asdict(agents).items() if value]
            raise InvalidRequest(
                f"{names[0]}= is only for envs with several agents, and this env has one: leave it out"
            )
        self._bound = True
        executor = self._hosts.bind(fields)
        mode = autoreset_for(cast("Autoreset | None", options.autoreset), self.description.kind)
        return VECTOR_ENVS[self.description.kind](
            Running(
                executor=executor,
                description=self.description,
                plan=self.plan,
                autoreset=mode,
                copy=options.copy,
                infos=options.infos,
                failures=options.failures,
            )
        )

    def close(self) -> None:
        """End the workers, unless the envs are bound: then the vector env owns them."""
        if not self._bound:
            self._bound = True
            self._hosts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_envs(env: EnvSource, num_envs: int | None, options: VectorOptions) -> OpenedEnvs:
    """Start the workers, build the envs and describe them. `make_vec` calls this, then `bind()`."""
    options = _validated(options)
    plan = options.plan
    if isinstance(plan, str | os.PathLike) and plan not in get_args(ExecutorName):
        plan, tuned = read_plan(plan, env, usable_cores())
        num_envs = tuned if num_envs is None and not isinstance(env, list | tuple) else num_envs
    built = recipes(env, num_envs, options.env_kwargs, options.wrappers)
    each = [replace(recipe, agents=options.agents) for recipe in built]
    if options.render_mode is not None:
        each = _with_render_mode(each, options.render_mode)
    plan = _plan_for(each, replace(options, plan=plan))
    hosts = _open(plan, each, options)
    description = hosts.description
    if description.metadata.get("in_process") and plan.executor != IN_CALLER:
        log.warning("the env has metadata['in_process'] (it holds a GPU or a window): running serial instead")
        hosts.close()
        plan = decide(IN_CALLER, each, WorkerOptions(waiting=options.workers.waiting))
        plan = replace(plan, why="the env has metadata['in_process']")
        hosts = _open(plan, each, options)
    return OpenedEnvs(hosts, plan, options)


def _open(plan: Plan, each: list[Recipe], options: VectorOptions) -> startup.StartedHosts:
    config = RangeConfig(
        env_ids=range(len(each)),
        autoreset=cast("Autoreset | None", options.autoreset),
        with_infos=options.infos,
        reset_plan=options.reset_plan,
        failures=options.failures,
        tasks=options.tasks,
    )
    return startup.start_hosts(plan, each, config, timeouts=options.timeouts)


def _plan_for(each: list[Recipe], options: VectorOptions) -> Plan:
    """Return the given plan, validated, or choose one now."""
    workers = options.workers
    if options.plan is None:
        _warn_of_unused_options(options.executor, workers)
        executor, why = _where_windows_work(each, options.executor)
        plan = decide(executor, each, workers, on_failure=options.failures.on_failure, ray=options.ray)
    else:
        plan = _checked_plan(options.plan, len(each), options)
        executor, why = _where_windows_work(each, plan.executor)
        if executor != plan.executor:
            plan = decide(executor, each)
    if options.failures.worker_memory_limit is not None and not backend_of(plan.executor).replaceable:
        log.warning("executor=%r has no worker processes: worker_memory_limit has no effect", plan.executor)
    return replace(plan, why=why) if why else plan


# -- validation ------------------------------------------------------------------------------------------------
def _validated(options: VectorOptions) -> VectorOptions:
    """Return the options in our types; an invalid one is refused before anything starts."""
    autoreset = _our_autoreset(options.autoreset)
    check_choices(executor=(options.executor, ExecutorName))
    if options.executor != IN_CALLER:  # `auto` too: its probe is a worker
        refuse_in_import("starts workers")
    if autoreset is not None:
        check_choices(autoreset=(autoreset, Autoreset))
    _check_kinds(options.copy, options.render_mode, options.reset_plan)
    if options.ray != DEFAULT_RAY and options.executor != "auto" and not backend_of(options.executor).remote:
        remote = next(name for name, backend in BACKENDS.items() if backend.remote)
        raise InvalidRequest(f"ray_address, cpus_per_worker and gpus_per_worker: only for executor={remote!r}")
    if options.tasks is None:
        warn_of_missing_tasks(options.reset_plan)
    return replace(options, autoreset=autoreset, tasks=_checked_tasks(options.tasks))


def _our_autoreset(autoreset: Any) -> Autoreset | None:
    """Return our name of a Gymnasium mode, given as such or by its value ("NextStep"); other values unchanged."""
    for mode in AutoresetMode:
        if autoreset is mode or (isinstance(autoreset, str) and autoreset == mode.value):
            return cast(Autoreset, mode.name.lower())
    return cast(Autoreset, autoreset)


def _check_kinds(copy: Any, render_mode: Any, reset_plan: Any) -> None:
    if copy not in (True, False, "poison"):
        raise InvalidRequest(f"copy={copy!r}: expected True, False or 'poison'")
    if render_mode is not None and not isinstance(render_mode, str):
        raise InvalidRequest(f"render_mode={render_mode!r}: expected a name such as 'rgb_array', or None")
    if reset_plan is not None and not callable(reset_plan):
        raise InvalidRequest(f"reset_plan={reset_plan!r}: expected a callable: (env id, episode) → ResetRequest")


def _checked_tasks(tasks: Any) -> list[Any] | None:
    if tasks is None:
        return None
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise InvalidRequest(
            f"tasks={tasks!r}: expected a list of all tasks; reset(tasks=[…]) sets the task of each env"
        )
    listed = list(tasks)
    if not listed:
        raise InvalidRequest("tasks is empty: pass all tasks, or leave it out")
    return listed


def _checked_plan(plan: Any, num_envs: int, options: VectorOptions) -> Plan:
    """Return the plan; refuse it if it is invalid, does not fit the envs or contradicts other options."""
    if not isinstance(plan, Plan):
        hint = f"; did you mean executor={plan!r}?" if isinstance(plan, str) else ""
        raise InvalidRequest(
            f"plan={plan!r}: expected a multiverse.Plan, such as another vector env's envs.plan, or a file{hint}"
        )
    if options.executor != "auto" or options.workers != DEFAULT_WORKERS:
        raise InvalidRequest(
            "plan= cannot be used together with executor or workers (count, start method, waiting): leave them out"
        )
    check_choices(**{"plan.executor": (plan.executor, PlannedExecutor), "plan.waiting": (plan.waiting, Waiting)})
    if plan.start_method is not None:
        check_choices(**{"plan.start_method": (plan.start_method, StartMethod)})
    count = whole_number("plan.workers", plan.workers)
    backend = backend_of(plan.executor)
    if (count == 0) != (backend.workers is None) or count < 0:
        expected = "0" if backend.workers is None else "at least 1"
        raise InvalidRequest(f"plan.workers={count}: expected {expected} for executor {plan.executor!r}")
    if count > backend.most_workers(num_envs):
        raise InvalidRequest(
            f"the plan has {count} workers, too many for {num_envs} envs: use more envs, or another plan ({plan})"
        )
    return replace(plan, workers=count)


def _warn_of_unused_options(executor: str, workers: WorkerOptions) -> None:
    """Warn of worker options that this executor does not use."""
    if executor == "auto" or (backend := backend_of(executor)).processes:
        return
    given = {"workers": workers.count if backend.workers is None else None, "start_method": workers.start_method}
    unused = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if unused:
        has, starts = "has" if len(unused) == 1 else "have", "workers" if backend.workers is None else "processes"
        log.warning("executor=%r starts no %s: %s %s no effect", executor, starts, " and ".join(unused), has)


# -- windows ---------------------------------------------------------------------------------------------------
def _with_render_mode(each: list[Recipe], render_mode: str) -> list[Recipe]:
    """Return recipes with this render mode: frames for every env, but a window for env 0 only."""
    return [
        replace(r, kwargs={**r.kwargs, "render_mode": render_mode}) if i == 0 or render_mode != "human" else r
        for i, r in enumerate(each)
    ]


def _where_windows_work(each: list[Recipe], executor: ExecutorName) -> tuple[ExecutorName, str]:
    """Return the executor, and the reason if it is serial because an env opens a window."""
    if not any(r.kwargs.get("render_mode") == "human" for r in each):
        return executor, ""
    if executor != IN_CALLER:
        instead = "" if executor == "auto" else f" instead of {executor}"
        log.warning("render_mode='human' opens a window: running serial%s, in this process", instead)
    return IN_CALLER, "render_mode='human' opens a window: serial"
