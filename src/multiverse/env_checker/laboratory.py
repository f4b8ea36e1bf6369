"""Where the checks run: a worker process of the engine's own, so that no env can hang or crash the checker.

The worker hosts a `Seat` instead of the env: an Env that holds the recipe and, in its row of the shared block, what
the env is being asked just now. That row outlives the worker, so a crash or a hang can be told with its step.
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
    """What the env was being asked: counted from its last reset with a seed."""

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
    """An Env that is none: it keeps the recipe for the checks, and its row says where they are. It is never played."""

    row = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (len(Where._fields),), np.int64)
    description = EnvDescription(groups=(Group(SINGLE_AGENT, (SINGLE_AGENT,), row, spaces.Discrete(1)),))

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.is_team: bool | None = None  # not known yet

    def bind(self, rows: Sequence[SlotRow]) -> None:
        (row,) = rows
        self._write = row.write_observation

    def note(self, where: Where) -> None:
        """Say what comes next, before it happens."""
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
    """Builds a seat with itself in it; `build_foreign` is what the checks build."""

    def build(self) -> Any:
        return Seat(self)


class Output:
    """What the worker prints: kept out of the user's sight, and there to be asked when it has crashed.

    Native code says why it aborts, and Python's faulthandler where a signal hit, on standard error only.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def take_from(self, executor: Executor) -> None:
        """From now on the worker prints into a file, which has a name only until the worker has opened it."""
        with tempfile.NamedTemporaryFile(prefix="multiverse-", delete=False) as file:
            self._file = open(file.name, "rb")  # noqa: SIM115
        try:
            executor.run(print_into, {executor.hosts[0]: (file.name,)}, START_S)
        finally:
            os.unlink(file.name)

    def tail(self) -> str:
        """The last that was printed."""
        if self._file is None:
            return ""
        self._file.seek(-min(TAIL_BYTES, os.fstat(self._file.fileno()).st_size), os.SEEK_END)
        return readable(self._file.read())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def print_into(envs: EnvRange, path: str) -> None:
    """In the worker: standard output and error, and the stack of a fatal signal, go into that file."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)
    faulthandler.enable(file=2)
    gymnasium.logger.min_level = gymnasium.logger.ERROR


class WorkerLost(Exception):
    """The worker died or hung in the middle of a check."""

    def __init__(self, cause: WorkerDied | ReplyTimeout, where: Where, printed: str) -> None:
        super().__init__(str(cause))
        self.cause, self.where, self.printed = cause, where, printed


class Laboratory:
    """Runs functions over the seat, one after another; a lost worker is replaced when the next one is to run."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = SeatRecipe(recipe.source, recipe.kwargs, recipe.wrappers)
        self.cannot_travel = cannot_travel(self._recipe)
        """Why the recipe cannot be sent to a fork server's worker; '' if it can. Then the worker is forked."""
        self.isolated = usable_here()
        """Whether there is a process around the env at all."""
        self._executor: Executor | None = None
        self._output = Output()

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None) -> Any:
        """function(env_range, *arguments) beside the seat; raises `WorkerLost`."""
        executor = self._started()
        try:
            (result,) = executor.run(function, {executor.hosts[0]: arguments}, timeout_s).values()
            return result
        except (WorkerDied, ReplyTimeout) as error:
            row = executor.views[(SINGLE_AGENT, OBSERVATIONS)][0]
            where, printed = Where(*(int(number) for number in row)), self._output.tail()
            self.close(0.0)
            raise WorkerLost(error, where, printed) from error

    def _started(self) -> Executor:
        if self._executor is None:
            method: StartMethod = "fork" if self.cannot_travel else "forkserver"
            plan = Plan(IN_PROCESSES, 1, method, "park", "check-env")
            if not self.isolated:
                plan = Plan(IN_CALLER, 0, None, "park", "check-env")
            self._executor = startup.open_envs(plan, [self._recipe]).bind()
            if self.isolated:
                self._output.take_from(self._executor)
        return self._executor

    def close(self, timeout_s: float | None = None) -> None:
        executor, self._executor = self._executor, None
        self._output.close()
        if executor is not None:
            executor.close(timeout_s)

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(None if kind is None else 0.0)


def cannot_travel(recipe: Recipe) -> str:
    """Why a recipe cannot be sent to a worker process; '' if it can."""
    try:
        pickled([Assignment(0, RangeConfig(env_ids=range(1)), [recipe], "park")])
    except PreflightError as error:
        cause = error.__cause__
        return f"{type(cause).__name__}: {cause}"
    return ""
