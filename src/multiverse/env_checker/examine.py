"""`check_env`: every check in turn, in a worker process, whatever the env does there."""

from __future__ import annotations

import copy
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec

from multiverse.adapters.env_source import EnvSource, Recipe, Wrapper, pettingzoo_kind, recipes
from multiverse.core.errors import EnvFailed, InvalidRequest, ReplyTimeout
from multiverse.core.plan import whole_number
from multiverse.env_checker.catalogue import found
from multiverse.env_checker.laboratory import Laboratory, Seat, Where, WorkerLost
from multiverse.env_checker.ownership import check_ownership, check_travelling
from multiverse.env_checker.repeatability import check_seeds, check_sharing
from multiverse.env_checker.report import SEVERITIES, CheckReport, CheckRun, Finding
from multiverse.env_checker.resources import check_building, check_cost, check_leaving, check_memory
from multiverse.env_checker.stepping import (
    check_order,
    check_reset,
    check_steps,
    check_team_order,
    check_team_reset,
    check_team_steps,
)
from multiverse.env_checker.subject import EnvRaised, OutOfTime, Settings, Subject
from multiverse.env_checker.values import check_spaces
from multiverse.executors.env_range import EnvRange

log = logging.getLogger("multiverse")

OUTRANKED = {"global-rng-touched": "global-rng", "episodes-repeat": "seed-default"}
"""Findings that only repeat, in milder words, what another one says."""

HOPELESS = {"not-an-env", "same-env-again", "build-failed", "space-missing", "action-space-sample", "crashes", "hangs"}
HOPELESS |= {"possible-agents", "agent-unknown"}
HOPELESS |= {"reset-raises", "reset-signature", "reset-return", "step-raises", "step-return", "info-not-dict"}
"""Errors of the basic checks that leave the others nothing to work with."""

OURS = os.path.dirname(__file__)

Progress = Callable[[str], None]


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
    """Check one env; raises `EnvCheckFailed` with everything found if there are errors.

    In a test this is all that is needed: `def test_my_env(): mv.check_env(MyEnv)`. Warnings are logged (logger
    `multiverse`) and, as all findings, in the report that is returned. Nothing that the env does, a hang or a crash
    included, reaches the calling process.

    Args:
        env: as for `make_vec`: a Gymnasium id, `"module:name"`, a class or another callable that builds the env,
            Gymnasium's or PettingZoo's. An instance is taken too: it is built anew from its spec, or copied.
        env_kwargs, wrappers: as for `make_vec`.
        seed: of the checked episodes; actions are those of `action_space.seed(seed)`.
        steps: of the longest rollout; slow envs are stepped for 3 s at most.
        timeout_s: an env that does not answer for so long hangs; a check of a slow one is stopped after half of it.
        strict: raise for warnings too.
    """
    report = examine(env, env_kwargs=env_kwargs, wrappers=wrappers, seed=seed, steps=steps, timeout_s=timeout_s)
    report.raise_for_errors(strict)
    for finding in report.warnings:
        log.warning("%s: %s: %s", report.env, finding.code, finding.seen)
    return report


def examine(
    env: EnvSource | Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] | None = None,
    seed: int = 0,
    steps: int = 1000,
    timeout_s: float = 60.0,
    progress: Progress | None = None,
) -> CheckReport:
    """What `check_env` finds, as a report, errors or not; `progress` hears of each check before it begins."""
    settings = _settings(seed, steps, timeout_s)
    source = _source_of(env, env_kwargs, wrappers)
    settings = replace(settings, from_factory=source.from_factory)
    with Laboratory(source.recipe) as laboratory:
        examination = Examination(laboratory, settings, timeout_s)
        if source.copied_how:
            examination.add(found("checked-as-instance", f"an instance was given: it was {source.copied_how}"))
        examination.run(progress or (lambda name: None))
    findings = sorted(examination.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return CheckReport(source.name, settings.seed, tuple(findings), tuple(examination.runs))


def _settings(seed: Any, steps: Any, timeout_s: float) -> Settings:
    if not 0 <= whole_number("seed", seed) < 2**31:
        raise InvalidRequest(f"seed={seed}: from 0 to {2**31 - 1}")
    if whole_number("steps", steps) < 1:
        raise InvalidRequest(f"steps={steps}: at least 1")
    if not timeout_s > 0:
        raise InvalidRequest(f"timeout_s={timeout_s}: more than 0")
    return Settings(whole_number("seed", seed), whole_number("steps", steps), check_s=timeout_s / 2)


# -- what is checked -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Source:
    """What is checked: how it is built, what it is called, and, of an instance, how copies of it are made."""

    recipe: Recipe
    name: str
    copied_how: str = ""
    from_factory: bool = True


def _source_of(env: Any, env_kwargs: Mapping[str, Any] | None, wrappers: Sequence[Wrapper] | None) -> Source:
    """The one env a user means; unlike `make_vec` this takes an instance as well."""
    if isinstance(env, gymnasium.Env) or pettingzoo_kind(env) is not None:
        if env_kwargs:
            raise InvalidRequest("env_kwargs= is for what builds an env, and this env is built already")
        return _of_instance(env, wrappers)
    if isinstance(env, list | tuple):
        raise InvalidRequest("check_env checks one env: pass one of the list at a time")
    (recipe,) = recipes(env, 1, env_kwargs, wrappers)
    return Source(recipe, _name(env))


def _of_instance(env: Any, wrappers: Sequence[Wrapper] | None) -> Source:
    """By its spec where that says everything, else by copying it."""
    name = type(env.unwrapped).__qualname__
    spec = getattr(env, "spec", None)
    if spec is not None and all(wrapper.kwargs is not None for wrapper in spec.additional_wrappers):
        (recipe,) = recipes(spec, 1, None, wrappers)
        return Source(recipe, spec.id, f"built anew from its spec {spec.id!r}")
    try:
        copy.deepcopy(env)
    except Exception as error:
        raise InvalidRequest(
            f"this {name} cannot be copied ({type(error).__name__}: {error}), so pass what builds it instead: "
            f"check_env(lambda: {name}(...))"
        ) from error
    (recipe,) = recipes(lambda: copy.deepcopy(env), 1, None, wrappers)
    return Source(recipe, name, "copied with deepcopy, each time as it was given", from_factory=False)


def _name(env: Any) -> str:
    if isinstance(env, EnvSpec):
        return env.id
    return env if isinstance(env, str) else str(getattr(env, "__qualname__", type(env).__qualname__))


# -- checking it -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Check:
    """One check. What a basic one finds wrong may leave the others nothing to work with."""

    function: Callable[[Subject], Iterator[Finding]]
    basic: bool = False
    needs_two: bool = False  # envs at the same time
    of_teams: Callable[[Subject], Iterator[Finding]] | None = None  # where several agents need another one


CHECKS: dict[str, Check] = {
    "building and closing": Check(check_building, basic=True),
    "spaces": Check(check_spaces, basic=True),
    "reset": Check(check_reset, basic=True, of_teams=check_team_reset),
    "steps": Check(check_steps, basic=True, of_teams=check_team_steps),
    "calls out of turn": Check(check_order, of_teams=check_team_order),
    "arrays handed over": Check(check_ownership),
    "seeds": Check(check_seeds),
    "two envs in one process": Check(check_sharing, needs_two=True),
    "what travels between processes": Check(check_travelling),
    "what is left after closing": Check(check_leaving),
    "memory over many resets": Check(check_memory),
    "cost": Check(check_cost),
}


def perform(envs: EnvRange, name: str, settings: Settings) -> list[Finding]:
    """In the worker: one check, and what it found. What the env raises is a finding too."""
    seat = cast(Seat, envs.envs[0])
    subject = Subject(seat, settings)
    findings: list[Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check = CHECKS[name]
            of_teams = check.of_teams if check.of_teams is not None and subject.is_team() else None
            for finding in (of_teams or check.function)(subject):
                findings.append(finding)  # noqa: PERF402  # one by one: what was found before it raises stays
        except EnvRaised as raised:
            findings.append(raised.finding())
        except OutOfTime as slow:
            findings.append(slow.finding(name))
        finally:
            subject.close()
    seat.note(Where())
    return findings


class Examination:
    """One check after another, as far as the env lets them."""

    def __init__(self, laboratory: Laboratory, settings: Settings, timeout_s: float) -> None:
        self._laboratory, self._settings, self._timeout_s = laboratory, settings, timeout_s
        self._stopped_by = ""
        self.findings: list[Finding] = []
        self.runs: list[CheckRun] = []

    def add(self, finding: Finding) -> None:
        """Keep a finding, unless it was made before: the same exception is met by many checks."""
        known = {(f.code, _without_place(f.seen)) for f in self.findings}
        outranked = OUTRANKED.get(finding.code) in {f.code for f in self.findings}
        if (finding.code, _without_place(finding.seen)) not in known and not outranked:
            self.findings.append(finding)

    def run(self, progress: Progress) -> None:
        if self._laboratory.cannot_travel:
            self.add(found("factory-cannot-travel", f"it cannot be pickled: {self._laboratory.cannot_travel}"))
        if not self._laboratory.isolated:
            self.add(found("not-isolated", "the checks ran in this very process"))
        for name, check in CHECKS.items():
            progress(name)
            why_not = self._why_not(check)
            begun = time.perf_counter()
            if not why_not:
                self._perform(name, check)
            self.runs.append(CheckRun(name, time.perf_counter() - begun, why_not))

    def _why_not(self, check: Check) -> str:
        if self._stopped_by:
            return f"after {self._stopped_by}"
        if check.needs_two and self._settings.one_at_a_time:
            return "it needs two envs at a time"
        return ""

    def _perform(self, name: str, check: Check) -> None:
        for finding in self._found(name):
            self.add(finding)
            if finding.code == "build-again-failed":
                self._settings = replace(self._settings, one_at_a_time=True)
            hopeless = check.basic and finding.severity == "error" and finding.code in HOPELESS
            if hopeless or finding.code == "hangs":  # a hang costs the whole time limit: once is enough
                self._stopped_by = self._stopped_by or finding.code

    def _found(self, name: str) -> list[Finding]:
        try:
            findings: list[Finding] = self._laboratory.run(perform, name, self._settings, timeout_s=self._timeout_s)
            return findings
        except WorkerLost as lost:
            return [_lost(lost, self._timeout_s)]
        except EnvFailed as error:
            if error.failures[0].type_name in ("ModuleNotFoundError", "ImportError"):  # it did not even arrive
                return [found("build-failed", f"{error.failures[0]}, in a worker process")]
            raise


def _lost(lost: WorkerLost, timeout_s: float) -> Finding:
    if isinstance(lost.cause, ReplyTimeout):
        return found("hangs", f"no answer for {timeout_s:g} s {lost.where}{_innermost(lost.cause.stack)}")
    hint = f"; {lost.cause.hint}" if lost.cause.hint else ""
    cause = lost.cause.cause.partition(" during ")[0]
    return found("crashes", f"the process {cause} {lost.where}{_innermost(lost.printed)}{hint}")


def _innermost(stack: str) -> str:
    """The frames of the env itself, those that are younger than ours; of a text without any, its last line."""
    for block in stack.split("\n\n"):
        frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', block)
        ours = next((i for i, (file, _, _) in enumerate(frames) if file.startswith(OURS)), None)
        if ours:
            return ": " + ", called by ".join(f"{name} ({file}, line {line})" for file, line, name in frames[:ours][:3])
    last = next((line for line in reversed(stack.splitlines()) if line.strip()), "")
    return f"; it printed last: {last.strip()}" if last and "File " not in last else ""


def _without_place(seen: str) -> str:
    """The same exception at another step is the same finding."""
    return re.sub(r",? (in|while|after) (step|reset|close|building|starting).*", "", seen)
