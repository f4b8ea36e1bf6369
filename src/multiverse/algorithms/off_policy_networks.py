"""Networks, targets and policies of algorithms that learn from replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from multiverse.algorithms.algorithm import Learner
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.policy import Policy
from multiverse.learning.network_spec import NetworkSpec
from multiverse.learning.numpy_network import NumpyNetwork, NumpyParameters
from multiverse.learning.optimizers import Optimizer
from multiverse.learning.recurrent_network import RecurrentNetwork
from multiverse.policies.cells import Cells
from multiverse.policies.features import Features
from multiverse.policies.heads import HEADS, Head, UniformHead, outputs_for
from multiverse.policies.numpy_policies import NumpyPolicy

Layers = list[tuple[Array, Array]]
"""(weights [in, out], bias [out]) of dense layers."""
MAX_TIME_SCALE = 64
"""Longest initial time scale of recurrent cells, in steps; sequences may be longer."""


class OffPolicyNetworks(Learner):
    """Networks by name, in numpy or torch, their targets, and the policy of one of them."""

    acts: str = "actor"
    """Name of the network that acts."""
    targets: dict[str, Any]
    """Target networks, by the names of the networks that they are updated towards."""
    _networks: dict[str, Any]
    features: Features  # of the policy
    _critic_features: Features  # as `features`; with `markov_actor`, also with the previous action and reward
    _kernels: Mapping[str, Callable[..., Any]]
    _device: str
    _rng: np.random.Generator
    _env_steps: int
    _updates: int
    _policy: Policy | None = None
    _acting: tuple[Any, Any, Any] | None = None  # layers, cells and embedding of the present policy

    # -- extension points ----------------------------------------------------------------------------------------
    def make_networks(self) -> None:
        """Create the networks with `new_network` and `new_parameters`, and assign them to attributes. Called once."""
        raise self._missing("make_networks")

    def head(self) -> Head:
        """Return the head that converts the outputs of `acting_layers` to actions, with the present exploration."""
        raise self._missing("head")

    def acting_layers(self) -> Layers:
        """Return (weights [in, out], bias [out]) of the dense layers of the policy: those of the network `acts`.

        A subclass with other `outputs` of that network either folds a linear function of them, such as their mean, into
        the last layer, or overrides `head`."""
        layers: Layers = self._networks[self.acts].layers()
        return layers

    def _missing(self, method: str) -> InvalidRequest:
        return InvalidRequest(f"{type(self).__name__} derives from OffPolicy and does not define {method}()")

    # -- networks ------------------------------------------------------------------------------------------------
    def new_network(self, name: str, copies: int = 0, more: int = 0, target: bool = True) -> Any:
        """Return a new network with the number of outputs from `outputs`: `network(batch.observations)` is [rows,
        outputs], or with `copies` [copies, rows, outputs]. `more`: number of further inputs, such as actions. `target`:
        create the target network `self.targets[name]`."""
        outputs, seed = self._outputs_of(name), (self._seed, 3, len(self._networks))
        recurrent = self.config.memory is not None and not (self.config.markov_actor and name == self.acts)
        spec = self._recurrent_spec() if recurrent else self._spec(more)
        network: Any
        if not self._kernels:
            from multiverse.networks.torch_network import TorchNetwork

            network = TorchNetwork(spec, outputs, copies=copies, seed=seed, device=self._device, more=more)
        elif recurrent:
            network = RecurrentNetwork(spec, outputs, more=more, copies=copies, seed=seed)
        else:
            network = NumpyNetwork(spec, outputs, copies=copies, seed=seed)
        self._networks[name] = network
        if target:
            self.targets[name] = network.target()
        return network

    def new_parameters(self, name: str, first: Array) -> Any:
        """Return learned numbers that are not part of a network, such as a temperature; their tensor is `.values`."""
        if self._kernels:
            self._networks[name] = NumpyParameters(first)
        else:
            from multiverse.networks.torch_network import TorchParameters

            self._networks[name] = TorchParameters(first, self._device)
        return self._networks[name]

    def _spec(self, more: int) -> NetworkSpec:
        return NetworkSpec(
            size=self.features.size + more,
            images=[tuple(leaf.space.shape or ()) for leaf in self.features.images],
            action_space=self.action_space,
            hidden_sizes=self.config.hidden_sizes,
            activation=self.config.activation,
            ortho_init=False,
            network=self.own_network,
        )

    def _recurrent_spec(self) -> NetworkSpec:
        config, features = self.config, self._critic_features
        units = config.observation_embedding, config.action_embedding, config.reward_embedding
        return NetworkSpec(
            size=features.size,
            images=(),
            action_space=self.action_space,
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            memory=config.memory,
            memory_size=config.memory_size,
            chunk_length=min(config.sequence_length or MAX_TIME_SCALE, MAX_TIME_SCALE),
            embeddings=tuple(zip(features.parts, units if features.see_previous else (units[0], 0, 0))),
            network=self.own_network,
        )

    @property
    def _optimizers(self) -> dict[str, Optimizer]:
        """All optimizers, by the names of their networks."""
        return {name: network.optimizer for name, network in self._networks.items()}

    def _put(self, array: Array) -> Any:
        return self._networks[self.acts].put(array)

    def _normal(self, *shape: int) -> Any:
        """Return Gaussian noise on the device of the networks."""
        return self._put(self._rng.standard_normal(shape, dtype=np.float32))

    # -- acting --------------------------------------------------------------------------------------------------
    def policy(self) -> Policy:
        """Return the present policy: uniformly random until learning starts. Without noise it acts greedily."""
        if self._policy is None:
            self._policy = self._new_policy()
        return self._policy

    @property
    def _warming_up(self) -> bool:
        return bool(self._env_steps < self.config.learning_starts)

    def _new_policy(self) -> Policy:
        head, network = self.head(), self._networks[self.acts]
        exploring = UniformHead(head) if self._warming_up else head
        if self.features.images or self.own_network is not None:
            from multiverse.algorithms.torch_policy import TorchPolicy

            first = Cells(self.config.memory, [network.cell()]).first_memory(1) if network.recurrent else {}
            overridden = type(self).acting_layers is not OffPolicyNetworks.acting_layers
            dense = (self._checked_layers(head), self.config.activation) if overridden else None
            return TorchPolicy(
                self.features, network.acting, exploring, version=self._updates, recurrent=(first, None), dense=dense
            )
        if self._acting is None:
            cells = Cells(self.config.memory, [network.cell()]) if network.recurrent else None
            self._acting = self._checked_layers(head), cells, network.embedding() if network.recurrent else None
        layers, cells, embedding = self._acting
        return NumpyPolicy(
            self.features, layers, self.config.activation, exploring, self._updates, None, cells, embedding
        )

    def _checked_layers(self, head: Head) -> Layers:
        """Return `acting_layers`; refuse layers whose shapes do not fit together, or do not fit a head of ours."""
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
                f"acting_layers() of {name} has {widths[-1]} outputs, and its head, {type(head).__name__}, needs "
                f"{needed}: override acting_layers() or head() together with outputs()"
            )
        return layers
