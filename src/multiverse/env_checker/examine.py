"""`check_env`: runs all checks one after another in a worker process, which the env may crash or block."""

from __future__ import annotations

import copy
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec

from multiverse.adapters.env_source import EnvSource, Recipe, Wrapper, pettingzoo_kind, recipes
from multiverse.core.errors import EnvFailed, InvalidRequest, ReplyTimeout
from multiverse.env_checker.catalogue import make_finding
from multiverse.env_checker.laboratory import Laboratory, Seat, Where, WorkerLost
from multiverse.env_checker.ownership import check_ownership, check_serialization
from multiverse.env_checker.repeatability import check_seeds, check_sharing
from multiverse.env_checker.report import SEVERITIES, CheckReport, CheckRun, Finding
from multiverse.env_checker.resources import check_building, check_cost, check_leaks, check_memory
from multiverse.env_checker.stepping import check_order, check_reset, check_steps
from multiverse.env_checker.subject import EnvRaised, OutOfTime, Settings, Subject
from multiverse.env_checker.values import check_spaces
from multiverse.executors.env_range import EnvRange

log = logging.getLogger("multiverse")

OUTRANKED = {"global-rng-touched": "global-rng", "episodes-repeat": "seed-default"}
"""Findings that are dropped if the other, more severe one is there."""

HOPELESS = {
    "not-an-env", "same-env-again", "build-failed", "space-missing", "action-space-sample", "crashes", "hangs",
    "possible-agents", "agent-unknown", "reset-raises", "reset-signature", "reset-return", "step-raises", "step-return",
    "info-not-dict",
}  # fmt: skip
"""Errors of the basic checks after which the other checks are skipped."""

OURS = os.path.dirname(__file__)


def check_env(
    env: EnvSource | Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] | None = None,
    seed: int = 0,
    steps: int = 1000,
    timeout_s: float = 60.0,
    strict: bool = False,
) -> CheckReport:
    """Check one env; raise `EnvCheckFailed` with all findings if there are errors.

    In a test this is all that is needed: `def test_my_env(): mv.check_env(MyEnv)`. Warnings are logged (logger
    `multiverse`) and are, as all findings, in the report that is returned. Hangs and crashes of the env do not affect
    the calling process.

    Args:
        env: as for `make_vec`: a Gymnasium id, `"module:name"`, a class or another callable that builds the env,
            Gymnasium's or PettingZoo's. It may be an instance too, which is built again from its spec, or copied.
        env_kwargs, wrappers: as for `make_vec`.
        seed: seed of the checked episodes; actions are those of `action_space.seed(seed)`.
        steps: length of the longest rollout; slow envs are stepped for 3 s at most.
        timeout_s: time without a response after which an env is reported as hanging; a check stops after half of it.
        strict: raise for warnings too.
    """
    settings = Settings(seed=seed, steps=steps, timeout_s=timeout_s)
    report = examine(source_of(env, env_kwargs, wrappers), settings)
    report.raise_for_errors(strict)
    for finding in report.warnings:
        log.warning("%s: %s: %s", report.env, finding.code, finding.seen)
    return report


def examine(source: Source, settings: Settings, progress: Callable[[str], None] | None = None) -> CheckReport:
    """Return the report of `check_env`, with or without errors; `progress` is called with each check's name first."""
    settings = replace(settings, from_factory=source.from_factory)
    with Laboratory(source.recipe) as laboratory:
        examination = Examination(laboratory, settings)
        if source.copied:
            examination.add(make_finding("checked-as-instance", f"an instance was given: it was {source.copied}"))
        examination.run(progress or (lambda name: None))
    findings = sorted(examination.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return CheckReport(source.name, settings.seed, tuple(findings), tuple(examination.runs))


# -- the env ---------------------------------------------------------------------------------------------------
class Source(NamedTuple):
    """The env to check."""

    recipe: Recipe
    name: str
    copied: str = ""  # how, if an instance was given
    from_factory: bool = True  # False: copies of one instance


def source_of(env: Any, env_kwargs: Mapping[str, Any] | None, wrappers: Sequence[Wrapper] | None = None) -> Source:
    """Return the env to check. Unlike in `make_vec` it may be an instance."""
    if isinstance(env, list | tuple):
        raise InvalidRequest(f"check_env checks one env, and got a {type(env).__name__}: pass its items one at a time")
    if not isinstance(env, gymnasium.Env) and pettingzoo_kind(env) is None:
        (recipe,) = recipes(env, 1, env_kwargs, wrappers)
        name = env.id if isinstance(env, EnvSpec) else getattr(env, "__qualname__", type(env).__qualname__)
        return Source(recipe, env if isinstance(env, str) else str(name))
    if env_kwargs:
        raise InvalidRequest("env_kwargs= cannot be used with an instance, which is built already")
    name, spec = type(env.unwrapped).__qualname__, getattr(env, "spec", None)
    if spec is not None and all(wrapper.kwargs is not None for wrapper in spec.additional_wrappers):
        (recipe,) = recipes(spec, 1, None, wrappers)
        return Source(recipe, spec.id, f"built again from its spec {spec.id!r}")
    try:
        copy.deepcopy(env)
    except Exception as error:
        raise InvalidRequest(
            f"this {name} cannot be copied ({type(error).__name__}: {error}): pass a function that builds it, "
            f"check_env(lambda: {name}(...))"
        ) from error
    (recipe,) = recipes(lambda: copy.deepcopy(env), 1, None, wrappers)
    return Source(recipe, name, "copied with deepcopy", from_factory=False)


# -- the checks ------------------------------------------------------------------------------------------------
Check = Callable[[Subject], Iterator[Finding]]

BASIC: dict[str, Check] = {
    "building and closing": check_building,
    "spaces": check_spaces,
    "reset": check_reset,
    "steps": check_steps,
}
"""Checks after whose errors the others may be impossible."""

TWO_ENVS = "two envs in one process"

CHECKS: dict[str, Check] = {
    **BASIC,
    "order of calls": check_order,
    "ownership of arrays": check_ownership,
    "seeds": check_seeds,
    TWO_ENVS: check_sharing,
    "serialization": check_serialization,
    "leaks": check_leaks,
    "memory over many resets": check_memory,
    "cost": check_cost,
}


def perform(envs: EnvRange, name: str, settings: Settings) -> list[Finding]:
    """Run one check in the worker and return its findings, which include exceptions of the env."""
    seat = cast(Seat, envs.envs[0])
    subject = Subject(seat, settings)
    findings: list[Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for finding in CHECKS[name](subject):
                findings.append(finding)  # noqa: PERF402  # one by one, to keep those from before an exception
        except EnvRaised as raised:
            findings.append(raised.finding())
        except OutOfTime as slow:
            findings.append(slow.finding(name))
        finally:
            subject.close()
    seat.note(Where())
    return findings


class Examination:
    """Runs one check after another, as far as the env allows."""

    def __init__(self, laboratory: Laboratory, settings: Settings) -> None:
        self._laboratory, self._settings = laboratory, settings
        self._stopped_by = ""
        self.findings: list[Finding] = []
        self.runs: list[CheckRun] = []

    def add(self, finding: Finding) -> None:
        """Add a finding, unless an equal one is there: many checks find the same exception."""
        known = {(f.code, _without_place(f.seen)) for f in self.findings}
        outranked = OUTRANKED.get(finding.code) in {f.code for f in self.findings}
        if (finding.code, _without_place(finding.seen)) not in known and not outranked:
            self.findings.append(finding)

    def run(self, progress: Callable[[str], None]) -> None:
        """Run all checks that can be run."""
        if self._laboratory.cannot_travel:
            self.add(make_finding("factory-cannot-travel", f"it cannot be pickled: {self._laboratory.cannot_travel}"))
        if not self._laboratory.isolated:
            self.add(make_finding("not-isolated", "the checks ran in the calling process"))
        for name in CHECKS:
            progress(name)
            why_not = f"after {self._stopped_by}" if self._stopped_by else ""
            if not why_not and name == TWO_ENVS and self._settings.one_at_a_time:
                why_not = "it needs two envs at a time"
            begun = time.perf_counter()
            for finding in [] if why_not else self._findings_of(name):
                self.add(finding)
                if finding.code == "build-again-failed":
                    self._settings = replace(self._settings, one_at_a_time=True)
                hopeless = name in BASIC and finding.severity == "error" and finding.code in HOPELESS
                if hopeless or finding.code == "hangs":  # a hang costs the whole time limit: once is enough
                    self._stopped_by = self._stopped_by or finding.code
            self.runs.append(CheckRun(name, time.perf_counter() - begun, why_not))

    def _findings_of(self, name: str) -> list[Finding]:
        try:
            timeout_s = self._settings.timeout_s
            findings: list[Finding] = self._laboratory.run(perform, name, self._settings, timeout_s=timeout_s)
            return findings
        except WorkerLost as lost:
            return [_lost(lost, timeout_s)]
        except EnvFailed as error:
            if error.failures[0].type_name in ("ModuleNotFoundError", "ImportError"):  # it could not be unpickled
                return [make_finding("build-failed", f"{error.failures[0]}, in a worker process")]
            raise


def _lost(lost: WorkerLost, timeout_s: float) -> Finding:
    if isinstance(lost.cause, ReplyTimeout):
        return make_finding("hangs", f"no answer for {timeout_s:g} s {lost.where}{_innermost(lost.cause.stack)}")
    hint = f"; {lost.cause.hint}" if lost.cause.hint else ""
    cause = lost.cause.cause.partition(" during ")[0]
    return make_finding("crashes", f"the process {cause} {lost.where}{_innermost(lost.printed)}{hint}")


def _innermost(stack: str) -> str:
    """Describe the frames of the env itself, which are younger than ours; of a text without frames, its last line."""
    for block in stack.split("\n\n"):
        frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', block)
        ours = next((i for i, (file, _, _) in enumerate(frames) if file.startswith(OURS)), None)
        if ours:
            return ": " + ", called by ".join(f"{name} ({file}, line {line})" for file, line, name in frames[:ours][:3])
    last = next((line for line in reversed(stack.splitlines()) if line.strip()), "")
    return f"; its last output: {last.strip()}" if last and "File " not in last else ""


def _without_place(seen: str) -> str:
    """Remove the step from the evidence: the same exception at another step is the same finding."""
    return re.sub(r",? (in|while|after) (step|reset|close|building|starting).*", "", seen)
