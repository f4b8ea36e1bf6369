"""Workers on Ray: each is an actor, with a proxy thread in the caller.

For the executor the proxy is a worker thread: it takes requests from a mailbox and answers them. It forwards them to
its actor; both sides send the changes in the rows of their envs (`Mirror` in `ipc/block.py`). So a rollout is one
call, with the weights as its argument and the rows as its result.
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import psutil

from multiverse.adapters.registered import additions
from multiverse.core.errors import ClusterGone
from multiverse.core.failures import HOW_TO_CONTINUE
from multiverse.core.layout import Array, Field, FieldName, Views
from multiverse.core.plan import Plan, RayOptions
from multiverse.executors import ray_cluster
from multiverse.executors.process import pickled
from multiverse.executors.ray_actor import RayActor
from multiverse.executors.worker_host import Death, State, WorkerHost
from multiverse.executors.worker_loop import CLOSE, ROWS, RUN, WITH_OBJECTS, Assignment, Surroundings
from multiverse.ipc.block import Mirror, private_arrays
from multiverse.ipc.doorbell import new_doorbell
from multiverse.ipc.link import PackedLink, QueueLink
from multiverse.ipc.mailbox import CONTROL, CallerMailbox, WorkerMailbox
from multiverse.ipc.waiting import WaitSet

log = logging.getLogger("multiverse")

LOOK_EVERY_S = 0.1
ASK_EVERY_S = 1.0
"""Interval at which an actor is asked for its current row during a rollout."""
ANSWER_S = 1.0
END_S = 5.0
LEAST_STORED, LEAST_STORED_HERE = 65_536, 524_288
"""Bytes from which a message to all actors is put in the object store, for a cluster with other nodes and for a private
one; smaller messages are sent with each call."""


class _GivenUp(Exception):
    """The caller has abandoned this worker."""


class _Gone(Exception):
    """The cluster has ended, or `ray.shutdown()` was called. A further call of Ray would join another cluster."""


class SharedMessages:
    """Messages that all actors get (a rollout's weights), put in the object store once."""

    def __init__(self, here: bool = False) -> None:
        self._last: tuple[Any, Any] = (None, None)
        self._lock = threading.Lock()
        self._least_bytes = LEAST_STORED_HERE if here else LEAST_STORED

    def reference(self, message: bytes | None) -> Any:
        """Reference of a stored message; None if it is too small to store."""
        if message is None or len(message) < self._least_bytes:
            return None
        with self._lock:
            if self._last[0] is not message:
                self._last = message, ray_cluster.ray().put(message)
            return self._last[1]


class RayLife:
    """An actor and its proxy."""

    def __init__(
        self, assignment: Assignment, actor: Any, link: QueueLink, shared: SharedMessages, options: dict[str, Any]
    ) -> None:
        self._env_ids, self._actor, self._link, self._shared = assignment.config.env_ids, actor, link, shared
        self._options = options
        self._ray, self._cluster = ray_cluster.ray(), ray_cluster.living()
        self._ended = new_doorbell()
        self._cause = "ended"
        self.node_in_doubt: str | None = None  # a node that may be lost without the cluster knowing it yet
        self._bindings: queue.SimpleQueue[tuple[Views, WorkerMailbox, bool] | None] = queue.SimpleQueue()
        self._mailbox: WorkerMailbox | None = None
        self._given_up = False
        self._process: tuple[int, str] | None = None  # pid and node
        self._here: psutil.Process | None = None  # the process, if it runs on this node
        self._thread = threading.Thread(target=self._run, name=f"multiverse-ray-{assignment.worker}", daemon=True)
        self._thread.start()

    # -- for the executor --------------------------------------------------------------------------------------
    @property
    def sentinel(self) -> int:
        return self._ended.wait_fd

    @property
    def pid(self) -> int | None:
        """Pid of the actor's process, if it runs on this machine."""
        return None if self._here is None else self._here.pid

    def connect(self, views: Views, mailbox: WorkerMailbox, replacing: bool) -> None:
        self._bindings.put((views, mailbox, replacing))

    def death(self) -> Death:
        where = "" if self._process is None else f" (pid {self._process[0]} of node {self._process[1][:8]})"
        if self._lives_on():
            return Death(f"lost its Ray actor{where}: {self._cause}", "its process was killed, or its node is gone")
        gone = "the Ray cluster is gone (one of its processes has ended, or ray.shutdown() was called)"
        return Death(f"lost its Ray actor{where}", f"{gone}; {HOW_TO_CONTINUE}", error=ClusterGone)

    def _lives_on(self) -> bool:
        """Whether the actor's cluster is still there."""
        return self._cluster is not None and ray_cluster.living() is self._cluster

    def state(self) -> State:
        if self._process is None:
            needs = ", ".join(f"{value:g} {name}" for name, value in self._options.items() if value) or "nothing"
            return State(
                f"its Ray actor has not answered yet; it is waiting for a node with {needs} free, or building its envs"
            )
        try:
            _, stack, rss_bytes = self._ray.get(self._ask("state"), timeout=ANSWER_S)
        except Exception as error:
            return State(f"its Ray actor does not report its state ({type(error).__name__})")
        return State("its Ray actor is running", stack, rss_bytes)

    def end(self, deadline: float) -> bool:
        """Wait until the deadline for an actor that was asked to close, then kill it."""
        if self._ended.wait_fd < 0:
            return True  # ended before
        if self._mailbox is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        self._given_up = True
        self._bindings.put(None)
        self._kill()
        if self._mailbox is not None:
            self._mailbox.request_bell.ring()
        self._thread.join(END_S)
        if self._thread.is_alive():
            return False
        if self._here is not None:
            psutil.wait_procs([self._here], END_S)
        self._ended.close()
        return True

    def _kill(self) -> None:
        try:
            if self._lives_on():
                self._ray.kill(self._actor)  # guard: an-actor-is-ended
        except Exception:  # the cluster has ended, and the actor with it
            pass

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor."""
        if not self._lives_on():  # guard: no-other-cluster-is-joined
            raise _Gone
        return getattr(self._actor, method).remote(*arguments)

    # -- the proxy thread --------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._serve()
        except (_GivenUp, _Gone):
            pass
        except self._ray.exceptions.RayError as error:
            self._cause = _in_a_line(error)
            if "its worker process has died" not in str(error):
                self.node_in_doubt = "" if self._process is None else self._process[1]
        except Exception as error:
            self._cause = f"{type(error).__name__}: {error}"
        finally:
            self._kill()
            self._link.send_packed(None, 0)
            self._ended.ring()

    def _serve(self) -> None:
        description, pid, node = self._answer(self._ask("described"))
        self._process = pid, node
        if node == self._ray.get_runtime_context().get_node_id():
            self._here = psutil.Process(pid)
        self._link.send_packed(description, 0)
        binding = self._bindings.get()
        if binding is None:
            raise _GivenUp
        views, mailbox, replacing = binding
        self._mailbox, mirror, wait_set = mailbox, Mirror(views, self._env_ids), WaitSet()
        mailbox.add_to(wait_set)
        self._answer(self._ask("connect", views.layout, mirror.changes(), replacing))
        while True:
            wait_set.sleep_until(lambda: mailbox.requested() or self._given_up, None)
            if self._given_up:
                raise _GivenUp
            command = mailbox.take()
            if command == CLOSE:
                last = self._answer(self._ask("close", mailbox.sequence))
                self._link.send_packed(last, mailbox.sequence)
                return
            follows = command in (RUN, ROWS) or command & WITH_OBJECTS
            message = self._message(mailbox.sequence) if follows else None
            stored = self._shared.reference(message)
            inline = message if stored is None else None
            call = self._ask("request", pickle.dumps((command, mailbox.sequence, inline, mirror.changes())), stored)
            flags, reply, row, changes = pickle.loads(self._answer(call, mailbox if command == ROWS else None))
            mirror.apply(changes)
            if command == ROWS:
                mailbox.advance_to(row)
            mailbox.reply(flags)
            if reply is not None:
                self._link.send_packed(reply, mailbox.sequence)

    def _message(self, number: int) -> Any:
        """The message of a request; messages of earlier, interrupted requests are dropped."""
        while True:
            while not self._link.poll(LOOK_EVERY_S):
                if self._given_up:
                    raise _GivenUp
            message_number, message = self._link.receive()
            if message_number == number:
                return message

    def _answer(self, call: Any, rows: WorkerMailbox | None = None) -> Any:
        """The actor's answer to a call. During a rollout (`rows`) forward stop requests, and poll its progress."""
        stop_sent, row, ask_at = False, 0, time.monotonic() + ASK_EVERY_S
        while True:
            try:
                return self._ray.get(call, timeout=LOOK_EVERY_S)
            except self._ray.exceptions.GetTimeoutError:
                pass
            if self._given_up:
                raise _GivenUp
            if not self._lives_on():
                raise _Gone
            if rows is not None and rows.stopping and not stop_sent:
                stop_sent = True
                self._ask("stop", rows.sequence)
            if rows is not None and time.monotonic() > ask_at:
                before, ask_at = row, time.monotonic() + ASK_EVERY_S
                row = self._row(row)
                if row != before:
                    rows.note_progress()

    def _row(self, last: int) -> int:
        try:
            return int(self._ray.get(self._ask("state"), timeout=ANSWER_S)[0])
        except self._ray.exceptions.GetTimeoutError:
            return last


class RayHost(WorkerHost):
    life: RayLife

    def connect(self, views: Views, replacing: bool = False) -> None:
        words, bells = views[CONTROL], (new_doorbell(), new_doorbell())
        words[self.worker] = 0
        self.bind(CallerMailbox(words, self.worker, bells), views)
        self.life.connect(views, WorkerMailbox(words, self.worker, bells), replacing)


class RayWorkers:
    """The actors of one vector env."""

    def __init__(self) -> None:
        self.hosts: list[WorkerHost] = []
        self._assignments: dict[int, tuple[Assignment, bytes]] = {}
        self._options, self._shared = RayOptions(), SharedMessages()

    def start(self, assignments: Sequence[Assignment], plan: Plan) -> None:
        self._options = plan.ray or RayOptions()
        ray_cluster.connect(self._options)
        ray_cluster.check(len(assignments), self._options)
        self._shared = SharedMessages(ray_cluster.own())
        with ray_cluster.own_modules_by_value(ray_cluster.used_by(assignments)):
            data = pickled(assignments)
        self._assignments = {a.worker: (a, bytes_) for a, bytes_ in zip(assignments, data)}
        for worker in self._assignments:
            self.hosts.append(self._started(worker, self._resources(), "SPREAD"))

    def _surroundings(self) -> Surroundings:
        """The caller's surroundings with its whole registry, because that of a node's process is not known here."""
        with ray_cluster.own_modules_by_value(gymnasium.registry.values()):
            return Surroundings.here(additions())

    def _resources(self) -> dict[str, float]:
        """Resources to reserve per worker. No CPUs in a private cluster, which may have more workers than cores."""
        return {
            "num_cpus": 0.0 if ray_cluster.own() else self._options.cpus_per_worker,
            "num_gpus": self._options.gpus_per_worker,
        }

    def _started(self, worker: int, resources: dict[str, float], strategy: Any) -> RayHost:
        assignment, data = self._assignments[worker]
        actor = (
            ray_cluster.ray()
            .remote(RayActor)
            .options(**resources, max_concurrency=3, max_restarts=0, scheduling_strategy=strategy)
            .remote(self._surroundings(), data)
        )
        ours, theirs = PackedLink.beside()
        life = RayLife(assignment, actor, theirs, self._shared, resources)
        return RayHost(worker, assignment.config.env_ids, ours, life)

    def arrays(self, fields: Sequence[Field]) -> dict[FieldName, Array]:
        return private_arrays(fields)

    def connect(self, views: Views) -> None:
        for host in self.hosts:
            assert isinstance(host, RayHost)
            host.connect(views)

    def start_again(self, host: WorkerHost, views: Views, check: Callable[[WorkerHost], None]) -> WorkerHost:
        """Start a worker again, on another node if its node may be lost."""
        assert isinstance(host, RayHost)
        resources, lost = self._resources(), host.life.node_in_doubt
        nodes = ray_cluster.nodes_with("CPU", 0.0)
        if not nodes:
            raise ClusterGone(host.worker, host.env_ids, "cannot be restarted: no Ray nodes are left", HOW_TO_CONTINUE)
        free = [node for node in ray_cluster.nodes_with("CPU", resources["num_cpus"]) if node != lost]
        if not free:  # guard: a-lost-node-is-done-without
            log.warning(
                "worker %d: no node of the Ray cluster has %g CPUs free; from now on it shares CPUs with other workers",
                host.worker,
                resources["num_cpus"],
            )
            resources["num_cpus"], free = 0.0, [node for node in nodes if node != lost] or nodes
        new = self._started(host.worker, resources, "SPREAD" if lost is None else ray_cluster.on_node(free[0]))
        try:
            check(new)
            new.connect(views, replacing=True)
        except BaseException:
            new.kill()
            raise
        return new

    def abandon(self) -> None:
        pass  # the actors end with their hosts

    def close(self) -> None:
        pass


def _in_a_line(error: BaseException) -> str:
    """The reason in Ray's message, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    reason = next((line for line in lines if line.startswith(("The actor is dead", "The node"))), lines[0])
    return f"{type(error).__name__}: {reason.split('. ')[0]}"
