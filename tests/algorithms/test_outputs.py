"""`outputs()`, `acting_layers()` and `head()`: networks of other widths, and the policies that act with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import multiverse as mv
from multiverse.algorithms import A2C, DQN, PPO, SAC, TAAC, TD3, DiscreteSAC, Loss, Outputs, ReplayBatch, RolloutBatch
from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Seen
from multiverse.networks import MLP
from multiverse.policies import CategoricalHead, EpsilonGreedyHead
from multiverse.policies.heads import UniformHead
from multiverse.rollouts.rollout import rollout_for
from tests.training.small_runs import digest, lines_of

SETTINGS: dict[str, Any] = {
    "seed": 5, "num_envs": 2, "executor": "serial", "preset": False, "evaluate_every": 0, "evaluation_episodes": 1,
    "env_steps": 120, "learning_starts": 20, "batch_size": 16, "hidden_sizes": (8,), "updates_per_step": 0.25,
}  # fmt: skip
ROWS = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
WIDTH = 3


class WideDQN(DQN):
    """The value of an action is the mean of several outputs."""

    def outputs(self) -> dict[str, int]:
        return {"values": 2 * WIDTH}

    def acting_layers(self) -> list[tuple[Any, Any]]:
        *layers, (weights, bias) = super().acting_layers()
        return [*layers, (weights.reshape(-1, 2, WIDTH).mean(-1), bias.reshape(2, WIDTH).mean(-1))]

    def loss(self, batch: ReplayBatch) -> Loss:
        values = self.values(batch.observations).unflatten(-1, (2, WIDTH))
        return Loss(((values.mean(-1) - batch.rewards[:, None]) ** 2).mean())


def made(kind: Any, env: str = "CartPole-v1", **settings: Any) -> Any:
    network = settings.pop("network", None)
    one, config = gym.make(env), kind.Config(hidden_sizes=(8,), **settings)
    return kind(config, one.observation_space, one.action_space, 2, 3, network=network)


def values_acted_on(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """[rows, actions]: the values of `ROWS` that the acting policy passes to its head."""
    given: list[Any] = []
    choose = EpsilonGreedyHead.choose
    monkeypatch.setattr(
        EpsilonGreedyHead, "choose", lambda self, output, *more: given.append(output) or choose(self, output, *more)
    )
    policy = algorithm.policy()
    rewards, actions = np.zeros(len(ROWS)), np.zeros(len(ROWS), np.int64)
    seen = Seen({(): ROWS}, np.ones(len(ROWS), np.bool_), None, actions, rewards)
    policy.act(seen, None, policy.first_memory(len(ROWS)))
    return given[0]


GRU: dict[str, Any] = {"memory": "gru", "memory_size": 4}
NETWORK: dict[str, Any] = {"network": ("mlp", MLP)}


@pytest.mark.parametrize("more", [{}, GRU, NETWORK, {**GRU, **NETWORK}], ids=["plain", "gru", "network", "both"])
def test_policy_acts_with_the_layers_that_acting_layers_returns(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = made(WideDQN, learning_starts=0, **more)
    whole, folded = algorithm.values.layers(), algorithm.acting_layers()
    assert [weights.shape for weights, _ in folded][-1] == (8, 2)
    assert [weights.shape for weights, _ in whole][-1] == (8, 2 * WIDTH)
    class_with_all_outputs = type(
        "All", (WideDQN,), {"acting_layers": DQN.acting_layers, "head": lambda self: Means(2)}
    )
    every = values_acted_on(made(class_with_all_outputs, learning_starts=0, **more), monkeypatch)
    np.testing.assert_allclose(values_acted_on(algorithm, monkeypatch), every, rtol=1e-5, atol=1e-6)


class Means(EpsilonGreedyHead):
    """A head that takes the action with the largest mean of several outputs."""

    def choose(self, output: Any, noise: Any, masks: Any) -> Any:
        return super().choose(output.reshape(-1, 2, WIDTH).mean(-1), noise, masks)


@pytest.mark.parametrize("head", [Means(2, 0, 1.0), UniformHead(Means(2, 0, 1.0))], ids=["own", "warm-up"])
def test_own_head_explores_like_its_base_class(head: Any) -> None:
    noise = head.noise(np.random.default_rng(1), 1, 64)[0]
    chosen = head.choose(np.zeros((64, 2 * WIDTH), np.float32), noise, None)
    assert chosen.tolist() == EpsilonGreedyHead(2, 0, 1.0).choose(np.zeros((64, 2)), noise, None).tolist()


def test_categorical_head_values_an_action_by_the_mean_of_its_distribution() -> None:
    head, logits = CategoricalHead(2, support=[-1.0, 0.0, 4.0]), np.random.default_rng(1).normal(size=(7, 6)) * 30
    expected = torch.as_tensor(logits).reshape(7, 2, 3).softmax(-1).numpy() @ [-1.0, 0.0, 4.0]
    np.testing.assert_allclose(head.values(logits), expected, rtol=1e-6)
    assert head.choose(logits, None, None).tolist() == expected.argmax(axis=1).tolist()
    closed = np.arange(14).reshape(7, 2) % 2 == 0
    assert not head.choose(logits, None, closed).any()


def test_categorical_head_has_equal_bits_for_a_row_among_any_number_of_rows() -> None:
    logits = np.random.default_rng(1).normal(size=(64, 2 * 51)).astype(np.float32)
    head = CategoricalHead(2, support=np.linspace(-10, 10, 51))
    whole = head.values(logits)
    for count in range(1, 65):
        assert head.values(logits[64 - count :]).tobytes() == whole[64 - count :].tobytes()


# -- what is refused ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"values": 0}, r"outputs\(\) of Mine returned \{'values': 0\}: expected at least 1 of 'values'"),
        ({}, r"returned \{\}: expected at least 1 of 'values'"),
        ({"values": 2, "critics": 3}, "names 'critics' among its networks: those of Mine are values"),
        ({"values": 2.5}, r"outputs\(\) of Mine: values=2.5: expected a whole number"),
        (100, r"returned 100: expected a dict such as \{'values': 64\}"),
    ],
)
def test_invalid_outputs_are_refused(returned: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        made(type("Mine", (DQN,), {"outputs": lambda self: returned}))


@pytest.mark.fault("D8")
@pytest.mark.parametrize("more", [{}, NETWORK], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("kind", "env", "outputs", "message"),
    [
        (DQN, "CartPole-v1", {"values": 6}, "6 outputs, and its head, EpsilonGreedyHead, needs 2"),
        (DiscreteSAC, "CartPole-v1", {"actor": 3, "critic": 2}, "3 outputs, and its head, DiscreteHead, needs 2"),
        (SAC, "Pendulum-v1", {"actor": 1, "critic": 1}, "1 outputs, and its head, SquashedGaussianHead, needs 2"),
        (TD3, "Pendulum-v1", {"actor": 2, "critic": 1}, "2 outputs, and its head, DeterministicHead, needs 1"),
    ],
)
def test_outputs_that_do_not_fit_the_head_are_refused(
    kind: Any, env: str, outputs: Any, message: str, more: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=rf"of Mine has {message}: override acting_layers\(\) or head\(\)"):
        made(type("Mine", (kind,), {"outputs": lambda self: outputs}), env, **more)


@pytest.mark.parametrize("layers", [[], [(np.ones((4, 8)), np.ones(8)), (np.ones((7, 2)), np.ones(2))]])
def test_acting_layers_that_do_not_fit_together_are_refused(layers: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=r"acting_layers\(\) of Mine returned .*: expected \[in, out\] and \[out\]"
    ):
        made(type("Mine", (DQN,), {"acting_layers": lambda self: layers}))


@pytest.mark.parametrize("more", [{}, NETWORK], ids=["numpy", "torch"])
def test_acting_layers_in_double_precision_act_in_single_precision(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled = {"acting_layers": lambda self: [(w.astype(float), b.tolist()) for w, b in DQN.acting_layers(self)]}
    assert values_acted_on(made(type("Mine", (DQN,), doubled), **more), monkeypatch).dtype == np.float32


# -- critics -----------------------------------------------------------------------------------------------------
class TruncatedSAC(SAC):
    """SAC whose critics have several outputs, of which the largest is left out (as in TQC, Kuznetsov et al. 2020)."""

    def outputs(self) -> dict[str, int]:
        return {**super().outputs(), "critic": 5}

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        with torch.no_grad():
            actions, log_probs = self.sample_actions(batch.next_observations, batch.noise[0])
            every = self.target_critic(batch.next_observations, actions).permute(1, 0, 2).flatten(1)
            values = every.sort(-1).values[:, :-1].mean(-1) - self.entropy_coef * log_probs
        errors = self.critic(batch.observations, batch.actions) - (batch.rewards + batch.discounts * values)[:, None]
        return Loss((errors**2).mean(), critic_loss=(errors**2).mean())

    def actor_loss(self, batch: ReplayBatch) -> Loss:
        actions, log_probs = self.sample_actions(batch.observations, batch.noise[1])
        values = self.critic(batch.observations, actions).mean((0, 2))
        return Loss((self.entropy_coef * log_probs - values).mean(), entropy=-log_probs.mean())


class MeanDiscreteSAC(DiscreteSAC):
    """Discrete SAC whose critics have several outputs for each action."""

    def outputs(self) -> dict[str, int]:
        return {**super().outputs(), "critic": 2 * WIDTH}

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        values = self.critic(batch.observations).unflatten(-1, (2, WIDTH)).mean(-1)
        return Loss(((values - batch.rewards[:, None]) ** 2).mean())

    def actor_loss(self, batch: ReplayBatch) -> Loss:
        log_probs = self.log_probs(batch.observations, batch.masks)
        values = self.critic(batch.observations).unflatten(-1, (2, WIDTH)).mean((0, 3))
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        return Loss((log_probs.exp() * (self.entropy_coef * log_probs - values)).sum(-1).mean(), entropy=entropy)


class CategoricalPPO(PPO):
    """PPO whose value network learns a categorical distribution over returns, which are mapped to two atoms each."""

    def outputs(self) -> dict[str, int]:
        return {"critic": 11}

    def values_from(self, outputs: Any) -> Any:
        return outputs.softmax(-1) @ torch.arange(11.0)

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        nearness = (1 - (batch.returns[:, None].clamp(0, 10) - torch.arange(11.0)).abs()).clamp(0)
        return super().loss(out, batch).plus(distance=-(nearness * out["critic"].log_softmax(-1)).sum(-1).mean())


ON_POLICY: dict[str, Any] = {"steps_per_env": 10, "learning_starts": None, "updates_per_step": None, "batch_size": None}


@pytest.mark.parametrize(
    ("kind", "env", "more"),
    [
        (CategoricalPPO, "CartPole-v1", {**ON_POLICY, "value_coef": 0.0}),
        (CategoricalPPO, "CartPole-v1", {**ON_POLICY, "memory": "gru", "memory_size": 4}),
        (CategoricalPPO, "CartPole-v1", {**ON_POLICY, "network": "mlp"}),
        (TruncatedSAC, "Pendulum-v1", {}),
        (TruncatedSAC, "Pendulum-v1", {**GRU, "sequences": 2}),
        (MeanDiscreteSAC, "CartPole-v1", {}),
    ],
    ids=["ppo", "ppo-gru", "ppo-network", "sac", "sac-gru", "discrete_sac"],
)
def test_run_whose_critics_have_other_outputs_resumes_exactly(
    kind: Any, env: str, more: dict[str, Any], tmp_path: Path
) -> None:
    settings = {name: value for name, value in {**SETTINGS, **more}.items() if value is not None}
    whole = mv.train(env, algorithm=kind, run_dir=tmp_path / "whole", **settings)
    half = mv.train(env, algorithm=kind, run_dir=tmp_path / "parts", **{**settings, "env_steps": 60})
    assert digest(mv.resume(half, env_steps=120)) == digest(whole)
    assert any("entropy" in row for row in lines_of(whole.path, "metrics.jsonl"))


class Distribution:
    """A value network that learns only the distribution of returns; the policy does not change."""

    outputs, values_from = CategoricalPPO.outputs, CategoricalPPO.values_from

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        nearness = (1 - (batch.returns[:, None].clamp(0, 10) - torch.arange(11.0)).abs()).clamp(0)
        return Loss(-(nearness * out["critic"].log_softmax(-1)).sum(-1).mean(), kl=0.0)


@pytest.mark.parametrize("stock", [PPO, A2C])
def test_value_network_of_an_on_policy_algorithm_learns_a_distribution(stock: Any) -> None:
    """Episodes have one step, with a return of 1 or 4 with equal probability."""
    algorithm = made(type("Mine", (Distribution, stock), {}), learning_rate=0.05)
    rollout = rollout_for(algorithm.observation_space, algorithm.steps_per_env, 2, algorithm.action)
    rollout.rewards[:, 0], rollout.rewards[:, 1] = 1, 4
    rollout.terminated[...] = rollout.starts[...] = True
    for _ in range(60):
        rollout.policy_version = algorithm.policy().version
        algorithm.update([rollout], 0.0)
    probs = algorithm._networks.critic(torch.zeros(1, 4)).softmax(-1)[0]
    assert probs[[1, 4]].tolist() == pytest.approx([0.5, 0.5], abs=0.1)
    assert algorithm._networks.values(np.zeros((1, 4), np.float32), [])[0] == pytest.approx(2.5, abs=0.3)


def test_other_outputs_of_an_on_policy_algorithm_are_learned_in_torch_and_checked() -> None:
    with pytest.raises(InvalidRequest, match="learner='numpy' cannot be used with the loss of Mine"):
        made(type("Mine", (PPO,), {"outputs": lambda self: {"critic": 2}}), learner="numpy")
    with pytest.raises(InvalidRequest, match="names 'actor' among its networks: those of Mine are critic"):
        made(type("Mine", (PPO,), {"outputs": lambda self: {"critic": 1, "actor": 5}}))
    algorithm = made(type("Mine", (PPO,), {"values_from": lambda self, outputs: outputs}))
    with pytest.raises(InvalidRequest, match=r"values_from\(\) returned shape \(3, 1\) .*: expected \(3,\)"):
        algorithm._networks.values(np.zeros((3, 4), np.float32), [])
    with pytest.raises(InvalidRequest, match="the critic of taac has one output"):
        kind: Any = type("Mine", (TAAC,), {"outputs": lambda self: {"critic": 2}})
        kind(kind.Config(), gym.make("CartPole-v1").observation_space, gym.make("CartPole-v1").action_space, 2, 0)
