"""Settings that algorithms have in common: `OnPolicyConfig` and `OffPolicyConfig`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from multiverse.algorithms.capabilities import algorithms_that
from multiverse.core.errors import InvalidRequest
from multiverse.core.settings import check_bounds, setting

LagCorrection = Literal["vtrace", "ratio", "none"]


class Settings:
    """Base of the `Config` of an algorithm."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidRequest(f"{name}={value}: expected a finite number")

    def scheduled(self, progress: float) -> dict[str, float]:
        """Return the scheduled values, by name, when this share of the budget (0 to 1) is spent."""
        return {}


@dataclass(frozen=True)
class OnPolicyConfig(Settings):
    """Settings that PPO and A2C have in common."""

    steps_per_env: int = setting(
        128, "Number of steps of each environment in one rollout, from which one update learns.", at_least=1
    )
    whole_episodes: bool = setting(
        False,
        "A rollout has one episode of each environment, of at most `steps_per_env` steps, played by one version of "
        "the policy; environments that finish early wait for the rest. No: episodes continue in the next rollout.",
    )
    learning_rate: float = setting(3e-4, "Step size of Adam.", above=0)
    gamma: float = setting(0.99, "Discount factor.", at_least=0, at_most=1)
    gae_lambda: float = setting(
        0.95,
        "λ of generalized advantage estimation: 0 is the one-step TD error, 1 the whole return.",
        at_least=0,
        at_most=1,
    )
    value_coef: float = setting(0.5, "Weight of the value loss.", at_least=0)
    entropy_coef: float = setting(0.0, "Weight of the entropy bonus, which keeps a policy exploring.", at_least=0)
    max_grad_norm: float = setting(0.5, "Gradients are clipped to this global norm.", above=0)
    hidden_sizes: tuple[int, ...] = setting((64, 64), "Number of units of each hidden layer.", at_least=1)
    activation: Literal["tanh", "relu"] = setting("tanh", "Activation between the layers.")
    learner: Literal["auto", "numpy", "torch"] = setting(
        "auto",
        "Backend that differentiates the loss: torch, or numpy kernels, which are two to five times as fast for stock "
        "losses of small networks on the CPU. `auto`: kernels where possible.",
    )
    filters: int = setting(
        0,
        "Number of filters of a convolution before the hidden layers, for observations that are a board, a grid or a "
        "small image: one Box of three axes. 0: no convolution.",
        at_least=0,
    )
    kernel_size: int = setting(3, "Height and width of these filters.", at_least=1)
    memory: Literal["lstm", "gru"] | None = setting(
        None,
        "Recurrent cell before the hidden layers of the policy and the value network. A central critic, which sees "
        "more than the policy, has none.",
    )
    memory_size: int = setting(64, "Number of units of the recurrent cell.", at_least=1)
    chunk_length: int = setting(
        32,
        "Length of truncated backpropagation through time, in steps. Rollouts are cut into chunks of this length, "
        "which begin from the memory that the policy had there. Longer chunks are slower; dependencies that are "
        "longer than a chunk are not learned.",
        at_least=1,
    )
    see_previous: bool = setting(
        False, "With `memory`: the previous action and reward are inputs of both networks too."
    )
    critic: Literal["own", "central", "state"] = setting(
        "own",
        "Input of the value network: the agent's own observation, the observations of its whole team (`central`, as "
        "in MAPPO), or its own and the env's `state()`. Policies act on their own observations in any case.",
    )
    share_features: bool = setting(
        False, "Policy and value share the convolutions of images, or the `network`, instead of having one each."
    )
    ortho_init: bool = setting(
        True,
        "Orthogonal initial weights, and cells whose initial time scales are 2 to `chunk_length` steps; no: the "
        "defaults of torch.",
    )
    log_std_init: float = setting(0.0, "Initial logarithm of the standard deviation of Box actions.")
    squash: bool = setting(False, "A tanh maps Box actions into their bounds, instead of clipping.")
    normalize_observations: bool = setting(
        False, "Observations are normalized by their running mean and standard deviation."
    )
    normalize_rewards: bool = setting(False, "Rewards are divided by the running standard deviation of the returns.")
    lag_correction: LagCorrection = setting(
        "vtrace",
        "Correction for rollouts of an older policy in `asynchronous` runs. `ratio`: PPO's probability ratio is to "
        "the policy that acted; `vtrace`: in addition, advantages have the clipped importance weights of V-trace; "
        "`none`: no correction.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lag_correction == "ratio" and not hasattr(self, "clip_range"):
            able = algorithms_that(lambda kind: kind.has_ratio, "and")
            raise InvalidRequest(
                f"lag_correction='ratio': needs a loss with a clipped ratio, as in {able}; use 'vtrace' or 'none'"
            )
        if self.see_previous and self.memory is None:
            raise InvalidRequest("see_previous=True: needs a memory, lstm or gru")
        if self.filters and (self.memory is not None or self.critic != "own"):
            raise InvalidRequest(f"filters={self.filters}: cannot be used with a memory or a central critic")


@dataclass(frozen=True)
class OffPolicyConfig(Settings):
    """Settings that SAC, TD3, discrete SAC and DQN have in common."""

    steps_per_env: int = setting(1, "Number of steps of each environment between two updates.", at_least=1)
    buffer_size: int = setting(
        1_000_000, "Number of steps in replay, of all environments together; new steps replace the oldest.", at_least=1
    )
    learning_starts: int = setting(
        100, "Number of env steps with random actions before the first gradient step.", at_least=0
    )
    batch_size: int = setting(256, "Number of steps drawn from replay for one gradient step.", at_least=1)
    rewarded_fraction: float = setting(
        0.0,
        "Share of the drawn steps (or sequences) that have a reward other than 0, as soon as there are any. With "
        "sparse rewards, the few rewarded steps are then learned from more often.",
        at_least=0,
        at_most=1,
    )
    updates_per_step: float = setting(1.0, "Number of gradient steps per env step (the update-to-data ratio).", above=0)
    gradient_steps: int | None = setting(
        None, "Number of gradient steps per update, in place of `updates_per_step`; -1: as many as its env steps."
    )
    learning_rate: float = setting(3e-4, "Step size of Adam.", above=0)
    gamma: float = setting(0.99, "Discount factor.", at_least=0, at_most=1)
    tau: float = setting(
        0.005, "Coefficient of the soft update of target networks, θ' ← θ' + τ (θ - θ'); 1: a copy.", above=0, at_most=1
    )
    hidden_sizes: tuple[int, ...] = setting((256, 256), "Number of units of each hidden layer.", at_least=1)
    activation: Literal["tanh", "relu"] = setting("relu", "Activation between the layers.")
    learner: Literal["auto", "numpy", "torch"] = setting(
        "auto",
        "Backend that differentiates the losses: torch, or numpy kernels, which are faster for stock losses of small "
        "networks on the CPU. `auto`: kernels where possible.",
    )
    memory: Literal["lstm", "gru"] | None = setting(
        None,
        "Recurrent cell before the hidden layers of the actor, and another of the critics. They learn along sequences "
        "drawn from replay, each of which begins with an empty memory.",
    )
    memory_size: int = setting(128, "Number of units of a recurrent cell.", at_least=1)
    markov_actor: bool = setting(
        False,
        "With `memory`: only the critics have a recurrent cell; the actor sees the present observation "
        "(Memory-Markov).",
    )
    sequences: int = setting(
        32,
        "With `memory`: number of sequences drawn from replay for one gradient step, in place of `batch_size` steps.",
        at_least=1,
    )
    sequence_length: int | None = setting(
        None,
        "Largest number of steps of a sequence; longer dependencies are not learned. Default: whole episodes.",
        at_least=1,
    )
    observation_embedding: int = setting(
        32, "With `memory`: number of units of the layer between the observation and the cell.", at_least=1
    )
    action_embedding: int = setting(
        8, "Number of units between the previous action and the cell; 0: it is not an input.", at_least=0
    )
    reward_embedding: int = setting(
        8, "Number of units between the previous reward and the cell; 0: it is not an input.", at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gradient_steps is not None and self.gradient_steps < 1 and self.gradient_steps != -1:
            raise InvalidRequest(
                f"gradient_steps={self.gradient_steps}: expected at least 1, or -1 for as many as env steps"
            )
        if self.markov_actor and self.memory is None:
            raise InvalidRequest("markov_actor=True: needs a memory, lstm or gru; without a memory every actor is")


def check_noise_steps(config: Any) -> None:
    """Refuse exploration noise that would last longer than a rollout."""
    if not 1 <= config.noise_steps <= config.steps_per_env:
        limit = f"steps_per_env={config.steps_per_env}"
        raise InvalidRequest(f"noise_steps={config.noise_steps}: expected at least 1 and at most {limit}")
