"""QR-DQN and C51 of `examples/distributional.py` learn, resume exactly, and act equally when loaded and evaluated."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import multiverse as mv
from examples.distributional import C51, QRDQN, main
from multiverse.algorithms import DQN, ReplayBatch
from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Seen
from multiverse.learning.batches import NetworkInput
from multiverse.policies import EpsilonGreedyHead
from multiverse.rollouts.rollout import rollout_for
from tests.training.small_runs import digest, lines_of

SETTINGS: dict[str, Any] = {
    "seed": 5, "num_envs": 2, "executor": "serial", "preset": False, "evaluate_every": 0, "evaluation_episodes": 2,
    "env_steps": 200, "learning_starts": 20, "batch_size": 16, "hidden_sizes": (8, 8), "updates_per_step": 0.25,
    "exploration_fraction": 0.0, "learning_rate": 1e-2, "target_update_interval": 40, "progress": False,
}  # fmt: skip
GRU: dict[str, Any] = {"memory": "gru", "memory_size": 6, "sequences": 4}
CASES = [
    pytest.param(kind, more, id=f"{kind.__name__}-{name}")
    for kind in (QRDQN, C51)
    for name, more in (("plain", {}), ("gru", GRU), ("network", {"network": "mlp"}))
]
OBSERVATIONS = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)


def trained(kind: Any, path: Path, **settings: Any) -> mv.Run:
    return mv.train("CartPole-v1", algorithm=kind, run_dir=path, **{**SETTINGS, **settings})


@pytest.mark.parametrize(("kind", "more"), CASES)
def test_interrupted_run_resumes_exactly(kind: Any, more: dict[str, Any], tmp_path: Path) -> None:
    whole = trained(kind, tmp_path / "whole", **more)
    again = mv.resume(trained(kind, tmp_path / "parts", **more, env_steps=100), env_steps=200)
    assert digest(again) == digest(whole)
    assert again.summary["evaluation"] == whole.summary["evaluation"]
    assert {"loss", "mean_value"} <= set().union(*lines_of(whole.path, "metrics.jsonl"))


@pytest.mark.parametrize("kind", [QRDQN, C51])
def test_worker_processes_change_no_bit_of_a_run(kind: Any, tmp_path: Path) -> None:
    assert digest(trained(kind, tmp_path / "one", executor="process")) == digest(trained(kind, tmp_path / "two"))


PROGRAM = """
import json, sys
import numpy as np, multiverse as mv
found = []
for run in sys.argv[1:]:
    policy, evaluation = mv.load(run), mv.evaluate(run, episodes=2, seed=0)
    seen = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    found.append([policy.act(seen, previous_reward=0.0).tolist(), evaluation.mean_return])
assert not {"torch", "examples"} & {*sys.modules}
print(json.dumps(found))
"""


@pytest.mark.fault("D8")
def test_runs_are_evaluated_without_the_file_of_their_algorithm_and_without_torch(tmp_path: Path) -> None:
    cases = [(QRDQN, {}), (C51, {}), (QRDQN, GRU), (C51, GRU)]
    runs = [trained(kind, tmp_path / str(i), env_steps=600, **more) for i, (kind, more) in enumerate(cases)]
    command = [sys.executable, "-c", PROGRAM, *(str(run.path) for run in runs)]
    found = json.loads(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120).stdout)
    assert any(len({*actions}) == 2 for actions, _ in found)
    for run, (actions, mean_return) in zip(runs, found):
        made_again = mv.load(run.path, algorithm=run.summary["algorithm"])
        assert actions == made_again.act(OBSERVATIONS, previous_reward=0.0).tolist()
        assert mean_return == run.summary["evaluation"]["mean_return"]


@pytest.mark.parametrize("kind", [QRDQN, C51])
def test_run_with_an_own_network_is_evaluated_with_equal_returns(kind: Any, tmp_path: Path) -> None:
    run = trained(kind, tmp_path / "run", network="mlp", network_kwargs={"hidden_sizes": [16]})
    evaluation = mv.evaluate(run.path, episodes=2, seed=0)
    assert evaluation.mean_return == run.summary["evaluation"]["mean_return"]
    assert {*mv.load(run.path).act(OBSERVATIONS).tolist()} <= {0, 1}


class CautiousHead(EpsilonGreedyHead):
    """A head that takes the action whose worst tenth of 50 quantiles has the largest mean (docs/training.md)."""

    def choose(self, output: Any, noise: Any, masks: Any) -> Any:
        quantiles = output.reshape(len(output), self.count, 50)
        return super().choose(np.sort(quantiles)[..., :5].mean(-1), noise, masks)


class Cautious(QRDQN):
    acting_layers = DQN.acting_layers

    def head(self) -> CautiousHead:
        return CautiousHead(self.action_space.n, self.action_space.start, self.epsilon)


@pytest.mark.fault("D8")
def test_run_with_an_own_head_is_equal_in_workers_and_loaded_by_its_class(tmp_path: Path) -> None:
    run, other = (trained(Cautious, tmp_path / name, executor=name, env_steps=400) for name in ("process", "serial"))
    assert digest(run) == digest(other)
    assert type(mv.load(run.path).acting._head) is CautiousHead
    assert mv.evaluate(run.path, episodes=2, seed=0).mean_return == run.summary["evaluation"]["mean_return"]


@pytest.mark.parametrize("kind", [QRDQN, C51])
def test_past_versions_play_in_self_play(kind: Any, tmp_path: Path) -> None:
    settings = {**SETTINGS, "env_steps": 120, "opponents": 2}
    run = mv.train("tests.multi_agent.envs:Pair", algorithm=kind, run_dir=tmp_path / "run", **settings)
    assert run.summary["evaluation"]["mean_return/left"] > 0


# -- the losses --------------------------------------------------------------------------------------------------
def made(kind: Any, **settings: Any) -> Any:
    config = kind.Config(hidden_sizes=(16,), learning_starts=0, **settings)
    return kind(config, spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(3, start=1), 2, 3)


def batch_of(algorithm: Any, rows: int = 20) -> ReplayBatch:
    """Random steps, in some of which the episode terminated; one action of three is closed."""
    draw = np.random.default_rng(1)
    masks = np.ones((rows, 3), np.bool_)
    masks[np.arange(rows), draw.integers(3, size=rows)] = False
    seen, after = (NetworkInput(torch.as_tensor(draw.normal(size=(rows, 4)).astype(np.float32))) for _ in range(2))
    algorithm.target_values.parameters.copy_(
        torch.as_tensor(draw.normal(size=algorithm.target_values.parameters.shape))
    )
    columns = draw.integers(3, size=rows), draw.normal(size=rows).astype(np.float32)
    actions, rewards = map(torch.as_tensor, columns)
    discounts = torch.as_tensor(np.where(draw.random(rows) < 0.3, 0, 0.9).astype(np.float32))
    return ReplayBatch(seen, actions, rewards, after, discounts, None, torch.as_tensor(masks))


def test_loss_of_qr_dqn_is_the_quantile_huber_loss_of_the_paper() -> None:
    count, algorithm = 5, made(QRDQN, n_quantiles=5)
    batch = batch_of(algorithm)
    now = algorithm.values(batch.observations).detach().reshape(-1, 3, count).tolist()
    after = algorithm.target_values(batch.next_observations).reshape(-1, 3, count).tolist()
    losses = []
    for row, action in enumerate(batch.actions.tolist()):
        best = max((a for a in range(3) if batch.next_masks[row, a]), key=lambda a: sum(after[row][a]))
        loss = 0.0
        for i, quantile in enumerate(now[row][action]):
            for target in after[row][best]:
                error = float(batch.rewards[row]) + float(batch.discounts[row]) * target - quantile
                huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
                loss += abs((i + 0.5) / count - (error < 0)) * huber / count
        losses.append(loss)
    assert float(algorithm.loss(batch).total.detach()) == pytest.approx(np.mean(losses), rel=1e-5)


def test_loss_of_c51_is_the_cross_entropy_to_the_projection_of_the_paper() -> None:
    count, low, high = 7, -3.0, 3.0
    algorithm = made(C51, n_atoms=count, v_min=low, v_max=high)
    batch, step = batch_of(algorithm), (high - low) / (count - 1)
    atoms = [low + step * i for i in range(count)]
    log_probs = algorithm.values(batch.observations).detach().reshape(-1, 3, count).log_softmax(-1).tolist()
    after = algorithm.target_values(batch.next_observations).reshape(-1, 3, count).softmax(-1).tolist()
    losses = []
    for row, action in enumerate(batch.actions.tolist()):
        means = [sum(p * z for p, z in zip(after[row][a], atoms)) for a in range(3)]
        best = max((a for a in range(3) if batch.next_masks[row, a]), key=means.__getitem__)
        projected = [0.0] * count
        for p, z in zip(after[row][best], atoms):
            place = (min(high, max(low, float(batch.rewards[row]) + float(batch.discounts[row]) * z)) - low) / step
            lower, upper = math.floor(place), math.ceil(place)
            projected[lower] += p * (upper - place + (lower == upper))
            projected[upper] += p * (place - lower)
        losses.append(-sum(m * log_p for m, log_p in zip(projected, log_probs[row][action])))
    assert float(algorithm.loss(batch).total.detach()) == pytest.approx(np.mean(losses), rel=1e-5)


def learned_from_a_coin(kind: Any, **settings: Any) -> Any:
    """Episodes have one step. Action 0 earns 0 or 2 with equal probability, action 1 earns 0.8, action 2 earns 0."""
    algorithm = made(kind, learning_rate=0.02, batch_size=128, **settings)
    rollout = rollout_for(algorithm.observation_space, 120, 2, algorithm.action)
    rollout.actions[...] = (np.arange(240) % 3).reshape(120, 2)
    coin = np.arange(240).reshape(120, 2) // 3 % 2
    rollout.rewards[...] = np.select([rollout.actions == 0, rollout.actions == 1], [2 * coin, 0.8])
    rollout.terminated[...] = rollout.starts[...] = True
    algorithm.keep(rollout, 1.0)
    algorithm.learn(400)
    return algorithm.values(NetworkInput(torch.zeros(1, 4))).detach().numpy().reshape(3, -1), algorithm


def test_qr_dqn_learns_the_quantiles_of_a_return() -> None:
    quantiles, _ = learned_from_a_coin(QRDQN, n_quantiles=4)
    # The expected gradient of the quantile Huber loss is zero there, for the shares 1/8, 3/8, 5/8 and 7/8.
    np.testing.assert_allclose(np.sort(quantiles[0]), [1 / 7, 3 / 5, 7 / 5, 13 / 7], atol=0.15)
    np.testing.assert_allclose(quantiles[1], 0.8, atol=0.1)
    np.testing.assert_allclose(quantiles[2], 0.0, atol=0.1)


def test_c51_learns_the_distribution_of_a_return() -> None:
    logits, _ = learned_from_a_coin(C51, n_atoms=5, v_min=-1.0, v_max=3.0)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = [[0, 0.5, 0, 0.5, 0], [0, 0.2, 0.8, 0, 0], [0, 1, 0, 0, 0]]
    np.testing.assert_allclose(probs, expected, atol=0.1)


@pytest.mark.parametrize(("kind", "settings"), [(QRDQN, {}), (C51, {"v_min": -1.0, "v_max": 3.0})])
def test_policy_acts_on_the_mean_of_the_learned_distribution(kind: Any, settings: dict[str, Any]) -> None:
    _, algorithm = learned_from_a_coin(kind, **settings)
    policy, seen = algorithm.policy(), {(): np.zeros((2, 4), np.float32)}
    closed = np.array([[True] * 3, [False, True, True]])
    chosen, _ = policy.act(Seen(seen, np.zeros(2, np.bool_), closed), None, {})
    assert policy.for_env(chosen).tolist() == [1, 2]  # actions begin at 1: the random one, and 0.8 where that is closed


# -- settings, and the program -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (QRDQN, {"n_quantiles": 0}, r"outputs\(\) of QRDQN returned \{'values': 0\}"),
        (C51, {"n_atoms": 1}, "support=.*expected at least two increasing finite values"),
        (C51, {"v_min": 5.0, "v_max": 5.0}, "support=.*expected at least two increasing finite values"),
        (QRDQN, {"learner": "numpy"}, "learner='numpy' cannot be used with the loss of QRDQN"),
    ],
)
def test_invalid_distribution_settings_are_refused(kind: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        made(kind, **settings)


def test_main_trains_and_prints_the_mean_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = main(env_steps=512)
    assert f"{run.path}: mean return {run.summary['evaluation']['mean_return']:.1f}" in capsys.readouterr().out
