"""Vector envs for drop-ins: resets and calls in two halves, and actions passed on exactly as given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from multiverse.core.errors import EnvFailed, NothingPending, ReceiveTimeout, RemoteError, WorkerDied
from multiverse.core.infos import Infos
from multiverse.core.layout import ACTIONS, SINGLE_AGENT, Array
from multiverse.core.reset_plan import ResetRequest
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host
from multiverse.interop.env_side import give_actions
from multiverse.ipc.space_rows import ActionWriter
from multiverse.vector.base import BaseVectorEnv, Running
from multiverse.vector.host_calls import HostCalls, ResetArguments
from multiverse.vector.requests import envs_to_reset, reset_requests
from multiverse.vector.single import VectorEnv


class AsyncCalls(BaseVectorEnv):
    """Starts resets and calls now and finishes them later, within the deadline of the caller.

    A result that arrives after its deadline is lost: the next reset of all envs waits for it and drops it. Other
    requests are refused until then.
    """

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self._reset: tuple[Array, dict[int, ResetRequest], ResetArguments | None] | None = None
        self._call: tuple[Callable[..., Any], Mapping[Host, tuple[Any, ...]]] | None = None

    # -- resets ------------------------------------------------------------------------------------------------
    def start_reset(self, seed: Any, options: Any) -> None:
        """Check and start a reset; only check it while a late result is pending."""
        self._state.refuse_unusable()
        ids, options = envs_to_reset(options, None, self.num_envs)
        requests = reset_requests(ids, seed, options, None, self.num_envs)
        late = len(ids) == self.num_envs and not self._calls.wait(self._executor.pending, time.monotonic())
        self._reset = (ids, requests, None if late else self._ask_for_reset(ids, requests))

    def finish_reset(self, timeout_s: float | None) -> tuple[Any, Infos]:
        """Return its observations and infos; raise `ReceiveTimeout` after the timeout."""
        if self._reset is None:
            raise NothingPending("no reset is pending: call start_reset() first")
        (ids, requests, arguments), self._reset = self._reset, None
        deadline = _deadline(timeout_s)
        if arguments is None:
            self._wait(self._executor.pending, deadline)
            arguments = self._ask_for_reset(ids, requests)
        self._wait(arguments, deadline)
        infos = self._calls.finish_reset(ids, arguments, self._all_ids)
        return self.observations(), infos

    if TYPE_CHECKING:

        def observations(self) -> Any:
            """Return the current batch, as `step` returns it."""

    def _ask_for_reset(self, ids: Array, requests: dict[int, ResetRequest]) -> ResetArguments:
        self._calls.make_way_for_reset(ids)
        return self._calls.start_reset(ids, requests)

    # -- calls -------------------------------------------------------------------------------------------------
    def start_call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start function(env_range, *arguments) on every host."""
        self._start(dict.fromkeys(self._executor.hosts, arguments), function)

    def start_call_with(self, function: Callable[..., Any], name: str, values: list[Any]) -> None:
        """Start function(env_range, name, values of its envs) on every host."""
        self._start({h: (name, values[h.env_ids.start : h.env_ids.stop]) for h in self._executor.hosts}, function)

    def _start(self, arguments: Mapping[Host, tuple[Any, ...]], function: Callable[..., Any]) -> None:
        self._state.refuse_unusable()
        self._calls.start(function, arguments)
        self._call = (function, arguments)

    def finish_call(self, timeout_s: float | None) -> tuple[Any, ...]:
        """Return one result per env; raise all that envs raised."""
        if self._call is None:
            raise NothingPending("no call is pending: call start_call() first")
        (function, arguments), self._call = self._call, None
        self._wait(arguments, _deadline(timeout_s))
        results = self._calls.finish(function, arguments)
        outcomes = [outcome for host in arguments for outcome in results[host]]
        failures = [outcome for outcome in outcomes if isinstance(outcome, RemoteError)]
        if failures:
            raise EnvFailed("raised in a call", None, failures)
        return tuple(outcomes)

    def _wait(self, hosts: Any, deadline: float | None) -> None:
        if not self._calls.wait(hosts, deadline):
            self._state.cut_call()
            raise ReceiveTimeout("not all envs have answered in time, and their results are lost: reset all envs")

    # -- closing and state -------------------------------------------------------------------------------------
    def close_when_done(self, timeout_s: float) -> None:
        """Wait for pending requests, then close: both within this time, or by force."""
        deadline = time.monotonic() + timeout_s
        try:
            self._calls.wait(self._executor.pending, deadline)
        except WorkerDied:  # it is closed anyway
            pass
        self.close(timeout_s=max(0.0, deadline - time.monotonic()))

    def go_on_after_failures(self) -> None:
        """Allow envs that raised to be stepped without a reset."""
        self._state.must_reset.clear()
        self._state.refresh()

    @property
    def step_under_way(self) -> bool:
        """Whether a step was started and not yet received."""
        return bool(self._state.sent)

    @property
    def failed_env_ids(self) -> list[int]:
        """Ids of envs that raised and have not been reset since."""
        return sorted(self._state.must_reset)

    @property
    def pid_of_each(self) -> list[int]:
        """Pid of the process of each env."""
        return [pid for host in self._executor.workers if (pid := host.life.pid) is not None for _ in host.env_ids]


class Engine(AsyncCalls, VectorEnv):
    """Single-agent envs for drop-ins. The envs get actions exactly as they were given."""

    refuses_ended = True
    """Whether, without autoreset, steps of an env whose episode is over are refused."""

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self._actions = ActionsAsGiven(self.single_action_space, self.action_space, self._executor, self._calls)

    def _refuse_ended(self, ids: Array) -> None:
        if self.refuses_ended:
            over = self._terminated | self._truncated
            assert not over[ids].any(), f"the episodes of these envs are over, reset them first: {over}"


class ByPipe:
    """Sends envs the actions of their next step by pipe, if the block cannot hold them exactly."""

    def __init__(self, executor: Executor, calls: HostCalls) -> None:
        self._run, self._failures = calls.run, executor.failures
        self._hosts = calls.by_host(np.arange(executor.views.layout.num_envs))
        self._steps_before = -1  # steps sent when actions were last given

    @property
    def unused(self) -> bool:
        """Whether actions were sent for a step that has not begun (after Ctrl-C), which new ones must replace."""
        return self._steps_before == self._failures.steps_sent

    def give(self, each: Sequence[Any]) -> None:
        """Send one action to each env."""
        self._steps_before = self._failures.steps_sent
        self._run(give_actions, {host: ([each[i] for i in where],) for host, where in self._hosts.items()})


class ActionsAsGiven(ActionWriter):
    """Writes a batch into the block if that holds it exactly; otherwise sends each env its part by pipe."""

    def __init__(
        self, space: spaces.Space[Any], batch_space: spaces.Space[Any], executor: Executor, calls: HostCalls
    ) -> None:
        super().__init__(space, executor.views, (SINGLE_AGENT, ACTIONS))
        self._batch_space, self._by_pipe = batch_space, ByPipe(executor, calls)
        self._targets = [self._views.arrays.get((*self._name, *leaf.path)) for leaf in self._leaves]

    def write_all(self, actions: Any) -> None:
        if self._by_pipe.unused or not self._written(actions):
            self._by_pipe.give(self._each(actions))

    def _each(self, actions: Any) -> list[Any]:
        """Return the action of each env in a batch."""
        each = list(iterate(self._batch_space, actions))
        if len(each) != self._rows:
            raise ValueError(f"{len(each)} actions for {self._rows} envs")
        return each

    def _written(self, actions: Any) -> bool:
        """Write the batch into the block, if each of its arrays holds its part exactly; return whether it does."""
        try:
            parts = [self._part(actions, leaf.path) for leaf in self._leaves]
        except ValueError:  # a part is missing: iterating over the batch gives the better error
            return False
        for target, part in zip(self._targets, parts):
            if target is None or type(part) is not np.ndarray:
                return False
            if part.dtype != target.dtype or part.shape != target.shape:
                return False
        for target, part in zip(self._targets, parts):
            cast(Array, target)[...] = part
        return True

    def write(self, actions: Any, rows: slice | Array, count: int) -> None:
        """A drop-in always steps all envs."""
        self.write_all(actions)


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
