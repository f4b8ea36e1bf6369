"""Worker hosts: workers as the caller sees them, with their requests, their answers and how they end.

Every request has a number, higher than all before it. A host is *asked* for a number, has *answered* it when its
work is done, and the answer is *collected* when its caller has it. A request that is asked but not collected is
pending. No other state of requests is kept, so that an interrupt at any point leaves a state from which the rest
follows.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from multiverse.core.errors import EnvFailed, InvalidRequest, RemoteError, ReplyTimeout, WorkerDied
from multiverse.core.failures import Work
from multiverse.core.layout import (
    ACTIONS,
    COMPLETED_EPISODES,
    COUNTS,
    EARLIER_STEPS,
    EPISODE_LENGTH,
    VALUES,
    Views,
)
from multiverse.core.wording import describe_ids
from multiverse.executors.launch.black_box import parse_stack
from multiverse.executors.step_reply import EXTRAS, FAILED, Extras
from multiverse.executors.worker_loop import CLOSE, ROWS, RUN, STEP, STEP_SOME, WITH_OBJECTS, Described
from multiverse.ipc.env_rows import object_rows, put_object_rows
from multiverse.ipc.interrupts import HeldInterrupts, stop_waiting
from multiverse.ipc.link import LAST_WORD, Link, LinkBroken, Unreadable
from multiverse.ipc.mailbox import CallerMailbox

log = logging.getLogger("multiverse")

LOOK_EVERY_S = 0.1

RunFunction = Callable[..., Any]
"""function(env_range, *arguments): run where the envs are."""


class HostBase(ABC):
    """State of the last request to a host."""

    def __init__(self, env_ids: range) -> None:
        self.env_ids = env_ids
        self.asked = self.collected = 0
        self.asked_at = 0.0  # by `time.monotonic`, for a step that is received
        self._extras: tuple[int, Extras] = (0, Extras())

    @property
    def pending(self) -> bool:
        return self.asked != self.collected

    def extras(self) -> Extras:
        """The extras of a step; read once, and kept for further calls."""
        if self._extras[0] != self.asked:
            with HeldInterrupts():  # read and kept, or neither
                self._extras = (self.asked, self._read_extras())
        return self._extras[1]

    @abstractmethod
    def _read_extras(self) -> Extras: ...


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended."""

    cause: str
    hint: str = ""
    peak_rss_bytes: int | None = None
    error: type[WorkerDied] = WorkerDied  # to raise
    out_of_memory: bool = False  # it has ended itself, and its link may name the env that was the cause


@dataclass(frozen=True, slots=True)
class State:
    """State of a worker that does not answer, with its Python stack if that is available."""

    text: str
    stack: str = ""
    rss_bytes: int | None = None


class Life(Protocol):
    """The thread or process that runs a worker."""

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable at its end."""

    @property
    def pid(self) -> int | None:
        """Pid of the worker's process, if it has its own."""

    def death(self) -> Death: ...

    def state(self) -> State: ...

    def end(self, deadline: float) -> bool:
        """Wait for its end until the deadline, then force it; False if that is impossible and it is still running."""


class WorkerHost(HostBase):
    """A worker: commands go through its mailbox, objects through its link."""

    def __init__(self, worker: int, env_ids: range, link: Link, life: Life) -> None:
        super().__init__(env_ids)
        self.worker, self.link, self.life = worker, link, life
        self._command = 0
        self._function = "start"
        self._closing, self._ended = 0, False
        self.patience_s: float | None = None  # time limit of a message that follows its word by pipe
        self.unreachable = False
        self.retired = ""  # why the caller has ended it
        self.mailbox: CallerMailbox

    def bind(self, mailbox: CallerMailbox, views: Views) -> None:
        self.mailbox = mailbox
        self.answered, self.flags = mailbox.answered, mailbox.flags
        self._views = views
        self._action_objects = [name for name in views.objects if name[1] == ACTIONS]
        with_objects = WITH_OBJECTS if self._action_objects else 0
        self._step_command, self._step_some_command = STEP | with_objects, STEP_SOME | with_objects

    # -- asking ----------------------------------------------------------------------------------------------
    def post_step(self, number: int, only_some: bool) -> None:
        self._command = command = self._step_some_command if only_some else self._step_command
        if self._action_objects:
            objects = object_rows(self._views, self._action_objects, self.env_ids)
            self._post_packed(command, number, self.link.pack(objects))
            return
        self.asked = number
        self.mailbox.post(command, number)

    def prepare(self, function: RunFunction, arguments: tuple[Any, ...]) -> Any:
        """A call as it is sent; `InvalidRequest`, before anything is sent, if it cannot be."""
        try:
            return self.link.pack((function, arguments))
        except Exception as error:
            raise InvalidRequest(
                f"this cannot be sent to a worker process: {type(error).__name__}: {error}; pass objects that can be "
                "pickled"
            ) from error

    def post_run(self, number: int, function: RunFunction, prepared: Any) -> None:
        self._command, self._function = RUN, getattr(function, "__name__", "run")
        self._post_packed(RUN, number, prepared)

    def post_rows(self, number: int, prepared: Any, row: int) -> None:
        """Ask for a function that takes many steps, from this row on."""
        self._command, self._function, self.asked_at = ROWS, "a rollout", time.monotonic()
        self.mailbox.begin_rows(row)
        self._post_packed(ROWS, number, prepared)

    @property
    def heard_at(self) -> float:
        """When the request was posted or, for many steps, when the worker began its current one."""
        return max(self.asked_at, self.mailbox.row_at) if self._command == ROWS else self.asked_at

    def _post_packed(self, command: int, number: int, packed: Any) -> None:
        """Post the word first: the waiting worker then reads the pipe, whatever the size of the message."""
        with HeldInterrupts():
            self.asked = number
            self.mailbox.post(command, number)
            try:
                self.link.send_packed(packed, number)
            except LinkBroken:
                self.unreachable = True  # reported to the call that waits for the answer

    def post_again(self) -> None:
        """Repeat the post of a step after an interrupt; this has no effect if it was complete."""
        if not self._action_objects:
            self.mailbox.post(self._command, self.asked)

    # -- the answer ------------------------------------------------------------------------------------------
    def _read_extras(self) -> Extras:
        try:
            extras: Extras = self._receive(self.asked)
        except Unreadable as error:
            return Extras(failures=[RemoteError.of(error)])
        put_object_rows(self._views, extras.objects, self.env_ids)
        return extras

    def finish_run(self) -> Any:
        failed = self.flags() & FAILED
        with HeldInterrupts():
            if self._command == ROWS and not self.flags():
                self.collected = self.asked
                return Extras()
            try:
                result = self._receive(self.asked)
            except Unreadable as error:
                failed, result = FAILED, RemoteError.of(error)
            self.collected = self.asked
        if failed:
            raise EnvFailed(f"raised in {self._function}", self.worker, [result])
        return result

    def discard(self) -> Extras:
        """Discard a late reply; returns its extras, because announcements for later steps remain valid. Its message is
        read, because the worker cannot continue until a large message was received."""
        stepped = self.was_stepping and self.flags() & EXTRAS
        extras = self.extras() if stepped else Extras()
        failed = self._command == ROWS and self.flags() & FAILED
        if self._command == RUN or (failed and not stepped):  # guard: what-nobody-asks-for-is-read
            with HeldInterrupts(), suppress(Unreadable):
                self._receive(self.asked)
        self.collected = self.asked
        return extras

    def _receive(self, number: int) -> Any:
        """The message of request `number`; messages of earlier, interrupted requests are dropped."""
        while True:
            self._wait_for_message()
            try:
                message_number, message = self.link.receive()
            except LinkBroken as error:
                raise self.died() from error
            except Unreadable as error:
                if error.number == number:
                    raise
                continue
            if message_number == number:  # guard: messages-have-numbers
                return message

    def _wait_for_message(self) -> None:
        """Wait for an announced message, which comes at once unless the worker was stopped at that moment."""
        began_at, patience_s = time.monotonic(), math.inf if self.patience_s is None else self.patience_s
        while not self.link.poll(min(LOOK_EVERY_S, patience_s)):
            stop_waiting()
            if time.monotonic() > began_at + patience_s:
                raise self.hung(patience_s)  # guard: a-message-has-a-deadline

    def described(self, on_error: str, hint_for: Callable[[RemoteError], str] = lambda _: "") -> Described:
        """The worker's description of its envs, before any request. `on_error`, `hint_for`: text and hint for an error
        of the worker."""
        message = self._receive(0)
        if isinstance(message, RemoteError):
            raise EnvFailed(on_error, self.worker, [message], hint_for(message))
        if not isinstance(message, Described):
            raise WorkerDied(self.worker, self.env_ids, f"sent {type(message).__name__} instead of a description")
        return message

    # -- life and death --------------------------------------------------------------------------------------
    def replace_with(self, new: WorkerHost) -> None:
        """Make this host represent the new worker, so that references to it stay valid. Its request is lost."""
        asked, patience_s = self.asked, self.patience_s
        self.__dict__.update(new.__dict__)
        self.asked, self.collected, self.patience_s = asked, asked, patience_s

    @property
    def was_stepping(self) -> bool:
        return self._command not in (0, RUN)

    def died(self) -> WorkerDied:
        self.collected = self.asked
        death, command = self.life.death(), self.doing
        if self.retired:
            return death.error(self.worker, self.env_ids, self.retired, "", command, death.peak_rss_bytes)
        why = f": {failure.where_and_what()}" if death.out_of_memory and (failure := self._last_message()) else ""
        cause = f"{death.cause} during {command}{why}"
        # guard: a-death-tells-the-command
        return death.error(self.worker, self.env_ids, cause, death.hint, command, death.peak_rss_bytes)

    def _last_message(self) -> RemoteError | None:
        """The failure of the env that was the cause, from a worker that has ended itself."""
        with suppress(LinkBroken, Unreadable):
            while self.link.poll(0):
                number, message = self.link.receive()
                if number == LAST_WORD and isinstance(message, RemoteError):
                    return message
        return None

    def hung(self, waited_s: float) -> ReplyTimeout:
        """The error for a worker that has not answered for this time."""
        state = self.life.state()
        text = ", ".join([*self._hung_at(state.stack), state.text])
        return ReplyTimeout(self.worker, self.env_ids, self.doing, waited_s, text, state.stack, state.rss_bytes)

    def where(self) -> str:
        """The place at which a worker does not answer (": env 3, step 17, line 5 of sim.py"), or else its state."""
        state = self.life.state()
        return f": {', '.join(self._hung_at(state.stack) or [state.text])}"

    def _hung_at(self, stack: str) -> list[str]:
        """The env, the step of its episode and the line, as far as the stack has them."""
        what, env_id, line = parse_stack(stack)
        where = [] if env_id is None else [f"env {env_id}", f"in its {what}"]
        if env_id is not None and what == "step":
            where[1] = f"step {self._steps_of(env_id) + 1}"
        return [*where, line] if line else where  # guard: the-hung-line-is-named

    def _steps_of(self, env_id: int) -> int:
        """Number of steps of an env in its current episode."""
        layout = self._views.layout
        rows = [(group.name, layout.rows(group, range(env_id, env_id + 1))) for group in layout.groups]
        return max(int(self._views[(name, VALUES)][EPISODE_LENGTH, mine].max()) for name, mine in rows)

    @property
    def work(self) -> Work:
        """Work done by its envs, including that in earlier workers."""
        counts = self._views[COUNTS][:, self.env_ids.start : self.env_ids.stop].sum(axis=1)
        under_way = sum(map(self._steps_of, self.env_ids))
        return Work(int(counts[COMPLETED_EPISODES]), int(counts[EARLIER_STEPS]) + under_way)

    @property
    def doing(self) -> str:
        """Name of the request, for messages."""
        return "step" if self.was_stepping else self._function

    def ask_to_close(self, number: int) -> None:
        """Ask the worker to close its envs, report their errors and end, after its current request."""
        if hasattr(self, "mailbox") and not self._ended:  # guard: one-that-was-ended-is-not-asked
            self._closing = number
            self.mailbox.stop_rows()
            self.mailbox.post(CLOSE, number)

    def close(self, deadline: float) -> list[RemoteError]:
        """Wait for its end until the deadline, then force it, and release everything. Returns what its envs raised."""
        failures = self._close_failures(deadline) if self._closing else []
        self._end(deadline)
        return failures

    def kill(self) -> None:
        """End the worker now."""
        self._end(0.0)

    def _close_failures(self, deadline: float) -> list[RemoteError]:
        in_a_hurry = time.monotonic() >= deadline
        while self.link.poll(max(0.0, deadline - time.monotonic())):
            try:
                number, message = self.link.receive()
            except LinkBroken:
                return []  # it died while closing
            except Unreadable:
                continue
            if number == self._closing:
                return list(message)
            if isinstance(message, RemoteError):
                return []  # the end of a thread, which was reported before
        if not in_a_hurry:
            log.warning("worker %d (envs %s) has not closed its envs in time", self.worker, describe_ids(self.env_ids))
        return []

    def _end(self, deadline: float) -> None:
        self._ended = True
        try:
            self.link.close()
        finally:
            if self.life.end(deadline):
                self.close_bells()

    def close_bells(self) -> None:
        if hasattr(self, "mailbox"):
            self.mailbox.close()
