"""`multiverse check-env ENV`: find what is wrong with an env."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.padding import Padding
from rich.text import Text

from multiverse.cli.main import parse, parsed_kwargs, require_positive
from multiverse.cli.output import STYLES, Progress, ResultConsole, print_json

if TYPE_CHECKING:
    from multiverse.env_checker.report import CheckReport

DESCRIPTION = """\
Checks one env: building and closing, spaces, reset and step, seeds and
replays, several copies in one process, what it leaves behind, what it costs.
Each finding gives the evidence, the reason why it matters, and what to
change. A hang or a crash of the env is a finding too. PettingZoo envs,
parallel and AEC, are checked agent by agent. Exit code 1 when there are
errors.

examples:
  multiverse check-env my_module:make_env
  multiverse check-env pettingzoo.classic.connect_four_v3:env
  multiverse check-env Pendulum-v1 --env-kwargs '{"g": 9.8}' --strict --json"""


@dataclass(frozen=True)
class CheckEnv:
    """Options of `multiverse check-env`."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """A Gymnasium id, or module:name of something that builds an env, Gymnasium's or PettingZoo's."""
    seed: int = 0
    """Seed of the episodes and of the random actions."""
    steps: int = 1000
    """Length of the longest rollout; slow envs are stepped for 3 s at most."""
    timeout_s: float = 60.0
    """Time after which an env that does not answer hangs; a check of a slow env stops after half of it."""
    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Arguments for the env, as a JSON object."""
    strict: bool = False
    """Exit code 1 for warnings too."""
    json: bool = False
    """Print one JSON object instead of lines."""


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
        findings, checks = ([asdict(one) for one in part] for part in (report.findings, report.checks))
        counts = {"ok": report.ok, "errors": len(report.errors), "warnings": len(report.warnings)}
        about = {"env": report.env, "env_kwargs": kwargs, "seed": report.seed}
        print_json({**about, **counts, "findings": findings, "checks": checks})
    else:
        _print_findings(report)
    return int(bool(report.errors or (options.strict and report.warnings)))


def _print_findings(report: CheckReport) -> None:
    """Print each finding with its evidence, its reason and its remedy."""
    console = ResultConsole()
    for finding in report.findings:
        style = STYLES["failed"] if finding.severity == "error" else STYLES.get(finding.severity, "")
        console.print(Text.assemble((finding.severity, style), f"  {finding.code}"))
        for line in (finding.seen, finding.why, f"→ {finding.remedy}"):
            console.print(Padding(Text(line), (0, 0, 0, 4), expand=False))
    for line in report.not_done:
        console.print(Text(line, STYLES["warning"]))
    console.print(report.summary, markup=False, soft_wrap=True)
