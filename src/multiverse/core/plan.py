"""The plan: how envs run, as chosen and why. Also the option dataclasses that a plan is made from."""

from __future__ import annotations

import json
import logging
import math
import numbers
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from multiverse.core.errors import InvalidRequest
from multiverse.core.plain_files import read_named
from multiverse.core.wording import pluralize, short_repr

log = logging.getLogger("multiverse")

ExecutorName = Literal["auto", "serial", "thread", "process", "hybrid", "ray"]
PlannedExecutor = Literal["serial", "thread", "process", "hybrid", "ray"]
StartMethod = Literal["forkserver", "fork", "spawn"]
Autoreset = Literal["next_step", "same_step", "disabled"]
Waiting = Literal["auto", "spin", "park"]

IN_CALLER: PlannedExecutor = "serial"
"""Executor that steps all envs in the calling process."""
IN_PROCESSES: PlannedExecutor = "process"
"""Executor that steps all envs in worker processes."""
ON_RAY: PlannedExecutor = "ray"
"""Executor that steps all envs in actors of a Ray cluster."""


def autoreset_for(mode: Autoreset | None, kind: str) -> Autoreset:
    """The given mode, or the default for this kind of env: Gymnasium's, and `same_step` for turn-based games."""
    return mode or ("same_step" if kind == "turns" else "next_step")


def whole_number(name: str, value: Any) -> int:
    """An argument as a plain int. Accepts numpy's integers, but not True."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InvalidRequest(f"{name}={value!r}: expected a whole number") from None


def at_least_one(name: str, value: Any, instead: str) -> int:
    """An argument as a plain int of at least 1; `instead` tells the caller of an alternative."""
    count = whole_number(name, value)
    if count < 1:
        raise InvalidRequest(f"{name}={count}: expected at least 1 ({instead})")
    return count


def check_choices(**choices: tuple[Any, Any]) -> None:
    """Refuse a value that is not one of its literals: name=(value, Literal[...])."""
    for name, (value, literal) in choices.items():
        if not isinstance(value, str) or value not in get_args(literal):
            raise InvalidRequest(f"{name}={value!r}: expected one of {', '.join(get_args(literal))}")


LARGEST_PLAN = 2**20
_UNITS = {"b": 1, **{f"{unit}b": 1000**n for n, unit in enumerate("kmgt", 1)}}
_UNITS |= {f"{unit}ib": 1024**n for n, unit in enumerate("kmgt", 1)}


def number_of_bytes(name: str, value: int | str) -> int:
    """An amount of memory in bytes, from a number or text such as "2GiB" or "500 MB"."""
    match = re.fullmatch(r"([0-9.]+)\s*([a-z]*)", str(value).strip().lower())
    try:
        if match is None or isinstance(value, bool):
            raise ValueError
        count = int(float(match[1]) * _UNITS[match[2] or "b"])
    except (ValueError, KeyError):
        raise InvalidRequest(f"{name}={value!r}: expected a number of bytes, or text such as 2GiB or 500MB") from None
    if count < 1:
        raise InvalidRequest(f"{name}={value!r}: expected more than 0 bytes")
    return count


LONGEST_S = 1e7
"""Longest timeout, about four months: operating system calls do not accept much longer ones."""


REPLY_S = 60.0
"""Time limit of a step, in seconds, unless the caller sets one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time limits of requests to workers, in seconds. None: no limit.

    Args:
        reply_s: limit of a step or a call; then `ReplyTimeout` is raised, with the Python stack of the worker.
            `"auto"`: 60 s; with `on_failure="restart"`, a worker process that has hung is from then on limited to 10
            times its longest step, but at least 5 s.
        reset_s: limit of a reset, and of building the envs.
        close_s: time that `close` gives workers to end before it kills them.
    """

    reply_s: float | Literal["auto"] | None = "auto"
    reset_s: float | None = 300.0
    close_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("reply_s", "reset_s", "close_s"):
            value = getattr(self, name)
            if (value is None and name != "close_s") or (value == "auto" and name == "reply_s"):
                continue
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if number and value > LONGEST_S:
                if name == "close_s" or not math.isinf(value):
                    raise InvalidRequest(f"{name}={value!r}: a timeout is at most {LONGEST_S:g} seconds")
                object.__setattr__(self, name, None)  # infinity also means no limit
            elif not (number and value > 0):
                no_limit = "" if name == "close_s" else ", or None for no limit"
                raise InvalidRequest(f"{name}={value!r}: a timeout is a number of seconds above 0{no_limit}")

    @property
    def adapts(self) -> bool:
        """Whether a worker that has hung gets a shorter limit from then on."""
        return self.reply_s == "auto"

    @property
    def step_s(self) -> float | None:
        """Time limit of a step of a worker that has not hung yet; None without one."""
        return REPLY_S if self.reply_s == "auto" else self.reply_s


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Number of workers, and how they are started and wait.

    Args:
        count: number of threads, processes or Ray actors. Default: the usable cores; with four or more, `"process"`
            leaves one of them to the caller, unless every env can have its own.
        start_method: of processes: `"forkserver"` (default; multiverse's own fork server), `"fork"` or `"spawn"`.
            None of them imports your script again, so no `if __name__ == "__main__":` is needed.
        waiting: `"auto"` (processes spin briefly before they sleep, and adapt; threads sleep), `"spin"` (always spin
            first) or `"park"` (always sleep at once).
    """

    count: int | None = None
    start_method: StartMethod | None = None
    waiting: Waiting = "auto"

    def __post_init__(self) -> None:
        if self.count is not None:
            count = at_least_one("workers", self.count, f"executor={IN_CALLER!r} has none")
            object.__setattr__(self, "count", count)
        if self.start_method is not None:
            check_choices(start_method=(self.start_method, StartMethod))
        check_choices(waiting=(self.waiting, Waiting))


DEFAULT_WORKERS = WorkerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Address of a Ray cluster, and the share of its node that each worker has.

    Args:
        address: of a running cluster, host:port or `"auto"`. Default: the cluster that this program is connected to,
            or one of its own on this machine, which ends with it.
        cpus_per_worker: CPUs of its node that each worker reserves.
        gpus_per_worker: GPUs of its node that each worker reserves.
    """

    address: str | None = None
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cpus_per_worker", "gpus_per_worker"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InvalidRequest(f"{name}={value!r}: expected a number of at least 0")
        if self.address is not None and not (isinstance(self.address, str) and self.address):
            raise InvalidRequest(f"ray_address={self.address!r}: expected an address such as 10.0.0.1:6379, or auto")


DEFAULT_RAY = RayOptions()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a vector env runs: pass it back as `make_vec(..., plan=envs.plan)` to run the same way again."""

    executor: PlannedExecutor
    workers: int  # number of threads or processes, not counting the caller, which steps envs in serial and hybrid
    start_method: StartMethod | None  # None if no process is started
    waiting: Waiting  # as in `WorkerOptions`
    why: str
    ray: RayOptions | None = None  # of the executor "ray"

    @property
    def a_crash_costs(self) -> str:
        """What is lost, in words, if native code of an env crashes or ends its process."""
        return _A_CRASH_COSTS.get(self.executor, "an unknown part")

    def __str__(self) -> str:
        started = f", {pluralize(self.workers, 'worker')}" if self.workers else ""
        method = f" ({self.start_method})" if self.start_method else ""
        return f"{self.executor}{started}{method}: {self.why}; a crash costs {self.a_crash_costs}"


_A_CRASH_COSTS: dict[PlannedExecutor, str] = {
    "serial": "this program",
    "thread": "this program",
    "hybrid": "the envs of a worker or, in the caller's own share, this program",
    "process": "the envs of a worker",
    "ray": "the envs of a worker",
}


def read_plan(path: os.PathLike[str] | str, env: Any, usable_cores: int) -> tuple[Plan, int]:
    """A plan that `multiverse tune` has written, and its number of envs. Warns if it was measured for another env
    (given by name) or with another number of cores."""
    where, hint = os.fspath(path), "`multiverse tune ENV` writes one"
    try:
        content = json.loads(read_named(where, LARGEST_PLAN))
    except OSError as error:
        raise InvalidRequest(f"plan={where!r} cannot be read: {error.strerror or error}; {hint}") from error
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{where} is not a plan: it is not JSON; {hint}") from None
    wanted = [field.name for field in fields(Plan) if field.name != "ray"]
    missing = [name for name in (*wanted, "num_envs") if not isinstance(content, dict) or name not in content]
    if missing:
        raise InvalidRequest(f"{where} is not a plan: it has no {', '.join(missing)}; {hint}")
    _warn_of_misfits(where, content, {"env": env if isinstance(env, str) else None, "usable_cores": usable_cores})
    ray, options = content.get("ray"), [field.name for field in fields(RayOptions)]
    if not isinstance(ray, dict | None) or (unknown := [name for name in ray or () if name not in options]):
        wrong = f"has {', '.join(unknown)}" if isinstance(ray, dict) else f"is {short_repr(ray)}"
        raise InvalidRequest(f"{where} is not a plan: its ray {wrong}, and can have {', '.join(options)}; {hint}")
    of_ray = RayOptions(**ray) if ray else None
    if of_ray is not None and of_ray.address is not None:  # guard: a-plan-file-names-no-cluster
        wrong = f"{where} names the Ray cluster at {of_ray.address!r}; a plan file specifies how envs run, not where"
        raise InvalidRequest(f"{wrong}. Remove the address, and pass executor=RayOptions(address=…) instead of plan=")
    return Plan(**{name: content[name] for name in wanted}, ray=of_ray), whole_number("num_envs", content["num_envs"])


def _warn_of_misfits(where: str, content: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Log one warning if the plan was measured for another env or machine."""
    differing = [name for name, value in here.items() if value is not None and content.get(name, value) != value]
    if differing:
        was, now = (", ".join(f"{name} {facts[name]}" for name in differing) for facts in (content, here))
        tune = f"multiverse tune {here['env'] or 'ENV'}"
        log.warning("plan %s was measured for %s, and this is %s: `%s` writes one that fits", where, was, now, tune)
