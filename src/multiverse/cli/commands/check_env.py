"""`multiverse check-env ENV`: find mistakes in an env."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from multiverse.cli.main import parsed_kwargs, print_wrapped, require_positive
from multiverse.cli.options import ENV_HELP, ENV_KWARGS_HELP, argument, option, parse
from multiverse.cli.output import STYLES, Progress, ResultConsole, print_json

if TYPE_CHECKING:
    from multiverse.env_checker.report import CheckReport

DESCRIPTION = """\
Checks an env: building and closing, spaces, reset and step, seeding and
determinism, several copies in one process, leaked resources, and speed. Each
finding gives the evidence, the reason why it matters, and the change to make.
A hang or a crash of the env is reported as a finding. PettingZoo envs
(parallel and AEC) are checked agent by agent. The exit code is 1 if there are
errors.

examples:
  multiverse check-env my_module:make_env
  multiverse check-env pettingzoo.classic.connect_four_v3:env
  multiverse check-env Pendulum-v1 --env-kwargs '{"g": 9.8}' --strict --json"""


@dataclass(frozen=True)
class CheckEnv:
    """Options of `multiverse check-env`."""

    env: str = argument("ENV", ENV_HELP)
    seed: int = option(0, "Seed of the episodes and of the random actions.")
    steps: int = option(1000, "Number of steps of the longest rollout; slow envs are stepped for at most 3 s.")
    timeout_s: float = option(60.0, "Seconds without an answer, after which the env counts as hung.")
    env_kwargs: str = option("{}", ENV_KWARGS_HELP, metavar="JSON")
    strict: bool = option(False, "Exit with code 1 if there are warnings, too.")
    json: bool = option(False, "Print one JSON object instead of text.")


def run(arguments: Sequence[str]) -> int:
    options = parse(CheckEnv, "check-env", DESCRIPTION, arguments)
    require_positive(steps=options.steps, timeout_s=options.timeout_s)
    kwargs = parsed_kwargs(options.env_kwargs)
    from multiverse.env_checker.examine import CHECKS, examine, source_of
    from multiverse.env_checker.subject import Settings

    with Progress(len(CHECKS)) as progress:
        settings = Settings(seed=options.seed, steps=options.steps, timeout_s=options.timeout_s)
        report = examine(source_of(options.env, kwargs), settings, lambda name: progress.next(f"checking: {name}"))
    if options.json:
        findings, checks = ([asdict(entry) for entry in part] for part in (report.findings, report.checks))
        counts = {"ok": report.ok, "errors": len(report.errors), "warnings": len(report.warnings)}
        about = {"env": report.env, "env_kwargs": kwargs, "seed": report.seed}
        print_json({**about, **counts, "findings": findings, "checks": checks})
    else:
        _print_findings(report)
    return int(bool(report.errors or (options.strict and report.warnings)))


def _print_findings(report: CheckReport) -> None:
    """Print each finding with its evidence, the reason why it matters, and the remedy."""
    console = ResultConsole()
    for finding in report.findings:
        style = STYLES["failed"] if finding.severity == "error" else STYLES.get(finding.severity, "")
        console.print(Text.assemble((finding.severity, style), f"  {finding.code}"))
        for line in (finding.seen, finding.why, f"→ {finding.remedy}"):
            console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))
    for line in report.not_done:
        console.print(Text(line, STYLES["warning"]))
    print_wrapped(report.summary)
