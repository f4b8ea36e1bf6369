"""Results of a check of an env: findings, each with its evidence, and the report that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from multiverse.core.errors import MultiverseError
from multiverse.core.wording import pluralize

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem or fact: the evidence (`seen`), why it matters, and what to change."""

    code: str
    severity: Severity
    seen: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity} [{self.code}] {self.seen}\n    why: {self.why}\n    do:  {self.remedy}"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """Duration of one check, or the reason why it was not done."""

    name: str
    seconds: float
    skipped_because: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport:
    """All findings about one env, errors first."""

    env: str
    seed: int
    findings: tuple[Finding, ...]
    checks: tuple[CheckRun, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that break a program, or make a learner learn something wrong."""
        return self._of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that cost speed or memory, or break some programs."""
        return self._of("warning")

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings are allowed."""
        return not self.errors

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings, in their order."""
        return tuple(finding.code for finding in self.findings)

    @property
    def skipped(self) -> tuple[CheckRun, ...]:
        """Checks that could not be done."""
        return tuple(run for run in self.checks if run.skipped_because)

    @property
    def summary(self) -> str:
        """Number of findings of each severity, in one line."""
        counts = [pluralize(len(self._of(severity)), severity) for severity in SEVERITIES]
        left_out = f"; {pluralize(len(self.skipped), 'check')} not done" if self.skipped else ""
        return f"{self.env}: {', '.join(counts)}{left_out}"

    def raise_for_errors(self, strict: bool = False) -> None:
        """Raise `EnvCheckFailed` if there are errors (`strict`: or warnings)."""
        if self.errors or (strict and self.warnings):
            raise EnvCheckFailed(self)

    def __str__(self) -> str:
        return "\n".join([self.summary, *map(str, self.findings), *self.not_done])

    def __repr__(self) -> str:
        return f"<CheckReport {self.summary}>"

    @property
    def not_done(self) -> list[str]:
        """One line for each reason why checks could not be done."""
        reasons = dict.fromkeys(run.skipped_because for run in self.skipped)
        names = {why: ", ".join(run.name for run in self.skipped if run.skipped_because == why) for why in reasons}
        return [f"not done, {why}: {several}" for why, several in names.items()]

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)


class EnvCheckFailed(MultiverseError, AssertionError):
    """`check_env` found errors. The message holds every finding; `report` has them as objects."""

    def __init__(self, report: CheckReport) -> None:
        super().__init__(str(report))
        self.report = report
