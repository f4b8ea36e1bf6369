"""PPO and A2C with memory: values computed along a rollout equal those computed step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import multiverse as mv
from multiverse.algorithms import on_policy
from multiverse.algorithms.a2c import A2C, A2CConfig
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.core.layout import SINGLE_AGENT
from multiverse.learning.returns import Transitions, generalized_advantages
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.rollout import Rollout, RolloutShape

SLOTS, STEPS = 3, 20
SMALL = PPOConfig(
    steps_per_env=STEPS, epochs=1, batch_size=16, hidden_sizes=(8,), memory="lstm", memory_size=6, chunk_length=4
)


class Odd(gym.Env[Any, Any]):
    """Env with episodes of 3 to 9 steps that are truncated or terminated; step `lose` raises."""

    def __init__(self, actions: spaces.Space[Any] | None = None, lose: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space, self._lose = actions or spaces.Discrete(3), lose
        self._all = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(3, 10))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._left, self._all = self._left - 1, self._all + 1
        if self._all == self._lose:
            raise RuntimeError("lost")
        over, cut = self._left == 0, bool(self.np_random.integers(2))
        return self._seen(), float(self.np_random.normal()), over and not cut, over and cut, {}

    def _seen(self) -> Any:
        return self.np_random.normal(size=2).astype(np.float32)


@contextmanager
def collected(algorithm: Any, env: Any, rollouts: int = 2) -> Iterator[Rollout]:
    """The last of several rollouts, so that its first memory comes from the one before."""
    plan = mv.DerivedSeeds(3)
    failures = mv.FailureOptions(on_failure="restart", restarts_per_minute=100)
    options: dict[str, Any] = {"autoreset": "same_step", "copy": False, "on_failure": failures}
    with mv.make_vec(env, SLOTS, "serial", reset_plan=plan, **options) as envs:
        policy = algorithm.policy()
        noise = policy.noise(np.random.default_rng(0), 1, 1)
        shape = RolloutShape(SINGLE_AGENT, envs.single_observation_space, STEPS, SLOTS, algorithm.action,
                             memory=policy.first_memory(1), noise=(noise.shape[2:], noise.dtype))  # fmt: skip
        collector = Collector(envs, [shape], None, plan)
        envs.reset()
        collector.begin()
        for _ in range(rollouts):
            assert collector.collect([policy], np.random.default_rng(1)) is not None
        (rollout,) = collector.rollouts
        yield rollout


class Slow:
    """Slow reference of the critic or the policy's network: one step of one slot at a time, with torch's cells."""

    def __init__(self, algorithm: Any, which: int) -> None:
        config, self._algorithm, self._which = algorithm.config, algorithm, which
        self._cell = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}[config.memory](
            algorithm.features.size, config.memory_size
        )
        for value, given in zip(self._cell.parameters(), algorithm._networks.cells()[which]):
            value.data = torch.from_numpy(given)
        network = algorithm._networks
        self._layers = (network._critic if which else network._actor).layers

    def step(self, seen: Any, memory: Any) -> tuple[Any, Any]:
        """(output of the network for one row, memory after it)."""
        x = torch.from_numpy(np.ascontiguousarray(seen[None]))
        state = tuple(torch.from_numpy(part[None].copy()) for part in memory)
        with torch.no_grad():
            after = self._cell(x, state if len(state) == 2 else state[0])
        after = after if isinstance(after, tuple) else (after,)
        out = after[0].numpy()
        for i, (weights, bias, _, _) in enumerate(self._layers):
            out = out @ weights.T + bias
            out = np.tanh(out) if i + 1 < len(self._layers) else out
        return out[0], np.stack([part[0].numpy() for part in after])


def vector(algorithm: Any, observation: Any, previous: tuple[Any, Any] | None) -> Any:
    """Return the network's input of one row; `previous`: None at the start of an episode."""
    shown = [observation]
    if algorithm.config.see_previous:
        space = algorithm.action_space
        action = np.zeros(algorithm.features.size - 3, np.float32)
        reward = 0.0
        if previous is not None:
            reward = previous[1]
            if isinstance(space, spaces.Discrete):
                action[previous[0]] = 1.0
            else:
                action[...] = previous[0]
        shown += [action, [reward]]
    return np.concatenate(shown).astype(np.float32)


def slow_values(algorithm: Any, rollout: Rollout) -> tuple[Any, Any]:
    """([T, S] values, next values), slot after slot, step after step from the memory before the first row."""
    critic = Slow(algorithm, 1)
    values, following = np.zeros((2, STEPS, SLOTS), np.float32)
    observations, finals = rollout.observations[()], rollout.finals[()]
    assert rollout.previous is not None
    for s in range(SLOTS):
        memory = rollout.memory["cells"][0, s, 1]
        before: Any = (rollout.previous[0][0, s], rollout.previous[1][0, s])
        for t in range(STEPS):
            if rollout.starts[t, s]:
                memory, before = np.zeros_like(memory), None
            (values[t, s],), memory = critic.step(vector(algorithm, observations[t, s], before), memory)
            before = rollout.actions[t, s], rollout.rewards[t, s]
            if rollout.truncated[t, s]:
                (following[t, s],), _ = critic.step(vector(algorithm, finals[t, s], before), memory)
            if t and not (rollout.terminated | rollout.truncated)[t - 1, s]:
                following[t - 1, s] = values[t, s]
        if not (rollout.terminated | rollout.truncated)[-1, s]:
            (following[-1, s],), _ = critic.step(vector(algorithm, rollout.last[()][s], before), memory)
    return values, following


BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize(("see_previous", "actions"), [(False, None), (True, None), (True, BOX)])
@pytest.mark.parametrize("lose", [0, 25])
def test_recurrent_advantages_equal_a_step_by_step_reference(
    memory: Any, see_previous: bool, actions: Any, lose: int
) -> None:
    config = replace(SMALL, memory=memory, see_previous=see_previous)
    algorithm = PPO(config, Odd().observation_space, actions or spaces.Discrete(3), SLOTS, 1)
    with collected(algorithm, lambda: Odd(actions, lose)) as rollout:
        ended, valid = rollout.terminated | rollout.truncated, rollout.valid
        assert rollout.truncated.any() and rollout.terminated.any() and not rollout.starts[0].all()
        assert (not valid.all()) == bool(lose)
        values, following = slow_values(algorithm, rollout)
        batch = algorithm._batch(rollout)
        advantages, returns = generalized_advantages(
            Transitions(rollout.rewards, values, following, ended, valid), gamma=0.99, gae_lambda=0.95
        )
        assert batch.packing is not None and len(batch) == valid.sum()
        rows, _ = algorithm._batches._chunks(rollout).drop_invalid(valid.reshape(-1)).pack()
        for name, expected in (("values", values), ("advantages", advantages), ("returns", returns)):
            np.testing.assert_allclose(batch[name], expected.reshape(-1)[rows], rtol=1e-4, atol=2e-5)
        actor = Slow(algorithm, 0)
        row = int(rows[-1])  # the last row of the longest chunk: the policy's memory there must agree
        t, s = divmod(row, SLOTS)
        assert rollout.previous is not None
        before = None if rollout.starts[t, s] else (rollout.previous[0][t, s], rollout.previous[1][t, s])
        output, _ = actor.step(
            vector(algorithm, rollout.observations[()][t, s], before), rollout.memory["cells"][t, s, 0]
        )
        again = algorithm._networks._actor.output(algorithm._networks._dense_inputs(batch)[0])[-1]
        np.testing.assert_allclose(again, output, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_torch", [False, True])
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_first_ratio_of_a_recurrent_policy_is_1(memory: Any, in_torch: bool) -> None:
    """The acting policy, step by step, and the learner, in chunks, compute the same function: the first ratio is 1."""
    config = replace(SMALL, memory=memory, batch_size=1000, see_previous=True, normalize_observations=True)
    with mock.patch.object(on_policy, "LARGEST_IN_NUMPY", -1 if in_torch else 256):
        algorithm = PPO(config, Odd().observation_space, spaces.Discrete(3), SLOTS, 1)
    with collected(algorithm, Odd) as rollout:
        batch = algorithm._batch(rollout)
        log_probs = np.asarray(algorithm._networks.log_probs(batch))
        rows, _ = algorithm._batches._chunks(rollout).pack()
        for k, row in enumerate(rows.tolist()):
            t, s = divmod(row, SLOTS)
            output, _ = algorithm.policy().output(np.asarray(batch.vector)[k : k + 1],  # type: ignore[attr-defined]
                                                {"cells": rollout.memory["cells"][t, s : s + 1]})  # fmt: skip
            logs = output - np.log(np.exp(output).sum())
            assert log_probs[k] == pytest.approx(logs[0, rollout.actions[t, s]], abs=2e-5)
        report = algorithm.update([rollout], 0.0)
        assert report.metrics["kl"] == pytest.approx(0.0, abs=1e-6) and report.gradient_steps == 1


def test_chunks_change_the_gradient_and_not_the_values() -> None:
    """One chunk for a whole piece of an episode has the gradient of everything; shorter ones look less far back."""
    found = {}
    for length in (1, 4, STEPS):
        config = replace(SMALL, chunk_length=length, batch_size=1000, ortho_init=False)  # the same first weights
        algorithm = PPO(config, Odd().observation_space, spaces.Discrete(3), SLOTS, 1)
        with collected(algorithm, Odd) as rollout:
            batch = algorithm._batch(rollout)
            rows, _ = algorithm._batches._chunks(rollout).pack()
            values = np.empty(len(rows), np.float32)
            values[np.argsort(np.argsort(rows))] = batch["values"]
            algorithm.update([rollout], 0.0)
            found[length] = values, algorithm.weights()["parameters"]
    for length in (1, 4):
        np.testing.assert_allclose(found[length][0], found[STEPS][0], rtol=1e-4, atol=1e-5)
        assert np.abs(found[length][1] - found[STEPS][1]).max() > 1e-5


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_algorithm_restored_from_its_state_continues_exactly(kind: Any) -> None:
    settings = {name: getattr(SMALL, name) for name in ("steps_per_env", "hidden_sizes", "memory", "memory_size")}
    config = kind.Config(**settings, normalize_observations=True, see_previous=True, chunk_length=5)
    one, other = (kind(config, Odd().observation_space, spaces.Discrete(3), SLOTS, seed) for seed in (1, 2))
    with collected(one, Odd) as rollout:
        one.update([rollout], 0.0)
    other.load_weights(one.weights())
    other.load(one.state())
    with collected(one, Odd) as first, collected(other, Odd) as second:
        assert first.memory["cells"].tobytes() == second.memory["cells"].tobytes() and first.memory["cells"].any()
        for algorithm, rollout in ((one, first), (other, second)):
            algorithm.update([rollout], 0.0)
    assert one.weights()["parameters"].tobytes() == other.weights()["parameters"].tobytes()


def test_recurrent_policy_learns_from_images() -> None:
    """In torch, acting included."""
    seen = spaces.Dict({"eye": spaces.Box(0, 255, (36, 36, 3), np.uint8), "ear": spaces.Discrete(3)})

    class Eye(Odd):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = seen

        def _seen(self) -> Any:
            return {"eye": self.np_random.integers(0, 255, (36, 36, 3), np.uint8), "ear": self.np_random.integers(3)}

    for share in (False, True):
        config = replace(SMALL, share_features=share, batch_size=1000, memory="gru" if share else "lstm")
        algorithm = PPO(config, seen, spaces.Discrete(3), SLOTS, 1)
        with collected(algorithm, Eye) as rollout:
            assert np.abs(rollout.memory["cells"]).max() > 0.01
            report = algorithm.update([rollout], 0.0)
            assert report.metrics["kl"] == pytest.approx(0.0, abs=1e-5) and report.gradient_steps == 1


def test_rollout_without_valid_rows_changes_nothing() -> None:
    algorithm = PPO(SMALL, Odd().observation_space, spaces.Discrete(3), SLOTS, 1)
    with collected(algorithm, Odd) as rollout:
        rollout.valid[...] = False
        before = algorithm.weights()["parameters"].copy()
        assert algorithm.update([rollout], 0.0).gradient_steps == 0
        assert (algorithm.weights()["parameters"] == before).all()


@pytest.mark.parametrize(("wrong", "message"), [
    ({"memory_size": 0}, "memory_size=0: expected at least 1"),
    ({"chunk_length": 0}, "chunk_length=0: expected at least 1"),
    ({"see_previous": True, "memory": None}, "see_previous=True: needs a memory, lstm or gru"),
])  # fmt: skip
def test_invalid_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        replace(SMALL, **wrong)
    with pytest.raises(mv.errors.InvalidRequest, match="memory cannot change"):
        PPO(SMALL, Odd().observation_space, spaces.Discrete(3), SLOTS, 1).change(memory="gru")


def test_cell_larger_than_the_limit_is_refused() -> None:
    for size in (20_000, 10**9):
        with pytest.raises(mv.errors.InvalidRequest, match="parameters, more than"):
            PPO(replace(SMALL, memory_size=size), Odd().observation_space, spaces.Discrete(3), SLOTS, 1)


def test_memory_size_decides_between_numpy_and_torch_networks() -> None:
    for size, kind in ((256, "NumpyLearner"), (257, "ActorCritic")):
        made = A2C(A2CConfig(memory="gru", memory_size=size), Odd().observation_space, spaces.Discrete(3), SLOTS, 1)
        assert type(made._networks).__name__ == kind and made.policy().portable() is made.policy()
