"""Evaluation of a team: how often it reaches the target on unseen seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import multiverse as mv

Policy = Callable[[Any], Any]
"""Observations [E, *obs] → actions [E, agents]."""

UNSEEN_SEEDS = 1_000_000
"""First seed of evaluations. Training uses run seed + env id, which is far below this value."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of one team over several episodes."""

    episodes: int
    successes: int  # number of episodes in which the target was reached
    mean_length: float
    mean_return: float

    @property
    def success_rate(self) -> float:
        return self.successes / self.episodes


def evaluate(policy: Policy, make_env: Callable[[], Any], episodes: int) -> Evaluation:
    """Play one episode for each of the seeds UNSEEN_SEEDS, UNSEEN_SEEDS + 1, …, which are the same for every team."""
    envs = mv.make_vec(make_env, episodes, executor="serial", autoreset="disabled")
    try:
        observations, _ = envs.reset(seed=[UNSEEN_SEEDS + episode for episode in range(episodes)])
        running, successes = np.arange(episodes), 0
        while running.size:
            observations, _, terminated, truncated, _ = envs.step(policy(observations), env_ids=running)
            successes += int(terminated.sum())
            unfinished = ~(terminated | truncated)
            running, observations = running[unfinished], observations[unfinished]
        return Evaluation(episodes, successes, float(envs.episode_lengths.mean()), float(envs.episode_returns.mean()))
    finally:
        envs.close()


def random_team(action_counts: Sequence[int], seed: int = 0) -> Policy:
    """Return a policy in which every agent draws its actions uniformly."""
    generator = np.random.default_rng(seed)
    return lambda observations: generator.integers(0, action_counts, (len(observations), len(action_counts)))
