"""Networks that learn from replay, whatever policy collected it: what SAC, TD3, discrete SAC and DQN have in common."""

from __future__ import annotations

import itertools
import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.algorithm import Learner, OwnNetwork, UpdateReport, mean_metrics, reason_for_torch
from multiverse.algorithms.capabilities import RunRequirements, algorithms_that
from multiverse.algorithms.inputs import inputs, layout_of
from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Policy
from multiverse.core.views import Array
from multiverse.kernels import kernel_of
from multiverse.learning.batches import NetworkInput, ReplayBatch
from multiverse.learning.loss import as_numpy
from multiverse.learning.network_spec import CustomNetwork, NetworkSpec
from multiverse.learning.normalizers import like
from multiverse.learning.numpy_network import NumpyNetwork, NumpyParameters
from multiverse.learning.optimizers import Optimizer
from multiverse.learning.recurrent_network import RecurrentNetwork
from multiverse.learning.threads import torch_for
from multiverse.policies.cells import Cells
from multiverse.policies.features import Features
from multiverse.policies.heads import HEADS, Head, UniformHead, action_of, outputs_for
from multiverse.policies.numpy_policies import NumpyPolicy
from multiverse.rollouts.replay import NothingToDraw, Replay, Rows, Sequences
from multiverse.rollouts.rollout import Rollout, mask_beside

log = logging.getLogger("multiverse")

Layers = list[tuple[Array, Array]]
"""(weights [in, out], bias [out]) of dense layers."""
MEMORY_ROWS = 64
"""For so many rows cells remember at first, at most, however long sequences may be."""
LARGEST_IN_NUMPY = 512
"""Units of a hidden layer: up to that numpy was faster than torch here, also for TD3's customary 400 and 300."""


# -- what learns -------------------------------------------------------------------------------------------------
class OffPolicy(Learner):
    """Replay, networks and their targets, random warm-up, and the number of gradient steps that are due.

    A subclass defines `outputs`, `make_networks`, `head`, the losses that `losses` names, and `gradient_step`.
    """

    from_replay = keeps_masks = True
    in_turn = False  # what a step led to is the next row's observation, which is not so where agents act in turn
    fixed = frozenset({"steps_per_env", "buffer_size", "hidden_sizes", "activation", "memory", "memory_size",
                       "markov_actor", "observation_embedding", "action_embedding", "reward_embedding",
                       "learner"})  # fmt: skip
    losses: tuple[str, ...] = ("loss",)
    """Names of the methods that return a loss."""
    steps = 0
    """Gradient steps so far, with the one that is being taken."""

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
        """`network`: of the user, in the place of convolutions or of the observation's embedding."""
        super().__init__()
        self._refuse_unsupported(config, observation_space, action_space, device, network is not None)
        self.config, self.steps_per_env = config, config.steps_per_env
        self.observation_space, self.action_space = observation_space, action_space
        embedded = config.action_embedding + config.reward_embedding
        see_previous, small_images = config.memory is not None and embedded > 0, network is not None
        self._seen = Features(observation_space, action_space, see_previous, small_images=small_images)
        self.features = self._seen
        if config.markov_actor:
            self.features = Features(observation_space, action_space, small_images=small_images)
        layout = layout_of(self._seen, observation_space)
        self.own_network = None if network is None else CustomNetwork(*network, layout)
        self.action = action_of(action_space)
        self._seed, self._device = seed, device
        self._networks: dict[str, Any] = {}  # by name, and
        self.targets: dict[str, Any] = {}
        """Networks that follow others, by the name of the network that each follows."""
        self._rng = np.random.default_rng((seed, 1))
        self._env_steps, self._updates, self._owed = 0, 0, 0.0
        self._checked_losses: set[str] = set()
        self._policy: Policy | None = None
        self._acting: tuple[Any, Any, Any] | None = None  # layers, cell and embedding that act now
        self._make_auxiliary((seed, 4), device)
        self._kernels = self._kernels_of_losses()
        self.make_networks()
        self._refuse_other_outputs(self._networks)
        if heads := self._auxiliary_parameters:
            from multiverse.networks.torch_network import AuxiliaryParameters

            self._networks["auxiliary"] = AuxiliaryParameters(heads)
        _ = self._checked_layers(self.head()), self.policy()  # what cannot act is refused before anything is collected
        self._new_replay = partial(Replay, observation_space, self.action, slots, config.buffer_size)
        self.replay = self._new_replay()

    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        memory = run.settings.memory
        if (reason := super().supports(run)) or memory is None or cls.recurrent_images:
            return reason
        if run.has_images or run.device not in ("auto", "cpu"):
            able = algorithms_that(lambda one: one.recurrent_images, "and")
            return (
                f"memory={memory!r}: {cls.title()} learns with one from numbers, on the CPU; {able} do so from images "
                "and on a GPU too"
            )
        return None

    @classmethod
    def cautions(cls, run: RunRequirements) -> list[str]:
        """Random actions come first: a run may be over by then."""
        settings, first, budget = run.settings, run.settings.learning_starts, run.env_steps
        if not budget:
            return []
        left, share = budget - first, settings.updates_per_step
        if left <= 0:
            return [f"learning_starts={first:,} and env_steps={budget:,}: nothing is learned in this run"]
        if settings.gradient_steps is None and left * share < 1:
            steps = f"the {left:,} env steps after learning_starts={first:,}"
            return [f"updates_per_step={share:g}: no gradient step is due in {steps}"]
        return []

    def keep_masks(self, actions: int) -> None:
        """Before anything is collected: rollouts have action masks beside the observations. They are kept in replay, so
        that the values of what follows a step are those of open actions."""
        for features in (self.features, self._seen):
            features.mask = mask_beside(actions)
        self.replay = self._new_replay([mask_beside(actions)])

    # -- of a subclass -------------------------------------------------------------------------------------------
    acts: str = "actor"
    """The network that acts."""

    def head(self) -> Head:
        """Return the head that makes actions of the outputs of the layers that act, as it explores now."""
        raise self._missing("head")

    def acting_layers(self) -> Layers:
        """Return (weights [in, out], bias [out]) of the dense layers that act: those of the network named by `acts`.

        A subclass with other `outputs` of that network either folds a linear function of them, such as their mean, into
        the last layer, or overrides `head`."""
        layers: Layers = self._networks[self.acts].layers()
        return layers

    def make_networks(self) -> None:
        """Create the networks, with `new_network` and `new_parameters`, and keep them as attributes. Called once."""
        raise self._missing("make_networks")

    def gradient_step(self, batch: ReplayBatch) -> tuple[Any, dict[str, Any]]:
        """Compute the gradient of each loss with `gradient`, take the steps with `take_step`, and let the targets
        follow; return what `take_step` returned, and the metrics."""
        raise self._missing("gradient_step")

    def before_learning(self) -> None:
        """Do what is due before the gradient steps of an update, such as hard updates of targets."""

    def _missing(self, method: str) -> InvalidRequest:
        return InvalidRequest(f"{type(self).__name__} derives from OffPolicy and does not define {method}()")

    # -- networks ------------------------------------------------------------------------------------------------
    def _kernels_of_losses(self) -> dict[str, Callable[..., Any]]:
        """The numpy kernel of each loss; none where torch differentiates them."""
        config, name = self.config, type(self).__name__
        kernels = {loss: kernel_of(type(self), loss) for loss in self.losses}
        own = [loss for loss, kernel in kernels.items() if kernel is None]
        largest = 0 if config.memory else max(config.hidden_sizes, default=0)
        why_torch = reason_for_torch(
            config.learner,
            {
                f"the loss of {name} ({', '.join(own)})": bool(own),
                f"modules() of {name}": bool(self.auxiliary),
                **self._of_network(),
                "learning from images": bool(self.features.images),
                f"learning on {self._device}": self._device != "cpu",
                f"layers of more than {LARGEST_IN_NUMPY} units": largest > LARGEST_IN_NUMPY,
            },
        )
        if why_torch:
            torch_for(why_torch)
        if own or self.auxiliary:
            own += ["modules()"] if self.auxiliary else []
            log.info("%s learns in torch, because no numpy kernel exists for its %s", name, " and its ".join(own))
        return {} if why_torch else {loss: kernel for loss, kernel in kernels.items() if kernel is not None}

    def new_network(self, name: str, copies: int = 0, more: int = 0, target: bool = True) -> Any:
        """Return a network from observations, and `more` numbers such as actions, to as many outputs as `outputs`
        says: `network(batch.observations)` is [rows, outputs]. With `copies`, that many networks side by side: [copies,
        rows, outputs]. `target`: `self.targets[name]` follows it."""
        outputs = self._outputs_of(name)
        config, images = self.config, [tuple(leaf.space.shape or ()) for leaf in self.features.images]
        size, hidden = self.features.size + more, config.hidden_sizes
        shape = NetworkSpec(
            size, images, self.action_space, hidden, config.activation, ortho_init=False, network=self.own_network
        )
        if remembers := config.memory is not None and not (config.markov_actor and name == self.acts):
            shape = self._recurrent(images)
        seed = (self._seed, 3, len(self._networks))
        network: Any
        if not self._kernels:
            from multiverse.networks.torch_network import TorchNetwork

            network = TorchNetwork(shape, outputs, copies, seed, self._device, more=more)
        elif remembers:
            network = RecurrentNetwork(shape, outputs, more, copies, seed)
        else:
            network = NumpyNetwork(shape, outputs, copies, seed)
        self._networks[name] = network
        if target:
            self.targets[name] = network.target()
        return network

    def new_parameters(self, name: str, first: Array) -> Any:
        """Return numbers that are learned beside the networks, such as a temperature: their tensor is `.values`."""
        if self._kernels:
            self._networks[name] = NumpyParameters(first)
        else:
            from multiverse.networks.torch_network import TorchParameters

            self._networks[name] = TorchParameters(first, self._device)
        return self._networks[name]

    def _recurrent(self, images: Sequence[Any]) -> NetworkSpec:
        """The shape of networks that remember."""
        config = self.config
        units = config.observation_embedding, config.action_embedding, config.reward_embedding
        return NetworkSpec(
            self._seen.size, (), self.action_space, config.hidden_sizes, config.activation, memory=config.memory,
            memory_size=config.memory_size, chunk_length=min(config.sequence_length or MEMORY_ROWS, MEMORY_ROWS),
            embeddings=tuple(zip(self._seen.parts, units if self._seen.see_previous else (units[0], 0, 0))),
            network=self.own_network,
        )  # fmt: skip

    @property
    def _optimizers(self) -> dict[str, Optimizer]:
        """All that learn, by name."""
        return {name: network.optimizer for name, network in self._networks.items()}

    # -- acting --------------------------------------------------------------------------------------------------
    def policy(self) -> Policy:
        """Random until learning starts; then what the algorithm explores with. Without noise it is what was learned."""
        if self._policy is None:
            self._policy = self._new_policy()
        return self._policy

    @property
    def _warming_up(self) -> bool:
        return bool(self._env_steps < self.config.learning_starts)

    def _new_policy(self) -> Policy:
        head, network = self.head(), self._networks[self.acts]
        acting = UniformHead(head) if self._warming_up else head
        if self.features.images or self.own_network is not None:
            from multiverse.algorithms.torch_policy import TorchPolicy

            first = Cells(self.config.memory, [network.cell()]).first_memory(1) if network.remembers else {}
            own = type(self).acting_layers is not OffPolicy.acting_layers
            dense = (self._checked_layers(head), self.config.activation) if own else None
            return TorchPolicy(
                self.features, network.acting, acting, self._updates, network.device, None, (first, None), dense
            )
        if self._acting is None:
            recurrent: tuple[Any, Any] = (None, None)
            if network.remembers:
                recurrent = Cells(self.config.memory, [network.cell()]), network.embedding()
            self._acting = self._checked_layers(head), *recurrent
        layers, cell, embedding = self._acting
        return NumpyPolicy(self.features, layers, self.config.activation, acting, self._updates, None, cell, embedding)

    def _checked_layers(self, head: Head) -> Layers:
        """The layers that act; refused if they do not fit together, or not one of our heads."""
        layers = [
            (np.asarray(weights, np.float32), np.asarray(bias, np.float32)) for weights, bias in self.acting_layers()
        ]
        name, shapes = type(self).__name__, [(weights.shape, bias.shape) for weights, bias in layers]
        widths = [shapes[0][0][0], *(len(bias) for _, bias in layers)] if layers else [0]
        if shapes != [(pair, pair[1:]) for pair in itertools.pairwise(widths)] or not layers:
            raise InvalidRequest(f"acting_layers() of {name} returned weights and biases of shapes {shapes}: expected "
                                 "[in, out] and [out] of each layer")  # fmt: skip
        # guard: layers-fit-the-head
        if type(head) in HEADS and widths[-1] != (needed := outputs_for(head, self.action_space)):
            raise InvalidRequest(
                f"the layers that act of {name} have {widths[-1]} outputs, and its head, {type(head).__name__}, takes "
                f"{needed}: override acting_layers() or head() together with outputs()"
            )
        return layers

    # -- learning ------------------------------------------------------------------------------------------------
    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Keep the rollout, and take the gradient steps that are due, each on steps drawn from replay."""
        (rollout,) = rollouts
        self.keep(rollout, progress)
        # Steps in replay are those of the run, unless it was resumed without replay: then it fills up before learning.
        if self.replay.added * rollout.slots <= self.config.learning_starts:  # guard: an-empty-replay-fills-up-first
            return UpdateReport()
        return self.learn(self._due(rollout.steps * rollout.slots))

    def keep(self, rollout: Rollout, progress: float) -> None:
        """To learn from; all that goes by env steps or `progress`, exploration and targets, goes on."""
        self.replay.add(rollout)
        self._env_steps += rollout.steps * rollout.slots
        self._updates, self.progress, self._policy = self._updates + 1, progress, None

    def learn(self, gradient_steps: int) -> UpdateReport:
        """So many of them, on what replay holds."""
        self.before_learning()
        self._policy, found = None, list[tuple[Any, dict[str, Any]]]()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # noticed where the gradient is
            for batch in self._minibatches(gradient_steps):
                self.steps += 1
                found.append(self.gradient_step(batch))
        if not found:
            return UpdateReport()
        self._acting = None
        xp = self._networks[self.acts].xp
        taken = as_numpy(xp.stack([took for took, _ in found])).tolist()
        self._refuse_many_bad(taken)
        report = mean_metrics([metrics for (_, metrics), took in zip(found, taken) if took], xp)
        return UpdateReport(report, sum(taken), len(taken) - sum(taken))

    @cached_property
    def _has_custom_loss(self) -> bool:
        return any(kernel_of(type(self), loss) is None for loss in self.losses)

    def gradient(self, loss: str, network: Any, *given: Any) -> dict[str, Any]:
        """Compute the gradient of the method named `loss`, which is called with the given arguments, by the parameters
        of this network alone; return the metrics of the loss."""
        if self._kernels:
            metrics: dict[str, Any] = self._kernels[loss](self, *given)
            return metrics
        if first := loss not in self._checked_losses and self._has_custom_loss:
            from multiverse.networks.modules import refuse_untrained

            self._checked_losses.add(loss)
            refuse_untrained(self, self._auxiliary_parameters)
        with self._training((self.steps, self.losses.index(loss))):
            return dict(network.gradient(getattr(self, loss)(*given), loss, self._networks.get("auxiliary"), first))

    def take_step(self, *networks: Any, max_grad_norm: float = math.inf) -> Any:
        """Take an optimizer step of each of these networks and of the auxiliary modules; return whether all of them
        were taken: a gradient that is not finite is skipped."""
        heads = [one for name, one in self._networks.items() if name == "auxiliary"]
        taken = [one.optimizer.step(self.config.learning_rate, max_grad_norm) for one in (*networks, *heads)]
        for one in heads:  # the losses of the next step add to it
            one.optimizer.gradient.zero_()
        return reduce(operator.and_, taken)

    def _due(self, env_steps: int) -> int:
        """Gradient steps, after so many env steps more."""
        given = self.config.gradient_steps
        if given is not None:
            return env_steps if given == -1 else int(given)
        self._owed += env_steps * self.config.updates_per_step
        due = int(self._owed)
        self._owed -= due
        return due

    def _minibatches(self, count: int) -> Iterator[ReplayBatch]:
        for _ in range(count):
            try:
                batch = self._drawn_steps() if self.config.memory is None else self._drawn_sequences()
            except NothingToDraw:  # all steps so far were lost
                return
            batch.noise = [self._normal(*batch.actions.shape) for _ in range(self.noise_draws)]
            yield batch

    def _drawn_steps(self) -> ReplayBatch:
        return self._minibatch(self.replay.rows(self._rng, self.config.batch_size, self.config.rewarded_fraction))

    def _minibatch(self, rows: Rows) -> ReplayBatch:
        put, features = self._put, self.features
        seen, after = (inputs(features, leaves, None) for leaves in (rows.observations, rows.next_observations))
        masks, masks_after = (features.open_actions(leaves) for leaves in (rows.observations, rows.next_observations))
        return ReplayBatch(
            NetworkInput(put(seen[0]), [put(image) for image in seen[1]]),
            put(rows.actions),
            put(rows.rewards),
            NetworkInput(put(after[0]), [put(image) for image in after[1]]),
            put(np.float32(self.config.gamma) * ~rows.terminated),
            None if masks is None else put(masks),
            None if masks_after is None else put(_open_after(masks_after)),
        )

    def _drawn_sequences(self) -> ReplayBatch:
        """All steps of some sequences, packed: the first steps of all, the longest first, then all second steps, …"""
        config = self.config
        found: Sequences = self.replay.sequences(
            self._rng, config.sequences, config.sequence_length, config.rewarded_fraction
        )
        order = np.argsort(-found.mask.sum(axis=0), kind="stable")
        steps = found.mask[:, order]
        there = np.concatenate((np.ones_like(steps[:1]), steps))  # and what the last of each led to
        leaves = {path: rows[:, order][there] for path, rows in found.observations.items()}
        before = [
            np.concatenate((np.zeros_like(one[:1]), one))[:, order][there] for one in (found.actions, found.rewards)
        ]
        counts = there.sum(axis=1).tolist()
        rows, after = np.flatnonzero(np.concatenate((steps, steps[:1] & False))[there]), slice(counts[0], None)
        starts = np.arange(len(before[0])) < counts[0]
        vector, put = self._put(self._seen.vector(leaves, (starts, before[0], before[1]))), self._put
        masks = self._seen.open_actions(leaves)
        return ReplayBatch(
            NetworkInput(vector, (), counts, put(rows)),
            put(found.actions[:, order][steps]),
            put(found.rewards[:, order][steps]),
            NetworkInput(vector, (), counts, after),
            put(np.float32(config.gamma) * ~found.terminated[:, order][steps]),
            None if masks is None else put(masks[rows]),
            None if masks is None else put(_open_after(masks[after])),
        )

    def _put(self, array: Array) -> Any:
        return self._networks[self.acts].put(array)

    def _normal(self, *shape: int) -> Any:
        """Gaussian noise, where the networks are."""
        return self._put(self._rng.standard_normal(shape, dtype=np.float32))

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
            target.follow(1.0)
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
            "owed": self._owed,
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
        self._owed, self.progress = float(state["owed"]), float(state["progress"])
        self.change(**state["changed"])
        self.replay.load(state["replay"])
        self._policy = self._acting = None


def _open_after(masks: Array) -> Array:
    """[N, actions] bool. A mask after an episode's end may be all zero: then all actions count as open."""
    return masks | ~masks.any(axis=-1, keepdims=True)  # guard: a-closed-end-is-valued
