"""Evaluation: one env by itself, one episode after another, on seeds that no training ever sees."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.contracts.failures import RESTARTED
from multiverse.contracts.infos import Infos
from multiverse.contracts.policy import Policy, Seen
from multiverse.contracts.seeds import evaluation_seed
from multiverse.experience.features import Features
from multiverse.experience.rollout import dtype_of, leaf_of
from multiverse.vector.single import VectorEnv

log = logging.getLogger("multiverse")

MOST_STEPS = 50_000
"""Of one episode: about twice what the longest of the usual benchmarks has."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good a policy was, deterministic, over some episodes."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    def summary(self) -> dict[str, Any]:
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "mean_length": self.mean_length,
            "episodes": len(self.returns),
        }


def evaluate(
    env: VectorEnv,
    policy: Policy,
    features: Features,
    episodes: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Episodes on a single env, the same ones for the same seed whatever the training looked like.

    None if it was asked to stop on the way, or no episode came to its end. An episode of an env that never ends one is
    cut after `MOST_STEPS`.
    """
    returns, lengths = [], []
    nobody, somebody = np.zeros(1, np.bool_), np.ones(1, np.bool_)
    for k in range(episodes):
        observations, _ = env.reset(seed=[evaluation_seed(seed, k)])
        starts, over, steps = somebody, False, 0
        memory = policy.first_memory(1)
        previous: tuple[Any, Any] = (None, np.zeros(1, np.float32))
        infos: Infos = {}
        while not over:
            if should_stop():
                return None
            seen = {
                leaf.path: np.asarray(leaf_of(observations, leaf.path)).astype(dtype_of(leaf), copy=False)
                for leaf in features.all_leaves
            }
            shown = Seen(seen, starts, features.open_actions(seen), previous[0], previous[1])
            action, memory = policy.act(shown, None, memory)
            observations, rewards, terminated, truncated, infos = env.step(policy.for_env(action))
            steps, previous = steps + 1, (action, rewards.astype(np.float32))
            starts, over = nobody, bool(terminated[0] or truncated[0]) or steps >= MOST_STEPS
        if steps >= MOST_STEPS:
            log.warning("an episode was cut after %d steps of an evaluation: does this env never end one?", MOST_STEPS)
        if RESTARTED in infos:
            log.warning("episode %d of an evaluation was lost with its env, and does not count", k)
            continue
        returns.append(float(env.episode_returns[0]))
        lengths.append(int(env.episode_lengths[0]))
    return Evaluation(tuple(returns), tuple(lengths)) if returns else None
