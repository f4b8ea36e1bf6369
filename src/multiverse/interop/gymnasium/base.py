"""What Gymnasium's two vector envs have in common, over our engine: their arguments, checked in the originals' words
before anything is started, how they start, and what they show."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import Env, Space
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces, create_shared_memory

from multiverse.core.errors import EnvFailed, SpacesDiffer
from multiverse.core.plan import Autoreset, ExecutorName, WorkerOptions
from multiverse.executors.worker_loop import alike
from multiverse.interop.drop_in import PARKED, DropIn, given_back, recipes_of, start
from multiverse.interop.engine import Engine
from multiverse.interop.env_side import AsGivenRecipe
from multiverse.vector.single import VectorEnv

EnvFunction = Callable[[], Env[Any, Any]]


class GymnasiumDropIn(DropIn, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector env of Gymnasium's."""

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
            raised = given_back(error)
            raise raised from (None if raised is error else error)
        return Engine(running)

    def _take_over(self, engine: Engine) -> None:
        """Show what the original shows of the envs that the engine runs."""
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
        """What the original says when the envs' spaces do not fit each other."""
        raise NotImplementedError

    def _observation_spaces_differ(self, space: Space[Any] | None) -> str:
        """What the original says when an env's observation space does not fit; the space, where it is known."""
        raise NotImplementedError

    np_random, np_random_seed = VectorEnv.np_random, VectorEnv.np_random_seed  # type: ignore[assignment]


# -- arguments -------------------------------------------------------------------------------------------------
def checked_autoreset(mode: str | AutoresetMode) -> tuple[AutoresetMode, Autoreset]:
    """Gymnasium's mode, and our name for it."""
    theirs = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    return theirs, cast(Autoreset, theirs.name.lower())


def check_observation_mode(mode: Any) -> None:
    """One of the two names, or a pair of spaces."""
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
    """At least one env at a time; None: no limit."""
    if limit is None:
        return None
    if not isinstance(limit, int | np.integer):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(limit)}.")
    if limit < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {limit}.")
    return int(limit)


_WORKER_ARGUMENTS = "index, env_fn, pipe, parent_pipe, shared_memory, error_queue, autoreset_mode, semaphore"


def refuse_worker(worker: Callable[..., None] | None) -> None:
    """The original's own complaint about a worker that it could not use either; then ours."""
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
    """Allocates nothing: only whether the original could is of interest."""

    @staticmethod
    def Array(*arguments: Any) -> None:  # noqa: N802 (multiprocessing's name)
        pass


def refuse_unshareable(space: Space[Any]) -> None:
    """With `shared_memory=True` the original takes no space of the user's own, and none of a dynamic shape."""
    try:
        create_shared_memory(space, n=1, ctx=_NoMemory)  # type: ignore[arg-type]
    except CustomSpaceError as error:
        raise ValueError(
            "Using `AsyncVector(..., shared_memory=True)` caused an error, you can disable this feature with "
            "`shared_memory=False` however this is slower."
        ) from error
