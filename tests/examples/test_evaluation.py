"""The figures of the learning benchmark: the definition of success, the seeds, and the confidence intervals."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pettingzoo")
pytest.importorskip("stable_baselines3")

from benchmarks.grid_world_learning import Trained, interval, verdict
from benchmarks.grid_world_speedup import table
from examples.grid_world.evaluation import UNSEEN_SEEDS, Evaluation, evaluate, random_team
from examples.grid_world.worlds import TASKS, make_env, world_arguments
from multiverse.envs.grid_world import PRESETS

ACTION = np.array([0, 3])


def by_hand(make: Any, episodes: int) -> Evaluation:
    """One env, one episode after the other."""
    env, reached, lengths, returns = make(), 0, [], []
    for episode in range(episodes):
        env.reset(seed=UNSEEN_SEEDS + episode)
        rewards, terminated, truncated = [], False, False
        while not (terminated or truncated):
            _, reward, terminated, truncated, _ = env.step(ACTION)
            rewards.append(reward)
        reached += terminated
        lengths.append(len(rewards))
        returns.append(sum(rewards))
    return Evaluation(episodes, reached, float(np.mean(lengths)), float(np.mean(returns)))


def test_evaluation_plays_one_episode_per_seed() -> None:
    make = functools.partial(make_env, "small", "reach")
    found = evaluate(lambda observations: np.tile(ACTION, (len(observations), 1)), make, 40)
    expected = by_hand(make, 40)
    assert (found.episodes, found.successes, found.mean_length) == (40, expected.successes, expected.mean_length)
    assert found.mean_return == pytest.approx(expected.mean_return)
    assert 0 < found.successes < 40


def test_random_team_chooses_actions_equally_often() -> None:
    actions = random_team([5, 8])(np.zeros((20_000, 3)))
    for agent, count in enumerate([5, 8]):
        assert np.bincount(actions[:, agent], minlength=count) / 20_000 == pytest.approx(1 / count, abs=0.02)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", TASKS)
def test_tasks_keep_grid_team_and_target_of_the_preset(preset: str, task: str) -> None:
    setup = make_env(preset, task).unwrapped.env.setup
    assert (setup.size, setup.num_obstacles) == (PRESETS[preset]["size"], PRESETS[preset]["num_obstacles"])
    assert [(agent.kind, agent.view_cells) for agent in setup.agents] == [("ground", 5), ("observer", 7)]
    assert setup.target.movement_speed == 0.3
    assert (setup.max_steps == PRESETS[preset]["max_steps"]) == (task == "watch")
    assert world_arguments(preset, "watch") == dict(PRESETS[preset])


@pytest.mark.parametrize(
    ("episodes", "successes", "low", "high"),
    [(10, 5, 0.2366, 0.7634), (500, 500, 0.9924, 1.0), (300, 60, 0.1586, 0.2489)],
)
def test_interval_equals_that_of_wilson(episodes: int, successes: int, low: float, high: float) -> None:
    assert interval(Evaluation(episodes, successes, 0.0, 0.0)) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("successes", "message"),
    [
        ([(450, 100), (450, 100)], "4.50×   3×, intervals apart: met"),
        ([(250, 100), (250, 100)], "2.50×   3×, intervals apart: MISSED"),
        ([(500, 100), (110, 100)], "3.05×   3×, intervals apart: MISSED"),  # one seed learned nothing
    ],
)
def test_success_threshold_applies_to_every_seed(successes: list[tuple[int, int]], message: str) -> None:
    found = [
        Trained("reach-small", seed, 0, 0.0, Evaluation(500, trained, 0.0, 0.0), Evaluation(500, chance, 0.0, 0.0))
        for seed, (trained, chance) in enumerate(successes)
    ]
    assert verdict("reach-small", found).endswith(message)


def test_speed_table_compares_within_a_round() -> None:
    def seen(rate: float) -> dict[str, float]:
        return {"start_s": 0.5, "worker_mb": 10.0, "open_files": 12, "collecting": 2 * rate, "training": rate}

    rows = table({"our 1": [seen(100), seen(400)], "our 8": [seen(300), seen(1000)]}).splitlines()
    assert [row.count("|") for row in rows] == [9] * 4
    assert rows[3] == "| our 8 | 0.50 s | 10.0 | 12 | 1,300 | 2.75 | 650 | 2.75 |"
