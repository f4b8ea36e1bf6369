"""Stable-Baselines3's own wrappers and learners on our drop-ins: they learn exactly as on the originals."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecCheckNan, VecFrameStack, VecMonitor, VecNormalize

from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault
from tests.interop.stable_baselines3.envs import any_space
from tests.interop.stable_baselines3.pairs import KINDS, OURS, THEIRS, both, random_actions

FORKED = {**OURS, "subproc": functools.partial(OURS["subproc"], start_method="fork")}
"""`make_vec_env` puts each env into a Monitor, and a worker that is not forked loads torch for that."""

every_kind = pytest.mark.parametrize("kind", KINDS)
WRAPPERS: dict[str, Any] = {
    "normalize": VecNormalize,
    "monitor": VecMonitor,
    "frame_stack": functools.partial(VecFrameStack, n_stack=3),
    "check_nan": VecCheckNan,
    "all": lambda venv: VecNormalize(VecFrameStack(VecMonitor(VecCheckNan(venv)), 2)),
}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Sums have equal bits only if they are added in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def without_time(infos: Any) -> list[dict[str, Any]]:
    """Remove the duration of episodes, which is not reproducible."""
    for info in infos:
        info.get("episode", {}).pop("t", None)
    return list(infos)


@every_kind
@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
def test_sb3_vector_wrappers_give_equal_results(kind: str, wrapper: str) -> None:
    with both(kind, [functools.partial(any_space, "box_float32")] * 3) as pair:
        theirs, ours = (WRAPPERS[wrapper](venv) for venv in pair)
        for venv in (theirs, ours):
            venv.seed(4)
        assert_same(ours.reset(), theirs.reset())
        for actions in random_actions(theirs.action_space, 3, 40):
            *found, our_infos = ours.step(actions)
            *expected, their_infos = theirs.step(actions)
            assert_same(found, expected)
            assert_same(without_time(our_infos), without_time(their_infos))
        assert ours.get_attr("length") == theirs.get_attr("length")


@every_kind
def test_vec_check_nan_finds_values_that_are_passed_on(kind: str) -> None:
    venv = VecCheckNan(OURS[kind]([functools.partial(Fault, "nan_observation")] * 2), raise_exception=True)
    venv.reset()
    with pytest.raises(ValueError, match="nan"):
        venv.step(np.zeros(2, np.int64))
    venv.close()


def learned(make_venv: Any, algorithm: Any, env: Any = "CartPole-v1", **options: Any) -> dict[str, Any]:
    """The weights after a few updates, from the same seed."""
    venv = make_vec_env(env, 4, seed=11, vec_env_cls=make_venv)
    steps = options.pop("total_timesteps")
    model = algorithm("MlpPolicy", venv, seed=11, device="cpu", **options)
    model.learn(steps)
    venv.close()
    return {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}


@every_kind
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_ppo_learns_bit_equally_on_both(kind: str, env: str) -> None:
    """CartPole's episodes end often; Pendulum's are all truncated, and their last observation is used for learning."""
    options = {"n_steps": 64, "batch_size": 64, "n_epochs": 2, "total_timesteps": 1024}
    assert_same(learned(FORKED[kind], PPO, env, **options), learned(THEIRS[kind], PPO, env, **options))


def test_ppo_result_does_not_depend_on_the_number_of_workers() -> None:
    options = {"n_steps": 32, "batch_size": 64, "n_epochs": 1, "total_timesteps": 256}
    one, four = (functools.partial(SubprocVecEnv, start_method="fork", workers=n) for n in (1, 4))
    assert_same(learned(one, PPO, **options), learned(four, PPO, **options))


@every_kind
def test_a2c_and_dqn_train(kind: str) -> None:
    """DQN steps one env at a time; A2C steps all of them."""
    assert learned(FORKED[kind], A2C, n_steps=8, total_timesteps=128)
    options = {"learning_starts": 32, "train_freq": 4, "batch_size": 16, "total_timesteps": 200}
    assert_same(learned(FORKED[kind], DQN, **options), learned(THEIRS[kind], DQN, **options))


def test_ppo_acts_with_multi_binary_actions() -> None:
    venv = SubprocVecEnv([functools.partial(any_space, "box_float64", "multi_binary")] * 2)
    PPO("MlpPolicy", venv, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(64)
    venv.close()


def test_ppo_learns_from_dict_observations() -> None:
    venv = DummyVecEnv([functools.partial(any_space, "dict")] * 2)
    PPO("MultiInputPolicy", venv, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(64)
    venv.close()


def test_learning_continues_after_an_interrupt() -> None:
    venv = DummyVecEnv([Walk, functools.partial(Fault, "interrupt", at=9)])
    model = PPO("MlpPolicy", venv, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        model.learn(64)
    model.learn(64, reset_num_timesteps=False)
    assert model.num_timesteps >= 64
    venv.close()
