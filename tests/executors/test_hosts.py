"""Worker hosts, without a worker."""

from __future__ import annotations

from typing import Any

import pytest

from multiverse.executors.worker_host import WorkerHost


class Pipe:
    """A link with these received messages, each with the number of its request."""

    def __init__(self, *messages: tuple[int, str]) -> None:
        self.messages = list(messages)

    def poll(self, timeout_s: float) -> bool:
        return bool(self.messages)

    def receive(self) -> tuple[int, str]:
        return self.messages.pop(0)


@pytest.mark.fault("A6")
def test_message_of_an_older_request_is_dropped() -> None:
    pipe: Any = Pipe((3, "older"), (4, "its own"), (5, "newer"))
    host = WorkerHost(0, range(1), pipe, None)  # type: ignore[arg-type]
    host.asked, host.flags = 4, lambda: 0
    assert host.finish_run() == "its own" and pipe.messages == [(5, "newer")] and not host.pending
