"""What is under way in a vector env, and what may therefore not be done now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from multiverse.contracts.errors import ClosedError, MultiverseError, ReplyTimeout, RequestPending, WorkerDied
from multiverse.contracts.views import Array
from multiverse.executors.hosts import Host


class RequestState:
    """Idle, or: envs are under way, have failed and need a reset, a call was cut short, or all is lost."""

    def __init__(self) -> None:
        self.sent: dict[Host, Array] = {}  # env ids under way, by host
        self.must_reset: set[int] = set()  # envs that failed and cannot go on without a reset
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
        return RequestPending(f"envs {failed} have failed: reset(env_ids={failed}), reset() or close()")

    def _lost(self) -> MultiverseError:
        assert self.fatal is not None
        return self.fatal

    def _pending_call(self) -> MultiverseError:
        return RequestPending("the last call was cut short and is still under way: reset() or close()")

    def names(self, hosts: Sequence[Host]) -> str:
        """'envs [2, 3] are', for a sentence."""
        ids = sorted(int(i) for host in hosts for i in self.sent.get(host, np.array(host.env_ids)))
        return f"env {ids[0]} is" if len(ids) == 1 else f"envs {ids} are"
