"""PPO: supported spaces, refusals, learning, and an exact restore from its state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import multiverse as mv
from multiverse.algorithms import on_policy
from multiverse.algorithms.algorithm import network_inputs
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.core.policy import Seen
from multiverse.learning import batches
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.loss import Loss
from multiverse.learning.network_spec import NetworkSpec
from multiverse.learning.optimizers import Adam
from multiverse.learning.threads import torch_threads
from multiverse.networks import actor_critic
from multiverse.policies.features import num_logits
from multiverse.rollouts.rollout import Rollout, rollout_for
from multiverse.training.saved_runs import checkpoint_of
from tests.kernels.losses import torch_loss
from tests.training.small_runs import SMALL as SMALL_RUN
from tests.training.small_runs import digest

STEPS, SLOTS = 8, 4
SMALL = PPOConfig(steps_per_env=STEPS, epochs=2, batch_size=8, hidden_sizes=(16,))

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": VECTOR,
    "doubles": spaces.Box(-1, 1, (2, 2), np.float64),
    "number": spaces.Discrete(5, start=2),
    "several numbers": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(4),
    "image": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "dict": spaces.Dict({"where": VECTOR, "seen": spaces.Box(0, 255, (3, 36, 36), np.uint8), "n": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((VECTOR, spaces.Discrete(2))),
}
IMAGE = OBSERVATIONS["image"]
ACTIONS: dict[str, spaces.Space[Any]] = {
    "one of": spaces.Discrete(3),
    "one of, from 1": spaces.Discrete(3, start=1),
    "several": spaces.MultiDiscrete([2, 3]),
    "a table of them, from 1": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 1], [0, 2]]),
    "numbers": spaces.Box(-2, 2, (2,), np.float32),
    "a matrix": spaces.Box(-1, 1, (2, 1), np.float32),
    "yes or no": spaces.MultiBinary(3),
    "a table of yes or no": spaces.MultiBinary([2, 2]),
}


def filled(algorithm: PPO, observation_space: spaces.Space[Any], masks: int = 0, seed: int = 0) -> Rollout:
    """A rollout with random observations and the actions of the algorithm's own policy."""
    rng, rollout = np.random.default_rng(seed), rollout_for(observation_space, STEPS, SLOTS, algorithm.action, masks)
    for leaf in algorithm.features.all_leaves:
        leaf.space.seed(seed)
        for t in range(STEPS):
            rollout.observations[leaf.path][t] = [leaf.space.sample() for _ in range(SLOTS)]
        rollout.last[leaf.path][...] = [leaf.space.sample() for _ in range(SLOTS)]
    policy = algorithm.policy()
    noise = policy.noise(rng, STEPS, SLOTS)
    for t in range(STEPS):
        seen = {path: rows[t] for path, rows in rollout.observations.items()}
        allowed = algorithm.features.open_actions(seen)
        if allowed is not None and rollout.action_masks is not None:
            rollout.action_masks[t] = allowed
        rollout.actions[t] = policy.act(Seen(seen, np.zeros(SLOTS, bool), allowed), noise[t], {})[0]
    rollout.rewards[...] = rng.normal(size=rollout.rewards.shape)
    rollout.policy_version = policy.version
    return rollout


def made(observations: spaces.Space[Any], actions: spaces.Space[Any], config: PPOConfig = SMALL, seed: int = 1) -> PPO:
    return PPO(config, observations, actions, SLOTS, seed)


def made_in_torch(
    observations: spaces.Space[Any], actions: spaces.Space[Any], config: PPOConfig = SMALL, seed: int = 1
) -> PPO:
    return made(observations, actions, replace(config, learner="torch"), seed)


in_both = pytest.mark.parametrize("make", [made, made_in_torch], ids=["numpy", "torch"])


@pytest.mark.parametrize(
    ("sight", "what"), [*((sight, "one of") for sight in OBSERVATIONS), *(("vector", what) for what in ACTIONS)]
)
def test_ppo_learns_in_every_space(sight: str, what: str) -> None:
    observations, actions = OBSERVATIONS[sight], ACTIONS[what]
    algorithm = made(observations, actions)
    before = algorithm.weights()["parameters"]
    rollout = filled(algorithm, observations)
    report = algorithm.update([rollout], 0.0)
    after = algorithm.weights()["parameters"]
    assert report.gradient_steps == 8 and report.skipped == 0 and (before != after).any()
    assert all(np.isfinite(value) for value in report.metrics.values())
    for_env = algorithm.policy().for_env(rollout.actions[0])
    assert all(actions.contains(np.asarray(one, actions.dtype)) for one in for_env)


@pytest.mark.parametrize("what", ACTIONS)
def test_first_ratio_is_1_for_every_action_space(what: str) -> None:
    """The acting policy in numpy and the learner in torch compute the same function: the first ratio is 1."""
    algorithm = made(VECTOR, ACTIONS[what], replace(SMALL, epochs=1, batch_size=STEPS * SLOTS))
    report = algorithm.update([filled(algorithm, VECTOR)], 0.0)
    assert report.metrics["kl"] == pytest.approx(0.0, abs=1e-6) and report.metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize(
    ("what", "sight"), [*((what, "vector") for what in [*ACTIONS, "masked"]), ("numbers", "image"), ("masked", "image")]
)
def test_gradient_of_the_loss_equals_torch(what: str, sight: str) -> None:
    """After some learning, so that ratios and values are on both sides of their limits."""
    seen = OBSERVATIONS[sight]
    masked = spaces.Dict({"where": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    observations, actions = (masked, ACTIONS["one of"]) if what == "masked" else (seen, ACTIONS[what])
    config = replace(SMALL, value_clip_range=0.05, entropy_coef=0.03, learning_rate=0.01)
    algorithm = made_in_torch(observations, actions, config)
    rollout = filled(algorithm, observations, masks=3 if what == "masked" else 0)
    if what == "masked":
        assert rollout.action_masks is not None
        rollout.action_masks[...] = True
        rollout.action_masks[np.arange(STEPS)[:, None], np.arange(SLOTS), (rollout.actions + 1) % 3] = False
    networks, batch = algorithm._networks, algorithm._batch(rollout)
    batch.columns["log_probs"] = networks.log_probs(batch)
    algorithm.update([rollout], 0.0)
    metrics = networks.gradient(batch, torch_loss(PPO, replace(config, clip_range=0.02)))
    found = networks.optimizer.gradient.clone()
    networks.optimizer.gradient.zero_()
    loss, clipped, value_gains_nothing = reference_loss(networks, batch, config, clip=0.02)
    loss.backward()
    torch.testing.assert_close(found, networks.optimizer.gradient, rtol=1e-4, atol=1e-6)
    total = metrics["policy_loss"] + 0.5 * metrics["value_loss"] - 0.03 * metrics["entropy"]
    assert total == pytest.approx(float(loss.detach()), abs=1e-5)
    assert metrics["clip_fraction"] == clipped > 0.0 and found.abs().max() > 0.01
    assert 0 < value_gains_nothing < STEPS * SLOTS


def reference_loss(networks: Any, batch: Any, config: PPOConfig, clip: float) -> tuple[Any, float, int]:
    """PPO's loss as in the paper, with CleanRL's clipping of the value, computed by autograd; also the share of
    clipped ratios and the number of rows with a clipped value."""
    output, values = networks.actor(batch.vector, batch.images), networks.critic(batch.vector, batch.images).squeeze(-1)
    log_probs, entropies = networks.distribution.log_prob_and_entropy(torch, output, batch.actions, batch.masks)
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    ratios = (log_probs - batch["log_probs"]).exp()
    policy_loss = -torch.min(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()
    limit = config.value_clip_range
    near = batch["values"] + (values - batch["values"]).clamp(-limit, limit)
    plain, clipped = (values - batch["returns"]) ** 2, (near - batch["returns"]) ** 2
    loss = policy_loss + config.value_coef * torch.max(plain, clipped).mean() - config.entropy_coef * entropies.mean()
    beyond = ((values - batch["values"]).abs() > limit) & (clipped > plain)
    return loss, float(((ratios - 1).abs() > clip).float().mean()), int(beyond.sum())


def test_numpy_and_torch_choose_equal_actions() -> None:
    config = replace(SMALL, normalize_observations=True, activation="relu")
    algorithm = made_in_torch(VECTOR, spaces.Discrete(3), config)
    algorithm.update([filled(algorithm, VECTOR)], 0.0)
    policy, rows = algorithm.policy(), np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    vector, _ = network_inputs(algorithm.features, {(): rows}, algorithm._batches.frozen_moments())
    with torch.no_grad():
        logits = algorithm._networks.actor(torch.from_numpy(vector))
    chosen, _ = policy.act(Seen({(): rows}, np.zeros(50, bool)), None, {})
    assert chosen.tolist() == logits.argmax(dim=1).tolist()


def test_closed_actions_are_never_taken_or_learned() -> None:
    space = spaces.Dict({"where": VECTOR, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    actions = spaces.Discrete(3)
    algorithm = made(space, actions)
    assert algorithm.features.size == 3  # the mask is not an observation
    rollout = filled(algorithm, space, num_logits(actions))
    rollout.observations[("action_mask",)][...] = [0, 1, 1]
    policy = algorithm.policy()
    for t in range(STEPS):
        seen = {path: rows[t] for path, rows in rollout.observations.items()}
        allowed = algorithm.features.open_actions(seen)
        noise = policy.noise(np.random.default_rng(t), 1, SLOTS)[0]
        rollout.actions[t], _ = policy.act(Seen(seen, np.zeros(SLOTS, bool), allowed), noise, {})
        assert rollout.action_masks is not None and allowed is not None
        rollout.action_masks[t] = allowed
    assert (rollout.actions > 0).all()
    assert np.isfinite(algorithm.update([rollout], 0.0).metrics["policy_loss"])


def test_lost_rows_change_nothing() -> None:
    """Two rollouts that differ only in such a row lead to the same weights."""
    found = []
    for spoiled in (0.0, 1e6):
        algorithm = made(VECTOR, spaces.Discrete(3))
        rollout = filled(algorithm, VECTOR)
        rollout.valid[3, 1] = False
        rollout.truncated[3, 1] = True
        rollout.finals[()][3, 1] = 0.0
        rollout.rewards[3, 1] = spoiled
        algorithm.update([rollout], 0.0)
        found.append(algorithm.weights()["parameters"])
    assert (found[0] == found[1]).all()


@in_both
def test_algorithm_restored_from_its_state_is_bit_equal(make: Any) -> None:
    config = replace(SMALL, normalize_observations=True, normalize_rewards=True, learning_rate_schedule="linear")
    one = make(VECTOR, ACTIONS["numbers"], config)
    one.update([filled(one, VECTOR, seed=1)], 0.0)
    one.change(entropy_coef=0.1)
    other = make(VECTOR, ACTIONS["numbers"], config, seed=9)
    other.load_weights(one.weights())
    other.load(one.state())
    for algorithm in (one, other):
        algorithm.update([filled(algorithm, VECTOR, seed=2)], 0.3)
    assert repr(one.state()) == repr(other.state()) and other.config.entropy_coef == 0.1
    assert (one.weights()["parameters"] == other.weights()["parameters"]).all()


def test_saved_state_does_not_change_with_later_updates() -> None:
    algorithm = made(VECTOR, spaces.Discrete(3))
    algorithm.update([filled(algorithm, VECTOR)], 0.0)
    state, weights = algorithm.state(), algorithm.weights()
    kept = {name: value.copy() for name, value in state["optimizer"].items() if isinstance(value, np.ndarray)}
    learned = weights["parameters"].copy()
    algorithm.update([filled(algorithm, VECTOR)], 0.0)
    assert all((state["optimizer"][name] == value).all() for name, value in kept.items())
    assert (weights["parameters"] == learned).all()


def test_learning_rate_schedule_and_target_kl_take_effect() -> None:
    still = made(VECTOR, spaces.Discrete(3), replace(SMALL, learning_rate_schedule="linear"))
    half = still.update([filled(still, VECTOR)], 0.5)
    assert half.metrics["learning_rate"] == SMALL.learning_rate / 2
    before = still.weights()["parameters"]
    still.update([filled(still, VECTOR)], 1.0)  # all of the budget is spent: no step is left
    assert (still.weights()["parameters"] == before).all()
    wary = made(VECTOR, spaces.Discrete(3), replace(SMALL, target_kl=1e-9, learning_rate=0.1, epochs=50))
    assert wary.update([filled(wary, VECTOR)], 0.0).gradient_steps < 50 * 4


@pytest.mark.fault("B5")
def test_non_finite_gradient_is_skipped_and_counted() -> None:
    algorithm = made(VECTOR, spaces.Discrete(3), replace(SMALL, epochs=1, normalize_advantages=False))
    rollout = filled(algorithm, VECTOR)
    rollout.rewards[2, 0] = np.inf
    before = algorithm.weights()["parameters"]
    report = algorithm.update([rollout], 0.0)
    assert report.skipped >= 1 and report.gradient_steps + report.skipped == 4
    assert np.isfinite(algorithm.weights()["parameters"]).all()
    assert report.gradient_steps == 0 or (algorithm.weights()["parameters"] != before).any()


@pytest.mark.fault("D6")
@in_both
def test_weights_of_another_size_are_refused(make: Any) -> None:
    wide = make(VECTOR, spaces.Discrete(3), replace(SMALL, hidden_sizes=(32,)))
    with pytest.raises(mv.errors.InvalidRequest, match="networks have other sizes"):
        make(VECTOR, spaces.Discrete(3)).load_weights(wide.weights())


@pytest.mark.fault("B5")
@in_both
def test_five_skipped_gradients_in_a_row_end_the_run_with_the_last_good_weights(make: Any) -> None:
    algorithm = make(VECTOR, spaces.Discrete(3), replace(SMALL, epochs=3))
    before = algorithm.weights()["parameters"]
    rollout = filled(algorithm, VECTOR)
    rollout.rewards[...] = np.nan
    with pytest.raises(mv.errors.TrainingDiverged, match="5 gradients in a row"):
        algorithm.update([rollout], 0.0)
    assert (algorithm.weights()["parameters"] == before).all()


@pytest.mark.fault("F3")
def test_rollout_of_an_older_policy_is_refused() -> None:
    algorithm = made(VECTOR, spaces.Discrete(3))
    rollout = filled(algorithm, VECTOR)
    algorithm.update([rollout], 0.0)
    with pytest.raises(mv.errors.InvalidRequest, match="version 0 of the policy, and this is version 1"):
        algorithm.update([rollout], 0.0)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (spaces.Text(5), spaces.Discrete(2), "algorithms learn from numbers"),
        (VECTOR, spaces.Dict({"a": spaces.Discrete(2)}), "MultiBinary or a Box, and these are Dict"),
        (VECTOR, spaces.Box(0, 5, (2,), np.int64), "a Box of floats"),
    ],
)
def test_unsupported_spaces_are_refused(observations: Any, actions: Any, message: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        made(observations, actions)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"gamma": 1.5},
        {"learning_rate": 0.0},
        {"batch_size": -1},
        {"target_kl": -1.0},
        {"hidden_sizes": (0,)},
        {"value_coef": -1.0},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=next(iter(wrong))):
        replace(SMALL, **wrong)


def test_settings_of_the_networks_cannot_change() -> None:
    algorithm = made(VECTOR, spaces.Discrete(3))
    with pytest.raises(mv.errors.InvalidRequest, match="hidden_sizes"):
        algorithm.change(hidden_sizes=(4,))


def test_algorithms_built_in_threads_have_equal_initial_weights() -> None:
    """torch's generator is shared by all threads of the process."""
    alone = made_in_torch(VECTOR, spaces.Discrete(3)).weights()["parameters"]
    with mock.patch.object(on_policy, "LARGEST_IN_NUMPY", -1), ThreadPoolExecutor(4) as pool:  # once, for all threads
        algorithms = list(pool.map(lambda _: made(VECTOR, spaces.Discrete(3)), range(8)))
    assert all((algorithm.weights()["parameters"] == alone).all() for algorithm in algorithms)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_initial_weights_do_not_depend_on_torch_threads(threads: int) -> None:
    wide = replace(SMALL, hidden_sizes=(256, 256))
    alone = made_in_torch(VECTOR, spaces.Discrete(3), wide).weights()["parameters"]
    with torch_threads(threads):
        again = made_in_torch(VECTOR, spaces.Discrete(3), wide).weights()["parameters"]
    assert (again == alone).all()


def test_squashed_actions_stay_in_bounds_with_their_own_likelihood() -> None:
    algorithm = made_in_torch(VECTOR, ACTIONS["numbers"], replace(SMALL, squash=True, log_std_init=1.0))
    rollout = filled(algorithm, VECTOR)
    for_env = algorithm.policy().for_env(rollout.actions[0])
    assert (np.abs(for_env) < 2).all() and (np.abs(rollout.actions) > 2).any()
    networks, batch = algorithm._networks, algorithm._batch(rollout)
    with torch.no_grad():
        mean = networks.actor(batch.vector)
    plain = torch.distributions.Normal(mean, networks.distribution.log_std.exp())
    squashed = torch.distributions.TransformedDistribution(plain, torch.distributions.TanhTransform())
    expected = squashed.log_prob(batch.actions.double().tanh().clamp(-1 + 1e-12, 1 - 1e-12)).sum(-1)
    torch.testing.assert_close(networks.log_probs(batch).double(), expected.double(), rtol=1e-3, atol=1e-3)
    assert algorithm.update([rollout], 0.0).skipped == 0


def test_rollout_of_images_is_processed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rows in (3, 10_000):
        monkeypatch.setattr(actor_critic, "PIECE_ROWS", rows)
        algorithm = made(OBSERVATIONS["image"], ACTIONS["one of"])
        batch = algorithm._batch(filled(algorithm, OBSERVATIONS["image"]))
        found.append((batch["values"], algorithm._networks.log_probs(batch)))
    for few, all_at_once in zip(*found):
        torch.testing.assert_close(few, all_at_once)


@pytest.mark.parametrize("share", [False, True])
def test_minibatch_does_not_wait_for_a_gpu(share: bool) -> None:
    """On the meta device reading a value is an error; on a GPU an early read would wait for the GPU."""
    algorithm = made(OBSERVATIONS["image"], ACTIONS["one of"], replace(SMALL, share_features=share))
    shape = NetworkSpec(0, [(36, 40, 3)], ACTIONS["one of"], (16,), share_features=share)
    learner, here = actor_critic.ActorCritic(shape, Adam, 0, "meta"), algorithm._batch(filled(algorithm, IMAGE))
    columns = {name: learner.put(column) for name, column in here.columns.items()}
    batch = RolloutBatch(
        learner.put(here.vector), [learner.put(here.images[0])], learner.put(here.actions), None, **columns
    )
    batch.columns["log_probs"] = learner.log_probs(batch)
    shuffled = batch.take(learner.put(np.arange(len(batch))))
    config = replace(SMALL, value_clip_range=0.2)
    for first in range(0, len(batch), 8):
        minibatch = shuffled.take(slice(first, first + 8))
        metrics = learner.gradient(minibatch, torch_loss(PPO, config))
        assert all(value.is_meta for value in metrics.values()) and learner.optimizer.step(1e-3, 0.5).is_meta


def test_shared_features_get_gradients_of_both_networks() -> None:
    apart, shared = (made(IMAGE, ACTIONS["one of"], replace(SMALL, share_features=share)) for share in (False, True))
    networks = shared._networks
    convolutions = sum(one.numel() for one in networks.actor.extract.parameters())
    assert len(apart.weights()["parameters"]) - len(shared.weights()["parameters"]) == convolutions > 0
    batch = shared._batch(filled(shared, IMAGE))
    batch.columns["log_probs"] = networks.log_probs(batch)
    weight = networks.actor.extract.inner[0].layers[0].weight
    pulls = []
    for by_policy, grad_value in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):

        def loss(out: Any, rows: Any, by: tuple[float, float] = (by_policy, grad_value)) -> Loss:
            return Loss((by[0] * out.log_prob + by[1] * out.values).sum())

        networks.gradient(batch, loss)
        pulls.append(weight.grad.clone())
    assert pulls[0].abs().max() > 0 and pulls[1].abs().max() > 0
    torch.testing.assert_close(pulls[0] + pulls[1], pulls[2])
    values = networks.values(batch.vector, batch.images)
    with torch.no_grad():
        weight += 1.0
    assert (networks.values(batch.vector, batch.images) != values).all()


def test_run_with_shared_features_resumes_exactly_and_is_loaded(tmp_path: Path) -> None:
    settings = {**SMALL_RUN, "steps_per_env": 10, "env_steps": 80, "share_features": True}
    whole = mv.train(Pictures, run_dir=tmp_path / "whole", **settings)
    half = mv.train(Pictures, run_dir=tmp_path / "half", **{**settings, "env_steps": 40})
    mv.resume(half, env=Pictures, env_steps=80)
    assert digest(half) == digest(whole)
    policy, seen = mv.load(whole), np.full((36, 36, 3), 200, np.uint8)
    parameters = checkpoint_of(whole).state["session"]["algorithm"]["weights"]["parameters"]
    config = PPOConfig(steps_per_env=10, share_features=True)
    again = PPO(config, Pictures.observation_space, Pictures.action_space, 4, seed=0)
    again.load_weights({"parameters": parameters})
    acted = again.policy().act(Seen({(): seen[None]}, np.zeros(1, bool)), None, {})[0]
    assert policy.act(seen) == acted[0]
    with pytest.raises(mv.errors.InvalidRequest, match="networks have other sizes"):
        mv.train(Pictures, run_dir=tmp_path / "other", **{**settings, "share_features": False}, init_from=whole)


class Pictures(gym.Env[Any, Any]):
    """Env that shows an image that gets brighter with every step."""

    observation_space, action_space = spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = int(self.np_random.integers(100))
        return np.full((36, 36, 3), self.shown, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.shown += 10
        return np.full((36, 36, 3), self.shown, np.uint8), float(action == 1), self.shown > 200, False, {}


@in_both
def test_minibatches_do_not_depend_on_the_number_of_shuffled_rows(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rows in (1, 17, 10_000):
        monkeypatch.setattr(batches, "SHUFFLED_ROWS", rows)
        algorithm = make(VECTOR, ACTIONS["one of"], replace(SMALL, batch_size=7))
        assert algorithm.update([filled(algorithm, VECTOR)], 0.0).gradient_steps == 2 * 5  # 32 rows: four 7s and a 4
        found.append(algorithm.weights()["parameters"])
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


def test_policy_is_one_object_until_the_next_update() -> None:
    algorithm = made(VECTOR, spaces.Discrete(3))
    first = algorithm.policy()
    assert algorithm.policy() is first and first.portable() is first
    algorithm.update([filled(algorithm, VECTOR)], 0.0)
    assert algorithm.policy() is not first and algorithm.policy().version == 1
