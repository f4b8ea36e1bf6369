"""An actor and a critic that learn from rollouts of their present policy: what PPO and A2C have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from multiverse.contracts.errors import InvalidRequest, TrainingDiverged
from multiverse.contracts.policy import Leaves, Policy
from multiverse.contracts.views import Array
from multiverse.experience.features import Features
from multiverse.experience.numpy_policies import OBSERVATION_CLIP, NumpyPolicy, action_of, head_for
from multiverse.experience.rollout import Rollout
from multiverse.learning.loss import Batch, Shape
from multiverse.learning.normalizers import RewardNormalizer, RunningMeanStd
from multiverse.learning.numpy_learner import NumpyLearner
from multiverse.learning.returns import generalized_advantages, next_values

BAD_IN_A_ROW = 5
LARGEST_IN_NUMPY = 256
"""Units of a hidden layer: beyond that, matrix products are all that counts, and torch's are as fast."""


class OnPolicy:
    """Separate networks for policy and value, normalisers, and everything of a run but the update itself."""

    fixed: frozenset[str] = frozenset(
        {"steps_per_env", "hidden_sizes", "activation", "normalize_observations", "normalize_rewards", "squash"}
    )
    """Settings that make up the networks and cannot change while they learn."""
    optimizer: Literal["adam", "rmsprop"] = "adam"

    def __init__(
        self,
        config: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        slots: int,
        seed: int,
        device: str = "cpu",
    ) -> None:
        self.config, self.steps_per_env, self._action_space = config, config.steps_per_env, action_space
        self.features, self.action = Features(observation_space, action_space), action_of(action_space)
        shape = Shape(config.hidden_sizes, config.activation, config.log_std_init, config.ortho_init, config.squash)
        self._networks = networks_for(
            self.features, action_space, shape, self.optimizer, config.learning_rate, seed, device
        )
        self._rng = np.random.default_rng((seed, 1))
        self._moments = RunningMeanStd(self.features.size) if config.normalize_observations else None
        self._reward_scale = RewardNormalizer(slots, config.gamma) if config.normalize_rewards else None
        self._updates, self._bad_in_a_row = 0, 0
        self._changed: dict[str, Any] = {}  # settings, since the beginning
        self._policy: Policy | None = None
        _ = self.policy()  # what cannot act is refused before anything is collected

    # -- acting --------------------------------------------------------------------------------------------------
    def policy(self) -> Policy:
        """In numpy where a few dense layers are all there is; else the network itself, in torch."""
        if self._policy is None:
            self._policy = self._new_policy()
        return self._policy

    def _new_policy(self) -> Policy:
        networks, frozen = self._networks, self._frozen_moments()
        head = head_for(self._action_space, networks.std(), self.config.squash)
        if self.features.images:
            from multiverse.algorithms.torch_policy import TorchPolicy

            return TorchPolicy(self.features, networks.actor, head, self._updates, networks.device, frozen)
        return NumpyPolicy(self.features, networks.layers(), self.config.activation, head, self._updates, frozen)

    def _frozen_moments(self) -> tuple[Array, Array] | None:
        return None if self._moments is None else self._moments.shift_and_scale()

    # -- learning ------------------------------------------------------------------------------------------------
    def _refuse_older(self, rollout: Rollout) -> None:
        if rollout.policy_version != self._updates:  # guard: rollouts-of-an-older-policy-are-refused
            raise InvalidRequest(
                f"the rollout was collected by version {rollout.policy_version} of the policy, and this is version "
                f"{self._updates}: {type(self).__name__} learns from what its present policy did"
            )

    def _batch(self, rollout: Rollout) -> Batch:
        """The whole rollout, one row per step, with values, advantages and returns."""
        networks, config = self._networks, self.config
        vector, images = self._inputs(_flat(rollout.observations))
        values = networks.values(vector, images).reshape(rollout.rewards.shape)
        steps, slots, finals = rollout.ends()
        following = next_values(
            values,
            networks.values(*self._inputs(rollout.last)),
            rollout.terminated,
            rollout.truncated,
            (steps, slots, networks.values(*self._inputs(finals))),
        )
        ended, rewards = rollout.terminated | rollout.truncated, rollout.rewards
        if self._reward_scale is not None:
            rewards = self._reward_scale.scaled(rewards, ended, rollout.valid)
        advantages, returns = generalized_advantages(
            rewards, values, following, ended, rollout.valid, config.gamma, config.gae_lambda
        )
        masks = rollout.action_masks
        return networks.batch(  # type: ignore[no-any-return]
            vector,
            images,
            rollout.actions.reshape(-1, *rollout.actions.shape[2:]),
            None if masks is None else masks.reshape(-1, masks.shape[-1]),
            values=values.reshape(-1),
            advantages=advantages.reshape(-1),
            returns=returns.reshape(-1),
        )

    def _inputs(self, observations: Leaves) -> tuple[Array, list[Array]]:
        """(features, normalised as they were when the policy acted; images)."""
        vector = self.features.vector(observations)
        if self._moments is not None:
            shift, scale = self._moments.shift_and_scale()
            vector = np.clip((vector - shift) * scale, -OBSERVATION_CLIP, OBSERVATION_CLIP)
        return vector, [observations[leaf.path] for leaf in self.features.images]

    def _take_step(self) -> bool:
        """Down the gradient; False, and counted, if that is not finite."""
        took = bool(np.isfinite(self._networks.optimizer.step(self.config.max_grad_norm)))
        self._bad_in_a_row = 0 if took else self._bad_in_a_row + 1
        if self._bad_in_a_row >= BAD_IN_A_ROW:  # guard: five-in-a-row-is-enough
            raise TrainingDiverged(
                f"{BAD_IN_A_ROW} gradients in a row were not finite; the weights are those of the last good step. A "
                "smaller learning_rate, normalize_rewards or a look at the env's rewards may help"
            )
        return took

    def _updated(self, rollout: Rollout) -> None:
        """One more update is done; what normalises observations changes between rollouts only."""
        self._updates, self._policy = self._updates + 1, None
        if self._moments is not None:
            self._moments.update(self.features.vector(_flat(rollout.observations))[rollout.valid.reshape(-1)])

    def change(self, **settings: Any) -> None:
        """Other settings from here on: `learning_rate`, `entropy_coef`, whatever does not change the networks."""
        if wrong := sorted(self.fixed.intersection(settings)):
            raise InvalidRequest(f"{', '.join(wrong)} cannot change while it learns")
        self.config = replace(self.config, **settings)
        self._changed.update(settings)

    # -- saving --------------------------------------------------------------------------------------------------
    def weights(self) -> dict[str, Any]:
        moments = {} if self._moments is None else {"observations": self._moments.state()}
        return {"parameters": self._networks.weights(), **moments}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        self._networks.load_weights(weights["parameters"])
        if self._moments is not None and "observations" in weights:
            self._moments.load(weights["observations"])
        self._policy = None

    def state(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            "optimizer": self._networks.state(),
            "rng": self._rng.bit_generator.state,
            "updates": self._updates,
            "changed": dict(self._changed),
        }
        if self._reward_scale is not None:
            saved["rewards"] = self._reward_scale.state()
        return saved

    def load(self, state: Mapping[str, Any]) -> None:
        self._networks.load(state["optimizer"])
        self._rng.bit_generator.state = state["rng"]
        self._updates, self._policy = int(state["updates"]), None
        self.change(**state["changed"])
        if self._reward_scale is not None:
            self._reward_scale.load(state["rewards"])


def networks_for(
    features: Features,
    action_space: spaces.Space[Any],
    shape: Shape,
    optimizer: Literal["adam", "rmsprop"],
    learning_rate: float,
    seed: int,
    device: str,
) -> Any:
    """In numpy where a few small dense layers on the CPU are all there is, which is faster; else in torch."""
    images = [tuple(leaf.space.shape or ()) for leaf in features.images]
    if not images and device == "cpu" and max(shape.hidden_sizes, default=0) <= LARGEST_IN_NUMPY:
        return NumpyLearner(features.size, action_space, shape, optimizer, learning_rate, seed)
    from multiverse.learning.actor_critic import ActorCritic

    return ActorCritic(features.size, images, action_space, shape, optimizer, learning_rate, seed, device)


def _flat(leaves: Leaves) -> Leaves:
    """[T, S, …] → [T × S, …]"""
    return {path: rows.reshape(-1, *rows.shape[2:]) for path, rows in leaves.items()}


def explained_variance(values: Array, returns: Array) -> float:
    """1: values are the returns; 0: no better than their mean."""
    with np.errstate(invalid="ignore"):
        variance = float(returns.var())
    return 1.0 - float((returns - values).var()) / variance if variance > 0 else float("nan")


def check_settings(config: Any, at_least_1: Sequence[str], shares: Sequence[str], above_0: Sequence[str],
                   at_least_0: Sequence[str]) -> None:  # fmt: skip
    """Refuse settings that make no sense, with their value."""
    rules: tuple[tuple[Sequence[str], Callable[[float], bool], str], ...] = (
        (at_least_1, lambda value: value >= 1, "at least 1"),
        (shares, lambda value: 0.0 <= value <= 1.0, "between 0 and 1"),
        (above_0, lambda value: value > 0.0, "above 0"),
        (at_least_0, lambda value: value >= 0.0, "0 or more"),
    )
    for names, holds, words in rules:
        for name in names:
            value = getattr(config, name)
            if value is not None and not holds(value):
                raise InvalidRequest(f"{name}={value}: {words}")
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{name}={value}: a finite number")
    if any(size < 1 for size in config.hidden_sizes):
        raise InvalidRequest(f"hidden_sizes={config.hidden_sizes}: each at least 1")
