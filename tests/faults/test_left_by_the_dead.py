"""Rows G1 and G2: what a lost worker left in the block is its successor's start from nothing, and whoever was lost
with it is told so, asked or not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.contract.configurations import FORKSERVER, HYBRID, Configuration
from tests.contract.conftest import Make
from tests.contract.runs import actions
from tests.envs import Walk
from tests.multi_agent.envs import Pair

with_processes = pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step"])


class SaysWhenAsked(Walk):
    """Says `{"success": 1.0}` in a step with action 1, and nothing otherwise."""

    def reset(self, **kwargs: Any) -> Any:
        observation, _ = super().reset(**kwargs)
        return observation, {}

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return (*rest, {"success": 1.0} if action == 1 else {})


@pytest.mark.fault("G1")
@modes
@pytest.mark.parametrize("infos_of", ["step", "receive"])
def test_what_a_dead_workers_envs_said_is_not_said_by_their_successors(autoreset: Any, infos_of: str) -> None:
    with mv.make_vec(SaysWhenAsked, 2, "process", workers=1, autoreset=autoreset, on_failure="restart") as envs:
        envs.reset(seed=7)
        envs.step(np.array([1, 0]))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        for _ in range(3):
            envs.step(np.array([0, 0]))
        if infos_of == "step":
            infos = envs.step(np.array([0, 1]))[4]
        else:
            envs.send(np.array([0, 1]))
            infos = envs.receive().infos
        assert infos["_success"].tolist() == [False, True]


class EndsWhilePacked:
    """Ends the process that pickles it: when its step is taken and counted, and nobody has been told."""

    def __reduce__(self) -> Any:
        os._exit(5)


class EndsAfterItsStep(Walk):
    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self._folder = folder

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        if self._folder and self.steps == 3 and not os.listdir(self._folder):
            Path(self._folder, "once").touch()
            info["end"] = EndsWhilePacked()
        return (*rest, info)


@pytest.mark.fault("G1", "B4")
@with_processes
@modes
def test_a_lost_step_that_was_counted_already_is_none_of_its_episodes(
    make: Make, config: Configuration, autoreset: str, tmp_path: Path
) -> None:
    kwargs = [{}] * (config.num_envs - 1) + [{"folder": str(tmp_path)}]
    envs = make(EndsAfterItsStep, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    for k in range(2):
        envs.step(actions(range(config.num_envs), k))
    lost, returns = list(config.last_range), envs.episode_returns
    *_, truncated, _ = envs.step(actions(range(config.num_envs), 2))
    assert truncated[lost].all() and os.listdir(tmp_path)
    assert envs.episode_lengths[lost].tolist() == [2] * len(lost)
    assert envs.episode_returns[lost].tolist() == returns[lost].tolist()


@pytest.mark.fault("G1", "B4")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
@modes
def test_an_episode_that_had_not_begun_to_be_stepped_is_lost_without_steps(
    make: Make, config: Configuration, autoreset: str
) -> None:
    """And not with those of the one before, which its row was still showing."""
    envs = make(Walk, env_kwargs={"length": 2}, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    for k in range(2):
        envs.step(actions(range(config.num_envs), k))
    assert envs.episode_lengths.tolist() == [2] * config.num_envs
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    envs.step(actions(range(config.num_envs), 2))
    lost = list(config.last_range)
    assert envs.episode_lengths[lost].tolist() == envs.episode_returns[lost].tolist() == [0] * len(lost)


class Forbids(Pair):
    def step(self, actions: dict[str, Any]) -> Any:
        *rest, infos = super().step(actions)
        return (*rest, {agent: {"action_mask": np.array([0, 0, 1], np.int8)} for agent in infos})


@pytest.mark.fault("G1")
@pytest.mark.parametrize("lost", ["worker", "env"])
def test_what_a_lost_env_forbade_is_not_forbidden_to_agents_that_are_not_there(lost: str) -> None:
    kwargs = {"fault": "raise", "at": 2} if lost == "env" else {}
    with mv.make_vec(Forbids, 1, "process", workers=1, env_kwargs=kwargs, on_failure="restart") as envs:
        envs.reset(seed=7)
        envs.step({"left": np.ones(1, int), "right": np.ones(1, int)})  # type: ignore[arg-type]
        if lost == "worker":
            os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.step({"left": np.ones(1, int), "right": np.ones(1, int)})  # type: ignore[arg-type]
        assert not envs.alive["left"][0]  # type: ignore[attr-defined]
        assert envs.action_masks["left"][0].tolist() == [1, 1, 1]  # type: ignore[attr-defined]
