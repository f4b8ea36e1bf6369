"""Every error multiverse raises, in one tree: who, what, the evidence, and the next move.

Errors cross process borders as text (`RemoteError`), never as exception objects: an exception that cannot be
pickled, or whose constructor takes other arguments than its message, would lose its cause on the way.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass


class MultiverseError(Exception):
    """The root: `except mv.MultiverseError` catches whatever multiverse itself has to say."""


class InvalidRequest(MultiverseError, ValueError):
    """The caller asked for something that cannot be done; nothing was sent, the object works on as before."""


class InvalidActions(InvalidRequest):
    """Actions of the wrong length, shape or kind; nothing was sent."""


class PreflightError(MultiverseError, RuntimeError):
    """This machine or this env cannot do what was asked; nothing was started."""


class SpacesDiffer(MultiverseError, RuntimeError):
    """The envs of one vector env must have equal spaces, and these do not."""


class RequestPending(MultiverseError, RuntimeError):
    """A request is still under way: only `receive`, `reset` or `close` may follow."""


class NothingPending(MultiverseError, RuntimeError):
    """`receive` was called with nothing sent."""


class ReceiveTimeout(MultiverseError, TimeoutError):
    """The envs did not answer in time. The request stays pending: `receive` again, `reset`, or `close`."""


class ReplyTimeout(MultiverseError, TimeoutError):
    """A worker has not answered for too long. Its reply is still waited for: `receive`, `reset`, or `close`."""

    def __init__(self, worker: int, env_ids: range, doing: str, waited_s: float, state: str, stack: str) -> None:
        self.worker, self.env_ids, self.stack = worker, env_ids, stack
        told = f"\n\nWhat it was doing:\n{stack}" if stack else ""
        super().__init__(
            f"worker {worker} (envs {describe_ids(env_ids)}) has not answered for {waited_s:g} s in {doing}; {state}. "
            f"Its reply can still be received: receive() again, or reset() or close(); longer waits: "
            f"reply_timeout_s= and reset_timeout_s= (None: for ever){told}"
        )


class ClosedError(MultiverseError, RuntimeError):
    """The vector env is closed."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception as text, as it crosses from where an env runs to the caller."""

    type_name: str
    message: str
    traceback: str
    env_id: int | None = None

    @classmethod
    def of(cls, error: BaseException, env_id: int | None = None) -> RemoteError:
        if isinstance(error, InEnv):
            return cls.of(error.cause, error.env_id)
        try:
            message = str(error)
        except Exception:  # an exception whose __str__ raises must not hide itself
            message = "<its message could not be shown>"
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(type(error).__qualname__, message, trace, env_id)

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class InEnv(Exception):
    """Inside a worker only: an error together with the env whose code raised it."""

    def __init__(self, env_id: int, cause: Exception) -> None:
        self.env_id, self.cause = env_id, cause


class EnvFailed(MultiverseError, RuntimeError):
    """Code of an env raised. `failures` holds every one of the batch, each with its remote traceback."""

    def __init__(self, what: str, worker: int | None, failures: Sequence[RemoteError], hint: str = "") -> None:
        self.worker = worker
        self.failures = tuple(failures)
        self.env_ids = tuple(f.env_id for f in failures if f.env_id is not None)
        self.hint = hint
        first = self.failures[0]
        place = f"worker {worker}" if worker is not None else "the calling process"
        where = f"env {first.env_id}" if first.env_id is not None else place
        more = f" (and {len(self.failures) - 1} more: envs {list(self.env_ids[1:])})" if len(self.failures) > 1 else ""
        tail = f"\n{hint}" if hint else ""
        super().__init__(f"{where} {what}: {first}{more}{tail}\n\nWhere it ran ({place}):\n{first.traceback}")


class WorkerDied(MultiverseError, RuntimeError):
    """A worker process ended without being asked to; its envs are lost with it."""

    def __init__(self, worker: int, env_ids: range, cause: str, hint: str = "") -> None:
        self.worker, self.env_ids, self.cause, self.hint = worker, env_ids, cause, hint
        tail = f"; {hint}" if hint else ""
        super().__init__(f"worker {worker} (envs {describe_ids(env_ids)}) {cause}{tail}")


def describe_ids(ids: range) -> str:
    """'24-31' for a range, '7' for one env."""
    return str(ids.start) if len(ids) == 1 else f"{ids.start}-{ids.stop - 1}"
