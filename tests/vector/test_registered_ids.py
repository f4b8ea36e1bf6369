"""Ids that only the running program has registered with Gymnasium are known in its workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.vector.test_no_main_guard import lines_of

DEFINITIONS = """
import threading
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import WrapperSpec

print("script runs", flush=True)

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward=1, lock=None, render_mode=None):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(self.reward), bool(self.np_random.random() < 0.2), False, {}

class Times(gym.RewardWrapper, gym.utils.RecordConstructorArgs):
    def __init__(self, env, factor):
        gym.utils.RecordConstructorArgs.__init__(self, factor=factor)
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return reward * self.factor

times = WrapperSpec("Times", "__main__:Times", {"factor": 10})
gym.register("Class-v0", entry_point=Mine)
gym.register("Function-v0", entry_point=lambda **kwargs: Mine(reward=2))
gym.register("mine/Name-v0", entry_point="__main__:Mine", kwargs={"reward": 3})
gym.register("Wrapped-v0", entry_point=Mine, kwargs={"reward": 4}, additional_wrappers=(times,))
gym.register("Locked-v0", entry_point=Mine, kwargs={"lock": threading.Lock()})

def of(env_id):
    return lambda: gym.make(env_id)

def rewards(envs, env_ids):
    envs.reset(seed=0)
    return np.asarray(envs.step(np.zeros(len(env_ids), np.int64))[1]).tolist()
"""

MODULE = """
import gymnasium as gym
import ids_of_a_package  # as a package's `__init__` is imported before its modules
import numpy as np

class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 5.0, False, False, {}

gym.register("Imported-v0", entry_point=Env)
"""

EVERY_METHOD = """
import module_of_a_package
import multiverse as mv

ids = ["Class-v0", "Function-v0", "mine/Name-v0", "Wrapped-v0", "package/Env-v0", "Imported-v0"]
for method in ("forkserver", "fork", "spawn"):
    workers = mv.WorkerOptions(count=2, start_method=method)
    with mv.make_vec([of(i) for i in ids], None, "process", workers=workers) as envs:
        print(method, rewards(envs, ids), flush=True)
gym.register("Late-v0", entry_point=Mine, kwargs={"reward": 7})
gym.registry["Class-v0"].kwargs["reward"] = 8
with mv.make_vec([of("Late-v0"), of("Class-v0")], None, "process") as envs:
    print("later", rewards(envs, "01"), flush=True)
with mv.make_vec("mine/Name-v0", 2, "process") as envs:
    print("by id", rewards(envs, "01"), flush=True)
"""


@pytest.mark.fault("A16")
def test_registered_ids_are_known_in_workers_of_every_start_method(tmp_path: Path) -> None:
    """Also ids of a package, which registers them again when a worker imports it; and ids that are registered late."""
    registration = 'gym.register("package/Env-v0", entry_point="module_of_a_package:Env")'
    (tmp_path / "ids_of_a_package.py").write_text(f"import gymnasium as gym\n\n{registration}\n")
    (tmp_path / "module_of_a_package.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(DEFINITIONS + EVERY_METHOD)
    expected = "[1.0, 2.0, 3.0, 40.0, 5.0, 5.0]"
    assert lines_of([sys.executable, "script.py"], tmp_path) == [
        "script runs",
        *(f"{method} {expected}" for method in ("forkserver", "fork", "spawn")),
        "later [7.0, 8.0]",
        "by id [3.0, 3.0]",
    ]


DROP_INS = """
from multiverse.interop.gymnasium import AsyncVectorEnv
from multiverse.interop.stable_baselines3 import SubprocVecEnv

ids = ["Class-v0", "Wrapped-v0"]
envs = AsyncVectorEnv([of(i) for i in ids], context="forkserver")
print(rewards(envs, ids))
envs.close()
envs = SubprocVecEnv([of(i) for i in ids], start_method="spawn")
envs.reset()
print(envs.step(np.zeros(2, np.int64))[1].tolist())
envs.close()
"""


def test_registered_ids_are_known_in_workers_of_the_drop_ins(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    (tmp_path / "script.py").write_text(DEFINITIONS + DROP_INS)
    assert lines_of([sys.executable, "script.py"], tmp_path) == ["script runs", "[1.0, 40.0]", "[1.0, 40.0]"]


TRAININGS = """
import multiverse as mv

gym.register("Short-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=3)
options = {"env_steps": 64, "num_envs": 2, "num_steps": 16, "n_eval_episodes": 2, "progress": False, "workers": 1}
found = mv.train(of("Class-v0"), executor="process", run_dir="factory", **options)
print("factory", found.summary["evaluation"]["episodes"])
found = mv.train("mine/Name-v0", executor="process", run_dir="id", **options)
print("id", found.summary["evaluation"]["episodes"])
found = mv.train("Short-v0", seeds=2, run_dir="seeds", **options)
print("seeds", sorted(found.summary["returns"].items()))
"""


def test_registered_ids_are_known_in_trainings_evaluations_and_seed_processes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(DEFINITIONS + TRAININGS)
    assert lines_of([sys.executable, "script.py"], tmp_path) == [
        "script runs",
        "factory 2",
        "id 2",
        "seeds [('0', 3.0), ('1', 3.0)]",
    ]


NOT_SENT = """
import multiverse as mv

class Fails:
    def __reduce__(self):
        return eval, ("1 / 0",)

gym.register("own/Broken-v0", entry_point=Mine, kwargs={"lock": Fails()})
with mv.make_vec(of("Class-v0"), 2, "process") as envs:
    print(rewards(envs, "01"), flush=True)
for env_id in ("Locked-v0", "own/Broken-v0", "Nowhere-v0"):
    try:
        mv.make_vec(of(env_id), 2, "process")
    except mv.errors.EnvFailed as error:
        print(str(error).splitlines()[0])
"""


@pytest.mark.fault("A16")
def test_id_that_cannot_be_sent_is_skipped_and_its_error_has_the_reason(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DEFINITIONS + NOT_SENT)
    _, rewards, locked, broken, nowhere = lines_of([sys.executable, "script.py"], tmp_path)
    assert rewards == "[1.0, 1.0]"
    assert "'Locked-v0' is registered in the program" in locked and "cannot pickle '_thread.lock'" in locked
    assert "'own/Broken-v0' is registered in the program" in broken and "ZeroDivisionError" in broken
    assert "Nowhere" in nowhere and "registered in the program" not in nowhere


NOTHING_TO_SEND = """
import gymnasium as gym
import multiverse as mv
from multiverse.adapters.registered import additions
from multiverse.executors.launch.fork_server import fork_server

print(list(additions(fork_server().registered()).specs))
gym.registry["CartPole-v1"].max_episode_steps = 7
print(sorted(additions(fork_server().registered()).specs))
"""


@pytest.mark.fault("A16")
def test_only_differences_from_a_fresh_registry_are_sent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NOTHING_TO_SEND)
    assert lines_of([sys.executable, "script.py"], tmp_path) == ["[]", "['CartPole-v1']"]


@pytest.mark.fault("A16")
def test_local_class_of_a_registered_id_is_known_in_workers(tmp_path: Path) -> None:
    script = (
        DEFINITIONS
        + """
import multiverse as mv

def local(reward):
    class Mine2(Mine):
        def __init__(self):
            super().__init__(reward=reward)
    return Mine2

gym.register("Local-v0", entry_point=local(6))
for env in ("Local-v0", of("Local-v0")):
    with mv.make_vec(env, 2, "process", workers=1) as envs:
        print(rewards(envs, [0, 1]), envs.spec.id, callable(envs.spec.entry_point))
"""
    )
    (tmp_path / "script.py").write_text(script)
    assert lines_of([sys.executable, "script.py"], tmp_path)[-2:] == ["[6.0, 6.0] Local-v0 True"] * 2
