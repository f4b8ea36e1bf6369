"""`episode_returns`, `episode_lengths` and `episode_counts`: correct at every moment, also at ends of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.envs import Walk
from tests.equality import assert_same
from tests.vector.configurations import WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make
from tests.vector.runs import actions

config = over(WITHOUT_SPAWN)

MODES = ["next_step", "same_step", "disabled"]


class Ledger:
    """The expected statistics, computed from the results that the caller received."""

    def __init__(self, num_envs: int, autoreset: str) -> None:
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.counts = np.full(num_envs, -1)
        self.over = np.zeros(num_envs, np.bool_)
        self.autoreset = autoreset

    def reset(self, ids: Any) -> None:
        for i in ids:
            self.returns[i], self.lengths[i], self.over[i] = 0.0, 0, False
            self.counts[i] += 1

    def step(self, ids: Any, rewards: Any, ended: Any) -> None:
        for row, i in enumerate(ids):
            if self.over[i] and self.autoreset == "next_step":
                self.reset([i])
                continue
            if self.over[i]:
                self.returns[i], self.lengths[i] = 0.0, 0
            self.returns[i] += rewards[row]
            self.lengths[i] += 1
            self.over[i] = ended[row]
            if ended[row] and self.autoreset == "same_step":
                self.counts[i] += 1

    def check(self, envs: Any) -> None:
        assert_same(envs.episode_lengths, self.lengths)
        assert_same(envs.episode_returns, self.returns)
        assert_same(envs.episode_counts, self.counts)


def walks(config: Configuration) -> list[Any]:
    return [lambda n=n: Walk(length=n) for n in range(1, config.num_envs + 1)]


@pytest.mark.parametrize("autoreset", MODES)
def test_episode_statistics_follow_whole_steps(make: Make, config: Configuration, autoreset: str) -> None:
    envs, ids = make(walks(config), autoreset=autoreset), range(config.num_envs)
    ledger = Ledger(config.num_envs, autoreset)
    envs.reset(seed=2)
    ledger.reset(ids)
    ledger.check(envs)
    for k in range(13):
        _, rewards, terminated, truncated, _ = envs.step(actions(ids, k))
        ended = terminated | truncated
        ledger.step(ids, rewards, ended)
        ledger.check(envs)
        if autoreset == "disabled" and ended.any():
            over = np.flatnonzero(ended).tolist()
            envs.reset(env_ids=over)
            ledger.reset(over)
            ledger.check(envs)


@pytest.mark.parametrize("autoreset", MODES)
def test_episode_statistics_follow_partial_steps(make: Make, config: Configuration, autoreset: str) -> None:
    envs, n = make(walks(config), autoreset=autoreset), config.num_envs
    ledger = Ledger(n, autoreset)
    envs.reset(seed=2)
    ledger.reset(range(n))
    for k in range(18):
        ids = [i for i in range(n) if (i + k) % 3] if k % 4 else list(range(n))
        if autoreset == "disabled":
            ids = [i for i in ids if not ledger.over[i]]
            over = np.flatnonzero(ledger.over).tolist()
            if over:
                envs.reset(env_ids=over)
                ledger.reset(over)
        if ids:
            _, rewards, terminated, truncated, _ = envs.step(actions(ids, k), env_ids=ids)
            ledger.step(ids, rewards, terminated | truncated)
        ledger.check(envs)


@pytest.mark.parametrize("autoreset", MODES)
def test_received_batch_has_its_episode_statistics(make: Make, config: Configuration, autoreset: str) -> None:
    envs, n = make(walks(config), autoreset=autoreset), config.num_envs
    envs.reset(seed=2)
    for k in range(4):
        if autoreset == "disabled" and k:
            envs.reset()
        envs.send(actions(range(n), k))
        batch = envs.receive()
        assert_same(batch.env_ids, np.arange(n))
        assert_same(batch.episode_returns, envs.episode_returns)
        assert_same(batch.episode_lengths, envs.episode_lengths)
        assert batch.alive.all()
        assert batch.acting.all()


def test_statistics_before_the_first_reset_are_empty(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    Ledger(config.num_envs, "next_step").check(envs)


def test_second_reset_starts_another_episode(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(seed=1)
    envs.step(actions(range(config.num_envs), 0))
    envs.reset(env_ids=[1])
    assert envs.episode_counts.tolist() == [int(i == 1) for i in range(config.num_envs)]
    assert envs.episode_lengths.tolist() == [int(i != 1) for i in range(config.num_envs)]
    assert envs.episode_returns[1] == 0.0


def test_episode_statistics_are_copies(make: Make) -> None:
    envs = make(Walk)
    envs.reset(seed=1)
    for name in ("episode_returns", "episode_lengths", "episode_counts"):
        getattr(envs, name)[:] = 77
        assert not (getattr(envs, name) == 77).any()
