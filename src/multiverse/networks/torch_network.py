"""Networks that learn from replay, in torch: autograd differentiates the losses of the algorithms.

They have the same parameters in the same order as `NumpyNetwork` and `RecurrentNetwork`, so that a run of one
can be resumed with the other.
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
from multiverse.core.views import Array
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
    along,
    backward,
    begin_cell,
    begin_dense,
    cell_for,
    dense,
    first_weights,
    fixed_names,
    fixed_tensors,
    layers_of,
    load_fixed_tensors,
    share_storage,
    trained,
)


class NetworkStack(nn.Module):
    """One network [rows, outputs], or several alike side by side [copies, rows, outputs], which share a network of the
    user but not their convolutions."""

    def __init__(self, spec: NetworkSpec, outputs: int, copies: int) -> None:
        super().__init__()
        self.flat = torch.empty(0)
        first = Network(spec, outputs)
        self._shares = spec.network is not None
        others = [Network(spec, outputs, first.extract if self._shares else None) for _ in range(1, copies)]
        self.networks, self.copies, self.size = nn.ModuleList([first, *others]), copies, spec.size

    def begin(self, rng: np.random.Generator) -> None:
        """Set the first weights of the dense layers, in the order of `NumpyNetwork`."""
        begin_dense(rng, [network.dense for network in self.networks], ortho_init=False)

    def forward(self, shown: NetworkInput, more: Tensor | None = None, first: bool = False) -> Tensor:
        """`first`: of the first of the copies alone."""
        given = self._given(shown, more)
        if first or not self.copies:
            return self.networks[0](given, shown.images)
        if self._shares:
            features = self.networks[0].features(given, shown.images)
            return torch.stack([network.dense(features) for network in self.networks])
        return torch.stack([network(given, shown.images) for network in self.networks])

    def features(self, shown: NetworkInput, more: Tensor | None = None) -> Tensor:
        """[rows, features] that the dense layers of the first of the copies are given."""
        return self.networks[0].features(self._given(shown, more), shown.images)

    def _given(self, shown: NetworkInput, more: Tensor | None) -> Tensor:
        vector: Tensor = shown.vector
        if shown.rows is not None:  # of sequences: the rows that are asked about, as much as this network sees of each
            vector = vector[shown.rows, : self.size - (0 if more is None else more.shape[-1])]
        return vector if more is None else torch.cat((vector, more), -1)

    @property
    def acting(self) -> Any:
        """The module that acts: the first of the copies."""
        return self.networks[0]


class RecurrentStack(nn.Module):
    """Embeddings, a recurrent cell and a shortcut, which copies of the dense layers share (see `RecurrentNetwork`). A
    network of the user takes the place of the observation's embedding, and its features go along the shortcut.

    The cell goes along the sequences of a batch once for as long as neither they nor the parameters change.
    """

    def __init__(self, spec: NetworkSpec, outputs: int, more: int, copies: int) -> None:
        super().__init__()
        self.columns = [columns for columns, _ in embedded_columns(spec)]
        widths = [(columns.stop - columns.start, units.stop - units.start) for columns, units in embedded_columns(spec)]
        self.observed, self.copies, own = spec.embeddings[0][0], copies, spec.network
        self.extract = None if own is None else CustomExtractor(replace(spec, size=self.observed), own)
        if self.extract is not None:
            widths[0] = (self.observed, self.extract.size)
        embedded = [nn.Linear(*width) for width in widths[0 if own is None else 1 :]]
        self.embeddings = nn.ModuleList(embedded)
        self.cell = cell_for(spec, sum(units for _, units in widths))
        self.seen = sum(units for _, units in widths)
        shown = self.observed if self.extract is None else self.extract.size
        self.shortcut = nn.Linear(shown + more, spec.memory_size)
        sizes = (2 * spec.memory_size, *spec.hidden_sizes, outputs)
        _ = count_parameters(sizes)  # refused if they are too many
        self.heads = nn.ModuleList([dense(sizes, spec.activation) for _ in range(max(1, copies))])
        self.flat = torch.empty(0)  # all parameters; given by who has them
        self._along: dict[str, Any] = {}  # the sequences it went along last, the parameters' version, hidden states
        self._spec = spec

    def begin(self, rng: np.random.Generator) -> None:
        """Set the first weights of all but a network of the user, in the order of `RecurrentNetwork`."""
        for layer in self.embeddings:
            begin_dense(rng, [[layer]], ortho_init=False)
        begin_cell(rng, self.cell, self._spec)
        begin_dense(rng, [[self.shortcut]], ortho_init=False)
        begin_dense(rng, self.heads, ortho_init=False)

    def forward(self, shown: NetworkInput, more: Tensor | None = None, first: bool = False) -> Tensor:
        """`first`: of the first of the copies alone."""
        hidden, observed = self._hidden(shown)
        given = self._with_shortcut(hidden[shown.rows], observed[shown.rows], more)
        if first or not self.copies:
            return self.heads[0](given)
        return torch.stack([head(given) for head in self.heads])

    def _with_shortcut(self, hidden: Tensor, observed: Tensor, more: Tensor | None) -> Tensor:
        return torch.cat(
            (hidden, self.shortcut(observed if more is None else torch.cat((observed, more), -1)).relu()), -1
        )

    def _hidden(self, shown: NetworkInput) -> tuple[Tensor, Tensor]:
        """[rows, size] hidden states after all rows of all sequences, and [rows, …] what the shortcut is given."""
        version = self.flat._version
        if self._along.get("vector") is not shown.vector or self._along["version"] != version:
            # With a graph even where the first to ask needs no gradient: others ask for the same sequences after it.
            with torch.enable_grad():
                seen, observed = self._embedded(shown.vector)
                hidden = self.cell(PackedSequence(seen, torch.tensor(shown.counts)))[0].data
            self._along.update(vector=shown.vector, version=version, hidden=(hidden, observed))
        found: tuple[Tensor, Tensor] = self._along["hidden"]
        return found

    def _embedded(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, seen] of the cell, and what the shortcut is given of the observation."""
        if self.extract is None:
            parts = [layer(vector[:, of]) for of, layer in zip(self.columns, self.embeddings)]
            return torch.cat(parts, -1).relu(), vector[:, : self.observed]
        features = self.extract(vector[:, : self.observed], ())
        parts = [layer(vector[:, of]).relu() for of, layer in zip(self.columns[1:], self.embeddings)]
        return torch.cat([features, *parts], -1), features

    # -- acting, one row at a time (as `Network`) ----------------------------------------------------------------
    @property
    def acting(self) -> RecurrentStack:
        """The module that acts, without results kept for a batch."""
        self._along.clear()
        return self

    @property
    def dense(self) -> nn.Module:
        """The layers behind the cell and the shortcut."""
        return self.heads[0]

    def features(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Return the input of the cell, and behind it that of the shortcut."""
        return torch.cat(self._embedded(vector), -1)

    def recur(self, seen: Tensor, counts: Sequence[int], memory: Tensor) -> tuple[Tensor, Tensor]:
        """As of `Network`."""
        hidden, after = along(self.cell, seen[:, : self.seen], counts, memory)
        return self._with_shortcut(hidden, seen[:, self.seen :], None), after


class TorchNetwork:
    """A module and its optimizer: `network(batch.observations)`, or `network(batch.observations, actions)` for a critic
    that judges actions."""

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
        with first_weights(seed):
            self.module: Any = (
                RecurrentStack(spec, outputs, more, copies)
                if spec.memory is not None
                else NetworkStack(spec, outputs, copies)
            )
        self.module.begin(np.random.default_rng(seed))
        self.module.to(self.device)
        self.parameters = trained(self.module)
        flat = torch.cat([one.detach().reshape(-1) for one in self.parameters])
        self.optimizer: Optimizer = Adam(torch, flat, epsilon)
        share_storage(self.parameters, self.optimizer)
        self.module.flat = self.optimizer.parameters

    def __call__(self, shown: NetworkInput, more: Tensor | None = None) -> Tensor:
        found: Tensor = self.module(shown, more)
        return found

    def put(self, array: Array) -> Tensor:
        """Where the network is."""
        return torch.as_tensor(array, device=self.device)

    def gradient(
        self, loss: Loss, name: str = "loss", auxiliary: AuxiliaryParameters | None = None, first: bool = False
    ) -> dict[str, Tensor]:
        """Put the gradient of this loss by the network's own parameters where the optimizer takes it, and add that by
        auxiliary ones to theirs; returns the metrics of the loss. `name`: of the method that returned it. `first`: see
        `backward`."""
        return backward(loss, self.optimizer, self.parameters, name, auxiliary, first)

    def first(self) -> Callable[..., Tensor]:
        """The first of the copies alone, with the same parameters."""
        return partial(self.module, first=True)

    def target(self) -> TorchTarget:
        """A network that begins as this one and follows it slowly."""
        return TorchTarget(self)

    def features(self, shown: NetworkInput, more: Tensor | None = None) -> Tensor:
        """[rows, features] of a network of yours or of convolutions, for the same arguments."""
        if self.recurrent:
            raise InvalidRequest("features(): a network with a memory has none for single rows; use it without memory")
        found: Tensor = self.module.features(shown, more)
        return found

    # -- acting --------------------------------------------------------------------------------------------------
    @property
    def acting(self) -> Any:
        """The module that acts."""
        return self.module.acting

    def layers(self) -> list[tuple[Array, Array]]:
        """(weights [in, out], bias) of the dense layers, copies."""
        return layers_of(self.module.heads[0] if self.recurrent else self.module.networks[0].dense)

    def cell(self) -> list[Array]:
        """The weights of the recurrent cell, copies."""
        return [as_numpy(one) for one in self.module.cell.parameters()]

    def embedding(self) -> tuple[Array, Array]:
        """(weights [in, out], bias) of one layer that computes all that is embedded, and then the shortcut."""
        layers = [*self.module.embeddings, self.module.shortcut]
        return embedding_of(self._spec, [(as_numpy(layer.weight), as_numpy(layer.bias)) for layer in layers])


class TorchTarget(Target):
    """A module whose parameters follow another network's."""

    def __init__(self, network: TorchNetwork) -> None:
        self._module = copied(network.module)
        self._modules, self._fixed = ({"target": self._module}, {"target": network.module}), fixed_names(network.module)
        self._source, self.parameters, start = network.optimizer, network.optimizer.parameters.clone(), 0
        for one in trained(self._module):
            one.data = self.parameters[start : start + one.numel()].view_as(one)
            start += one.numel()
        self._module.requires_grad_(False).eval()
        self._module.flat = self.parameters

    def __call__(self, shown: NetworkInput, more: Tensor | None = None) -> Tensor:
        found: Tensor = self._module(shown, more)
        return found

    def soft_update(self, tau: float) -> None:
        """θ' ← θ' + τ (θ - θ'); frozen parameters and buffers are copied."""
        self.parameters.lerp_(self._source.parameters, tau)
        if self._fixed:
            mine, theirs = (one["target"].state_dict() for one in self._modules)
            for name in self._fixed:
                mine[name].copy_(theirs[name])

    def fixed(self) -> dict[str, Array]:
        """Frozen parameters and buffers, by name."""
        return fixed_tensors(*self._modules)

    def load_fixed(self, saved: Any) -> None:
        """Take over what `fixed` returned."""
        load_fixed_tensors(*self._modules, saved)


class TorchParameters:
    """Learned numbers that depend on no input, with their optimizer."""

    xp = torch

    def __init__(self, first: Array, device: str, epsilon: float = 1e-8) -> None:
        self.optimizer: Optimizer = Adam(torch, torch.as_tensor(first, device=device).clone(), epsilon)
        self.values = nn.Parameter(torch.empty_like(self.optimizer.parameters))
        share_storage([self.values], self.optimizer)

    def exp(self) -> Tensor:
        """e to the power of the first of them; no gradient flows through it."""
        return self.values[0].detach().exp()

    def gradient(
        self, loss: Loss, name: str = "loss", auxiliary: AuxiliaryParameters | None = None, first: bool = False
    ) -> dict[str, Tensor]:
        """As of a network."""
        return backward(loss, self.optimizer, [self.values], name, auxiliary, first)


class AuxiliaryParameters:
    """Parameters of auxiliary modules, and their optimizer."""

    xp = torch

    def __init__(self, parameters: Sequence[nn.Parameter], epsilon: float = 1e-8) -> None:
        self.parameters = parameters
        flat = torch.cat([one.detach().reshape(-1) for one in parameters])
        self.optimizer: Optimizer = Adam(torch, flat, epsilon)
        share_storage(parameters, self.optimizer)
