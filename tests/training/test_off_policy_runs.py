"""Runs that learn from replay: exact resume with its storage, metrics, equality of all executors, and learning."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.cli.main import main
from multiverse.core.errors import CheckpointBroken, RunNotSaved
from multiverse.training.learners import learned_in
from multiverse.training.runs import tables
from multiverse.training.runs.run_directory import read_provenance
from multiverse.training.saved_runs import checkpoint_of
from tests.forked_programs import ForkedPrograms
from tests.multi_agent.envs import Pair
from tests.training.envs import Counting
from tests.training.small_runs import digest, lines_of
from tests.training.test_exact_resume import go_on

RUN: dict[str, Any] = {
    "seed": 5, "num_envs": 3, "env_steps": 600, "steps_per_env": 2, "learning_starts": 100, "batch_size": 16,
    "buffer_size": 300, "hidden_sizes": [16, 16], "evaluate_every": 0, "evaluation_episodes": 1, "executor": "serial",
    "preset": False, "gradient_steps": 1, "log_every": 50,
}  # fmt: skip
DQN = {**RUN, "algorithm": "dqn", "target_update_interval": 60}
SAC = {**RUN, "algorithm": "sac", "env": "Pendulum-v1"}
TD3 = {**RUN, "algorithm": "td3", "env": "Pendulum-v1"}
DISCRETE = {**RUN, "algorithm": "discrete_sac"}
LOADED = ("multiverse.algorithms.dqn", "multiverse.algorithms.sac", "multiverse.algorithms.td3")
EACH = {"dqn": DQN, "sac": SAC, "td3": TD3, "discrete_sac": DISCRETE}


def trained(home: Path, settings: dict[str, Any], **more: Any) -> Any:
    given = {**settings, **more}
    return mv.train(given.pop("env", "CartPole-v1"), run_dir=home, **given)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    homes = {}
    for name, settings in EACH.items():
        homes[name] = tmp_path_factory.mktemp("whole") / name
        trained(homes[name], settings, checkpoint_every_s=0.0)
    return homes


@pytest.mark.fault("D5")
@pytest.mark.parametrize(
    ("name", "deaths"),
    [
        ("dqn", [("collect", 150), ("learn", 12)]),
        ("sac", [("flush", 60), ("flush", 40)]),  # half of what was to be appended is there
        ("td3", [("save", 170), ("save", 121)]),
        ("discrete_sac", [("learn", 30), ("collect", 100)]),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(f"{where}{at}" for where, at in given),
)
def test_killed_run_resumes_exactly(
    name: str,
    deaths: list[tuple[str, int]],
    uninterrupted: dict[str, Path],
    tmp_path: Path,
    programs: ForkedPrograms,
) -> None:
    home, settings = tmp_path / "run", {**EACH[name], "checkpoint_every_s": 0.0}
    for number, (where, at) in enumerate(deaths):
        assert not go_on(programs, home, number == 0, settings, where, at), "it should have died on the way"
    mv.resume(home)
    assert digest(home) == digest(uninterrupted[name])
    for file in ("metrics.jsonl", "episodes.jsonl"):
        assert lines_of(home, file) == lines_of(uninterrupted[name], file)


@pytest.mark.parametrize(("executor", "workers"), [("process", 2), ("hybrid", 2), ("thread", 3)])
@pytest.mark.parametrize("name", ["sac", "dqn"])
def test_executor_and_worker_count_do_not_change_the_weights(
    name: str, executor: str, workers: int, uninterrupted: dict[str, Path], tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", EACH[name], executor=executor, workers=workers)
    assert digest(run.path) == digest(uninterrupted[name])


def test_rollouts_filled_by_workers_give_equal_weights(tmp_path: Path) -> None:
    """From eight steps on workers fill rollouts themselves, with noise that decides which actions are random."""
    runs = [trained(tmp_path / how, DQN, steps_per_env=10, executor=how) for how in ("serial", "process")]
    assert digest(runs[0].path) == digest(runs[1].path)


def test_short_updates_share_a_line_of_metrics(uninterrupted: dict[str, Path]) -> None:
    lines = [line for line in lines_of(uninterrupted["sac"], "metrics.jsonl") if "updates" in line]
    assert [line["env_steps"] for line in lines] == [54, 102, 150, 204, 252, 300, 354, 402, 450, 504, 552, 600]
    assert "critic_loss" not in lines[0] and lines[2]["updates"] == 25
    learned = [line for line in lines if "critic_loss" in line]
    assert len(learned) == 11 and all(np.isfinite(line["critic_loss"]) for line in learned)


@pytest.mark.fault("D2")
def test_full_disk_during_a_flush_keeps_the_last_checkpoint_and_the_run_continues(
    uninterrupted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(mv.Hook):
        """A disk that is full for a while, in the middle of the run."""

        def on_update(self, trainer: Any, report: Any) -> None:
            full = 40 <= trainer.clock.updates < 50
            monkeypatch.setattr(tables, "write_all", self.torn if full else write)

        def torn(self, descriptor: int, data: bytes) -> None:
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write = tables.write_all
    run = trained(tmp_path / "run", SAC, checkpoint_every_s=0.0, hooks=[Full()], env_steps=354)
    assert "not saved (No space left on device); older ones are kept" in caplog.text
    mv.resume(run.path, env_steps=600)
    assert digest(run.path) == digest(uninterrupted["sac"])


def test_run_ended_by_a_full_disk_resumes_from_its_last_checkpoint(
    uninterrupted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.updates == 50:
                monkeypatch.setattr(tables, "write_all", self.full)

        def full(self, descriptor: int, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunNotSaved):
        trained(tmp_path / "run", SAC, checkpoint_every_s=0.0, hooks=[Full()])
    monkeypatch.undo()
    mv.resume(tmp_path / "run")
    assert digest(tmp_path / "run") == digest(uninterrupted["sac"])


def test_replay_is_written_once_for_all_checkpoints(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", SAC, checkpoint_every_s=0.0, buffer_size=10_000)
    folder = run.path / "checkpoints" / "tables"
    (rows,) = [path for path in folder.iterdir() if "rows" in path.name and "finals" not in path.name]
    record = 3 * (3 + 1 + 1) * 4 + 3  # three envs: what is seen, done and earned, and a byte of flags
    assert rows.stat().st_size == 200 * record


def with_damaged_replay(home: Path, settings: dict[str, Any], **more: Any) -> Path:
    """A run of which every checkpoint names a table with one flipped bit in its first record."""
    run: Path = trained(home, settings, checkpoint_every_s=0.0, **more).path
    for table in (run / "checkpoints" / "tables").iterdir():
        data = bytearray(table.read_bytes())
        data[3] ^= 1
        table.write_bytes(data)
    return run


@pytest.mark.fault("D3")
@pytest.mark.parametrize(("name", "separate"), [("dqn", False), ("sac", False), ("dqn", True)])
def test_run_with_damaged_replay_resumes_with_an_empty_one_if_requested(
    name: str, separate: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**EACH[name], **({"env": Pair, "separate": True} if separate else {})}
    again = {"env": Pair} if separate else {}
    run = with_damaged_replay(tmp_path / "run", settings, env_steps=300)
    with pytest.raises(CheckpointBroken, match=r"all of its . checkpoints are damaged.*pass --without-replay"):
        mv.resume(run, env_steps=576, **again)
    latest = checkpoint_of(run)
    with pytest.raises(CheckpointBroken, match=r"other bytes than were written.*pass --without-replay"):
        mv.resume(latest.path, env_steps=576, **again)
    before = learned_in(latest.state["session"])
    weights = []

    class First(mv.Hook):
        def on_rollout(self, trainer: Any, collected: Any) -> None:
            weights.append([learner.weights() for learner in trainer.session.learners])

    resumed = mv.resume(run, env_steps=576, without_replay=True, hooks=[First()], **again)
    for mine, saved in zip(weights[0], before.values()):
        assert all(np.array_equal(mine[part], saved["weights"][part]) for part in mine)
    assert "its replay buffer is left out and begins empty: not bit-exact" in caplog.text
    assert resumed.summary["env_steps"] == 576 and len(read_provenance(run)) == 2
    assert read_provenance(run)[-1]["without_replay"] is True
    for learned in learned_in(checkpoint_of(run).state["session"]).values():
        replay = learned["state"]["replay"]
        assert replay["added"] == (576 - 300) // settings["num_envs"] and replay["rows"].first == 0
    once = digest(run)
    assert digest(mv.resume(run, **again)) == once  # its own checkpoints are whole


@pytest.mark.fault("D3")
def test_learning_after_a_resume_without_replay_waits_for_enough_steps(tmp_path: Path) -> None:
    run = with_damaged_replay(tmp_path / "run", DQN, env_steps=300)
    steps = []

    class Steps(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            steps.append((trainer.clock.env_steps, report.gradient_steps))

    mv.resume(run, env_steps=500, without_replay=True, hooks=[Steps()])
    learning = [at for at, gradient_steps in steps if gradient_steps]
    assert learning[0] == 300 + DQN["learning_starts"] + 2 and learning[-1] >= 500


@pytest.mark.fault("D3")
def test_records_after_a_resume_without_replay_do_not_continue_dropped_ones(tmp_path: Path) -> None:
    """Also if there are more of them at the next checkpoint than the damaged table had."""
    run = with_damaged_replay(tmp_path / "run", {**DQN, "buffer_size": 6_000}, env_steps=120)
    mv.resume(run, env_steps=600, without_replay=True, checkpoint_every_s=1000.0)
    (learned,) = learned_in(checkpoint_of(run).state["session"]).values()
    learned["state"]["replay"]["rows"].verify()
    once = digest(run)
    assert digest(mv.resume(run)) == once


def test_without_replay_is_refused_for_algorithms_without_replay(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", env_steps=100, num_envs=2, steps_per_env=25)
    with pytest.raises(mv.errors.InvalidRequest, match="the algorithm of this run has no replay buffer"):
        mv.resume(run, env_steps=200, without_replay=True)


def test_resume_command_accepts_without_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = with_damaged_replay(tmp_path / "run", DQN, env_steps=120)
    assert main(["resume", str(run), "--env-steps", "200"]) == 2
    assert "pass --without-replay" in capsys.readouterr().err
    assert main(["resume", str(run), "--env-steps", "200", "--without-replay"]) == 0
    assert "its replay buffer is left out and begins empty: not bit-exact" in caplog.text


class Named(Pair):
    """Two agents whose names cannot be file names."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["../" + "x" * 220, "\udce9\n"]


@pytest.mark.fault("D2")
def test_agents_with_names_that_no_file_can_have_are_saved_and_resumed_exactly(tmp_path: Path) -> None:
    settings = {**DQN, "env": Named, "separate": True, "env_steps": 200}
    whole = trained(tmp_path / "whole", settings, checkpoint_every_s=0.0)
    trained(tmp_path / "run", settings, env_steps=120)
    assert digest(mv.resume(tmp_path / "run", env=Named, env_steps=200)) == digest(whole)
    assert {*mv.load(whole).act({name: np.zeros(2) for name in Named().possible_agents})} == {*Named().possible_agents}
    assert "mean_return/\\udce9" in (whole.path / "metrics.csv").read_text()


def test_policy_of_a_run_acts_without_its_replay(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    for name, actions in (("sac", 1), ("td3", 1), ("dqn", 0), ("discrete_sac", 0)):
        shutil.copytree(uninterrupted[name], tmp_path / name)
        shutil.rmtree(tmp_path / name / "checkpoints" / "tables")
        policy = mv.load(tmp_path / name)
        seen = np.zeros((5, *policy.observation_space.shape), np.float32)
        for deterministic in (True, False):
            chosen = policy.act(seen, deterministic)
            assert chosen.shape == (5, *(1,) * actions) and policy.action_space.contains(chosen[0])


# -- what is in replay -------------------------------------------------------------------------------------------


@pytest.mark.fault("B4")
@pytest.mark.parametrize("steps_per_env", [2, 10])
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_replay_after_restarts_has_only_steps_that_were_taken(
    executor: str, steps_per_env: int, tmp_path: Path
) -> None:
    class Looks(mv.Hook):
        checked = lost = 0

        def on_update(self, trainer: Any, report: Any) -> None:
            rows = trainer.algorithm.replay.rows(np.random.default_rng(0), 500)
            seen, after = rows.observations[()], rows.next_observations[()]
            assert (after == seen + np.float32([0, 1])).all() and (rows.rewards == after[:, 1]).all()
            assert (rows.terminated == (after[:, 1] >= 12)).all()
            whole = trainer.algorithm.replay.sequences(np.random.default_rng(0), 50)
            steps = np.diff(whole.observations[()], axis=0)[whole.mask]
            assert (steps == np.float32([0, 1])).all()
            self.checked, self.lost = self.checked + 1, trainer.clock.lost_steps

    looks = Looks()
    settings = {**DQN, "steps_per_env": steps_per_env, "executor": executor, "restarts_per_minute": 1_000}
    mv.train(Counting, run_dir=tmp_path / "run", hooks=[looks], **settings)
    assert looks.checked >= 20 and looks.lost > 5


class Pictures(gym.Env):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low + np.uint8(self.np_random.integers(255)), {}

    def step(self, action: Any) -> Any:
        draw = self.np_random.integers(255)
        return self.observation_space.low + np.uint8(draw), 0.0, bool(draw < 20), False, {}


@pytest.mark.parametrize("name", ["dqn", "discrete_sac"])
def test_run_with_images_learns_in_torch_and_resumes_exactly(name: str, tmp_path: Path) -> None:
    settings = {**EACH[name], "env_steps": 36, "learning_starts": 12, "hidden_sizes": [16], "batch_size": 4}
    settings |= {"exploration_fraction": 0.0} if name == "dqn" else {}  # else it would depend on the budget
    whole = mv.train(Pictures, run_dir=tmp_path / "whole", **settings)
    half = mv.train(Pictures, run_dir=tmp_path / "half", **{**settings, "env_steps": 24})
    mv.resume(half, env=Pictures, env_steps=36)
    assert digest(half.path) == digest(whole.path)
    assert mv.load(half).act(np.zeros((36, 36, 3), np.uint8)) in (0, 1, 2)


# -- learning ----------------------------------------------------------------------------------------------------
LEARNING: dict[str, tuple[str, float, dict[str, Any]]] = {
    "dqn": ("CartPole-v1", 250.0, {"env_steps": 30_000, "hidden_sizes": [64, 64], "gradient_steps": 64}),
    "discrete_sac": ("CartPole-v1", 150.0, {"env_steps": 15_000}),
    "sac": ("Pendulum-v1", -300.0, {"env_steps": 9_000, "preset": False}),
    "td3": ("Pendulum-v1", -300.0, {"env_steps": 12_000, "preset": False, "action_noise": 0.2}),
}
SMALL = {"num_envs": 2, "steps_per_env": 2, "hidden_sizes": [64, 64], "batch_size": 128, "learning_rate": 2e-3,
         "gamma": 0.95, "learning_starts": 400}  # fmt: skip


@pytest.mark.parametrize("name", LEARNING)
def test_algorithm_learns_its_task(name: str, tmp_path: Path) -> None:
    """In a few seconds: smaller networks than those of the presets, and only until learning is clear."""
    env, target, settings = LEARNING[name]
    settings = {**(SMALL if env == "Pendulum-v1" else {}), **settings, "evaluate_every": 1_000, "target_return": target}
    run = mv.train(env, name, run_dir=tmp_path / "run", seed=1, executor="serial", **settings)
    assert run.summary["best_return"] >= target
