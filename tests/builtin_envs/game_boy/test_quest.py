"""Lantern Vale as an env: registered by name, and equal for equal seeds."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from multiverse.cli.commands.list import env_names
from multiverse.envs.game_boy import GameBoyEnv, make_quest
from multiverse.envs.game_boy.quest.build import STEPS, STRAIGHT, bends, way_to
from multiverse.envs.game_boy.quest.drawings import blocks
from multiverse.envs.game_boy.quest.player import Player, open_cells

RAM, SCREEN = "multiverse/Quest-v0", "multiverse/QuestScreen-v0"


@pytest.mark.parametrize(("name", "shape"), [(RAM, (104,)), (SCREEN, (2, 36, 40))])
def test_quest_is_found_by_its_id_in_gymnasium_and_workers(name: str, shape: tuple[int, ...]) -> None:
    assert name in env_names()
    env = gym.make(f"multiverse.envs:{name}")
    assert env.observation_space.shape == shape and isinstance(env.unwrapped, GameBoyEnv)
    env.close()
    with mv.make_vec(name, 2, "process", workers=1, env_kwargs={"episode_length": 5}) as envs:
        observations, _ = envs.reset(seed=0)
        assert observations.shape == (2, *shape)
        for _ in range(5):
            *_, truncated, _ = envs.step(np.zeros(2, np.int64))
        assert truncated.all()


def test_episode_starts_in_the_meadow_and_depends_on_its_seed() -> None:
    env = make_quest(observation="ram")
    first = [env.reset(seed=seed)[1] for seed in (1, 1, 2)]
    assert first[0] == first[1] != first[2]
    assert {name: first[0][name] for name in ("mode", "room", "health", "progress", "success")} == {
        "mode": 1,
        "room": 4,
        "health": 8,
        "progress": 0,
        "success": False,
    }
    env.close()


def test_check_env_reports_only_expected_findings() -> None:
    report = mv.check_env(RAM, env_kwargs={"episode_length": 30})
    expected = {"env-cannot-be-pickled", "cost", "no-randomness", "reset-dominates"}
    assert {finding.code for finding in report.findings} <= expected


def test_scripted_player_is_rewarded_for_every_stage_and_wins() -> None:
    """The scripted player in the env's own steps: every stage gives a reward, and the end is a success."""
    env = make_quest(observation="ram", hold_frames=3, release_frames=1, episode_length=5_000)
    env.reset(seed=0)
    actions = {"+".join(buttons) or "wait": k for k, buttons in enumerate(env._game.actions)}
    player, total, info = Player(lambda address: env._emulator.memory[address]), 0.0, {}
    for _ in range(5_000):
        wanted = player.buttons()
        action = "a" if "a" in wanted else (*wanted, "wait")[0]
        _, reward, terminated, truncated, info = env.step(actions[action])
        total += reward
        if terminated or truncated:
            break
    env.close()
    assert terminated and info["success"] and info["progress"] == 9
    assert total > 60


def test_curriculum_starts_cover_the_whole_quest() -> None:
    env = make_quest(observation="ram", curriculum=True)
    points = [start for start in env.starts if start != "power_on"]
    assert {f"stage_{k}" for k in range(1, 9)} < set(points) and len(set(points)) == len(points) >= 30
    assert 0.2 < 1 - len(points) / len(env.starts) < 0.3, "the others are power-on"
    begun = [env.reset(seed=0, options={"start": start})[1] for start in points]
    assert [info["progress"] for info in begun] == [int(start.split("_")[1]) for start in points]
    assert {info["room"] for info in begun} == {*range(12)} - {5} and not any(info["success"] for info in begun)
    assert all(info["mode"] == 1 and info["health"] > 0 for info in begun)
    assert len({env.reset(seed=seed)[1]["progress"] for seed in range(60)}) > 5
    env.close()


def test_firefly_leads_around_obstacles_from_every_cell() -> None:
    """From every cell of every room, bend by bend, over open cells, to the next goal of the quest."""
    exits = [
        int(way) if way != "-" else 255 for (*_, n, e, s, w), _ in blocks("rooms.txt", "room") for way in (s, n, w, e)
    ]
    for step in STEPS:
        for room in range(12):
            cells, goal = set(open_cells(room)), way_to(*step, room, exits)
            found = bends(cells, goal)
            for number in [10 * row + column for column, row in cells]:
                for _ in range(20):
                    bend = found[number]
                    if bend == STRAIGHT:
                        break
                    (x, y), (to_x, to_y) = (number % 10, number // 10), (bend % 10, bend // 10)
                    assert (x == to_x) != (y == to_y)
                    passed = {
                        (i, j)
                        for i in range(min(x, to_x), max(x, to_x) + 1)
                        for j in range(min(y, to_y), max(y, to_y) + 1)
                    }
                    assert passed <= cells
                    number = bend
                else:
                    raise AssertionError(f"room {room}: round and round from {number}")


def test_firefly_leads_from_bend_to_bend_in_black_water() -> None:
    env = make_quest(observation="ram", curriculum=True)
    shown = [env.reset(seed=0, options={"start": f"stage_7_{k}"})[1] for k in (1, 2, 3)]
    env.close()
    assert [(info["room"], info["goal_x"], info["goal_y"]) for info in shown] == [
        (9, 112, 60),
        (9, 32, 60),
        (9, 72, 0),
    ]
