"""`multiverse doctor`: is this machine fit for it, and what helps where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from multiverse.cli.main import parse
from multiverse.cli.output import Progress, ResultConsole, print_json

if TYPE_CHECKING:
    from multiverse.cli.doctor_checks import Finding
    from multiverse.cli.self_test import Outcome

DESCRIPTION = """\
Checks this machine: Python, platform, cores, memory, limits, shared memory,
every way to start a worker, GPU, optional packages. Each check says what it
found and what helps. Exit code 1 when something keeps multiverse from
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
    """Also step envs under every executor and start method, compare them bit for bit, and look for leaks."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Doctor, "doctor", DESCRIPTION, arguments)
    findings = _examine()
    if not options.json:
        _print_findings(findings)
    outcomes = _run_self_test(quiet=options.json) if options.self_test else []
    healthy = all(f.status != "blocking" for f in findings) and all(o.passed for o in outcomes)
    if options.json:
        _print_json(healthy, findings, outcomes)
    else:
        print("\nNothing keeps multiverse from working here." if healthy else "\nFix what is marked above.")
    return 0 if healthy else 1


def _examine() -> list[Finding]:
    from multiverse.cli.doctor_checks import all_checks, examine

    checks = all_checks()
    findings = []
    with Progress(len(checks)) as progress:
        for name, check in checks.items():
            progress.next(f"looking at: {name}")
            findings.append(examine(name, check))
    return findings


def _run_self_test(quiet: bool) -> list[Outcome]:
    """Each outcome is printed as soon as it is there."""
    from multiverse.cli.self_test import run_self_test

    console, outcomes = ResultConsole(), []
    if not quiet:
        console.print("\nSelf-test", style="bold")
    for outcome in run_self_test():
        outcomes.append(outcome)
        if not quiet:
            console.print_status("ok" if outcome.passed else "failed", outcome.name, 38, _timed(outcome))
    return outcomes


def _timed(outcome: Outcome) -> str:
    return f"{outcome.seconds:.2f} s" + ("" if outcome.passed else f": {outcome.detail}")


def _print_findings(findings: Sequence[Finding]) -> None:
    console = ResultConsole()
    width = max(len(f.name) for f in findings)
    for finding in findings:
        console.print_status(finding.status, finding.name, width, finding.found)
        if finding.advice:
            console.print_status("", "", width, f"→ {finding.advice}")


def _print_json(healthy: bool, findings: Sequence[Finding], outcomes: Sequence[Outcome]) -> None:
    said = {"healthy": healthy, "checks": [asdict(f) for f in findings]}
    print_json({**said, "self_test": [asdict(o) for o in outcomes]} if outcomes else said)
