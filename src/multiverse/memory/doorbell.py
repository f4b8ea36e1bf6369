"""Doorbells: wake whoever is parked. They carry no meaning; the sequence word in the block is the truth."""

from __future__ import annotations

import os
from typing import Protocol

from multiverse.memory import platform


class Doorbell(Protocol):
    """One direction between two sides."""

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors to hand to the other side, which rebuilds the bell with `doorbell_from`."""

    @property
    def wait_fd(self) -> int:
        """Readable from a ring until `drain`."""

    def ring(self) -> None: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


class EventfdDoorbell:
    """Linux: a kernel counter. Ringing twice before anybody looks is one wake-up."""

    def __init__(self, fd: int) -> None:
        self.wait_fd = fd

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.wait_fd,)

    def ring(self) -> None:
        os.eventfd_write(self.wait_fd, 1)

    def drain(self) -> None:
        try:
            os.eventfd_read(self.wait_fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        _close(self.wait_fd)
        self.wait_fd = -1


class PipeDoorbell:
    """Elsewhere: a pipe. A full pipe has enough rings in it already."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.wait_fd, self._write_fd = read_fd, write_fd

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.wait_fd, self._write_fd)

    def ring(self) -> None:
        try:
            os.write(self._write_fd, b"!")
        except BlockingIOError:
            pass

    def drain(self) -> None:
        try:
            while os.read(self.wait_fd, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        _close(self.wait_fd)
        _close(self._write_fd)
        self.wait_fd = self._write_fd = -1


def new_doorbell() -> Doorbell:
    if platform.has_eventfd():
        return EventfdDoorbell(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    return PipeDoorbell(read_fd, write_fd)


def doorbell_from(fds: tuple[int, ...]) -> Doorbell:
    return EventfdDoorbell(*fds) if len(fds) == 1 else PipeDoorbell(*fds)


def descriptors_per_doorbell() -> int:
    return 1 if platform.has_eventfd() else 2


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
