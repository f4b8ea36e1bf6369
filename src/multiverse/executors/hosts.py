"""Hosts: whoever runs a range of envs. Serial, thread, process and hybrid are just choices of hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from multiverse.contracts.errors import EnvFailed, RemoteError, ReplyTimeout, RequestPending, WorkerDied
from multiverse.contracts.layout import ACTIONS, FieldName
from multiverse.contracts.views import Views
from multiverse.executors.env_range import EXTRAS, FAILED, EnvRange, Extras
from multiverse.executors.worker_loop import CLOSE, RUN, STEP, STEP_SOME, WITH_OBJECTS, Described, describe
from multiverse.memory.link import Link, LinkBroken
from multiverse.memory.mailbox import CallerMailbox

RunFunction = Callable[..., Any]
"""function(env_range, *arguments): run where the envs are."""


class LocalHost:
    """The caller's own share: asked for like any other, stepped when the caller waits."""

    worker = None

    def __init__(self, envs: EnvRange) -> None:
        self.env_ids = envs.config.env_ids
        self._envs = envs
        self.pending = 0
        self._flags = 0
        self._only_some = False
        self._done = True
        self._torn = False  # interrupted in the middle: some of its envs have stepped, some have not

    def described(self) -> Described:
        return describe(self._envs)

    def bind(self, views: Views) -> None:
        self._envs.bind(views)

    def post_step(self, only_some: bool) -> None:
        self._only_some, self._done, self.pending = only_some, False, 1

    def answered(self) -> bool:
        return self._done

    def flags(self) -> int:
        return self._flags

    def step_now(self) -> None:
        if self._torn:
            raise RequestPending("the caller's own envs were interrupted in the middle of a step: reset() or close()")
        self._torn = True
        self._flags = self._envs.step(self._only_some)
        self._torn, self._done = False, True

    def discard(self) -> Extras:
        self.pending, self._torn, self._done = 0, False, True
        return self._envs.take_extras()

    def take_extras(self) -> Extras:
        return self._envs.take_extras()

    def run(self, function: RunFunction, arguments: tuple[Any, ...]) -> Any:
        try:
            return function(self._envs, *arguments)
        except Exception as error:
            name = getattr(function, "__name__", "run")
            raise EnvFailed(f"raised in {name}", None, [RemoteError.of(error)]) from error

    def close(self, deadline: float) -> list[RemoteError]:
        return self._envs.close()


class WorkerHost:
    """A worker seen from the caller: commands through its mailbox, objects through its link."""

    def __init__(self, worker: int, env_ids: range, link: Link, life: Life) -> None:
        self.worker, self.env_ids, self.link, self.life = worker, env_ids, link, life
        self.pending = 0  # the sequence number under way
        self._command = 0  # the last one posted
        self._function = "start"
        self._complete = True  # the last request was sent whole
        self._last_word_comes = False
        self.mailbox: CallerMailbox

    def bind(self, mailbox: CallerMailbox, views: Views) -> None:
        self.mailbox = mailbox
        self.answered, self.flags = mailbox.answered, mailbox.flags
        rows = slice(self.env_ids.start, self.env_ids.stop)
        self._views, self._rows = views, rows
        self._action_objects = [name for name in views.objects if name[1] == ACTIONS]
        with_objects = WITH_OBJECTS if self._action_objects else 0
        self._step_command, self._step_some_command = STEP | with_objects, STEP_SOME | with_objects

    # -- asking ----------------------------------------------------------------------------------------------
    def post_step(self, only_some: bool) -> None:
        self._command = command = self._step_some_command if only_some else self._step_command
        self.pending = self.mailbox.sequence + 1
        if not self._action_objects:
            self.mailbox.post(command)
            return
        self._complete = False
        self.mailbox.post(command)
        objects: dict[FieldName, list[Any]] = {n: self._views.objects[n][self._rows] for n in self._action_objects}
        self._send(objects)
        self._complete = True

    def post_run(self, function: RunFunction, arguments: tuple[Any, ...]) -> None:
        self._command, self._function = RUN, getattr(function, "__name__", "run")
        self._complete = False
        self.pending = self.mailbox.sequence + 1
        self.mailbox.post(RUN)
        self._send((function, arguments))
        self._complete = True

    def post_again(self) -> None:
        """After an interrupt anywhere in the last post: complete it."""
        self.mailbox.post_again(self._command, self.pending)

    @property
    def was_stepping(self) -> bool:
        return self._command not in (0, RUN)

    @property
    def will_answer(self) -> bool:
        """False if an interrupt cut the last request in two: the worker waits for the rest of it."""
        return self._complete

    # -- the answer ------------------------------------------------------------------------------------------
    def take_extras(self) -> Extras:
        extras = self._receive()
        if isinstance(extras, RemoteError):
            return Extras(failures=[extras])
        for name, values in extras.objects.items():
            self._views.objects[name][self._rows] = values
        return extras  # type: ignore[no-any-return]

    def finish_run(self) -> Any:
        self.pending = 0
        failed = self.flags() & FAILED
        result = self._receive()
        if failed:
            raise EnvFailed(f"raised in {self._function}", self.worker, [result])
        return result

    def discard(self) -> Extras:
        """A late reply that nobody asks for any more: take it off the wire. Its announcements still hold."""
        self.pending = 0
        if self._command == RUN:
            self._receive()
        elif self.flags() & EXTRAS:
            return self.take_extras()
        return Extras()

    # -- its life --------------------------------------------------------------------------------------------
    def died(self) -> WorkerDied:
        self.pending = 0
        return WorkerDied(self.worker, self.env_ids, f"{self.life.cause_of_death()} during {self._doing()}")

    def hung(self, waited_s: float) -> ReplyTimeout:
        state, stack = self.life.state_and_stack()
        return ReplyTimeout(self.worker, self.env_ids, self._doing(), waited_s, state, stack)

    def _doing(self) -> str:
        return self._function if self._command in (0, RUN) else "step"

    def cut_off(self) -> WorkerDied:
        return WorkerDied(self.worker, self.env_ids, "was interrupted in the middle of a request")

    def ask_to_close(self) -> None:
        """Close the envs, say how that went, and end. One that is still busy does so later, and nobody listens."""
        if hasattr(self, "mailbox"):
            self._last_word_comes = not self.pending
            self.mailbox.post(CLOSE)

    def close(self, deadline: float) -> list[RemoteError]:
        """Wait for its end until the deadline, then force it; give everything back. Returns what its envs raised."""
        failures: list[RemoteError] = []
        if self._last_word_comes and self.link.poll(max(0.0, deadline - time.monotonic())):
            try:
                last_word = self.link.receive()
                failures = last_word if isinstance(last_word, list) else [last_word]
            except LinkBroken:
                pass  # it died on the way out: nothing is left to be told
        self.link.close()
        if self.life.end(deadline):
            self._close_bells()
        return failures

    def _close_bells(self) -> None:
        if hasattr(self, "mailbox"):
            self.mailbox.close()

    def _send(self, message: Any) -> None:
        try:
            self.link.send(message)
        except LinkBroken as error:
            raise self.died() from error

    def _receive(self) -> Any:
        try:
            return self.link.receive()
        except LinkBroken as error:
            raise self.died() from error


class Life(Protocol):
    """What keeps a worker going: a thread or a process."""

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable at its end."""

    @property
    def pid(self) -> int | None:
        """Of its process, if it has one of its own."""

    def cause_of_death(self) -> str: ...

    def state_and_stack(self) -> tuple[str, str]:
        """For one that does not answer: what can be said of it, and its Python stack if it can be had."""

    def end(self, deadline: float) -> bool:
        """Wait for its end until the deadline, then force it; False where that is not possible and it lives on."""


Host = LocalHost | WorkerHost
