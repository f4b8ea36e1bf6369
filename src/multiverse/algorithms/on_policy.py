"""Base of algorithms that learn from rollouts of their present policy: PPO, A2C and TAAC.

Chapters: constructor, requirements, networks, acting, update, saving. The batch that an update learns from is built in
`rollout_batches.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.algorithm import Learner, OwnNetwork, UpdateReport, mean_metrics, observation_layout
from multiverse.algorithms.capabilities import RunRequirements
from multiverse.algorithms.central_critic import StateInputs, TeamInputs
from multiverse.algorithms.rollout_batches import BatchBuilder
from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Policy
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.convolution import Convolution
from multiverse.learning.loss import Loss, Outputs, as_numpy
from multiverse.learning.network_spec import CustomNetwork, NetworkSpec
from multiverse.learning.numpy_learner import NumpyLearner
from multiverse.learning.optimizers import Adam, Optimizer
from multiverse.policies.cells import Cells
from multiverse.policies.features import Features
from multiverse.policies.heads import action_of, head_for
from multiverse.policies.numpy_policies import NumpyPolicy
from multiverse.rollouts.rollout import Rollout

LARGEST_IN_NUMPY = 256
"""Largest number of units of a layer for which numpy kernels are used. In larger layers matrix products take nearly all
of the time, and torch computes them as fast."""


class OnPolicy(Learner):
    """A policy and a value network, and an update of one gradient step on each rollout. A subclass defines `loss`."""

    asynchronous = auto_num_envs = recurrent_images = True
    fixed = frozenset({
        "steps_per_env", "whole_episodes", "hidden_sizes", "activation", "filters", "kernel_size", "share_features",
        "normalize_observations", "normalize_rewards", "squash", "memory", "memory_size", "see_previous", "critic",
        "learner",
    })  # fmt: skip
    optimizer: type[Optimizer] = Adam
    max_lag = 0
    """Number of updates by which the policy of a rollout may be behind, in asynchronous runs; set by the trainer."""
    _has_kernel = False  # a numpy kernel computes the gradient of the loss

    def __init__(
        self,
        config: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        slots: int,
        seed: int,
        device: str = "cpu",
        agents: int = 1,
        state_space: spaces.Space[Any] | None = None,
        network: OwnNetwork | None = None,
    ) -> None:
        """`slots`: number of envs × agents. `agents`: number of agents of each env that share this learner; their slots
        are next to each other. `state_space`: of the envs' state(), for `critic="state"`. `network`: of the user."""
        super().__init__()
        self._refuse_unsupported(config, observation_space, action_space, device, network is not None)
        self._agents, self._seed, self._gradients = agents, seed, 0
        self.config, self.steps_per_env = config, config.steps_per_env
        self.observation_space, self.action_space = observation_space, action_space
        small_images = network is not None
        self.features = Features(observation_space, action_space, config.see_previous, small_images=small_images)
        self._layout = observation_layout(self.features, observation_space)
        self.own_network = None if network is None else CustomNetwork(network[0], network[1], self._layout)
        self.action = action_of(action_space)
        self._critic_inputs = self._new_critic_inputs(state_space)
        self._make_auxiliary((seed, 4), device)
        self._networks = self._new_networks(seed, device)
        self._rng = np.random.default_rng((seed, 1))
        self._batches = self._new_batches(slots)
        self._updates = 0
        self._policy: Policy | None = None
        _ = self.policy()  # refuse a policy that cannot act before anything is collected

    # -- requirements --------------------------------------------------------------------------------------------
    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        settings = run.settings
        if reason := super().supports(run):
            return reason
        if run.asynchronous and settings.whole_episodes:
            return "asynchronous: cannot be used with whole_episodes, where envs that finish early wait for the rest"
        if run.kind == "single" and settings.critic != "own":
            return f"critic={settings.critic!r}: needs several agents, and {run.env} has one: leave it out"
        if run.kind is not None and settings.critic == "central" and not run.has_teams:
            return (
                f"critic='central': no agent of {run.env} has teammates that share its learner; critic='state' uses "
                "the env's state(), if it has one"
            )
        return None

    @classmethod
    def whole_episodes(cls, settings: Any) -> bool:
        return bool(settings.whole_episodes)

    @classmethod
    def sees_state(cls, settings: Any) -> bool:
        return bool(settings.critic == "state")

    @classmethod
    def boards_through(cls, settings: Any) -> str:
        size = settings.kernel_size
        return f"through {settings.filters} filters of {size}×{size}" if settings.filters else "flattened"

    def set_slots(self, slots: int) -> None:
        """Change the number of slots (`num_envs="auto"`); all envs are at the beginning of an episode."""
        if self._batches.reward_normalizer is not None:
            self._batches.reward_normalizer.set_slots(slots)

    # -- networks ------------------------------------------------------------------------------------------------
    def outputs(self) -> Mapping[str, int]:
        """Return the number of outputs of the value network. The policy has those of its distribution over actions."""
        return {"critic": 1}

    def values_from(self, outputs: Any) -> Any:
        """Return the values [rows] for outputs [rows, outputs] of the value network."""
        return outputs[:, 0]

    def _new_critic_inputs(self, state_space: spaces.Space[Any] | None) -> TeamInputs | StateInputs | None:
        """Return what builds the inputs of a critic that sees more than the policy."""
        config, observed, agents = self.config, self.observation_space, self._agents
        if config.critic == "central" and agents > 1:
            if self.own_network is not None and self.features.images:
                raise InvalidRequest(
                    f"network={self.own_network.name}: critic='central' needs the observations of the whole team in "
                    "one vector, which cannot hold images; use critic='own' or 'state'"
                )
            return TeamInputs(self.features.size, Features(observed, self.action_space), agents)
        if config.critic == "state":
            normalize = config.normalize_observations
            return StateInputs(self.features.size, agents, state_space, self.action_space, normalize)
        return None

    def _new_networks(self, seed: int, device: str) -> Any:
        """Return the networks: in numpy for a few small dense layers on the CPU, where it is faster; else in torch."""
        spec = self._network_spec()
        outputs = self._outputs_of("critic")
        self._refuse_other_outputs(["critic"])
        kernels = self._choose_kernels(
            images=bool(spec.images),
            device=device,
            units=max(*spec.hidden_sizes, 0, spec.memory_size if spec.memory else 0),
            max_units=LARGEST_IN_NUMPY,
        )
        self._loss: Callable[..., Any] = self.loss
        if kernels:
            self._loss, self._has_kernel = partial(kernels["loss"], self), True
            return NumpyLearner(spec, self.optimizer, seed)
        from multiverse.networks.actor_critic import ActorCritic

        return ActorCritic(
            spec,
            self.optimizer,
            seed=seed,
            device=device,
            auxiliary=self._auxiliary_parameters,
            critic_outputs=outputs,
            values_from=self.values_from,
        )

    def _network_spec(self) -> NetworkSpec:
        config, critic_inputs = self.config, self._critic_inputs
        if self.own_network is not None and config.filters:
            raise InvalidRequest(
                f"filters={config.filters}: network={self.own_network.name} replaces the first layers; use one of the "
                "two (filters=0 where a preset sets them)"
            )
        names = ("hidden_sizes", "activation", "ortho_init", "log_std_init", "squash", "share_features", "memory",
                 "memory_size", "chunk_length")  # fmt: skip
        return NetworkSpec(
            size=self.features.size,
            images=[tuple(leaf.space.shape or ()) for leaf in self.features.images],
            action_space=self.action_space,
            critic_size=None if critic_inputs is None else critic_inputs.size,
            critic_members=self._agents if isinstance(critic_inputs, TeamInputs) else 1,
            convolution=self._convolution() if config.filters else None,
            network=self.own_network,
            **{name: getattr(config, name) for name in names},
        )

    def _convolution(self) -> Convolution:
        leaves, filters = self.features.all_leaves, self.config.filters
        if self.features.board is None:
            observed = leaves[0].space if len(leaves) == 1 else "several spaces"
            raise InvalidRequest(
                f"filters={filters}: needs observations that are one Box of three axes, and these are {observed}; "
                "images of 36 × 36 bytes and more have convolutions anyway"
            )
        return Convolution(self.features.board, filters, self.config.kernel_size)

    def _network_modules(self) -> dict[str, Any]:
        return dict(self._networks.modules)

    # -- acting --------------------------------------------------------------------------------------------------
    def policy(self) -> Policy:
        """Return the present policy: in numpy for a few dense layers, else the network in torch."""
        if self._policy is None:
            self._policy = self._new_policy()
        return self._policy

    def _new_policy(self) -> Policy:
        networks, frozen = self._networks, self._batches.frozen_moments()
        log_std = networks.distribution.log_std
        std = None if log_std is None else np.exp(as_numpy(log_std))
        head = head_for(self.action_space, std, self.config.squash)
        cells = None if self.config.memory is None else Cells(self.config.memory, networks.cells())
        if self.features.images or self.own_network is not None:
            from multiverse.algorithms.torch_policy import TorchPolicy

            critic = networks.critic if self._critic_inputs is None else None
            recurrent = None if cells is None else (cells.first_memory(1), critic)
            return TorchPolicy(
                self.features, networks.actor, head, version=self._updates, shift_and_scale=frozen, recurrent=recurrent
            )
        return NumpyPolicy(self.features, networks.layers(), self.config.activation, head, self._updates, frozen, cells)

    # -- update --------------------------------------------------------------------------------------------------
    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        """Return the loss that a gradient step decreases, from the outputs of the networks for the rows of a batch."""
        raise InvalidRequest(f"{type(self).__name__} derives from OnPolicy and does not define loss(out, batch)")

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Take one gradient step on the whole rollout."""
        (rollout,) = rollouts
        self._refuse_older(rollout)
        self.progress = progress
        learning_rate = self.config.scheduled(progress).get("learning_rate", float(self.config.learning_rate))
        metrics = self._gradient(self._batch(rollout))
        (taken,) = self._count([self._networks.optimizer.step(learning_rate, self.config.max_grad_norm)])
        self._updated(rollout)
        return UpdateReport(self._means([metrics]) | self._batches.lag_metrics, int(taken), int(not taken))

    def value_loss(self, values: Any, batch: RolloutBatch) -> Any:
        """Return the mean squared error of the values [rows]."""
        return ((values - batch.returns) ** 2).mean()

    def _gradient(self, batch: RolloutBatch, with_metrics: bool = True) -> Mapping[str, Any]:
        """Write the gradient of the loss into the optimizer's; return the metrics of the loss."""
        if not self._updates and self._has_custom_loss:
            from multiverse.networks.modules import refuse_untrained

            refuse_untrained(self, self._networks.parameters)
        self._gradients += 1
        batch.noise = [self._normal(*batch.actions.shape) for _ in range(self.noise_draws)]
        if self._has_kernel:
            return self._networks.gradient(batch, self._loss, with_metrics) or {}
        with self._training((self._updates, self._gradients)):
            return self._networks.gradient(batch, self._loss, with_metrics) or {}

    def _normal(self, *shape: int) -> Any:
        """Return Gaussian noise on the device of the networks."""
        return self._networks.put(self._rng.standard_normal(shape, np.float32))

    def _means(self, metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return mean_metrics(metrics, self._networks.xp)

    def _refuse_older(self, rollout: Rollout) -> None:
        """Refuse a rollout of a policy older than `max_lag` allows, and keep the present policy for later rollouts."""
        oldest = self._updates - self.max_lag
        if not oldest <= rollout.policy_version <= self._updates:  # guard: rollouts-of-an-older-policy-are-refused
            older = f", or of one at most {self.max_lag} updates older" if self.max_lag else ""
            raise InvalidRequest(
                f"the rollout was collected by version {rollout.policy_version} of the policy, and this is version "
                f"{self._updates}: {type(self).__name__} learns from rollouts of its present policy{older}"
            )
        if self.max_lag and self.config.lag_correction != "none":
            self._batches.remember_policy(self._updates, oldest)

    def _new_batches(self, slots: int) -> BatchBuilder:
        return BatchBuilder(**self._batch_options(slots))

    def _batch_options(self, slots: int) -> dict[str, Any]:
        """Return the arguments of `BatchBuilder`."""
        return {
            "config": self.config, "features": self.features, "networks": self._networks, "slots": slots,
            "critic_inputs": self._critic_inputs, "has_ratio": self.has_ratio, "custom_loss": self._has_custom_loss,
        }  # fmt: skip

    def _batch(self, rollout: Rollout) -> RolloutBatch:
        """Return the rows to learn from, with values, advantages and returns."""
        batch = self._batches.build(rollout, self._updates)
        batch.layout = self._layout
        return batch

    def _count(self, taken: Sequence[Any]) -> list[bool]:
        """Return which gradient steps were taken. Called once per update, so that it waits for a GPU once."""
        flags = as_numpy(self._networks.xp.stack(taken)).tolist() if taken else []
        self._refuse_divergence(flags)
        return flags

    def _updated(self, rollout: Rollout) -> None:
        """Finish an update."""
        self._updates, self._gradients, self._policy = self._updates + 1, 0, None
        self._batches.update_statistics(rollout)

    # -- saving --------------------------------------------------------------------------------------------------
    def weights(self) -> dict[str, Any]:
        moments = {name: moments.state() for name, moments in self._batches.normalizers().items()}
        return {"parameters": self._networks.optimizer.weights(), **moments, **self._custom_weights()}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        self._networks.optimizer.load_weights(weights["parameters"])
        for name, moments in self._batches.normalizers().items():
            if name in weights:
                moments.load(weights[name])
        self._load_custom_weights(weights)
        self._policy = None

    def change(self, **settings: Any) -> None:
        super().change(**settings)
        self._batches.config = self.config

    def state(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            "optimizer": self._networks.optimizer.state(),
            "rng": self._rng.bit_generator.state,
            "updates": self._updates,
            "changed": dict(self._changed),
        }
        if self._batches.reward_normalizer is not None:
            saved["rewards"] = self._batches.reward_normalizer.state()
        return saved

    def load(self, state: Mapping[str, Any]) -> None:
        self._networks.optimizer.load(state["optimizer"])
        self._rng.bit_generator.state = state["rng"]
        self._updates, self._policy = int(state["updates"]), None
        self.change(**state["changed"])
        if self._batches.reward_normalizer is not None:
            self._batches.reward_normalizer.load(state["rewards"])
