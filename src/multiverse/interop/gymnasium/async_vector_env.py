"""`AsyncVectorEnv`: Gymnasium's own, by name, arguments, messages and states, over worker processes of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing import TimeoutError as MultiprocessingTimeoutError
from typing import Any, Generic, NoReturn

import numpy as np
from gymnasium import Env, Space, logger
from gymnasium.core import ActType, ObsType
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import clear_mpi_env_vars

from multiverse.contracts.errors import EnvFailed, MultiverseError, ReceiveTimeout, RequestPending, SpacesDiffer
from multiverse.contracts.plan import DEFAULT_TIMEOUTS, Autoreset
from multiverse.executors.machine import usable_cores
from multiverse.interop.drop_in import DropIn, report
from multiverse.interop.engine import Engine
from multiverse.interop.env_side import AsGivenRecipe, call_each_but_some, set_each
from multiverse.interop.gymnasium.arguments import (
    check_observation_mode,
    checked_autoreset,
    checked_concurrency,
    refuse_unshareable,
    refuse_worker,
)
from multiverse.interop.profile import CLOSE_S, given_back, start, start_method_of

Step = tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]


class AsyncVectorEnv(DropIn, Generic[ObsType, ActType]):
    """`gymnasium.vector.AsyncVectorEnv`, with many envs per worker process and shared memory throughout.

    Where the original goes stale or hangs, this does not: an answer that comes after its `*_wait` has timed out is
    given to nobody (until the next `reset` every other call says so, as an `AlreadyPendingCallError`); after an env has
    raised, `reset` brings everything back; a worker that dies is a `multiverse.WorkerDied` at once.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
    ) -> None:
        """Build the envs in worker processes: as many as there are usable cores, or `max_concurrency`.

        Args:
            env_fns: one function per env.
            shared_memory: False only allows observation spaces that the original cannot share; ours always uses it.
            copy: False returns observations as views, overwritten by the next step.
            context: the start method, as in `multiprocessing`; None is the program's own default.
            daemon: taken and kept; our workers always end with the program, and may have children.
            worker: refused: the envs run in our own worker loop.
            observation_mode: `"same"`, `"different"` (equal shapes and dtypes), or (batched space, single space).
            autoreset_mode: Gymnasium's mode, or its value.
            max_concurrency: how many envs may run at the same time.
        """
        self.env_fns, self.shared_memory, self.copy = env_fns, shared_memory, copy
        self.context, self.daemon, self.worker, self.observation_mode = context, daemon, worker, observation_mode
        self.autoreset_mode, autoreset = checked_autoreset(autoreset_mode)
        self.max_concurrency = checked_concurrency(max_concurrency)
        refuse_worker(worker)
        check_observation_mode(observation_mode)
        engine = self._started(autoreset)
        try:
            self._take_over(engine)
            if shared_memory:
                refuse_unshareable(self.single_observation_space)
        except BaseException:
            engine.close(timeout_s=0.0)
            raise
        self._timed_out = ""  # the call whose answer came too late, until the next reset
        self._state = AsyncState.DEFAULT

    def _started(self, autoreset: Autoreset) -> Engine:
        try:
            with clear_mpi_env_vars():
                engine = start(
                    self.env_fns,
                    "process",
                    autoreset,
                    kind=Engine,
                    copy=self.copy,
                    workers=min(self.max_concurrency or usable_cores(), max(1, len(self.env_fns))),
                    start_method=start_method_of(self.context),
                    recipe=AsGivenRecipe,
                    bounds_may_differ=self.observation_mode != "same",
                )
        except SpacesDiffer as error:
            raise RuntimeError(self._what_differs(error)) from error
        except EnvFailed as error:
            told = given_back(error)
            raise told from (None if told is error else error)
        engine.refuses_ended = False
        return engine

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

    # -- reset -------------------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, or in those of `options["reset_mask"]`."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; `reset_wait` has its results."""
        self._assert_is_running()
        seeds = self._seeds(seed)
        self._refuse_pending("reset_async", end="")
        self._ask(lambda: self.engine.start_reset(seeds, options), AsyncState.WAITING_RESET)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The results of `reset_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        self._expect(AsyncState.WAITING_RESET)
        result = self._answer(lambda: self.engine.finish_reset(timeout), "reset", timeout)
        self._timed_out = ""
        return result  # type: ignore[no-any-return]

    # -- step --------------------------------------------------------------------------------------------------
    def step(self, actions: Any) -> Step:
        """One step of every env."""
        if self.closed or self._state is not AsyncState.DEFAULT:
            self._assert_is_running()
            self._refuse_pending("step_async")
        try:
            return self.engine.step(actions)
        except MultiverseError as error:
            self._raise(error)
        except BaseException:
            if self.engine.step_under_way:  # Ctrl-C: what was asked for can still be waited for
                self._state = AsyncState.WAITING_STEP
            raise

    def step_async(self, actions: Any) -> None:
        """Start a step of every env; `step_wait` has its results."""
        self._assert_is_running()
        self._refuse_pending("step_async")
        self._ask(lambda: self.engine.send(actions), AsyncState.WAITING_STEP)

    def step_wait(self, timeout: float | None = None) -> Step:
        """The results of `step_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        self._expect(AsyncState.WAITING_STEP)
        batch = self._answer(lambda: self.engine.receive(timeout_s=timeout), "step", timeout)
        return batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos

    # -- calls -------------------------------------------------------------------------------------------------
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start such a call; `call_wait` has its results."""
        self._assert_is_running()
        self._refuse_pending("call_async")
        self._ask(lambda: self.engine.start_call(call_each_but_some, name, args, kwargs), AsyncState.WAITING_CALL)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of `call_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        self._expect(AsyncState.WAITING_CALL)
        return self._answer(lambda: self.engine.finish_call(timeout), "call", timeout)  # type: ignore[no-any-return]

    def render(self) -> tuple[Any, ...]:
        """A frame of each env."""
        return self.call("render")

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple gives each env its own value, anything else goes to all."""
        self._assert_is_running()
        each = self._one_per_env(values)
        self._refuse_pending("set_attr")
        self._ask(lambda: self.engine.start_call_with(set_each, name, each), AsyncState.WAITING_CALL)
        self.call_wait()

    # -- the end -----------------------------------------------------------------------------------------------
    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers, when what is under way is done or `timeout` has passed; `terminate`: at once.

        Without a timeout that is a minute, or a few seconds where some `*_wait` has timed out already.
        """
        if self._state is not AsyncState.DEFAULT:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
        self._state = AsyncState.DEFAULT
        patience_s = DEFAULT_TIMEOUTS.close_s if self._timed_out else CLOSE_S
        try:
            self.engine.close_when_done(0.0 if terminate else patience_s if timeout is None else timeout)
        except EnvFailed as error:  # an env's own `close`: everything has ended all the same
            report(error)

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and hasattr(self, "_state"):
            self.close(terminate=True)

    # -- states and errors -------------------------------------------------------------------------------------
    def _refuse_pending(self, asked: str, end: str = ".") -> None:
        if self._state is not AsyncState.DEFAULT:
            pending = str(self._state.value)
            raise AlreadyPendingCallError(
                f"Calling `{asked}` while waiting for a pending call to `{pending}` to complete{end}", pending
            )

    def _expect(self, state: AsyncState) -> None:
        self._assert_is_running()
        if self._state is not state:
            name = state.value
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)

    def _ask(self, ask: Callable[[], None], state: AsyncState) -> None:
        try:
            ask()
        except MultiverseError as error:
            self._raise(error)
        self._state = state

    def _answer(self, receive: Callable[[], Any], name: str, timeout: float | None) -> Any:
        """The results; whatever becomes of them, nothing is pending afterwards (but a step after Ctrl-C)."""
        try:
            result = receive()
        except ReceiveTimeout:
            self._timed_out, self._state = name, AsyncState.DEFAULT
            told = f"The call to `{name}_wait` has timed out after {timeout} second(s)."
            raise MultiprocessingTimeoutError(told) from None
        except MultiverseError as error:
            self._state = AsyncState.DEFAULT
            self._raise(error)
        except BaseException:
            if not self.engine.step_under_way:
                self._state = AsyncState.DEFAULT
            raise
        self._state = AsyncState.DEFAULT
        return result

    def _raise(self, error: MultiverseError) -> NoReturn:
        if isinstance(error, EnvFailed):
            report(error)
            logger.error("Raising the last exception back to the main process.")
        super()._raise(error)

    def _in_their_words(self, error: MultiverseError) -> Exception:
        if isinstance(error, RequestPending) and self._timed_out:
            return AlreadyPendingCallError(
                f"The last call to `{self._timed_out}_wait` has timed out and its answer goes to nobody: only `reset` "
                "or `close` may follow.",
                self._timed_out,
            )
        if isinstance(error, RequestPending) and self.engine.failed_env_ids:
            return RequestPending(f"envs {self.engine.failed_env_ids} have raised: only `reset` or `close` may follow")
        return super()._in_their_words(error)
