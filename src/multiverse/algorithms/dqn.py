"""Deep Q-network (Mnih et al. 2015).

Sections, as in every algorithm: config; the loss and the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from multiverse.algorithms.off_policy import OffPolicy
from multiverse.algorithms.settings import OffPolicyConfig
from multiverse.core.errors import InvalidRequest
from multiverse.core.settings import setting
from multiverse.learning.batches import ReplayBatch
from multiverse.learning.distributions import mask_logits
from multiverse.learning.loss import Loss
from multiverse.policies.heads import EpsilonGreedyHead, Head


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Settings of DQN."""

    steps_per_env: int = setting(4, "Number of steps of each environment between two updates.")
    batch_size: int = setting(32, "Number of steps drawn from replay for one gradient step.")
    updates_per_step: float = setting(0.25, "Number of gradient steps per env step (the update-to-data ratio).")
    learning_rate: float = setting(1e-4, "Step size of Adam.")
    tau: float = setting(1.0, "Coefficient of the update of the target network, θ' ← θ' + τ (θ - θ'); 1: a copy.")
    hidden_sizes: tuple[int, ...] = setting((64, 64), "Number of units of each hidden layer.")
    target_update_interval: int = setting(
        10_000, "Number of env steps between two updates of the target network.", at_least=1
    )
    exploration_fraction: float = setting(0.1, "Share of the budget over which ε decreases.", at_least=0, at_most=1)
    exploration_initial_eps: float = setting(1.0, "Initial ε, the share of random actions.", at_least=0, at_most=1)
    exploration_final_eps: float = setting(0.05, "Final ε.", at_least=0, at_most=1)
    max_grad_norm: float = setting(10.0, "Gradients are clipped to this global norm.", above=0)

    def scheduled(self, progress: float) -> dict[str, float]:
        first, last, fraction = self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction
        done = min(1.0, progress / fraction) if fraction else 1.0
        return {"exploration_eps": float(first + done * (last - first))}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.markov_actor:
            raise InvalidRequest("markov_actor=True: dqn has no actor, only action values")


# -- the loss and the update -------------------------------------------------------------------------------------
class DQN(OffPolicy):
    """A network of action values, with the largest target value of the next observation as target."""

    Config = DQNConfig
    actions = (spaces.Discrete,)
    losses = ("loss",)
    acts = "values"

    def make_networks(self) -> None:
        self.values = self.new_network("values")
        self.target_values = self.targets["values"]
        self._updated_at = 0  # env steps

    @property
    def epsilon(self) -> float:
        """The present share of random actions."""
        return 1.0 if self._warming_up else float(self.config.scheduled(self.progress)["exploration_eps"])

    def outputs(self) -> Mapping[str, int]:
        """A value for every action."""
        return {"values": int(self.action_space.n)}  # type: ignore[attr-defined]

    def head(self) -> Head:
        """ε-greedy."""
        space = self.action_space
        return EpsilonGreedyHead(int(space.n), int(space.start), self.epsilon)  # type: ignore[attr-defined]

    def before_learning(self) -> None:
        every = self.config.target_update_interval
        if self._env_steps // every > self._updated_at // every:
            self.targets["values"].soft_update(self.config.tau)
        self._updated_at = self._env_steps

    def loss(self, batch: ReplayBatch) -> Loss:
        """Huber loss of Q(s, a) - (r + γ max Q̄(s', a')), averaged over the batch."""
        import torch

        with torch.no_grad():
            values = mask_logits(torch, self.target_values(batch.next_observations), batch.next_masks)
            targets = batch.rewards + batch.discounts * values.amax(-1)
        values = self.values(batch.observations).gather(-1, batch.actions.long()[:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(values, targets)
        return Loss(loss, loss=loss, mean_value=values.mean())

    def gradient_step(self, batch: ReplayBatch) -> tuple[Any, dict[str, Any]]:
        metrics = self.gradient("loss", self.values, batch)
        return self.take_step(self.values, max_grad_norm=self.config.max_grad_norm), metrics

    def load(self, state: Any) -> None:
        super().load(state)
        self._updated_at = self._env_steps
