"""The facade: a `gymnasium.vector.VectorEnv` over any executor, plus send/receive, tasks and partial calls."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from multiverse.contracts.env import EnvDescription
from multiverse.contracts.errors import (
    ClosedError,
    EnvFailed,
    InvalidRequest,
    MultiverseError,
    NothingPending,
    ReceiveTimeout,
    RequestPending,
    WorkerDied,
)
from multiverse.contracts.infos import Infos, add_info
from multiverse.contracts.layout import (
    ACTIONS,
    ENDED,
    EPISODES,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    PRESENT,
    STEPPING,
    VALUES,
)
from multiverse.contracts.plan import Autoreset, Plan
from multiverse.contracts.reset_plan import ResetRequest
from multiverse.contracts.seeds import seeds_for
from multiverse.contracts.step_batch import StepBatch
from multiverse.contracts.views import Array
from multiverse.executors.env_range import EXTRAS, FINALS, WROTE_INFOS, EnvRange, Extras
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host
from multiverse.memory.info_columns import InfoReader
from multiverse.memory.space_rows import ActionWriter, BatchReader, row_reader

Step = tuple[Any, Array, Array, Array, Infos]


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many envs, one batch. Made by `multiverse.make_vec`.

    Everything Gymnasium's vector envs do, with the same results for the same seeds and actions; beyond it, any
    call can be limited to some envs (`env_ids=`), and `send`/`receive` let the caller go on with whichever envs
    are ready. `plan` says how it runs and why; `episode_returns` and `episode_lengths` are kept for every env.
    """

    def __init__(
        self, executor: Executor, description: EnvDescription, plan: Plan, autoreset: Autoreset, copy: bool, infos: bool
    ) -> None:
        views, (group,) = executor.views, description.groups
        self.num_envs = views.layout.num_envs
        self.plan, self.copy, self.spec = plan, copy, description.spec
        self.metadata = {**description.metadata, "autoreset_mode": AutoresetMode[autoreset.upper()]}
        self.render_mode = description.render_mode
        self.single_observation_space, self.single_action_space = group.observation_space, group.action_space
        self.observation_space = batch_space(group.observation_space, self.num_envs)
        self.action_space = batch_space(group.action_space, self.num_envs)

        self._executor, self._autoreset, self._with_infos = executor, autoreset, infos
        self._close_executor = weakref.finalize(self, Executor.close, executor)
        name = group.name
        self._actions = ActionWriter(group.action_space, views, (name, ACTIONS))
        self._batch_reader = BatchReader(group.observation_space, views, (name, OBSERVATIONS))
        self._rewards, self._lengths, self._returns = views[(name, VALUES)]
        self._terminated, self._truncated = views[(name, ENDED)]
        self._alive, self._acting = views[(name, PRESENT)]
        self._episodes, self._stepping = views[EPISODES], views[STEPPING]
        self._final_row = (
            row_reader(group.observation_space, views, (name, FINAL_OBSERVATIONS)) if autoreset == "same_step" else None
        )
        self._infos = InfoReader(views, [slice(h.env_ids.start, h.env_ids.stop) for h in executor.hosts])
        self._host_of = np.repeat(np.arange(len(executor.hosts)), [len(h.env_ids) for h in executor.hosts])
        self._sent: dict[Host, Array] = {}  # env ids under way, by host
        self._refusal: Callable[[], MultiverseError] | None = None  # why no step can be taken now
        self._fatal: MultiverseError | None = None  # why nothing but close() can be done any more

    # -- Gymnasium's calls -------------------------------------------------------------------------------------
    def step(self, actions: Any, env_ids: Sequence[int] | None = None) -> Step:
        """One step of every env, or of `env_ids` only (rows in their order)."""
        if self._refusal is not None:
            raise self._refusal()
        if env_ids is not None:
            return self._step_some(actions, env_ids)
        if self._autoreset == "disabled":
            self._refuse_ended(np.arange(self.num_envs))
        self._actions.write_all(actions)
        try:
            flags = self._executor.step_all()
        except BaseException as error:
            self._keep_pending(error)
            raise
        infos = self._collect_infos(self._executor.hosts, flags, None) if flags else {}
        return (
            self._batch_reader.all_rows(self.copy),
            self._rewards.copy(),
            self._terminated.copy(),
            self._truncated.copy(),
            infos,
        )

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
        env_ids: Sequence[int] | None = None,
        tasks: Sequence[Any] | None = None,
    ) -> tuple[Any, Infos]:
        """Begin episodes: in every env, in those of `options["reset_mask"]`, or in `env_ids` only.

        With `env_ids` the rows returned are theirs, in their order; otherwise the whole batch, as Gymnasium has it.
        `seed`, `options` and `tasks` may be lists with one entry for each env that is reset.
        """
        self._refuse_unusable()
        ids, options = self._envs_to_reset(options, env_ids)
        requests = self._reset_requests(ids, seed, options, tasks)
        self._make_way_for_reset(ids)
        infos = self._run_reset(ids, requests, rows=ids if env_ids is not None else np.arange(self.num_envs))
        if env_ids is None:
            return self._batch_reader.all_rows(self.copy), infos
        return self._batch_reader.rows(ids, self.copy), infos

    def render(self, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """A frame of each env, or of `env_ids` only."""
        return self._on_envs(env_ids, EnvRange.render)

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute), wherever it runs."""
        return self._on_envs(env_ids, EnvRange.call, name, args, kwargs)

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self._on_envs(env_ids, EnvRange.call, name, (), {})

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute: a list or tuple gives each env its own value, anything else goes to all."""
        self._refuse_unusable()
        ids = self._checked_ids(env_ids)
        given = list(values) if isinstance(values, list | tuple) else [values] * len(ids)
        if len(given) != len(ids):
            raise InvalidRequest(f"{len(given)} values for {len(ids)} envs: a list or tuple must have one per env")
        arguments = {}
        for host, where in self._by_host(ids).items():
            arguments[host] = (ids[where].tolist(), name, [given[i] for i in where])
        self._run(EnvRange.set_attr, arguments, self._executor.timeouts.reply_s)

    def close_extras(self, timeout_s: float | None = None, **kwargs: Any) -> None:
        """End every worker, within the time given; nothing is left running."""
        self._refusal = lambda: ClosedError("this vector env is closed")
        self.closed = True  # also if an env raises on its way out: there is nothing left to close then
        self._close_executor.detach()
        self._executor.close(timeout_s)

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each env's random generator."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Each env's seed."""
        return self.get_attr("np_random_seed")

    # -- first come, first served ------------------------------------------------------------------------------
    def send(self, actions: Any, env_ids: Sequence[int] | None = None) -> None:
        """Start a step of every env, or of `env_ids`; refused if one of their workers is still busy."""
        self._refuse_unusable()
        if self._refusal is not None and not self._sent:
            raise self._refusal()
        ids = self._checked_ids(env_ids)
        parts = self._by_host(ids)
        busy = [h for h in parts if h in self._sent or h.pending]
        if busy:
            raise RequestPending(f"{self._names(busy)} still under way: receive them before sending them more")
        if self._autoreset == "disabled":
            self._refuse_ended(ids)
        self._actions.write(actions, ids, len(ids))
        for host in parts:  # theirs alone: another worker may just be reading its own
            self._stepping[host.env_ids.start : host.env_ids.stop] = False
        self._stepping[ids] = True
        self._sent.update({host: np.sort(ids[where]) for host, where in parts.items()})
        self._refusal = self._pending_step
        self._executor.post_step({host: len(where) < len(host.env_ids) for host, where in parts.items()})

    def receive(self, min_envs: int | None = None, timeout_s: float | None = None) -> StepBatch:
        """The envs that are ready, at least `min_envs` of those sent (None: all), in ascending order.

        Envs that share a worker arrive together. After a timeout everything stays pending: receive again.
        """
        self._refuse_unusable()
        if not self._sent:
            raise self._refusal() if self._refusal else NothingPending("nothing was sent: call send() first")
        if min_envs is not None and min_envs < 1:
            raise InvalidRequest(f"min_envs={min_envs}: at least 1")
        sizes = {host: len(ids) for host, ids in self._sent.items()}
        total = sum(sizes.values())
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        done = self._guarded(lambda: self._executor.wait(sizes, min(min_envs or total, total), deadline))
        if not done:
            raise ReceiveTimeout(
                f"{self._names(list(self._sent))} did not answer within {timeout_s} s; still pending: receive() again, "
                "or reset() or close()"
            )
        ids = np.concatenate([self._sent.pop(h) for h in sorted(done, key=lambda h: h.env_ids.start)])
        infos = self._finish(done, ids)
        return self._batch(ids, infos)

    # -- what it knows -----------------------------------------------------------------------------------------
    @property
    def episode_returns(self) -> Array:
        """[num_envs] summed reward of each env's episode, up to and including its last step."""
        returns: Array = self._returns.copy()
        return returns

    @property
    def episode_lengths(self) -> Array:
        """[num_envs] steps of each env's episode, up to and including its last one."""
        lengths: Array = self._lengths.astype(np.int64)
        return lengths

    @property
    def episode_counts(self) -> Array:
        """[num_envs] index of each env's current episode; -1 before its first reset."""
        return self._episodes.copy()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes; empty where there are none."""
        return self._executor.worker_pids

    # -- inside: steps -----------------------------------------------------------------------------------------
    def _step_some(self, actions: Any, env_ids: Sequence[int]) -> Step:
        ids = self._checked_ids(env_ids)
        self.send(actions, env_ids)
        batch = self.receive()
        order = np.searchsorted(batch.env_ids, ids)
        if (order == np.arange(len(ids))).all():
            return batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos
        infos = batch.infos and _reordered(batch.infos, order)
        rewards, terminated, truncated = batch.rewards[order], batch.terminated[order], batch.truncated[order]
        return self._batch_reader.rows(ids, True), rewards, terminated, truncated, infos

    def _keep_pending(self, error: BaseException) -> None:
        """A whole step was cut short (Ctrl-C): what it asked for can still be received, and by nobody else."""
        if isinstance(error, WorkerDied):
            self._give_up(error)
        else:
            self._sent = {host: np.array(host.env_ids) for host in self._executor.hosts}
            self._refusal = self._pending_step

    def _finish(self, done: Sequence[Host], ids: Array) -> Infos:
        flags = 0
        for host in done:
            flags |= host.flags()
        infos = self._collect_infos(done, flags, ids) if flags else {}
        self._refusal = self._pending_step if self._sent else None
        return infos

    def _batch(self, ids: Array, infos: Infos) -> StepBatch:
        contiguous = len(ids) == ids[-1] - ids[0] + 1
        rows: slice | Array = slice(int(ids[0]), int(ids[-1]) + 1) if contiguous else ids
        return StepBatch(
            env_ids=ids,
            observations=self._batch_reader.rows(rows, self.copy),
            rewards=self._rewards[ids],
            terminated=self._terminated[ids],
            truncated=self._truncated[ids],
            alive=self._alive[ids],
            acting=self._acting[ids],
            episode_returns=self._returns[ids],
            episode_lengths=self._lengths[ids].astype(np.int64),
            infos=infos,
        )

    def _collect_infos(self, hosts: Sequence[Host], flags: int, ids: Array | None) -> Infos:
        """One step's infos of all envs (`ids` None) or of some; raises what envs raised."""
        left: dict[int, Infos] = {}
        final: dict[int, Infos] = {}
        if flags & EXTRAS:
            for host, extras in self._extras_of(hosts):
                self._infos.announce(self._executor.hosts.index(host), extras.columns)
                left.update(extras.infos)
                final.update(extras.final_infos)
        wrote = [h in hosts and bool(h.flags() & WROTE_INFOS) for h in self._executor.hosts]
        if ids is None:
            infos = self._infos.whole_batch(wrote, left)
        else:
            infos = self._infos.some_rows(ids, wrote, left)
        if flags & FINALS and self._final_row is not None:
            self._add_finals(infos, ids if ids is not None else np.arange(self.num_envs), final)
        return infos

    def _add_finals(self, infos: Infos, ids: Array, final_infos: dict[int, Infos]) -> None:
        """same_step: the last observation and info of the episodes that ended in this step."""
        assert self._final_row is not None
        for row in np.flatnonzero(self._terminated[ids] | self._truncated[ids]).tolist():
            env_id = int(ids[row])
            final: Infos = {"final_obs": self._final_row(env_id)}
            if self._with_infos:
                final["final_info"] = final_infos.get(env_id, {})
            add_info(infos, final, row, len(ids))

    def _extras_of(self, hosts: Sequence[Host]) -> list[tuple[Host, Extras]]:
        self._fatal = RequestPending("interrupted while results were being read: close() it and make a new one")
        try:
            extras = self._guarded(lambda: self._executor.extras_of(hosts))
        except EnvFailed as error:
            failed = list(error.env_ids)
            self._fatal = None
            self._refusal = lambda: RequestPending(f"envs {failed} failed in their last step: reset() or close()")
            raise
        self._fatal = None
        return extras  # type: ignore[no-any-return]

    # -- inside: resets ----------------------------------------------------------------------------------------
    def _envs_to_reset(self, options: Any, env_ids: Sequence[int] | None) -> tuple[Array, Any]:
        if isinstance(options, Mapping) and "reset_mask" in options:
            if env_ids is not None:
                raise InvalidRequest("both env_ids and options['reset_mask'] say which envs to reset: pass one")
            rest = {key: value for key, value in options.items() if key != "reset_mask"}
            return np.flatnonzero(self._checked_mask(options["reset_mask"])), rest
        return self._checked_ids(env_ids), options

    def _checked_mask(self, mask: Any) -> Array:
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"`options['reset_mask']` must have shape `({self.num_envs},)`, got {mask.shape}")
        if mask.dtype != np.bool_:
            raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
        if not mask.any():
            raise ValueError("`options['reset_mask']` must contain at least one True value")
        return mask

    def _reset_requests(self, ids: Array, seed: Any, options: Any, tasks: Any) -> dict[int, ResetRequest]:
        seeds = seeds_for(seed, ids.tolist(), self.num_envs)
        each_options = _one_per_env(options, ids, "options", Mapping)
        each_task = _one_per_env(tasks, ids, "tasks", type(None))
        return {
            int(env_id): ResetRequest(s, dict(o) if o is not None else None, t)
            for env_id, s, o, t in zip(ids, seeds, each_options, each_task)
        }

    def _make_way_for_reset(self, ids: Array) -> None:
        """A whole reset forgets what is under way; a partial one may not take other envs' steps with it."""
        parts = self._by_host(ids)
        busy = [h for h in parts if h.pending]
        if busy and len(ids) < self.num_envs:
            raise RequestPending(f"{self._names(busy)} still under way: receive them before resetting some of them")
        if len(ids) == self.num_envs:
            for host, extras in self._guarded(self._executor.discard_pending):
                self._infos.announce(self._executor.hosts.index(host), extras.columns)
            self._sent.clear()

    def _run_reset(self, ids: Array, requests: dict[int, ResetRequest], rows: Array) -> Infos:
        arguments = {
            host: ({int(i): requests[int(i)] for i in ids[where]},) for host, where in self._by_host(ids).items()
        }
        results = self._run(EnvRange.reset, arguments, self._executor.timeouts.reset_s)
        by_env: dict[int, Infos] = {}
        failures = []
        for host, (infos, extras) in results.items():
            by_env.update(infos)
            failures += extras.failures
            rows_of_host = slice(host.env_ids.start, host.env_ids.stop)
            for name, values in extras.objects.items():
                self._executor.views.objects[name][rows_of_host] = values
        if failures:
            raise EnvFailed("raised in reset", None, failures)
        self._refusal = self._pending_step if self._sent else None
        merged: Infos = {}
        for row, env_id in enumerate(rows.tolist()):
            if env_id in by_env:
                add_info(merged, by_env[env_id], row, len(rows))
        return merged

    # -- inside: who runs what ---------------------------------------------------------------------------------
    def _on_envs(self, env_ids: Sequence[int] | None, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        self._refuse_unusable()
        ids = self._checked_ids(env_ids)
        parts = self._by_host(ids)
        calls = {host: (ids[where].tolist(), *arguments) for host, where in parts.items()}
        results = self._run(function, calls, self._executor.timeouts.reply_s)
        found: list[Any] = [None] * len(ids)
        for host, where in parts.items():
            for position, value in zip(where, results[host]):
                found[position] = value
        return tuple(found)

    def _run(
        self, function: Callable[..., Any], arguments: Mapping[Host, tuple[Any, ...]], timeout_s: float | None
    ) -> dict[Host, Any]:
        busy = [h for h in arguments if h.pending]
        if busy:
            raise RequestPending(f"{self._names(busy)} still under way: receive them first")
        results: dict[Host, Any] = self._guarded(lambda: self._executor.run(function, arguments, timeout_s))
        return results

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except WorkerDied as error:
            self._give_up(error)
            raise
        except BaseException:
            if self._refusal is None and self._executor.pending:  # Ctrl-C while an answer was waited for
                self._refusal = self._pending_call
            raise

    def _by_host(self, ids: Array) -> dict[Host, Array]:
        """Positions in `ids`, by the host that runs those envs."""
        hosts = self._host_of[ids]
        return {self._executor.hosts[h]: np.flatnonzero(hosts == h) for h in np.unique(hosts).tolist()}

    def _checked_ids(self, env_ids: Sequence[int] | None) -> Array:
        if env_ids is None:
            return np.arange(self.num_envs)
        ids = np.asarray(env_ids)
        if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
            raise InvalidRequest(f"env_ids={env_ids!r}: expected a non-empty list of ints")
        if ids.min() < 0 or ids.max() >= self.num_envs:
            raise InvalidRequest(f"env_ids={env_ids!r}: there are envs 0 to {self.num_envs - 1}")
        if len(np.unique(ids)) != len(ids):
            raise InvalidRequest(f"env_ids={env_ids!r}: each env at most once")
        return ids.astype(np.intp)

    # -- inside: what may not be done now ----------------------------------------------------------------------
    def _refuse_unusable(self) -> None:
        if self.closed:
            raise ClosedError("this vector env is closed")
        if self._fatal is not None:
            raise self._fatal

    def _refuse_ended(self, ids: Array) -> None:
        """Without autoreset an episode that is over must be reset before its env's next step."""
        over = ids[self._terminated[ids] | self._truncated[ids]].tolist()
        if over:
            raise InvalidRequest(f"the episodes of envs {over} are over: reset(env_ids={over}) first")

    def _pending_step(self) -> MultiverseError:
        names = self._names(list(self._sent)) if self._sent else "a step is"
        return RequestPending(f"{names} still under way: only receive(), reset() or close() may follow")

    def _pending_call(self) -> MultiverseError:
        return RequestPending("the last call was interrupted and is still under way: reset() or close()")

    def _give_up(self, error: WorkerDied) -> None:
        """A lost worker's envs cannot be brought back: only close() is left."""
        self._fatal = WorkerDied(error.worker, error.env_ids, error.cause, "close() this vector env and make a new one")
        self._refusal = self._lost

    def _lost(self) -> MultiverseError:
        assert self._fatal is not None
        return self._fatal

    def _names(self, hosts: Sequence[Host]) -> str:
        ids = sorted(i for host in hosts for i in self._sent.get(host, np.array(host.env_ids)))
        return f"{'env' if len(ids) == 1 else 'envs'} {[int(i) for i in ids]} are"


def _one_per_env(value: Any, ids: Array, name: str, single: type) -> list[Any]:
    if value is None or isinstance(value, single):
        return [value] * len(ids)
    given = list(value)
    if len(given) != len(ids):
        raise InvalidRequest(f"{len(given)} {name} for {len(ids)} envs: pass one per env that is reset")
    return given


def _reordered(infos: Infos, order: Array) -> Infos:
    return {k: _reordered(v, order) if isinstance(v, dict) else v[order] for k, v in infos.items()}
