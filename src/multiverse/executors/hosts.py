"""Hosts: run a range of envs each. Serial, thread, process and hybrid differ only in their hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiverse.core.errors import EnvFailed, RemoteError, RequestPending
from multiverse.core.layout import STEPPING, Views
from multiverse.executors.env_range import EnvRange
from multiverse.executors.launch import crash_report
from multiverse.executors.launch.crash_report import NOW, OwnShare
from multiverse.executors.step_reply import Extras
from multiverse.executors.worker_host import HostBase, RunFunction, WorkerHost
from multiverse.executors.worker_loop import Described, describe

GoOn = Callable[[int], bool]
"""Called before every row, when all rows before it are complete; returns False to stop."""


class LocalHost(HostBase):
    """The caller's own share of the envs: asked like any other host, and stepped when the caller waits."""

    worker = None

    def __init__(self, envs: EnvRange) -> None:
        super().__init__(envs.config.env_ids)
        self._envs = envs
        self._begun = self._done = 0  # differ only if a step was interrupted
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
        self._envs.episodes.share = self._share

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
            raise RequestPending("a step of the caller's own envs was interrupted: call reset() or close()")
        self._begun = self.asked

    def _step(self, only_some: bool) -> int:
        number = self._now[NOW] = 1 + abs(self._now[NOW])
        if only_some:
            self._share.leave_out(i for i in self.env_ids if not self._stepping[i])
        flags = self._envs.step(only_some)
        self._now[NOW] = -number
        return flags

    def run_rows(self, number: int, function: RunFunction, arguments: tuple[Any, ...], go_on: GoOn) -> Extras:
        """Run a function over rows, as workers do with the command ROWS."""
        self.post_step(number, only_some=False)
        self._begin_step()
        extras: Extras = function(self._envs, self._step, go_on, 0, *arguments)
        self._done = self.collected = self.asked
        return extras

    def flags(self) -> int:
        return self._flags

    def _read_extras(self) -> Extras:
        return self._envs.take_extras()

    def discard(self) -> Extras:
        """Discard a step. It is taken first if it was pending, as in workers, so that all hosts have the same state."""
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


Host = LocalHost | WorkerHost
