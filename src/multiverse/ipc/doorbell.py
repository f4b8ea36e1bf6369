"""Doorbells: wake a side that sleeps. They carry no information; only the sequence word in the block counts."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

from multiverse.ipc import platform


class Doorbell(ABC):
    """One direction between two sides. The other side gets `fds` and rebuilds it with `doorbell_from`."""

    def __init__(self, *fds: int) -> None:
        self.fds = fds
        self.wait_fd, self._ring_fd = fds[0], fds[-1]  # wait_fd is readable from a ring until `drain`

    @abstractmethod
    def ring(self) -> None: ...

    @abstractmethod
    def drain(self) -> None: ...

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds, self.wait_fd, self._ring_fd = (), -1, -1


class EventfdDoorbell(Doorbell):
    """Linux: a kernel counter. Several rings before the other side wakes are one wake-up."""

    def ring(self) -> None:
        os.eventfd_write(self._ring_fd, 1)

    def drain(self) -> None:
        try:
            os.eventfd_read(self.wait_fd)
        except BlockingIOError:
            pass


class PipeDoorbell(Doorbell):
    """Other systems: a pipe. If it is full, a ring is pending already."""

    @classmethod
    def new(cls) -> PipeDoorbell:
        fds = os.pipe()
        for fd in fds:
            os.set_blocking(fd, False)
        return cls(*fds)

    def ring(self) -> None:
        try:
            os.write(self._ring_fd, b"!")
        except BlockingIOError:
            pass

    def drain(self) -> None:
        try:
            while os.read(self.wait_fd, 4096):
                pass
        except BlockingIOError:
            pass


def new_doorbell() -> Doorbell:
    if platform.has_eventfd():
        return EventfdDoorbell(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    return PipeDoorbell.new()


def doorbell_from(fds: tuple[int, ...]) -> Doorbell:
    return EventfdDoorbell(*fds) if len(fds) == 1 else PipeDoorbell(*fds)


def descriptors_per_doorbell() -> int:
    return 1 if platform.has_eventfd() else 2
