"""`multiverse doctor`: check this machine, and print how to fix problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from multiverse.cli.options import option, parse
from multiverse.cli.output import Progress, ResultConsole, print_json

if TYPE_CHECKING:
    from multiverse.cli.doctor_checks import Finding
    from multiverse.cli.self_test import Outcome

DESCRIPTION = """\
Checks this machine: Python, platform, cores, memory, limits, shared memory,
start methods of workers, GPU and optional packages. Each check prints what it
found and, if there is a problem, how to fix it. The exit code is 1 if
multiverse cannot work here.

examples:
  multiverse doctor --self-test
  multiverse doctor --json"""


@dataclass(frozen=True)
class Doctor:
    """Options of `multiverse doctor`."""

    json: bool = option(False, "Print one JSON object instead of text.")
    self_test: bool = option(False, "Also compare the results of all executors bit for bit, and look for leaks.")


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
        print("\nmultiverse works on this machine." if healthy else "\nFix the problems listed above.")
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
    """Run the self-test, and print each outcome as it comes."""
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
