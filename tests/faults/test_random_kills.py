"""Row A18: no lock is shared in the data path. A worker killed at any moment never makes anybody hang."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import multiverse as mv
from multiverse.contracts import failures
from tests.contract.configurations import FORKSERVER, Configuration
from tests.contract.conftest import Make
from tests.envs import Walk

KILLS = 40


@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
def test_kills_at_random_moments_are_survived_and_every_step_is_accounted_for(
    make: Make, config: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kills come from another thread while the main one steps, infos by pipe included; seeded pauses between."""
    monkeypatch.setattr(failures.RestartIntensity, "allows", lambda self, cause: True)
    envs: mv.VectorEnv = make(Walk, on_failure="restart", autoreset="same_step")
    envs.reset(seed=0)
    done = threading.Event()

    def kill() -> None:
        chance = random.Random(0)
        for _ in range(KILLS):
            time.sleep(chance.uniform(0, 0.01))
            try:
                os.kill(chance.choice(envs.worker_pids), signal.SIGKILL)
            except ProcessLookupError:
                pass
        done.set()

    killer = threading.Thread(target=kill)
    killer.start()
    actions = np.ones(config.num_envs, np.int64)
    steps = 0
    while not done.is_set() or steps < 50:
        _, rewards, _, truncated, infos = envs.step(actions)
        steps += 1
        if "restarted" in infos:
            lost = infos["_restarted"]
            assert (rewards[lost] == 0).all() and truncated[lost].all()
    killer.join()
    found = envs.failures
    assert found.worker_restarts > 0
    assert found.steps_sent == steps * config.num_envs == found.steps_used + found.steps_discarded
