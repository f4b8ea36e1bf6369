"""Worker threads: for envs whose step releases the GIL. They never spin: a looking thread would hold it."""

from __future__ import annotations

import threading
import time
from typing import Any

from multiverse.contracts.errors import RemoteError
from multiverse.contracts.views import Views
from multiverse.executors import worker_loop
from multiverse.executors.hosts import WorkerHost
from multiverse.executors.worker_loop import Assignment
from multiverse.memory.doorbell import new_doorbell
from multiverse.memory.link import Link, QueueLink
from multiverse.memory.mailbox import CONTROL, CallerMailbox, WorkerMailbox
from multiverse.memory.waiting import Bedroom


class ThreadLife:
    """Threads are daemons: one that hangs in an env cannot be killed, but does not keep the program from ending."""

    sentinel = None

    def __init__(self, assignment: Assignment, link: Link) -> None:
        self._thread = threading.Thread(
            target=_run, args=(assignment, link), name=f"multiverse-worker-{assignment.worker}", daemon=True
        )
        self._thread.start()

    def cause_of_death(self) -> str:
        return "ended"

    def end(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))


def start_thread(assignment: Assignment) -> WorkerHost:
    ours, theirs = QueueLink.pair()
    life = ThreadLife(assignment, theirs)
    return WorkerHost(assignment.worker, assignment.config.env_ids, ours, life)


def connect_thread(host: WorkerHost, views: Views) -> None:
    """Give both sides the same arrays."""
    mailbox_words = views[CONTROL]
    bells = new_doorbell(), new_doorbell()
    host.bind(CallerMailbox(mailbox_words, host.worker, *bells), views)
    host.link.send((views, WorkerMailbox(mailbox_words, host.worker, *bells)))


def _run(assignment: Assignment, link: Link) -> None:
    def connect(answer: Any) -> tuple[Views, WorkerMailbox]:
        if answer is None:
            raise SystemExit  # the start was given up
        return answer  # type: ignore[no-any-return]

    try:
        worker_loop.work(assignment, link, connect, Bedroom())
    except SystemExit:
        pass
    except BaseException as error:
        link.send(RemoteError.of(error))
