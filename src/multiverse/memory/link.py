"""A link: whole Python objects between the caller and a worker, for everything that is not the hot path."""

from __future__ import annotations

import pickle
import queue
from multiprocessing.connection import Connection
from typing import Any, Protocol

import cloudpickle


class LinkBroken(Exception):
    """The other side is gone, or this link was interrupted in the middle of a message."""


class Link(Protocol):
    def send(self, message: Any) -> None: ...

    def receive(self) -> Any: ...

    def poll(self, timeout_s: float) -> bool:
        """Whether `receive` would return (or raise) at once, waiting for that at most `timeout_s`."""

    def close(self) -> None: ...


class PipeLink:
    """Between processes. Once a message was cut in two, nothing on the pipe can be trusted: the link stays broken."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._broken = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Any) -> None:
        self.send_bytes(cloudpickle.dumps(message))

    def send_bytes(self, data: bytes) -> None:
        self._check()
        self._broken = True
        try:
            self._connection.send_bytes(data)
        except OSError as error:
            raise LinkBroken(str(error)) from error
        self._broken = False

    def receive(self) -> Any:
        return pickle.loads(self.receive_bytes())

    def poll(self, timeout_s: float) -> bool:
        try:
            return self._connection.poll(timeout_s)
        except OSError:
            return True

    def receive_bytes(self) -> bytes:
        self._check()
        self._broken = True
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise LinkBroken(str(error)) from error
        self._broken = False
        return data

    def close(self) -> None:
        self._connection.close()

    def _check(self) -> None:
        if self._broken:
            raise LinkBroken("a message was interrupted half-way")


class QueueLink:
    """Between threads: the objects themselves."""

    def __init__(self, outgoing: queue.SimpleQueue[Any], incoming: queue.SimpleQueue[Any]) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._peeked: list[Any] = []

    @classmethod
    def pair(cls) -> tuple[QueueLink, QueueLink]:
        one: queue.SimpleQueue[Any] = queue.SimpleQueue()
        other: queue.SimpleQueue[Any] = queue.SimpleQueue()
        return cls(one, other), cls(other, one)

    def send(self, message: Any) -> None:
        self._outgoing.put(message)

    def receive(self) -> Any:
        return self._peeked.pop() if self._peeked else self._incoming.get()

    def poll(self, timeout_s: float) -> bool:
        if not self._peeked:
            try:
                self._peeked.append(self._incoming.get(timeout=timeout_s) if timeout_s else self._incoming.get_nowait())
            except queue.Empty:
                return False
        return True

    def close(self) -> None:
        pass
