"""Networks of algorithms that learn from replay, in torch: autograd differentiates their losses.

They have the same parameters in the same order as `NumpyNetwork` and `RecurrentNetwork`, so that a run of one can be
resumed with the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.learning.batches import NetworkInput
from multiverse.learning.loss import Loss, as_numpy
from multiverse.learning.network_spec import NetworkSpec, count_parameters
from multiverse.learning.numpy_network import Target
from multiverse.learning.optimizers import Adam, Optimizer
from multiverse.learning.recurrent_network import embedded_columns, embedding_of
from multiverse.networks.extractors import copied
from multiverse.networks.modules import (
    CustomExtractor,
    Network,
    backward,
    cell_for,
    dense,
    fixed_names,
    fixed_tensors,
    initial_weights,
    initialize_cell,
    initialize_dense,
    layers_of,
    load_fixed_tensors,
    run_cell,
    share_storage,
    trained,
)


class NetworkStack(nn.Module):
    """A network [rows, outputs], or several copies [copies, rows, outputs], which share a network of the user but not
    their convolutions."""

    def __init__(self, spec: NetworkSpec, outputs: int, copies: int) -> None:
        super().__init__()
        self.flat = torch.empty(0)
        first = Network(spec, outputs)
        self._shares = spec.network is not None
        others = [Network(spec, outputs, first.extract if self._shares else None) for _ in range(1, copies)]
        self.networks, self.copies, self.size = nn.ModuleList([first, *others]), copies, spec.size

    def initialize(self, rng: np.random.Generator) -> None:
        """Set the initial weights of the dense layers, in the order of `NumpyNetwork`."""
        initialize_dense(rng, [network.dense for network in self.networks], ortho_init=False)

    def forward(self, inputs: NetworkInput, more: Tensor | None = None, first: bool = False) -> Tensor:
        """Return the outputs; `first`: of the first copy only."""
        vector = self._vector(inputs, more)
        if first or not self.copies:
            return self.networks[0](vector, inputs.images)
        if self._shares:
            features = self.networks[0].features(vector, inputs.images)
            return torch.stack([network.dense(features) for network in self.networks])
        return torch.stack([network(vector, inputs.images) for network in self.networks])

    def features(self, inputs: NetworkInput, more: Tensor | None = None) -> Tensor:
        """Return the input [rows, features] of the dense layers of the first copy."""
        return self.networks[0].features(self._vector(inputs, more), inputs.images)

    def _vector(self, inputs: NetworkInput, more: Tensor | None) -> Tensor:
        vector: Tensor = inputs.vector
        if inputs.rows is not None:  # of packed sequences: the selected rows, and the columns that this network has
            vector = vector[inputs.rows, : self.size - (0 if more is None else more.shape[-1])]
        return vector if more is None else torch.cat((vector, more), -1)

    @property
    def acting(self) -> Any:
        """The module of the policy: the first copy."""
        return self.networks[0]


class RecurrentStack(nn.Module):
    """Embeddings, a recurrent cell and a shortcut, which copies of the dense layers share (see `RecurrentNetwork`). A
    network of the user replaces the observation's embedding, and its features are the input of the shortcut.

    The hidden states of a batch are computed once for as long as the parameters stay the same.
    """

    def __init__(self, spec: NetworkSpec, outputs: int, more: int, copies: int) -> None:
        super().__init__()
        self.columns = [columns for columns, _ in embedded_columns(spec)]
        widths = [(columns.stop - columns.start, units.stop - units.start) for columns, units in embedded_columns(spec)]
        self.observed, self.copies, custom = spec.embeddings[0][0], copies, spec.network
        self.extract = None if custom is None else CustomExtractor(replace(spec, size=self.observed), custom)
        if self.extract is not None:
            widths[0] = (self.observed, self.extract.size)
        embedded = [nn.Linear(inward, outward) for inward, outward in widths[0 if custom is None else 1 :]]
        self.embeddings = nn.ModuleList(embedded)
        self.cell = cell_for(spec, sum(units for _, units in widths))
        self.cell_inputs = sum(units for _, units in widths)
        shortcut_inputs = self.observed if self.extract is None else self.extract.size
        self.shortcut = nn.Linear(shortcut_inputs + more, spec.memory_size)
        sizes = (2 * spec.memory_size, *spec.hidden_sizes, outputs)
        _ = count_parameters(sizes)  # refuses too many
        self.heads = nn.ModuleList([dense(sizes, spec.activation) for _ in range(max(1, copies))])
        self.flat = torch.empty(0)  # all parameters, in one tensor
        self._cache: dict[str, Any] = {}  # vector and version of the parameters, with the hidden states
        self._spec = spec

    def initialize(self, rng: np.random.Generator) -> None:
        """Set the initial weights of all but a network of the user, in the order of `RecurrentNetwork`."""
        for layer in self.embeddings:
            initialize_dense(rng, [[layer]], ortho_init=False)
        initialize_cell(rng, self.cell, self._spec)
        initialize_dense(rng, [[self.shortcut]], ortho_init=False)
        initialize_dense(rng, self.heads, ortho_init=False)

    def forward(self, inputs: NetworkInput, more: Tensor | None = None, first: bool = False) -> Tensor:
        """Return the outputs; `first`: of the first copy only."""
        hidden, observed = self._hidden(inputs)
        features = self._with_shortcut(hidden[inputs.rows], observed[inputs.rows], more)
        if first or not self.copies:
            return self.heads[0](features)
        return torch.stack([head(features) for head in self.heads])

    def _with_shortcut(self, hidden: Tensor, observed: Tensor, more: Tensor | None) -> Tensor:
        return torch.cat(
            (hidden, self.shortcut(observed if more is None else torch.cat((observed, more), -1)).relu()), -1
        )

    def _hidden(self, inputs: NetworkInput) -> tuple[Tensor, Tensor]:
        """Return (hidden states [rows, size] after all rows of all sequences, observation's input of the shortcut)."""
        version = self.flat._version
        if self._cache.get("vector") is not inputs.vector or self._cache["version"] != version:
            # With a graph even if the first caller needs no gradient, because later callers of the batch may need it.
            with torch.enable_grad():
                embedded, observed = self._embed(inputs.vector)
                hidden = self.cell(PackedSequence(embedded, torch.tensor(inputs.counts)))[0].data
            self._cache.update(vector=inputs.vector, version=version, hidden=(hidden, observed))
        cached: tuple[Tensor, Tensor] = self._cache["hidden"]
        return cached

    def _embed(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return (inputs [rows, cell_inputs] of the cell, observation's input of the shortcut)."""
        if self.extract is None:
            parts = [layer(vector[:, columns]) for columns, layer in zip(self.columns, self.embeddings)]
            return torch.cat(parts, -1).relu(), vector[:, : self.observed]
        features = self.extract(vector[:, : self.observed], ())
        parts = [layer(vector[:, columns]).relu() for columns, layer in zip(self.columns[1:], self.embeddings)]
        return torch.cat([features, *parts], -1), features

    # -- acting, one row at a time (as `Network`) ----------------------------------------------------------------
    @property
    def acting(self) -> RecurrentStack:
        """The module of the policy, without cached results."""
        self._cache.clear()
        return self

    @property
    def dense(self) -> nn.Module:
        """The layers after the cell and the shortcut."""
        return self.heads[0]

    def features(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Return the input of the cell, followed by that of the shortcut."""
        return torch.cat(self._embed(vector), -1)

    def recur(self, features: Tensor, counts: Sequence[int], memory: Tensor) -> tuple[Tensor, Tensor]:
        """See `Network.recur`."""
        hidden, after = run_cell(self.cell, features[:, : self.cell_inputs], counts, memory)
        return self._with_shortcut(hidden, features[:, self.cell_inputs :], None), after


class TorchNetwork:
    """A module and its optimizer: `network(batch.observations)`, or `network(batch.observations, actions)` for a critic
    of actions."""

    xp = torch

    def __init__(
        self,
        spec: NetworkSpec,
        outputs: int,
        copies: int,
        seed: Sequence[int],
        device: str,
        epsilon: float = 1e-8,
        more: int = 0,
    ) -> None:
        self.device, self._spec, self.recurrent = torch.device(device), spec, spec.memory is not None
        with initial_weights(seed):
            self.module: Any = (
                RecurrentStack(spec, outputs, more, copies)
                if spec.memory is not None
                else NetworkStack(spec, outputs, copies)
            )
        self.module.initialize(np.random.default_rng(seed))
        self.module.to(self.device)
        self.parameters = trained(self.module)
        flat = torch.cat([value.detach().reshape(-1) for value in self.parameters])
        self.optimizer: Optimizer = Adam(torch, flat, epsilon)
        share_storage(self.parameters, self.optimizer)
        self.module.flat = self.optimizer.parameters

    def __call__(self, inputs: NetworkInput, more: Tensor | None = None) -> Tensor:
        output: Tensor = self.module(inputs, more)
        return output

    def put(self, array: Array) -> Tensor:
        """Move an array to the device of the network."""
        return torch.as_tensor(array, device=self.device)

    def gradient(
        self, loss: Loss, name: str = "loss", auxiliary: AuxiliaryParameters | None = None, first: bool = False
    ) -> dict[str, Tensor]:
        """Write the gradient of this loss by the network's own parameters into the optimizer's, and add that by
        auxiliary parameters to theirs; return the metrics of the loss. `name`: of the method that returned the loss.
        `first`: see `backward`."""
        return backward(loss, self.optimizer, self.parameters, name, auxiliary, first)

    def first(self) -> Callable[..., Tensor]:
        """Return the first copy alone, with the same parameters."""
        return partial(self.module, first=True)

    def target(self) -> TorchTarget:
        """Return a target network, initially equal to this one."""
        return TorchTarget(self)

    def features(self, inputs: NetworkInput, more: Tensor | None = None) -> Tensor:
        """Return the features [rows, features] of a network of the user or of convolutions, for the same arguments."""
        if self.recurrent:
            raise InvalidRequest(
                "features(): a network with a memory has no features of single rows; use it without memory"
            )
        features: Tensor = self.module.features(inputs, more)
        return features

    # -- acting --------------------------------------------------------------------------------------------------
    @property
    def acting(self) -> Any:
        """The module of the policy."""
        return self.module.acting

    def layers(self) -> list[tuple[Array, Array]]:
        """Return copies of the (weights [in, out], bias) of the dense layers."""
        return layers_of(self.module.heads[0] if self.recurrent else self.module.networks[0].dense)

    def cell(self) -> list[Array]:
        """Return copies of the weights of the recurrent cell."""
        return [as_numpy(value) for value in self.module.cell.parameters()]

    def embedding(self) -> tuple[Array, Array]:
        """Return (weights [in, out], bias) of one layer that computes all embeddings and the shortcut."""
        layers = [*self.module.embeddings, self.module.shortcut]
        return embedding_of(self._spec, [(as_numpy(layer.weight), as_numpy(layer.bias)) for layer in layers])


class TorchTarget(Target):
    """A module whose parameters are updated towards those of another network."""

    def __init__(self, network: TorchNetwork) -> None:
        self._module = copied(network.module)
        self._source_module, self._fixed = network.module, fixed_names(network.module)
        self._source, self.parameters, start = network.optimizer, network.optimizer.parameters.clone(), 0
        for parameter in trained(self._module):
            parameter.data = self.parameters[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self._module.requires_grad_(False).eval()
        self._module.flat = self.parameters

    def __call__(self, inputs: NetworkInput, more: Tensor | None = None) -> Tensor:
        output: Tensor = self._module(inputs, more)
        return output

    def soft_update(self, tau: float) -> None:
        """θ' ← θ' + τ (θ - θ'); frozen parameters and buffers are copied."""
        self.parameters.lerp_(self._source.parameters, tau)
        if self._fixed:
            target, source = self._module.state_dict(), self._source_module.state_dict()
            for name in self._fixed:
                target[name].copy_(source[name])

    def fixed(self) -> dict[str, Array]:
        """Return frozen parameters and buffers, by name."""
        return fixed_tensors({"target": self._module}, like={"target": self._source_module})

    def load_fixed(self, saved: Any) -> None:
        """Load the result of `fixed`."""
        load_fixed_tensors({"target": self._module}, like={"target": self._source_module}, saved=saved)


class TorchParameters:
    """Learned numbers that are not part of a network, with their optimizer."""

    xp = torch

    def __init__(self, initial: Array, device: str, epsilon: float = 1e-8) -> None:
        self.optimizer: Optimizer = Adam(torch, torch.as_tensor(initial, device=device).clone(), epsilon)
        self.values = nn.Parameter(torch.empty_like(self.optimizer.parameters))
        share_storage([self.values], self.optimizer)

    def exp(self) -> Tensor:
        """Return the exponential of the first number; no gradient flows through it."""
        return self.values[0].detach().exp()

    def gradient(
        self, loss: Loss, name: str = "loss", auxiliary: AuxiliaryParameters | None = None, first: bool = False
    ) -> dict[str, Tensor]:
        """See `TorchNetwork.gradient`."""
        return backward(loss, self.optimizer, [self.values], name, auxiliary, first)


class AuxiliaryParameters:
    """Parameters of auxiliary modules, and their optimizer."""

    xp = torch

    def __init__(self, parameters: Sequence[nn.Parameter], epsilon: float = 1e-8) -> None:
        self.parameters = parameters
        flat = torch.cat([value.detach().reshape(-1) for value in parameters])
        self.optimizer: Optimizer = Adam(torch, flat, epsilon)
        share_storage(parameters, self.optimizer)
