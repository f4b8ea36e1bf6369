"""Links: complete objects, and a clear error if the other side is gone."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

from multiverse.ipc.link import LinkBroken, PipeLink, QueueLink, Unreadable
from tests.fault_envs import CannotBeUnpickled


@pytest.fixture
def pipe() -> Iterator[tuple[PipeLink, PipeLink]]:
    one, other = multiprocessing.Pipe()
    links = PipeLink(one), PipeLink(other)
    yield links
    for link in links:
        link.close()


def test_pipe_sends_lambdas_in_order(pipe: Any) -> None:
    ours, theirs = pipe
    ours.send(lambda x: x + 1)
    ours.send({"a": (1, 2)}, number=7)
    assert theirs.receive()[1](4) == 5
    assert theirs.receive() == (7, {"a": (1, 2)})


def test_pipe_can_be_polled(pipe: Any) -> None:
    ours, theirs = pipe
    assert not theirs.poll(0)
    ours.send(1)
    assert theirs.poll(0)
    assert theirs.receive() == (0, 1)
    assert not theirs.poll(0)


def test_closed_other_side_breaks_the_link(pipe: Any) -> None:
    ours, theirs = pipe
    theirs.close()
    assert ours.poll(0)
    with pytest.raises(LinkBroken):
        ours.receive()
    with pytest.raises(LinkBroken):
        ours.send(1)


def test_messages_sent_before_the_end_arrive(pipe: Any) -> None:
    ours, theirs = pipe
    theirs.send("last word")
    theirs.close()
    assert ours.receive() == (0, "last word")
    with pytest.raises(LinkBroken):
        ours.receive()


class Interrupting:
    """A connection whose messages are interrupted by Ctrl-C."""

    def recv_bytes(self) -> bytes:
        raise KeyboardInterrupt

    def send_bytes(self, data: bytes) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("call", [lambda link: link.receive(), lambda link: link.send(1)])
def test_link_is_broken_after_a_partial_message(call: Any) -> None:
    link = PipeLink(Interrupting())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        call(link)
    for again in (lambda: link.receive(), lambda: link.send(2)):
        with pytest.raises(LinkBroken, match="interrupted in the middle"):
            again()


def test_object_that_cannot_be_pickled_keeps_the_link_intact(pipe: Any) -> None:
    import threading

    ours, theirs = pipe
    with pytest.raises(TypeError):
        ours.send(threading.Lock())
    ours.send("fine")
    assert theirs.receive() == (0, "fine")


def test_message_that_cannot_be_unpickled_is_an_error_with_its_number_and_keeps_the_link_intact(pipe: Any) -> None:
    ours, theirs = pipe
    ours.send(CannotBeUnpickled(), number=4)
    ours.send("fine", number=5)
    with pytest.raises(Unreadable, match="unpacking refused") as caught:
        theirs.receive()
    assert caught.value.number == 4
    assert theirs.receive() == (5, "fine")


def test_queue_passes_the_objects_themselves() -> None:
    ours, theirs = QueueLink.pair()
    thing = object()
    assert not theirs.poll(0)
    ours.send(thing, number=1)
    ours.send(2)
    assert theirs.poll(0)
    assert theirs.poll(1)
    number, received = theirs.receive()
    assert number == 1
    assert received is thing
    assert theirs.receive() == (0, 2)
    theirs.send(3)
    assert ours.receive() == (0, 3)
