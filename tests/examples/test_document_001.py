"""Document 001: every command, flag, import and label that it gives its reader, budgets cut down."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

from tests.examples.envs import Broken

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch

import multiverse as mv
from benchmarks.document_001 import Return, Speed, cells, return_table, speed_table
from examples.ml_pipeline import train_ppo
from examples.ml_pipeline.models.rl.algorithms.ppo_trainer import DEFAULTS, PPOTrainer
from examples.ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.examples.programs import ROOT, TIME_LIMIT_S, read_json
from tests.processes import still_alive

FOLDER = ROOT / "examples" / "ml_pipeline"
FACADES = [path for path in sorted(FOLDER.rglob("*.py")) if path.name != "__init__.py"]
SMALL = ["--num-episodes", "20", "--n-steps", "32", "--eval-every", "0", "--save-every", "0"]


def runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/*/config.yaml"))


def weights(run: Path) -> bytes:
    """Return the learned values of the last checkpoint."""
    return (max((run / "checkpoints").glob("step-*")) / "arrays.safetensors").read_bytes()


# -- flags -------------------------------------------------------------------------------------------------------------
FLAGS = {
    "n_envs": 1,
    "parallel_start_method": None,
    "num_episodes": 1000,
    "device": "cpu",
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "value_coef": 0.5,
    "entropy_coef": 0.05,
    "n_epochs": 4,
    "batch_size": 64,
    "eval_every": 50,
    "save_every": 50,
    "log_interval": 10,
    "resume_from": None,
    "seed": 42,
}

COMMANDS = [
    ("", {}),
    ("--n-envs 4", {"n_envs": 4}),
    ("--n-envs 8", {"n_envs": 8}),
    ("--n-envs 16", {"n_envs": 16}),
    ("--n-envs 4 --parallel-start-method spawn", {"n_envs": 4, "parallel_start_method": "spawn"}),
    ("--n-envs 4 --parallel-start-method fork", {"n_envs": 4, "parallel_start_method": "fork"}),
    (
        "--n-envs 8 --num-episodes 1000 --device mps --learning-rate 3e-4 --checkpoint-dir checkpoints/parallel_v1",
        {"n_envs": 8, "device": "mps", "checkpoint_dir": "checkpoints/parallel_v1"},
    ),
    ("--device cuda", {"device": "cuda"}),
    ("--num-episodes 1000", {}),
    ("--num-episodes 1000 --n-envs 8", {"n_envs": 8}),
    (
        "--gamma .9 --gae-lambda .8 --clip-range .1 --value-coef .4 --entropy-coef 0 --n-epochs 3 --batch-size 32",
        {"gamma": 0.9, "gae_lambda": 0.8, "clip_range": 0.1, "value_coef": 0.4, "entropy_coef": 0.0}
        | {"n_epochs": 3, "batch_size": 32},
    ),
    (
        "--eval-every 5 --save-every 6 --log-interval 7 --resume-from there --seed 1 --env Acrobot-v1",
        {"eval_every": 5, "save_every": 6, "log_interval": 7, "resume_from": "there", "seed": 1, "env": "Acrobot-v1"},
    ),
]


@pytest.mark.parametrize(("command", "differs"), COMMANDS)
def test_documented_commands_have_the_documented_defaults(command: str, differs: dict[str, Any]) -> None:
    chosen = {**DEFAULTS, **vars(train_ppo.parser().parse_args(shlex.split(command)))}
    expected = {**FLAGS, **differs}
    assert {name: chosen[name] for name in expected} == expected


@pytest.mark.parametrize("page", ["examples/README.md", "examples/ml_pipeline/README.md"])
def test_commands_on_example_pages_can_be_parsed(page: str) -> None:
    found = re.findall(r"^python examples/ml_pipeline/(\S+\.py)([^#\n]*)", (ROOT / page).read_text(), re.MULTILINE)
    assert {script for script, _ in found} >= {"train_ppo.py", "test_parallel_env.py"}
    for script, flags in found:
        assert (FOLDER / script).is_file()
        if script == "train_ppo.py":
            train_ppo.parser().parse_args(shlex.split(flags))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--num-episodes 0", "expected at least 1, got 0"),
        ("--n-env 8", "unrecognized arguments: --n-env 8"),
        ("--device tpu", "invalid choice: 'tpu'"),
        ("--parallel-start-method threads", "invalid choice: 'threads'"),
        ("--n-envs 0", "num_envs=0: expected at least 1"),
        ("--env NoSuchEnv-v0", "NoSuchEnv"),
        ("--resume-from nowhere", "nowhere: there is no such directory"),
    ],
)
def test_invalid_argument_is_named(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code: Any = train_ppo.main(shlex.split(flags))
    except SystemExit as end:
        code = end.code
    assert code == 2 and message in capsys.readouterr().err
    assert runs_in(tmp_path / "runs") == []


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has what the document wants")
def test_absent_apple_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_ppo.main(["--n-envs", "8", "--device", "mps", "--checkpoint-dir", str(tmp_path)]) == 2
    assert "device='mps': this machine has no Apple GPU" in capsys.readouterr().err


# -- what it prints ----------------------------------------------------------------------------------------------------
NUMBER = r"-?\d+\.\d+"
BLOCK = (
    rf"Episode {{k}}/20\n  Reward: +{NUMBER}  \|  Length: +\d+  \|  Mean\(100\): +{NUMBER}\n"
    r"  n_completed_episodes: \d+  \|  n_envs: {n_envs}\n"
)
UPDATE = (
    rf"  Policy loss: {NUMBER}  \|  Value loss: {NUMBER}  \|  Entropy: {NUMBER}  \|  KL: {NUMBER}  \|  "
    rf"Clip fraction: {NUMBER}  \|  FPS: \d+\n"
)
PARALLEL = (
    r"Using {n_envs} parallel environments for training\n   Start method: {how}\nParallel mode: {n_envs} environments\n"
)


@pytest.mark.parametrize(
    ("n_envs", "how", "executor"),
    [
        (1, None, "serial"),
        (4, None, None),
        (8, None, None),
        (16, None, None),
        (3, "spawn", "process"),
        (2, "fork", "process"),
    ],
)
def test_training_prints_the_documented_lines(
    n_envs: int, how: str | None, executor: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = ["--parallel-start-method", how] if how else []
    assert train_ppo.main([*SMALL, "--n-envs", str(n_envs), *method, "--checkpoint-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    begin = PARALLEL if n_envs > 1 else "Using 1 environment for training, sequentially\n"
    assert re.match(begin.format(n_envs=n_envs, how=how or "default"), printed), printed
    for k in (10, 20):
        assert re.search(BLOCK.format(k=k, n_envs=n_envs), printed), printed
    assert re.search(UPDATE, printed), printed
    assert re.search(
        rf"^Evaluation after \d+ episodes: {NUMBER} ± {NUMBER} over 10 unseen episodes, on 1 env$", printed, re.M
    )
    trained = re.search(r"^Trained: [\d,]+ env steps, (\d+) episodes, \d+ updates? in \S+ s$", printed, re.M)
    assert trained and int(trained[1]) >= 20  # a rollout of 16 envs ends many at once
    (run,) = runs_in(tmp_path)
    assert f"Checkpoint saved: {run}\n" in printed
    plan = read_json(run / "summary.json")["plan"]
    assert executor is None or (plan["executor"], plan["start_method"]) == (executor, how)


def test_evaluation_always_uses_a_single_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the document: of the 3 + 1 envs that are built, 3 belong to the training."""
    monkeypatch.chdir(tmp_path)
    flags = ["--n-envs", "3", "--num-episodes", "10", "--checkpoint-dir", str(tmp_path / "runs")]
    assert train_ppo.main([*SMALL, *flags, "--env", "tests.examples.envs:Counted"]) == 0
    assert "over 10 unseen episodes, on 1 env" in capsys.readouterr().out
    assert (tmp_path / "built").read_text() == "...."


def test_printed_lines_equal_the_episodes_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--n-envs", "2", "--log-interval", "1", "--checkpoint-dir", str(tmp_path)]
    assert train_ppo.main([*SMALL, *flags, "--env", "gymnasium.envs.classic_control:CartPoleEnv"]) == 0
    printed = capsys.readouterr().out
    matches = re.findall(r"Reward: +(\S+)  \|  Length: +(\d+)", printed)
    (run,) = runs_in(tmp_path)
    assert run.parent.name == "gymnasium.envs.classic_control-CartPoleEnv"
    written = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert matches == [(f"{one['return']:.2f}", str(one["length"])) for one in written[:20]]


# -- checkpoints -------------------------------------------------------------------------------------------------------
def test_saving_and_evaluating_during_training_changes_no_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With pauses, in two parts, or at once: the same weights, bit for bit."""
    flags = ["--n-steps", "16"]
    assert train_ppo.main([*SMALL, *flags, "--checkpoint-dir", str(tmp_path / "one")]) == 0
    capsys.readouterr()
    often = ["--save-every", "5", "--eval-every", "10"]
    assert (
        train_ppo.main([*SMALL, *flags, *often, "--num-episodes", "9", "--checkpoint-dir", str(tmp_path / "two")]) == 0
    )
    first = capsys.readouterr().out
    assert train_ppo.main(["--resume-from", str(tmp_path / "two"), *often, "--num-episodes", "20", "--seed", "9"]) == 0
    second = capsys.readouterr().out
    assert (first.count("Checkpoint saved"), first.count("Evaluation after")) == (2, 1)
    assert "with the settings of that run; flags without effect: --seed" in second
    assert second.count("Evaluation after") >= 2 and "Episode 20/20" in second
    ((one,), (two,)) = runs_in(tmp_path / "one"), runs_in(tmp_path / "two")
    assert weights(one) == weights(two)


def test_equal_seed_gives_equal_weights_for_every_start_method(tmp_path: Path) -> None:
    learned = []
    for seed, method in [("42", "forkserver"), ("42", "spawn"), ("42", "fork"), ("43", "fork")]:
        where = tmp_path / f"{seed}-{method}"
        flags = ["--num-episodes", "5", "--n-envs", "2", "--seed", seed, "--parallel-start-method", method]
        assert train_ppo.main([*SMALL, *flags, "--checkpoint-dir", str(where)]) == 0
        learned.append(weights(*runs_in(where)))
    assert learned[0] == learned[1] == learned[2] != learned[3]


def test_second_training_has_its_own_run(tmp_path: Path) -> None:
    for _ in range(2):
        assert train_ppo.main([*SMALL, "--num-episodes", "2", "--checkpoint-dir", str(tmp_path)]) == 0
    assert len(runs_in(tmp_path)) == 2


# -- the facades -------------------------------------------------------------------------------------------------------
def test_parallel_env_seeds_each_env_with_seed_and_offset() -> None:
    env = ParallelEnv([lambda: gym.make("CartPole-v1")] * 3)
    try:
        assert env.n_envs == env.num_envs == 3
        observations, _ = env.reset(seed=42)
        for offset in range(3):
            assert np.array_equal(observations[offset], gym.make("CartPole-v1").reset(seed=42 + offset)[0])
        assert len(env.step(env.action_space.sample())) == 5
    finally:
        env.close()


def test_train_episode_vectorized_is_one_rollout_and_one_update(tmp_path: Path) -> None:
    with PPOTrainer("CartPole-v1", n_envs=2, n_steps=64, checkpoint_dir=tmp_path) as trainer:
        results = [trainer.train_episode_vectorized() for _ in range(3)]
    assert [one["env_steps"] for one in results] == [128, 256, 384] and [one["updates"] for one in results] == [1, 2, 3]
    assert sum(one["n_completed_episodes"] for one in results) == results[-1]["episodes"] > 0
    assert {one["n_envs"] for one in results} == {2}
    assert {"reward", "length", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction"} <= results[0].keys()
    (run,) = runs_in(tmp_path)
    assert read_json(run / "summary.json")["env_steps"] == 384


def test_single_rollouts_learn_the_same_as_one_training(tmp_path: Path) -> None:
    with PPOTrainer(n_steps=32, checkpoint_dir=tmp_path / "steps") as trainer:
        while trainer.train_episode_vectorized()["episodes"] < 8:
            pass
        run = trainer.train(12)
    whole = PPOTrainer(n_steps=32, checkpoint_dir=tmp_path / "whole").train(12)
    assert run.summary["episodes"] == whole.summary["episodes"] >= 12
    assert weights(run.path) == weights(whole.path)


def test_exception_in_a_rollout_reaches_the_caller(tmp_path: Path) -> None:
    trainer = PPOTrainer(Broken, checkpoint_dir=tmp_path)
    for _ in range(2):
        with pytest.raises(mv.errors.EnvFailed, match="broken on purpose"):
            trainer.train_episode_vectorized()
    with pytest.raises(mv.errors.EnvFailed, match="broken on purpose"):
        trainer.close()
    trainer.close()


def test_unknown_setting_is_named() -> None:
    with pytest.raises(TypeError, match="no setting 'n_env'"):
        PPOTrainer(n_env=8)


@pytest.mark.parametrize("path", FACADES, ids=lambda path: path.name)
def test_example_modules_are_thin_and_name_the_current_api(path: Path) -> None:
    text = path.read_text()
    assert re.match(r'"""[^"]*(multiverse|mv\.)', text)
    assert re.search(r"^\s*(import|from) (multiprocessing|multiverse\.)", text, re.MULTILINE) is None


# -- commands ----------------------------------------------------------------------------------------------------------
def test_example_self_test_passes_in_its_folder() -> None:
    command = [sys.executable, "test_parallel_env.py"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ALL TESTS PASSED!\nAll tests completed successfully!\n")


def test_documented_module_paths_import_no_torch() -> None:
    program = (
        "import sys\nfrom models.rl.core.vec_env import ParallelEnv\n"
        "from models.rl.algorithms.ppo_trainer import PPOTrainer\nPPOTrainer.train_episode_vectorized\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_saves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    command = [sys.executable, "train_ppo.py", "--n-envs", "2", "--num-episodes", "100000000", "--log-interval", "1"]
    command += ["--checkpoint-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("Episode "):
                break
        children = [child.pid for child in psutil.Process(program.pid).children(recursive=True)]
        program.send_signal(signal.SIGINT)
        printed, _ = program.communicate(timeout=TIME_LIMIT_S)
    assert program.returncode == 130 and children
    assert f"To resume: --resume-from {tmp_path}" in printed
    assert still_alive([program.pid, *children]) == []
    (run,) = runs_in(tmp_path)
    run_before = read_json(run / "summary.json")
    assert not run_before["finished"]
    goal = run_before["episodes"] + 1
    assert train_ppo.main(["--resume-from", str(tmp_path), "--num-episodes", str(goal)]) == 0
    after = read_json(run / "summary.json")
    assert after["finished"] and after["episodes"] >= goal and after["env_steps"] > run_before["env_steps"]


# -- the measured table ------------------------------------------------------------------------------------------------
def test_speed_table_has_documented_claims_and_measured_medians() -> None:
    rates = {1: 100.0, 4: 300.0, 8: 500.0, 16: 700.0}
    found = [
        Speed(number, "CartPole-v1", executor, "process", n, rates[n] * scale * (2 if executor == "serial" else 1))
        for number, scale in enumerate([1.0, 3.0, 2.0])
        for executor, n in cells(["auto", "serial"])
    ]
    assert speed_table(found).splitlines() == [
        "| n-envs | the document | CartPole-v1, auto | CartPole-v1, serial |",
        "|---|---|---|---|",
        "| 1 | 1.0× | 1.00× (200/s) | 1.00× (200/s) |",
        "| 4 | 2.5× | 3.00× (600/s) | 6.00× (1,200/s) |",
        "| 8 | 4.0× | 5.00× (1,000/s) | 10.00× (2,000/s) |",
        "| 16 | 6.0× | 7.00× (1,400/s) | 14.00× (2,800/s) |",
    ]


def test_return_table_has_every_seed() -> None:
    found = [Return(n, seed, 1024, 100.0 * n + seed, 1.0, 7.0) for n in (1, 2, 4, 8) for seed in (0, 1, 5)]
    assert return_table(found).splitlines()[2] == "| 1 | 1,024 | 100, 101, 105 | 101 | 7, 7, 7 |"
    assert len(return_table(found).splitlines()) == 6
