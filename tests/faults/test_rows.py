"""A rollout collected in workers: whatever happens in a row costs that row, and is accounted for as in lock-step."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.contracts.errors import EnvFailed, ReplyTimeout, WorkerDied
from multiverse.memory.interrupts import StopRequests
from tests.experience.test_collector import STEPS, collecting, fields_for, policy_for


class Mortal(gym.Env):  # type: ignore[type-arg]
    """In its step `at`, counted over its life, it does what it is told to, once ever: a note says that it did."""

    def __init__(self, note: str = "", at: int = 0, deed: str = "") -> None:
        self.observation_space, self.action_space = spaces.Box(-9, 99, (2,), np.float32), spaces.Discrete(2)
        self.note, self.at, self.deed, self.steps, self.taken = note, at, deed, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.drawn = 0, float(self.np_random.random())
        return np.array([self.drawn, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps, self.taken = self.steps + 1, self.taken + 1
        if self.deed and self.taken == self.at and not Path(self.note).exists():
            Path(self.note).touch()
            if self.deed == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.deed == "hangs":
                time.sleep(3600)
            if self.deed == "raises":
                raise RuntimeError("as told")
        return np.array([self.drawn, self.steps], np.float32), 1.0, self.steps == 5, False, {}


def made(tmp_path: Path, at: int, deed: str, where: str, **limits: Any) -> Any:
    """Envs 0 and 1 in the first worker, 2 and 3 in the second: env 1 misbehaves."""
    makers = [Mortal, lambda: Mortal(str(tmp_path / f"note-{where}"), at, deed), Mortal, Mortal]
    settings = {"autoreset": "same_step", "infos": False, "copy": False, "on_failure": "restart", **limits}
    return mv.make_vec(
        makers, executor="process", workers=2, reset_plan=mv.DerivedSeeds(4),
        fields=fields_for(4) if where == "in workers" else None, **settings,
    )  # fmt: skip


def rollouts(envs: Any, count: int = 2) -> tuple[list[dict[str, Any]], Any, Any]:
    """What `count` rollouts were, the accounts, and the episodes."""
    collector, rollout, _ = collecting(envs)
    policy, rng, found, episodes = policy_for(envs), np.random.default_rng(1), [], []
    for _ in range(count):
        told = collector.collect([policy], rng)
        assert told is not None
        episodes += told.episodes
        steps, slots, finals = rollout.ends()
        names = ("rewards", "terminated", "truncated", "valid", "starts")
        arrays = {name: getattr(rollout, name).copy() for name in names}
        actions = np.where(rollout.valid, rollout.actions, -1)  # of a lost row nobody asks
        found.append({**arrays, "actions": actions, "steps": steps, "slots": slots, "finals": finals[()],
                      "seen": rollout.observations[()].copy(), "last": rollout.last[()].copy()})  # fmt: skip
    failures = envs.failures
    assert failures.steps_sent == failures.steps_used + failures.steps_discarded == count * STEPS * 4
    return found, failures, episodes


@pytest.mark.fault("G7")
@pytest.mark.parametrize("row", range(STEPS))
def test_a_worker_that_dies_in_a_row_costs_that_row(row: int, tmp_path: Path) -> None:
    """Whichever row it is, everything is as if the envs had been stepped from here."""
    found = []
    for where in ("in workers", "in the caller"):
        with made(tmp_path, row + 1, "dies", where) as envs:
            found.append(rollouts(envs))
    (in_workers, accounts, episodes), (here, expected, expected_episodes) = found
    for ours, theirs in zip(in_workers, here):
        for name, rows in ours.items():
            assert (rows == theirs[name]).all(), name
    assert episodes == expected_episodes and accounts == expected and accounts.worker_restarts == 1
    lost = [(t, s) for rollout in in_workers for t, s in zip(*np.nonzero(~rollout["valid"]))]
    assert len(lost) == 2 and {s for _, s in lost} == {0, 1}


@pytest.mark.fault("G7")
@pytest.mark.parametrize("deed", ["hangs", "raises"])
def test_a_hang_or_an_exception_costs_a_row_too(deed: str, tmp_path: Path) -> None:
    with made(tmp_path, 3, deed, "in workers", reply_timeout_s=1.0) as envs:
        (first, _), failures, episodes = rollouts(envs)
    lost = 2 if deed == "hangs" else 1  # the worker's envs, or the one
    assert (~first["valid"]).sum() == lost and not first["valid"][2, 1]
    assert failures.timeouts == (deed == "hangs") and failures.worker_restarts == (deed == "hangs")
    assert failures.env_restarts == (deed == "raises") and failures.steps_discarded == lost
    assert [e.env_id for e in episodes if e.lost] == ([0, 1] if deed == "hangs" else [1])


@pytest.mark.fault("G7")
@pytest.mark.parametrize(("deed", "error"), [("dies", WorkerDied), ("hangs", ReplyTimeout), ("raises", EnvFailed)])
def test_without_restarts_it_is_an_error_and_the_others_are_stopped(deed: str, error: Any, tmp_path: Path) -> None:
    with made(tmp_path, 3, deed, "in workers", on_failure="raise", reply_timeout_s=1.0) as envs:
        collector, _, _ = collecting(envs)
        with pytest.raises(error, match="env 1" if deed == "raises" else "step"):
            collector.collect([policy_for(envs)], np.random.default_rng(1))
        failures = envs.failures
        assert failures.steps_sent == failures.steps_used + failures.steps_discarded


@pytest.mark.fault("G7")
def test_a_slow_rollout_is_no_hang(tmp_path: Path) -> None:
    """The deadline is a step's: a rollout may take longer than it."""
    with mv.make_vec(Slow, 2, "process", workers=2, autoreset="same_step", infos=False, reset_plan=mv.DerivedSeeds(4),
                     fields=fields_for(2), reply_timeout_s=0.5) as envs:  # fmt: skip
        collector, _, _ = collecting(envs)
        assert collector.collect([policy_for(envs)], np.random.default_rng(1)) is not None
        assert envs.failures.timeouts == 0


class Slow(Mortal):
    def step(self, action: Any) -> Any:
        time.sleep(0.15)  # seven of these are longer than what a step may take
        return super().step(action)


@pytest.mark.fault("G7")
def test_a_stop_is_answered_within_a_row(tmp_path: Path) -> None:
    """The worker, asked to stop, ends with the row it is in; the vector env can be used on."""
    with mv.make_vec(Patient, 2, "process", workers=1, autoreset="same_step", infos=False,
                     reset_plan=mv.DerivedSeeds(4), env_kwargs={"note": str(tmp_path / "note")},
                     fields=fields_for(2)) as envs:  # fmt: skip
        collector, _, _ = collecting(envs)

        def asked() -> bool:
            if not (tmp_path / "note").exists():
                return False
            (tmp_path / "go").touch()  # the env waits for it, in its second step
            return True

        with StopRequests():  # as the trainer waits
            assert collector.collect([policy_for(envs)], np.random.default_rng(1), asked) is None
        assert envs.episode_lengths.max() <= 3 and envs.episode_counts.tolist() == [0, 0]  # of seven steps
        envs.reset()
        assert envs.episode_lengths.tolist() == [0, 0]


class Patient(Mortal):
    def step(self, action: Any) -> Any:
        if self.steps == 1:
            Path(self.note).touch()
            while not (Path(self.note).parent / "go").exists():
                time.sleep(0.01)
        return super().step(action)
