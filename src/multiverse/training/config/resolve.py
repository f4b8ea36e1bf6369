"""From what a user types, or a run has saved, to the whole config of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from multiverse.contracts.errors import InvalidConfig, InvalidRequest
from multiverse.training.config.build import as_plain, build, nearest
from multiverse.training.config.presets import PRESETS, preset_for
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.known_algorithms import AGENTS
from multiverse.training.session import MakeAgent
from multiverse.training.storage.redaction import redacted_fields

BUDGETS = ("env_steps", "episodes", "minutes")


def config_for(env: Any, agent: str | MakeAgent, settings: Mapping[str, Any], preset: bool | str = True) -> TrainConfig:
    """The whole config from a few settings; those of the agent may stand beside those of the run.

    A budget that is given takes the place of the preset's, in whatever unit that is.
    """
    if not isinstance(agent, str):  # the rest of its settings is its maker's own business
        return dataclasses.replace(_config_for(env, "ppo", settings, False, set()), agent=name_of(agent))  # type: ignore[arg-type]
    return _config_for(env, agent, settings, preset, {field.name for field in dataclasses.fields(TrainConfig().ppo)})


def _config_for(env: Any, agent: str, settings: Mapping[str, Any], preset: bool | str, theirs: set[str]) -> TrainConfig:
    name = env if isinstance(env, str) else name_of(env)
    known = _preset(name, agent, preset)
    if any(settings.get(unit) is not None for unit in BUDGETS):
        known = {key: value for key, value in known.items() if key not in BUDGETS}
    mine = {field.name for field in dataclasses.fields(TrainConfig)}
    merged: dict[str, Any] = {"env": name, "agent": agent, **{k: v for k, v in known.items() if k in mine}}
    agents: dict[str, Any] = {**{k: v for k, v in known.items() if k in theirs}, **dict(merged.pop("ppo", {}))}
    for key, value in settings.items():
        if key in ("ppo",):
            agents.update(value if isinstance(value, Mapping) else as_plain(value))
        elif key in mine:
            merged[key] = value
        elif key in theirs:
            agents[key] = value
        else:
            raise InvalidConfig(key, "there is no such setting", nearest(key, sorted(mine | theirs)))
    return build(TrainConfig, {**merged, "ppo": agents}, "config")


def _preset(env: str, agent: str, wanted: bool | str) -> dict[str, Any]:
    """The env's own if there is one, that of another env, which must be there, or none."""
    if isinstance(wanted, bool):
        return preset_for(env, agent) if wanted else {}
    known = [name for name, learner in PRESETS if learner == agent]
    if wanted not in known:
        raise InvalidConfig("preset", f"there is none for {wanted}", nearest(wanted, known))
    return preset_for(wanted, agent)


def saved_config(
    saved: Mapping[str, Any], where: str, agent: MakeAgent | None, env_kwargs: Mapping[str, Any] | None = None
) -> TrainConfig:
    """A run's config as it was saved. What no file holds must be given again: an agent of one's own, and secrets among
    the env's arguments."""
    if env_kwargs is not None:
        saved = {**saved, "env_kwargs": {**saved.get("env_kwargs", {}), **env_kwargs}}
    if hidden := redacted_fields(saved):
        raise InvalidRequest(
            f"{where}: {', '.join(hidden)} was secret and is not in the file: pass it again, in env_kwargs={{...}}"
        )
    name = saved.get("agent")
    if agent is None or name in AGENTS:
        if isinstance(name, str) and name not in AGENTS:
            raise InvalidRequest(
                f"{where}: the agent of this run is {name}, one of your own: pass it again, agent={name}"
            )
        return build(TrainConfig, saved, where)
    config = build(TrainConfig, {**saved, "agent": AGENTS[0]}, where)
    return dataclasses.replace(config, agent=name)  # type: ignore[arg-type]


def name_of(env: Any) -> str:
    """What to call an env that is no string."""
    return str(getattr(env, "__qualname__", None) or getattr(env, "__name__", None) or type(env).__name__)
