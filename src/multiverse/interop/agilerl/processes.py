"""The processes of the AgileRL drop-in, with the manners of `multiprocessing.Process`: do they live, end them."""

from __future__ import annotations

import psutil


class EnvProcess:
    """The process that runs an env; envs may share one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)

    def is_alive(self) -> bool:
        """Whether it runs; one that has ended and is not yet buried does not."""
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, so many seconds at most."""
        try:
            self._process.wait(timeout)
        except psutil.TimeoutExpired:
            pass

    def __repr__(self) -> str:
        return f"<process {self.pid}, {'alive' if self.is_alive() else 'ended'}>"
