"""A run from Python: budgets, hooks, evaluations, its files and its results."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import multiverse as mv
from multiverse.algorithms.algorithm import UpdateReport
from multiverse.algorithms.ppo import PPO
from multiverse.core.errors import CheckpointBroken, EvaluationFailed
from multiverse.core.seeds import episode_seed, evaluation_seed
from multiverse.rollouts.episodes import Collected
from multiverse.training import env_states
from multiverse.training import evaluation as evaluation_module
from multiverse.training import trainer as trainer_module
from multiverse.training.config.budget import PARTS
from multiverse.training.evaluation import Evaluation
from multiverse.training.loading import evaluate
from multiverse.training.runs import checkpoint_format
from multiverse.training.runs.checkpoint import load_latest
from multiverse.training.runs.checkpoint import save as save_checkpoint
from multiverse.training.saved_runs import checkpoint_of
from multiverse.training.session import Session
from multiverse.training.trainer import Trainer
from tests.fault_envs import Fault
from tests.training.envs import Locked, Treacherous
from tests.training.small_runs import SMALL, digest, lines_of


class Notes(mv.Hook):
    """Hook that records its calls in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        self.events.append(("rollout", trainer.clock.env_steps))

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        self.events.append(("update", trainer.clock.env_steps))

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        self.events.append(("evaluation", trainer.clock.env_steps))

    def on_end(self, trainer: Trainer, summary: dict[str, Any]) -> None:
        self.events.append(("end", summary["env_steps"]))


SCALED = {"normalize_observations": True, "normalize_rewards": True}


def trained(home: Path, hooks: tuple[mv.Hook, ...] = (), **settings: Any) -> mv.Run:
    return mv.train("CartPole-v1", run_dir=home, hooks=hooks, **{**SMALL, "env_steps": 500, **settings})


def test_finished_run_has_its_files_and_summary(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", evaluate_every=200, evaluation_episodes=2)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary == json.loads(json.dumps(run.summary)) and summary["finished"]
    assert summary["env_steps"] == 500 and summary["updates"] == 5
    failures = summary["failures"]
    assert failures["steps_sent"] == failures["steps_used"] + failures["steps_discarded"] == 500
    assert set(summary["evaluation"]) == {"mean_return", "std_return", "mean_length", "episodes"}
    updates = [row for row in lines_of(run.path, "metrics.jsonl") if "policy_loss" in row]
    assert [row["env_steps"] for row in updates] == [100, 200, 300, 400, 500]
    episodes = lines_of(run.path, "episodes.jsonl")
    assert len(episodes) == summary["episodes"] > 0
    assert all(row["seed"] == episode_seed(5, row["env_id"], row["episode"]) for row in episodes)
    assert checkpoint_of(run).manifest["env_steps"] == 500


def test_small_networks_learn_the_same_without_torch(tmp_path: Path) -> None:
    bare = """
import json, sys
sys.modules["torch"] = None  # as if it were not installed
import multiverse as mv
mv.train("CartPole-v1", run_dir=sys.argv[1], **json.loads(sys.argv[2]))
"""
    settings = json.dumps({**SMALL, "env_steps": 500})
    subprocess.run([sys.executable, "-c", bare, str(tmp_path / "bare"), settings], timeout=60, check=True)
    assert digest(tmp_path / "bare") == digest(trained(tmp_path / "with torch"))


def test_every_episode_can_be_replayed_from_its_line(tmp_path: Path) -> None:
    """Its seed is in the file: an env reset with it begins in the same way as that episode."""
    run = trained(tmp_path / "run")
    line = lines_of(run.path, "episodes.jsonl")[3]
    first, _ = gym.make("CartPole-v1").reset(seed=line["seed"])
    with mv.make_vec("CartPole-v1", 4, "serial", reset_plan=mv.DerivedSeeds(5)) as envs:
        episodes = [line["episode"] if i == line["env_id"] else 0 for i in range(4)]
        observations, _ = envs.begin_at(episodes)
    assert (observations[line["env_id"]] == first).all()


def test_hooks_are_called_in_order(tmp_path: Path) -> None:
    notes = Notes()
    trained(tmp_path / "run", (notes,), env_steps=200, evaluate_every=200)
    assert notes.events == [
        ("rollout", 0),
        ("update", 100),
        ("rollout", 100),
        ("update", 200),
        ("evaluation", 200),
        ("end", 200),
    ]


@pytest.mark.fault("F4")
@pytest.mark.parametrize(
    "write",
    [
        lambda trainer, report: trainer.metrics.update(mine=1.0),
        lambda trainer, report: trainer.metrics.__setitem__("mine", 1.0),
        lambda trainer, report: report.metrics.__setitem__("mine", 1.0),
        lambda trainer, report: report.metrics.pop("kl"),
        lambda trainer, report: setattr(trainer, "metrics", {"mine": 1.0}),
        lambda trainer, report: operator.ior(trainer.metrics, {"mine": 1.0}),
    ],
)
def test_writing_metrics_in_a_hook_is_an_error(write: Any, tmp_path: Path) -> None:
    class Writes(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            write(trainer, report)

    with pytest.raises(mv.errors.InvalidRequest, match="the metrics that a hook gets are read-only"):
        trained(tmp_path / "run", (Writes(),))
    assert checkpoint_of(tmp_path / "run").manifest["env_steps"] == 100, "what was learned is saved"


def test_hooks_read_and_copy_metrics(tmp_path: Path) -> None:
    copies: list[dict[str, Any]] = []

    class Reads(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            for mine in (copy.copy(trainer.metrics), copy.deepcopy(report.metrics), {**trainer.metrics}):
                assert json.loads(json.dumps(mine)) == mine and mine["kl"] == report.metrics["kl"]
                mine["mine"] = 1.0
                copies.append(mine)

    run = trained(tmp_path / "run", (Reads(),))
    assert len(copies) == 15 and not any("mine" in row for row in run.rows())


def test_hook_can_stop_the_run(tmp_path: Path) -> None:
    class Enough(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            if trainer.clock.updates == 2:
                trainer.stop("enough")

    run = trained(tmp_path / "run", (Enough(),))
    assert (run.summary["env_steps"], run.summary["stopped"], run.summary["finished"]) == (200, "enough", True)


def test_setting_changed_by_a_hook_stays_changed_after_a_resume(tmp_path: Path) -> None:
    class Slower(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            if trainer.clock.updates == 2:
                trainer.algorithm.change(learning_rate=1e-5)

    whole = trained(tmp_path / "whole", (Slower(),))
    half = trained(tmp_path / "half", (Slower(),), env_steps=300)
    mv.resume(half, env_steps=500)
    assert digest(half.path) == digest(whole.path)


@pytest.mark.parametrize(
    ("budget", "what", "least"), [({"episodes": 10}, "episodes", 10), ({"minutes": 0.01}, "seconds", 0.6)]
)
def test_budgets_of_every_kind_end_the_run(budget: dict[str, Any], what: str, least: float, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", env_steps=None, **budget)
    assert run.summary[what] >= least and run.summary["finished"]


def test_reached_target_ends_the_run(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", env_steps=100_000, evaluate_every=100, target_return=5.0)
    assert run.summary["env_steps"] == 100 and "reached a mean return" in run.summary["stopped"]


def test_evaluation_does_not_depend_on_the_executor_of_the_training(tmp_path: Path) -> None:
    one = trained(tmp_path / "one", num_envs=4, executor="serial")
    other = trained(tmp_path / "other", num_envs=4, executor="process", workers=2)
    found = [evaluate(run, episodes=3, seed=1) for run in (one, other)]
    assert found[0] == found[1] and len(found[0].returns) == 3
    assert evaluate(one, episodes=3, seed=2) != found[0]


def test_training_and_evaluation_seeds_are_disjoint() -> None:
    trained_on = {episode_seed(run, env, episode) for run in range(3) for env in range(8) for episode in range(200)}
    assert max(trained_on) < 2**31 <= min(evaluation_seed(seed, k) for seed in range(3) for k in range(200))


def test_loaded_policy_acts(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    policy, batch = mv.load(run), np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    together = policy.act(batch)
    assert together.shape == (6,) and [policy.act(one) for one in batch] == together.tolist()
    drawn = [policy.act(batch[0], deterministic=False) for _ in range(200)]
    assert set(drawn) == {0, 1}
    env, (seen, _) = gym.make("CartPole-v1"), gym.make("CartPole-v1").reset(seed=0)
    assert env.action_space.contains(policy.act(seen))


def test_run_can_start_with_the_weights_of_another(tmp_path: Path) -> None:
    one = trained(tmp_path / "one", normalize_observations=False)
    still = {"env_steps": 100, "learning_rate": 1e-12, "seed": 9, "normalize_observations": False}
    other = trained(tmp_path / "other", init_from=one.path, **still)
    assert evaluate(one, episodes=3) == evaluate(other, episodes=3)


def test_best_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = iter([5.0, 50.0, 7.0, 49.0, 50.0])
    monkeypatch.setattr(env_states, "evaluate", lambda *_, **more: Evaluation((next(returns),), (1,)))
    run = trained(tmp_path / "run", evaluate_every=100)
    assert run.summary["best_return"] == 50.0
    assert checkpoint_of(run, "best").manifest["env_steps"] == 200 and checkpoint_of(run).manifest["env_steps"] == 500
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir())[0] == "best"


# -- where the time goes -------------------------------------------------------------------------------------------
def test_parts_of_the_time_add_up_to_all_of_it(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", evaluate_every=200, checkpoint_every_s=0.0)
    for summary in (run.summary, mv.resume(run, env_steps=700).summary):
        parts = {part: summary[f"{part}_s"] for part in PARTS}
        assert set(parts) == {"act", "step", "learn", "evaluate", "save", "other"} and min(parts.values()) > 0.0
        assert sum(parts.values()) == pytest.approx(summary["seconds"])
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if "policy_loss" in line]
    assert len(updates) == 7
    for line in updates:
        assert sum(line[f"{part}_share"] for part in PARTS) == pytest.approx(1.0)


def test_each_part_is_credited_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances only where the test advances it."""
    now = [0.0]

    def slow(owner: Any, name: str, seconds: float) -> list[float]:
        before, taken = getattr(owner, name), []

        def slower(*arguments: Any, **named: Any) -> Any:
            now[0] += seconds
            taken.append(seconds)
            return before(*arguments, **named)

        monkeypatch.setattr(owner, name, slower)
        return taken

    class Dawdles(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            now[0] += 1.0

    def collected(self: Any, should_stop: Any) -> Any:
        now[0] += 48.0
        found = collect(self, should_stop)
        found.act_s, found.step_s = 16.0, 32.0
        return found

    collect = Session.collect
    monkeypatch.setattr(trainer_module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Session, "collect", collected)
    slow(PPO, "update", 64.0)
    slow(env_states, "evaluate", 1024.0)
    saves = slow(trainer_module.Checkpoints, "save", 4096.0)
    summary = trained(tmp_path / "run", (Dawdles(),), env_steps=300, evaluate_every=200).summary
    parts = {part: summary[f"{part}_s"] for part in PARTS}
    assert parts["evaluate"] == 2 * 1024.0 and parts["save"] == sum(saves) > 0.0
    assert (parts["act"], parts["step"], parts["learn"], parts["other"]) == (48.0, 96.0, 192.0, 3.0)
    assert sum(parts.values()) == summary["seconds"] == now[0]


# -- refusals and reports ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rte": 1e-3}, "learning_rate"),
        ({"env_steps": 0}, "env_steps=0"),
        ({"num_envs": 0}, "num_envs=0"),
        ({"gamma": 2.0}, "gamma"),
        ({"device": "cuda"}, "device='cuda'"),
        ({"algorithm": "pposs"}, "algorithm"),
    ],
)
def test_invalid_settings_are_refused_before_anything_starts(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(mv.MultiverseError, match=message):
        trained(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.fault("D6")
def test_changed_settings_are_reported_on_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained(tmp_path / "run")
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("gamma: 0.99", "gamma: 0.5"))
    with caplog.at_level("WARNING", "multiverse"):
        mv.resume(run, env_steps=600)
    assert "ppo.gamma changed from 0.99 to 0.5" in caplog.text and "env_steps changed" not in caplog.text
    assert "multiplied" not in caplog.text


@pytest.mark.fault("D6")
def test_resume_with_another_blas_library_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path / "run")
    here = json.loads((run.path / "provenance.json").read_text())["parts"][-1]["machine"]["blas"]
    for env_steps, checkpoint, reported in ((600, "checkpoints/step-000000000500", False), (800, "", True)):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("multiverse.training.trainer.blas", lambda: "openblas 0.3.31 \x1bAbacus")
            mv.resume(run, env_steps=env_steps)
        caplog.clear()
        with caplog.at_level("WARNING", "multiverse"):
            mv.resume(run.path / checkpoint, env_steps=env_steps + 100)
        assert ("multiplied" in caplog.text) is reported, "the library of the checkpoint counts"
    assert f"by openblas 0.3.31 \\x1bAbacus, and here by {here}: the run continues, but not bit-exactly" in caplog.text


@pytest.mark.fault("D6")
@pytest.mark.parametrize(
    ("old", "new", "plan"),
    [
        ("executor: serial", "executor: process", ("process", 2)),
        ("executor: process", "executor: serial", ("serial", 0)),
        ("workers: 2", "workers: 1", ("process", 1)),
    ],
)
def test_executor_edited_in_the_config_is_used_and_changes_no_bit(
    old: str, new: str, plan: tuple[str, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"executor": "serial" if "serial" in old else "process", "workers": 2, "num_envs": 4}
    whole = digest(trained(tmp_path / "whole", **{**settings, "env_steps": 700}))
    run = trained(tmp_path / "run", **settings)
    text = (run.path / "config.yaml").read_text()
    assert old in text
    (run.path / "config.yaml").write_text(text.replace(old, new))
    resumed = mv.resume(run, env_steps=700)
    name = old.partition(":")[0]
    assert f"step-000000000500: {name} changed from" in caplog.text
    assert (resumed.summary["plan"]["executor"], resumed.summary["plan"]["workers"]) == plan
    assert digest(resumed) == whole
    caplog.clear()
    again = mv.resume(run, env_steps=800)
    assert (again.summary["plan"]["executor"], again.summary["plan"]["workers"]) == plan
    assert f"{name} changed" not in caplog.text


@pytest.mark.fault("D6")
def test_setting_edited_in_the_config_overrides_one_changed_by_a_hook(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Lowered(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            trainer.algorithm.change(learning_rate=1e-4)  # part of its state from here on

    run = trained(tmp_path / "run", (Lowered(),), learning_rate=2e-4)
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("learning_rate: 0.0002", "learning_rate: 0.0005"))
    rates = []

    class Rates(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            rates.append(trainer.algorithm.config.learning_rate)

    mv.resume(run, env_steps=600, hooks=[Rates()])
    assert "learning_rate changed from 0.0002 to 0.0005" in caplog.text and rates == [5e-4]


@pytest.mark.fault("D6")
def test_networks_of_another_size_are_refused_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained(tmp_path / "run", hidden_sizes=(8, 8))
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("- 8\n", "- 16\n", 1))
    with pytest.raises(mv.errors.InvalidRequest, match="networks have other sizes"):
        mv.resume(run, env_steps=600)
    assert "hidden_sizes" in caplog.text


@pytest.mark.fault("E3")
def test_code_named_in_a_checkpoint_is_not_imported(tmp_path: Path) -> None:
    """Whatever its manifest contains, the env is that of the run's own config, or the caller's."""
    from multiverse.training.runs import checkpoint

    run = trained(tmp_path / "run")
    found = checkpoint.load_latest(run.path / "checkpoints")
    assert found is not None
    evil = {**found.manifest["config"], "env": "tests.training.no_such_module:run_me"}
    kept = {key: value for key, value in found.manifest.items() if key in ("clock",)}
    checkpoint.save(run.path / "checkpoints", "step-000000000900", found.state, {**kept, "config": evil})
    assert mv.load(run).act(np.zeros(4, np.float32)) in (0, 1)
    assert len(evaluate(run, episodes=1).returns) == 1


@pytest.mark.fault("B5")
def test_diverging_run_ends_with_its_last_good_weights(tmp_path: Path) -> None:
    class Broken(gym.RewardWrapper):  # type: ignore[type-arg]
        def reward(self, reward: Any) -> float:
            return 3e38

    with pytest.raises(mv.errors.TrainingDiverged):
        mv.train(lambda: Broken(gym.make("CartPole-v1")), run_dir=tmp_path / "run",
                 **{**SMALL, "normalize_rewards": False})  # fmt: skip
    assert not [p for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.startswith(".")]


class Poison(mv.Hook):
    """Hook that makes one weight of PPO NaN after 300 env steps."""

    def __init__(self, place: str) -> None:
        self.kind, *self.path = place.split("/")

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        if trainer.clock.env_steps == 300:
            learner = trainer.algorithm
            saved = inner = learner.weights() if self.kind == "weights" else learner.state()
            for name in self.path:
                inner = inner[name]
            inner[0] = np.inf
            (learner.load_weights if self.kind == "weights" else learner.load)(saved)


LEARNED = (
    "weights/parameters",
    "weights/observations/variance",
    "state/optimizer/second",
    "state/rewards/moments/mean",
)


@pytest.mark.fault("B5")
@pytest.mark.parametrize("place", LEARNED)
@pytest.mark.parametrize("evaluate_every", [0, 300])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_non_finite_learned_values_end_the_run_and_are_in_no_checkpoint(
    tmp_path: Path, place: str, evaluate_every: int
) -> None:
    message = (
        f"algorithm/{place.removeprefix('state/')} is not finite after 300 env steps, so nothing was saved; the last"
    )
    with pytest.raises(mv.errors.TrainingDiverged, match=f"{message} checkpoint is .*step-000000000200"):
        trained(tmp_path / "run", (Poison(place),), checkpoint_every_s=0, evaluate_every=evaluate_every, **SCALED)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(one.name for one in checkpoints.iterdir()) == ["step-000000000100", "step-000000000200"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "is not finite" in summary["error"] and not summary["finished"]


@pytest.mark.fault("B5", "D3")
@pytest.mark.parametrize("place", LEARNED)
def test_diverged_checkpoint_of_an_earlier_version_is_skipped_by_name(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = trained(tmp_path / "whole", env_steps=800, **SCALED)
    run = trained(tmp_path / "run", **SCALED).path
    latest = load_latest(run / "checkpoints")
    assert latest is not None
    kept = {name: one for name, one in latest.manifest.items() if name not in checkpoint_format.RESERVED}
    *path, name = place.split("/")
    inner = latest.state["session"]["algorithm"]
    for part in path:
        inner = inner[part]
    inner[name][0] = np.nan
    for diverged in ("step-000000000600", "best"):
        save_checkpoint(run / "checkpoints", diverged, latest.state, {**kept, "env_steps": 600})
    with pytest.raises(CheckpointBroken, match=r"best cannot be used: .* is not finite"):
        mv.load(run, which="best")
    assert mv.load(run).act(np.zeros(4)) in (0, 1)
    assert "step-000000000600 cannot be used: algorithm/" in caplog.text
    assert "is not finite: the training had diverged when it was saved. Trying the one before" in caplog.text
    assert digest(mv.resume(run, env_steps=800)) == digest(whole)
    names = {one.name for one in (run / "checkpoints").iterdir()}
    assert {"step-000000000600.broken", "best.broken"} <= names
    assert mv.load(run, which="best").act(np.zeros(4)) in (0, 1)


@pytest.mark.fault("B5")
def test_infinite_values_that_are_not_learned_are_saved() -> None:
    learner = {"weights": {"parameters": np.ones(2)}, "state": {"lowest": np.full(2, -np.inf), "loss": float("nan")}}
    state = {"session": {"algorithms": {"red": learner}}, "best_return": float("-inf")}
    assert checkpoint_format.not_finite(state) is None
    learner["weights"]["parameters"][1] = np.nan
    assert checkpoint_format.not_finite(state) == "algorithms/red/weights/parameters"


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize("what", ["observation", "reward"])
def test_float64_value_beyond_float32_names_its_env_and_reaches_no_checkpoint(tmp_path: Path, what: str) -> None:
    class Huge(gym.Wrapper):  # type: ignore[type-arg]
        observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            huge = what == "observation"
            return observation.astype(np.float64) * (1e60 if huge else 1.0), 1.0 if huge else 1e300, *rest

    with pytest.raises(mv.errors.EnvFailed, match=rf"env \d.*the {what} is .*too large for float32"):
        mv.train(lambda: Huge(gym.make("CartPole-v1")), run_dir=tmp_path / "run",
                 **{**SMALL, "normalize_observations": True, "on_failure": "raise"})  # fmt: skip
    assert np.isfinite(checkpoint_of(tmp_path / "run").state["session"]["algorithm"]["weights"]["parameters"]).all()


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize("what", ["observation", "reward"])
def test_float64_value_beyond_float32_fails_an_evaluation_and_names_its_env(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Huge(gym.Wrapper):  # type: ignore[type-arg]
        observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation.astype(np.float64) * (1e60 if what == "observation" else 1.0), 1e300, *rest

    with pytest.raises(EvaluationFailed, match="the env failed in each of its 1 episode"):
        evaluate(trained(tmp_path / "run"), env=lambda: Huge(gym.make("CartPole-v1")), episodes=1)
    assert f"env 0 raised BadValue: the {what} is" in caplog.text
    assert "too large for float32" in caplog.text


@pytest.mark.fault("E6")
def test_secret_env_arguments_must_be_passed_again(tmp_path: Path) -> None:
    secret = {"api_key": "open sesame"}
    where = f"{__name__}:Locked"
    run = mv.train(where, run_dir=tmp_path / "run", env_kwargs=secret, **{**SMALL, "env_steps": 100})
    written = [path.read_bytes() for path in run.path.rglob("*") if path.is_file()]
    assert not any(b"sesame" in content for content in written)
    for again in (mv.resume, evaluate):
        with pytest.raises(mv.errors.InvalidRequest, match=r"env_kwargs\.api_key is secret"):
            again(run)  # type: ignore[operator]
    evaluate(run, episodes=1, env_kwargs=secret)
    mv.load(run)  # needs no env, and so no secret
    assert mv.resume(run, env_steps=200, env_kwargs=secret).summary["env_steps"] == 200


@pytest.mark.fault("E6")
def test_secret_passed_again_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secrets = {"api_key": "open sesame", "url": "https://me:sesame@example.org/x"}
    run = mv.train(Locked, run_dir=tmp_path / "run", env_kwargs=secrets, **{**SMALL, "env_steps": 100})
    with pytest.raises(mv.errors.InvalidRequest, match=r"env_kwargs\.url is secret"):
        mv.resume(run, env=Locked, env_kwargs={"api_key": "open sesame"})
    caplog.set_level("DEBUG", "multiverse")
    mv.resume(run, env=Locked, env_kwargs=secrets, env_steps=200)
    assert "sesame" not in caplog.text and "env_kwargs" not in caplog.text
    assert not any(b"sesame" in path.read_bytes() for path in run.path.rglob("*") if path.is_file())


def test_signal_during_the_last_evaluation_saves_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is saved and the signal ends the program; resumed, it only evaluates."""

    def interrupted(*_: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(env_states, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run")
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["finished"]
    monkeypatch.undo()
    summary = mv.resume(tmp_path / "run").summary
    assert summary["finished"] and summary["env_steps"] == 500 and summary["evaluation"]["episodes"] == 1


def test_hooks_can_save_and_evaluate(tmp_path: Path) -> None:
    class Often(Notes):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            if trainer.clock.updates in (1, 3):
                trainer.save()
                trainer.evaluate()

    often = Often()
    run = trained(tmp_path / "run", (often,), env_steps=400)
    assert [at for what, at in often.events if what == "evaluation"] == [100, 300, 400]
    names = {path.name for path in (run.path / "checkpoints").iterdir()}
    assert {"step-000000000100", "step-000000000300", "step-000000000400"} <= names


def test_evaluation_of_an_endless_env_is_cut_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Endless(gym.Wrapper):  # type: ignore[type-arg]
        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 1.0, False, False, {}

    monkeypatch.setattr(evaluation_module, "MAX_STEPS", 50)
    run = mv.train(lambda: Endless(gym.make("CartPole-v1")), run_dir=tmp_path / "run", **{**SMALL, "env_steps": 100})
    assert run.summary["evaluation"]["mean_length"] == 50 and "never ends one" in caplog.text


@pytest.mark.fault("G9")
@pytest.mark.parametrize(("how", "executor"), [("raise", "serial"), ("raise", "process"), ("die", "process")])
def test_env_that_fails_in_an_evaluation_costs_only_the_evaluation(
    how: str, executor: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SMALL, "env_steps": 200, "evaluate_every": 100, "executor": executor, "env_kwargs": {"how": how}}
    run = mv.train(Treacherous, run_dir=tmp_path / "run", **settings)
    assert run.summary["finished"] and run.summary["env_steps"] == 200 and run.summary["evaluation"] is None
    assert "evaluation" in caplog.text


def test_error_in_a_hook_keeps_what_was_learned(tmp_path: Path) -> None:
    class Stumbles(mv.Hook):
        def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
            if trainer.clock.updates == 3:
                raise LookupError("a hook of mine")

    with pytest.raises(LookupError):
        trained(tmp_path / "run", (Stumbles(),))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["finished"], summary["env_steps"], summary["error"]) == (False, 300, "LookupError: a hook of mine")
    whole = trained(tmp_path / "whole")
    mv.resume(tmp_path / "run")
    assert digest(tmp_path / "run") == digest(whole.path)


def test_bad_values_can_be_truncated_in_training(tmp_path: Path) -> None:
    class Nans(gym.ObservationWrapper):  # type: ignore[type-arg]
        def observation(self, observation: Any) -> Any:
            return observation if abs(observation[0]) < 0.06 else np.full_like(observation, np.nan)

    run = mv.train(lambda: Nans(gym.make("CartPole-v1")), run_dir=tmp_path / "run",
                   **{**SMALL, "env_steps": 400, "on_bad_value": "truncate"})  # fmt: skip
    failures = run.summary["failures"]
    assert run.summary["lost_steps"] == failures["bad_values"] > 0 and failures["steps_sent"] == 400


def test_failures_before_a_resume_stay_counted(tmp_path: Path) -> None:
    options = {**SMALL, "num_envs": 1, "env_steps": 100, "env_kwargs": {"what": "raise", "at": 9}}
    first = mv.train(Fault, run_dir=tmp_path / "run", **options, restarts_per_minute=99).summary["failures"]
    resumed = mv.resume(tmp_path / "run", env=Fault, env_steps=125).summary["failures"]
    assert first["env_restarts"] > 0
    assert all(resumed[name] >= count for name, count in first.items())
    assert resumed["steps_sent"] == resumed["steps_used"] + resumed["steps_discarded"] >= 125


def test_run_saved_without_failure_counts_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = Trainer.state
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "state", lambda self: {k: v for k, v in state(self).items() if k != "failures"})
        trained(tmp_path / "run", env_steps=100)
    assert mv.resume(tmp_path / "run", env_steps=200).summary["failures"]["steps_used"] >= 100


def test_only_weights_are_taken_from_the_other_run(tmp_path: Path) -> None:
    """From a run with other slots, statistics and settings."""
    one = trained(tmp_path / "one")
    other = trained(tmp_path / "other", init_from=one.path, num_envs=2, normalize_observations=False, env_steps=50)
    assert other.summary["updates"] == 1


def test_callable_env_must_be_passed_again_if_the_run_is_only_a_directory(tmp_path: Path) -> None:
    run = mv.train(lambda: gym.make("CartPole-v1"), run_dir=tmp_path / "run", **{**SMALL, "env_steps": 100})
    for other in (run.path, mv.Run.at(run.path), pickle.loads(pickle.dumps(run))):
        for again in (evaluate, mv.resume):
            with pytest.raises(mv.errors.InvalidRequest, match="pass it again, env="):
                again(other)  # type: ignore[operator]
    assert mv.load(run.path).act(np.zeros(4, np.float32)) in (0, 1)  # needs no env


def test_run_object_remembers_its_callable_env(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    drawn = functools.partial(gym.make, "CartPole-v1")
    run = mv.train(drawn, run_dir=tmp_path / "run", **{**SMALL, "env_steps": 100})
    assert len(evaluate(run, episodes=3).returns) == 3
    longer = mv.resume(run, env_steps=200)
    assert longer.summary["env_steps"] == 200 and evaluate(longer, episodes=3) == evaluate(run, episodes=3)
    assert mv.replay(longer, 0).same is not False and mv.record(longer).frames > 1


def test_several_env_functions_are_trained_on(tmp_path: Path) -> None:
    makers = [lambda: gym.make("CartPole-v1")] * 2
    run = mv.train(makers, run_dir=tmp_path / "run", **{**SMALL, "num_envs": 2, "env_steps": 100})
    assert run.summary["evaluation"]["episodes"] == 1


@pytest.mark.parametrize("shape", [(8,), (2, 2), (4, 1), (3,), ()])
def test_observations_of_another_shape_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    policy = mv.load(trained(tmp_path / "run", env_steps=100))
    with pytest.raises(mv.errors.InvalidRequest, match="expected"):
        policy.act(np.zeros(shape, np.float32))


def test_impossible_run_directory_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="cannot be the directory of a run"):
        trained(Path("/proc/nothing/here"))


@pytest.mark.fault("D2")
def test_failed_last_save_states_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **named: Any) -> None:
        if named.get("final"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer_module.Checkpoints, "save", full)
    with pytest.raises(mv.MultiverseError, match=r"No space left on device.*multiverse resume"):
        trained(tmp_path / "run", env_steps=100)


def test_exhausted_budget_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    before = (run.path / "config.yaml").read_text()
    with pytest.raises(mv.errors.InvalidRequest, match=r"env_steps=100: the run has had \d+ already"):
        mv.resume(run, env_steps=100)
    assert (run.path / "config.yaml").read_text() == before
