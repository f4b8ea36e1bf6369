"""PettingZoo's own tests of an env, on the grid world in every preset and with unusual teams."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test
from pettingzoo.utils import aec_to_parallel, parallel_to_aec

from multiverse.envs.grid_world import PRESETS, GridWorldEnvMultiAgent, make

TEAMS: dict[str, dict[str, Any]] = {
    **{name: dict(preset) for name, preset in PRESETS.items()},
    "crowd": {"size": 4, "agents": [{"type": "ground"}] * 6 + [{"type": "observer"}] * 4, "max_steps": 20},
    "alone": {"agents": [{"name": "scout_0", "fov_size": 1}], "intrinsic": True},
    "shown": {"show_target_coords": True, "lambda_fov": -0.5},
    "no target": {"no_target": True, "max_steps": 30, "intrinsic": True},
}
EXPECTED = (
    "Observation is not a NumPy array",
    "Observation space for each agent probably should be",
    "Agents have different observation space sizes",
)
"""Warnings of api_test about every env with Dict observations that differ between agents."""


@pytest.fixture(autouse=True)
def nothing_else_is_warned_about() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for said in EXPECTED:
            warnings.filterwarnings("ignore", message=said)
        yield


@pytest.fixture(params=TEAMS.values(), ids=TEAMS.keys())
def arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def test_turn_based_env_passes_pettingzoos_api_test(arguments: dict[str, Any]) -> None:
    api_test(make(**arguments), num_cycles=300)


def test_turn_based_env_passes_pettingzoos_seed_test(arguments: dict[str, Any]) -> None:
    seed_test(partial(make, **arguments), num_cycles=300)


def test_parallel_env_passes_pettingzoos_api_test(arguments: dict[str, Any]) -> None:
    parallel_api_test(make(parallel=True, **arguments), num_cycles=300)


def test_parallel_env_passes_pettingzoos_seed_test(arguments: dict[str, Any]) -> None:
    parallel_seed_test(partial(make, parallel=True, **arguments), num_cycles=300)


def test_env_passes_pettingzoos_render_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(GridWorldEnvMultiAgent.metadata, "render_fps", 0)  # no waiting between frames
    render_test(GridWorldEnvMultiAgent)


def test_pettingzoos_conversions_work_in_both_directions() -> None:
    parallel_api_test(aec_to_parallel(make("small")), num_cycles=300)
    api_test(parallel_to_aec(make("small", parallel=True)), num_cycles=300)
