"""AgileRL's `AsyncPettingZooVecEnv` on our engine: only the import changes.

    from multiverse.interop.agilerl import AsyncPettingZooVecEnv

AgileRL need not be installed; if it is, isinstance checks against its classes hold. docs/drop_in_agilerl.md lists the
differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import psutil
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, clear_mpi_env_vars

from multiverse.adapters.agents import AgentOptions
from multiverse.core.errors import EnvFailed, NothingPending, RequestPending
from multiverse.core.infos import Infos
from multiverse.core.plan import IN_PROCESSES, StartMethod
from multiverse.interop.agilerl.engine import AgentsEngine, AgentsStep, AsyncState, Observations, VecEnvBase, add_info
from multiverse.interop.agilerl.env_side import AgileRecipe, OwnCopy
from multiverse.interop.drop_in import (
    PARKED,
    AsyncDropIn,
    not_requested,
    recipes_of,
    start,
    start_method_of,
    timed_out,
)

EnvFunctions = Sequence[Callable[[], Any]]
Spaces = dict[str, spaces.Space[Any]]


class ShutDown(RequestPending, AssertionError):
    """Envs have raised; the original ends their workers then, and refuses further requests by an assertion."""


class AsyncPettingZooVecEnv(AsyncDropIn, VecEnvBase):  # type: ignore[misc]
    """Parallel PettingZoo envs in worker processes, stepped in parallel; dicts agent → batch [num_envs, …].

    Every agent of `possible_agents` is in every batch. The observation, reward, terminated and truncated of an agent
    that an env does not return are NaN; an agent with a NaN action gets no action. An env whose agents have all ended
    is reset within the step, which then has the observations and infos of the reset.

    Args:
        env_fns: one function per env; closures and lambdas are fine, also `[lambda: env] * n`.
        copy: False always returns the same view of the observations, which shows the current ones.
        context: the start method, as in `multiprocessing`; None: the default of the program.
        workers: number of processes, each of which hosts many envs. Default: as in `make_vec`.
    """

    _states = AsyncState

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
        self._state = AsyncState.DEFAULT
        sources = _own_copies(env_fns)
        self._take_description_of(env_fns[0](), len(env_fns))
        if sources is None and method == "fork":  # each env in its own process has a copy of everything
            workers = self.num_envs
        self._engine: AgentsEngine | None = None
        self._unbuilt: EnvFailed | None = None  # the reason if there are no envs
        try:
            self._engine = self._started(sources or env_fns, method, workers)
        except EnvFailed as error:
            self._unbuilt = error  # raised by the first request
        self.processes = [] if self._engine is None else [EnvProcess(pid) for pid in self._engine.pid_of_each]
        self.parent_pipes = [None] * self.num_envs  # envs have no pipes of their own

    def _started(self, env_fns: EnvFunctions, method: StartMethod, workers: int | None) -> AgentsEngine:
        with clear_mpi_env_vars():
            running = start(
                recipes_of(env_fns, AgileRecipe, AgentOptions(possible_agents=self.possible_agents)),
                IN_PROCESSES,
                "same_step",
                workers=replace(PARKED, count=workers and min(workers, self.num_envs), start_method=method),
                copy=self.copy,
                bounds_may_differ=True,
            )
            return AgentsEngine(self._single_action_spaces, running)

    def _take_description_of(self, env: Any, num_envs: int) -> None:
        """Copy the attributes of an env that was built in the caller, and close it."""
        self.metadata = env.metadata if hasattr(env, "metadata") else env.unwrapped.metadata
        self.render_mode = (
            env.render_mode if hasattr(env, "render_mode") else getattr(env.unwrapped, "render_mode", None)
        )
        self.agents = self.possible_agents = list(env.possible_agents)
        self.num_envs, self.num_agents = num_envs, len(self.agents)
        self._single_observation_spaces: Spaces = {agent: env.observation_space(agent) for agent in self.agents}
        self._single_action_spaces: Spaces = {agent: env.action_space(agent) for agent in self.agents}
        env.close()
        self._observation_spaces: Spaces = _batched(self._single_observation_spaces, num_envs)
        self._action_spaces: Spaces = _batched(self._single_action_spaces, num_envs)

    @property
    def engine(self) -> AgentsEngine:
        """Our vector env: `engine.plan` has the executor, `engine.failures` the counts of failures."""
        if self._engine is None:
            assert self._unbuilt is not None
            self._raise(self._unbuilt)
        return self._engine

    # -- spaces and observations ----------------------------------------------------------------------------------
    def single_observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of an agent in one env."""
        return self._single_observation_spaces[agent]

    def single_action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of an agent in one env."""
        return self._single_action_spaces[agent]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of an agent in all envs."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of an agent in all envs."""
        return self._action_spaces[agent]

    @property
    def unwrapped(self) -> Self:
        """The env itself, since it has no wrappers."""
        return self

    @property
    def observations(self) -> Observations:
        """The current observations as a view, independent of `copy`."""
        return self.engine.current

    def get_observations(self) -> Any:
        """Return the current observations in the form of `reset` and `step`."""
        return self.engine.observations()

    def step(self, actions: Mapping[str, Any], *args: Any, **kwargs: Any) -> AgentsStep:
        """Step every env: agent → batch of actions, arrays, lists or tensors."""
        return super().step(actions)  # type: ignore[no-any-return]

    def step_async(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Start a step of every env, with a dict agent → action for each; `step_wait` has its results."""
        super().step_async(actions)

    # -- the end -----------------------------------------------------------------------------------------------
    def close(self, **kwargs: Any) -> None:
        """End the workers, as `close_extras` does. Closing again has no effect."""
        if not self.closed:
            self.close_extras(**kwargs)
            self.closed = True

    def close_extras(self, *, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """End the workers after the pending request or after `timeout`; `terminate`: at once.

        The default timeout is a minute, or a few seconds if a `*_wait` has timed out before.
        """
        self._end(self._engine, timeout, terminate)

    # -- errors of the original -----------------------------------------------------------------------------------
    def _seeds(self, seed: Any) -> list[int | None]:
        try:
            return super()._seeds(seed)
        except ValueError as error:
            raise AssertionError(*error.args) from None

    def _answer(self, receive: Callable[[], Any], name: str, timeout: float | None) -> Any:
        try:
            return super()._answer(receive, name, timeout)
        except NothingPending:  # the state was set from outside, without a request
            raise (not_requested(name) if timeout is None else timed_out(name, timeout)) from None

    def _reset_first(self, failed: list[int]) -> Exception:
        return ShutDown(
            "Cannot communicate with workers that were shut down after an error. (Here they are as they were: "
            f"envs {failed} have raised, and `reset` begins anew.)"
        )

    def _add_info(self, vector_infos: Infos, env_info: Infos, env_num: int) -> Infos:
        """Write one env's info into a batch of all; wrappers of AgileRL's envs call this."""
        return add_info(vector_infos, env_info, env_num, self.num_envs)


def _own_copies(env_fns: EnvFunctions) -> list[OwnCopy] | None:
    """Return copies of the functions that share nothing; None if they cannot be copied."""
    try:
        return [OwnCopy(env_fn) for env_fn in env_fns]
    except Exception:  # pickling may raise anything
        return None


def _batched(single: Spaces, num_envs: int) -> Spaces:
    return {agent: batch_space(space, num_envs) for agent, space in single.items()}


class EnvProcess(psutil.Process):
    """The process that runs an env, with methods of `multiprocessing.Process`; envs may share one."""

    def is_alive(self) -> bool:
        """Return whether it runs; a zombie does not."""
        try:
            return self.is_running() and self.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for at most `timeout` seconds."""
        try:
            self.wait(timeout)
        except psutil.TimeoutExpired:
            pass

    def __repr__(self) -> str:
        return f"<process {self.pid}, {'alive' if self.is_alive() else 'ended'}>"

    __str__ = __repr__
