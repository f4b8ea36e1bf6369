"""The checks in their order, and one of them performed: what the worker is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from multiverse.env_checks.checks.cost import check_cost
from multiverse.env_checks.checks.handing_over import check_ownership, check_travelling
from multiverse.env_checks.checks.lifetime import check_building, check_leaving, check_memory
from multiverse.env_checks.checks.seeding import check_seeds
from multiverse.env_checks.checks.sharing import check_sharing
from multiverse.env_checks.checks.space_checks import check_spaces
from multiverse.env_checks.checks.stepping import check_order, check_reset, check_steps
from multiverse.env_checks.laboratory import Seat, Where
from multiverse.env_checks.report import Finding
from multiverse.env_checks.subject import EnvRaised, OutOfTime, Settings, Subject
from multiverse.executors.env_range import EnvRange


@dataclass(frozen=True, slots=True)
class Check:
    """One check. What a basic one finds wrong may leave the others nothing to work with."""

    function: Callable[[Subject], Iterator[Finding]]
    basic: bool = False
    needs_two: bool = False  # envs at the same time


CHECKS: dict[str, Check] = {
    "building and closing": Check(check_building, basic=True),
    "spaces": Check(check_spaces, basic=True),
    "reset": Check(check_reset, basic=True),
    "steps": Check(check_steps, basic=True),
    "calls out of turn": Check(check_order),
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
            for finding in CHECKS[name].function(subject):
                findings.append(finding)  # noqa: PERF402  # one by one: what was found before it raises stays
        except EnvRaised as raised:
            findings.append(raised.finding())
        except OutOfTime as slow:
            findings.append(slow.finding(name))
        finally:
            subject.close()
    seat.note(Where())
    return findings
