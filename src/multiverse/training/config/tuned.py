"""Settings from a plan file of `multiverse tune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multiverse.core.plan import read_plan


def tuned_settings(plan: str, env: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a plan file, without those of the executor if any of these is given."""
    from multiverse.executors.machine import usable_cores  # not needed for help

    found, num_envs = read_plan(plan, env, usable_cores())
    where = {"executor": found.executor, "workers": found.workers or None, "start_method": found.start_method}
    return {"num_envs": num_envs, **({} if given.keys() & where.keys() else where)}
