"""Settings from a file that `multiverse tune` has written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multiverse.core.plan import read_plan


def tuned_settings(plan: str, env: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a plan file; where the executor, or its workers, are given, of these none."""
    from multiverse.executors.machine import usable_cores  # which loads more than what shows help

    found, num_envs = read_plan(plan, env, usable_cores())
    where = {"executor": found.executor, "workers": found.workers or None, "start_method": found.start_method}
    return {"num_envs": num_envs, **({} if given.keys() & where.keys() else where)}
