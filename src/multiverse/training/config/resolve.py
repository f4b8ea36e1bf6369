"""From what a user types, or a run has saved, to the whole config of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiverse.algorithms import ALGORITHMS, algorithm_class, section_of
from multiverse.contracts.errors import InvalidConfig, InvalidRequest, in_words
from multiverse.training.config.build import Located, as_plain, build, in_todays_names, nearest, place_of
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import SYNONYMS, TrainConfig
from multiverse.training.session import MakeAlgorithm
from multiverse.training.storage.origin import redacted_fields

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    (env, algorithm): settings
    for env, algorithms in read_config(Path(__file__).with_name("presets.yaml")).items()
    for algorithm, settings in algorithms.items()
}
"""Settings that are known to suit an (env, algorithm)."""
BUDGETS = ("env_steps", "episodes", "minutes")
RUN_SETTINGS = frozenset(field.name for field in dataclasses.fields(TrainConfig)) - {"settings"}


def config_for(
    env: Any, algorithm: str | MakeAlgorithm, settings: Mapping[str, Any], preset: bool | str = True
) -> TrainConfig:
    """The whole config from a few settings; those of the algorithm may stand beside those of the run.

    A budget that is given takes the place of the preset's, in whatever unit that is.
    """
    if not isinstance(algorithm, str) and not callable(algorithm):
        raise InvalidRequest(f"algorithm={algorithm!r}: a name, your module:Class, or what makes one")
    name = env if isinstance(env, str) else name_of(env)
    learner = algorithm if isinstance(algorithm, str) else import_name(algorithm)
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    own = own_settings(kind)
    known = merged(Located({}, {}), _preset(name, learner, preset), learner, own)
    whole = merged(known, in_todays_names(settings), learner, own)
    return train_config(Located({**whole, "env": name, "algorithm": learner}, whole.places), kind)


def own_settings(kind: Any) -> frozenset[str]:
    """The settings of an algorithm, by the fields of its `Config`; one without has none that we know of."""
    config = getattr(kind, "Config", None)
    if config is None:
        return frozenset()
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise InvalidRequest(f"{name_of(kind)}.Config is {config!r}: expected a dataclass whose fields have defaults")
    fields = dataclasses.fields(config)
    bare = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if bare:
        raise InvalidRequest(f"{name_of(kind)}.Config: {', '.join(bare)} must have a default")
    names = frozenset(field.name for field in fields)
    if both := sorted(names & RUN_SETTINGS):
        raise InvalidRequest(f"{name_of(kind)}.Config: {', '.join(both)} is a setting of every run; call it otherwise")
    return names


def train_config(mapping: Mapping[str, Any], kind: Any, where: str = "") -> TrainConfig:
    """The config of a run from its settings; those of the algorithm `kind` are in the section of its name."""
    section = section_of(mapping.get("algorithm", "ppo"))
    rest = {key: value for key, value in mapping.items() if key != section}
    config = getattr(kind, "Config", None)
    given = mapping.get(section) or {}
    settings = dict(given) if config is None else build(config, given, f"{where}: {section}" if where else section)
    return build(TrainConfig, Located({**rest, "settings": settings}, getattr(mapping, "places", {})), where)


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """As files have it: what `saved_config` reads."""
    plain = as_plain(config)
    settings = plain.pop("settings")
    return {**plain, section_of(config.algorithm): settings}


def merged(under: Mapping[str, Any], over: Mapping[str, Any], algorithm: str, own: frozenset[str]) -> Located:
    """Settings over settings, those of the algorithm (`own`) in its section; each key remembers where it stands."""
    name = section_of(algorithm)
    section = under.get(name, Located({}, {}))
    kept = {key: value for key, value in under.items() if key != name and not _budget_of_both(key, over)}
    run = Located(kept, getattr(under, "places", {}))
    theirs = Located(section, getattr(section, "places", {}))
    for key, value in over.items():
        if key == name:
            for inner, one in _section(value, place_of(over, key)).items():
                if inner not in own:
                    raise no_such(place_of(value, inner, f"{name}."), inner, own, inside=True)
                if inner in over:
                    twice = f"it is given twice, here and at {place_of(over, inner)}"
                    raise InvalidConfig(place_of(value, inner, f"{name}."), twice)
                theirs[inner], theirs.places[inner] = one, place_of(value, inner, f"{name}.")
        elif key in RUN_SETTINGS or key in own:
            target = run if key in RUN_SETTINGS else theirs
            target[key], target.places[key] = value, place_of(over, key)
        else:
            raise no_such(place_of(over, key), key, RUN_SETTINGS | own)
    run[name] = theirs
    return run


def _section(value: Any, place: str) -> Mapping[str, Any]:
    """The settings of an algorithm, as a dict or as its `Config`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_plain(value)
    if not isinstance(value, Mapping):
        raise InvalidConfig(place, f"expected settings (name: value), found {in_words(value)}")
    return value


def _budget_of_both(key: str, over: Mapping[str, Any]) -> bool:
    return key in BUDGETS and any(over.get(unit) is not None for unit in BUDGETS)


def no_such(place: str, name: str, known: frozenset[str], inside: bool = False) -> InvalidConfig:
    """An error with the setting that was probably meant."""
    meant = next((ours for ours, theirs in SYNONYMS.items() if name in theirs and ours in known), None)
    hint = f"Did you mean {meant}?" if meant else nearest(name, sorted(known))
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
    if isinstance(algorithm, str):
        raise InvalidRequest(f"algorithm={algorithm!r}: the run says which it is; pass what makes one of your own")
    saved = in_todays_names(saved)
    if env_kwargs is not None and isinstance(saved.get("env_kwargs", {}), Mapping):
        saved = {**saved, "env_kwargs": {**saved.get("env_kwargs", {}), **env_kwargs}}
    if needs_env and (hidden := redacted_fields(saved)):
        raise InvalidRequest(
            f"{where}: {', '.join(hidden)} was secret and is not in the file: pass it again, in env_kwargs={{...}}"
        )
    name = saved.get("algorithm", "ppo")
    if algorithm is None and ":" not in name and name not in ALGORITHMS:
        raise InvalidRequest(
            f"{where}: the algorithm of this run is {name}, one of your own: pass it again, algorithm={name}"
        )
    return train_config(saved, algorithm_class(name) if algorithm is None else algorithm, where)


def import_name(kind: Any) -> str:
    """`module:Class` of an algorithm that can be imported again, so that runs need not be given it; else its name."""
    module, name = getattr(kind, "__module__", "__main__"), getattr(kind, "__qualname__", "<locals>")
    importable = isinstance(kind, type) and module != "__main__" and "<locals>" not in name and hasattr(kind, "Config")
    return f"{module}:{name}" if importable else name_of(kind)


def name_of(env: Any) -> str:
    """What to call an env, or an algorithm, that is no string."""
    return str(getattr(env, "__qualname__", None) or getattr(env, "__name__", None) or type(env).__name__)
