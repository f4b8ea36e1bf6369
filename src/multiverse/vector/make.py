"""`make_vec`: from what a user wants to a running vector env."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, cast, get_args

from gymnasium.vector import AutoresetMode

from multiverse.adapters.agents import NOTHING_SAID, AgentOptions, Groups
from multiverse.adapters.env_source import EnvSource, Recipe, Wrapper, recipes
from multiverse.contracts.env import EnvKind
from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.failures import FailurePolicy, OnBadValue, OnFailure
from multiverse.contracts.imports import refuse_in_import
from multiverse.contracts.plan import (
    DEFAULT_TIMEOUTS,
    Autoreset,
    ExecutorName,
    Plan,
    PlannedExecutor,
    RayOptions,
    StartMethod,
    Timeouts,
    Waiting,
    autoreset_for,
    number_of_bytes,
    read_plan,
    whole_number,
)
from multiverse.contracts.reset_plan import ResetPlan
from multiverse.executors import startup
from multiverse.executors.backends import backend_of
from multiverse.executors.choose import decide
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


def make_vec(
    env: EnvSource,
    num_envs: int | None = None,
    executor: ExecutorName = "auto",
    *,
    workers: int | None = None,
    start_method: StartMethod | None = None,
    autoreset: Autoreset | AutoresetMode | None = None,
    copy: Copy = True,
    infos: bool = True,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    wrappers: Sequence[Wrapper] | Sequence[Sequence[Wrapper]] | None = None,
    render_mode: str | None = None,
    reset_plan: ResetPlan | None = None,
    tasks: Sequence[Any] | None = None,
    waiting: Waiting = "auto",
    on_failure: OnFailure = "raise",
    restarts_per_minute: int | None = None,
    worker_memory_limit: int | str | None = None,
    on_bad_value: OnBadValue = "raise",
    reply_timeout_s: float | Literal["auto"] | None = "auto",
    reset_timeout_s: float | None = 300.0,
    close_timeout_s: float = 5.0,
    plan: Plan | os.PathLike[str] | str | None = None,
    groups: Groups | None = None,
    possible_agents: Sequence[str] | None = None,
    parallel: bool = False,
    state: bool = False,
    fields: startup.MoreFields | None = None,
    ray_address: str | None = None,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
) -> VectorEnv:
    """Many copies of `env` as one `VectorEnv`, which is a `gymnasium.vector.VectorEnv`.

    A PettingZoo parallel env gives a `MultiAgentVectorEnv`, an AEC env a `TurnVectorEnv` (a type checker, which cannot
    know, takes all of them for a `VectorEnv`).

    Good to know: `reset(seed=3)` seeds env i with 3 + i, also where only some are reset: `reset(env_ids=[1, 5],
    seed=3)` seeds them with 4 and 8. Actions are cast to the dtype of the action space (float64 to a float32 `Box`;
    Gymnasium's `SyncVectorEnv` passes them through as they are). With `"hybrid"`, `send` asks the workers only: the
    caller's own share of the envs steps inside `receive`.

    Args:
        env: a Gymnasium id, `"module:name"` of something that builds an env, a callable (lambda, closure and local
            class included), or a list with one callable per env.
        num_envs: how many; not needed with a list.
        executor: where they run: `"serial"` in the caller, `"thread"`, `"process"`, `"hybrid"` (processes, and the
            caller steps its own share), `"ray"` (a Ray cluster), or `"auto"`, which steps one throwaway env for a
            moment and decides among those of this machine.
        workers: threads or processes; each hosts many envs. Default: the usable cores; from four on `"process"` leaves
            one of them to the caller, unless every env can have its own.
        start_method: of processes: `"forkserver"` (default, a fork server of our own), `"fork"` or `"spawn"`. None
            of them imports your script again, so no `if __name__ == "__main__":` is needed.
        autoreset: `"next_step"` (Gymnasium's default, and ours), `"same_step"` (the default for envs whose agents act
            in turn) or `"disabled"`; or Gymnasium's own `AutoresetMode`.
        copy: False returns observations as views of shared memory, overwritten by the next step. `"poison"` is for
            debugging code that uses False: what the last step returned is filled with NaN when the next begins.
        infos: False drops the envs' infos (final observations stay).
        env_kwargs: for the id or the callable; one dict for all envs, or a list with one per env.
        wrappers: applied in order; one list for all envs, or a list of lists with one per env.
        render_mode: as in `gymnasium.make`; `"human"` opens a window for env 0 and means serial.
        groups: of agents that share a policy, name → agents, or `"separate"`: each by itself; where nothing is said,
            agents with equal spaces.
        possible_agents: every agent that there can be, for PettingZoo envs that do not say.
        parallel: True takes a PettingZoo AEC env in which everybody really acts at once as a parallel one.
        state: True asks PettingZoo envs for their `state()` after every reset and step: `envs.states`.
        reset_plan: (env id, episode) → `ResetRequest`, evaluated where the env runs, at every reset. `DerivedSeeds`
            seeds every episode; `DrawnTasks` draws its task as well.
        tasks: all tasks there are, sent to the workers once; `reset(tasks=[…])` and the reset plan then name them by
            index. A task reaches an env through its `reset_task` method, or as `options["task"]` if it has none.
        waiting: `"auto"` (processes look for a moment before they sleep, and adapt; threads sleep), or `"spin"`:
            always look first, or `"park"`: always sleep at once.
        on_failure: `"raise"`, or `"restart"`: an env that raises, and a worker process that dies or hangs, is
            replaced; the row is truncated, with reward 0 and `infos["restarted"]`.
        restarts_per_minute: limit of each worker, and of the envs of each worker; beyond it the first cause is raised.
            None: restarts are limited relative to the work done. The first cause is raised after 5 restarts of an env
            or worker in a row (no episode completed, fewer than 500 steps), and after 20 failures in half of its
            episodes or more (fewer than 10,000 steps). Three timeouts of a worker in a row always raise the first.
        worker_memory_limit: with `"restart"`, a worker process that holds more memory is replaced before its next step,
            which costs its envs their episodes: a number of bytes, or text such as `"2GiB"`.
        on_bad_value: NaN and infinite observations and rewards: `"raise"` makes them a failure of the env;
            `"truncate"` ends the episode without that step (reward 0, `infos["bad_value"]`); `"clip"` puts them, and
            observations outside their `Box`, at the nearest bound (rewards: 0); `"off"` looks at nothing.
            An observation of the wrong shape or kind is an error also with `"clip"` and `"off"`. Finite observations
            outside their space are counted (`envs.failures.out_of_bounds`) and warned about once per env.
        reply_timeout_s, reset_timeout_s: how long a worker may take to answer (None: for ever); then `ReplyTimeout`,
            with the Python stack of what it is doing. `"auto"`: 60 s for a step; with `on_failure="restart"`, a worker
            process that has hung may from then on take 10 times its longest step, at least 5 s.
        close_timeout_s: how long `close` waits for workers to end by themselves.
        fields: for whoever collects rollouts in workers: called with the env's description, it returns what else is to
            be shared with them (`envs.views`).
        plan: run exactly as another vector env did (`envs.plan`), or as a file says that `multiverse tune` has written,
            without probing; instead of `executor`, `workers`, `start_method` and `waiting`. A file also says `num_envs`
            where nothing else does.
        ray_address: of a Ray cluster that is there, host:port or `"auto"`, for `executor="ray"`. Default: the one that
            this program is connected to, or one of its own on this machine, which ends with it.
        cpus_per_worker, gpus_per_worker: what each worker there has of its node.
    """
    autoreset = _our_autoreset(autoreset)
    _check_choices(executor=(executor, ExecutorName), waiting=(waiting, Waiting))
    if executor != "serial":  # also where `auto` might come to that: its probe is a worker
        refuse_in_import("starts workers")
    if autoreset is not None:
        _check_choices(autoreset=(autoreset, Autoreset))
    _check_choices(on_failure=(on_failure, OnFailure), on_bad_value=(on_bad_value, OnBadValue))
    rate = restarts_per_minute
    if rate is not None:
        rate = _at_least_one("restarts_per_minute", rate, "on_failure='raise' restarts nothing")
    memory_limit = None
    if worker_memory_limit is not None:
        memory_limit = number_of_bytes("worker_memory_limit", worker_memory_limit)
        if on_failure != "restart":
            raise InvalidRequest(f"worker_memory_limit={worker_memory_limit!r} replaces workers: on_failure='restart'")
    failure_policy = FailurePolicy(on_failure, on_bad_value, rate, memory_limit, float32=fields is not None)
    if start_method is not None:
        _check_choices(start_method=(start_method, StartMethod))
    if workers is not None:
        workers = _at_least_one("workers", workers, "executor='serial' has none")
    _check_kinds(copy, render_mode, reset_plan)
    tasks = _checked_tasks(tasks)
    adapts = reply_timeout_s == "auto"
    reply_s = DEFAULT_TIMEOUTS.reply_s if adapts else cast(float | None, reply_timeout_s)
    timeouts = Timeouts(reply_s, reset_timeout_s, close_timeout_s, adapts)
    ray = RayOptions(ray_address, cpus_per_worker, gpus_per_worker)
    if executor not in ("auto", "ray") and ray != RayOptions():
        raise InvalidRequest("ray_address, cpus_per_worker and gpus_per_worker are for executor='ray'")
    if isinstance(plan, str | os.PathLike) and plan not in get_args(ExecutorName):
        plan, tuned = read_plan(plan, env, usable_cores())
        num_envs = tuned if num_envs is None and not isinstance(env, list | tuple) else num_envs
    agents = AgentOptions(groups, possible_agents, parallel, state)
    each = [replace(recipe, agents=agents) for recipe in recipes(env, num_envs, env_kwargs, wrappers)]
    if render_mode is not None:
        each = _with_render_mode(each, render_mode)
    if plan is None:
        _say_what_has_no_effect(executor, workers, start_method)
        executor, why = _where_windows_work(each, executor)
        plan = decide(executor, workers, start_method, waiting, each, on_failure, ray)
    else:
        plan = _checked_plan(plan, len(each), executor, workers, start_method, waiting)
        executor, why = _where_windows_work(each, plan.executor)
        if executor != plan.executor:
            plan = decide(executor, None, None, waiting, each)
    plan = replace(plan, why=why) if why else plan
    limits: dict[str, Any] = {"failure_policy": failure_policy, "timeouts": timeouts, "tasks": tasks, "fields": fields}
    started, description = startup.start(plan, each, autoreset, infos, reset_plan, **limits)
    if description.kind == "single" and agents != NOTHING_SAID:
        started.close()
        said = [name for name, value in asdict(agents).items() if value]
        raise InvalidRequest(f"{said[0]}= is for envs of several agents, and this one has one agent: leave it out")
    if description.metadata.get("in_process") and plan.executor != "serial":
        log.warning("the env says metadata['in_process'] (it holds a GPU or a window): running serial instead")
        started.close()
        plan = decide("serial", None, None, waiting, each)
        plan = replace(plan, why="the env says metadata['in_process']")
        started, description = startup.start(plan, each, autoreset, infos, reset_plan, **limits)
    mode = autoreset_for(autoreset, description.kind)
    kind = VECTOR_ENVS[description.kind]
    return cast(VectorEnv, kind(Running(started, description, plan, mode, copy, infos, failure_policy)))


# -- what the caller wrote -------------------------------------------------------------------------------------
def _our_autoreset(autoreset: Any) -> Autoreset | None:
    """Our name for one of Gymnasium's modes, given as such or by its value ("NextStep"); anything else as it is."""
    for mode in AutoresetMode:
        if autoreset is mode or (isinstance(autoreset, str) and autoreset == mode.value):
            return cast(Autoreset, mode.name.lower())
    return cast(Autoreset, autoreset)


def _check_choices(**choices: tuple[str, Any]) -> None:
    for name, (value, literal) in choices.items():
        if not isinstance(value, str) or value not in get_args(literal):
            raise InvalidRequest(f"{name}={value!r}: one of {', '.join(get_args(literal))}")


def _at_least_one(name: str, value: Any, instead: str) -> int:
    count = whole_number(name, value)
    if count < 1:
        raise InvalidRequest(f"{name}={count}: at least 1 ({instead})")
    return count


def _check_kinds(copy: Any, render_mode: Any, reset_plan: Any) -> None:
    if copy not in (True, False, "poison"):
        raise InvalidRequest(f"copy={copy!r}: True, False or 'poison'")
    if render_mode is not None and not isinstance(render_mode, str):
        raise InvalidRequest(f"render_mode={render_mode!r}: expected a name such as 'rgb_array', or None")
    if reset_plan is not None and not callable(reset_plan):
        raise InvalidRequest(f"reset_plan={reset_plan!r}: expected a callable: (env id, episode) → ResetRequest")


def _checked_tasks(tasks: Any) -> list[Any] | None:
    if tasks is None:
        return None
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise InvalidRequest(
            f"tasks={tasks!r}: expected a list of all tasks; a single env's is set by reset(tasks=[…])"
        )
    listed = list(tasks)
    if not listed:
        raise InvalidRequest("tasks is empty: give all tasks there are, or leave it out")
    return listed


def _checked_plan(
    plan: Any, num_envs: int, executor: str, workers: int | None, start_method: str | None, waiting: str
) -> Plan:
    """The plan, if it is one, fits the envs, and nothing beside it says otherwise."""
    if not isinstance(plan, Plan):
        hint = f"; did you mean executor={plan!r}?" if isinstance(plan, str) else ""
        raise InvalidRequest(
            f"plan={plan!r}: expected a multiverse.Plan, such as another vector env's envs.plan, or a file{hint}"
        )
    if (executor, workers, start_method, waiting) != ("auto", None, None, "auto"):
        raise InvalidRequest("plan= says how to run: leave executor, workers, start_method and waiting out beside it")
    _check_choices(**{"plan.executor": (plan.executor, PlannedExecutor), "plan.waiting": (plan.waiting, Waiting)})
    if plan.start_method is not None:
        _check_choices(**{"plan.start_method": (plan.start_method, StartMethod)})
    count = whole_number("plan.workers", plan.workers)
    backend = backend_of(plan.executor)
    if (count == 0) != (backend.workers is None) or count < 0:
        fitting = "none" if backend.workers is None else "at least 1"
        raise InvalidRequest(f"plan.workers={count}: executor {plan.executor!r} has {fitting}")
    if count > backend.most_workers(num_envs):
        raise InvalidRequest(f"the plan has {count} workers, too many for {num_envs} envs: {plan}")
    return replace(plan, workers=count)


def _say_what_has_no_effect(executor: str, workers: int | None, start_method: str | None) -> None:
    """Serial starts nothing, and threads are started in one way only."""
    if executor == "auto" or (backend := backend_of(executor)).processes:
        return
    given = {"workers": workers if backend.workers is None else None, "start_method": start_method}
    idle = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if idle:
        has, starts = "has" if len(idle) == 1 else "have", "workers" if backend.workers is None else "processes"
        log.warning("executor=%r starts no %s: %s %s no effect", executor, starts, " and ".join(idle), has)


# -- windows ---------------------------------------------------------------------------------------------------
def _with_render_mode(each: list[Recipe], render_mode: str) -> list[Recipe]:
    """Frames can be asked of every env; a window is opened for env 0 only."""
    return [
        replace(r, kwargs={**r.kwargs, "render_mode": render_mode}) if i == 0 or render_mode != "human" else r
        for i, r in enumerate(each)
    ]


def _where_windows_work(each: list[Recipe], executor: ExecutorName) -> tuple[ExecutorName, str]:
    """A window belongs to the process that the user looks at."""
    if not any(r.kwargs.get("render_mode") == "human" for r in each):
        return executor, ""
    if executor != "serial":
        instead = "" if executor == "auto" else f" instead of {executor}"
        log.warning("render_mode='human' opens a window: running serial%s, in one process, this one", instead)
    return "serial", "a human window means serial"
