"""How the config of a run is made: from a preset, a file, flags or arguments, or from a saved run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class, known_name, section_of
from multiverse.algorithms.capabilities import refuse_unsupported
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.plan import read_plan
from multiverse.core.wording import did_you_mean, short_repr
from multiverse.training.config.build import Located, as_plain, build, is_required, place_of, with_current_names
from multiverse.training.config.files import read_config
from multiverse.training.config.other_libraries import EQUIVALENTS, SYNONYMS, equivalent
from multiverse.training.config.train_config import BUDGETS, RUN_SETTINGS, TrainConfig

if TYPE_CHECKING:
    from multiverse.training.learners import MakeAlgorithm

TRIED = "tried"
"""Key of a preset that is not a setting: the result of the run that validated it."""


@functools.cache
def presets() -> dict[tuple[str, str], dict[str, Any]]:
    """Preset settings by (env, algorithm)."""
    return {
        both: Located({name: value for name, value in one.items() if name != TRIED}, one.places)
        for both, one in _presets().items()
    }


def preset_results() -> dict[tuple[str, str], str]:
    """Results of the presets that were validated to their full budget, by (env, algorithm)."""
    return {both: str(settings[TRIED]) for both, settings in _presets().items() if TRIED in settings}


@functools.cache
def _presets() -> dict[tuple[str, str], Located]:
    return {
        (env, algorithm): settings
        for env, algorithms in read_config(Path(__file__).with_name("presets.yaml")).items()
        for algorithm, settings in algorithms.items()
    }


def config_for(
    env: Any, algorithm: str | MakeAlgorithm, settings: Mapping[str, Any], preset: bool | str = True
) -> TrainConfig:
    """Return the config of a run from some of its settings; settings of the algorithm need no section.

    A given budget replaces the preset's, whatever its unit. `plan` among the settings is a file written by
    `multiverse tune`, whose settings override the preset's.
    """
    if not isinstance(algorithm, str) and not callable(algorithm):
        raise InvalidRequest(f"algorithm={algorithm!r}: expected a name, module:Class, or a class")
    algorithm = known_name(algorithm) if isinstance(algorithm, str) else algorithm
    name = env if isinstance(env, str) else name_of(env)
    learner = algorithm if isinstance(algorithm, str) else import_name(algorithm)
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    own = own_settings(kind)
    suited = _preset(name, stock_name(learner, kind), preset)
    if learner not in ALGORITHMS:  # a Config that does not derive from the stock one may lack some of its settings
        suited = {key: value for key, value in suited.items() if key in own or key in RUN_SETTINGS}
    known = merged(Located({}, {}), suited, learner, own)
    given = with_current_names(settings)
    if (plan := given.pop("plan", None)) is not None:
        known = merged(known, tuned_settings(plan, env, given), learner, own)
    whole = merged(known, given, learner, own)
    config = train_config(Located({**whole, "env": name, "algorithm": learner}, whole.places), kind)
    refuse_unsupported(kind, config.requirements())
    return config


def stock_name(algorithm: str, kind: Any) -> str:
    """Name of the stock algorithm that this one is or derives from, whose presets apply to it; else its own name."""
    names = {path: name for name, path in ALGORITHMS.items()}
    bases = (f"{base.__module__}:{base.__qualname__}" for base in getattr(kind, "__mro__", ()))
    return algorithm if algorithm in ALGORITHMS else next((names[base] for base in bases if base in names), algorithm)


def own_settings(kind: Any) -> frozenset[str]:
    """Return the names of the settings of an algorithm: the fields of its `Config`, if it has one."""
    config = getattr(kind, "Config", None)
    if config is None:
        return frozenset()
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise InvalidRequest(f"{name_of(kind)}.Config is {config!r}: expected a dataclass whose fields have defaults")
    fields = dataclasses.fields(config)
    if bare := [field.name for field in fields if is_required(field)]:
        raise InvalidRequest(f"{name_of(kind)}.Config: {', '.join(bare)} must have a default")
    names = frozenset(field.name for field in fields)
    if forgotten := [name for name in vars(config).get("__annotations__", {}) if name not in names]:
        raise InvalidRequest(
            f"{name_of(kind)}.Config: {', '.join(forgotten)} would not be a setting, because {config.__name__} is not "
            "decorated: put @dataclass(frozen=True) above the class"
        )
    if both := sorted(names & RUN_SETTINGS):
        raise InvalidRequest(
            f"{name_of(kind)}.Config: {', '.join(both)} is a setting of every run; choose another name"
        )
    return names


def train_config(mapping: Mapping[str, Any], kind: Any, where: str = "") -> TrainConfig:
    """Return the config of a run from all its settings; those of its algorithm (`kind`) are in a section."""
    section = section_of(mapping.get("algorithm", DEFAULT_ALGORITHM))
    rest = {key: value for key, value in mapping.items() if key != section}
    config = getattr(kind, "Config", None)
    given = mapping.get(section) or {}
    settings = dict(given) if config is None else build(config, given, f"{where}: {section}" if where else section)
    return build(TrainConfig, Located({**rest, "settings": settings}, getattr(mapping, "places", {})), where)


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """Return a config as it is written to files; `saved_config` reads it."""
    plain = as_plain(config)
    settings = plain.pop("settings")
    return {**plain, section_of(config.algorithm): settings}


def merged(under: Mapping[str, Any], over: Mapping[str, Any], algorithm: str, own: frozenset[str]) -> Located:
    """Return the settings `under`, overridden by `over`; those of the algorithm (`own`) are in its section. Each key
    keeps its place in a file or on the command line."""
    name = section_of(algorithm)
    section = under.get(name, Located({}, {}))
    kept = {key: value for key, value in under.items() if key != name and not _is_replaced_budget(key, over)}
    run = Located(kept, getattr(under, "places", {}))
    theirs = Located(section, getattr(section, "places", {}))
    for key, value in over.items():
        if key == name:
            for inner, one in _section(value, place_of(over, key)).items():
                if inner not in own:
                    raise unknown_setting(place_of(value, inner, f"{name}."), inner, own, algorithm, inside=True)
                if inner in over:
                    twice = f"given twice, here and at {place_of(over, inner)}"
                    raise InvalidConfig(place_of(value, inner, f"{name}."), twice)
                theirs[inner], theirs.places[inner] = one, place_of(value, inner, f"{name}.")
        elif key in RUN_SETTINGS or key in own:
            target = run if key in RUN_SETTINGS else theirs
            if key == "env_kwargs" and isinstance(value, Mapping) and isinstance(run.get(key), Mapping):
                value = {**run[key], **value}  # other arguments of the env are kept
            target[key], target.places[key] = value, place_of(over, key)
        else:
            raise unknown_setting(place_of(over, key), key, RUN_SETTINGS | own, algorithm)
    run[name] = theirs
    return run


def _section(value: Any, place: str) -> Mapping[str, Any]:
    """Return the settings of an algorithm, given as a dict or as its `Config`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_plain(value)
    if not isinstance(value, Mapping):
        raise InvalidConfig(place, f"expected settings (name: value), found {short_repr(value)}")
    return value


def _is_replaced_budget(key: str, over: Mapping[str, Any]) -> bool:
    return key in BUDGETS and any(over.get(unit) is not None for unit in BUDGETS)


def unknown_setting(
    place: str, name: str, known: frozenset[str], algorithm: str, inside: bool = False
) -> InvalidConfig:
    """Return an error that names the setting that was probably meant."""
    meant = next((ours for ours, theirs in SYNONYMS.items() if name in theirs and ours in known), None)
    others = [theirs for ours in known for theirs in SYNONYMS.get(ours, ())]
    hint = f"Did you mean {meant}?" if meant else did_you_mean(name, sorted(known), others)
    if name in EQUIVALENTS:
        hint = equivalent(name)
    elif whose := algorithms_with(name):
        hint = f"It is a setting of {', '.join(whose)}; this is {algorithm}"
    if inside and name in RUN_SETTINGS:
        hint = "It is a setting of the run: it belongs outside this section"
    return InvalidConfig(place, "there is no such setting", hint)


def algorithms_with(name: str) -> list[str]:
    """Return the names of the stock algorithms that have this setting."""
    return [one for one in ALGORITHMS if name in own_settings(algorithm_class(one))]


def _preset(env: str, algorithm: str, wanted: bool | str) -> dict[str, Any]:
    """Return the preset of this env (`wanted` is True) or of another env (its name), which must exist; or none."""
    if isinstance(wanted, bool | None):
        return presets().get((env, algorithm), {}) if wanted else {}
    known = [name for name, learner in presets() if learner == algorithm]
    if wanted not in known:
        raise InvalidConfig("preset", f"there is no preset for {wanted}", did_you_mean(wanted, known))
    return presets()[wanted, algorithm]


def saved_config(
    saved: Mapping[str, Any],
    where: str,
    algorithm: MakeAlgorithm | None,
    env_kwargs: Mapping[str, Any] | None = None,
    needs_env: bool = True,
    needs_algorithm: bool = True,
) -> TrainConfig:
    """Return the config of a saved run.

    What is not in the file must be given again: an algorithm that has no name, and secrets among the arguments of the
    env if the env is needed. If a custom algorithm is not needed (`needs_algorithm`), it is not imported, and its
    settings are a dict.
    """
    from multiverse.training.runs.origin import redacted_fields  # not needed for help

    saved = with_current_names(saved)
    if env_kwargs is not None and isinstance(saved.get("env_kwargs", {}), Mapping):
        saved = {**saved, "env_kwargs": {**saved.get("env_kwargs", {}), **env_kwargs}}
    if needs_env and (hidden := redacted_fields(saved)):
        raise InvalidRequest(
            f"{where}: {', '.join(hidden)} is secret and was not saved: pass it again in env_kwargs={{...}}"
        )
    name = saved.get("algorithm", DEFAULT_ALGORITHM)
    if algorithm is None and name not in ALGORITHMS and not needs_algorithm:
        return train_config(saved, None, where)
    return train_config(saved, algorithm_class(name) if algorithm is None else algorithm, where)


def import_name(kind: Any) -> str:
    """Return `module:Class` of an algorithm if it can be imported by that, so that a resume finds it; else its name."""
    module, name = getattr(kind, "__module__", "__main__"), getattr(kind, "__qualname__", "<locals>")
    importable = isinstance(kind, type) and module != "__main__" and "<locals>" not in name and hasattr(kind, "Config")
    return f"{module}:{name}" if importable else name_of(kind)


def wrapper_name(wrapper: Any) -> str:
    """Return `module:name` of a wrapper class or function if it can be imported by that; else its name."""
    module, name = getattr(wrapper, "__module__", "__main__"), getattr(wrapper, "__qualname__", "<locals>")
    return f"{module}:{name}" if module != "__main__" and name.isidentifier() else name_of(wrapper)


def name_of(env: Any) -> str:
    """Return a name for an env or an algorithm that is not given as a string."""
    return str(getattr(env, "__qualname__", None) or getattr(env, "__name__", None) or type(env).__name__)


def tuned_settings(plan: str, env: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a plan file, without those of the executor if any of these is given."""
    from multiverse.executors.machine import usable_cores  # not needed for help

    found, num_envs = read_plan(plan, env, usable_cores())
    where = {"executor": found.executor, "workers": found.workers or None, "start_method": found.start_method}
    return {"num_envs": num_envs, **({} if given.keys() & where.keys() else where)}
