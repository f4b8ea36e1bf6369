"""`AsyncVectorEnv`: Gymnasium's own, by name, arguments, messages and states, over worker processes of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic

from gymnasium import Space
from gymnasium.core import ActType, ObsType
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import clear_mpi_env_vars

from multiverse.core.errors import SpacesDiffer
from multiverse.core.plan import IN_PROCESSES
from multiverse.interop.async_drop_in import AsyncDropIn
from multiverse.interop.drop_in import PARKED, start_method_of
from multiverse.interop.gymnasium.base import (
    EnvFunction,
    GymnasiumDropIn,
    check_observation_mode,
    checked_autoreset,
    checked_concurrency,
    refuse_unshareable,
    refuse_worker,
)
from multiverse.vector.single import Step


class AsyncVectorEnv(AsyncDropIn, GymnasiumDropIn, Generic[ObsType, ActType]):
    """`gymnasium.vector.AsyncVectorEnv`, with many envs per worker process and shared memory throughout.

    `reset` begins an episode in every env, or in those of `options["reset_mask"]`.
    Where the original goes stale or hangs, this does not: an answer that comes after its `*_wait` has timed out is
    given to nobody (until the next `reset` every other call says so, as an `AlreadyPendingCallError`); after an env has
    raised, `reset` brings everything back; a worker that dies is a `multiverse.errors.WorkerDied` at once.
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
        """Build the envs in worker processes: as many as `make_vec` would take, or `max_concurrency`.

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
        """The results of `step_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        batch = super().step_wait(timeout)
        return batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers, when what is under way is done or `timeout` has passed; `terminate`: at once.

        Without a timeout that is a minute, or a few seconds where some `*_wait` has timed out already.
        """
        self._end(self.engine, timeout, terminate)

    def __del__(self) -> None:
        if not getattr(self, "closed", True) and hasattr(self, "_state"):
            self.close(terminate=True)
