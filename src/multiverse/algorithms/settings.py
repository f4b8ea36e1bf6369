"""Settings that algorithms have in common: `OnPolicyConfig` and `OffPolicyConfig`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from multiverse.algorithms.capabilities import algorithms_that
from multiverse.core.errors import InvalidRequest

LagCorrection = Literal["vtrace", "ratio", "none"]


class Settings:
    """Base of the `Config` of an algorithm."""

    def scheduled(self, progress: float) -> dict[str, float]:
        """Return the scheduled values, by name, when this share of the budget (0 to 1) is spent."""
        return {}

    def _check(self, condition: str, holds: Callable[[float], bool], *names: str) -> None:
        """Refuse settings for which the condition does not hold; None is not checked."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise InvalidRequest(f"{name}={value}: {condition}")


@dataclass(frozen=True)
class OnPolicyConfig(Settings):
    """Settings that PPO and A2C have in common."""

    steps_per_env: int = 128
    """Number of steps of each environment in one rollout, from which one update learns."""
    whole_episodes: bool = False
    """A rollout has one episode of each environment, of at most `steps_per_env` steps, played by one version of the
    policy; environments that finish early wait for the rest. No: episodes continue in the next rollout."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation: 0 is the one-step TD error, 1 the whole return."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, which keeps a policy exploring."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this global norm."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Number of units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation between the layers."""
    learner: Literal["auto", "numpy", "torch"] = "auto"
    """Backend that differentiates the loss: torch, or numpy kernels, which are two to five times as fast for stock
    losses of small networks on the CPU. `auto`: kernels where possible."""
    filters: int = 0
    """Number of filters of a convolution before the hidden layers, for observations that are a board, a grid or a small
    image: one Box of three axes. 0: no convolution."""
    kernel_size: int = 3
    """Height and width of these filters."""
    memory: Literal["lstm", "gru"] | None = None
    """Recurrent cell before the hidden layers of the policy and the value network. A central critic, which sees more
    than the policy, has none."""
    memory_size: int = 64
    """Number of units of the recurrent cell."""
    chunk_length: int = 32
    """Length of truncated backpropagation through time, in steps. Rollouts are cut into chunks of this length, which
    begin from the memory that the policy had there. Longer chunks are slower; dependencies that are longer than a chunk
    are not learned."""
    see_previous: bool = False
    """With `memory`: the previous action and reward are inputs of both networks too."""
    critic: Literal["own", "central", "state"] = "own"
    """Input of the value network: the agent's own observation, the observations of its whole team (`central`, as in
    MAPPO), or its own and the env's `state()`. Policies act on their own observations in any case."""
    share_features: bool = False
    """Policy and value share the convolutions of images, or the `network`, instead of having one each."""
    ortho_init: bool = True
    """Orthogonal initial weights, and cells whose initial time scales are 2 to `chunk_length` steps; no: the defaults
    of torch."""
    log_std_init: float = 0.0
    """Initial logarithm of the standard deviation of Box actions."""
    squash: bool = False
    """A tanh maps Box actions into their bounds, instead of clipping."""
    normalize_observations: bool = False
    """Observations are normalized by their running mean and standard deviation."""
    normalize_rewards: bool = False
    """Rewards are divided by the running standard deviation of the returns."""
    lag_correction: LagCorrection = "vtrace"
    """Correction for rollouts of an older policy in `asynchronous` runs. `ratio`: PPO's probability ratio is to the
    policy that acted; `vtrace`: in addition, advantages have the clipped importance weights of V-trace; `none`: no
    correction."""

    def __post_init__(self) -> None:
        counts = "steps_per_env", "memory_size", "chunk_length", "kernel_size"
        self._check("at least 1", lambda value: value >= 1, *counts)
        self._check("between 0 and 1", lambda value: 0.0 <= value <= 1.0, "gamma", "gae_lambda")
        self._check("above 0", lambda value: value > 0.0, "learning_rate", "max_grad_norm")
        self._check("0 or more", lambda value: value >= 0.0, "value_coef", "entropy_coef", "filters")
        self._check("a finite number", math.isfinite, *(k for k, v in vars(self).items() if isinstance(v, float)))
        if self.lag_correction == "ratio" and not hasattr(self, "clip_range"):
            able = algorithms_that(lambda kind: kind.has_ratio, "and")
            raise InvalidRequest(
                f"lag_correction='ratio': needs a loss with a clipped ratio, as in {able}; use 'vtrace' or 'none'"
            )
        if any(size < 1 for size in self.hidden_sizes):
            raise InvalidRequest(f"hidden_sizes={self.hidden_sizes}: each at least 1")
        if self.see_previous and self.memory is None:
            raise InvalidRequest("see_previous=True: needs a memory, lstm or gru")
        if self.filters and (self.memory is not None or self.critic != "own"):
            raise InvalidRequest(f"filters={self.filters}: cannot be used with a memory or a central critic")


@dataclass(frozen=True)
class OffPolicyConfig(Settings):
    """Settings that SAC, TD3, discrete SAC and DQN have in common."""

    steps_per_env: int = 1
    """Number of steps of each environment between two updates."""
    buffer_size: int = 1_000_000
    """Number of steps in replay, of all environments together; new steps replace the oldest."""
    learning_starts: int = 100
    """Number of env steps with random actions before the first gradient step."""
    batch_size: int = 256
    """Number of steps drawn from replay for one gradient step."""
    rewarded_fraction: float = 0.0
    """Share of the drawn steps (or sequences) that have a reward other than 0, as soon as there are any. With sparse
    rewards, the few rewarded steps are then learned from more often."""
    updates_per_step: float = 1.0
    """Number of gradient steps per env step (the update-to-data ratio)."""
    gradient_steps: int | None = None
    """Number of gradient steps per update, in place of `updates_per_step`; -1: as many as its env steps."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Coefficient of the soft update of target networks, θ' ← θ' + τ (θ - θ'); 1: a copy."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Number of units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation between the layers."""
    learner: Literal["auto", "numpy", "torch"] = "auto"
    """Backend that differentiates the losses: torch, or numpy kernels, which are faster for stock losses of small
    networks on the CPU. `auto`: kernels where possible."""
    memory: Literal["lstm", "gru"] | None = None
    """Recurrent cell before the hidden layers of the actor, and another of the critics. They learn along sequences
    drawn from replay, each of which begins with an empty memory."""
    memory_size: int = 128
    """Number of units of a recurrent cell."""
    markov_actor: bool = False
    """With `memory`: only the critics have a recurrent cell; the actor sees the present observation (Memory-Markov)."""
    sequences: int = 32
    """With `memory`: number of sequences drawn from replay for one gradient step, in place of `batch_size` steps."""
    sequence_length: int | None = None
    """Largest number of steps of a sequence; longer dependencies are not learned. Default: whole episodes."""
    observation_embedding: int = 32
    """With `memory`: number of units of the layer between the observation and the cell."""
    action_embedding: int = 8
    """Number of units between the previous action and the cell; 0: the previous action is no input."""
    reward_embedding: int = 8
    """Number of units between the previous reward and the cell; 0: the previous reward is no input."""

    def __post_init__(self) -> None:
        self._check("at least 1", lambda value: value >= 1, "steps_per_env", "buffer_size", "batch_size",
                    "memory_size", "sequences", "sequence_length", "observation_embedding")  # fmt: skip
        self._check("0 or more", lambda value: value >= 0, "learning_starts", "action_embedding", "reward_embedding")
        self._check("above 0", lambda value: value > 0, "learning_rate", "updates_per_step", "tau")
        self._check("between 0 and 1", lambda value: 0.0 <= value <= 1.0, "gamma", "tau",
                    "rewarded_fraction")  # fmt: skip
        self._check("a finite number", math.isfinite, *(k for k, v in vars(self).items() if isinstance(v, float)))
        self._check("at least 1, or -1 for as many as env steps", lambda value: value >= 1 or value == -1,
                    "gradient_steps")  # fmt: skip
        if any(size < 1 for size in self.hidden_sizes):
            raise InvalidRequest(f"hidden_sizes={self.hidden_sizes}: each at least 1")
        if self.markov_actor and self.memory is None:
            raise InvalidRequest("markov_actor=True: needs a memory, lstm or gru; without a memory every actor is")
