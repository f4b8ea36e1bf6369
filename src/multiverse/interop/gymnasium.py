"""Gymnasium's vector envs on our engine: replace `gymnasium.vector` by this module in the import.

`from multiverse.interop.gymnasium import AsyncVectorEnv, SyncVectorEnv`

They have the names, arguments, messages and attributes of the originals. Arguments are checked, with the messages of
the originals, before anything is started.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, NoReturn, cast

import gymnasium
import numpy as np
from gymnasium import Env, Space
from gymnasium.core import ActType, ObsType
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_differing_spaces, clear_mpi_env_vars, create_shared_memory

from multiverse.core.errors import EnvFailed, MultiverseError, SpacesDiffer
from multiverse.core.plan import IN_CALLER, IN_PROCESSES, Autoreset, ExecutorName, WorkerOptions
from multiverse.executors.worker_loop import alike
from multiverse.interop.drop_in import (
    PARKED,
    AsyncDropIn,
    DropIn,
    original_exception,
    recipes_of,
    start,
    start_method_of,
)
from multiverse.interop.engine import Engine
from multiverse.interop.env_side import AsGivenRecipe, call_each, set_each
from multiverse.vector.single import Step, VectorEnv

__all__ = ["AsyncState", "AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv"]

EnvFunction = Callable[[], Env[Any, Any]]


class GymnasiumDropIn(DropIn, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Common part of both vector envs."""

    engine: Engine
    num_envs: int
    copy: bool
    observation_mode: Any

    def _started(
        self,
        env_fns: Sequence[EnvFunction],
        executor: ExecutorName,
        autoreset: Autoreset,
        workers: WorkerOptions = PARKED,
    ) -> Engine:
        try:
            running = start(
                recipes_of(env_fns, AsGivenRecipe),
                executor,
                autoreset,
                workers=workers,
                copy=self.copy,
                bounds_may_differ=self.observation_mode != "same",
            )
        except SpacesDiffer as error:
            raise RuntimeError(self._what_differs(error)) from error
        except EnvFailed as error:
            raised = original_exception(error)
            raise raised from (None if raised is error else error)
        return Engine(running)

    def _take_over(self, engine: Engine) -> None:
        """Set the attributes of the original from those of the engine."""
        self.engine, self.num_envs = engine, engine.num_envs
        self.metadata, self.render_mode = engine.metadata, engine.render_mode
        self.single_action_space, self.action_space = engine.single_action_space, engine.action_space
        if isinstance(self.observation_mode, tuple):
            self.observation_space, self.single_observation_space = self.observation_mode
            if not alike(self.single_observation_space, engine.single_observation_space):
                raise RuntimeError(self._observation_spaces_differ(engine.single_observation_space))
            return
        self.single_observation_space = engine.single_observation_space
        self.observation_space = engine.observation_space
        if self.observation_mode == "different":
            self.observation_space = batch_differing_spaces(list(engine.get_attr("observation_space")))

    def _what_differs(self, error: SpacesDiffer) -> str:
        """Return the message of the original for envs whose spaces differ."""
        raise NotImplementedError

    def _observation_spaces_differ(self, space: Space[Any] | None) -> str:
        """Return the message of the original for an observation space that differs, which may be known."""
        raise NotImplementedError

    np_random, np_random_seed = VectorEnv.np_random, VectorEnv.np_random_seed  # type: ignore[assignment]


# -- arguments -------------------------------------------------------------------------------------------------
def checked_autoreset(mode: str | AutoresetMode) -> tuple[AutoresetMode, Autoreset]:
    """Return the mode of Gymnasium, and our name for it."""
    theirs = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    return theirs, cast(Autoreset, theirs.name.lower())


def check_observation_mode(mode: Any) -> None:
    """Refuse values other than the two names and pairs of spaces."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not isinstance(mode[0], Space) or not isinstance(mode[1], Space):
            raise TypeError(
                f"Expected both elements of observation_mode to be Spaces, got {type(mode[0])} and {type(mode[1])}"
            )
    elif not isinstance(mode, str) or mode not in ("same", "different"):
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )


def checked_concurrency(limit: Any) -> int | None:
    """Return the limit of envs at a time; None: no limit."""
    if limit is None:
        return None
    if not isinstance(limit, int | np.integer):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(limit)}.")
    if limit < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {limit}.")
    return int(limit)


_WORKER_ARGUMENTS = "index, env_fn, pipe, parent_pipe, shared_memory, error_queue, autoreset_mode, semaphore"


def refuse_worker(worker: Callable[..., None] | None) -> None:
    """Raise the original's error for an invalid worker, and our own for any other."""
    if worker is None:
        return
    try:
        inspect.signature(worker).bind(*(None,) * 8)
    except TypeError as error:
        raise ValueError(
            f"A custom `worker` must accept 8 arguments. Got the signature {inspect.signature(worker)} "
            f"which should match ({_WORKER_ARGUMENTS})."
        ) from error
    raise ValueError(
        "`worker` cannot be honoured: envs run in multiverse's own worker loop, many to a process. Leave it out (a "
        "wrapper around the env can do most of what a worker could), or use gymnasium.vector.AsyncVectorEnv."
    )


class _NoMemory:
    """Allocates nothing; shows whether the original could."""

    @staticmethod
    def Array(*arguments: Any) -> None:  # noqa: N802 (multiprocessing's name)
        pass


def refuse_unshareable(space: Space[Any]) -> None:
    """Refuse custom spaces and dynamic shapes, as the original does with `shared_memory=True`."""
    try:
        create_shared_memory(space, n=1, ctx=_NoMemory)  # type: ignore[arg-type]
    except CustomSpaceError as error:
        raise ValueError(
            "Using `AsyncVector(..., shared_memory=True)` caused an error, you can disable this feature with "
            "`shared_memory=False` however this is slower."
        ) from error


# -- SyncVectorEnv ---------------------------------------------------------------------------------------------
class SyncVectorEnv(GymnasiumDropIn, Generic[ObsType, ActType]):
    """`gymnasium.vector.SyncVectorEnv`: the envs run in the caller, one after the other, and are in `envs`.

    As in the original, an env that raised can still be stepped; unlike there, the other envs have taken their step.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFunction],
        copy: bool = True,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        """Build the envs here.

        Args:
            env_fns: one function per env.
            copy: False returns observations as views, overwritten by the next step.
            observation_mode: `"same"`, `"different"` (equal shapes and dtypes), or (batched space, single space).
            autoreset_mode: Gymnasium's mode, or its value.
        """
        self.env_fns, self.copy, self.observation_mode = list(env_fns), copy, observation_mode
        self.autoreset_mode, autoreset = checked_autoreset(autoreset_mode)
        check_observation_mode(observation_mode)
        self.envs: list[Env[Any, Any]] = []
        building = [functools.partial(_built_into, self.envs, env_fn) for env_fn in self.env_fns]
        engine = self._started(building, IN_CALLER, autoreset)
        try:
            self._take_over(engine)
        except BaseException:
            engine.close()
            raise

    def _what_differs(self, error: SpacesDiffer) -> str:
        first = self.envs[0]
        if error.kind != "action_space":
            self.single_observation_space = first.observation_space
            same = operator.eq if self.observation_mode == "same" else alike
            others = (env.observation_space for env in self.envs)
            return self._observation_spaces_differ(next(s for s in others if not same(first.observation_space, s)))
        other = next(env.action_space for env in self.envs if env.action_space != first.action_space)
        return (
            "Sub-environment action space doesn't make the `single_action_space`, "
            f"action_space={other}, single_action_space={first.action_space}"
        )

    def _observation_spaces_differ(self, space: Space[Any] | None) -> str:
        if self.observation_mode == "same":
            return (
                "SyncVectorEnv(..., observation_mode='same') however the sub-environments observation spaces are not "
                f"equivalent. single_observation_space={self.single_observation_space}, sub-environment "
                f"observation_space={space}. If this is intentional, use `observation_mode='different'` instead."
            )
        return (
            "SyncVectorEnv(..., observation_mode='different' or custom space) however the sub-environments observation "
            f"spaces do not share a common shape and dtype, single_observation_space={self.single_observation_space}, "
            f"sub-environment observation space={space}"
        )

    # -- Gymnasium's calls -------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, or in those of `options["reset_mask"]`."""
        try:
            return self.engine.reset(seed=self._seeds(seed), options=options)
        except MultiverseError as error:
            self._raise(error)

    def step(self, actions: Any) -> Step:
        """Step every env."""
        try:
            return self.engine.step(actions)
        except MultiverseError as error:
            self._raise(error)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        try:
            self.engine.start_call(call_each, name, args, kwargs)
            return self.engine.finish_call(None)
        except MultiverseError as error:
            self._raise(error)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env: to its entry in a list or tuple, or to any other value for all."""
        each = self._one_per_env(values)
        try:
            self.engine.start_call_with(set_each, name, each)
            self.engine.finish_call(None)
        except MultiverseError as error:
            self._raise(error)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env, even if some raise; then raise the last exception."""
        try:
            self.engine.close()
        except MultiverseError as error:
            self.closed = True
            self._raise(error)

    def _raise(self, error: MultiverseError) -> NoReturn:
        if isinstance(error, EnvFailed):
            self.engine.go_on_after_failures()
        super()._raise(error)


def _built_into(envs: list[Env[Any, Any]], env_fn: EnvFunction) -> Env[Any, Any]:
    env = env_fn()
    envs.append(env)
    return env


# -- AsyncVectorEnv --------------------------------------------------------------------------------------------
class AsyncVectorEnv(AsyncDropIn, GymnasiumDropIn, Generic[ObsType, ActType]):
    """`gymnasium.vector.AsyncVectorEnv`, with many envs per worker process and shared memory throughout.

    `reset` begins an episode in every env, or in those of `options["reset_mask"]`.

    Unlike the original it does not hang or return stale results. The answer of a `*_wait` that has timed out is dropped
    (until the next `reset` other calls raise an `AlreadyPendingCallError`); after an env has raised, `reset` restores
    all envs; a worker that dies raises `multiverse.errors.WorkerDied` at once.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFunction],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
    ) -> None:
        """Build the envs in worker processes: as many as `make_vec` would start, or `max_concurrency`.

        Args:
            env_fns: one function per env.
            shared_memory: False allows observation spaces that the original cannot share; memory is always shared.
            copy: False returns observations as views, overwritten by the next step.
            context: the start method, as in `multiprocessing`; None: the default of the program.
            daemon: has no effect; our workers always end with the program, and may have children.
            worker: refused: the envs run in our own worker loop.
            observation_mode: `"same"`, `"different"` (equal shapes and dtypes), or (batched space, single space).
            autoreset_mode: Gymnasium's mode, or its value.
            max_concurrency: number of envs that may run at the same time.
        """
        self.env_fns, self.shared_memory, self.copy = env_fns, shared_memory, copy
        self.context, self.daemon, self.worker, self.observation_mode = context, daemon, worker, observation_mode
        self.autoreset_mode, autoreset = checked_autoreset(autoreset_mode)
        self.max_concurrency = checked_concurrency(max_concurrency)
        refuse_worker(worker)
        check_observation_mode(observation_mode)
        with clear_mpi_env_vars():
            count = self.max_concurrency and min(self.max_concurrency, max(1, len(env_fns)))
            workers = replace(PARKED, count=count, start_method=start_method_of(context))
            engine = self._started(env_fns, IN_PROCESSES, autoreset, workers)
        engine.refuses_ended = False
        try:
            self._take_over(engine)
            if shared_memory:
                refuse_unshareable(self.single_observation_space)
        except BaseException:
            engine.close(timeout_s=0.0)
            raise
        self._state = AsyncState.DEFAULT

    def _what_differs(self, error: SpacesDiffer) -> str:
        if error.kind != "action_space":
            return f"{self._observation_spaces_differ(None)} ({error})"
        return (
            f"Some environments have an action space different from the first one's: {error}. "
            "In order to batch actions, the action spaces from all environments must be equal."
        )

    def _observation_spaces_differ(self, space: Space[Any] | None) -> str:
        if self.observation_mode == "same":
            return (
                "AsyncVectorEnv(..., observation_mode='same') however some of the sub-environments observation spaces "
                "are not equivalent. If this is intentional, use `observation_mode='different'` instead."
            )
        return (
            "AsyncVectorEnv(..., observation_mode='different' or custom space) however the sub-environment's "
            "observation spaces do not share a common shape and dtype."
        )

    @property
    def observations(self) -> Any:
        """The current batch."""
        return self.engine.observations()

    def step_wait(self, timeout: float | None = None) -> Step:
        """Return the results of `step_async`; raise `multiprocessing.TimeoutError` after `timeout` seconds."""
        batch = super().step_wait(timeout)
        return batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers after the pending request or after `timeout`; `terminate`: at once.

        The default timeout is a minute, or a few seconds if a `*_wait` has timed out before.
        """
        self._end(self.engine, timeout, terminate)

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and hasattr(self, "_state"):
            self.close(terminate=True)
