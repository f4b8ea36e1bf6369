"""Document 002: every name, call and label of its env side, and its four troubleshooting entries."""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import yaml

pytest.importorskip("mujoco")

import multiverse as mv
from examples.meta_rl.envs.meta.make_env import make_env, make_parallel_env
from examples.meta_rl.envs.meta.wrappers import VariBadWrapper
from examples.meta_rl.envs.parallel_env_manager import ParallelEnvManager
from examples.meta_rl.policies.learner import Learner
from examples.meta_rl.policies.models import AGENT_ARCHS
from multiverse.rollouts.replay import STARTS
from tests.examples.programs import ROOT
from tests.rollouts.test_whole_episodes import Clock, network
from tests.wrappers.test_meta_episode import Counts

FOLDER = ROOT / "examples" / "meta_rl"
FACADES = [path for path in sorted(FOLDER.rglob("*.py")) if path.name != "__init__.py" or path.parent.name == "models"]
CONFIG = FOLDER / "configs" / "ant_dir.yaml"
SPARSE: dict[str, Any] = {"env_type": "meta", "env_name": "PointRobotSparse-v0", "max_rollouts_per_task": 2,
                          "num_train_tasks": 8, "num_eval_tasks": 3}  # fmt: skip
TRAIN: dict[str, Any] = {"num_iters": 2, "num_init_rollouts_pool": 3, "num_rollouts_per_iter": 5, "buffer_size": 10_000,
                         "num_updates_per_iter": 1, "batch_size": 4, "sampled_seq_len": -1}  # fmt: skip


def learner(workers: int, **env: Any) -> Learner:
    return Learner({**SPARSE, "num_parallel_workers": workers, **env}, TRAIN, seed=3)


def stored(made: Learner) -> list[dict[str, Any]]:
    """Every step as replay stores it."""
    table = made.policy_storage.replay.state()["rows"]
    return [{name: row[name] for name in row.dtype.names} for row in table.records(table.first, table.last)]


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for ours, theirs in zip(one, other, strict=True):
        assert ours.keys() == theirs.keys() and all(ours[n].tobytes() == theirs[n].tobytes() for n in ours)


# -- names -------------------------------------------------------------------------------------------------------------
def test_documented_imports_work_in_the_folder_and_import_no_torch() -> None:
    program = """
import sys
from envs.meta.make_env import make_env, make_parallel_env
from envs.meta.wrappers import VariBadWrapper
from envs.parallel_env_manager import ParallelEnvManager
from policies.learner import Learner
from policies.models import AGENT_ARCHS
parallel_env = make_parallel_env("PointRobot-v0", 2, num_workers=2, seed=1, num_train_tasks=5, num_eval_tasks=2)
for remote, task in zip(parallel_env.remotes, parallel_env.train_tasks):
    remote.send(("reset", {"task": task}))
print([remote.recv()[0].shape for remote in parallel_env.remotes])
del parallel_env
assert 'torch' not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(3,), (3,)]\n", "")


def test_functions_have_the_documented_signatures() -> None:
    assert list(inspect.signature(make_parallel_env).parameters) == [
        "env_id", "episodes_per_task", "num_workers", "seed", "oracle", "kwargs",
    ]  # fmt: skip
    assert list(inspect.signature(Learner.collect_rollouts_parallel).parameters)[1:] == [
        "num_rollouts", "random_actions", "parallel_env",
    ]  # fmt: skip
    assert list(inspect.signature(Learner.init_env).parameters)[1:] == [
        "env_type", "env_name", "max_rollouts_per_task", "num_train_tasks", "num_eval_tasks", "num_parallel_workers",
        "kwargs",
    ]  # fmt: skip
    assert list(inspect.signature(VariBadWrapper).parameters) == ["env", "episodes_per_task", "oracle"]
    assert [arch.name for arch in AGENT_ARCHS] == ["Markov", "Memory", "Memory_Markov"]


@pytest.mark.parametrize("path", FACADES, ids=lambda path: path.name)
def test_example_modules_are_thin_and_name_the_current_api(path: Path) -> None:
    text = path.read_text()
    assert re.match(r'"""[^"]*(multiverse|mv\.)', text)
    assert re.search(r"^\s*(import|from) (multiprocessing|multiverse\.)", text, re.MULTILINE) is None


@pytest.mark.parametrize(
    ("name", "seen"),
    [("PointRobot-v0", 3), ("PointRobotSparse-v0", 3), ("Wind-v0", 3), ("HalfCheetahVel-v0", 21), ("AntDir-v0", 28)],
)
def test_every_env_can_be_made_by_its_documented_name(name: str, seen: int) -> None:
    env = make_env(name, 2, seed=1, num_train_tasks=5, num_eval_tasks=2)
    assert env.reset()[0].shape == (seen,) and (len(env.train_tasks), len(env.eval_tasks)) == (5, 2)
    env.close()


def test_config_has_the_documented_keys() -> None:
    given = yaml.safe_load(CONFIG.read_text())
    assert given["env"] == {
        "env_type": "meta", "env_name": "AntDir-v0", "max_rollouts_per_task": 2, "num_train_tasks": 50,
        "num_eval_tasks": 20, "num_parallel_workers": 6,
    }  # fmt: skip
    assert given["train"]["num_rollouts_per_iter"] == 12 and {*given} == {"seed", "env", "train", "eval", "policy"}


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("env", {"num_train_task": 3}, "env.num_train_task: there is no such setting. Did you mean num_train_tasks?"),
        ("train", {"speed": 9}, "train.speed: there is no such setting. There are: batch_size, "),
        ("policy", {"dqn_layers": [64]}, "policy.dqn_layers: actor and critics have the same layers"),
        ("policy", {"algo_name": "sca"}, "policy.algo_name: there is no 'sca'. Did you mean sac?"),
        ("env", {"env_type": "pomdp"}, "env_type='pomdp' is not supported: expected 'meta'"),
        ("env", {"num_train_tasks": 0}, "env.num_train_tasks: expected a number of at least 1, found 0"),
        ("policy", {"lr": "fast"}, "policy.lr: expected a number, found the text 'fast'"),
        ("envs", {}, "ant_dir.yaml has no section envs; its sections are seed, env, train, eval, policy"),
    ],
)
def test_invalid_config_names_the_mistake(section: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=re.escape(message)):
        Learner.from_config(CONFIG, **{section: change})


def test_learner_reads_a_config_file_as_the_command_does(tmp_path: Path) -> None:
    text = CONFIG.read_text()
    for old, new in [("num_parallel_workers: 6", "num_parallel_workers: 1.0"), ("  num_eval_tasks: 20", "")]:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine.yaml").write_text(re.sub(r"lr: .*", "lr: 3e-4", text))
    with Learner.from_config(tmp_path / "mine.yaml") as made:
        assert made.algorithm.config.learning_rate == 3e-4 and (len(made.eval_tasks), made.train_env_parallel) == (
            0,
            None,
        )
        with pytest.raises(mv.errors.InvalidRequest, match="no rollouts have been collected"):
            made.time_split()


# -- tasks -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 3])
def test_all_envs_of_a_run_share_the_tasks_and_eval_tasks_are_held_out(workers: int) -> None:
    with learner(workers) as made:
        envs = [made.train_env, made.eval_env, *([made.train_env_parallel] if workers > 1 else [])]
        assert (made.train_env_parallel is None) == (workers == 1)
        for env in envs:
            assert np.array_equal(env.train_tasks, made.train_tasks)
            assert np.array_equal(env.eval_tasks, made.eval_tasks)
        train, held_out = ({tuple(task) for task in tasks} for tasks in (made.train_tasks, made.eval_tasks))
        assert (len(train), len(held_out)) == (8, 3) and not train & held_out
        made.collect_rollouts_parallel(40, random_actions=True, parallel_env=made.train_env_parallel)
        assert {tuple(one.task) for one in made.collected.began_from} == train
        returns, success = made.evaluate()
        assert returns.shape == (2,) and success is not None and success.shape == (2,)
    with learner(1) as again:
        assert np.array_equal(again.train_tasks, made.train_tasks)


def test_env_with_two_tasks_uses_both_for_training_and_evaluation() -> None:
    made = learner(1, env_name="HalfCheetahDir-v0", num_train_tasks=2, num_eval_tasks=0)
    with made:
        assert sorted(float(task[0]) for task in made.train_tasks) == [-1.0, 1.0] and len(made.eval_tasks) == 0
        returns, success = made.evaluate()
        assert returns.shape == (2,) and success is None
    with pytest.raises(mv.errors.InvalidRequest, match=r"sample_tasks\(4\): expected at most 2"):
        learner(1, env_name="HalfCheetahDir-v0", num_train_tasks=2, num_eval_tasks=2)


# -- collecting --------------------------------------------------------------------------------------------------------
def test_documented_loop_collects_the_initial_pool_and_rollouts(capsys: pytest.CaptureFixture[str]) -> None:
    with learner(2) as made:
        while made._n_env_steps_total < made.num_init_rollouts_pool * made.max_trajectory_len:
            made.collect_rollouts_parallel(num_rollouts=1, random_actions=True, parallel_env=made.train_env_parallel)
        assert made._n_env_steps_total == 3 * 2 * 60 == made.policy_storage.size and made.max_trajectory_len == 120
        env_steps = made.collect_rollouts_parallel(
            num_rollouts=made.num_rollouts_per_iter, parallel_env=made.train_env_parallel
        )
        assert env_steps == 5 * 120 and made._n_env_steps_total == 8 * 120
        assert made.n_env_steps_total == (3 + 2 * 5) * 120
    with learner(2) as other:
        other.collect_initial_pool()
        assert capsys.readouterr().out == "Collecting initial pool of data..\n"
        assert_same(stored(other), stored(made)[: 3 * 120])
        other.collect_initial_pool()  # the pool exists already
        assert len(stored(other)) == 3 * 120


@pytest.mark.parametrize("acts", ["random", "Markov", "Memory"])
def test_sequential_collection_equals_parallel_collection(acts: str) -> None:
    found = []
    for workers in (1, 3):
        with learner(workers) as made:
            if acts != "random":
                made.agent = network(made._alone, memory=acts == "Memory")
            for count in (4, 3):
                made.collect_rollouts_parallel(count, acts == "random", parallel_env=made.train_env_parallel)
            found.append(stored(made))
    assert_same(*found)


def test_full_storage_drops_the_oldest_steps() -> None:
    with Learner({**SPARSE, "num_parallel_workers": 1}, {**TRAIN, "buffer_size": 300}, seed=3) as made:
        made.collect_rollouts_parallel(4, random_actions=True)
        assert len(stored(made)) == 300 == made.policy_storage.size


def learning(arch: AGENT_ARCHS, workers: int) -> Learner:
    policy: dict[str, Any] = {"arch": str(arch), "seq_model": "mlp" if arch is AGENT_ARCHS.Markov else "gru",
                              "rnn_hidden_size": 8, "policy_layers": [8]}  # fmt: skip
    env = {**SPARSE, "num_parallel_workers": workers}
    return Learner(env, TRAIN, seed=3, eval={"log_interval": 2}, policy=policy)


@pytest.mark.parametrize("arch", AGENT_ARCHS)
def test_every_architecture_trains_equally_with_any_number_of_workers(
    arch: AGENT_ARCHS, capsys: pytest.CaptureFixture[str]
) -> None:
    with learning(arch, 2) as made, learning(arch, 1) as alone:
        before = made.algorithm.weights()["actor"]
        made.train()
        assert made._n_env_steps_total == made.n_env_steps_total == 13 * 120 == made.policy_storage.size
        assert (made.algorithm.weights()["actor"] != before).any()
        assert bool(made.agent.acting.first_memory(1)) == (arch is AGENT_ARCHS.Memory)
        output = capsys.readouterr().out.splitlines()
        alone.train()
        assert_same(stored(made), stored(alone))
        for name, weights in made.algorithm.weights().items():
            np.testing.assert_array_equal(weights, alone.algorithm.weights()[name])
    assert capsys.readouterr().out.splitlines() == output
    assert output[0] == "Collecting initial pool of data.." and len(output) == 4
    assert re.match(r"960 env steps \| train tasks \d+\.\d → \d+\.\d \| critic_loss ", output[1])
    assert re.match(r"1,560 env steps \| held-out tasks \d+\.\d → \d+\.\d, success \d+% → \d+%$", output[3])


@pytest.mark.parametrize("arch", AGENT_ARCHS)
def test_agent_acts_for_one_observation_and_for_a_batch(arch: AGENT_ARCHS) -> None:
    with learning(arch, 2) as made:
        remotes = made.train_env_parallel.remotes
        for remote, task in zip(remotes, made.train_tasks):
            remote.send(("reset", {"task": task}))
        obs = [remote.recv()[0] for remote in remotes]
        for _ in range(2):  # before and after an update replaces the agent
            space = made.train_env.action_space
            assert made.agent.act(obs[0]) in space
            assert not np.array_equal(made.agent.act(obs[0]), made.agent.act(obs[0])), "actions are not drawn"
            for remote, action in zip(remotes, [made.agent.act(obs[0], deterministic=True)] * 2):
                remote.send(("step", action))
            assert all(len(remote.recv()) == 5 for remote in remotes)
            made.agent.reset()
            assert made.agent.act(np.stack(obs)).shape == (2, *space.shape)
            made.collect_rollouts_parallel(5)
            made.update(1)


@pytest.fixture
def foreign() -> Iterator[dict[str, Any]]:
    """An env section for another id with tasks: Discrete actions, and only its spec has the length of episodes."""
    gym.register("Counts-v0", entry_point=Counts, max_episode_steps=3)  # type: ignore[arg-type]
    yield {**SPARSE, "env_name": "Counts-v0", "num_eval_tasks": 0, "num_parallel_workers": 1}
    del gym.registry["Counts-v0"]


def test_every_env_with_tasks_can_be_trained(foreign: dict[str, Any]) -> None:
    with Learner(foreign, TRAIN, seed=3, policy={"algo_name": "dqn"}) as made:
        assert made.max_trajectory_len == 2 * 3
        assert made.collect_rollouts_parallel(4, random_actions=True) == 4 * 6


def test_exploration_and_targets_follow_the_budget_as_in_a_run(foreign: dict[str, Any]) -> None:
    train = {**TRAIN, "num_iters": 20, "num_updates_per_iter": 2}
    with Learner(foreign, train, seed=3, policy={"algo_name": "dqn", "policy_layers": [8]}) as made:
        dqn = made.algorithm
        dqn.change(target_update_interval=60)
        first = dqn.state()["targets"]["values"].copy()
        made.collect_initial_pool()
        versions, shares, followed = [], [], []
        for _ in range(20):
            made.collect_rollouts_parallel(5)
            made.update(2)
            versions.append(made.agent.acting.version)
            shares.append(dqn.epsilon)
            followed.append(not np.array_equal(dqn.state()["targets"]["values"], first))
        assert versions == [3 + 5 * k for k in range(1, 21)]
        spent = [(18 + 30 * k) / made.n_env_steps_total for k in range(20)]  # before each iteration, as in `mv.train`
        np.testing.assert_allclose(shares, [1.0 - 0.95 * min(1.0, share / 0.1) for share in spent])
        assert shares[-1] == pytest.approx(0.05) and followed[0] is False and followed[1:] == [True] * 19


def test_remotes_reset_to_a_task_and_step() -> None:
    manager = make_parallel_env("PointRobot-v0", 2, num_workers=3, seed=1, num_train_tasks=5, num_eval_tasks=2)
    try:
        assert manager.num_workers == 3 == len(manager.engine.worker_pids)
        for worker_id in range(3):
            manager.remotes[worker_id].send(("reset", {"task": manager.train_tasks[worker_id]}))
        for remote in manager.remotes:
            observation, info = remote.recv()
            assert observation.tolist() == [0, 0, 0] and info == {}
        assert np.array_equal(manager.engine.call("get_task"), manager.train_tasks[:3])
        for remote in manager.remotes:
            remote.send(("step", np.array([1.0, 0.0], np.float32)))
        for worker_id in (2, 0, 1):  # in any order
            observation, reward, terminated, truncated, _ = manager.remotes[worker_id].recv()
            expected = -np.linalg.norm(manager.train_tasks[worker_id] - np.array([0.1, 0.0]))
            assert np.isclose(reward, expected) and not terminated and not truncated
            assert np.allclose(observation, [0.1, 0, 0])
        with pytest.raises(mv.errors.InvalidRequest, match=r"unknown command 'render': expected 'reset' or 'step'"):
            manager.remotes[0].send(("render", None))
    finally:
        manager.close()
        manager.close()


class Meets(gym.Env[Any, Any]):
    """Env whose reset ends only when the other env's reset has begun too: named pipes connect them."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2)

    def __init__(self, mine: Path, other: Path) -> None:
        self._mine, self._other = mine, other

    def reset(self, **options: Any) -> Any:
        with open(self._mine, "wb", buffering=0) as mine:  # a named pipe: opening it waits for the reader
            mine.write(b".")
        return np.zeros(1, np.float32), {}


class Listens(Meets):
    def reset(self, **options: Any) -> Any:
        with open(self._other, "rb") as other:
            other.read()
        return np.ones(1, np.float32), {}


def test_sent_resets_return_at_once_and_run_in_parallel(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    manager = ParallelEnvManager([lambda: Meets(pipe, pipe), lambda: Listens(pipe, pipe)])
    try:
        for remote in manager.remotes:
            remote.send(("reset", None))  # one after another they would wait for each other for ever
        assert [remote.recv()[0].tolist() for remote in reversed(manager.remotes)] == [[1.0], [0.0]]
    finally:
        manager.close()


def test_documented_config_has_defaults_for_missing_keys() -> None:
    env = {**SPARSE, "num_parallel_workers": 1}
    with Learner(env, {"num_rollouts_per_iter": 12}) as made:
        assert (made.num_iters, made.num_rollouts_per_iter, made.updates) == (3000, 12, 0.02)


class Pairs(gym.Env[Any, Any]):
    """Env with a Dict observation."""

    observation_space = gym.spaces.Dict({"x": gym.spaces.Box(-9, 9, (2,)), "n": gym.spaces.Discrete(9)})
    action_space = gym.spaces.Discrete(9)

    def reset(self, **options: Any) -> Any:
        return {"x": np.zeros(2, np.float32), "n": 0}, {}

    def step(self, action: Any) -> Any:
        return {"x": np.full(2, action, np.float32), "n": int(action)}, float(action), False, False, {}


def test_observations_of_composite_spaces_are_received_per_env() -> None:
    manager = ParallelEnvManager([Pairs] * 2)
    try:
        for remote in manager.remotes:
            remote.send(("reset", None))
            observation, _ = remote.recv()
            assert observation["x"].tolist() == [0, 0] and observation["n"] == 0
        for action, remote in enumerate(manager.remotes, 3):
            remote.send(("step", action))
        for action, remote in enumerate(manager.remotes, 3):
            observation, reward, _, _, _ = remote.recv()
            assert observation["x"].tolist() == [action, action] and observation["n"] == reward == action
    finally:
        manager.close()


@pytest.mark.parametrize("how", ["close", "del"])
def test_closed_or_deleted_manager_leaves_no_process(how: str) -> None:
    manager = make_parallel_env("PointRobot-v0", 2, num_workers=2, seed=1)
    workers = [psutil.Process(pid) for pid in manager.engine.worker_pids]
    assert all(worker.is_running() for worker in workers)
    if how == "close":
        manager.close()
    del manager
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert len(gone) == 2 and not alive
    gc.collect()


def test_dead_worker_is_replaced_and_rollouts_are_complete() -> None:
    with learner(2) as made, learner(1) as alone:
        assert made.train_env_parallel is not None
        made.collect_rollouts_parallel(2, random_actions=True, parallel_env=made.train_env_parallel)
        os.kill(made.train_env_parallel.engine.worker_pids[1], signal.SIGKILL)
        made.collect_rollouts_parallel(4, random_actions=True, parallel_env=made.train_env_parallel)
        alone.collect_rollouts_parallel(6, random_actions=True)
        begun = [k for k, step in enumerate(stored(made)) if step["flags"][0] & STARTS]
        assert begun == [k * 120 for k in range(6)] and len(stored(made)) == 6 * 120
        assert_same(stored(made)[: 3 * 120], stored(alone)[: 3 * 120])  # of the worker that survived, and before


# -- its four troubleshooting entries ----------------------------------------------------------------------------------
def test_unmatched_send_or_recv_is_reported() -> None:
    manager = make_parallel_env("PointRobot-v0", 2, num_workers=2, seed=1)
    try:
        manager.remotes[0].send(("step", np.zeros(2)))
        with pytest.raises(mv.errors.RequestPending, match="env 0 is still pending"):
            manager.remotes[0].send(("step", np.zeros(2)))
        manager.remotes[1].send(("reset", {"task": [0.5, 0.5]}))
        with pytest.raises(mv.errors.RequestPending, match=r"the reset of env 1 is still pending: call recv\(\)"):
            manager.remotes[1].send(("step", np.zeros(2)))
        assert len(manager.remotes[0].recv()) == 5 and len(manager.remotes[1].recv()) == 2
        manager.remotes[0].send(("step", np.zeros(2)))
        with pytest.raises(mv.errors.NothingPending, match="nothing was sent to env 1"):
            manager.remotes[1].recv()
        assert len(manager.remotes[0].recv()) == 5
        for slip in ("step", ("reset", 3), ("reset", {"tsk": 3})):
            with pytest.raises(mv.errors.InvalidRequest, match="expected"):
                manager.remotes[1].send(slip)
    finally:
        manager.close()


@pytest.mark.parametrize(
    ("thinks", "message"),
    [(0.0, r"receive \d+% of the time: the envs are the bottleneck: .*"),
     (9.0, r"act 9\d% of the time: the policy is the bottleneck: more workers do not help")],
)  # fmt: skip
def test_bottleneck_of_collection_is_named(thinks: float, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("multiverse.rollouts.episode_play.perf_counter", clock)

    class Thinks(mv.RandomPolicy):
        def act(self, *shown: Any) -> Any:
            clock.now += thinks
            return super().act(*shown)

    with learner(1) as made:
        env = made.train_env.env
        step = env.step
        env.step = lambda action: (setattr(clock, "now", clock.now + 1), step(action))[1]  # type: ignore[method-assign]
        made.agent = Thinks(made.train_env.action_space)
        made.collect_rollouts_parallel(2)
        assert re.fullmatch(rf"act \d+%, step \d+%, receive \d+%, store \d+%; {message}", made.time_split())


def test_too_many_open_files_error_states_the_number_needed() -> None:
    program = """
import resource
import multiverse as mv
from examples.meta_rl.envs.meta.make_env import make_parallel_env
soft, hard = 40, 100
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    make_parallel_env("PointRobot-v0", 2, num_workers=16, seed=1)
except mv.errors.PreflightError as error:
    print(error)
make_parallel_env("PointRobot-v0", 2, num_workers=1, seed=1).close()
print("limit raised:", soft < resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert re.match(r"16 worker processes need \d+ open files", done.stdout), done.stdout + done.stderr
    assert done.stdout.endswith("limit raised: True\n") and done.returncode == 0


def test_import_errors_in_workers_name_the_module() -> None:
    def make() -> Any:
        import a_module_that_is_not_there  # type: ignore[import-not-found]

        return a_module_that_is_not_there.Env()

    with pytest.raises(mv.MultiverseError, match="No module named 'a_module_that_is_not_there'") as raised:
        ParallelEnvManager([make, make])
    assert "import a_module_that_is_not_there" in str(raised.value)  # where
