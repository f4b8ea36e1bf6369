"""Links: send Python objects between the caller and a worker, for everything outside the hot path.

Each message has the number of its request, so that answers to abandoned requests can be recognised and dropped.
"""

from __future__ import annotations

import functools
import pickle
import queue
import struct
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from multiverse.ipc.interrupts import HeldInterrupts
from multiverse.ipc.waiting import readable

_NUMBER = struct.Struct("<Q")
LAST_WORD = (1 << 64) - 1
"""Number of the message that a worker sends when it ends itself."""


class LinkBroken(Exception):
    """The other side is gone, or a message was interrupted in the middle."""


class Unreadable(Exception):
    """A message arrived completely, but cannot be unpickled."""

    def __init__(self, number: int, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.number, self.cause = number, cause


class PackedOnce:
    """Base class of immutable objects that are sent to workers repeatedly, such as a policy's features with every
    rollout: pickled once by the caller, and unpickled once by each worker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self._packed,)

    @functools.cached_property
    def _packed(self) -> bytes:
        return bytes(cloudpickle.dumps((type(self), vars(self).copy())))


@functools.lru_cache(maxsize=16)
def _unpacked(packed: bytes) -> Any:
    kind, attributes = pickle.loads(packed)
    made = kind.__new__(kind)
    vars(made).update(attributes)
    return made


class Link(ABC):
    @abstractmethod
    def pack(self, message: Any) -> Any:
        """The message as it is sent; raises the reason, before anything is sent, if that is not possible."""

    @abstractmethod
    def send_packed(self, packed: Any, number: int) -> None: ...

    def send(self, message: Any, number: int = 0) -> None:
        self.send_packed(self.pack(message), number)

    @abstractmethod
    def receive(self) -> tuple[int, Any]:
        """The next message, with its number."""

    @abstractmethod
    def poll(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until `receive` would return (or raise) at once; return whether it would."""

    @abstractmethod
    def close(self) -> None: ...


def packed(message: Any, by_name_first: bool = False) -> bytes:
    """The pickled message. Objects that cannot be imported elsewhere, such as those of `__main__`, are copied by value.

    `by_name_first`: by name whenever possible, as workers do: with cloudpickle, a worker's copy of one of the caller's
    classes would overwrite the original.
    """
    try:
        by_name = pickle.dumps(message)
        if by_name_first or not (b"__main__" in by_name or cloudpickle.list_registry_pickle_by_value()):
            return by_name
    except Exception:
        pass
    return cloudpickle.dumps(message)  # type: ignore[no-any-return]


def _read(number: int, data: Any) -> tuple[int, Any]:
    try:
        return number, pickle.loads(data)
    except Exception as error:
        raise Unreadable(number, error) from error


class PipeLink(Link):
    """Link between processes. It stays broken once a message was interrupted, because the rest of the pipe's content is
    undefined."""

    def __init__(self, connection: Connection[Any, Any], by_name_first: bool = False) -> None:
        self._connection = connection
        self._by_name_first = by_name_first
        self._broken = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def pack(self, message: Any) -> bytes:
        return packed(message, self._by_name_first)

    def send_packed(self, packed: Any, number: int) -> None:
        with HeldInterrupts():
            self._check()
            self._broken = True
            try:
                self._connection.send_bytes(_NUMBER.pack(number) + packed)
            except (OSError, ValueError) as error:
                raise LinkBroken(str(error)) from error
            self._broken = False

    def receive(self) -> tuple[int, Any]:
        with HeldInterrupts():
            self._check()
            self._broken = True
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise LinkBroken(str(error)) from error
            self._broken = False
        (number,) = _NUMBER.unpack_from(data)
        return _read(number, memoryview(data)[_NUMBER.size :])

    def poll(self, timeout_s: float) -> bool:
        try:
            return readable(self._connection.fileno(), timeout_s)
        except OSError:
            return True

    def close(self) -> None:
        self._broken = True
        self._connection.close()

    def _check(self) -> None:
        if self._broken:
            raise LinkBroken("a message was interrupted in the middle")


class QueueLink(Link):
    """Link between threads: passes the objects themselves."""

    def __init__(self, outgoing: queue.SimpleQueue[Any], incoming: queue.SimpleQueue[Any]) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._peeked: list[tuple[int, Any]] = []

    @classmethod
    def pair(cls) -> tuple[QueueLink, QueueLink]:
        one: queue.SimpleQueue[Any] = queue.SimpleQueue()
        other: queue.SimpleQueue[Any] = queue.SimpleQueue()
        return cls(one, other), cls(other, one)

    def pack(self, message: Any) -> Any:
        return message

    def send_packed(self, packed: Any, number: int) -> None:
        self._outgoing.put((number, packed))

    def receive(self) -> tuple[int, Any]:
        number, message = self._peeked.pop() if self._peeked else self._incoming.get()
        return number, message

    def poll(self, timeout_s: float) -> bool:
        if not self._peeked:
            try:
                self._peeked.append(self._incoming.get(timeout=timeout_s) if timeout_s else self._incoming.get_nowait())
            except queue.Empty:
                return False
        return True

    def close(self) -> None:
        pass


class PackedLink(QueueLink):
    """One end of a link whose other end, a `QueueLink`, forwards messages as bytes; None ends the link."""

    def __init__(
        self, outgoing: queue.SimpleQueue[Any], incoming: queue.SimpleQueue[Any], by_name_first: bool = False
    ) -> None:
        super().__init__(outgoing, incoming)
        self._by_name_first, self._over = by_name_first, False

    @classmethod
    def beside(cls, by_name_first: bool = False) -> tuple[PackedLink, QueueLink]:
        """Both ends: the one that pickles, and the one that forwards."""
        one: queue.SimpleQueue[Any] = queue.SimpleQueue()
        other: queue.SimpleQueue[Any] = queue.SimpleQueue()
        return cls(one, other, by_name_first), QueueLink(other, one)

    def pack(self, message: Any) -> bytes:
        return packed(message, self._by_name_first)

    def receive(self) -> tuple[int, Any]:
        number, data = (0, None) if self._over else super().receive()
        if data is None:
            self._over = True
            raise LinkBroken("the other side is gone")  # guard: a-lost-actor-hangs-up
        return _read(number, data)

    def poll(self, timeout_s: float) -> bool:
        return self._over or super().poll(timeout_s)
