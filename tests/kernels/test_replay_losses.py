"""Kernels of SAC, TD3, discrete SAC and DQN give the gradient that torch gives for the algorithm's own losses."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import multiverse as mv
from examples.own_loss import ConservativeDQN
from multiverse.algorithms import SAC, TD3, Loss, ReplayBatch, SACConfig, algorithm_class
from multiverse.kernels import KERNELS, kernel_of
from multiverse.learning.loss import as_numpy
from multiverse.learning.numpy_network import NumpyNetwork
from multiverse.networks.torch_network import TorchNetwork
from tests.algorithms.test_off_policy import KINDS, OBSERVATIONS, SLOTS, made
from tests.algorithms.test_off_policy import rollout_of as markov_rollout
from tests.algorithms.test_off_policy_memory import MEMORY, Saved, rollout_of
from tests.kernels.test_losses import Recorded
from tests.training.small_runs import digest, lines_of

NETWORKS = {"loss": "values", "critic_loss": "critic", "actor_loss": "actor", "temperature_loss": "temperature"}
VARIATIONS: dict[str, dict[str, list[Any]]] = {
    "sac": {"entropy_coef": ["auto", "auto_0.1", 0.2, 0.0], "target_entropy": [None, 0.5]},
    "td3": {"target_policy_noise": [0.0, 0.2, 1.0], "target_noise_clip": [0.0, 0.1, 2.0]},
    "discrete_sac": {"entropy_coef": ["auto", "auto_0.1", 0.2, 0.0], "target_entropy_ratio": [0.0, 0.7]},
    "dqn": {},
}
"""Values of every setting that a loss reads."""
COMMON: list[dict[str, Any]] = [{}, {"activation": "tanh"}, {"hidden_sizes": ()}, {"gamma": 0.5}, {"batch_size": 1}]
RECURRENT: list[dict[str, Any]] = [
    {},
    {"memory": "lstm"},
    {"activation": "tanh"},
    {"action_embedding": 0},
    {"reward_embedding": 0},
    {"action_embedding": 0, "reward_embedding": 0},
    {"sequence_length": 3},
    {"markov_actor": True},
]
MASKED = spaces.Dict({"observation": OBSERVATIONS, "action_mask": spaces.MultiBinary(4)})


def pair(name: str, space: Any = OBSERVATIONS, **settings: Any) -> tuple[Any, Any]:
    """The same algorithm with either learner: equal first weights, targets, replay and random generators."""
    both = [made(name, space, learner=learner, **settings) for learner in ("numpy", "torch")]
    draw, (ours, theirs) = np.random.default_rng(5), both
    for target, other in zip(ours.targets.values(), theirs.targets.values()):
        target.parameters += draw.normal(0, 0.05, target.parameters.shape).astype(np.float32)
        other.parameters[...] = torch.from_numpy(target.parameters)
    for number in range(4):
        rollout = filled(ours, number, space)
        for algorithm in both:
            algorithm.keep(rollout, 0.0)
    return ours, theirs


def filled(algorithm: Any, seed: int, space: Any = OBSERVATIONS) -> Any:
    """A rollout with random observations, and with random open actions where there are masks."""
    rollout = (rollout_of if algorithm.config.memory else markov_rollout)(algorithm, seed, space)
    if space is MASKED:
        draw = np.random.default_rng(seed)
        for leaves in (rollout.observations, rollout.last, rollout.finals):
            masks = leaves[("action_mask",)]
            masks[...] = draw.integers(0, 2, masks.shape)
            masks[..., 1] = 1
    return rollout


@dataclass
class Gradients:
    """Return the gradients of both learners for the losses of one batch, by loss."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    metrics: tuple[dict[str, Any], dict[str, Any]]


def gradients(name: str, space: Any = OBSERVATIONS, **settings: Any) -> Gradients:
    both, found, all_metrics = pair(name, space, **settings), [], []
    for algorithm in both:
        (batch,), by_loss, metrics = list(algorithm._minibatches(1)), {}, {}
        for loss in algorithm.losses:
            if loss == "temperature_loss" and not isinstance(algorithm.config.entropy_coef, str):
                continue
            given = [batch, metrics["entropy"]] if loss == "temperature_loss" else [batch]
            network = algorithm._networks[NETWORKS[loss]]
            metrics |= algorithm.gradient(loss, network, *given)
            by_loss[loss] = as_numpy(network.optimizer.gradient)
        found.append(by_loss)
        all_metrics.append(metrics)
    return Gradients(found[0], found[1], (all_metrics[0], all_metrics[1]))


def cases() -> list[Any]:
    made_of = []
    for name in KINDS:
        own = [{setting: value} for setting, values in VARIATIONS[name].items() for value in values]
        recurrent = [{**MEMORY, **one} for one in RECURRENT if not (name == "dqn" and "markov_actor" in one)]
        made_of += [(name, OBSERVATIONS, one) for one in [*COMMON, *own, *recurrent]]
        if name in ("discrete_sac", "dqn"):
            made_of += [(name, MASKED, {}), (name, MASKED, MEMORY)]
    return made_of


@pytest.mark.parametrize(("name", "space", "settings"), cases())
def test_kernel_gradient_equals_autograd_of_the_losses(name: str, space: Any, settings: dict[str, Any]) -> None:
    found = gradients(name, space, **settings)
    assert found.ours.keys() == found.theirs.keys()
    for loss, theirs in found.theirs.items():
        assert np.abs(theirs).max() > 0, loss
        assert np.abs(found.ours[loss] - theirs).max() <= 1e-6 * np.abs(theirs).max(), loss
    metrics, their_metrics = found.metrics
    assert list(metrics) == list(their_metrics)
    for metric, value in their_metrics.items():
        assert float(metrics[metric]) == pytest.approx(float(value), rel=1e-5, abs=1e-6), metric


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_that_a_loss_reads_is_varied(name: str) -> None:
    _, algorithm = pair(name)
    (batch,) = algorithm._minibatches(1)
    algorithm.config = recorded = Recorded(algorithm.config)
    metrics: dict[str, Any] = {}
    for loss in algorithm.losses:
        given = [batch, metrics["entropy"]] if loss == "temperature_loss" else [batch]
        metrics |= getattr(algorithm, loss)(*given).metrics
    assert recorded.read <= VARIATIONS[name].keys() and bool(recorded.read) == (name != "dqn")


@pytest.mark.parametrize("loss", ["critic_loss", "actor_loss"])
def test_gradient_of_one_loss_does_not_change_the_gradients_of_other_networks(loss: str) -> None:
    _, algorithm = pair("sac")
    (batch,) = algorithm._minibatches(1)
    for network in algorithm._networks.values():
        network.optimizer.gradient.fill_(3.0)
    algorithm.gradient(loss, algorithm._networks[NETWORKS[loss]], batch)
    others = [network for name, network in algorithm._networks.items() if name != NETWORKS[loss]]
    assert all((network.optimizer.gradient == 3.0).all() for network in others)


@pytest.mark.parametrize("memory", [{}, MEMORY, {**MEMORY, "memory": "lstm"}], ids=["markov", "gru", "lstm"])
@pytest.mark.parametrize("name", KINDS)
def test_ten_updates_of_both_learners_from_one_seed_lead_to_the_same_weights(name: str, memory: dict[str, Any]) -> None:
    ours, theirs = pair(name, learning_rate=1e-3, gradient_steps=1, **memory)
    for seed in range(10):
        rollout = filled(ours, seed + 10)
        reports = [algorithm.update([rollout], seed / 10) for algorithm in (ours, theirs)]
        assert [report.gradient_steps for report in reports] == [1, 1]
    for network, weights in ours.weights().items():
        np.testing.assert_allclose(theirs.weights()[network], weights, atol=1e-5, err_msg=network)
    for network, target in ours.state()["targets"].items():
        np.testing.assert_allclose(theirs.state()["targets"][network], target, atol=1e-5, err_msg=network)


def test_run_of_either_learner_resumes_with_the_other() -> None:
    """Weights and state have the same layout, with memory too."""
    for name, memory in itertools.product(KINDS, ({}, MEMORY)):
        ours, theirs = pair(name, **memory)
        ours.update([filled(ours, 9)], 0.1)
        state = ours.state()
        state["replay"] = {**state["replay"], **{key: Saved(state["replay"][key]) for key in ("rows", "finals")}}
        theirs.load_weights(ours.weights())
        theirs.load(state)
        assert theirs.update([filled(ours, 10)], 0.2).gradient_steps == 3


# -- which learner ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [algorithm_class(name) for name in KINDS])
def test_algorithm_that_overrides_any_part_of_a_loss_has_no_kernel(kind: Any) -> None:
    for loss in kind.losses:
        kernel = kernel_of(kind, loss)
        assert kernel is not None
        (methods,) = [methods for methods, one in KERNELS.items() if one is kernel]
        for method in methods:
            own = type("Own", (kind,), {method.rpartition(".")[2]: lambda self, *given: 0})
            assert kernel_of(own, loss) is None, method
        assert kernel_of(type("Renamed", (kind,), {}), loss) is kernel


def test_every_kernel_belongs_to_a_loss() -> None:
    kinds = [algorithm_class(name) for name in KINDS]
    stock = {kernel_of(kind, loss) for kind in kinds for loss in kind.losses}
    assert stock == {kernel for kernel in KERNELS.values() if kernel.__module__.endswith("replay")}


class PessimisticSAC(SAC):
    """SAC with a critic loss that also keeps values low."""

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        values = self.critic(batch.observations, batch.actions)[..., 0]
        return super().critic_loss(batch).plus(pessimism=values.mean())


class OwnActorTD3(TD3):
    def actor_loss(self, batch: ReplayBatch) -> Loss:
        loss = super().actor_loss(batch)
        return Loss(loss.total, actor_loss=loss.total)


def own(kind: Any, name: str, **settings: Any) -> Any:
    config = kind.Config(
        **{"learning_starts": 0, "gradient_steps": 1, "steps_per_env": 5, "hidden_sizes": (8, 8), **settings}
    )
    return kind(config, OBSERVATIONS, KINDS[name], SLOTS, 3)


def test_own_loss_is_learned_by_torch_and_logged_and_numpy_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "multiverse"):
        algorithm = own(PessimisticSAC, "sac")
    assert "PessimisticSAC learns in torch, because no numpy kernel exists for its critic_loss" in caplog.text
    assert isinstance(algorithm.critic, TorchNetwork) and isinstance(algorithm.actor, TorchNetwork)
    assert isinstance(own(SAC, "sac").critic, NumpyNetwork)
    assert isinstance(own(SAC, "sac", learner="torch").critic, TorchNetwork)
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"learner='numpy' .* the loss of PessimisticSAC \(critic_loss\)"
    ):
        own(PessimisticSAC, "sac", learner="numpy")
    with pytest.raises(mv.errors.InvalidRequest, match="layers of more than 512 units, which needs torch"):
        own(SAC, "sac", learner="numpy", hidden_sizes=(600,))


def test_metric_of_an_actor_that_learns_half_as_often_is_averaged_over_its_steps() -> None:
    algorithm = own(OwnActorTD3, "td3", gradient_steps=4)
    report = algorithm.update([markov_rollout(algorithm, 0)], 0.0)
    assert list(report.metrics) == ["critic_loss", "mean_value", "actor_loss"]
    assert np.isfinite(report.metrics["actor_loss"])


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["markov", "gru"])
def test_terms_of_an_own_critic_loss_are_learned_and_logged(memory: dict[str, Any]) -> None:
    stock = own(SAC, "sac", learner="torch", gradient_steps=5, **memory)
    changed = own(PessimisticSAC, "sac", gradient_steps=5, **memory)
    rollout = filled(stock, 0)
    reports = [algorithm.update([rollout], 0.0) for algorithm in (stock, changed)]
    assert "pessimism" in reports[1].metrics and "pessimism" not in reports[0].metrics
    assert np.abs(changed.weights()["critic"] - stock.weights()["critic"]).max() > 1e-5


def test_actor_loss_without_the_entropy_that_the_temperature_needs_is_refused() -> None:
    class Silent(SAC):
        def actor_loss(self, batch: ReplayBatch) -> Loss:
            return Loss(super().actor_loss(batch).total)

    algorithm = own(Silent, "sac")
    with pytest.raises(mv.errors.InvalidRequest, match=r"actor_loss\(\) of Silent returned no metric `entropy`"):
        algorithm.update([markov_rollout(algorithm, 0)], 0.0)
    fixed = own(Silent, "sac", entropy_coef=0.1)
    assert fixed.update([markov_rollout(fixed, 0)], 0.0).gradient_steps == 1


@pytest.mark.parametrize(("kind", "name"), [(SAC, "sac"), (TD3, "td3")])
def test_loss_that_does_not_reach_its_network_is_refused(kind: Any, name: str) -> None:
    class Elsewhere(kind):
        def actor_loss(self, batch: ReplayBatch) -> Loss:
            return Loss(self.critic(batch.observations, batch.actions).mean(), entropy=0.0)

    algorithm = own(Elsewhere, name, gradient_steps=2)
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"actor_loss\(\) returned a total that depends on no parameter of the"
    ):
        algorithm.update([markov_rollout(algorithm, 0)], 0.0)


def test_non_scalar_loss_names_the_method_that_returned_it() -> None:
    class Odd(SAC):
        def critic_loss(self, batch: ReplayBatch) -> Loss:
            return Loss(self.critic(batch.observations, batch.actions))

    algorithm = own(Odd, "sac")
    with pytest.raises(mv.errors.InvalidRequest, match=r"critic_loss\(\) returned a total of shape"):
        algorithm.update([markov_rollout(algorithm, 0)], 0.0)


# -- whole runs ---------------------------------------------------------------------------------------------------
SETTINGS: dict[str, Any] = {
    "seed": 5, "num_envs": 2, "executor": "serial", "preset": False, "evaluate_every": 0, "evaluation_episodes": 1,
    "env_steps": 200, "learning_starts": 20, "batch_size": 16, "hidden_sizes": (8, 8), "updates_per_step": 0.25,
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "algorithm", "memory", "metric"),
    [
        ("Pendulum-v1", PessimisticSAC, {}, "pessimism"),
        ("Pendulum-v1", PessimisticSAC, {"memory": "gru", "memory_size": 6, "sequences": 4}, "pessimism"),
        ("CartPole-v1", ConservativeDQN, {"exploration_fraction": 0.0}, "conservative"),
    ],
    ids=["sac", "sac-gru", "dqn"],
)
def test_run_with_own_loss_resumes_exactly_and_loads(
    env: str, algorithm: Any, memory: dict[str, Any], metric: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, **memory}
    whole = mv.train(env, algorithm=algorithm, run_dir=tmp_path / "whole", **settings)
    half = {**settings, "env_steps": 100}
    again = mv.resume(mv.train(env, algorithm=algorithm, run_dir=tmp_path / "parts", **half), env_steps=200)
    assert digest(again) == digest(whole)
    assert any(metric in row for row in lines_of(whole.path, "metrics.jsonl"))
    observation = np.zeros(3 if env == "Pendulum-v1" else 4, np.float32)
    assert (mv.load(again).act(observation) == mv.load(whole).act(observation)).all()


def test_config_of_sac_has_the_learner_as_a_setting_that_cannot_change() -> None:
    assert SACConfig().learner == "auto"
    with pytest.raises(mv.errors.InvalidRequest, match="learner cannot change"):
        own(SAC, "sac").change(learner="torch")
