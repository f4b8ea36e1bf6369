"""Requests: what a caller asks, checked before anything is sent; and what is under way, hence may not be asked now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.core.errors import (
    ClosedError,
    InvalidRequest,
    MultiverseError,
    ReplyTimeout,
    RequestPending,
    WorkerDied,
)
from multiverse.core.layout import Array
from multiverse.core.reset_plan import ResetRequest, checked_task
from multiverse.core.seeds import is_list, seeds_for
from multiverse.executors.hosts import Host

_BOOLS = frozenset({bool, np.bool_})


def checked_ids(env_ids: Sequence[int] | None, num_envs: int) -> Array:
    """The envs a call is for; None means all."""
    if env_ids is None:
        return np.arange(num_envs)
    ids = _as_whole_numbers(env_ids)
    if ids is None:
        raise InvalidRequest(f"env_ids={env_ids!r}: expected a non-empty list of ints")
    if ids.min() < 0 or ids.max() >= num_envs:
        raise InvalidRequest(f"env_ids={env_ids!r}: there are envs 0 to {num_envs - 1}")
    if len(set(ids.tolist())) != len(ids):
        raise InvalidRequest(f"env_ids={env_ids!r}: each env at most once")
    return ids.astype(np.intp)


def envs_to_reset(options: Any, env_ids: Sequence[int] | None, num_envs: int) -> tuple[Array, Any]:
    """(the envs a reset is for, the options without Gymnasium's reset mask); the caller's dict stays as it is."""
    if isinstance(options, Mapping) and "reset_mask" in options:
        if env_ids is not None:
            raise InvalidRequest("both env_ids and options['reset_mask'] say which envs to reset: pass one")
        rest = {key: value for key, value in options.items() if key != "reset_mask"}
        return np.flatnonzero(_checked_mask(options["reset_mask"], num_envs)), rest
    return checked_ids(env_ids, num_envs), options


def reset_requests(
    ids: Array, seed: Any, options: Any, tasks: Any, num_envs: int, known_tasks: int | None = None
) -> dict[int, ResetRequest]:
    """What each env's reset gets, by env id. Where there are known tasks, `tasks` are their indices."""
    seeds = seeds_for(seed, ids.tolist(), num_envs)
    each_options = _options_per_env(options, ids)
    each_task = [None] * len(ids) if tasks is None else _one_per_env(tasks, ids, "tasks")
    if known_tasks is not None:
        each_task = [None if t is None else checked_task(t, known_tasks) for t in each_task]
    return {
        int(env_id): ResetRequest(s, dict(o) if o is not None else None, t)
        for env_id, s, o, t in zip(ids, seeds, each_options, each_task)
    }


def _checked_mask(mask: Any, num_envs: int) -> Array:
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return mask


def _as_whole_numbers(env_ids: Any) -> Array | None:
    """The ids as an array; None if they are none. numpy would take [0, True] for two numbers."""
    try:
        ids = np.asarray(env_ids)
    except ValueError:  # lists of different lengths inside
        return None
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        return None
    return ids if isinstance(env_ids, np.ndarray) or _BOOLS.isdisjoint(map(type, env_ids)) else None


def _options_per_env(options: Any, ids: Array) -> list[Any]:
    if options is None or isinstance(options, Mapping):
        return [options] * len(ids)
    given = _one_per_env(options, ids, "options")
    for i, one in enumerate(given):
        if one is not None and not isinstance(one, Mapping):
            raise InvalidRequest(
                f"options[{i}]={one!r}: expected a dict or None; pass one dict for all, or one per env"
            )
    return given


def _one_per_env(value: Any, ids: Array, name: str) -> list[Any]:
    if not is_list(value):
        raise InvalidRequest(
            f"{name}={value!r}: expected a list with one for each of the {len(ids)} envs that are reset"
        )
    given = list(value)
    if len(given) != len(ids):
        raise InvalidRequest(f"{len(given)} {name} for {len(ids)} envs: pass one per env that is reset")
    return given


class RequestState:
    """Idle, or: envs are under way, have failed and need a reset, a call was cut short, or all is lost."""

    def __init__(self) -> None:
        self.sent: dict[Host, Array] = {}  # env ids under way, by host
        self.must_reset: set[int] = set()  # envs that failed, or were lost, and cannot go on without a reset
        self.cut = False  # a call other than a step was cut short
        self.fatal: MultiverseError | None = None  # why nothing but close() can be done any more
        self.refusal: Callable[[], MultiverseError] | None = None  # why no step can be taken now

    # -- what happened ---------------------------------------------------------------------------------------
    def send(self, sent: dict[Host, Array]) -> None:
        self.sent.update(sent)
        self.refresh()

    def keep_only(self, pending: Sequence[Host]) -> None:
        """After Ctrl-C in a send: whoever was not asked is not under way."""
        self.sent = {host: ids for host, ids in self.sent.items() if host in pending}
        self.refresh()

    def settle(self, hosts: Sequence[Host]) -> None:
        self.sent = {host: ids for host, ids in self.sent.items() if host not in hosts}
        self.refresh()

    def refresh(self) -> None:
        """Derive the refusal from everything else: an interrupt between two changes leaves nothing inconsistent."""
        if self.fatal is not None:
            self.refusal = self._lost
        elif self.sent:
            self.refusal = self.pending_step
        elif self.cut:
            self.refusal = self._pending_call
        else:
            self.refusal = self.reset_required if self.must_reset else None

    def refuse_step(self) -> None:
        """Called when there seems to be a refusal: look again, then raise it."""
        self.refresh()
        if self.refusal is not None:
            raise self.refusal()

    def require_reset(self, env_ids: Iterable[int]) -> None:
        self.must_reset.update(env_ids)
        self.refresh()

    def cut_call(self) -> None:
        """A call was interrupted, or its deadline passed; its answer is still to come."""
        self.cut = True
        self.refresh()

    def reset_done(self, env_ids: Iterable[int], whole: bool) -> None:
        self.must_reset.difference_update(env_ids)
        self.cut = self.cut and not whole
        self.refresh()

    def give_up(self, error: BaseException) -> None:
        """A lost worker's envs cannot be brought back: only close() is left."""
        if isinstance(error, WorkerDied | ReplyTimeout):
            error = error.with_hint("close() this vector env and make a new one")
        elif not isinstance(error, MultiverseError):
            error = RequestPending("interrupted while a lost worker was being replaced: close() and make a new one")
        self.fatal = error  # guard: after-a-death-only-close
        self.refresh()

    def close(self) -> None:
        self.give_up(ClosedError("this vector env is closed"))

    # -- what may not be done ----------------------------------------------------------------------------------
    def refuse_unusable(self) -> None:
        if self.fatal is not None:
            raise self.fatal

    def refuse_busy(self, hosts: Iterable[Host], instead: str) -> None:
        busy = [host for host in hosts if host in self.sent or host.pending]
        if busy:
            raise RequestPending(f"{self.names(busy)} still under way: {instead}")

    def pending_step(self) -> MultiverseError:
        return RequestPending(
            f"{self.names(list(self.sent))} still under way: only receive(), reset() or close() may follow"
        )

    def reset_required(self) -> MultiverseError:
        failed = sorted(self.must_reset)
        return RequestPending(
            f"envs {failed} have failed, or were lost with their worker: reset(env_ids={failed}), reset() or close()"
        )

    def _lost(self) -> MultiverseError:
        assert self.fatal is not None
        return self.fatal

    def _pending_call(self) -> MultiverseError:
        return RequestPending("the last call was cut short and is still under way: reset() or close()")

    def names(self, hosts: Sequence[Host]) -> str:
        """'envs [2, 3] are', for a sentence."""
        ids = sorted(int(i) for host in hosts for i in self.sent.get(host, np.array(host.env_ids)))
        return f"env {ids[0]} is" if len(ids) == 1 else f"envs {ids} are"
