"""An actor and a critic that learn from rollouts of their present policy: what PPO and A2C have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.algorithm import Learner, OwnNetwork, UpdateReport, mean_metrics, reason_for_torch
from multiverse.algorithms.capabilities import RunRequirements
from multiverse.algorithms.central_critic import StateInputs, TeamInputs
from multiverse.algorithms.inputs import (
    flat,
    inputs,
    layout_of,
    previous_after,
    previous_at_ends,
    previous_of,
)
from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Leaves, Policy
from multiverse.core.views import Array
from multiverse.kernels import kernel_of
from multiverse.learning.batches import TEAM, Chunks, Packing, RolloutBatch, split_into_chunks
from multiverse.learning.convolution import Convolution
from multiverse.learning.loss import Loss, Outputs, as_numpy
from multiverse.learning.network_spec import CustomNetwork, NetworkSpec
from multiverse.learning.normalizers import RewardNormalizer, RunningMeanStd
from multiverse.learning.numpy_learner import NumpyLearner
from multiverse.learning.optimizers import Adam, Optimizer
from multiverse.learning.returns import generalized_advantages, merge_turns, next_values
from multiverse.learning.threads import torch_for
from multiverse.policies.cells import Cells
from multiverse.policies.features import Features, Previous
from multiverse.policies.heads import action_of, head_for
from multiverse.policies.numpy_policies import NumpyPolicy
from multiverse.rollouts.rollout import Rollout

log = logging.getLogger("multiverse")

LARGEST_IN_NUMPY = 256
"""Units of a hidden layer: beyond that, matrix products are all that counts, and torch's are as fast."""


# -- what learns -------------------------------------------------------------------------------------------------
class OnPolicy(Learner):
    """A policy and a value network, normalisers, rollouts with advantages and returns, and an update of one gradient
    step on each rollout. A subclass defines `loss`."""

    asynchronous = auto_num_envs = recurrent_images = True
    fixed = frozenset({
        "steps_per_env", "whole_episodes", "hidden_sizes", "activation", "filters", "kernel_size", "share_features",
        "normalize_observations", "normalize_rewards", "squash", "memory", "memory_size", "see_previous", "critic",
        "learner",
    })  # fmt: skip
    optimizer: type[Optimizer] = Adam
    _has_kernel = False
    """Whether a numpy kernel gives the gradient of the loss."""
    max_lag = 0
    """Updates that a rollout's policy may be behind, where it is collected asynchronously."""

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
        """`agents`: of each env, whose slots lie side by side. `state_space`: of the envs' state(), if it is used.
        `network`: of the user, in the place of convolutions."""
        super().__init__()
        self._refuse_unsupported(config, observation_space, action_space, device, network is not None)
        self._agents, self._seed, self._gradients = agents, seed, 0
        self.config, self.steps_per_env = config, config.steps_per_env
        self.observation_space, self.action_space = observation_space, action_space
        small_images = network is not None
        self.features = Features(observation_space, action_space, config.see_previous, small_images=small_images)
        self._layout = layout_of(self.features, observation_space)
        self.own_network = None if network is None else CustomNetwork(*network, self._layout)
        self.action = action_of(action_space)
        self._view: TeamInputs | StateInputs | None = None  # of a critic that sees more than the policy
        if config.critic == "central" and agents > 1:
            self._view = TeamInputs(self.features.size, Features(observation_space, action_space), agents)
            if self.own_network is not None and self.features.images:
                raise InvalidRequest(
                    f"network={self.own_network.name}: with critic='central' it sees the observations of the whole "
                    "team, which cannot be images; use critic='own' or 'state'"
                )
        elif config.critic == "state":
            normalize = config.normalize_observations
            self._view = StateInputs(self.features.size, agents, state_space, action_space, normalize)
        self._make_auxiliary((seed, 4), device)
        self._networks = self._new_networks(seed, device)
        self._rng = np.random.default_rng((seed, 1))
        self._moments = RunningMeanStd(self.features.size) if config.normalize_observations else None
        self._reward_scale = RewardNormalizer(slots, config.gamma) if config.normalize_rewards else None
        self._updates = 0
        self._earlier: dict[int, tuple[Array, tuple[Array, Array] | None]] = {}  # by version: weights and moments
        self._lag: dict[str, float] = {}  # what is told of it
        self._policy: Policy | None = None
        _ = self.policy()  # what cannot act is refused before anything is collected

    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        settings = run.settings
        if reason := super().supports(run):
            return reason
        if run.asynchronous and settings.whole_episodes:
            return "asynchronous: does not go together with whole_episodes, where who has ended waits"
        if run.kind == "single" and settings.critic != "own":
            alone = f"{run.env} has one agent, and 'central' and 'state' are for several"
            return f"critic={settings.critic!r}: {alone}: leave it out"
        if run.kind is not None and settings.critic == "central" and not run.has_teams:
            return (
                f"critic='central': of {run.env}, no agent here has teammates that share its learner; critic='state' "
                "shows values the env's state(), if it has one"
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

    def _new_networks(self, seed: int, device: str) -> Any:
        """In numpy where a few small dense layers on the CPU are all there is, which is faster; else in torch."""
        named = ("hidden_sizes", "activation", "ortho_init", "log_std_init", "squash", "share_features", "memory",
                 "memory_size", "chunk_length")  # fmt: skip
        images = [tuple(leaf.space.shape or ()) for leaf in self.features.images]
        settings = {name: getattr(self.config, name) for name in named}
        judged = None if self._view is None else self._view.size
        members = self._agents if isinstance(self._view, TeamInputs) else 1
        if self.own_network is not None and self.config.filters:
            raise InvalidRequest(
                f"filters={self.config.filters}: network={self.own_network.name} takes the place of the first layers; "
                "use one of the two (filters=0 where a preset sets them)"
            )
        convolution = self._convolution() if self.config.filters else None
        shape = NetworkSpec(
            self.features.size, images, self.action_space, **settings, critic_size=judged, critic_members=members,
            convolution=convolution, network=self.own_network,
        )  # fmt: skip
        self._loss: Callable[..., Any] = self.loss
        kernel, why_torch, outputs = kernel_of(type(self)), self._why_torch(shape, device), self._outputs_of("critic")
        self._refuse_other_outputs(["critic"])
        if kernel is not None and not why_torch:
            self._loss, self._has_kernel = partial(kernel, self), True
            return NumpyLearner(shape, self.optimizer, seed)
        torch_for(why_torch)
        if kernel is None or self.auxiliary:
            log.info("%s learns in torch, because no numpy kernel exists for its %s", type(self).__name__,
                     "modules()" if kernel is not None else "loss")  # fmt: skip
        from multiverse.networks.actor_critic import ActorCritic

        auxiliary = self._auxiliary_parameters
        return ActorCritic(shape, self.optimizer, seed, device, auxiliary, outputs, self.values_from)

    def outputs(self) -> Mapping[str, int]:
        """A value. Those of the policy are the parameters of its distribution over actions."""
        return {"critic": 1}

    def values_from(self, outputs: Any) -> Any:
        """Return the values [rows] that outputs [rows, outputs] of the value network stand for."""
        return outputs[:, 0]

    def _why_torch(self, spec: NetworkSpec, device: str) -> str:
        """Why torch differentiates the loss; "" where a numpy kernel is faster and may do it."""
        name = type(self).__name__
        largest = max(*spec.hidden_sizes, 0, spec.memory_size if spec.memory else 0)
        return reason_for_torch(
            self.config.learner,
            {
                f"the loss of {name}": kernel_of(type(self)) is None,
                f"modules() of {name}": bool(self.auxiliary),
                **self._of_network(),
                "learning from images": bool(spec.images),
                f"learning on {device}": device != "cpu",
                f"layers of more than {LARGEST_IN_NUMPY} units": largest > LARGEST_IN_NUMPY,
            },
        )

    def _convolution(self) -> Convolution:
        if self.features.board is None:
            raise InvalidRequest(
                f"filters={self.config.filters}: for observations of one Box of three axes, and these are "
                f"{self.features.all_leaves[0].space if len(self.features.all_leaves) == 1 else 'several'}; "
                "images of 36 × 36 bytes and more have convolutions of their own"
            )
        return Convolution(self.features.board, self.config.filters, self.config.kernel_size)

    def set_slots(self, slots: int) -> None:
        """So many from here on (`num_envs="auto"`), all at the beginning of an episode."""
        if self._reward_scale is not None:
            self._reward_scale.set_slots(slots)

    def _network_modules(self) -> dict[str, Any]:
        return dict(self._networks.modules)

    # -- acting --------------------------------------------------------------------------------------------------
    def policy(self) -> Policy:
        """In numpy where a few dense layers are all there is; else the network itself, in torch."""
        if self._policy is None:
            self._policy = self._new_policy()
        return self._policy

    def _new_policy(self) -> Policy:
        networks, frozen = self._networks, self._frozen_moments()
        log_std = networks.distribution.log_std
        std = None if log_std is None else np.exp(as_numpy(log_std))
        head = head_for(self.action_space, std, self.config.squash)
        cells = None if self.config.memory is None else Cells(self.config.memory, networks.cells())
        if self.features.images or self.own_network is not None:
            from multiverse.algorithms.torch_policy import TorchPolicy

            critic = networks.critic if self._view is None else None
            remembers = None if cells is None else (cells.first_memory(1), critic)
            return TorchPolicy(self.features, networks.actor, head, self._updates, networks.device, frozen, remembers)
        return NumpyPolicy(self.features, networks.layers(), self.config.activation, head, self._updates, frozen, cells)

    def _frozen_moments(self) -> tuple[Array, Array] | None:
        return None if self._moments is None else self._moments.shift_and_scale()

    # -- learning ------------------------------------------------------------------------------------------------
    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        """The loss that a gradient step decreases, from the outputs of the networks for the rows of a batch."""
        raise InvalidRequest(f"{type(self).__name__} derives from OnPolicy and does not define loss(out, batch)")

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Take one gradient step on the whole rollout."""
        (rollout,) = rollouts
        self._refuse_older(rollout)
        self.progress = progress
        learning_rate = self.config.scheduled(progress).get("learning_rate", float(self.config.learning_rate))
        metrics = self._gradient(self._batch(rollout))
        (took,) = self._count([self._networks.optimizer.step(learning_rate, self.config.max_grad_norm)])
        self._updated(rollout)
        return UpdateReport(self._means([metrics]) | self._lag, int(took), int(not took))

    def value_loss(self, values: Any, batch: RolloutBatch) -> Any:
        """The mean squared error of the values [rows]."""
        return ((values - batch.returns) ** 2).mean()

    @cached_property
    def _has_custom_loss(self) -> bool:
        return kernel_of(type(self)) is None

    def _gradient(self, batch: RolloutBatch, with_metrics: bool = True) -> Mapping[str, Any]:
        """Put the gradient of the loss where the optimizer takes it; returns the metrics of the loss."""
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
        """Gaussian noise, where the networks are."""
        return self._networks.put(self._rng.standard_normal(shape, np.float32))

    def _means(self, metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return mean_metrics(metrics, self._networks.xp)

    def _refuse_older(self, rollout: Rollout) -> None:
        """Than it may be; and remember what acts now, for rollouts of it that come later."""
        oldest = self._updates - self.max_lag
        if not oldest <= rollout.policy_version <= self._updates:  # guard: rollouts-of-an-older-policy-are-refused
            behind = f", or one at most {self.max_lag} updates older" if self.max_lag else ""
            raise InvalidRequest(
                f"the rollout was collected by version {rollout.policy_version} of the policy, and this is version "
                f"{self._updates}: {type(self).__name__} learns from what its present policy did{behind}"
            )
        if self.max_lag and self.config.lag_correction != "none":
            self._earlier = {version: kept for version, kept in self._earlier.items() if version >= oldest}
            self._earlier[self._updates] = self._networks.optimizer.weights(), self._frozen_moments()

    def _batch(self, rollout: Rollout) -> RolloutBatch:
        """What is learned from where the networks are: rows with values, advantages and returns; of networks that
        remember, in chunks."""
        networks, config, frozen = self._networks, self.config, self._frozen_moments()
        vector, images = inputs(self.features, flat(rollout.observations), frozen, previous_of(rollout))
        masks = rollout.action_masks
        batch = RolloutBatch(
            networks.put(vector),
            [networks.put(image) for image in images],
            networks.put(rollout.actions.reshape(-1, *rollout.actions.shape[2:])),
            None if masks is None else networks.put(masks.reshape(-1, masks.shape[-1])),
        )
        batch.layout = self._layout
        remembers = config.memory is not None and self._view is None
        look = self._values_along_chunks if remembers else self._values
        values, last_values, final_values = look(rollout, batch)
        ended, rewards, acting = rollout.terminated | rollout.truncated, rollout.rewards, rollout.acting
        if acting is None or acting.all():
            acting = None
            following = next_values(values, last_values, rollout.terminated, rollout.truncated, final_values)
        else:
            assert rollout.acting_next is not None
            told = rewards, rollout.terminated, rollout.truncated, acting, rollout.acting_next
            rewards, following, ended, known = merge_turns(*told, values, last_values, final_values)
            rollout.valid &= known  # guard: an-action-without-an-outcome-is-not-learned-from
        if self._reward_scale is not None:
            over, parts = rollout.terminated | rollout.truncated, [part.slots for part in rollout.parts]
            rewards = self._reward_scale.scaled(rewards, ended, rollout.valid, acting, over, parts)
        now, then = self._log_probs_now_and_then(rollout, batch)
        log_ratios = None if now is None or then is None or config.lag_correction != "vtrace" else now - then
        how = config.gamma, config.gae_lambda, acting, log_ratios
        advantages, returns = generalized_advantages(rewards, values, following, ended, rollout.valid, *how)
        if log_ratios is not None and not self.has_ratio:
            advantages = advantages * np.exp(np.minimum(log_ratios, 0))
        columns, own = {"values": values, "advantages": advantages, "returns": returns}, self._has_custom_loss
        if own:
            columns |= {"rewards": rewards, "starts": rollout.starts}
        if then is not None and (own or self.has_ratio):
            columns["log_probs"] = then
        batch.columns |= {name: networks.put(column.reshape(-1)) for name, column in columns.items()}
        learned = self._learned_from(rollout, batch)
        if then is None and (own or self.has_ratio):
            learned.columns["log_probs"] = networks.log_probs(learned)
        return learned

    def _log_probs_now_and_then(self, rollout: Rollout, batch: RolloutBatch) -> tuple[Array | None, Array | None]:
        """[T, S] of what was done, by the present policy and by the one that did it; None where that is the same, or
        nothing is made of it. Both from the networks themselves: of equal weights they are equal to the last bit."""
        versions = np.repeat([part.version for part in rollout.parts], [len(part.slots) for part in rollout.parts])
        self._lag = {"policy_lag": float(self._updates - versions.mean())} if len(versions) else {}
        older = sorted({*versions.tolist()} - {self._updates}) if self.config.lag_correction != "none" else []
        if not older:
            return None, None
        networks, shape = self._networks, rollout.rewards.shape
        numbers = networks.put(np.arange(rollout.rewards.size))

        def log_probs(seen: Any) -> Array:
            some = RolloutBatch(seen, batch.images, batch.actions, batch.masks, **batch.columns, row=numbers)
            learned, found = self._learned_from(rollout, some), np.zeros(rollout.rewards.size, np.float32)
            found[as_numpy(learned["row"])] = as_numpy(networks.log_probs(learned))
            return found.reshape(shape)

        now, weights = log_probs(batch.vector), networks.optimizer.weights()
        then = now.copy()
        try:
            for version in older:
                theirs, frozen = self._earlier[version]
                networks.optimizer.load_weights(theirs)
                vector, _ = inputs(self.features, flat(rollout.observations), frozen, previous_of(rollout))
                acted = versions == version
                then[:, acted] = log_probs(networks.put(vector))[:, acted]
        finally:
            networks.optimizer.load_weights(weights)
        self._lag["importance_weight"] = float(np.exp(np.minimum(now - then, 0))[rollout.valid].mean())
        return now, then

    def _learned_from(self, rollout: Rollout, batch: RolloutBatch) -> RolloutBatch:
        """The rows that are, as the networks take them; of all rows of the rollout."""
        valid, networks = rollout.valid.reshape(-1), self._networks
        if self.config.memory is not None:
            rows, counts = self._chunks(rollout).drop_invalid(valid).pack()
            return batch.take_packed(networks.put(rows), self._along(rollout, rows, counts))
        return batch if valid.all() else batch.take(networks.put(np.flatnonzero(valid)))

    def _values(self, rollout: Rollout, batch: RolloutBatch) -> tuple[Array, Array, tuple[Array, Array, Array]]:
        """([T, S] of all rows, [S] of what came after the last, (steps, slots, values) of final observations)."""
        networks, frozen = self._networks, self._frozen_moments()
        steps, slots, finals = rollout.ends()
        last = inputs(self.features, rollout.last, frozen, previous_after(rollout))
        final, images = inputs(self.features, finals, frozen, previous_at_ends(rollout, steps, slots))
        seen: Any = batch.vector
        if self._view is not None:
            own = as_numpy(batch.vector).reshape(*rollout.rewards.shape, -1)
            judged, after, final = self._view.judged(rollout, own, last[0], final)
            last, seen = (after, last[1]), networks.put(judged.reshape(len(batch), -1))
            batch.columns[TEAM] = seen
        values = networks.values(seen, batch.images).reshape(rollout.rewards.shape)
        return values, networks.values(*last), (steps, slots, networks.values(final, images))

    # -- with memory ---------------------------------------------------------------------------------------------
    def _chunks(self, rollout: Rollout) -> Chunks:
        ended = rollout.terminated | rollout.truncated
        return split_into_chunks(rollout.starts, ended, rollout.valid, rollout.acting, self.config.chunk_length)

    def _along(self, rollout: Rollout, rows: Array, counts: Sequence[int]) -> Packing:
        """From what the policy remembered before the first row of each chunk."""
        cells = rollout.memory["cells"]
        firsts = rows[: counts[0] if counts else 0]
        return Packing(counts, self._networks.put(cells.reshape(-1, *cells.shape[2:])[firsts]))

    def _values_along_chunks(
        self, rollout: Rollout, batch: RolloutBatch
    ) -> tuple[Array, Array, tuple[Array, Array, Array]]:
        """As `_values`. What is remembered where an episode ends is what was after its last row, which also is the last
        of its chunk."""
        networks, frozen = self._networks, self._frozen_moments()
        rows, counts = self._chunks(rollout).pack()
        along, order = self._along(rollout, rows, counts), networks.put(rows)
        found, after = networks.recurrent_values(batch.vector[order], [image[order] for image in batch.images], along)
        values = np.zeros(rollout.rewards.size, np.float32)  # rows in which nobody acted have none
        values[rows] = found

        def one_more(leaves: Leaves, previous: Previous | None, memory: Array) -> Array:
            """[rows] values of what is seen after that."""
            if not len(memory):
                return np.zeros(0, np.float32)
            alone = Packing([len(memory)], networks.put(memory))
            return np.asarray(networks.recurrent_values(*inputs(self.features, leaves, frozen, previous), alone)[0])

        last_values = one_more(rollout.last, previous_after(rollout), rollout.last_memory["cells"])
        steps, slots, finals = rollout.ends()
        memory, chunk = rollout.memory["cells"][steps, slots], np.full(values.shape, -1)
        chunk[rows[along.last_rows()]] = np.arange(len(after))
        chunk = chunk[steps * rollout.slots + slots]
        memory[chunk >= 0] = after[chunk[chunk >= 0]]
        final_values = steps, slots, one_more(finals, previous_at_ends(rollout, steps, slots), memory)
        return values.reshape(rollout.rewards.shape), last_values, final_values

    def _count(self, taken: Sequence[Any]) -> list[bool]:
        """Which gradient steps were taken. Asked once an update: a GPU is not waited for in between."""
        known = as_numpy(self._networks.xp.stack(taken)).tolist() if taken else []
        self._refuse_many_bad(known)
        return known

    def _updated(self, rollout: Rollout) -> None:
        """One more update is done; what normalises observations changes between rollouts only."""
        self._updates, self._gradients, self._policy = self._updates + 1, 0, None
        if self._moments is not None:
            seen = self.features.vector(flat(rollout.observations), previous_of(rollout))
            self._moments.update(seen[rollout.valid.reshape(-1)])
        if isinstance(self._view, StateInputs):
            self._view.saw(rollout)

    # -- saving --------------------------------------------------------------------------------------------------
    def weights(self) -> dict[str, Any]:
        moments = {name: moments.state() for name, moments in self._normalizers()}
        return {"parameters": self._networks.optimizer.weights(), **moments, **self._custom_weights()}

    def _normalizers(self) -> list[tuple[str, RunningMeanStd]]:
        of_states = None if self._view is None else self._view.moments
        found = (("observations", self._moments), ("states", of_states))
        return [(name, one) for name, one in found if one is not None]

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        self._networks.optimizer.load_weights(weights["parameters"])
        for name, moments in self._normalizers():
            if name in weights:
                moments.load(weights[name])
        self._load_custom_weights(weights)
        self._policy = None

    def state(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            "optimizer": self._networks.optimizer.state(),
            "rng": self._rng.bit_generator.state,
            "updates": self._updates,
            "changed": dict(self._changed),
        }
        if self._reward_scale is not None:
            saved["rewards"] = self._reward_scale.state()
        return saved

    def load(self, state: Mapping[str, Any]) -> None:
        self._networks.optimizer.load(state["optimizer"])
        self._rng.bit_generator.state = state["rng"]
        self._updates, self._policy = int(state["updates"]), None
        self.change(**state["changed"])
        if self._reward_scale is not None:
            self._reward_scale.load(state["rewards"])


def explained_variance(values: Array, returns: Array) -> float:
    """1: values are the returns; 0: no better than their mean."""
    with np.errstate(invalid="ignore"):
        variance = float(returns.var())
    return 1.0 - float((returns - values).var()) / variance if variance > 0 else float("nan")
