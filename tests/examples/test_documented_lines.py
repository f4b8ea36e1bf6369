"""Every command line of a document, with a reduced budget, and its expected output."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("mpe2")

from examples.game_boy import train as game_boy
from examples.grid_world import custom_env_main, simple_push_v3_train
from examples.grid_world.settings import configured
from examples.grid_world.worlds import make_env
from tests.builtin_envs.game_boy.cartridge import GAME, written
from tests.examples.programs import (
    MAIN,
    PROCESS_STARTS,
    PUSH,
    ROOT,
    SCRIPT,
    SMALL,
    TIME_LIMIT_S,
    metrics_of,
    only_run,
    read_json,
    run,
)
from tests.forked_programs import ForkedPrograms
from tests.wrappers.flatten_envs import unflattened


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkedPrograms]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SDL_VIDEODRIVER", "dummy")
        with ForkedPrograms(
            "stable_baselines3", "torch._dynamo", "multiverse.training.run", "multiverse.algorithms.taac"
        ) as programs:
            yield programs


SCRIPTS = {"custom_env_main.py": custom_env_main, "simple_push_v3_train.py": simple_push_v3_train}

# -- what it lets a reader import --------------------------------------------------------------------------------------
IMPORTS = [
    ("examples.grid_world", "GridWorldEnvMultiAgent"),
    ("examples.grid_world", "FlattenMultiAgentWrapper"),
    ("examples.grid_world", "SubprocVecEnv"),
    ("examples.grid_world", "DummyVecEnv"),
    ("examples.grid_world", "AsyncPettingZooVecEnv"),
    ("examples.meta_rl.envs.parallel_env_manager", "ParallelEnvManager"),
    ("examples.meta_rl.envs.meta.make_env", "make_env"),
    ("examples.meta_rl.envs.meta.make_env", "make_parallel_env"),
    ("examples.meta_rl.envs.meta.wrappers", "VariBadWrapper"),
    ("examples.meta_rl.policies.learner", "Learner"),
    ("examples.meta_rl.policies.models", "AGENT_ARCHS"),
    ("examples.teams.parallel_environments", "ParallelEnvironmentManager"),
    ("examples.teams.scripts.parallel_env_example", "run_single_episode"),
    ("multiverse.interop.stable_baselines3", "SubprocVecEnv"),
    ("multiverse.interop.stable_baselines3", "DummyVecEnv"),
    ("multiverse.interop.agilerl", "AsyncPettingZooVecEnv"),
]


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_documented_names_can_be_imported(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name).__name__ == name


def test_unknown_name_raises_import_error() -> None:
    with pytest.raises(ImportError, match="NoSuchEnv"):
        exec("from examples.grid_world import NoSuchEnv")


@pytest.mark.parametrize("name", ["SubprocVecEnv", "DummyVecEnv"])
def test_documented_lines_make_a_vector_env(name: str) -> None:
    import examples.grid_world as documented

    num_envs, vec_env = 3, getattr(documented, name)
    env = vec_env([make_env for _ in range(num_envs)])
    try:
        assert env.reset().shape == (num_envs, *env.observation_space.shape)
        _, rewards, dones, infos = env.step([env.action_space.sample() for _ in range(num_envs)])
        assert (len(rewards), len(dones), len(infos)) == (num_envs,) * 3
    finally:
        env.close()


def test_documented_lines_make_a_multi_agent_vector_env() -> None:
    from examples.grid_world import AsyncPettingZooVecEnv

    env = AsyncPettingZooVecEnv([simple_push_v3_train.make_env for _ in range(2)])
    try:
        observations, _ = env.reset(seed=0)
        assert {agent: rows.shape for agent, rows in observations.items()} == {
            "adversary_0": (2, 8),
            "agent_0": (2, 19),
        }
    finally:
        env.close()


def test_training_works_with_a_low_limit_of_open_files(tmp_path: Path) -> None:
    """The document has the number for many envs. Here they share few processes, so a small limit suffices."""
    flags = [*SMALL, "--num-envs", "16", "--no-video", "--run-dir", str(tmp_path / "runs")]
    limits = "ulimit -n 4096 && ulimit -n 256"
    done = run_in_shell(f"{limits} && exec {shlex.join([sys.executable, str(MAIN), *flags])}")
    assert done.returncode == 0, done.stderr
    assert "Too many open files" not in done.stderr and only_run(tmp_path / "runs").is_dir()


def run_in_shell(words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT_S)


def test_flattened_wrapper_lets_every_agent_act() -> None:
    """With the wrapper of the document only the first agent acted."""
    from examples.grid_world import FlattenMultiAgentWrapper, GridWorldEnvMultiAgent

    env = FlattenMultiAgentWrapper(GridWorldEnvMultiAgent(size=10))
    before, _ = env.reset(seed=3)
    places = {agent: seen["agent"] for agent, seen in unflattened(env.unwrapped, before).items()}
    for direction in range(4):  # one of them is free
        after = env.step([direction, direction])[0]
        now = unflattened(env.unwrapped, after)
        moved = {agent for agent, place in places.items() if (now[agent]["agent"] != place).any()}
        if moved == {"ground_0", "observer_0"}:
            return
    raise AssertionError("the agents have not both moved")


# -- config and flags --------------------------------------------------------------------------------------------------
def test_config_has_the_documented_values() -> None:
    assert custom_env_main.config["num_envs"] == simple_push_v3_train.config["num_envs"] == 8
    assert custom_env_main.config["total_timesteps"] == 250_000


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_every_config_key_has_a_flag(script: object) -> None:
    others = {"num_envs": 3, "total_timesteps": 9, "seed": 4, "preset": "large", "task": "watch", "vec_env": "dummy"}
    others |= {"workers": 2, "run_dir": "elsewhere", "tracker": "local", "video": False, "eval_episodes": 7}
    wanted = {key: others[key] for key in script.config}
    flags = [
        part
        for key, value in wanted.items()
        for part in ([f"--no-{key}"] if value is False else [f"--{key.replace('_', '-')}", str(value)])
    ]
    assert configured(script.config, "", flags) == wanted
    assert configured(script.config, "", []) == script.config


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-envs", "0"], "num_envs=0: expected at least 1"),
        (["--num-envs", "eight"], "invalid int value: 'eight'"),
        (["--total-timesteps", "-5"], "total_timesteps=-5: expected at least 1"),
        (["--preset", "huge"], "preset='huge': expected one of small, medium, large"),
        (["--vec-env", "threads"], "vec_env='threads': expected one of subproc, dummy"),
        (["--workers", "0"], "workers=0: expected at least 1"),
        (["--seed", "1000000"], "seed=1000000: expected at most 500000"),  # larger seeds are reserved for evaluations
    ],
)
def test_invalid_argument_is_named(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        custom_env_main.main(flags)
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"n_envs": 8}, "config has an unknown key 'n_envs'"),
        ({"num_envs": 2.5}, "num_envs=2.5: expected int"),
        ({"video": "yes"}, "video='yes': expected bool"),
    ],
)
def test_invalid_config_edit_is_named(
    edit: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        configured({**custom_env_main.config, **edit}, "", [])
    assert message in capsys.readouterr().err


def test_run_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert custom_env_main.main([*SMALL, "--run-dir", str(tmp_path / "taken")]) == 1
    assert f"custom_env_main.py: [Errno 20] Not a directory: '{tmp_path}/taken/run-" in capsys.readouterr().err


@pytest.mark.parametrize("page", ["examples/README.md", "examples/grid_world/README.md"])
def test_commands_on_example_pages_can_be_parsed(page: str) -> None:
    commands = re.findall(r"^python examples/grid_world/(\S+\.py)([^#\n]*)", (ROOT / page).read_text(), re.MULTILINE)
    assert {script for script, _ in commands} == set(SCRIPTS)
    for script, flags in commands:
        configured(SCRIPTS[script].config, "", shlex.split(flags))


# -- commands ----------------------------------------------------------------------------------------------------------
MAIN_LINES = [
    r"Run: \S+ \(local folder\)",
    r"Envs: {num_envs} in {vec_env}, {workers} worker processes",
    r"env steps \d+ of 288 \| env steps/s [\d,.e+]+ \| return \S+ \| success \S+",
    r"Trained: \d+ env steps in \S+ s, \S+ env steps/s",
    r"Success on 3 unseen seeds: trained team \d\.\d\d, random team \d\.\d\d",
    r"Run finished: \S+",
]


@pytest.mark.parametrize(
    ("flags", "num_envs", "vec_env", "workers"),
    [
        (["--num-envs", "1"], 1, "DummyVecEnv", 0),
        (["--num-envs", "3", "--workers", "2"], 3, "SubprocVecEnv", 2),
        (["--num-envs", "3", "--vec-env", "dummy", "--preset", "medium"], 3, "DummyVecEnv", 0),
    ],
)
def test_training_runs_to_its_end(
    flags: list[str], num_envs: int, vec_env: str, workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert custom_env_main.main([*SMALL, *flags, "--run-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for line in MAIN_LINES:
        expected = line.format(num_envs=num_envs, vec_env=vec_env, workers=workers) if "Envs" in line else line
        assert re.search(f"^{expected}$", printed, re.MULTILINE), (expected, printed)
    folder = only_run(tmp_path)
    assert read_json(folder / "config.json")["num_envs"] == num_envs
    assert metrics_of(folder)[-1]["step"] == read_json(folder / "summary.json")["env_steps"] == 288
    assert (folder / "model.zip").stat().st_size > 0


@pytest.mark.parametrize(("num_envs", "starts"), [(1, "0"), (3, "[1-9]")])
def test_one_env_starts_no_process(num_envs: int, starts: str, tmp_path: Path, programs: ForkedPrograms) -> None:
    flags = [*SMALL, "--num-envs", str(num_envs), "--run-dir", str(tmp_path / "runs"), "--no-video"]
    done = programs.run(PROCESS_STARTS, str(MAIN), *flags)
    assert re.search(f"^process starts: {starts}", done.stdout, re.MULTILINE), (done.stdout, done.stderr)


def test_simple_push_trains_and_reports_distances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-envs", "4", "--total-timesteps", "2000", "--eval-episodes", "8", "--run-dir", str(tmp_path)]
    assert simple_push_v3_train.main(flags) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^Learner: PPO, one for adversary and agent each; run \S+$", printed, re.MULTILINE)
    message = (
        r"^env steps 2,000 of 2,000 \| env steps/s \S+ \| returns adversary_0 \S+, agent_0 \S+ \(last 80 episodes\)$"
    )
    assert re.search(message, printed, re.MULTILINE), printed
    assert "Trained: 2,000 env steps in " in printed
    assert "Envs: 4 × simple_push_v3 in AsyncPettingZooVecEnv, agents adversary_0, agent_0" in printed
    message = r"^Distance from its landmark, over 8 episodes: trained agent \d+\.\d\d, random agent \d+\.\d\d$"
    assert re.search(message, printed, re.MULTILINE), printed
    (run,) = {path.parent for path in tmp_path.rglob("config.yaml")}
    assert f"Run finished: {run}" in printed


def test_simple_push_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random agents end 1.1 or more from their landmark."""
    flags = ["--num-envs", "16", "--total-timesteps", "20000", "--run-dir", str(tmp_path)]
    assert simple_push_v3_train.main(flags) == 0
    (output,) = re.findall(r"trained agent (\S+), random agent (\S+)", capsys.readouterr().out)
    trained, by_chance = map(float, output)
    assert trained < 0.6 * by_chance


def test_simple_push_runs_from_the_command_line(tmp_path: Path) -> None:
    done = run(PUSH, "--num-envs", "2", "--total-timesteps", "20", "--eval-episodes", "0", "--run-dir", tmp_path)
    assert done.returncode == 0 and "Trained: 250 env steps" in done.stdout
    assert done.stderr.startswith("one update takes ") and done.stderr.count("\n") == 1  # more than requested


# -- document 002: rollouts in parallel --------------------------------------------------------------------------------
def test_documented_learner_makes_its_envs_and_collects_in_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    from examples.meta_rl.policies.learner import Learner

    few = {"env": {"num_parallel_workers": 2}, "train": {"num_init_rollouts_pool": 1}}
    with Learner.from_config(ROOT / "examples/meta_rl/configs/ant_dir.yaml", **few) as learner:
        learner.collect_initial_pool()
        assert capsys.readouterr().out == "Collecting initial pool of data..\n"
        before = learner._n_env_steps_total
        env_steps = learner.collect_rollouts_parallel(num_rollouts=3, parallel_env=learner.train_env_parallel)
        assert learner._n_env_steps_total == before + env_steps > before
        assert (len(learner.train_tasks), len(learner.eval_tasks)) == (50, 20)


def test_documented_loop_trains(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    from examples.meta_rl.policies.learner import Learner

    few = {
        "env": {"num_parallel_workers": 2},
        "policy": {"rnn_hidden_size": 8, "policy_layers": [8], "dqn_layers": [8]},
    }
    few["train"] = {"num_init_rollouts_pool": 1, "num_rollouts_per_iter": 2, "num_iters": 1, "num_updates_per_iter": 2}
    with Learner.from_config(ROOT / "examples/meta_rl/configs/ant_dir.yaml", **few) as learner:
        learner.train()
        assert learner._n_env_steps_total >= learner.n_env_steps_total
    output = capsys.readouterr().out
    assert output.startswith("Collecting initial pool of data..\n") and "env steps | train tasks " in output


def test_documented_config_trains_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    config, less = ROOT / "examples/meta_rl/configs/ant_dir.yaml", ["--updates-per-step", "0.0005"]
    less += ["--env-steps", "4800", "--learning-starts", "100", "--memory-size", "8", "--hidden-sizes", "8"]
    command = [sys.executable, "-m", "multiverse", "train", "--config", str(config), "--run-dir", str(tmp_path / "run")]
    command += [*less, "--workers", "2", "--evaluation-episodes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "(episode_1 " in done.stdout
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(config.read_text().replace("num_train_tasks", "num_train_task"))
    done = subprocess.run([*command[:5], str(wrong)], capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode != 0
    assert "line 8: env.num_train_task: there is no such setting. Did you mean num_train_tasks?" in done.stderr


def test_documented_task_assignment_sets_the_task_of_each_env() -> None:
    import numpy as np

    from examples.meta_rl.envs.meta.make_env import make_parallel_env

    num_workers = 2
    parallel_env = make_parallel_env("Wind-v0", 2, num_workers, seed=0, num_train_tasks=5, num_eval_tasks=2)
    try:
        for worker_id in range(num_workers):
            task = parallel_env.train_tasks[np.random.randint(len(parallel_env.train_tasks))]
            parallel_env.remotes[worker_id].send(("reset", {"task": task}))
            parallel_env.remotes[worker_id].recv()
            assert (parallel_env.engine.call("get_task", env_ids=[worker_id])[0] == task).all()
    finally:
        parallel_env.close()


# -- document 003: true parallelism ------------------------------------------------------------------------------------
EXAMPLE = "python scripts/parallel_env_example.py --config configs/boxjump.yaml"
TEAM_LINES = [
    (
        "python train_taac.py --env boxjump --config configs/boxjump.yaml --num_parallel 4 --episodes 8",
        "4 envs in this",
    ),
    (f"{EXAMPLE} --num_processes 8", "8 envs in 8 processes"),
    (f"{EXAMPLE} --render", "Rendering in one process"),
    (
        f"{EXAMPLE} --model_path files/Models/boxjump/best_model.pth",
        "Initial weights: files/Models/boxjump/best_model-",
    ),
]


def test_documented_commands_run_one_after_another(tmp_path: Path, programs: ForkedPrograms) -> None:
    """In a folder with the document's programs and its config, the budget of which is reduced."""
    teams = ROOT / "examples" / "teams"
    for name in ("scripts", "train_taac.py"):
        (tmp_path / name).symlink_to(teams / name)
    text = (teams / "configs" / "boxjump.yaml").read_text()
    for long, short in (
        ("timestep: 1500", "15"),
        ("per_episode: 1501", "16"),
        ("episodes: 100", "4"),
        ("epochs: 10", "1"),
    ):
        assert text.count(long) == 1
        text = text.replace(long, f"{long.partition(':')[0]}: {short}")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "boxjump.yaml").write_text(text)
    for line, said in TEAM_LINES:
        done = programs.run(SCRIPT, str(tmp_path), *shlex.split(line)[1:])
        assert done.returncode == 0 and said in done.stdout, (line, done.stdout, done.stderr)
        assert "Best model: files/Models/boxjump/best_model.pth" in done.stdout


POOL = """\
import multiprocessing as mp

from examples.teams.scripts.parallel_env_example import run_single_episode

if __name__ == "__main__":
    config = {"environment": {"name": "boxjump", "env_kwargs": {"num_boxes": 2, "max_timestep": 9}}}
    num_processes, args_list = 2, [(i, config, None, None, False) for i in range(3)]
    with mp.get_context("spawn").Pool(processes=num_processes) as pool:
        results = pool.map(run_single_episode, args_list)
    assert [statistics["process_id"] for statistics, _ in results] == [0, 1, 2]
    first = {experience["box-1"]["observations"][0, 0] for _, experience in results}
    assert len(first) == 3  # different seeds
"""


def test_documented_pool_plays_episodes_in_processes(tmp_path: Path) -> None:
    """In a separate program: a pool leaves Python's resource tracker running."""
    (tmp_path / "pool.py").write_text(POOL)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(tmp_path / "pool.py")]
    options: dict[str, Any] = {"env": environment, "timeout": TIME_LIMIT_S}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr


def test_documented_manager_steps_all_envs() -> None:
    from examples.teams.parallel_environments import ParallelEnvironmentManager

    env_name, env_kwargs, num_parallel = "boxjump", {"num_boxes": 2}, 3
    parallel_manager = ParallelEnvironmentManager(env_name, env_kwargs, num_parallel)
    try:
        assert len(parallel_manager.reset_all()) == num_parallel
        outcomes = parallel_manager.step_all([{"box-1": 3, "box-2": 0}] * num_parallel)
        assert all(set(outcome.rewards) == {"box-1", "box-2"} for outcome in outcomes)
    finally:
        parallel_manager.close_all()


# -- document 004 ------------------------------------------------------------------------------------------------------
DEFAULT = {"steps": 100_000, "envs": 1, "episode_length": 500, "update_epochs": 4, "batch_size": 128}
DEFAULT |= {"output_dir": "training_runs", "rom": None, "game": None, "observation": "ram", "seed": 0}
IN_20K = {**DEFAULT, "steps": 20_000, "envs": 2, "episode_length": 750, "update_epochs": 6}
MADE: list[tuple[str, dict[str, Any]]] = [
    ("train", DEFAULT),
    ("train-pure-rl", DEFAULT),
    ("train-20k", IN_20K),
    ("train-parallel", {**DEFAULT, "envs": 2}),
    ("train TRAIN_ENVS=3 TRAIN_STEPS=50000", {**DEFAULT, "envs": 3, "steps": 50_000}),
    (
        "train TRAIN_ENVS=4 TRAIN_EPISODE_LENGTH=1000 TRAIN_BATCH_SIZE=256",
        {**DEFAULT, "envs": 4, "episode_length": 1000, "batch_size": 256},
    ),
    (
        "train-20k TRAIN_EPISODE_LENGTH=1500 TRAIN_UPDATE_EPOCHS=8",
        {**IN_20K, "episode_length": 1500, "update_epochs": 8},
    ),
    ("train-parallel TRAIN_STEPS=5000", {**DEFAULT, "envs": 2, "steps": 5000}),
    (
        "train-pure-rl TRAIN_STEPS=100000 TRAIN_ENVS=4 TRAIN_EPISODE_LENGTH=1000 TRAIN_UPDATE_EPOCHS=8 "
        "TRAIN_BATCH_SIZE=256",
        {**DEFAULT, "envs": 4, "episode_length": 1000, "update_epochs": 8, "batch_size": 256},
    ),
    ("train-parallel TRAIN_ENVS=4 TRAIN_STEPS=2000", {**DEFAULT, "envs": 4, "steps": 2000}),
]
NUMBER = r"-?\d+\.\d"


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Run make with this Python, without any setup, and as if no make had started the tests."""
    command = ["make", "-o", ".venv/.installed", f"BIN={Path(sys.executable).parent}", *words]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
    )


def flags_of(words: str) -> list[str]:
    """Return the flags with which make would call the program."""
    done = make("--dry-run", *shlex.split(words))
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout.replace("\\\n", " ").partition("train.py ")[2])


def game_boy_lines(num_envs: int, epochs: int) -> list[str]:
    envs = range(1, num_envs + 1)
    return [
        f"Initializing {num_envs} parallel environments...",
        *(f"Environment {number}/{num_envs} initialized" for number in envs),
        "Starting parallel training...",
        rf"Step +\d+ \| Episode +1 \| Reward: +{NUMBER}\d \| Length: +\d+ \| Avg10: +{NUMBER}\d \| Time: +{NUMBER}s",
        rf"Optimization epoch: \d+ episodes, avg reward: {NUMBER}\d\d",
        *(f"   Epoch {epoch}/{epochs}: Optimizing policy..." for epoch in range(1, epochs + 1)),
        rf"   Steps per second: {NUMBER} \| Memory usage: {NUMBER} MB",
        f"Cleaning up {num_envs} environments...",
        *(f"Environment {number} closed" for number in envs),
        "PARALLEL TRAINING COMPLETE",
        "=" * 50,
        r"Final step: [\d,]+",
        r"Total episodes: \d+",
        rf"Training time: {NUMBER} seconds",
        rf"Average reward \(last 10\): {NUMBER}\d\d",
        f"Environments used: {num_envs}",
        rf"Steps per second: {NUMBER}",
        rf"Episodes per second: {NUMBER}\d",
    ]


def said_in_order(printed: str, lines: list[str]) -> None:
    left = printed
    for line in lines:
        found = re.search(f"^{line}$", left, re.MULTILINE)
        assert found, (line, printed)
        left = left[found.end() :]


@pytest.mark.parametrize(("words", "expected"), MADE, ids=[words for words, _ in MADE])
def test_every_make_target_accepts_every_override(words: str, expected: dict[str, Any]) -> None:
    assert vars(game_boy.parser().parse_args(flags_of(words))) == expected
    others = "TRAIN_STEPS=7 TRAIN_ENVS=5 TRAIN_EPISODE_LENGTH=9 TRAIN_UPDATE_EPOCHS=3 TRAIN_BATCH_SIZE=11"
    others += " TRAIN_OUTPUT_DIR='my runs' TRAIN_ROM=a.gb TRAIN_GAME=a.yaml TRAIN_OBSERVATION=both TRAIN_SEED=4"
    target = words.partition(" ")[0]
    assert list(vars(game_boy.parser().parse_args(flags_of(f"{target} {others}"))).values()) == [
        *(7, 5, 9, 3, 11),
        *("my runs", "a.gb", "a.yaml", "both", 4),
    ]


# The longest line of each number of envs: the others differ in numbers only, which are checked above.
TRAINED = {said["envs"]: words for words, said in sorted(MADE, key=lambda one: len(one[0]))}
ENDS = [one for one in MADE if one[0] in TRAINED.values()]


@pytest.mark.parametrize(("words", "expected"), ENDS, ids=[words for words, _ in ENDS])
def test_every_documented_training_runs_to_its_end(
    words: str, expected: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program that make would call, with fewer steps and shorter episodes."""
    arguments, envs = written(tmp_path), expected["envs"]
    cut = ["--steps", str(80 * envs), "--episode-length", "30", "--output-dir", str(tmp_path / "runs")]
    assert game_boy.main([*flags_of(words), *cut, "--rom", arguments["rom"], "--game", arguments["game"]]) == 0
    printed = capsys.readouterr().out
    said_in_order(printed, game_boy_lines(envs, expected["update_epochs"]))
    assert f"Final step: {80 * envs}\n" in printed
    (config,) = (tmp_path / "runs").rglob("config.yaml")
    saved = config.read_text()
    assert f"batch_size: {expected['batch_size']}\n" in saved and f"epochs: {expected['update_epochs']}\n" in saved


def test_make_train_20k_prints_the_documented_lines(tmp_path: Path) -> None:
    """As a reader types it. An episode of each env has 40 steps here, so that the printed text is known."""
    arguments = written(tmp_path, GAME.replace("end:", "end: []\nunused:").partition("unused:")[0])
    where = f"TRAIN_ROM={arguments['rom']} TRAIN_GAME={arguments['game']} TRAIN_OUTPUT_DIR={tmp_path / 'runs'}"
    done = make("train-20k", "TRAIN_STEPS=240", "TRAIN_EPISODE_LENGTH=40", *where.split())
    assert done.returncode == 0, done.stderr
    said_in_order(done.stdout, game_boy_lines(2, 6))
    steps = [int(step) for step in re.findall(r"^Step +(\d+) \|", done.stdout, re.MULTILINE)]
    assert steps == [80, 80, 160, 160, 240, 240] and "Final step: 240\nTotal episodes: 6\n" in done.stdout
    updates = re.findall(r"^Optimization epoch: 2 episodes, avg reward: (\S+)$", done.stdout, re.MULTILINE)
    rewards = [float(reward) for reward in re.findall(r"Reward: +(\S+) ", done.stdout)]
    assert [float(one) for one in updates] == pytest.approx([sum(rewards[k : k + 2]) / 2 for k in (0, 2, 4)], abs=0.011)
