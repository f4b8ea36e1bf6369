"""Arguments of the constructor, error messages for invalid ones, and the presets."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.envs import teams
from multiverse.envs.grid_world import PRESETS, GridWorldEnvMultiAgent, GridWorldParallel, make

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"size": 1}, "size=1: expected at least 2"),
    ({"size": 7.5}, "size=7.5: expected a whole number"),
    ({"size": True}, "size=True"),
    ({"max_steps": 0}, "max_steps=0: expected at least 1"),
    ({"render_mode": "ansi"}, "render_mode='ansi': expected None, 'human' or 'rgb_array'"),
    ({"num_obstacles": -1}, "num_obstacles=-1"),
    ({"size": 3, "enable_obstacles": True, "num_obstacles": 7}, "9 cells, too few for 7 obstacles, 2 agents and the"),
    ({"size": 2, "agents": [{}] * 4}, "4 cells, too few for 0 obstacles, 4 agents and the target"),
    ({"lambda_fov": 0.6}, "lambda_fov=0.6: expected a number from -0.5 to 0.5"),
    ({"lambda_fov": -0.51}, "lambda_fov=-0.51"),
    ({"lambda_fov": float("nan")}, "lambda_fov=nan"),
    ({"lambda_fov": "high"}, "lambda_fov='high'"),
    ({"intrinsic": 1}, "intrinsic=1: expected True or False"),
    ({"enable_obstacles": "yes"}, "enable_obstacles='yes'"),
    ({"show_target_coords": None}, "show_target_coords=None"),
    ({"no_target": 0}, "no_target=0"),
    (
        {"no_target": True, "show_target_coords": True},
        "show_target_coords=True (of 'ground_0') cannot be used together",
    ),
    ({"agents": []}, "agents=[]: expected a list of dicts"),
    ({"agents": {"type": "ground"}}, "expected a list of dicts"),
    ({"agents": ["ground"]}, "agents[0]='ground': expected a dict"),
    ({"agents": [{"type": "boat"}]}, "agents[0]['type']='boat': expected one of 'ground'"),
    ({"agents": [{}, {"fov": 3}]}, "agents[1] has the unknown key 'fov'; the keys of an agent of type 'ground' are"),
    ({"agents": [{"type": "ground", "max_altitude": 2}]}, "agents[0] has the unknown key 'max_altitude'"),
    ({"agents": [{"fov_size": 4}]}, "agents[0]['fov_size']=4: expected an odd number"),
    ({"agents": [{"fov_size": 0}]}, "agents[0]['fov_size']=0: expected at least 1"),
    ({"agents": [{"fov_base_size": 2}]}, "agents[0]['fov_base_size']=2: expected an odd number"),
    ({"agents": [{"max_altitude": 4}]}, "agents[0]['max_altitude']=4: expected 1, 2 or 3"),
    ({"agents": [{"target_detection_probs": [1.0]}]}, "expected 3 numbers, one for each level"),
    ({"agents": [{"target_detection_probs": [1, 2, 0]}]}, "['target_detection_probs'][1]=2: expected a number from 0"),
    ({"agents": [{"name": "a"}, {"name": "a"}]}, "agents[1]['name']='a': agents need different names"),
    ({"agents": [{"name": ""}]}, "agents[0]['name']='': expected a name"),
    ({"agents": [{"color": "red"}]}, "agents[0]['color']='red': expected red, green and blue"),
    ({"agents": [{"color": [0, 0, 256]}]}, "expected parts from 0 to 255"),
    ({"agents": [{"box_scale": 0}]}, "agents[0]['box_scale']=0"),
    ({"agents": [{"outline_width": 0}]}, "agents[0]['outline_width']=0: expected at least 1"),
    ({"agents": [{"show_target_coords": "no"}]}, "agents[0]['show_target_coords']='no'"),
    ({"target_config": 0.3}, "target_config=0.3: expected a dict"),
    ({"target_config": {"speed": 1}}, "target_config has the unknown key 'speed'; the target's keys are"),
    ({"target_config": {"movement_speed": 1.5}}, "target_config['movement_speed']=1.5: expected a number from 0 to 1"),
    ({"target_config": {"movement_range": 0}}, "target_config['movement_range']=0"),
    ({"target_config": {"box_cells": 2}}, "target_config['box_cells']=2: expected an odd number"),
    ({"target_config": {"initial_position": [10, 0]}}, "outside the grid, whose cells are from 0 to 9"),
    ({"target_config": {"initial_position": 3}}, "expected (x, y), or None"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[said for _, said in REFUSED])
@pytest.mark.parametrize("made", [GridWorldEnvMultiAgent, GridWorldParallel])
def test_invalid_world_arguments_are_named(made: type, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest) as refusal:
        made(**arguments)
    assert said in str(refusal.value)


def test_missing_pettingzoo_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ImportError, match=r"pip install 'multiverse\[pettingzoo\]'"):
        importlib.reload(teams)


def test_smallest_and_fullest_worlds_can_be_built() -> None:
    for arguments in (
        {"size": 2, "agents": [{}]},
        {"size": 2, "agents": [{}] * 3},
        {"size": 3, "enable_obstacles": True, "num_obstacles": 6},
        {"size": np.int64(4), "lambda_fov": np.float32(0.5), "no_target": np.False_},
    ):
        env = GridWorldEnvMultiAgent(**arguments)
        env.reset(seed=0)
        env.step(0)


def test_agents_are_named_by_kind_unless_they_have_names() -> None:
    agents = [{}, {"type": "ObserverAgent"}, {"type": "FOVAgent"}, {"name": "scout"}, {"fov_base_size": 3}]
    env = GridWorldEnvMultiAgent(agents=agents)
    assert env.possible_agents == ["ground_0", "observer_0", "ground_1", "scout", "observer_1"]
    assert [env.action_space(agent).n for agent in env.possible_agents] == [5, 8, 5, 5, 8]


def test_default_team_has_one_agent_of_each_kind() -> None:
    assert GridWorldEnvMultiAgent().possible_agents == ["ground_0", "observer_0"]


@pytest.mark.parametrize(
    ("preset", "size", "max_steps", "num_obstacles"),
    [("small", 10, 250, 3), ("medium", 15, 250, 4), ("large", 20, 500, 5)],
)
@pytest.mark.parametrize("parallel", [False, True])
def test_presets_have_their_documented_sizes(
    preset: str, size: int, max_steps: int, num_obstacles: int, parallel: bool
) -> None:
    env = make(preset, parallel=parallel)
    env.reset(seed=0)
    assert (env.setup.size, env.setup.max_steps, len(env.world.obstacles)) == (size, max_steps, num_obstacles)
    assert isinstance(env, GridWorldParallel if parallel else GridWorldEnvMultiAgent)
    assert make(preset, size=30).setup.size == 30


def test_unknown_preset_is_refused_and_presets_are_read_only() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="'small', 'medium', 'large'"):
        make("huge")
    with pytest.raises(TypeError):
        PRESETS["small"]["size"] = 3  # type: ignore[index]
