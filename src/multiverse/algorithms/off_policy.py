"""Base of algorithms that learn from replay: SAC, TD3, discrete SAC and DQN.

Networks and policies are made in `off_policy_networks.py`. The last section of this file draws batches from replay.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.algorithm import OwnNetwork, UpdateReport, mean_metrics, network_inputs, observation_layout
from multiverse.algorithms.capabilities import RunRequirements, algorithms_that
from multiverse.algorithms.off_policy_networks import OffPolicyNetworks
from multiverse.core.layout import Array
from multiverse.core.policy import Leaves
from multiverse.learning.batches import NetworkInput, ReplayBatch
from multiverse.learning.loss import as_numpy
from multiverse.learning.network_spec import CustomNetwork
from multiverse.learning.normalizers import like
from multiverse.policies.features import Features
from multiverse.policies.heads import action_of
from multiverse.rollouts.replay import NothingToDraw, Replay
from multiverse.rollouts.rollout import Rollout, mask_beside

log = logging.getLogger("multiverse")

LARGEST_IN_NUMPY = 512
"""Largest number of units of a layer for which numpy kernels are used: they were measured to be faster than torch up to
this size, also for TD3's usual 400 and 300 units."""


class OffPolicy(OffPolicyNetworks):
    """Networks with targets, a replay buffer, a random warm-up, and a number of gradient steps after each rollout.

    A subclass defines `outputs`, `make_networks`, `head`, the losses that `losses` names, and `gradient_step`.
    """

    from_replay = keeps_masks = True
    in_turn = False  # replay takes the next row's observation as what a step led to
    fixed = frozenset({"steps_per_env", "buffer_size", "hidden_sizes", "activation", "memory", "memory_size",
                       "markov_actor", "observation_embedding", "action_embedding", "reward_embedding",
                       "learner"})  # fmt: skip
    steps = 0
    """Number of gradient steps so far, with the present one."""

    def __init__(
        self,
        config: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        slots: int,
        seed: int,
        device: str = "cpu",
        network: OwnNetwork | None = None,
    ) -> None:
        """`slots`: number of envs × agents. `network`: of the user, replaces convolutions or the observation's
        embedding."""
        super().__init__()
        self._refuse_unsupported(config, observation_space, action_space, device, network is not None)
        self.config, self.steps_per_env = config, config.steps_per_env
        self.observation_space, self.action_space = observation_space, action_space
        embedded = config.action_embedding + config.reward_embedding
        see_previous, small_images = config.memory is not None and embedded > 0, network is not None
        self._critic_features = Features(observation_space, action_space, see_previous, small_images=small_images)
        self.features = self._critic_features
        if config.markov_actor:
            self.features = Features(observation_space, action_space, small_images=small_images)
        layout = observation_layout(self._critic_features, observation_space)
        self.own_network = None if network is None else CustomNetwork(network[0], network[1], layout)
        self.action = action_of(action_space)
        self._seed, self._device = seed, device
        self._networks, self.targets = {}, {}
        self._rng = np.random.default_rng((seed, 1))
        self._env_steps, self._updates, self._steps_due = 0, 0, 0.0
        self._checked_losses: set[str] = set()
        self._make_auxiliary((seed, 4), device)
        self._kernels = self._choose_kernels(
            images=bool(self.features.images),
            device=device,
            units=0 if config.memory else max(config.hidden_sizes, default=0),
            max_units=LARGEST_IN_NUMPY,
        )
        self.make_networks()
        self._refuse_other_outputs(self._networks)
        if heads := self._auxiliary_parameters:
            from multiverse.networks.torch_network import AuxiliaryParameters

            self._networks["auxiliary"] = AuxiliaryParameters(heads)
        _ = self._checked_layers(self.head()), self.policy()  # refuse a policy that cannot act before collecting
        self._new_replay = partial(Replay, observation_space, self.action, slots, config.buffer_size)
        self.replay = self._new_replay()

    # -- requirements --------------------------------------------------------------------------------------------
    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        memory = run.settings.memory
        if (reason := super().supports(run)) or memory is None or cls.recurrent_images:
            return reason
        if run.has_images or run.device not in ("auto", "cpu"):
            able = algorithms_that(lambda kind: kind.recurrent_images)
            return (
                f"memory={memory!r}: {cls.title()} supports a memory only on the CPU and without images; use {able} "
                "for images or a GPU"
            )
        return None

    @classmethod
    def cautions(cls, run: RunRequirements) -> list[str]:
        """Return warnings about a run that is too short to learn after its random actions."""
        settings, first, budget = run.settings, run.settings.learning_starts, run.env_steps
        if not budget:
            return []
        left, share = budget - first, settings.updates_per_step
        if left <= 0:
            return [f"learning_starts={first:,} and env_steps={budget:,}: the run ends before it learns"]
        if settings.gradient_steps is None and left * share < 1:
            steps = f"the {left:,} env steps after learning_starts={first:,}"
            return [f"updates_per_step={share:g}: no gradient step is due in {steps}"]
        return []

    def keep_masks(self, actions: int) -> None:
        """Keep action masks in replay, so that targets are computed over open actions. Called before the first rollout
        if rollouts have masks beside the observations."""
        for features in (self.features, self._critic_features):
            features.mask = mask_beside(actions)
        self.replay = self._new_replay([mask_beside(actions)])

    # -- extension points ----------------------------------------------------------------------------------------
    def gradient_step(self, batch: ReplayBatch) -> tuple[Any, dict[str, Any]]:
        """Compute the gradient of each loss with `gradient`, take the steps with `take_step` and update the targets;
        return (result of `take_step`, metrics)."""
        raise self._missing("gradient_step")

    def before_learning(self) -> None:
        """Do what is due before the gradient steps of an update, such as hard updates of targets."""

    # -- update --------------------------------------------------------------------------------------------------
    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Add the rollout to replay and take the gradient steps that are due, each on a batch drawn from replay."""
        (rollout,) = rollouts
        self.keep(rollout, progress)
        # A run that was resumed without its replay fills it again before it learns.
        if self.replay.added * rollout.slots <= self.config.learning_starts:  # guard: an-empty-replay-fills-up-first
            return UpdateReport()
        return self.learn(self._due(rollout.steps * rollout.slots))

    def keep(self, rollout: Rollout, progress: float) -> None:
        """Add the rollout to replay, and update what depends on env steps or `progress`: exploration and targets."""
        self.replay.add(rollout)
        self._env_steps += rollout.steps * rollout.slots
        self._updates, self.progress, self._policy = self._updates + 1, progress, None

    def learn(self, gradient_steps: int) -> UpdateReport:
        """Take this number of gradient steps on batches drawn from replay."""
        self.before_learning()
        self._policy, results = None, list[tuple[Any, dict[str, Any]]]()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the optimizer checks the gradient
            for batch in self._minibatches(gradient_steps):
                self.steps += 1
                results.append(self.gradient_step(batch))
        if not results:
            return UpdateReport()
        self._acting = None
        xp = self._networks[self.acts].xp
        taken = as_numpy(xp.stack([step_taken for step_taken, _ in results])).tolist()
        self._refuse_divergence(taken)
        report = mean_metrics([metrics for (_, metrics), step_taken in zip(results, taken) if step_taken], xp)
        return UpdateReport(report, sum(taken), len(taken) - sum(taken))

    def gradient(self, loss: str, network: Any, *arguments: Any) -> dict[str, Any]:
        """Call the method named `loss` with the arguments and compute the gradient of its result by the parameters of
        this network alone; return the metrics of the loss."""
        if self._kernels:
            metrics: dict[str, Any] = self._kernels[loss](self, *arguments)
            return metrics
        if first := loss not in self._checked_losses and self._has_custom_loss:
            from multiverse.networks.modules import refuse_untrained

            self._checked_losses.add(loss)
            refuse_untrained(self, self._auxiliary_parameters)
        with self._training((self.steps, self.losses.index(loss))):
            return dict(network.gradient(getattr(self, loss)(*arguments), loss, self._networks.get("auxiliary"), first))

    def take_step(self, *networks: Any, max_grad_norm: float = math.inf) -> Any:
        """Take an optimizer step of each of these networks and of the auxiliary modules; return whether all of them
        were taken: a gradient that is not finite is skipped."""
        heads = [self._networks["auxiliary"]] if "auxiliary" in self._networks else []
        taken = [network.optimizer.step(self.config.learning_rate, max_grad_norm) for network in (*networks, *heads)]
        for head in heads:  # losses add to the gradient of auxiliary modules
            head.optimizer.gradient.zero_()
        return reduce(operator.and_, taken)

    def _due(self, env_steps: int) -> int:
        """Return the number of gradient steps after this number of env steps."""
        fixed = self.config.gradient_steps
        if fixed is not None:
            return env_steps if fixed == -1 else int(fixed)
        self._steps_due += env_steps * self.config.updates_per_step
        due = int(self._steps_due)
        self._steps_due -= due
        return due

    def _minibatches(self, count: int) -> Iterator[ReplayBatch]:
        for _ in range(count):
            try:
                batch = self._draw()
            except NothingToDraw:  # all steps so far were lost
                return
            batch.noise = [self._normal(*batch.actions.shape) for _ in range(self.noise_draws)]
            yield batch

    def _draw(self) -> ReplayBatch:
        if self.config.memory is None:
            return draw_steps(self.replay, self._rng, self.config, self.features, self._put)
        return draw_sequences(self.replay, self._rng, self.config, self._critic_features, self._put)

    # -- saving --------------------------------------------------------------------------------------------------
    def weights(self) -> dict[str, Any]:
        learned = {name: optimizer.weights() for name, optimizer in self._optimizers.items()}
        return {**learned, **self._custom_weights()}

    def _network_modules(self) -> dict[str, Any]:
        modules = {name: getattr(network, "module", None) for name, network in self._networks.items()}
        return {name: module for name, module in modules.items() if module is not None}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.load_weights(weights[name])
        self._load_custom_weights(weights)
        for target in self.targets.values():
            target.soft_update(1.0)
        self._policy = self._acting = None

    def state(self) -> dict[str, Any]:
        targets = {} if self.own_network is None else self.targets
        fixed = {"fixed_of_targets": {name: target.fixed() for name, target in targets.items()}} if targets else {}
        return {
            "optimizers": {name: optimizer.state() for name, optimizer in self._optimizers.items()},
            "targets": {name: as_numpy(target.parameters) for name, target in self.targets.items()},
            **fixed,
            "rng": self._rng.bit_generator.state,
            "env_steps": self._env_steps,
            "updates": self._updates,
            "steps": self.steps,
            "owed": self._steps_due,
            "progress": self.progress,
            "changed": dict(self._changed),
            "replay": self.replay.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.load(state["optimizers"][name])
        for name, target in self.targets.items():
            target.parameters[...] = self._put(like(state["targets"][name], as_numpy(target.parameters)))
            if self.own_network is not None:
                target.load_fixed(state["fixed_of_targets"][name])  # guard: targets-keep-statistics-of-their-own
        self._rng.bit_generator.state = state["rng"]
        self._env_steps, self._updates, self.steps = (int(state[name]) for name in ("env_steps", "updates", "steps"))
        self._steps_due, self.progress = float(state["owed"]), float(state["progress"])
        self.change(**state["changed"])
        self.replay.load(state["replay"])
        self._policy = self._acting = None


# -- batches drawn from replay -------------------------------------------------------------------------------------
def draw_steps(
    replay: Replay, rng: np.random.Generator, config: Any, features: Features, put: Callable[[Array], Any]
) -> ReplayBatch:
    """Draw `batch_size` steps. `put`: moves an array to the device of the networks."""
    rows = replay.rows(rng, config.batch_size, config.rewarded_fraction)

    def inputs(observations: Leaves) -> NetworkInput:
        vector, images = network_inputs(features, observations, None)
        return NetworkInput(put(vector), [put(image) for image in images])

    masks, next_masks = features.open_actions(rows.observations), features.open_actions(rows.next_observations)
    return ReplayBatch(
        observations=inputs(rows.observations),
        actions=put(rows.actions),
        rewards=put(rows.rewards),
        next_observations=inputs(rows.next_observations),
        discounts=put(np.float32(config.gamma) * ~rows.terminated),
        masks=None if masks is None else put(masks),
        next_masks=None if next_masks is None else put(_next_masks(next_masks)),
    )


def draw_sequences(
    replay: Replay, rng: np.random.Generator, config: Any, features: Features, put: Callable[[Array], Any]
) -> ReplayBatch:
    """Draw `sequences` sequences and return all of their steps, packed: the first steps of all, the longest first, then
    all second steps, and so on. `put`: moves an array to the device of the networks."""
    drawn = replay.sequences(rng, config.sequences, config.sequence_length, config.rewarded_fraction)
    order = np.argsort(-drawn.mask.sum(axis=0), kind="stable")
    steps = drawn.mask[:, order]
    observed = np.concatenate((np.ones_like(steps[:1]), steps))  # with the observation after the last step of each
    leaves = {path: rows[:, order][observed] for path, rows in drawn.observations.items()}
    previous_actions, previous_rewards = (
        np.concatenate((np.zeros_like(rows[:1]), rows))[:, order][observed] for rows in (drawn.actions, drawn.rewards)
    )
    counts = observed.sum(axis=1).tolist()
    rows, after = np.flatnonzero(np.concatenate((steps, steps[:1] & False))[observed]), slice(counts[0], None)
    starts = np.arange(len(previous_actions)) < counts[0]
    vector = put(features.vector(leaves, (starts, previous_actions, previous_rewards)))
    masks = features.open_actions(leaves)
    return ReplayBatch(
        observations=NetworkInput(vector, (), counts, put(rows)),
        actions=put(drawn.actions[:, order][steps]),
        rewards=put(drawn.rewards[:, order][steps]),
        next_observations=NetworkInput(vector, (), counts, after),
        discounts=put(np.float32(config.gamma) * ~drawn.terminated[:, order][steps]),
        masks=None if masks is None else put(masks[rows]),
        next_masks=None if masks is None else put(_next_masks(masks[after])),
    )


def _next_masks(masks: Array) -> Array:
    """[N, actions] bool. A mask after an episode's end may be all zero: then all actions count as open."""
    return masks | ~masks.any(axis=-1, keepdims=True)  # guard: a-closed-end-is-valued
