"""From what a user types, or a run has saved, to the whole config of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiverse.contracts.errors import InvalidConfig, InvalidRequest
from multiverse.training.config.build import Located, as_plain, build, in_todays_names, nearest, place_of
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import SYNONYMS, TrainConfig
from multiverse.training.session import ALGORITHMS, MakeAlgorithm
from multiverse.training.storage.redaction import redacted_fields

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    (env, algorithm): settings
    for env, algorithms in read_config(Path(__file__).with_name("presets.yaml")).items()
    for algorithm, settings in algorithms.items()
}
"""Settings that are known to suit an (env, algorithm)."""
BUDGETS = ("env_steps", "episodes", "minutes")
SECTION = "ppo"
RUN_SETTINGS = frozenset(field.name for field in dataclasses.fields(TrainConfig))
OWN_SETTINGS = frozenset(field.name for field in dataclasses.fields(TrainConfig().ppo))
"""Of the algorithm."""


def config_for(
    env: Any, algorithm: str | MakeAlgorithm, settings: Mapping[str, Any], preset: bool | str = True
) -> TrainConfig:
    """The whole config from a few settings; those of the algorithm may stand beside those of the run.

    A budget that is given takes the place of the preset's, in whatever unit that is.
    """
    name = env if isinstance(env, str) else name_of(env)
    if not isinstance(algorithm, str):  # the rest of its settings is its maker's own business
        whole = merged({}, in_todays_names(settings), frozenset())
        config = build(TrainConfig, {**whole, "env": name})
        return dataclasses.replace(config, algorithm=name_of(algorithm))  # type: ignore[arg-type]
    known = merged({}, _preset(name, algorithm, preset), OWN_SETTINGS)
    whole = merged(known, in_todays_names(settings), OWN_SETTINGS)
    return build(TrainConfig, Located({**whole, "env": name, "algorithm": algorithm}, whole.places))


def merged(under: Mapping[str, Any], over: Mapping[str, Any], own: frozenset[str]) -> Located:
    """Settings over settings, those of the algorithm (`own`) in its section; each key remembers where it stands."""
    section = under.get(SECTION, Located({}, {}))
    kept = {key: value for key, value in under.items() if key != SECTION and not _budget_of_both(key, over)}
    run = Located(kept, getattr(under, "places", {}))
    theirs = Located(section, getattr(section, "places", {}))
    for key, value in over.items():
        if key == SECTION:
            for inner, one in (value if isinstance(value, Mapping) else as_plain(value)).items():
                if inner not in own:
                    raise no_such(place_of(value, inner, f"{SECTION}."), inner, own, inside=True)
                theirs[inner], theirs.places[inner] = one, place_of(value, inner, f"{SECTION}.")
        elif key in RUN_SETTINGS or key in own:
            target = run if key in RUN_SETTINGS else theirs
            target[key], target.places[key] = value, place_of(over, key)
        else:
            raise no_such(place_of(over, key), key, RUN_SETTINGS | own)
    run[SECTION] = theirs
    return run


def _budget_of_both(key: str, over: Mapping[str, Any]) -> bool:
    return key in BUDGETS and any(over.get(unit) is not None for unit in BUDGETS)


def no_such(place: str, name: str, known: frozenset[str], inside: bool = False) -> InvalidConfig:
    """An error with the setting that was probably meant."""
    meant = next((ours for ours, theirs in SYNONYMS.items() if name in theirs and ours in known), None)
    hint = f"Did you mean {meant}?" if meant else nearest(name, sorted(known - {SECTION}))
    if inside and name in RUN_SETTINGS:
        hint = "It is a setting of the run: it belongs outside this section"
    return InvalidConfig(place, "there is no such setting", hint)


def _preset(env: str, algorithm: str, wanted: bool | str) -> dict[str, Any]:
    """The env's own if there is one, that of another env, which must be there, or none."""
    if isinstance(wanted, bool):
        return PRESETS.get((env, algorithm), {}) if wanted else {}
    known = [name for name, learner in PRESETS if learner == algorithm]
    if wanted not in known:
        raise InvalidConfig("preset", f"there is none for {wanted}", nearest(wanted, known))
    return PRESETS[wanted, algorithm]


def saved_config(
    saved: Mapping[str, Any],
    where: str,
    algorithm: MakeAlgorithm | None,
    env_kwargs: Mapping[str, Any] | None = None,
    needs_env: bool = True,
) -> TrainConfig:
    """A run's config as it was saved. What no file holds must be given again: an algorithm of one's own, and, where its
    env is needed, secrets among the env's arguments."""
    saved = in_todays_names(saved)
    if env_kwargs is not None and isinstance(saved.get("env_kwargs", {}), Mapping):
        saved = {**saved, "env_kwargs": {**saved.get("env_kwargs", {}), **env_kwargs}}
    if needs_env and (hidden := redacted_fields(saved)):
        raise InvalidRequest(
            f"{where}: {', '.join(hidden)} was secret and is not in the file: pass it again, in env_kwargs={{...}}"
        )
    name = saved.get("algorithm")
    if algorithm is None or name in ALGORITHMS:
        if isinstance(name, str) and name not in ALGORITHMS:
            raise InvalidRequest(
                f"{where}: the algorithm of this run is {name}, one of your own: pass it again, algorithm={name}"
            )
        return build(TrainConfig, saved, where)
    config = build(TrainConfig, {**saved, "algorithm": ALGORITHMS[0]}, where)
    return dataclasses.replace(config, algorithm=name)  # type: ignore[arg-type]


def name_of(env: Any) -> str:
    """What to call an env that is no string."""
    return str(getattr(env, "__qualname__", None) or getattr(env, "__name__", None) or type(env).__name__)
