"""The worker loop: build the envs, describe them, then answer commands until told to close.

There are four commands: step (all data is in the block), run (any function over the worker's envs), rows (a function
that takes many steps), and close. The same loop serves threads and processes, which differ in how objects are sent and
where the arrays lie.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from time import monotonic_ns
from typing import Any, Literal

from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv

from multiverse.adapters.env_source import Recipe
from multiverse.adapters.registered import NOTHING_REGISTERED, Registered, without_code
from multiverse.core.env import EnvDescription
from multiverse.core.errors import PreflightError, RemoteError
from multiverse.core.imports import loads_modules
from multiverse.core.layout import Layout, Views
from multiverse.executors import env_recovery
from multiverse.executors.env_range import EnvRange, RangeConfig
from multiverse.executors.launch.black_box import StackDump
from multiverse.executors.step_reply import EXTRAS, FAILED, Extras
from multiverse.ipc.block import Block
from multiverse.ipc.doorbell import doorbell_from
from multiverse.ipc.link import LAST_WORD, Link, LinkBroken, PipeLink
from multiverse.ipc.mailbox import CONTROL, WorkerMailbox, control_field
from multiverse.ipc.waiting import Waiting, WaitSet

STEP, STEP_SOME, RUN, CLOSE, ROWS = 1, 2, 3, 4, 5
WITH_OBJECTS = 16
"""Flag of a step command: actions that the block cannot hold follow by pipe."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The caller's environment, working directory, path, arguments and registry, which each worker process adopts."""

    environ: dict[str, str]
    cwd: str
    sys_path: list[str]
    argv: list[str]
    registered: Registered = NOTHING_REGISTERED

    @classmethod
    def here(cls, registered: Registered = NOTHING_REGISTERED) -> Surroundings:
        try:
            here = os.getcwd()
        except FileNotFoundError as error:  # guard: a-removed-directory-is-named
            raise PreflightError(
                "the working directory of this program was removed, so no worker can be started in it: call os.chdir() "
                "with a directory that exists"
            ) from error
        return cls(dict(os.environ), here, list(sys.path), list(sys.argv), registered)

    def adopt(self) -> None:
        kept = {name: os.environ[name] for name in os.environ if name.endswith("_NUM_THREADS")}
        os.environ.clear()
        os.environ.update({**kept, **self.environ})
        os.chdir(self.cwd)
        sys.path[:], sys.argv[:] = self.sys_path, self.argv
        self.registered.adopt()  # guard: registered-ids-travel

    def adopt_elsewhere(self) -> None:
        """Adopt them on another machine as far as they exist there, and keep this process's variables for Ray, CUDA and
        Python."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("RAY_", "CUDA_", "PYTHON"))}
        cwd = self.cwd if os.path.isdir(self.cwd) else os.getcwd()
        places = [*sys.path, *(place for place in self.sys_path if place not in sys.path)]
        replace(self, environ={**self.environ, **kept}, cwd=cwd, sys_path=places).adopt()


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything a worker needs to build its envs."""

    worker: int
    config: RangeConfig
    recipes: list[Recipe]
    waiting: Literal["auto", "spin", "park"]
    bounds_may_differ: bool = False  # observation spaces need equal shapes and dtypes only
    spare_core: bool = False  # the worker has a core that is not the caller's


@dataclass(frozen=True, slots=True)
class Described:
    """A worker's first message: the description of its envs, and differences between them by env id."""

    first: EnvDescription
    differences: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayoutMessage:
    """The caller's answer: the layout, and so the size, of the block."""

    layout: Layout
    workers: int
    replacing: bool = False  # the worker replaces a lost one and continues its rows


Connected = tuple[Views, WorkerMailbox, bool]
"""(the arrays, the worker's mailbox, whether it replaces a lost worker)."""


# -- a worker process ------------------------------------------------------------------------------------------
@loads_modules
def main(fds: list[int]) -> int:
    """The whole life of a served worker process; its assignment arrives by pipe."""
    link = PipeLink(Connection(fds[0]), by_name_first=True)
    try:
        _, (surroundings, assignment_bytes) = link.receive()
        try:
            surroundings.adopt()
            assignment = pickle.loads(assignment_bytes)
        except Exception as error:
            link.send(RemoteError.of(error))
            return 1
        return run_process(assignment, link, fds)
    except LinkBroken:
        return 0  # the caller closed the link or died


def run_process(assignment: Assignment, link: PipeLink, fds: list[int]) -> int:
    """Run a worker process, served or forked, that has its assignment."""
    env_recovery.replaceable_process = assignment.config.failures.restarts
    block, bell_fds = Block(fds[1]), fds[3:]
    StackDump(fds[2]).record_here()
    half = len(bell_fds) // 2

    def connect(answer: LayoutMessage) -> Connected:
        fields = [control_field(answer.workers), *answer.layout.fields()]
        arrays = block.views(fields)
        block.close()
        bells = doorbell_from(tuple(bell_fds[:half])), doorbell_from(tuple(bell_fds[half:]))
        mailbox = WorkerMailbox(arrays[CONTROL], assignment.worker, bells)
        return Views.over(answer.layout, arrays), mailbox, answer.replacing

    def caller_gone() -> None:
        raise LinkBroken("the caller hung up")

    wait_set = WaitSet()
    wait_set.add_sentinel(link.fileno(), caller_gone, readable=False)
    try:
        work(assignment, link, connect, wait_set)
    except LinkBroken:
        pass
    return 0


# -- any worker ------------------------------------------------------------------------------------------------
def work(assignment: Assignment, link: Link, connect: Callable[[Any], Connected], wait_set: WaitSet) -> None:
    """Build, describe, bind, serve, close."""
    try:
        envs = EnvRange(assignment.config, [recipe.build for recipe in assignment.recipes])
    except Exception as error:
        link.send(RemoteError.of(error))
        return
    _register_main_classes(envs)
    failures: list[RemoteError] = []
    try:
        described = describe(envs, assignment.bounds_may_differ)
        if isinstance(link, PipeLink):
            described = replace(described, first=replace(described.first, spec=without_code(described.first.spec)))
        link.send_packed(_packed(link, described), 0)
        views, mailbox, replacing = connect(link.receive()[1])
        envs.bind(views, replacing)
        mailbox.add_to(wait_set)
        serve(envs, link, mailbox, Waiting(assignment.waiting, assignment.spare_core), wait_set)
    except env_recovery.OutOfMemory as end:
        envs.envs = []  # free their memory; they may not be in a state in which they can be closed
        link.send(end.failure.in_text(), LAST_WORD)
        raise
    finally:
        failures = envs.close()
    link.send(failures, mailbox.sequence)


def _register_main_classes(envs: EnvRange) -> None:
    """Add classes of the caller's `__main__`, which came by value, to ours, so that objects of them can be sent back by
    name."""
    main_module = sys.modules["__main__"]
    for env in envs.envs:
        for cls in env.classes():
            if cls.__module__ == "__main__" and "." not in cls.__qualname__ and not hasattr(main_module, cls.__name__):
                setattr(main_module, cls.__name__, cls)


_MODES = {"single": "alone", "parallel": "at once", "turns": "in turn"}


def describe(envs: EnvRange, bounds_may_differ: bool = False) -> Described:
    first = envs.envs[0].description
    differences = {
        env_id: difference
        for env_id, env in zip(envs.config.env_ids, envs.envs)
        if (difference := difference_between(first, env.description, bounds_may_differ))
    }
    return Described(first, differences)


def difference_between(one: EnvDescription, other: EnvDescription, bounds_may_differ: bool = False) -> str:
    """Text about the first space in which two envs differ; '' if a batch can hold both."""
    if one.kind != other.kind:
        return f"agents that act {_MODES[other.kind]} instead of {_MODES[one.kind]}"
    if len(one.groups) != len(other.groups):
        return f"{len(other.groups)} groups of agents instead of {len(one.groups)}"
    for a, b in zip(one.groups, other.groups):
        if a.agents != b.agents:
            return f"agents {b.agents} instead of {a.agents}"
        for kind in ("observation_space", "action_space"):
            if getattr(a, kind) != getattr(b, kind):  # guard: spaces-are-compared
                if kind == "observation_space" and bounds_may_differ and alike(getattr(a, kind), getattr(b, kind)):
                    continue
                return f"{kind} {getattr(b, kind)} instead of {getattr(a, kind)}"
    if one.state_space != other.state_space:
        return f"state_space {other.state_space} instead of {one.state_space}"
    return ""


def alike(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether the same rows can hold values of both: equal shapes and dtypes, with any bounds."""
    try:
        return is_space_dtype_shape_equiv(one, other)
    except (NotImplementedError, TypeError):  # a custom space, which has only `==`
        return one == other


def serve(envs: EnvRange, link: Link, mailbox: WorkerMailbox, waiting: Waiting, wait_set: WaitSet) -> None:
    """Answer commands until told to close. A reply's word is written before its message is sent by pipe."""
    requested = mailbox.requested

    def step(only_some: bool = False) -> int:
        """Step the envs, and record the time without resets for the caller."""
        began_at, resets_ns = monotonic_ns(), envs.episodes.resets_ns
        flags = envs.step(only_some)
        mailbox.note_step(monotonic_ns() - began_at - (envs.episodes.resets_ns - resets_ns))
        return flags

    warned: set[str] = set()  # info keys with values that cannot be sent
    while True:
        if not waiting.look(requested):
            wait_set.sleep_until(requested, None)
        command = mailbox.take()
        if command == CLOSE:
            return
        if command in (RUN, ROWS):
            _run(envs, link, mailbox, warned, (step, mailbox.advance_to) if command == ROWS else ())
            continue
        if command & WITH_OBJECTS:
            envs.take_action_objects(_message(link, mailbox.sequence))
        flags = step(only_some=command & ~WITH_OBJECTS == STEP_SOME)
        if not flags & EXTRAS:
            mailbox.reply(flags)
            continue
        packed, complete = _packed_extras(link, envs.take_extras(), warned)
        mailbox.reply(flags if complete else flags | FAILED)
        link.send_packed(packed, mailbox.sequence)


def _message(link: Link, number: int) -> Any:
    """The message of request `number`; messages of earlier, interrupted requests are dropped."""
    while True:
        message_number, message = link.receive()
        if message_number == number:
            return message


def _run(envs: EnvRange, link: Link, mailbox: WorkerMailbox, warned: set[str], first: tuple[Any, ...]) -> None:
    """Run a function over this worker's envs. `first`: its first arguments after the envs."""
    flags = EXTRAS if first else 0
    try:
        function, arguments = _message(link, mailbox.sequence)
        result = function(envs, *first, *arguments)
        if first and result.empty:
            mailbox.reply(0)  # the usual end of a rollout: a message would take as long as several rows
            return
        packed = _packed_extras(link, result, warned)[0] if isinstance(result, Extras) else link.pack(result)
    except LinkBroken:
        raise
    except Exception as error:
        flags, packed = FAILED, link.pack(RemoteError.of(error))
    mailbox.reply(flags)
    link.send_packed(packed, mailbox.sequence)


def _packed_extras(link: Link, extras: Extras, warned: set[str]) -> tuple[Any, bool]:
    """The extras as they are sent, with the repr of infos that cannot be; False if something else cannot be sent."""
    try:
        return link.pack(extras), True
    except Exception:
        extras.replace_unsendable(lambda value: _why_unsendable(link, value), warned)  # guard: infos-go-in-words
    try:
        return link.pack(extras), True
    except Exception as error:  # an observation
        return link.pack(Extras(columns=extras.columns, failures=[*extras.failures, RemoteError.of(error)])), False


def _why_unsendable(link: Link, value: Any) -> str:
    """Why a value cannot be sent; '' if it can."""
    try:
        link.pack(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _packed(link: Link, message: Any) -> Any:
    """The message as it is sent or, if it cannot be sent, the error."""
    try:
        return link.pack(message)
    except Exception as error:
        return link.pack(RemoteError.of(error))
