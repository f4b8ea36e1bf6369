"""Lantern Vale as an env: found by its name, and the same with the same seed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from multiverse.cli.commands.list import env_names
from multiverse.envs.game_boy import GameBoyEnv, make_quest
from multiverse.envs.game_boy.quest.player import Player

RAM, SCREEN = "multiverse/Quest-v0", "multiverse/QuestScreen-v0"


@pytest.mark.parametrize(("name", "shape"), [(RAM, (104,)), (SCREEN, (2, 36, 40))])
def test_it_is_found_by_its_name(name: str, shape: tuple[int, ...]) -> None:
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


def test_an_episode_begins_in_the_meadow_and_by_its_seed() -> None:
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


def test_check_env_finds_nothing_in_it() -> None:
    report = mv.check_env(RAM, env_kwargs={"episode_length": 30})
    expected = {"env-cannot-be-pickled", "cost", "no-randomness", "reset-dominates"}
    assert {finding.code for finding in report.findings} <= expected


def test_one_who_knows_the_way_is_paid_for_it_and_wins() -> None:
    """The scripted player, in the env's own steps: every stage is a reward, and the end is a success."""
    env = make_quest(observation="ram", hold_frames=3, release_frames=1, episode_length=5_000)
    env.reset(seed=0)
    actions = {name: k for k, name in enumerate(env.button_names)}
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


def test_a_curriculum_begins_at_every_stage() -> None:
    env = make_quest(observation="ram", curriculum=True)
    assert env.starts == ["power_on", *(f"stage_{k}" for k in range(1, 9))]
    begun = [env.reset(seed=0, options={"start": start})[1] for start in env.starts]
    assert [info["progress"] for info in begun] == list(range(9)) and not any(info["success"] for info in begun)
    drawn = {env.reset(seed=seed)[1]["progress"] for seed in range(60)}
    assert drawn == set(range(9))
    env.close()
