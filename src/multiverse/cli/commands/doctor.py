"""`multiverse doctor`: check this machine, and say how to fix what keeps multiverse from working."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from multiverse.cli.main import parse
from multiverse.cli.output import Progress, ResultConsole, print_json

if TYPE_CHECKING:
    from multiverse.cli.doctor_checks import Finding
    from multiverse.cli.self_test import Outcome


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
    from multiverse.cli.self_test import run_self_test

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
