"""AgileRL's `AsyncPettingZooVecEnv`, with our engine underneath: change the import, keep the rest.

    from multiverse.interop.agilerl import AsyncPettingZooVecEnv

AgileRL need not be installed; where it is, isinstance checks against its classes hold. docs/drop_in_agilerl.md says
what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from gymnasium import logger
from gymnasium.vector.utils import clear_mpi_env_vars

from multiverse.adapters.agents import AgentOptions
from multiverse.contracts.errors import EnvFailed, MultiverseError
from multiverse.contracts.infos import Infos
from multiverse.contracts.plan import DEFAULT_TIMEOUTS, StartMethod
from multiverse.executors.machine import usable_cores
from multiverse.interop.agilerl.described import Described
from multiverse.interop.agilerl.engine import AgentsEngine, AgentsStep, LiveRows
from multiverse.interop.agilerl.env_side import AgileRecipe, OfItsOwn
from multiverse.interop.agilerl.infos import add_info
from multiverse.interop.agilerl.peer import AsyncState, ObservationsBase, VecEnvBase
from multiverse.interop.agilerl.processes import EnvProcess
from multiverse.interop.agilerl.states import States
from multiverse.interop.drop_in import report
from multiverse.interop.env_side import call_each_but_some, set_each
from multiverse.interop.profile import CLOSE_S, start, start_method_of

EnvFunctions = Sequence[Callable[[], Any]]


class Observations(LiveRows, ObservationsBase):  # type: ignore[misc]
    """agent → batch, always of the present: what `copy=False` returns."""


class _Engine(AgentsEngine):
    live = Observations


class AsyncPettingZooVecEnv(States, Described, VecEnvBase):  # type: ignore[misc]
    """Parallel PettingZoo envs in worker processes, stepped side by side; dicts agent → batch [num_envs, …].

    Every agent of `possible_agents` is in every batch. Of one that an env said nothing about, the observation, reward,
    terminated and truncated are NaN; a NaN among the actions means that the agent is given none. An env whose agents
    have all ended is reset within the step, whose observations and infos are then the reset's.

    Args:
        env_fns: one function per env; closures and lambdas are fine, also `[lambda: env] * n`.
        copy: False returns one and the same view of the observations, which always shows the present.
        context: the start method, as in `multiprocessing`; None is the program's own default.
        workers: processes; each hosts many envs. Default: the usable cores; `len(env_fns)` gives every env its own.
    """

    def __init__(
        self,
        env_fns: EnvFunctions,
        copy: bool = True,
        context: Literal["spawn", "fork", "forkserver"] | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        method = start_method_of(context)
        self.env_fns, self.copy, self.closed = env_fns, copy, False
        self.active_agents = self.previous_active = None
        self._state, self._timed_out = AsyncState.DEFAULT, ""
        sources = _each_its_own(env_fns)
        self._look_at(env_fns[0](), len(env_fns))
        if sources is None and method == "fork":  # a process of its own has a copy of everything
            workers = self.num_envs
        self._engine: _Engine | None = None
        self._unbuilt: EnvFailed | None = None
        try:
            self._engine = self._started(sources or env_fns, method, workers or usable_cores())
        except EnvFailed as error:
            self._unbuilt = error  # the first that asks for anything is told
        self.processes = [] if self._engine is None else [EnvProcess(pid) for pid in self._engine.pid_of_each]
        self.parent_pipes = [None] * self.num_envs  # no env has one: they are reached through the engine

    def _started(self, env_fns: EnvFunctions, method: StartMethod, workers: int) -> _Engine:
        with clear_mpi_env_vars():
            engine = start(
                env_fns,
                "process",
                "same_step",
                kind=_Engine,
                copy=self.copy,
                workers=min(workers, self.num_envs),
                start_method=method,
                recipe=AgileRecipe,
                agents=AgentOptions(possible_agents=self.possible_agents),
                bounds_may_differ=True,
            )
        engine.present(self._single_action_spaces)
        return engine

    @property
    def unwrapped(self) -> Self:
        """Itself: there is no wrapper around it."""
        return self

    @property
    def observations(self) -> LiveRows:
        """The present observations, whatever `copy` says."""
        return self.engine.seen

    def get_observations(self) -> Any:
        """The same as `reset` and `step` return them."""
        return self.engine.observations()

    # -- reset -------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Begin an episode in every env; an int gives env i the seed plus i, a list gives each its own."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; `reset_wait` has its results."""
        self._assert_is_running()
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + i for i in range(self.num_envs)]
        seeds: Sequence[int | None] = [None] * self.num_envs if seed is None else seed
        assert len(seeds) == self.num_envs, (
            f"If seeds are passed as a list the length must match num_envs={self.num_envs} but got length={len(seeds)}."
        )
        self._refuse_pending("reset_async", end="")
        each = [options] * self.num_envs
        self._ask(lambda engine: engine.start_reset(seeds, each), AsyncState.WAITING_RESET)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Infos]:
        """The results of `reset_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        self._expect("reset")
        result = self._answer(lambda engine: engine.finish_reset(timeout), "reset", timeout)
        self._timed_out = ""
        return result  # type: ignore[no-any-return]

    # -- step --------------------------------------------------------------------------------------------------
    def step(self, actions: Mapping[str, Any], *args: Any, **kwargs: Any) -> AgentsStep:
        """One step of every env: agent → batch of actions, arrays, lists or tensors."""
        self._assert_is_running()
        self._refuse_pending("step_async")
        try:
            return self.engine.step(actions)  # type: ignore[no-any-return]
        except MultiverseError as error:
            self._raise(error)
        except BaseException:
            if self.engine.step_under_way:  # Ctrl-C: what was asked for can still be waited for
                self._state = AsyncState.WAITING_STEP
            raise

    def step_async(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Start a step of every env, with a dict agent → action for each; `step_wait` has its results."""
        self._assert_is_running()
        self._refuse_pending("step_async")
        self._ask(lambda engine: engine.send(actions), AsyncState.WAITING_STEP)

    def step_wait(self, timeout: float | None = None) -> AgentsStep:
        """The results of `step_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        self._expect("step")
        return self._answer(lambda e: e.receive(timeout_s=timeout), "step", timeout)  # type: ignore[no-any-return]

    # -- calls -------------------------------------------------------------------------------------------------
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Start such a call; `call_wait` has its results."""
        self._assert_is_running()
        self._refuse_pending("call_async")
        self._ask(lambda e: e.start_call(call_each_but_some, name, args, kwargs), AsyncState.WAITING_CALL)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of `call_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        self._expect("call")
        return self._answer(lambda e: e.finish_call(timeout), "call", timeout)  # type: ignore[no-any-return]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple gives each env its own value, anything else goes to all."""
        self._assert_is_running()
        each = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(each)}` values for {self.num_envs} environments."
            )
        self._refuse_pending("set_attr")
        self._ask(lambda engine: engine.start_call_with(set_each, name, each), AsyncState.WAITING_CALL)
        self.call_wait()

    def render(self) -> tuple[Any, ...]:
        """A frame of each env."""
        return self.call("render")

    # -- the end -----------------------------------------------------------------------------------------------
    def close(self, **kwargs: Any) -> None:
        """End the workers, as `close_extras` does; twice without harm."""
        if not self.closed:
            self.close_extras(**kwargs)
            self.closed = True

    def close_extras(self, *, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """End the workers, when what is under way is done or `timeout` has passed; `terminate`: at once.

        Without a timeout that is a minute, or a few seconds where some `*_wait` has timed out already.
        """
        if self._state.value != AsyncState.DEFAULT.value:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
        self._state = AsyncState.DEFAULT
        patience_s = DEFAULT_TIMEOUTS.close_s if self._timed_out else CLOSE_S
        if self._engine is None:
            return
        try:
            self._engine.close_when_done(0.0 if terminate else patience_s if timeout is None else timeout)
        except EnvFailed as error:  # an env's own `close`: everything has ended all the same
            report(error)

    def _add_info(self, vector_infos: Infos, env_info: Infos, env_num: int) -> Infos:
        """One env's info put into a batch of all; wrappers of AgileRL's envs call it."""
        return add_info(vector_infos, env_info, env_num, self.num_envs)


def _each_its_own(env_fns: EnvFunctions) -> list[OfItsOwn] | None:
    """The functions, so that they share nothing; None if they cannot be copied."""
    try:
        return [OfItsOwn(env_fn) for env_fn in env_fns]
    except Exception:  # whatever pickling raises
        return None
