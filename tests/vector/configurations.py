"""Every way to run a vector env: the contract suite runs with all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import pytest

import multiverse as mv
from multiverse.executors.startup import ranges
from multiverse.vector.opening import VectorOptions, open_envs


@dataclass(frozen=True)
class Configuration:
    """One way to run a vector env; `num_envs` is the number that most tests use."""

    name: str
    executor: Any
    workers: int | None = None
    start_method: Any = None
    num_envs: int = 4

    def __str__(self) -> str:
        return self.name

    def make(self, env: Any, num_envs: int | None = None, **options: Any) -> mv.VectorEnv:
        workers = options.pop("workers", self.workers)
        if not isinstance(workers, mv.WorkerOptions):
            workers = mv.WorkerOptions(count=workers)
        if workers.start_method is None:
            workers = replace(workers, start_method=self.start_method)
        if workers.count is None:
            workers = replace(workers, count=self.workers)
        given = {"workers": workers, "executor": self.executor, **options}
        if isinstance(env, list):
            num_envs = None
        elif num_envs is None:
            num_envs = self.num_envs
        return make_with_fields(env, num_envs, **given)

    @property
    def ranges(self) -> list[range]:
        """The envs of each host, in order."""
        own_share = self.executor in ("serial", "hybrid")
        return ranges(self.num_envs, (self.workers or 0) + own_share)

    @property
    def has_workers(self) -> bool:
        return self.executor != "serial"

    @property
    def has_processes(self) -> bool:
        return self.executor in ("process", "hybrid")

    @property
    def last_range(self) -> range:
        """The envs of the last host: a worker, in configurations with workers."""
        return self.ranges[-1]


def make_with_fields(
    env: Any, num_envs: int | None = None, executor: Any = "auto", *, fields: Any = None, **given: Any
) -> Any:
    """As `make_vec`; `fields` returns additional shared arrays for the description of the envs."""
    if fields is None:
        return mv.make_vec(env, num_envs, executor, **given)
    failures, workers = given.pop("on_failure", "raise"), given.pop("workers", None)
    failures = failures if isinstance(failures, mv.FailureOptions) else mv.FailureOptions(on_failure=failures)
    workers = workers if isinstance(workers, mv.WorkerOptions) else mv.WorkerOptions(count=workers)
    options = VectorOptions(executor=executor, workers=workers, failures=replace(failures, float32=True), **given)
    opened = open_envs(env, num_envs, options)
    return opened.bind(fields(opened.description))


SERIAL = Configuration("serial", "serial")
THREAD = Configuration("thread", "thread", 2)
FORKSERVER = Configuration("forkserver", "process", 2, "forkserver")
FORK = Configuration("fork", "process", 2, "fork")
SPAWN = Configuration("spawn", "process", 2, "spawn")
HYBRID = Configuration("hybrid", "hybrid", 1, "forkserver")
UNEVEN = Configuration("uneven", "hybrid", 3, "forkserver", num_envs=5)
RAY = Configuration("ray", "ray", 2)

ALL = [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID, UNEVEN, RAY]
WITH_WORKERS = [c for c in ALL if c.has_workers]
WITH_PROCESSES = [c for c in ALL if c.has_processes]
WITHOUT_SPAWN = [c for c in ALL if c is not SPAWN]
"""Fresh interpreters take half a second each: left out where only the envs' results are looked at."""
DISTINCT = [SERIAL, THREAD, FORKSERVER, HYBRID, RAY]
"""One of each executor: where the start method makes no difference."""


def over(configurations: list[Configuration]) -> Any:
    """The `config` fixture of a module that does not need all configurations."""

    @pytest.fixture(params=configurations, ids=str)
    def config(request: pytest.FixtureRequest) -> Configuration:
        return request.param

    return config


def gymnasiums_own(env: Any, num_envs: int, autoreset: str = "next_step", **options: Any) -> Any:
    """The reference: Gymnasium's serial vector env. `env`: an id, a callable, or a list of callables."""
    if isinstance(env, str):
        env_id = env

        def env() -> Any:
            return gymnasium.make(env_id)

    makers = env if isinstance(env, list) else [env] * num_envs
    mode = gymnasium.vector.AutoresetMode[autoreset.upper()]
    return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode, **options)
