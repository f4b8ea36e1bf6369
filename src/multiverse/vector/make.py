"""`make_vec`: from what a user wants to a running vector env."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from gymnasium.vector import AutoresetMode

from multiverse.adapters.agents import AgentOptions, Groups
from multiverse.adapters.env_source import EnvSource, Wrapper
from multiverse.core.failures import FailurePolicy, OnBadValue, OnFailure
from multiverse.core.plan import (
    Autoreset,
    ExecutorName,
    Plan,
    RayOptions,
    StartMethod,
    Waiting,
    number_of_bytes,
    timeouts_of,
)
from multiverse.core.reset_plan import ResetPlan
from multiverse.vector.base import Copy
from multiverse.vector.opening import VectorOptions, open_envs
from multiverse.vector.single import VectorEnv


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
        worker_memory_limit: with `"restart"`, a worker process that holds more memory is replaced, which costs its envs
            their episodes: a number of bytes, or text such as `"2GiB"`. Memory is read every 5 s. Serial and thread
            have no worker processes.
        on_bad_value: NaN and infinite observations and rewards: `"raise"` makes them a failure of the env;
            `"truncate"` ends the episode without that step (reward 0, `infos["bad_value"]`); `"clip"` puts them, and
            observations outside their `Box`, at the nearest bound (rewards: 0); `"off"` looks at nothing.
            An observation of the wrong shape or kind is an error also with `"clip"` and `"off"`. Finite observations
            outside their space are counted (`envs.failures.out_of_bounds`) and warned about once per env.
        reply_timeout_s, reset_timeout_s: how long a worker may take to answer (None: for ever); then `ReplyTimeout`,
            with the Python stack of what it is doing. `"auto"`: 60 s for a step; with `on_failure="restart"`, a worker
            process that has hung may from then on take 10 times its longest step, at least 5 s.
        close_timeout_s: how long `close` waits for workers to end by themselves.
        plan: run exactly as another vector env did (`envs.plan`), or as a file says that `multiverse tune` has written,
            without probing; instead of `executor`, `workers`, `start_method` and `waiting`. A file also says `num_envs`
            where nothing else does.
        ray_address: of a Ray cluster that is there, host:port or `"auto"`, for `executor="ray"`. Default: the one that
            this program is connected to, or one of its own on this machine, which ends with it.
        cpus_per_worker, gpus_per_worker: what each worker there has of its node.
    """
    memory_limit = None
    if worker_memory_limit is not None:
        memory_limit = number_of_bytes("worker_memory_limit", worker_memory_limit)
    options = VectorOptions(
        executor=executor,
        workers=workers,
        start_method=start_method,
        waiting=waiting,
        plan=plan,
        ray=RayOptions(ray_address, cpus_per_worker, gpus_per_worker),
        autoreset=autoreset,
        copy=copy,
        infos=infos,
        env_kwargs=env_kwargs,
        wrappers=wrappers,
        render_mode=render_mode,
        reset_plan=reset_plan,
        tasks=tasks,
        failures=FailurePolicy(on_failure, on_bad_value, restarts_per_minute, memory_limit),
        timeouts=timeouts_of(reply_timeout_s, reset_timeout_s, close_timeout_s),
        agents=AgentOptions(groups, possible_agents, parallel, state),
    )
    return cast(VectorEnv, open_envs(env, num_envs, options).bind())
