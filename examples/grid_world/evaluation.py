"""How often a team reaches the target, on seeds of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import multiverse as mv

Policy = Callable[[Any], Any]
"""Observations [E, *obs] → actions [E, agents]."""

UNSEEN_SEEDS = 1_000_000
"""The first seed of evaluations. Training seeds each env once, with run seed + env id, and takes none near these."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Some episodes of one team."""

    episodes: int
    successes: int  # the target was reached
    mean_length: float
    mean_return: float

    @property
    def success_rate(self) -> float:
        return self.successes / self.episodes


def evaluate(policy: Policy, make_env: Callable[[], Any], episodes: int) -> Evaluation:
    """One episode for each of the seeds UNSEEN_SEEDS, UNSEEN_SEEDS + 1, …: the same ones for every team."""
    envs = mv.make_vec(make_env, episodes, executor="serial", autoreset="disabled")
    try:
        observations, _ = envs.reset(seed=[UNSEEN_SEEDS + episode for episode in range(episodes)])
        running, successes = np.arange(episodes), 0
        while running.size:
            observations, _, terminated, truncated, _ = envs.step(policy(observations), env_ids=running)
            successes += int(terminated.sum())
            going_on = ~(terminated | truncated)
            running, observations = running[going_on], observations[going_on]
        return Evaluation(episodes, successes, float(envs.episode_lengths.mean()), float(envs.episode_returns.mean()))
    finally:
        envs.close()


def random_team(action_counts: Sequence[int], seed: int = 0) -> Policy:
    """Every agent does anything, each action as likely as the others."""
    generator = np.random.default_rng(seed)
    return lambda observations: generator.integers(0, action_counts, (len(observations), len(action_counts)))
