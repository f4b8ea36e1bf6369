"""Every error multiverse raises, in one tree: who, what, the evidence, and the next move.

Errors cross process borders as text (`RemoteError`), never as exception objects: an exception that cannot be
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

_LIBRARIES = ("<", sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
"""How the files of Python and of ourselves begin."""
_INSTALLED = r"[/\\](site|dist)-packages[/\\]"


class MultiverseError(Exception):
    """The root: `except mv.MultiverseError` catches whatever multiverse itself has to say."""

    def __reduce__(self) -> Any:
        """It travels as what it is, not by calling its constructor with its message."""
        return _rebuilt, (type(self), self.args, self.__dict__)

    @property
    def headline(self) -> str:
        """What happened, in one line."""
        return str(self).partition("\n")[0]

    def with_hint(self, hint: str) -> MultiverseError:
        """The same, with another next move."""
        return _rebuilt(type(self), (f"{self}; {hint}",), self.__dict__)


def _rebuilt(kind: type[MultiverseError], arguments: tuple[Any, ...], state: dict[str, Any]) -> MultiverseError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error


class InvalidRequest(MultiverseError, ValueError):
    """The caller asked for something that cannot be done; nothing was sent, the object works on as before."""


class InvalidActions(InvalidRequest):
    """Actions of the wrong length, shape or kind; nothing was sent."""


class PreflightError(MultiverseError, RuntimeError):
    """This machine or this env cannot do what was asked; nothing was started."""


class SpacesDiffer(MultiverseError, RuntimeError):
    """The envs of one vector env must have equal spaces, and these do not."""

    def __init__(self, message: str, kind: str = "") -> None:
        self.kind = kind  # "observation_space" or "action_space"
        super().__init__(message)


class RequestPending(MultiverseError, RuntimeError):
    """A request is still under way: only `receive`, `reset` or `close` may follow."""


class NothingPending(MultiverseError, RuntimeError):
    """`receive` was called with nothing sent."""


class ReceiveTimeout(MultiverseError, TimeoutError):
    """The envs did not answer in time. The request stays pending: `receive` again, `reset`, or `close`."""


class ReplyTimeout(MultiverseError, TimeoutError):
    """A worker has not answered for too long. Its reply is still waited for: `receive`, `reset`, or `close`."""

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
        longer = "longer waits: Timeouts(reply_s=…, reset_s=…), None for no limit"
        move = "reset() or close() is what can be done now"
        if command == "start":
            move = "Building envs gets the time of a reset"
        elif command in ("step", "reset"):
            move = "Its reply can still be received: receive() again, or reset() or close()"
        self.hint = f"{move}; {longer}"
        self.hint_outside = longer  # for callers that do not hold the vector env
        held = f", holding {in_bytes(rss_bytes)}" if rss_bytes is not None else ""
        self._headline = f"worker {worker} (envs {describe_ids(env_ids)}) {self.cause}{held}"
        super().__init__(self._text())

    def _text(self) -> str:
        return f"{self._headline}. {self.hint}" + (f"\n\nWhat it was doing:\n{self.stack}" if self.stack else "")

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
    """An observation or reward that no learner can use: NaN, infinite, of a wrong shape or kind.

    Raised where the env runs; the caller sees it as an `EnvFailed`, with everything that reproduces it.
    """


class RunNotSaved(MultiverseError, RuntimeError):
    """The last checkpoint of a run could not be written. `latest`: the one before, if there is one."""

    def __init__(self, path: Any, reason: str, latest: Any = None) -> None:
        failed = f"the last checkpoint of {path} could not be saved ({reason})"
        if latest is not None:
            left = f"its earlier ones are whole. Make room, then `multiverse resume {path}` goes on from there"
        elif Path(path).is_dir():
            left = f"there is no earlier one. Make room, then `multiverse resume {path}` begins it anew"
        else:
            left = "its directory is gone, and all of the run with it. Train it again where nobody removes it"
        super().__init__(f"{failed}: {left}")


class EvaluationFailed(MultiverseError, RuntimeError):
    """No episode of an evaluation came to its end."""


class RunNotWritable(MultiverseError, OSError):
    """A file of a run's directory could not be written."""

    def __init__(self, path: Any, reason: str) -> None:
        super().__init__(
            f"{path} cannot be written to ({reason}): make room or ask for the right to write there, or go on with a "
            "copy of it elsewhere"
        )


class TrainingDiverged(MultiverseError, RuntimeError):
    """Losses, gradients or weights are not finite; the checkpoints are those of the last good step."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What reproduces a failure: the episode it happened in, and the step of it."""

    episode: int | None = None  # index of the episode, from 0
    seed: int | None = None  # the last one the env was reset with
    episodes_since_seed: int = 0  # 0: the seed is this episode's own
    task: Any = None
    step: int | None = None  # from 1; None in a reset
    action: Any = None

    def __str__(self) -> str:
        said = []
        if self.episode is not None:
            said.append(f"step {self.step} of episode {self.episode}" if self.step else f"episode {self.episode}")
            since = f", {counted(self.episodes_since_seed, 'episode')} before" if self.episodes_since_seed else ""
            said.append("never seeded" if self.seed is None else f"seed {self.seed}{since}")
        if self.task is not None:
            said.append(f"task {in_words(self.task)}")
        if self.step:
            said.append(f"action {in_words(self.action)}")
        return ", ".join(said)


_UNKNOWN = Circumstances()
MOST_SHOWN = 10
"""Failures of a batch that an error shows in its text; it holds all of them."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception as text, as it crosses from where an env runs to the caller, with what reproduces it."""

    type_name: str
    message: str
    traceback: str
    env_id: int | None = None
    circumstances: Circumstances = _UNKNOWN
    module: str = ""  # that the exception's class is of
    given_up: str = ""  # why its env was not replaced once more

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
        """The same with nothing in it that could fail to travel."""
        given = self.circumstances
        return self.under(replace(given, task=in_words(given.task), action=in_words(given.action)))

    @classmethod
    def of(cls, error: BaseException, env_id: int | None = None) -> RemoteError:
        if isinstance(error, InEnv):
            return cls.of(error.cause, error.env_id)
        try:
            message = str(error)
        except Exception:  # an exception whose __str__ raises must not hide itself
            message = "<its message could not be shown>"
        trace = ""  # one that was never raised has no place to show
        if error.__traceback__ is not None:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        # guard: exceptions-cross-as-text
        return cls(type(error).__qualname__, message, trace, env_id, module=type(error).__module__)

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name

    def place(self) -> str:
        """In brackets, for a sentence: the last line of its traceback that is the user's, or else the last of all."""
        frames = re.findall(r'File "(.+)", line (\d+)', self.traceback)
        own = [one for one in frames if not (one[0].startswith(_LIBRARIES) or re.search(_INSTALLED, one[0]))]
        return "".join(f" ({file}, line {line})" for file, line in (own or frames)[-1:])

    def when(self) -> str:
        """In brackets, for a sentence."""
        return f" ({self.circumstances})" if str(self.circumstances) else ""

    def where_and_what(self) -> str:
        return f"env {self.env_id}{self.when()}: {self}"


class InEnv(Exception):
    """Inside a worker only: an error together with the env whose code raised it."""

    def __init__(self, env_id: int, cause: Exception) -> None:
        self.env_id, self.cause = env_id, cause


class InvalidConfig(InvalidRequest):
    """A config that cannot be used: where (file, line, field), what is wrong with it, and what would be right."""

    def __init__(self, where: str, wrong: str, hint: str = "") -> None:
        self.where, self.wrong, self.hint = where, wrong, hint
        super().__init__(f"{where}: {wrong}" + (f". {hint}" if hint else ""))


class UntrustedRun(InvalidRequest):
    """A run or config that somebody else may have made names code or a Ray cluster; nothing was imported or joined."""

    def __init__(self, path: Path | str, call: str, why: str = "") -> None:
        self.path, self.call = path, call
        unknown = f" ({why})" if why else ""
        super().__init__(
            f"{path} was not written by this user on this machine{unknown}, and this would {call}: look at that "
            "first; if you trust it, pass --trust (in Python: trust=True)"
        )


class CheckpointBroken(MultiverseError, RuntimeError):
    """A checkpoint that is not what was written, or none of ours. Nothing of it was used."""

    def __init__(self, path: Path, wrong: str, hint: str = "") -> None:
        self.path, self.wrong, self.hint = path, wrong, hint
        super().__init__(f"checkpoint {path} cannot be used: {wrong}." + (f" {hint}." if hint else ""))


class RunLocked(MultiverseError, RuntimeError):
    """Another process is writing to this run directory."""

    def __init__(self, path: Path, holder: str, pid: int | None = None) -> None:
        self.path, self.holder, self.pid = path, holder, pid
        super().__init__(f"{path} is in use by {holder}; wait until it ends, or choose another directory")


class EnvFailed(MultiverseError, RuntimeError):
    """Code of an env raised. `failures` holds every one of the batch, each with its remote traceback."""

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
    """A worker process ended without being asked to; its envs are lost with it."""

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
        self.command = command  # what it was asked last
        self.rss_bytes = rss_bytes  # the most memory it ever held
        held = f", having held up to {in_bytes(rss_bytes)}" if rss_bytes is not None else ""
        tail = f"; {hint}" if hint else ""
        super().__init__(f"worker {worker} (envs {describe_ids(env_ids)}) {cause}{held}{tail}")

    def with_hint(self, hint: str) -> WorkerDied:
        return type(self)(self.worker, self.env_ids, self.cause, hint, self.command, self.rss_bytes)


class ClusterGone(WorkerDied):
    """The Ray cluster is gone, and all workers with it: there is nowhere to start them again."""


# -- in words --------------------------------------------------------------------------------------------------
def describe_ids(ids: range) -> str:
    """'24-31' for a range, '7' for one env."""
    return str(ids.start) if len(ids) == 1 else f"{ids.start}-{ids.stop - 1}"


def in_bytes(count: int) -> str:
    """'3.9 GiB'."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"


def in_words(value: Any) -> str:
    """A value in one short line; one whose repr fails is still a value."""
    try:
        scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
        text = (str if scalar else repr)(value)
    except Exception:
        text = f"<a {type(value).__name__} that cannot be shown>"
    return _in_short(text)


ROUNDING_ERROR = 1e-9


def in_digits(value: float) -> str:
    """A return: '493.1', '2,792.8', and '0.004' where one decimal would be nothing. Rounding errors around 0 are 0."""
    if abs(value) < ROUNDING_ERROR:
        return "0.0"
    if not abs(value) < 0.95:
        return f"{value:,.1f}"
    return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.1e}"


def counted(number: int, what: str) -> str:
    """'1 episode', '2,048 episodes'."""
    return f"{number:,} {what}{'s' * (number != 1 and what != 'info')}"


def in_a_line(error: BaseException) -> str:
    """An error that is not ours, for a sentence: "KeyError: 'session'"."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return _in_short(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _in_short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:117] + "..."
