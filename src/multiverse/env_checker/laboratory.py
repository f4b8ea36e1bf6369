"""The worker process in which the checks run, so that no env can hang or crash the checker.

The worker hosts a `Seat` instead of the env: an Env that holds the recipe and, in its row of the shared block, the call
that is being made of the env. That row outlives the worker, so a crash or a hang can be reported with its step.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.adapters.env_source import Recipe
from multiverse.core.env import EnvDescription, SlotRow
from multiverse.core.errors import PreflightError, ReplyTimeout, WorkerDied
from multiverse.core.layout import OBSERVATIONS, SINGLE_AGENT, Group
from multiverse.core.plan import IN_CALLER, IN_PROCESSES, Plan, StartMethod
from multiverse.executors import startup
from multiverse.executors.env_range import EnvRange, RangeConfig
from multiverse.executors.executor import Executor
from multiverse.executors.launch.black_box import readable
from multiverse.executors.process import pickled, usable_here
from multiverse.executors.worker_loop import Assignment

IDLE, BUILD, RESET, STEP, CLOSE = range(5)
NO_SEED = -1
START_S = 30.0
TAIL_BYTES = 8_000


class Where(NamedTuple):
    """A call of the env, counted from its last reset with a seed."""

    phase: int = IDLE
    seed: int = NO_SEED
    episode: int = 0  # 1: the one that began with the seed
    step: int = 0  # of all since that reset, from 1

    def __str__(self) -> str:
        if self.phase in (IDLE, BUILD):
            return "while building the env" if self.phase == BUILD else "while starting"
        if self.phase == CLOSE:
            return "in close()"
        if self.seed == NO_SEED:
            return "in reset()" if self.phase == RESET else f"in step {self.step}"
        seeded, later = f"reset(seed={self.seed})", self.episode > 1
        if self.phase == RESET:
            return f"in reset() number {self.episode - 1} after {seeded}" if later else f"in {seeded}"
        return f"in step {self.step} after {seeded}" + (f" (in episode {self.episode})" if later else "")


class Seat:
    """Placeholder for an env, never stepped: it holds the recipe, and its row holds the last call of the checks."""

    row = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (len(Where._fields),), np.int64)
    description = EnvDescription(groups=(Group(SINGLE_AGENT, (SINGLE_AGENT,), row, spaces.Discrete(1)),))

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def bind(self, rows: Sequence[SlotRow]) -> None:
        (row,) = rows
        self._write = row.write_observation

    def note(self, where: Where) -> None:
        """Record a call before it is made."""
        self._write(np.array(where, np.int64))

    def step(self, action: Any) -> tuple[bool, dict[str, Any]]:
        return False, {}

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        return {}

    def classes(self) -> list[type]:
        return []

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SeatRecipe(Recipe):
    """Builds a seat that holds the recipe, whose `build_foreign` the checks use."""

    def build(self) -> Any:
        return Seat(self)


class WorkerLost(Exception):
    """The worker died or hung in the middle of a check."""

    def __init__(self, cause: WorkerDied | ReplyTimeout, where: Where, printed: str) -> None:
        super().__init__(str(cause))
        self.cause, self.where, self.printed = cause, where, printed


class Laboratory:
    """Runs functions beside the seat, one after another; a lost worker is replaced when the next function is run."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = SeatRecipe(recipe.source, recipe.kwargs, recipe.wrappers)
        self.cannot_travel = cannot_travel(self._recipe)
        """Why the recipe cannot be sent to a worker of the fork server; '' if it can. If not, the worker is forked."""
        self.isolated = usable_here()
        """Whether the env runs in a process of its own."""
        self._executor: Executor | None = None
        self._output: IO[bytes] | None = None

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None) -> Any:
        """Return function(env_range, *arguments), run beside the seat; raise `WorkerLost` if the worker is lost."""
        executor = self._started()
        try:
            (result,) = executor.run(function, {executor.hosts[0]: arguments}, timeout_s).values()
            return result
        except (WorkerDied, ReplyTimeout) as error:
            row = executor.views[(SINGLE_AGENT, OBSERVATIONS)][0]
            where, printed = Where(*(int(number) for number in row)), self._printed_last()
            self.close(0.0)
            raise WorkerLost(error, where, printed) from error

    def _started(self) -> Executor:
        if self._executor is None:
            method: StartMethod = "fork" if self.cannot_travel else "forkserver"
            plan = Plan(IN_PROCESSES, 1, method, "park", "check-env")
            if not self.isolated:
                plan = Plan(IN_CALLER, 0, None, "park", "check-env")
            self._executor = startup.start_hosts(plan, [self._recipe]).bind()
            if self.isolated:
                self._take_output(self._executor)
        return self._executor

    def _take_output(self, executor: Executor) -> None:
        """Redirect the worker's output into a file, which has a name only until the worker has opened it. The user does
        not see it, but it has the reason of an abort in native code, and the stack of Python's faulthandler."""
        with tempfile.NamedTemporaryFile(prefix="multiverse-", delete=False) as file:
            self._output = open(file.name, "rb")  # noqa: SIM115
        try:
            executor.run(print_into, {executor.hosts[0]: (file.name,)}, START_S)
        finally:
            os.unlink(file.name)

    def _printed_last(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(-min(TAIL_BYTES, os.fstat(self._output.fileno()).st_size), os.SEEK_END)
        return readable(self._output.read())

    def close(self, timeout_s: float | None = None) -> None:
        """End the worker, if there is one."""
        executor, output = self._executor, self._output
        self._executor = self._output = None
        if output is not None:
            output.close()
        if executor is not None:
            executor.close(timeout_s)

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(None if kind is None else 0.0)


def print_into(envs: EnvRange, path: str) -> None:
    """Redirect standard output and error, and the stack of a fatal signal, into a file. Runs in the worker."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)
    faulthandler.enable(file=2)
    gymnasium.logger.min_level = gymnasium.logger.ERROR


def cannot_travel(recipe: Recipe) -> str:
    """Return why a recipe cannot be sent to a worker process; '' if it can."""
    try:
        pickled([Assignment(0, RangeConfig(env_ids=range(1)), [recipe], "park")])
    except PreflightError as error:
        cause = error.__cause__
        return f"{type(cause).__name__}: {cause}"
    return ""
