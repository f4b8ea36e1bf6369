"""Several Game Boys: threads run concurrently, and every executor gives the same results."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.envs.game_boy import GameBoyEnv
from multiverse.executors import choose, machine
from tests.builtin_envs.game_boy.cartridge import rom
from tests.training.small_runs import digest


def test_emulation_releases_the_gil() -> None:
    """The switch interval is very long, so another thread runs only where the GIL is released."""
    from multiverse.envs.game_boy.emulator import Emulator

    emulator = Emulator(rom(), "test")
    seen, before = threading.Event(), sys.getswitchinterval()
    sys.setswitchinterval(1_000.0)
    try:
        gate = threading.Lock()  # for `start` waits for the thread, which has a moment then
        gate.acquire()
        other = threading.Thread(target=lambda: (gate.acquire(), seen.set()))
        other.start()
        gate.release()
        came_on_before = seen.is_set()
        emulator.run(3_000, False)
        assert seen.is_set() and not came_on_before
    finally:
        sys.setswitchinterval(before)
        other.join()
        emulator.close()


def test_auto_chooses_processes_and_the_caller(cartridge: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(choose, "BUSY_SHARE", 2.0)  # also on a busy machine
    monkeypatch.setattr(choose, "SLOW_BUILD_S", 60.0)
    with mv.make_vec(GameBoyEnv, 4, env_kwargs={**cartridge, "observation": "ram"}) as envs:
        assert (envs.plan.executor, envs.plan.workers) == ("hybrid", 1), envs.plan.why


def test_observations_are_equal_for_every_executor(cartridge: dict[str, str]) -> None:
    """Also if an episode ends and another begins in the middle."""
    shown: dict[str, list[Any]] = {}
    actions = np.random.default_rng(1).integers(0, 9, (30, 3))
    for executor in ("serial", "thread", "process"):
        arguments: Any = {**cartridge, "observation": "both", "episode_length": 12}
        with mv.make_vec(
            GameBoyEnv, 3, executor, workers=None if executor == "serial" else 2, env_kwargs=arguments
        ) as envs:
            first, _ = envs.reset(seed=5)
            rows = [first["ram"], first["screen"]]
            for action in actions:
                observations, rewards, terminated, truncated, _ = envs.step(action)
                rows += [observations["ram"], observations["screen"], rewards, terminated, truncated]
            shown[executor] = rows
    assert any(row.any() for row in shown["serial"][6::5]), "no episode has ended"
    for executor in ("thread", "process"):
        assert all(map(np.array_equal, shown[executor], shown["serial"])), executor


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_training_resumes_exactly_in_the_middle_of_a_game(
    executor: Any, cartridge: dict[str, str], tmp_path: Path
) -> None:
    """The resumed run ends with the weights of an uninterrupted one."""
    options: Any = {
        "env_kwargs": {**cartridge, "observation": "ram", "episode_length": 50},
        "num_envs": 2,
        "steps_per_env": 16,
        "batch_size": 16,
        "evaluate_every": 0,
        "evaluation_episodes": 1,
        "executor": executor,
    }
    name = "multiverse.envs.game_boy:GameBoyEnv"
    whole = mv.train(name, run_dir=tmp_path / "whole", env_steps=128, **options)
    half = mv.train(name, run_dir=tmp_path / "halves", env_steps=64, **options)
    halves = mv.resume(half, env_steps=128)
    assert digest(whole) == digest(halves)
