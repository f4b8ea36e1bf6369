"""What 0.1 and 0.2 have saved, in the names and shapes of this version. Names of config keys: `config.build.OLD_NAMES`.

Nothing here raises: what makes no sense stays as it is, and is refused where it is taken over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from multiverse.training.config.build import OLD_NAMES
from multiverse.training.runs.checkpoint_format import Checkpoint
from multiverse.training.runs.state_codec import State

LATER: dict[str, Any] = {"failures": {}, "evaluation": None, "evaluation_steps": 0, "evaluation_env": None}
"""Parts of a state that earlier versions did not save, and what stands in their place."""
LATER_OF_ENVS = {"returns": None, "lengths": None, "remembered": None}
"""The same of the envs of a session, where these are in the middle of episodes."""


def migrated(saved: Checkpoint) -> Checkpoint:
    """A checkpoint as this version would have written it; its manifest has a `config` and a `clock`."""
    manifest = _renamed(saved.manifest)
    manifest |= {part: _renamed(_mapping(manifest.get(part))) for part in ("config", "clock")}
    return dataclasses.replace(saved, manifest=manifest, state=migrated_state(saved.state, manifest))


def migrated_state(saved: State, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a checkpoint as this version would have written it; its manifest has names of this version."""
    state = LATER | _renamed(saved)
    state.setdefault("told", {"since": _mapping(state.get("clock")).get("env_steps")})
    settings = manifest["config"]
    state.setdefault("best_episodes", settings.get("evaluation_episodes") or settings.get("held_out_tasks") or 10)
    if isinstance(state["evaluation_env"], Mapping):  # of the only one
        state["evaluation_env"] = [state["evaluation_env"]]
    if isinstance(state.get("session"), Mapping):
        state["session"] = _session(state["session"])
    return state


def _session(saved: Mapping[str, Any]) -> dict[str, Any]:
    session = _renamed(saved)
    if "algorithm" in session:
        session = {"policy": None} | session
    learned = _mapping(session.get("algorithm"))
    if "parameters" in (optimizer := _mapping(learned.get("optimizer"))):  # weights were in the state
        weights = {"parameters": optimizer["parameters"]}
        weights |= {"observations": learned["observations"]} if "observations" in learned else {}
        rest = {key: value for key, value in learned.items() if key != "observations"}
        session["algorithm"] = {"weights": weights, "state": rest}
    if isinstance(envs := session.get("envs"), Mapping) and "episodes" in envs:
        session["envs"] = LATER_OF_ENVS | dict(envs)
    return session


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _renamed(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {OLD_NAMES.get(key, key): value for key, value in saved.items()}
