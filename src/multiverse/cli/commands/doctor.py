"""`multiverse doctor`: check this machine, and say how to fix what keeps multiverse from working.

The self-test runs envs in all ways, which must give equal bits and leave nothing behind."""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

import multiverse as mv
from multiverse.cli.main import parse
from multiverse.cli.output import Progress, ResultConsole, print_json
from multiverse.core.views import Array
from multiverse.executors import machine, process
from multiverse.executors.launch import fork_server
from multiverse.measure import AnyVectorEnv, descendants

if TYPE_CHECKING:
    from multiverse.cli.doctor_checks import Finding

DESCRIPTION = """\
Checks this machine: Python, platform, cores, memory, limits, shared memory,
every way to start a worker, GPU, optional packages. Each check reports what
it found, and what to do. Exit code 1 when something keeps multiverse from
working.

examples:
  multiverse doctor --self-test     after installing: runs every executor
  multiverse doctor --json"""


@dataclass(frozen=True)
class Doctor:
    """Options of `multiverse doctor`."""

    json: bool = False
    """Print one JSON object instead of lines."""
    self_test: bool = False
    """Also step envs under every executor and start method, compare the results bit for bit, and look for leaks."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Doctor, "doctor", DESCRIPTION, arguments)
    findings = _examine()
    if not options.json:
        _print_findings(findings)
    outcomes = _run_self_test(quiet=options.json) if options.self_test else []
    healthy = all(f.status != "blocking" for f in findings.values()) and all(o.passed for o in outcomes)
    if options.json:
        checks = [{"name": name, **asdict(finding)} for name, finding in findings.items()]
        self_test = {"self_test": [asdict(outcome) for outcome in outcomes]} if outcomes else {}
        print_json({"healthy": healthy, "checks": checks, **self_test})
    else:
        print("\nmultiverse works on this machine." if healthy else "\nFix what is marked above.")
    return int(not healthy)


def _examine() -> dict[str, Finding]:
    from multiverse.cli.doctor_checks import all_checks, examine

    checks, findings = all_checks(), {}
    with Progress(len(checks)) as progress:
        for name, check in checks.items():
            progress.next(f"checking: {name}")
            findings[name] = examine(check)
    return findings


def _run_self_test(quiet: bool) -> list[Outcome]:
    """Run the self-test, and print each outcome at once."""
    console, outcomes = ResultConsole(), []
    if not quiet:
        console.print("\nSelf-test", style="bold")
    for outcome in run_self_test():
        outcomes.append(outcome)
        if not quiet:
            text = f"{outcome.seconds:.2f} s" + ("" if outcome.passed else f": {outcome.detail}")
            console.print_status("ok" if outcome.passed else "failed", outcome.name, 38, text)
    return outcomes


def _print_findings(findings: Mapping[str, Finding]) -> None:
    console, width = ResultConsole(), max(map(len, findings))
    for name, finding in findings.items():
        console.print_status(finding.status, name, width, finding.found)
        if finding.advice:
            console.print_status("", "", width, f"→ {finding.advice}")


# -- the self-test -------------------------------------------------------------------------------------------------
ENV, NUM_ENVS, STEPS, SEED = "CartPole-v1", 5, 200, 7
FIELDS = ("observations", "rewards", "terminated", "truncated")
SETTLE_S = 3.0

Trajectory = list[tuple[Array, ...]]
Make = Callable[[], AnyVectorEnv]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one check of the self-test."""

    name: str
    passed: bool
    detail: str
    seconds: float


def run_self_test() -> Iterator[Outcome]:
    """Yield outcomes: serial compared with Gymnasium, each other way compared with serial, and what was left behind."""
    if process.usable_here():
        fork_server.fork_server()  # it lives as long as the program, so it is started before the first count
    before = Held.now()
    reference: list[Trajectory] = []

    def check_serial() -> str:
        reference.append(trajectory(lambda: mv.make_vec(ENV, NUM_ENVS, "serial")))
        gymnasiums = trajectory(lambda: gymnasium.make_vec(ENV, NUM_ENVS, vectorization_mode="sync"))
        return difference(reference[0], gymnasiums)

    def check_like_serial(make: Make) -> str:
        return difference(trajectory(make), reference[0]) if reference else "nothing to compare with: serial failed"

    yield outcome("serial, as Gymnasium's SyncVectorEnv", check_serial)
    for name, make in contenders().items():
        yield outcome(f"{name}, as serial", functools.partial(check_like_serial, make))
    yield outcome("nothing left behind", lambda: left_behind(before))


def contenders() -> dict[str, Make]:
    """Return every executor and start method of this platform but serial."""
    vec = functools.partial(mv.make_vec, ENV, NUM_ENVS, workers=2)
    found: dict[str, Make] = {"thread": functools.partial(vec, "thread")}
    if process.usable_here():
        for method in ("forkserver", "fork", "spawn"):
            found[f"process by {method}"] = functools.partial(vec, "process", start_method=method)
        found["hybrid"] = functools.partial(vec, "hybrid")
    return found


def outcome(name: str, check: Callable[[], str]) -> Outcome:
    """Run one check, which returns what is wrong, or ''."""
    begun = time.perf_counter()
    try:
        wrong = check()
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        wrong = f"{type(error).__name__}: {first_line}"
    detail = wrong or f"{STEPS} steps of {NUM_ENVS} envs"
    return Outcome(name, not wrong, detail, time.perf_counter() - begun)


# -- the same bits ---------------------------------------------------------------------------------------------
def trajectory(make: Make) -> Trajectory:
    """Return what a vector env returns for the fixed seeds and actions of the test."""
    actions = np.random.default_rng(SEED).integers(0, 2, (STEPS, NUM_ENVS))
    envs = make()
    try:
        observations, _ = envs.reset(seed=SEED)
        rows: Trajectory = [(observations,)]
        for batch in actions:
            rows.append(envs.step(batch)[:4])
        return rows
    finally:
        envs.close()


def difference(one: Trajectory, other: Trajectory) -> str:
    """Describe the first difference of two trajectories; '' if they are equal bit for bit."""
    for number, (ours, theirs) in enumerate(zip(one, other, strict=True)):
        for name, a, b in zip(FIELDS, ours, theirs):
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                return f"{name} differ {f'at step {number}' if number else 'after reset'}"
    return ""


# -- nothing left ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Held:
    """Descendants, open files and threads of this process."""

    processes: frozenset[int]
    open_files: int
    threads: frozenset[str]

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        threads = frozenset(f"{t.name} ({t.ident})" for t in threading.enumerate())
        return cls(frozenset(descendants()), machine.open_descriptors(), threads)


def left_behind(before: Held) -> str:
    """Describe what was not there before, after a moment in which it may go away; '' if there is nothing."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        words = more_than(Held.now(), before)
        if not words or time.monotonic() > give_up:
            return words
        time.sleep(0.05)


def more_than(now: Held, before: Held) -> str:
    """Describe what `now` has and `before` has not; '' if there is nothing."""
    processes, threads = sorted(now.processes - before.processes), sorted(now.threads - before.threads)
    open_files = now.open_files - before.open_files
    parts = [f"processes {processes}"] if processes else []
    parts += [f"{open_files} open files"] if open_files > 0 else []
    parts += [f"threads {', '.join(threads)}"] if threads else []
    return f"left behind: {'; '.join(parts)}" if parts else ""
