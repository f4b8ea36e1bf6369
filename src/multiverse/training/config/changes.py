"""Settings given in Python: synonyms of other libraries, schedules as functions, and changes for a resumed run."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from multiverse.algorithms.capabilities import capabilities_of, refuse_unsupported, settings_of
from multiverse.algorithms.settings import Settings
from multiverse.core.errors import InvalidRequest
from multiverse.core.wording import short_error
from multiverse.training.config.budget import Clock
from multiverse.training.config.build import Located
from multiverse.training.config.other_libraries import SYNONYMS
from multiverse.training.config.resolve import merged, own_settings, plain_config, train_config
from multiverse.training.config.train_config import BUDGETS, TrainConfig, budget_of

Schedule = Callable[[float], float]
"""Function from the share of the budget that is left (1 at the beginning, 0 at the end) to the value of a setting."""


def without_synonyms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `mv.train` and `mv.resume` by our names, where other libraries' names are accepted too."""
    ours = {theirs: name for name, others in SYNONYMS.items() for theirs in others}
    given: dict[str, str] = {}  # by our name: the name in the call
    for name in settings:
        if (first := given.setdefault(ours.get(name, name), name)) != name:
            raise InvalidRequest(f"{name} and {first} are the same setting: leave one out")
    return {known: settings[name] for known, name in given.items()}


def without_schedules(settings: Mapping[str, Any], kind: Any) -> tuple[Located, dict[str, Schedule]]:
    """Return the settings, with the initial values of those that are functions, and these functions. Only settings of
    the algorithm (`kind`) that are numbers can be functions."""
    kinds = typing.get_type_hints(kind.Config) if own_settings(kind) else {}
    numbers = {name for name, one in kinds.items() if {one, *typing.get_args(one)} & {int, float}}
    schedules = {name: value for name, value in settings.items() if name in numbers and callable(value)}
    values = {**settings, **{name: _first_value(name, schedule) for name, schedule in schedules.items()}}
    # A function is the whole schedule: a preset's linear one must not be applied on top of it.
    built_in = {f"{name}_schedule" for name in schedules} & kinds.keys()
    values |= {name: "constant" for name in built_in if name not in settings}
    return Located(values, getattr(settings, "places", {})), schedules


def _first_value(name: str, schedule: Schedule) -> float:
    try:
        return schedule(1.0)
    except Exception as error:  # whatever the user's function does
        raise InvalidRequest(
            f"{name}: expected a function of the share of the budget that is left, such as `lambda left: 3e-4 * left`; "
            f"called with 1.0 it raised {short_error(error)}"
        ) from error


def edited_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """Return the names of the settings that differ between two configs, those of an algorithm's section included."""
    edited: set[str] = set()
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            edited |= {inner for inner in old.keys() & new.keys() if old[inner] != new[inner]}
        elif old != new:
            edited.add(name)
    return edited


HOLD = "hold_schedules"
"""Option of `resume`: scheduled values stay as they were in the last update."""


def last_progress(saved: Mapping[str, Any], clock: Clock) -> float:
    """Return the schedule progress (0 to 1) of the last update of a run with these saved settings."""
    held = saved.get("schedule_progress")
    return float(held) if isinstance(held, int | float) else budget_of(saved).spent_before_last_rollout(clock)


def schedule_jumps(
    learner: Any, schedules: Mapping[str, Schedule], saved: Mapping[str, Any], clock: Clock, progress: float
) -> str:
    """Describe the scheduled values that jump because the run is resumed with another budget than it had (`saved`).

    '' if none do. `progress`: the schedule progress now."""
    settings = settings_of(learner)

    def values(at: float) -> dict[str, float]:
        own = settings.scheduled(at) if isinstance(settings, Settings) else {}
        return own | {name: schedule(1.0 - at) for name, schedule in schedules.items()}

    held = saved.get("schedule_progress")
    planned = values(budget_of(saved).spent(clock) if held is None else held)
    now, last = values(progress), values(last_progress(saved, clock))
    last |= {name: getattr(settings, name, last[name]) for name in schedules}  # the function may be another one
    jumping = [name for name, value in now.items() if not (_equal(value, planned[name]) or _equal(value, last[name]))]
    return " and ".join(f"{name} goes from {last[name]:.3g} to {now[name]:.3g}" for name in jumping)


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6)


KEPT = frozenset({"env", "algorithm", "seed", "num_envs", "separate", "opponents", "wrappers", "tasks",
                  "held_out_tasks", "episodes_per_task", "oracle", "action_masks", "network",
                  "network_kwargs"})  # fmt: skip
"""Settings that a run cannot change: the learned weights and the state of its environments depend on them."""


def refuse_kept(changed: Iterable[str], fixed: frozenset[str] = frozenset()) -> None:
    """Refuse changes of settings that a run keeps for its whole life, given or edited in its config."""
    if wrong := sorted((KEPT | fixed).intersection(changed)):
        raise InvalidRequest(
            f"{', '.join(wrong)} cannot change in a run; start another run with its weights instead (init_from)"
        )


def changed_config(config: TrainConfig, settings: Mapping[str, Any], kind: Any) -> TrainConfig:
    """Return the config with these settings changed; a budget replaces only the budget in the same unit."""
    if not settings:
        return config
    refuse_kept(settings, capabilities_of(kind).fixed)
    budgets = {name: value for name, value in settings.items() if name in BUDGETS and value is not None}
    places = getattr(settings, "places", {})
    rest = Located({name: value for name, value in settings.items() if name not in BUDGETS}, places)
    whole = merged(plain_config(config), rest, config.algorithm, own_settings(kind))
    changed = train_config(Located({**whole, **budgets}, places), kind)
    refuse_unsupported(kind, changed.requirements())
    return changed
