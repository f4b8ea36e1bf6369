"""Hosts: whoever runs a range of envs. Serial, thread, process and hybrid are just choices of hosts.

Every request has a number, higher than all before it. A host is *asked* for a number, has *answered* it when its
work is done, and the answer is *collected* when its caller has it; asked but not collected is pending. Nothing else
is remembered about a request, so that an interrupt anywhere leaves a state that says what is still to be done.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from multiverse.core.errors import (
    EnvFailed,
    InvalidRequest,
    RemoteError,
    ReplyTimeout,
    RequestPending,
    WorkerDied,
    describe_ids,
)
from multiverse.core.failures import Work
from multiverse.core.layout import (
    ACTIONS,
    COMPLETED_EPISODES,
    COUNTS,
    EARLIER_STEPS,
    EPISODE_LENGTH,
    STEPPING,
    VALUES,
)
from multiverse.core.views import Views
from multiverse.executors.env_range import EnvRange
from multiverse.executors.launch import crash_report
from multiverse.executors.launch.black_box import told_by
from multiverse.executors.launch.crash_report import NOW, OwnShare
from multiverse.executors.life import Life
from multiverse.executors.step_reply import EXTRAS, FAILED, Extras
from multiverse.executors.worker_loop import CLOSE, ROWS, RUN, STEP, STEP_SOME, WITH_OBJECTS, Described, describe
from multiverse.ipc.env_rows import object_rows, put_object_rows
from multiverse.ipc.interrupts import HeldInterrupts, stop_waiting
from multiverse.ipc.link import LAST_WORD, Link, LinkBroken, Unreadable
from multiverse.ipc.mailbox import CallerMailbox

log = logging.getLogger("multiverse")

LOOK_EVERY_S = 0.1

RunFunction = Callable[..., Any]
"""function(env_range, *arguments): run where the envs are."""
GoOn = Callable[[int], bool]
"""Called before every row: all rows before it are whole; False: to end there."""


class _AnyHost(ABC):
    """What has become of the last request to a host."""

    def __init__(self, env_ids: range) -> None:
        self.env_ids = env_ids
        self.asked = self.collected = 0
        self.asked_at = 0.0  # of `time.monotonic`, for a step that is received
        self._extras: tuple[int, Extras] = (0, Extras())

    @property
    def pending(self) -> bool:
        return self.asked != self.collected

    def extras(self) -> Extras:
        """What a step has to say beyond the block; read once, and kept for whoever asks again."""
        if self._extras[0] != self.asked:
            with HeldInterrupts():  # read and kept, or neither
                self._extras = (self.asked, self._read_extras())
        return self._extras[1]

    @abstractmethod
    def _read_extras(self) -> Extras: ...


class LocalHost(_AnyHost):
    """The caller's own share: asked for like any other, stepped when the caller waits."""

    worker = None

    def __init__(self, envs: EnvRange) -> None:
        super().__init__(envs.config.env_ids)
        self._envs = envs
        self._begun = self._done = 0  # differ only if an interrupt hit in the middle of a step
        self._only_some = False
        self._flags = 0
        self._share = OwnShare.empty()
        crash_report.watch(self._share)

    def described(self, bounds_may_differ: bool = False) -> Described:
        return describe(self._envs, bounds_may_differ)

    def bind(self, views: Views) -> None:
        self._envs.bind(views)
        self._stepping = views[STEPPING]
        self._share.open(len(self.env_ids))
        self._now = self._share.words
        self._envs.tell_beginnings_to(self._share)

    def post_step(self, number: int, only_some: bool) -> None:
        self._only_some = only_some
        self.asked = number

    def post_again(self) -> None:
        pass

    def answered(self) -> bool:
        return self._done == self.asked

    def step_now(self) -> None:
        self._begin_step()
        self._flags = self._step(self._only_some)
        self._done = self.asked

    def _begin_step(self) -> None:
        if self._begun != self._done:
            raise RequestPending("the caller's own envs were interrupted in the middle of a step: reset() or close()")
        self._begun = self.asked

    def _step(self, only_some: bool) -> int:
        number = self._now[NOW] = 1 + abs(self._now[NOW])
        if only_some:
            self._share.leave_out(i for i in self.env_ids if not self._stepping[i])
        flags = self._envs.step(only_some)
        self._now[NOW] = -number
        return flags

    def run_rows(self, number: int, function: RunFunction, arguments: tuple[Any, ...], go_on: GoOn) -> Extras:
        """What workers do with the command of that name."""
        self.post_step(number, only_some=False)
        self._begin_step()
        said: Extras = function(self._envs, self._step, go_on, 0, *arguments)
        self._done = self.collected = self.asked
        return said

    def flags(self) -> int:
        return self._flags

    def _read_extras(self) -> Extras:
        return self._envs.take_extras()

    def discard(self) -> Extras:
        """A step that was asked for is taken before it is forgotten, as workers do: the same state everywhere."""
        if self._begun == self._done != self.asked:
            self.step_now()
        self._begun = self._done = self.collected = self.asked
        return self._envs.take_extras()

    def run(self, function: RunFunction, arguments: tuple[Any, ...]) -> Any:
        self._now[NOW] = abs(self._now[NOW])
        try:
            return function(self._envs, *arguments)
        except Exception as error:
            name = getattr(function, "__name__", "run")
            raise EnvFailed(f"raised in {name}", None, [RemoteError.of(error)]) from error
        finally:
            self._now[NOW] = -abs(self._now[NOW])

    def ask_to_close(self, number: int) -> None:
        pass

    def close(self, deadline: float) -> list[RemoteError]:
        try:
            return self._envs.close()
        finally:
            if self._share.fd >= 0:
                crash_report.unwatch(self._share)
                self._share.close()

    def kill(self) -> None:
        self.close(0.0)


class WorkerHost(_AnyHost):
    """A worker seen from the caller: commands through its mailbox, objects through its link."""

    def __init__(self, worker: int, env_ids: range, link: Link, life: Life) -> None:
        super().__init__(env_ids)
        self.worker, self.link, self.life = worker, link, life
        self._command = 0
        self._function = "start"
        self._closing, self._ended = 0, False
        self.patience_s: float | None = None  # for what follows its word by pipe
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
        """A call as it travels; refused here, before anything is sent, if it cannot."""
        try:
            return self.link.pack((function, arguments))
        except Exception as error:
            raise InvalidRequest(
                f"this cannot be sent to a worker process: {type(error).__name__}: {error}; pass what can be pickled"
            ) from error

    def post_run(self, number: int, function: RunFunction, prepared: Any) -> None:
        self._command, self._function = RUN, getattr(function, "__name__", "run")
        self._post_packed(RUN, number, prepared)

    def post_rows(self, number: int, prepared: Any, row: int) -> None:
        """A function that takes many steps by itself, from this row on."""
        self._command, self._function, self.asked_at = ROWS, "a rollout", time.monotonic()
        self.mailbox.begin_rows(row)
        self._post_packed(ROWS, number, prepared)

    @property
    def heard_at(self) -> float:
        """When it was asked or, in the middle of many steps, when it began the one it is in."""
        return max(self.asked_at, self.mailbox.row_at) if self._command == ROWS else self.asked_at

    def _post_packed(self, command: int, number: int, packed: Any) -> None:
        """The word first: a worker that waits for it reads the pipe, however much follows there."""
        with HeldInterrupts():
            self.asked = number
            self.mailbox.post(command, number)
            try:
                self.link.send_packed(packed, number)
            except LinkBroken:
                self.unreachable = True  # whoever waits for its answer will see that it cannot come

    def post_again(self) -> None:
        """After an interrupt somewhere in a step's post: the same once more, without harm if it was complete."""
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
        """A late reply that nobody asks for any more; what it announced for later steps still holds. What follows it by
        pipe is read: a large message holds the worker up until it is."""
        stepped = self.was_stepping and self.flags() & EXTRAS
        extras = self.extras() if stepped else Extras()
        failed = self._command == ROWS and self.flags() & FAILED
        if self._command == RUN or (failed and not stepped):  # guard: what-nobody-asks-for-is-read
            with HeldInterrupts(), suppress(Unreadable):
                self._receive(self.asked)
        self.collected = self.asked
        return extras

    def _receive(self, number: int) -> Any:
        """The message of request `number`; older ones, whose callers were interrupted, are passed over."""
        while True:
            self._wait_for_message()
            try:
                found, message = self.link.receive()
            except LinkBroken as error:
                raise self.died() from error
            except Unreadable as error:
                if error.number == number:
                    raise
                continue
            if found == number:  # guard: messages-have-numbers
                return message

    def _wait_for_message(self) -> None:
        """One that was announced comes at once, unless its sender was stopped just then."""
        began_at, patience_s = time.monotonic(), math.inf if self.patience_s is None else self.patience_s
        while not self.link.poll(min(LOOK_EVERY_S, patience_s)):
            stop_waiting()
            if time.monotonic() > began_at + patience_s:
                raise self.hung(patience_s)  # guard: a-message-has-a-deadline

    def described(self, without: str, hint_at: Callable[[RemoteError], str] = lambda _: "") -> Described:
        """Before any request: what the worker says of its envs. `without`, with a hint: what an error there means."""
        word = self._receive(0)
        if isinstance(word, RemoteError):
            raise EnvFailed(without, self.worker, [word], hint_at(word))
        if not isinstance(word, Described):
            raise WorkerDied(self.worker, self.env_ids, f"sent {type(word).__name__} instead of a description")
        return word

    # -- its life --------------------------------------------------------------------------------------------
    def be_replaced_by(self, new: WorkerHost) -> None:
        """From now on this host *is* the new worker: whoever holds it need not know. What it was asked is lost."""
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
        why = f": {word.where_and_what()}" if death.out_of_memory and (word := self._last_message()) else ""
        cause = f"{death.cause} during {command}{why}"
        # guard: a-death-tells-the-command
        return death.error(self.worker, self.env_ids, cause, death.hint, command, death.peak_rss_bytes)

    def _last_message(self) -> RemoteError | None:
        """Return what a worker that has ended itself reported of the env that was the cause."""
        with suppress(LinkBroken, Unreadable):
            while self.link.poll(0):
                number, word = self.link.receive()
                if number == LAST_WORD and isinstance(word, RemoteError):
                    return word
        return None

    def hung(self, waited_s: float) -> ReplyTimeout:
        state = self.life.state()
        text = ", ".join([*self._hung_at(state.stack), state.text])
        return ReplyTimeout(self.worker, self.env_ids, self.doing, waited_s, text, state.stack, state.rss_bytes)

    def where(self) -> str:
        """ ": env 3, step 17, line 5 of sim.py", or what else can be seen of a worker that does not answer."""
        state = self.life.state()
        return f": {', '.join(self._hung_at(state.stack) or [state.text])}"

    def _hung_at(self, stack: str) -> list[str]:
        """Which env, which step of its episode, which line; as far as its stack tells."""
        what, env_id, line = told_by(stack)
        where = [] if env_id is None else [f"env {env_id}", f"in its {what}"]
        if env_id is not None and what == "step":
            where[1] = f"step {self._steps_of(env_id) + 1}"
        return [*where, line] if line else where  # guard: the-hung-line-is-named

    def _steps_of(self, env_id: int) -> int:
        """That an env has taken in its episode."""
        layout = self._views.layout
        rows = [(group.name, layout.rows(group, range(env_id, env_id + 1))) for group in layout.groups]
        return max(int(self._views[(name, VALUES)][EPISODE_LENGTH, mine].max()) for name, mine in rows)

    @property
    def work(self) -> Work:
        """Done by its envs, also by earlier workers that had them."""
        counts = self._views[COUNTS][:, self.env_ids.start : self.env_ids.stop].sum(axis=1)
        under_way = sum(map(self._steps_of, self.env_ids))
        return Work(int(counts[COMPLETED_EPISODES]), int(counts[EARLIER_STEPS]) + under_way)

    @property
    def doing(self) -> str:
        return "step" if self.was_stepping else self._function

    def ask_to_close(self, number: int) -> None:
        """Close the envs, say how that went, and end; one that is busy does so when it is done."""
        if hasattr(self, "mailbox") and not self._ended:  # guard: one-that-was-ended-is-not-asked
            self._closing = number
            self.mailbox.stop_rows()
            self.mailbox.post(CLOSE, number)

    def close(self, deadline: float) -> list[RemoteError]:
        """Wait for its end until the deadline, then force it; give everything back. Returns what its envs raised."""
        failures = self._last_word(deadline) if self._closing else []
        self._end(deadline)
        return failures

    def kill(self) -> None:
        """End it now."""
        self._end(0.0)

    def _last_word(self, deadline: float) -> list[RemoteError]:
        in_a_hurry = time.monotonic() >= deadline
        while self.link.poll(max(0.0, deadline - time.monotonic())):
            try:
                number, word = self.link.receive()
            except LinkBroken:
                return []  # it died on the way out: nothing is left to be told
            except Unreadable:
                continue
            if number == self._closing:
                return list(word)
            if isinstance(word, RemoteError):
                return []  # a thread's end, told when it came
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


Host = LocalHost | WorkerHost
