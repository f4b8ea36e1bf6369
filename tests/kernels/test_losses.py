"""Kernels give the gradient that torch gives for the algorithm's own loss, for every setting that the loss reads."""

from __future__ import annotations

import functools
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import multiverse as mv
from multiverse.algorithms import DQN, SAC
from multiverse.algorithms.a2c import A2C, A2CConfig
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.core.policy import Seen
from multiverse.kernels import KERNELS, kernel_of
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.loss import Loss, Outputs
from multiverse.learning.numpy_learner import NumpyLearner
from multiverse.rollouts.rollout import Rollout, rollout_for
from multiverse.training.config.resolve import config_for
from tests.algorithms.rollouts import random_rollout
from tests.kernels.losses import algorithm_with, kernel, torch_loss

ROWS = 64
KINDS: dict[str, tuple[Any, Any]] = {"ppo": (PPO, PPOConfig()), "a2c": (A2C, A2CConfig())}
VARIATIONS: dict[str, list[Any]] = {
    "clip_range": [0.05, 0.4],
    "clip_range_schedule": ["linear"],
    "entropy_coef": [0.0, 0.3],
    "normalize_advantages": [False, True],
    "value_clip_range": [None, 0.1, 1.0],
    "value_coef": [0.0, 0.7],
}
"""Values of every setting that a loss reads."""


class Recorded:
    """A config that records which of its settings are read."""

    def __init__(self, config: Any) -> None:
        self.config, self.read = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        if name == "scheduled":  # record reads
            return functools.partial(type(self.config).scheduled, self)
        self.read.add(name)
        return getattr(self.config, name)


def outputs_and_batch(seed: int = 0) -> tuple[Outputs, RolloutBatch]:
    """Outputs far enough from the acting policy for rows on both sides of every limit."""
    draw = np.random.default_rng(seed)
    log_probs, values = draw.normal(-1, 0.3, ROWS), draw.normal(size=ROWS)
    out = Outputs(log_probs + draw.normal(0, 0.3, ROWS), draw.uniform(0.1, 1, ROWS), values + draw.normal(0, 0.5, ROWS))
    columns = {"log_probs": log_probs, "values": values}
    columns |= {name: draw.normal(size=ROWS) for name in ("advantages", "returns")}
    single = {name: column.astype(np.float32) for name, column in columns.items()}
    out = Outputs(*(np.asarray(one, np.float32) for one in (out.log_prob, out.entropy, out.values)))
    return out, RolloutBatch(None, [], np.zeros(ROWS), None, **single)


def gradients(kind: Any, config: Any, seed: int) -> tuple[list[Any], list[Any], Any, Any]:
    out, batch = outputs_and_batch(seed)
    found = kernel(kind, config)(out, batch, True)
    tensors = [torch.from_numpy(one.copy()).requires_grad_() for one in (out.log_prob, out.entropy, out.values)]
    columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
    loss = torch_loss(kind, config)(Outputs(*tensors), RolloutBatch(None, [], torch.zeros(ROWS), None, **columns))
    expected = torch.autograd.grad(loss.total, tensors, allow_unused=True)
    ours = [found.log_prob, np.full(ROWS, found.entropy, np.float32), found.value]
    return ours, list(expected), found.metrics, loss.metrics


def cases() -> list[Any]:
    made = []
    for name, (_, config) in KINDS.items():
        own = {field.name for field in fields(config)}
        for setting in sorted(own & VARIATIONS.keys()):
            made += [
                pytest.param(name, {setting: value}, id=f"{name}-{setting}={value}") for value in VARIATIONS[setting]
            ]
    return made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "settings"), cases())
def test_kernel_gradient_equals_autograd_of_the_loss(name: str, settings: dict[str, Any], seed: int) -> None:
    kind, config = KINDS[name]
    ours, expected, metrics, their_metrics = gradients(kind, replace(config, **settings), seed)
    largest = max(float(one.abs().max()) for one in expected if one is not None)
    for mine, theirs in zip(ours, expected):
        difference = mine - (np.zeros(ROWS, np.float32) if theirs is None else theirs.numpy())
        assert np.abs(difference).max() <= 1e-6 * largest
    assert metrics.keys() == their_metrics.keys()
    for metric, value in their_metrics.items():
        assert float(metrics[metric]) == pytest.approx(float(value.detach()), rel=1e-5, abs=1e-6), metric


@pytest.mark.parametrize("name", KINDS)
def test_every_setting_that_the_loss_reads_is_varied(name: str) -> None:
    kind, config = KINDS[name]
    recorded = Recorded(replace(config, value_clip_range=0.1) if name == "ppo" else config)
    out, batch = outputs_and_batch()
    tensors = [torch.from_numpy(one) for one in (out.log_prob, out.entropy, out.values)]
    columns = {column: torch.from_numpy(values) for column, values in batch.columns.items()}
    algorithm_with(kind, recorded).loss(Outputs(*tensors), RolloutBatch(None, [], torch.zeros(ROWS), None, **columns))
    of_steps = {"learning_rate", "learning_rate_schedule"}  # read with the clip range, and used by the optimizer alone
    assert recorded.read and recorded.read - of_steps <= VARIATIONS.keys()


def test_every_kernel_belongs_to_a_loss_that_exists() -> None:
    stock = {kernel for kernel in KERNELS.values() if kernel.__module__ == "multiverse.kernels.losses"}
    assert stock == {kernel_of(kind) for kind, _ in KINDS.values()}


@pytest.mark.parametrize("method", ["loss", "policy_loss", "value_loss"])
def test_algorithm_that_overrides_any_part_of_the_loss_has_no_kernel(method: str) -> None:
    assert kernel_of(type("Own", (PPO,), {method: lambda self, *given: 0})) is None


def test_loss_wrapped_by_a_decorator_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(PPO.loss)
    def doubled(self: Any, out: Outputs, batch: RolloutBatch) -> Loss:
        return Loss(2 * stock(self, out, batch).total)

    stock = PPO.loss
    monkeypatch.setattr(PPO, "loss", doubled)
    assert kernel_of(PPO) is None


@pytest.mark.parametrize(
    ("stock", "method", "message"),
    [
        (A2C, "policy_loss", "Own.policy_loss() overrides nothing: A2C calls loss, value_loss"),
        (SAC, "loss", "Own.loss() overrides nothing: SAC calls critic_loss, actor_loss, temperature_loss"),
        (DQN, "value_loss", "Own.value_loss() overrides nothing: DQN calls loss"),
        (PPO, "value_loss", ""),
        (PPO, "prediction_loss", ""),
    ],
)
def test_method_named_like_a_loss_that_is_never_called_is_reported(
    stock: Any, method: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = stock.Config(hidden_sizes=(8,))
    actions = spaces.Box(-1, 1, (1,), np.float32) if stock is SAC else ACTIONS
    type("Own", (stock,), {method: lambda self, *given: 0})(config, SPACE, actions, 4, 1)
    assert [message for message in caplog.messages if "overrides nothing" in message] == ([message] if message else [])


# -- which learner ------------------------------------------------------------------------------------------------
SPACE, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)
SMALL = {"steps_per_env": 16, "hidden_sizes": (8, 8)}


class OwnLoss(PPO):
    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        return super().loss(out, batch).plus(confidence=0.1 * (out.log_prob**2).mean())


class Renamed(PPO):
    """A subclass that does not change the loss."""


def made(kind: Any, **settings: Any) -> Any:
    return kind(PPOConfig(**{**SMALL, "epochs": 2, "batch_size": 16, **settings}), SPACE, ACTIONS, 4, 1)


def test_stock_loss_of_small_network_is_learned_by_the_kernel_and_own_loss_by_torch() -> None:
    assert isinstance(made(PPO)._networks, NumpyLearner) and isinstance(made(Renamed)._networks, NumpyLearner)
    assert not isinstance(made(OwnLoss)._networks, NumpyLearner)
    assert not isinstance(made(PPO, learner="torch")._networks, NumpyLearner)
    assert kernel_of(OwnLoss) is None
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"learner='numpy' cannot .* the loss of OwnLoss .*, .* leave learner out"
    ):
        made(OwnLoss, learner="numpy")
    with pytest.raises(mv.errors.InvalidRequest, match="layers of more than 256 units"):
        made(PPO, learner="numpy", hidden_sizes=(300,))


def filled(algorithm: Any, seed: int) -> Rollout:
    rollout, rng = rollout_for(SPACE, 16, 4, algorithm.action), np.random.default_rng(seed)
    rollout.observations[()][...] = rng.normal(size=(16, 4, 3))
    rollout.rewards[...] = rng.normal(size=(16, 4))
    rollout.last[()][...] = rng.normal(size=(4, 3))
    policy = algorithm.policy()
    for t, noise in enumerate(policy.noise(rng, 16, 4)):
        seen = {path: rows[t] for path, rows in rollout.observations.items()}
        rollout.actions[t] = policy.act(Seen(seen, np.zeros(4, bool)), noise, {})[0]
    rollout.policy_version = policy.version
    return rollout


VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "": (ACTIONS, {}),
    "normalized": (ACTIONS, {"normalize_observations": True, "normalize_rewards": True}),
    "box": (BOX, {"log_std_init": -0.5}),
    "uniform": (BOX, {"ortho_init": False, "activation": "relu"}),
    "lstm": (ACTIONS, {"memory": "lstm", "normalize_observations": True}),
    "gru": (BOX, {"memory": "gru", "see_previous": True}),
}


@pytest.mark.parametrize(("actions", "settings"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("kind", [PPO, A2C])
def test_ten_updates_of_both_learners_from_one_seed_lead_to_the_same_weights(
    kind: Any, actions: Any, settings: dict[str, Any]
) -> None:
    settings = {**SMALL, "entropy_coef": 0.01, "memory_size": 6, "chunk_length": 5, **settings}
    settings |= {"epochs": 2, "batch_size": 16} if kind is PPO else {}
    ours, theirs = (kind(kind.Config(**settings, learner=one), SPACE, actions, 4, 1) for one in ("numpy", "torch"))
    first = ours.weights()["parameters"]
    for seed in range(10):
        rollout = random_rollout(ours, 4, seed)
        for learner in (ours, theirs):
            learner.update([rollout], seed / 10)
    after = ours.weights()["parameters"]
    np.testing.assert_allclose(theirs.weights()["parameters"], after, atol=1e-5)
    assert np.abs(after - first).max() > 1e-3


def test_terms_of_an_own_loss_are_learned_and_logged() -> None:
    algorithm = made(OwnLoss)
    report = algorithm.update([filled(algorithm, 0)], 0.0)
    assert report.metrics["confidence"] > 0 and "policy_loss" in report.metrics
    stock = made(PPO, learner="torch")
    stock.update([filled(stock, 0)], 0.0)
    assert np.abs(algorithm.weights()["parameters"] - stock.weights()["parameters"]).max() > 1e-4


@pytest.mark.parametrize(
    ("total", "message"),
    [
        (lambda out: out.log_prob, r"a total of shape \(16,\): expected a scalar tensor"),
        (lambda out: 1.0, r"a total of type float: expected a scalar tensor"),
        (lambda out: torch.ones(()), r"a total that depends on no parameter"),
    ],
    ids=["rows", "number", "constant"],
)
def test_non_scalar_loss_is_refused(total: Any, message: str) -> None:
    class Odd(PPO):
        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            return Loss(total(out))

    algorithm = made(Odd)
    with pytest.raises(mv.errors.InvalidRequest, match=rf"loss\(\) returned {message}"):
        algorithm.update([filled(algorithm, 0)], 0.0)


# -- slips in own losses ------------------------------------------------------------------------------------------
def test_loss_accepts_numbers_as_metrics_and_a_bare_tensor() -> None:
    class Numbers(PPO):
        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            return super().loss(out, batch).plus(nothing=0.0)

    class Bare(PPO):
        def loss(self, out: Outputs, batch: RolloutBatch) -> Any:
            return (out.values**2).mean()

    algorithm = made(Numbers)
    assert algorithm.update([filled(algorithm, 0)], 0.0).metrics["nothing"] == 0.0
    algorithm = made(Bare)
    assert algorithm.update([filled(algorithm, 0)], 0.0).gradient_steps > 0


def test_metric_that_is_not_a_scalar_is_refused() -> None:
    class Rows(PPO):
        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            found = super().loss(out, batch)
            return Loss(found.total, ratio=out.log_prob)

    algorithm = made(Rows)
    with pytest.raises(mv.errors.InvalidRequest, match=r"loss\(\) returned the metric 'ratio' with shape \(16,\)"):
        algorithm.update([filled(algorithm, 0)], 0.0)


@pytest.mark.parametrize("first", [True, False])
def test_metric_that_only_some_gradient_steps_have_is_averaged_over_those_steps(first: bool) -> None:
    class Now(PPO):
        steps = 0

        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            self.steps += 1
            found = super().loss(out, batch)
            return found.plus(odd=0.0 * out.entropy.mean() + self.steps) if self.steps % 2 == first else found

    algorithm = made(Now, epochs=1)
    assert algorithm.update([filled(algorithm, 0)], 0.0).metrics["odd"] == (2.0 if first else 3.0)


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_value_loss_can_be_overridden_alone(kind: Any) -> None:
    class Huber(kind):
        def value_loss(self, values: Any, batch: RolloutBatch) -> Any:
            return torch.nn.functional.smooth_l1_loss(values, batch.returns)

    config = kind.Config(steps_per_env=16, hidden_sizes=(8, 8), learner="auto")
    reports = []
    for one in (kind, Huber):
        algorithm = one(config, SPACE, ACTIONS, 4, 1)
        reports.append(algorithm.update([filled(algorithm, 0)], 0.0).metrics["value_loss"])
    assert reports[1] != pytest.approx(reports[0], rel=0.05)


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_loss_can_read_the_progress_of_the_budget(kind: Any) -> None:
    class Scheduled(kind):
        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            return super().loss(out, batch).plus(spent=0.0 * out.entropy.mean() + self.progress)

    algorithm = Scheduled(kind.Config(steps_per_env=16, hidden_sizes=(8, 8)), SPACE, ACTIONS, 4, 1)
    assert algorithm.update([filled(algorithm, 0)], 0.25).metrics["spent"] == 0.25


def test_random_numbers_of_an_own_loss_depend_only_on_the_seed_and_the_update() -> None:
    class Random(PPO):
        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            return super().loss(out, batch).plus(noise=(torch.randn(len(batch)) * out.log_prob).mean())

    def weights(state: int) -> Any:
        algorithm = made(Random)
        torch.manual_seed(state)
        algorithm.update([filled(algorithm, 0)], 0.0)
        assert torch.initial_seed() == state
        return algorithm.weights()["parameters"]

    before = torch.get_rng_state()
    try:
        assert np.array_equal(weights(1), weights(2))
    finally:
        torch.set_rng_state(before)


def test_term_with_the_name_of_a_metric_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="has a metric 'entropy' already"):
        Loss(torch.zeros(()), entropy=torch.zeros(())).plus(entropy=torch.zeros(()))


def test_module_that_no_optimizer_trains_is_refused_unless_it_is_frozen() -> None:
    class Predicts(PPO):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.head = torch.nn.Linear(1, 1)

        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            return super().loss(out, batch).plus(prediction=(self.head(out.values[:, None]) ** 2).mean())

    algorithm = made(Predicts)
    with pytest.raises(mv.errors.InvalidRequest, match=r"Predicts\.head has parameters that are not trained"):
        algorithm.update([filled(algorithm, 0)], 0.0)
    algorithm = made(Predicts)
    algorithm.head.requires_grad_(False)
    assert algorithm.update([filled(algorithm, 0)], 0.0).metrics["prediction"] > 0


def test_preset_of_the_stock_algorithm_applies_to_one_that_derives_from_it() -> None:
    own, stock = (config_for("CartPole-v1", kind, {}).settings for kind in (OwnLoss, "ppo"))
    assert own == stock and own.epochs == 20
    assert config_for("CartPole-v1", OwnLoss, {}, preset=False).settings.epochs == 4
