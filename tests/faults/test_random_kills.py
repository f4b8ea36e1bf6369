"""Row A18: the data path shares no locks. A worker killed at any moment never makes the program hang."""

from __future__ import annotations

import os
import random
import signal
import threading

import numpy as np
import pytest

import multiverse as mv
from multiverse.executors import supervisor
from tests.faults.value_envs import NeedsReset
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SPAWN, Configuration
from tests.vector.conftest import Make

PATIENCE_S = 20
BLOB_BYTES = 200_000  # more than a pipe holds: many kills hit a worker in the middle of a message
CASES = [(FORKSERVER, 100), (FORK, 25), (HYBRID, 25), (SPAWN, 4)]


@pytest.fixture
def restarts_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_S", 0.0)


class Killer(threading.Thread):
    """Kills a living worker again and again, after seeded pauses; `killed` are those that it really ended."""

    def __init__(self, envs: mv.VectorEnv, kills: int) -> None:
        super().__init__()
        self._envs, self._kills, self._chance = envs, kills, random.Random(kills)
        self.killed: set[int] = set()
        self.enough = threading.Event()

    def run(self) -> None:
        while len(self.killed) < self._kills and not self.enough.wait(self._chance.uniform(0, 0.01)):
            pid = self._chance.choice(self._envs.worker_pids or (0,))
            if pid and pid not in self.killed:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.killed.add(pid)
                except ProcessLookupError:
                    pass


@pytest.mark.fault("A18", "F2")
@pytest.mark.usefixtures("restarts_without_pause")
@pytest.mark.parametrize(("config", "kills"), CASES, ids=str)
def test_random_kills_are_survived_and_every_step_is_accounted_for(
    make: Make, config: Configuration, kills: int
) -> None:
    """Steps and resets continue meanwhile, with infos of every kind: through the block, by pipe, and both."""
    n = config.num_envs
    envs: mv.VectorEnv = make(
        NeedsReset,
        env_kwargs=[{"index": i, "blob": BLOB_BYTES} for i in range(n)],
        on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=10_000),
        autoreset="same_step",
        timeouts=mv.Timeouts(reply_s=PATIENCE_S, reset_s=PATIENCE_S),
    )
    envs.reset(seed=0)
    killer = Killer(envs, kills)
    killer.start()
    try:
        steps = steps_until_the_end_of(killer, envs)
    finally:
        killer.enough.set()
        killer.join()
    found = envs.failures
    assert len(killer.killed) == kills
    assert 1 <= found.worker_restarts <= kills  # a worker that is lost again during its replacement counts once
    assert (found.timeouts, found.env_restarts) == (0, 0)
    assert found.steps_sent == steps * n == found.steps_used + found.steps_discarded


def steps_until_the_end_of(killer: Killer, envs: mv.VectorEnv) -> int:
    steps = 0
    while killer.is_alive():
        _, rewards, _, truncated, infos = envs.step(np.ones(envs.num_envs, np.int64))
        steps += 1
        if "restarted" in infos:
            lost = infos["_restarted"]
            assert (rewards[lost] == 0).all() and truncated[lost].all()
        if steps % 50 == 0:
            envs.reset(seed=steps)
    return steps
