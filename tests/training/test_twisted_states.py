"""Signed checkpoints with contradictory contents, and sizes that no memory can hold: an error of one sentence."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces

import multiverse as mv
from multiverse.algorithms.algorithm import UpdateReport
from multiverse.cli.main import main
from multiverse.core.errors import CheckpointBroken, RunNotSaved
from multiverse.training.loading import evaluate
from multiverse.training.runs import checkpoint, checkpoint_format
from multiverse.training.trainer import Trainer
from tests.cli.training_commands import SMALL as FLAGS
from tests.envs import AnySpace
from tests.training.runs.test_checkpoint_broken import forge
from tests.training.small_runs import SMALL

LATEST = Path("checkpoints", "step-000000000100")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("plain") / "run"
    return mv.train("CartPole-v1", run_dir=home, **{**SMALL, "env_steps": 100}).path


@pytest.fixture
def run(plain: Path, tmp_path: Path) -> Path:
    """A run with one checkpoint."""
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints" / "best")
    return run


def twist(run: Path, place: str, value: Any, manifest: bool = False) -> None:
    """Put another value at this place of the state (or of the manifest), and sign it."""
    found = checkpoint.load(run / LATEST)
    said = {key: one for key, one in found.manifest.items() if key not in checkpoint_format.RESERVED}
    *path, last = place.split(".")
    inner: Any = said if manifest else found.state
    for key in path:
        inner = inner[key]
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    checkpoint.save(run / "checkpoints", LATEST.name, found.state, said)


GONE = "<gone>"
STATES = [
    ("session", GONE), ("session", [1]), ("clock", GONE), ("clock.env_steps", "many"), ("clock.evil", 1), ("clock", 3),
    ("plan", GONE), ("plan.evil", 1), ("plan.executor", "bogus"), ("plan.workers", "x"),
    ("files", [1]), ("files", {"metrics.jsonl": "x"}), ("files", {"metrics.jsonl": -5}),
    ("evaluation.lengths", "x"), ("evaluation.returns", {"a": 1}), ("best_return", "x"), ("evaluated_at", "x"),
    ("skipped_updates", None),
    ("session.noise", {"x": 1}), ("session.noise", 3), ("session.recent", {"returns": ["x"], "lengths": []}),
    ("session.algorithm", 3), ("session.algorithm.state.updates", "x"), ("session.algorithm.state.rng", 3),
    ("session.algorithm.state.optimizer.steps", "x"), ("session.algorithm.state.optimizer.steps", -1),
    ("session.algorithm.state.optimizer.first", np.zeros(3)), ("session.algorithm.state.optimizer.first", np.zeros(1)),
    ("session.algorithm.weights.parameters", "abc"), ("session.algorithm.weights.parameters", np.float32(3)),
    ("session.algorithm.weights.observations.mean", np.zeros(7)), ("session.algorithm.state.rewards.returns", "x"),
    ("session.algorithm.state.changed", {"evil": 1}), ("session.algorithm.state.changed", {"learning_rate": "x"}),
    ("session.algorithm.state.changed", {"epochs": 2.5}), ("session.algorithm.state.changed", [1]),
    ("session.envs", {}), ("session.envs.observations", {"0": np.zeros(1)}), ("session.envs.states", [1, 2]),
    ("session.envs.episodes", "x"), ("session.envs.episodes", np.zeros(7, int)), ("session.envs.episodes", [-5] * 4),
    ("session.envs.actions", 3), ("session.envs.actions", {"0": "abc"}), ("session.envs.actions", {"0": np.ones(9)}),
]  # fmt: skip


@pytest.mark.fault("E1")
@pytest.mark.parametrize(("place", "value"), STATES, ids=lambda one: str(one)[:40])
def test_invalid_signed_state_is_refused_in_one_line(place: str, value: Any, run: Path) -> None:
    twist(run, place, value)
    grown = [(run / name).read_bytes() for name in ("metrics.jsonl", "episodes.jsonl")]
    with pytest.raises((CheckpointBroken, mv.errors.InvalidRequest), match=LATEST.name) as refused:
        mv.resume(run, env_steps=200)
    assert "\n" not in str(refused.value)
    assert [(run / name).read_bytes() for name in ("metrics.jsonl", "episodes.jsonl")] == grown


POLICIES = [
    ("session.policy", 3), ("session.policy", {}), ("session.policy.kind", "evil"), ("session.policy.activation", "x"),
    ("session.policy.weights", 3), ("session.policy.weights", [np.zeros((9, 2), np.float32)] * 3),
    ("session.policy.weights", ["x"]), ("session.policy.biases", []), ("session.policy.version", "x"),
    ("session.policy.shift", np.zeros(9, np.float32)), ("session.policy.scale", "x"), ("session", [1]),
]  # fmt: skip


@pytest.mark.fault("E1")
@pytest.mark.parametrize(("place", "value"), POLICIES, ids=lambda one: str(one)[:40])
def test_invalid_signed_policy_is_refused_in_one_line(place: str, value: Any, run: Path) -> None:
    twist(run, place, value)
    for go in (mv.load, evaluate):
        with pytest.raises(CheckpointBroken, match="its state is invalid") as refused:
            go(run)  # type: ignore[operator]
        assert "\n" not in str(refused.value)


@pytest.mark.fault("E1")
@pytest.mark.parametrize(
    ("place", "value"), [("env_steps", GONE), ("env_steps", "x"), ("config", [1]), ("config", GONE)]
)
def test_invalid_signed_manifest_is_one_line(
    place: str, value: Any, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twist(run, place, value, manifest=True)
    code = main(["evaluate", str(run), "--episodes", "1"])
    assert (code, capsys.readouterr().err.count("\n")) == ((2, 1) if place == "env_steps" else (0, 0))
    assert mv.resume(run, env_steps=200).summary["env_steps"] == 200


@pytest.mark.fault("E1")
def test_invalid_initial_weights_are_refused(run: Path, tmp_path: Path) -> None:
    twist(run, "session.algorithm.weights", {})
    with pytest.raises(CheckpointBroken, match=r"its state is invalid .KeyError: 'parameters'"):
        mv.train("CartPole-v1", run_dir=tmp_path / "new", init_from=run, **SMALL)


# -- sizes -----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("E1")
def test_checkpoint_larger_than_memory_is_not_read(run: Path) -> None:
    """Nor is it called broken: another machine may be able to read it."""
    size = 200 * 2**30
    os.truncate(run / LATEST / "arrays.safetensors", size)
    manifest = checkpoint_format.read_manifest(run / LATEST)
    manifest["files"]["arrays.safetensors"] = {"bytes": size, "sha256": "0" * 64}
    (run / LATEST / "manifest.json").write_bytes(checkpoint_format._manifest_text(manifest))
    for go in (mv.load, mv.resume):
        with pytest.raises(mv.errors.PreflightError, match="takes 400 GiB of memory, and only") as refused:
            go(run)  # type: ignore[operator]
        assert "\n" not in str(refused.value)
    assert (run / LATEST).is_dir()


@pytest.mark.fault("E1")
def test_array_named_twice_is_refused(run: Path) -> None:
    """Each further name would be a copy: a short text could request any amount of memory."""
    named = json.dumps({"$array": "w", "dtype": "<f8", "shape": [8]})
    arrays = safetensors.numpy.save({"w": np.zeros(64, np.uint8)})
    forge(run / LATEST, arrays=arrays, state=f'{{"a": [{",".join([named] * 1_000)}]}}'.encode())
    with pytest.raises(CheckpointBroken, match="'w' is missing, or named twice"):
        checkpoint.load(run / LATEST)


@pytest.mark.fault("E1")
def test_networks_larger_than_memory_are_refused(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("- 64\n", "- 2000000000\n"))
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"4 × 2000000000 × 2000000000 × 2 units has .* parameters, more than"
    ):
        mv.resume(run, env_steps=200)


@pytest.mark.fault("E1")
def test_huge_num_envs_do_not_affect_a_loaded_policy(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("num_envs: 4\n", f"num_envs: {2**50}\n"))
    assert mv.load(run).act(np.zeros(4, np.float32)) in (0, 1)


# -- numbers and spaces ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "flags", [["--seed", str(2**70)], ["--seed", "-1"], ["--evaluation-seed", "-5"], ["--evaluate-every", "-3"]]
)
def test_out_of_range_numbers_are_refused_in_one_line(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "CartPole-v1", "--run-dir", str(tmp_path / "run"), *FLAGS, *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "=".join(flags) in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", [-5, 2**70])
def test_out_of_range_seeds_are_refused_by_evaluation_and_reset_plans(seed: int, plain: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=f"seed={seed}: expected a number from 0"):
        evaluate(plain, seed=seed)
    for plan in (mv.DerivedSeeds, lambda seed: mv.DrawnTasks(seed, range(3))):
        with pytest.raises(mv.errors.InvalidRequest, match=f"run_seed={seed}: expected a number from 0"):
            plan(seed)
    assert mv.DerivedSeeds(2**64 - 1)(0, 0).seed is not None


EMPTY = [spaces.Dict(), spaces.Tuple(()), spaces.Dict(a=spaces.Dict(), b=spaces.Tuple(()))]


@pytest.mark.parametrize("space", EMPTY, ids=str)
def test_empty_composite_spaces_are_refused(space: spaces.Space[Any], tmp_path: Path) -> None:
    two = spaces.Discrete(2)
    for pair, reported in (((space, two), "which are empty"), ((two, space), "actions must be")):
        with pytest.raises(mv.errors.InvalidRequest, match=reported) as refused:
            mv.train(lambda pair=pair: AnySpace(*pair), run_dir=tmp_path / "run", **SMALL)
        assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


ZERO_SIZE = spaces.Box(-1, 1, (0,))
SMALL_BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (ZERO_SIZE, spaces.Discrete(2), r"which are empty$"),
        (spaces.Dict(a=SMALL_BOX, b=ZERO_SIZE), spaces.Discrete(2), r"which are empty at b$"),
        (SMALL_BOX, ZERO_SIZE, r"there is nothing to choose in the action space"),
    ],
)
def test_spaces_of_size_zero_are_refused(
    observations: spaces.Space[Any], actions: spaces.Space[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        mv.train(lambda: AnySpace(observations, actions), run_dir=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


# -- a directory that vanishes ---------------------------------------------------------------------------------------
@pytest.mark.fault("D2")
def test_removed_run_directory_is_reported_without_mentioning_earlier_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Removes(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            trainer.save()
            if trainer.clock.updates == 2:
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(RunNotSaved, match="its directory was removed, and the run is lost") as lost:
        mv.train("CartPole-v1", run_dir=tmp_path / "run", hooks=[Removes()], **{**SMALL, "env_steps": 300})
    assert "whole" not in str(lost.value) and "are kept" not in caplog.text
    assert "there is no older one" in caplog.text
