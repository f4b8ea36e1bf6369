"""Validation of requests before anything is sent, and the state that decides which requests are allowed now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.core.errors import (
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
    """Return the ids of the envs that a call is for; None means all."""
    if env_ids is None:
        return np.arange(num_envs)
    ids = _as_whole_numbers(env_ids)
    if ids is None:
        raise InvalidRequest(f"env_ids={env_ids!r}: expected a non-empty list of ints")
    if ids.min() < 0 or ids.max() >= num_envs:
        raise InvalidRequest(f"env_ids={env_ids!r}: expected ids from 0 to {num_envs - 1}")
    if len(set(ids.tolist())) != len(ids):
        raise InvalidRequest(f"env_ids={env_ids!r}: each id may appear only once")
    return ids.astype(np.intp)


def envs_to_reset(options: Any, env_ids: Sequence[int] | None, num_envs: int) -> tuple[Array, Any]:
    """Return the envs that a reset is for, and a copy of the options without Gymnasium's reset mask."""
    if isinstance(options, Mapping) and "reset_mask" in options:
        if env_ids is not None:
            raise InvalidRequest("env_ids and options['reset_mask'] cannot be used together: pass one of them")
        rest = {key: value for key, value in options.items() if key != "reset_mask"}
        return np.flatnonzero(_checked_mask(options["reset_mask"], num_envs)), rest
    return checked_ids(env_ids, num_envs), options


def reset_requests(
    ids: Array, seed: Any, options: Any, tasks: Any, num_envs: int, known_tasks: int | None = None
) -> dict[int, ResetRequest]:
    """Return the arguments of each env's reset, by env id. With `known_tasks`, `tasks` are indices of these."""
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
    """Return the ids as an array; None if they are not whole numbers. numpy would accept [0, True] as two numbers."""
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
    by_env = _one_per_env(options, ids, "options")
    for i, value in enumerate(by_env):
        if value is not None and not isinstance(value, Mapping):
            raise InvalidRequest(
                f"options[{i}]={value!r}: expected a dict or None; pass one dict for all envs, or one per env"
            )
    return by_env


def _one_per_env(value: Any, ids: Array, name: str) -> list[Any]:
    if not is_list(value):
        raise InvalidRequest(
            f"{name}={value!r}: expected a list with one entry for each of the {len(ids)} envs that are reset"
        )
    by_env = list(value)
    if len(by_env) != len(ids):
        raise InvalidRequest(f"{len(by_env)} {name} for {len(ids)} envs: pass one per env that is reset")
    return by_env


class RequestState:
    """Whether a vector env is idle, has pending steps, needs a reset, had a call cut short, or can only be closed."""

    def __init__(self) -> None:
        self.sent: dict[Host, Array] = {}  # ids of pending envs, by host
        self.must_reset: set[int] = set()  # envs that failed or were lost, and must be reset before their next step
        self.cut = False  # a call other than a step was cut short
        self.fatal: MultiverseError | None = None  # why only close() is possible
        self.refusal: Callable[[], MultiverseError] | None = None  # returns why no step is possible now

    # -- changes ---------------------------------------------------------------------------------------------
    def send(self, sent: dict[Host, Array]) -> None:
        self.sent.update(sent)
        self.refresh()

    def keep_only(self, pending: Sequence[Host]) -> None:
        """After Ctrl-C in a send: only hosts that got the request are pending."""
        self.sent = {host: ids for host, ids in self.sent.items() if host in pending}
        self.refresh()

    def settle(self, hosts: Sequence[Host]) -> None:
        self.sent = {host: ids for host, ids in self.sent.items() if host not in hosts}
        self.refresh()

    def refresh(self) -> None:
        """Derive the refusal from the other fields, so that an interrupt between two changes leaves them consistent."""
        if (fatal := self.fatal) is not None:
            self.refusal = lambda: fatal
        elif self.sent:
            self.refusal = self.pending_step
        elif self.cut:
            self.refusal = self._pending_call
        else:
            self.refusal = self.reset_required if self.must_reset else None

    def refuse_step(self) -> None:
        """Raise the refusal, if there is one after `refresh`."""
        self.refresh()
        if self.refusal is not None:
            raise self.refusal()

    def require_reset(self, env_ids: Iterable[int]) -> None:
        self.must_reset.update(env_ids)
        self.refresh()

    def cut_call(self) -> None:
        """Note that a call was interrupted or its deadline passed; its answer is still to come."""
        self.cut = True
        self.refresh()

    def reset_done(self, env_ids: Iterable[int], whole: bool) -> None:
        self.must_reset.difference_update(env_ids)
        self.cut = self.cut and not whole
        self.refresh()

    def give_up(self, error: BaseException) -> None:
        """Refuse everything but close() from now on: a lost worker's envs cannot be restored."""
        if isinstance(error, WorkerDied | ReplyTimeout):
            error = error.with_hint("close() this vector env and make a new one")
        elif not isinstance(error, MultiverseError):
            error = RequestPending("interrupted while a lost worker was being replaced: close() and make a new one")
        self.fatal = error  # guard: after-a-death-only-close
        self.refresh()

    # -- refusals ----------------------------------------------------------------------------------------------
    def refuse_unusable(self) -> None:
        if self.fatal is not None:
            raise self.fatal

    def refuse_busy(self, hosts: Iterable[Host], instead: str) -> None:
        busy = [host for host in hosts if host in self.sent or host.pending]
        if busy:
            raise RequestPending(f"{self.names(busy)} still pending: {instead}")

    def pending_step(self) -> MultiverseError:
        return RequestPending(f"{self.names(list(self.sent))} still pending: call receive(), reset() or close()")

    def reset_required(self) -> MultiverseError:
        failed = sorted(self.must_reset)
        return RequestPending(
            f"envs {failed} failed, or were lost with their worker: call reset(env_ids={failed}), reset() or close()"
        )

    def _pending_call(self) -> MultiverseError:
        return RequestPending("the last call was cut short and its answer is still pending: call reset() or close()")

    def names(self, hosts: Sequence[Host]) -> str:
        """Return 'envs [2, 3] are', the beginning of a message."""
        ids = sorted(int(i) for host in hosts for i in self.sent.get(host, np.array(host.env_ids)))
        return f"env {ids[0]} is" if len(ids) == 1 else f"envs {ids} are"
