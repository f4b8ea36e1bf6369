"""Document 004: its class, its flags and its figures; its lines are in test_documented_lines.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import multiverse as mv
from examples.game_boy import train
from examples.game_boy.parallel_environment import ZELDA, ParallelEnvironment, env_of
from examples.game_boy.training_lines import final_block
from multiverse.envs.game_boy.game_file import read_game
from tests.builtin_envs.game_boy.cartridge import written
from tests.examples.programs import ROOT

A, RIGHT = 1, 8


class AlwaysRight:
    def act(self, observation: object) -> int:
        return RIGHT


def test_environment_class_has_the_documented_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = written(tmp_path)
    env = ParallelEnvironment(1, arguments["rom"], 20, game=arguments["game"])
    with pytest.raises(mv.errors.InvalidRequest, match=r"initialize\(\) first"):
        env.step()
    env.initialize()
    env.reset_episode()
    results = [env.step(RIGHT) for _ in range(20)]
    stats = env.get_episode_stats()
    assert stats["length"] == 20 and stats["done"] and results[-1][2] and not results[-2][2]
    assert stats["reward"] == pytest.approx(sum(reward for _, reward, _, _ in results)) and stats["reward"] >= 40
    assert capsys.readouterr().out == "", "no action was random"
    for _ in range(3):
        env.step()
    assert env.get_episode_stats()["length"] == 3 and env.get_episode_stats()["episode"] == 2
    assert capsys.readouterr().out == "Environment 1: no policy was given, actions are random\n", "printed once"
    env.close()
    env.close()


def test_step_without_action_asks_the_given_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = written(tmp_path)
    env = ParallelEnvironment(0, arguments["rom"], 20, game=arguments["game"], policy=AlwaysRight())
    env.initialize()
    moved = [env.step()[3]["x"] for _ in range(5)]
    assert moved == sorted(set(moved)) and capsys.readouterr().out == ""
    env.close()


def test_environments_have_different_seeds(tmp_path: Path) -> None:
    arguments, seen = written(tmp_path), []
    for env_id in (0, 1, 0):
        env = ParallelEnvironment(env_id, arguments["rom"], 20, game=arguments["game"])
        env.initialize()
        seen.append(env.reset_episode().tolist())
        env.close()
    assert seen[0] == seen[2] != seen[1]


def test_trained_policy_can_be_played(tmp_path: Path) -> None:
    arguments = written(tmp_path)
    where = ["--rom", arguments["rom"], "--game", arguments["game"], "--output-dir", str(tmp_path / "runs")]
    assert train.main(["--steps", "64", "--episode-length", "16", *where]) == 0
    env = ParallelEnvironment(0, arguments["rom"], 16, game=arguments["game"], policy=mv.load(tmp_path / "runs"))
    env.initialize()
    for _ in range(16):
        env.step()
    assert env.get_episode_stats()["done"]
    env.close()


@pytest.mark.parametrize(
    ("steps", "envs", "length", "rollout"),
    [
        (20_000, 2, 750, 1000),  # 10 rollouts are the budget exactly
        (100_000, 1, 500, 500),
        (20_000, 2, 1500, 2000),
        (50_000, 3, 500, 506),  # no number of rollouts is: 33 of them are 50,094 steps
        (2000, 4, 500, 500),
        (100, 4, 500, 25),
    ],
)
def test_rollout_is_about_an_episode_of_every_env(steps: int, envs: int, length: int, rollout: int) -> None:
    assert train.steps_per_env(steps, envs, length) == rollout


def test_final_block_has_the_documented_lines() -> None:
    summary = {"env_steps": 20_000, "episodes": 26, "seconds": 16.0, "evaluate_s": 1.2, "save_s": 0.1}
    assert final_block(summary, 12.596, 2).splitlines() == [
        "PARALLEL TRAINING COMPLETE",
        "==================================================",
        "Final step: 20,000",
        "Total episodes: 26",
        "Training time: 14.7 seconds",
        "Average reward (last 10): 12.596",
        "Environments used: 2",
        "Steps per second: 1360.5",
        "Episodes per second: 1.77",
    ]


def test_documented_game_file_has_the_documented_addresses_and_rewards() -> None:
    game = read_game(ZELDA)
    assert {one.name: one.address for one in game.ram} == {
        "health": 0xC021,
        "max_health": 0xC05B,
        "rupees": 0xC6A5,
        "x": 0xC4AC,
        "y": 0xC4AD,
        "room": 0xC63B,
        "dialogue": 0xC2EF,
        "floor": 0xC63D,
    }
    assert [(*rule.of, rule.reward, rule.once) for rule in game.rewards[:4]] == [
        ("room", 10.0, False),
        ("floor", 5.0, False),
        ("floor", 25.0, True),
        ("dialogue", 15.0, False),
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--envs", "0"], "argument --envs: expected at least 1, got 0"),
        (["--observation", "sound"], "invalid choice: 'sound'"),
        (["--rom", "absent.gb"], "rom='absent.gb': No such file or directory"),
        (["--game", "a.yaml"], "no cartridge was given: set TRAIN_ROM"),
    ],
)
def test_invalid_arguments_are_named(flags: list[str], message: str) -> None:
    program = [sys.executable, str(ROOT / "examples/game_boy/train.py"), *flags]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_default_reward_counts_only_progress() -> None:
    rewards = {}
    for penalties in (False, True):
        name, arguments = env_of(None, observation="ram", episode_length=30)
        with mv.make_vec(
            name, 1, "serial", env_kwargs={**arguments, **({"penalties": True} if penalties else {})}
        ) as envs:
            envs.reset(seed=0)
            rewards[penalties] = [float(envs.step([0])[1][0]) for _ in range(20)]
    assert set(rewards[False]) == {0.0} and rewards[True] == pytest.approx([-0.02] * 20)
