"""All errors that multiverse raises, in one tree. Each states which component failed, what happened and what to do.

Errors cross process boundaries as text (`RemoteError`), never as exception objects: an exception that cannot be
pickled, or whose constructor takes other arguments than its message, would lose its cause on the way.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multiverse.core.wording import describe_ids, format_bytes, pluralize, short_repr

_LIBRARIES = ("<", sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
"""Path prefixes of Python's own files and of ours."""
_INSTALLED = r"[/\\](site|dist)-packages[/\\]"


class MultiverseError(Exception):
    """Base class: `except mv.MultiverseError` catches every error that multiverse itself raises."""

    def __reduce__(self) -> Any:
        """Restore the attributes instead of calling the constructor with the message."""
        return _rebuilt, (type(self), self.args, self.__dict__)

    @property
    def headline(self) -> str:
        """First line of the message."""
        return str(self).partition("\n")[0]

    def with_hint(self, hint: str) -> MultiverseError:
        """A copy of the error with another hint."""
        return _rebuilt(type(self), (f"{self}; {hint}",), self.__dict__)


def _rebuilt(kind: type[MultiverseError], arguments: tuple[Any, ...], state: dict[str, Any]) -> MultiverseError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error


class InvalidRequest(MultiverseError, ValueError):
    """The request is invalid. Nothing was sent, and the object remains usable."""


class InvalidActions(InvalidRequest):
    """Actions of the wrong length, shape or kind; nothing was sent."""


class PreflightError(MultiverseError, RuntimeError):
    """This machine or this env does not support what was requested; nothing was started."""


class SpacesDiffer(MultiverseError, RuntimeError):
    """The envs of a vector env have different spaces; they must be equal."""

    def __init__(self, message: str, kind: str = "") -> None:
        self.kind = kind  # "observation_space" or "action_space"
        super().__init__(message)


class RequestPending(MultiverseError, RuntimeError):
    """A request is still pending: only `receive`, `reset` or `close` may follow."""


class NothingPending(MultiverseError, RuntimeError):
    """`receive` was called although no request is pending."""


class ReceiveTimeout(MultiverseError, TimeoutError):
    """The envs did not answer in time. The request stays pending: `receive` again, `reset`, or `close`."""


class ReplyTimeout(MultiverseError, TimeoutError):
    """A worker did not answer within its time limit. Its reply stays pending: `receive`, `reset`, or `close`."""

    def __init__(
        self,
        worker: int,
        env_ids: range,
        command: str,
        waited_s: float,
        state: str,
        stack: str,
        rss_bytes: int | None = None,
    ) -> None:
        self.worker, self.env_ids, self.command = worker, env_ids, command
        self.waited_s, self.stack, self.rss_bytes = waited_s, stack, rss_bytes
        self.cause = f"has not answered for {waited_s:g} s in {command}; {state}"
        limits = "Timeouts(reply_s=…, reset_s=…) sets the limits; None means no limit"
        action = "Call reset() or close()"
        if command == "start":
            action = "reset_s also limits how long building the envs may take"
        elif command in ("step", "reset"):
            action = "Its reply can still be received: call receive() again, or reset() or close()"
        self.hint = f"{action}; {limits}"
        self.hint_outside = limits  # for callers that do not hold the vector env
        held = f", holding {format_bytes(rss_bytes)}" if rss_bytes is not None else ""
        self._headline = f"worker {worker} (envs {describe_ids(env_ids)}) {self.cause}{held}"
        super().__init__(self._text())

    def _text(self) -> str:
        return f"{self._headline}. {self.hint}" + (f"\n\nStack of the worker:\n{self.stack}" if self.stack else "")

    @property
    def headline(self) -> str:
        return self._headline

    def with_hint(self, hint: str) -> ReplyTimeout:
        error = copy(self)
        error.hint = error.hint_outside = hint
        error.args = (error._text(),)
        return error


class ClosedError(MultiverseError, RuntimeError):
    """The vector env is closed."""


class BadValue(MultiverseError, ValueError):
    """An observation or reward that no learner can use: NaN, infinite, or of a wrong shape or kind.

    Raised where the env runs; the caller gets an `EnvFailed` with everything that is needed to reproduce it.
    """


class RunNotSaved(MultiverseError, RuntimeError):
    """The last checkpoint of a run could not be written. `latest`: the checkpoint before it, if there is one."""

    def __init__(self, path: Any, reason: str, latest: Any = None) -> None:
        failed = f"the last checkpoint of {path} could not be saved ({reason})"
        if latest is not None:
            left = f"the earlier checkpoints are intact. Free disk space, then continue with `multiverse resume {path}`"
        elif Path(path).is_dir():
            left = f"there is no earlier one. Free disk space, then `multiverse resume {path}` starts the run again"
        else:
            left = "its directory was removed, and the run is lost. Train again in a directory that is kept"
        super().__init__(f"{failed}: {left}")


class EvaluationFailed(MultiverseError, RuntimeError):
    """No episode of an evaluation was completed."""


class RunNotWritable(MultiverseError, OSError):
    """A file of a run's directory could not be written."""

    def __init__(self, path: Any, reason: str) -> None:
        super().__init__(
            f"{path} cannot be written to ({reason}): free disk space, get permission to write there, or continue with "
            "a copy in another place"
        )


class TrainingDiverged(MultiverseError, RuntimeError):
    """Losses, gradients or weights are not finite; the checkpoints are from the last good step."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is needed to reproduce a failure: its episode, and the step in that episode."""

    episode: int | None = None  # index of the episode, from 0
    seed: int | None = None  # the last seed that the env was reset with
    episodes_since_seed: int = 0  # 0: the seed was given to this episode
    task: Any = None
    step: int | None = None  # from 1; None in a reset
    action: Any = None

    def __str__(self) -> str:
        parts = []
        if self.episode is not None:
            parts.append(f"step {self.step} of episode {self.episode}" if self.step else f"episode {self.episode}")
            since = f", {pluralize(self.episodes_since_seed, 'episode')} before" if self.episodes_since_seed else ""
            parts.append("never seeded" if self.seed is None else f"seed {self.seed}{since}")
        if self.task is not None:
            parts.append(f"task {short_repr(self.task)}")
        if self.step:
            parts.append(f"action {short_repr(self.action)}")
        return ", ".join(parts)


_UNKNOWN = Circumstances()
MOST_SHOWN = 10
"""Maximum number of failures of a batch in an error's text; the error object holds all of them."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception as text, as it is sent from where an env runs to the caller, with what reproduces it."""

    type_name: str
    message: str
    traceback: str
    env_id: int | None = None
    circumstances: Circumstances = _UNKNOWN
    module: str = ""  # of the exception's class
    given_up: str = ""  # why its env was not replaced again

    @property
    def seed(self) -> int | None:
        return self.circumstances.seed

    @property
    def task(self) -> Any:
        return self.circumstances.task

    @property
    def action(self) -> Any:
        return self.circumstances.action

    @property
    def episode(self) -> int | None:
        return self.circumstances.episode

    @property
    def step(self) -> int | None:
        return self.circumstances.step

    def under(self, circumstances: Circumstances) -> RemoteError:
        return replace(self, circumstances=circumstances)

    def because_of(self, given_up: str) -> RemoteError:
        return replace(self, given_up=given_up)

    def in_text(self) -> RemoteError:
        """A copy without values that may be impossible to pickle."""
        now = self.circumstances
        return self.under(replace(now, task=short_repr(now.task), action=short_repr(now.action)))

    @classmethod
    def of(cls, error: BaseException, env_id: int | None = None) -> RemoteError:
        if isinstance(error, InEnv):
            return cls.of(error.cause, error.env_id)
        try:
            message = str(error)
        except Exception:  # an exception whose __str__ raises must not hide itself
            message = "<its message could not be shown>"
        trace = ""  # an exception that was never raised has no traceback
        if error.__traceback__ is not None:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        # guard: exceptions-cross-as-text
        return cls(type(error).__qualname__, message, trace, env_id, module=type(error).__module__)

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name

    def place(self) -> str:
        """Place of the error, in brackets: the last traceback line in the user's code, or else the last line."""
        frames = re.findall(r'File "(.+)", line (\d+)', self.traceback)
        own = [frame for frame in frames if not (frame[0].startswith(_LIBRARIES) or re.search(_INSTALLED, frame[0]))]
        return "".join(f" ({file}, line {line})" for file, line in (own or frames)[-1:])

    def when(self) -> str:
        """The circumstances, in brackets."""
        return f" ({self.circumstances})" if str(self.circumstances) else ""

    def where_and_what(self) -> str:
        return f"env {self.env_id}{self.when()}: {self}"


class InEnv(Exception):
    """Used inside workers only: an error, with the env whose code raised it."""

    def __init__(self, env_id: int, cause: Exception) -> None:
        self.env_id, self.cause = env_id, cause


class InvalidConfig(InvalidRequest):
    """A config that cannot be used. States where (file, line, field), what is wrong, and what would be valid."""

    def __init__(self, where: str, wrong: str, hint: str = "") -> None:
        self.where, self.wrong, self.hint = where, wrong, hint
        super().__init__(f"{where}: {wrong}" + (f". {hint}" if hint else ""))


class UntrustedRun(InvalidRequest):
    """A run or config that another user may have made names code or a Ray cluster. Nothing was imported or joined."""

    def __init__(self, path: Path | str, call: str, why: str = "") -> None:
        self.path, self.call = path, call
        unknown = f" ({why})" if why else ""
        super().__init__(
            f"{path} was not written by this user on this machine{unknown}, and this would {call}. Check that first; "
            "to allow it, pass --trust (in Python: trust=True)"
        )


class CheckpointBroken(MultiverseError, RuntimeError):
    """A checkpoint is damaged, or was not written by multiverse. None of it was used."""

    def __init__(self, path: Path, wrong: str, hint: str = "") -> None:
        self.path, self.wrong, self.hint = path, wrong, hint
        super().__init__(f"checkpoint {path} cannot be used: {wrong}." + (f" {hint}." if hint else ""))


class RunLocked(MultiverseError, RuntimeError):
    """Another process is writing to this run directory."""

    def __init__(self, path: Path, holder: str, pid: int | None = None) -> None:
        self.path, self.holder, self.pid = path, holder, pid
        super().__init__(f"{path} is in use by {holder}; wait until it ends, or choose another directory")


class EnvFailed(MultiverseError, RuntimeError):
    """Code of an env raised. `failures` holds all failures of the batch, each with its remote traceback."""

    def __init__(self, what: str, worker: int | None, failures: Sequence[RemoteError], hint: str = "") -> None:
        self.worker, self._what = worker, what
        self.failures = tuple(failures)
        self.env_ids = tuple(f.env_id for f in failures if f.env_id is not None)
        self.hint = hint = hint or next((f.given_up for f in failures if f.given_up), "")
        first = self.failures[0]
        place = f"worker {worker}" if worker is not None else "the calling process"
        where = f"env {first.env_id}" if first.env_id is not None else place
        when = first.when()
        more = f" (and {len(self.failures) - 1} more: envs {list(self.env_ids[1:])})" if len(self.failures) > 1 else ""
        more += "".join(f"\n  {failure.where_and_what()}" for failure in self.failures[1:MOST_SHOWN])
        tail = f"\n{hint}" if hint else ""
        ran = f"\n\nWhere it ran ({place}):\n{first.traceback}" if first.traceback else ""
        super().__init__(f"{where} {what}{when}: {first}{more}{tail}{ran}")

    def with_hint(self, hint: str) -> EnvFailed:
        return EnvFailed(self._what, self.worker, self.failures, hint)


class WorkerDied(MultiverseError, RuntimeError):
    """A worker process ended unexpectedly; its envs are lost."""

    def __init__(
        self,
        worker: int,
        env_ids: range,
        cause: str,
        hint: str = "",
        command: str = "",
        rss_bytes: int | None = None,
    ) -> None:
        self.worker, self.env_ids, self.cause, self.hint = worker, env_ids, cause, hint
        self.command = command  # the last request
        self.rss_bytes = rss_bytes  # peak memory
        held = f", having held up to {format_bytes(rss_bytes)}" if rss_bytes is not None else ""
        tail = f"; {hint}" if hint else ""
        super().__init__(f"worker {worker} (envs {describe_ids(env_ids)}) {cause}{held}{tail}")

    def with_hint(self, hint: str) -> WorkerDied:
        return type(self)(self.worker, self.env_ids, self.cause, hint, self.command, self.rss_bytes)


class ClusterGone(WorkerDied):
    """The Ray cluster has ended with all its workers, so they cannot be restarted."""
