"""Proximal policy optimisation (Schulman et al. 2017).

Sections, as in every algorithm: config, networks, acting, learning, saving.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from multiverse.algorithms.algorithm import UpdateReport
from multiverse.algorithms.torch_policy import TorchPolicy
from multiverse.contracts.errors import InvalidRequest, TrainingDiverged
from multiverse.contracts.policy import ActingPolicy, Leaves
from multiverse.contracts.views import Array
from multiverse.experience.features import Features, choices_of
from multiverse.experience.numpy_policies import DiscreteHead, GaussianHead, Head, MultiDiscreteHead, NumpyPolicy
from multiverse.experience.rollout import Rollout
from multiverse.learning.distributions import Categorical, DiagonalGaussian, Distribution, MultiCategorical
from multiverse.learning.flat_parameters import FlatAdam
from multiverse.learning.networks import Activation, DensePass, Network, torch_threads
from multiverse.learning.normalizers import RewardScale, RunningMoments
from multiverse.learning.returns import generalized_advantages, next_values

Schedule = Literal["constant", "linear"]
OBSERVATION_CLIP = 10.0
BAD_IN_A_ROW = 5
_ONE_AT_A_TIME = (
    threading.Lock()
)  # torch's generator belongs to the process: algorithms built in threads would share it


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO."""

    steps_per_env: int = 128
    """Steps of every env in a rollout, from which one update learns."""
    epochs: int = 4
    """Passes over a rollout in one update."""
    batch_size: int = 256
    """Rows of a minibatch: one gradient step."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """`linear`: down to 0 at the end of the budget."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation: 0 is the one-step TD error, 1 the whole return."""
    clip_range: float = 0.2
    """Of the probability ratio: beyond 1 ± this, an update gains nothing."""
    clip_range_schedule: Schedule = "constant"
    """`linear`: down to 0 at the end of the budget."""
    value_clip_range: float | None = None
    """Clip range of the value function; None: not clipped."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, which keeps a policy exploring."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm."""
    normalize_advantages: bool = True
    """Advantages of a minibatch with mean 0 and standard deviation 1."""
    target_kl: float | None = None
    """Stop the update once the approximate KL divergence exceeds 1.5 times this."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "tanh"
    """Between the layers."""
    log_std_init: float = 0.0
    """Of Box actions: the logarithm of the standard deviation at first."""
    normalize_observations: bool = False
    """Learn from observations with mean 0 and standard deviation 1, as seen so far."""
    normalize_rewards: bool = False
    """Learn from rewards on the scale of the returns seen so far."""

    def __post_init__(self) -> None:
        for name in ("steps_per_env", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}: at least 1")
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: between 0 and 1")
        for name in ("learning_rate", "clip_range", "max_grad_norm", "target_kl", "value_clip_range"):
            if getattr(self, name) is not None and not getattr(self, name) > 0.0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: above 0")
        for name in ("value_coef", "entropy_coef"):
            if not getattr(self, name) >= 0.0:
                raise InvalidRequest(f"{name}={getattr(self, name)}: 0 or more")
        if any(size < 1 for size in self.hidden_sizes):
            raise InvalidRequest(f"hidden_sizes={self.hidden_sizes}: each at least 1")


class PPO:
    """One policy and one value function, separate networks, learned from rollouts of the policy's own steps."""

    def __init__(
        self,
        config: PPOConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        slots: int,
        seed: int,
        device: str = "cpu",
    ) -> None:
        self.config, self.steps_per_env = config, config.steps_per_env
        self.features, self._action_space = Features(observation_space, action_space), action_space
        self._device, self._slots = torch.device(device), slots
        self._rng = np.random.default_rng((seed, 1))
        self._build_networks(seed)
        self._moments = RunningMoments(self.features.size) if config.normalize_observations else None
        self._reward_scale = RewardScale(slots, config.gamma) if config.normalize_rewards else None
        self._updates, self._bad_in_a_row = 0, 0
        self._changed: dict[str, Any] = {}  # settings, since the beginning

    # -- networks ------------------------------------------------------------------------------------------------
    def _build_networks(self, seed: int) -> None:
        config, features = self.config, self.features
        self._distribution = _distribution(self._action_space, config.log_std_init)
        shapes = [tuple(leaf.space.shape or ()) for leaf in features.images]
        sizes = (features.size, shapes, config.hidden_sizes)
        # One thread: with several the last bits of the first weights would depend on how many.
        with _ONE_AT_A_TIME, torch_threads(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._actor = Network(*sizes, self._distribution.outputs, config.activation, last_gain=0.01)
            self._critic = Network(*sizes, 1, config.activation, last_gain=1.0)
        self._actor.to(self._device)
        self._critic.to(self._device)
        for parameter in self._distribution.parameters():
            parameter.data = parameter.data.to(self._device)
        parameters = [*self._actor.parameters(), *self._distribution.parameters(), *self._critic.parameters()]
        self._adam = FlatAdam(parameters, config.learning_rate)
        self._dense = None if features.images else (DensePass(self._actor), DensePass(self._critic))

    @property
    def action(self) -> tuple[tuple[int, ...], Any]:
        if isinstance(self._action_space, spaces.Discrete):
            return (), np.int64
        kind = np.float32 if isinstance(self._action_space, spaces.Box) else np.int64
        return (int(np.prod(self._action_space.shape or ())),), kind

    # -- acting --------------------------------------------------------------------------------------------------
    def policy(self) -> ActingPolicy:
        """In numpy where a few dense layers are all there is; else the network itself, in torch."""
        head, frozen = self._head(), self._moments.shift_and_scale() if self._moments is not None else None
        if self.features.images:
            return TorchPolicy(self.features, self._actor, head, self._updates, self._device, frozen, OBSERVATION_CLIP)
        layers = [(_array(layer.weight).T.copy(), _array(layer.bias).copy()) for layer in self._actor.linear_layers()]
        return NumpyPolicy(self.features, layers, self.config.activation, head, self._updates, frozen, OBSERVATION_CLIP)

    def _head(self) -> Head:
        space = self._action_space
        if isinstance(space, spaces.Discrete):
            return DiscreteHead(int(space.n), int(space.start))
        if isinstance(space, spaces.MultiDiscrete):
            return MultiDiscreteHead(tuple(space.nvec.reshape(-1).tolist()), space.start.reshape(-1), space.nvec.shape)
        assert isinstance(space, spaces.Box) and isinstance(self._distribution, DiagonalGaussian)
        std = np.exp(_array(self._distribution.log_std))
        return GaussianHead(std, space.low.reshape(-1), space.high.reshape(-1), space.shape)

    # -- learning ------------------------------------------------------------------------------------------------
    def update(self, rollout: Rollout, progress: float) -> UpdateReport:
        """Several passes over the rollout in small batches, each moving the policy only so far."""
        if rollout.policy_version != self._updates:  # guard: rollouts-of-an-older-policy-are-refused
            raise InvalidRequest(
                f"the rollout was collected by version {rollout.policy_version} of the policy, and this is version "
                f"{self._updates}: PPO learns from what its present policy did"
            )
        config, rows = self.config, np.flatnonzero(rollout.valid.reshape(-1))
        batch = self._batch(rollout)
        clip = config.clip_range * _left(config.clip_range_schedule, progress)
        self._adam.learning_rate = config.learning_rate * _left(config.learning_rate_schedule, progress)
        losses: list[Tensor] = []
        steps = skipped = 0
        for epoch in range(config.epochs):
            self._rng.shuffle(rows)
            looks = epoch == config.epochs - 1 or config.target_kl is not None  # the last pass tells what became of it
            for first in range(0, len(rows), config.batch_size):
                chosen = batch.take(torch.from_numpy(rows[first : first + config.batch_size]))
                parts = self._gradient(chosen, clip, looks)
                if parts is not None and config.target_kl is not None and float(parts[3]) > 1.5 * config.target_kl:
                    break
                took = bool(np.isfinite(self._adam.step(config.max_grad_norm)))
                self._count_bad(took)
                steps, skipped = steps + took, skipped + (not took)
                if took and parts is not None:
                    losses.append(parts)
            else:
                continue
            break
        self._updates += 1
        self._learn_moments(rollout)
        return UpdateReport(self._metrics(losses, batch, torch.from_numpy(rows)), steps, skipped)

    def _batch(self, rollout: Rollout) -> _Batch:
        """The whole rollout as tensors, one row per step, with advantages and returns."""
        flat = {path: rows.reshape(-1, *rows.shape[2:]) for path, rows in rollout.observations.items()}
        seen = self._inputs(flat)
        values = self._values(seen).reshape(rollout.rewards.shape)
        finals = rollout.finals
        following = next_values(
            values,
            self._values(self._inputs(rollout.last)),
            rollout.terminated,
            rollout.truncated,
            (finals.steps, finals.slots, self._values(self._inputs(rollout.final_leaves(self.features.leaves)))),
        )
        ended = rollout.terminated | rollout.truncated
        rewards = rollout.rewards
        if self._reward_scale is not None:
            rewards = self._reward_scale.scaled(rewards, ended, rollout.valid)
        advantages, returns = generalized_advantages(
            rewards, values, following, ended, rollout.valid, self.config.gamma, self.config.gae_lambda
        )
        actions = rollout.actions.reshape(-1, *rollout.actions.shape[2:])
        masks = rollout.action_masks
        batch = _Batch(
            *seen,
            actions=self._tensor(actions),
            masks=None if masks is None else self._tensor(masks.reshape(-1, masks.shape[-1])),
            values=self._tensor(values.reshape(-1)),
            advantages=self._tensor(advantages.reshape(-1)),
            returns=self._tensor(returns.reshape(-1)),
        )
        with torch.no_grad():
            output = self._actor(batch.vector, batch.images)
            batch.log_probs, _ = self._distribution.log_prob_and_entropy(output, batch.actions, batch.masks)
        return batch

    def _gradient(self, batch: _Batch, clip: float, looks: bool) -> Tensor | None:
        """Of the loss with respect to everything; and, for who looks, what the loss consists of."""
        if self._dense is not None:
            with torch.no_grad():
                return self._gradient_by_hand(batch, clip, looks, *self._dense)
        loss, parts = self._loss(batch, clip)
        self._adam.backward(loss)
        return parts

    def _loss(self, batch: _Batch, clip: float) -> tuple[Tensor, Tensor]:
        """The clipped objective, the value function's error and the entropy: what PPO is about."""
        config = self.config
        output = self._actor(batch.vector, batch.images)
        log_probs, entropies = self._distribution.log_prob_and_entropy(output, batch.actions, batch.masks)
        values = self._near(self._critic(batch.vector, batch.images).squeeze(-1), batch)
        advantages, log_ratios = self._advantages(batch), log_probs - batch.log_probs
        ratios = log_ratios.exp()
        policy_loss = -torch.min(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()
        value_loss = torch.nn.functional.mse_loss(values, batch.returns)
        entropy = entropies.mean()
        loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
        return loss, _parts(policy_loss, value_loss, entropy, log_ratios.detach(), clip)

    def _gradient_by_hand(
        self, batch: _Batch, clip: float, looks: bool, actor: DensePass, critic: DensePass
    ) -> Tensor | None:
        """The gradient of that same loss, worked out on paper; tests hold it against torch's."""
        config, rows = self.config, len(batch.advantages)
        output, values = actor.forward(batch.vector), critic.forward(batch.vector).squeeze(-1)
        log_probs, entropies = self._distribution.log_prob_and_entropy(output, batch.actions, batch.masks)
        advantages, log_ratios = self._advantages(batch), log_probs - batch.log_probs
        ratios = log_ratios.exp()
        # A row counts until its ratio has gone as far as it may in the direction its advantage pulls.
        counts = torch.where(advantages > 0, ratios <= 1 + clip, ratios >= 1 - clip)
        by_log_prob = ratios * advantages * counts / -rows
        actor.backward(
            self._distribution.gradient(output, batch.actions, batch.masks, by_log_prob, -config.entropy_coef / rows)
        )
        errors = self._near(values, batch) - batch.returns
        by_value = errors * (2 * config.value_coef / rows)
        if config.value_clip_range is not None:
            by_value = by_value * ((values - batch.values).abs() <= config.value_clip_range)
        critic.backward(by_value.unsqueeze(-1))
        if not looks:
            return None
        policy_loss = -torch.min(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()
        return _parts(policy_loss, (errors * errors).mean(), entropies.mean(), log_ratios, clip)

    def _advantages(self, batch: _Batch) -> Tensor:
        advantages = batch.advantages
        if self.config.normalize_advantages and len(advantages) > 1:
            std, mean = torch.std_mean(advantages)
            advantages = (advantages - mean) / (std + 1e-8)
        return advantages

    def _near(self, values: Tensor, batch: _Batch) -> Tensor:
        """Values, no further from what they were than they may go."""
        limit = self.config.value_clip_range
        return values if limit is None else batch.values + (values - batch.values).clamp(-limit, limit)

    def _values(self, seen: tuple[Tensor, list[Tensor]]) -> Array:
        with torch.no_grad():
            return _array(self._critic(*seen).squeeze(-1))

    def _inputs(self, observations: Leaves) -> tuple[Tensor, list[Tensor]]:
        """(features, normalised as they were when the policy acted; images)."""
        vector = self.features.vector(observations)
        if self._moments is not None:
            shift, scale = self._moments.shift_and_scale()
            vector = np.clip((vector - shift) * scale, -OBSERVATION_CLIP, OBSERVATION_CLIP)
        return self._tensor(vector), [self._tensor(observations[leaf.path]) for leaf in self.features.images]

    def _learn_moments(self, rollout: Rollout) -> None:
        """What normalises observations changes between rollouts only."""
        if self._moments is not None:
            flat = {path: rows.reshape(-1, *rows.shape[2:]) for path, rows in rollout.observations.items()}
            self._moments.update(self.features.vector(flat)[rollout.valid.reshape(-1)])

    def _count_bad(self, took: bool) -> None:
        self._bad_in_a_row = 0 if took else self._bad_in_a_row + 1
        if self._bad_in_a_row >= BAD_IN_A_ROW:  # guard: five-in-a-row-is-enough
            raise TrainingDiverged(
                f"{BAD_IN_A_ROW} gradients in a row were not finite; the weights are those of the last good step. A "
                "smaller learning_rate, normalize_rewards or a look at the env's rewards may help"
            )

    def _metrics(self, losses: Sequence[Tensor], batch: _Batch, rows: Tensor) -> dict[str, float]:
        if not losses:
            return {}
        names = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
        means = dict(zip(names, torch.stack(list(losses)).mean(dim=0).tolist()))
        variance = float(batch.returns[rows].var())
        errors = batch.returns[rows] - batch.values[rows]
        explained = 1.0 - float(errors.var()) / variance if variance > 0 else float("nan")
        return {**means, "explained_variance": explained}

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def change(self, **settings: Any) -> None:
        """Other settings from here on: `learning_rate`, `entropy_coef`, whatever does not change the networks."""
        fixed = {"steps_per_env", "hidden_sizes", "activation", "normalize_observations", "normalize_rewards"}
        if wrong := sorted(fixed.intersection(settings)):
            raise InvalidRequest(f"{', '.join(wrong)} cannot change while it learns")
        self.config = replace(self.config, **settings)
        self._changed.update(settings)

    # -- saving --------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            "optimizer": self._adam.state(),
            "rng": self._rng.bit_generator.state,
            "updates": self._updates,
            "changed": dict(self._changed),
        }
        if self._moments is not None:
            saved["observations"] = self._moments.state()
        if self._reward_scale is not None:
            saved["rewards"] = self._reward_scale.state()
        return saved

    def load_weights(self, state: Mapping[str, Any]) -> None:
        self._adam.load({"parameters": state["optimizer"]["parameters"]})
        if self._moments is not None and "observations" in state:
            self._moments.load(state["observations"])

    def load(self, state: Mapping[str, Any]) -> None:
        self._adam.load(state["optimizer"])
        self._rng.bit_generator.state = state["rng"]
        self._updates = int(state["updates"])
        self.change(**state["changed"])
        if self._moments is not None:
            self._moments.load(state["observations"])
        if self._reward_scale is not None:
            self._reward_scale.load(state["rewards"])


class _Batch:
    """Rows to learn from."""

    def __init__(
        self,
        vector: Tensor,
        images: list[Tensor],
        actions: Tensor,
        masks: Tensor | None,
        values: Tensor,
        advantages: Tensor,
        returns: Tensor,
        log_probs: Tensor | None = None,
    ) -> None:
        self.vector, self.images, self.actions, self.masks = vector, images, actions, masks
        self.values, self.advantages, self.returns = values, advantages, returns
        self.log_probs: Tensor = advantages if log_probs is None else log_probs

    def take(self, rows: Tensor) -> _Batch:
        return _Batch(
            self.vector[rows],
            [image[rows] for image in self.images],
            self.actions[rows],
            None if self.masks is None else self.masks[rows],
            self.values[rows],
            self.advantages[rows],
            self.returns[rows],
            self.log_probs[rows],
        )


def _distribution(space: spaces.Space[Any], log_std: float) -> Distribution:
    if isinstance(space, spaces.Discrete):
        return Categorical(choices_of(space))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space.nvec.reshape(-1).tolist())
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return DiagonalGaussian(int(np.prod(space.shape)), log_std)
    raise InvalidRequest(f"PPO acts in Discrete, MultiDiscrete and Box spaces of floats, not in {space}")


def _parts(policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, log_ratios: Tensor, clip: float) -> Tensor:
    """[policy loss, value loss, entropy, how far the policy has moved (KL), share of rows beyond the clip range]."""
    with torch.no_grad():
        moved = log_ratios.expm1()
        clipped = (moved.abs() > clip).float().mean()
        return torch.stack([policy_loss, value_loss, entropy, (moved - log_ratios).mean(), clipped])


def _left(schedule: Schedule, progress: float) -> float:
    """Of a scheduled value, how much of it is used now."""
    return 1.0 - progress if schedule == "linear" else 1.0


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().numpy())
