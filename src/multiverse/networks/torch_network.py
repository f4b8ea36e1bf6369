"""Networks that learn from replay, in torch: autograd differentiates the losses of the algorithms.

They have the same parameters in the same order as `NumpyNetwork` and `RecurrentNetwork`, so that a run of one
can be resumed with the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multiverse.contracts.views import Array
from multiverse.learning.loss import Loss, Shape, Shown, as_numpy, parameters_of
from multiverse.learning.optimizers import Adam, Optimizer
from multiverse.learning.recurrent_network import embedded_columns, embedding_of
from multiverse.networks.modules import (
    ACTIVATIONS,
    Network,
    backward,
    cell_for,
    first_weights,
    in_one_tensor,
    layers_of,
)


class Stacked(nn.Module):
    """One network [rows, outputs], or several alike side by side [copies, rows, outputs]."""

    def __init__(self, networks: Sequence[Network], copies: int, size: int) -> None:
        super().__init__()
        self.flat = torch.empty(0)
        self.networks, self.copies, self.size = nn.ModuleList(networks), copies, size

    def forward(self, shown: Shown, more: Tensor | None = None, first: bool = False) -> Tensor:
        """`first`: of the first of the copies alone."""
        vector: Tensor = shown.vector
        if shown.rows is not None:  # of sequences: the rows that are asked about, as much as this network sees of each
            vector = vector[shown.rows, : self.size - (0 if more is None else more.shape[-1])]
        given = vector if more is None else torch.cat((vector, more), -1)
        if first or not self.copies:
            return self.networks[0](given, shown.images)
        return torch.stack([network(given, shown.images) for network in self.networks])


class Recurrent(nn.Module):
    """Embeddings, a recurrent cell and a shortcut, which copies of the dense layers share (see `RecurrentNetwork`).

    The cell goes along the sequences of a batch once for as long as neither they nor the parameters change.
    """

    def __init__(self, shape: Shape, outputs: int, more: int, copies: int) -> None:
        super().__init__()
        self.columns = [columns for columns, _ in embedded_columns(shape)]
        widths = [
            (columns.stop - columns.start, units.stop - units.start) for columns, units in embedded_columns(shape)
        ]
        self.embeddings = nn.ModuleList([nn.Linear(*width) for width in widths])
        self.cell = cell_for(shape, sum(units for _, units in widths))
        self.observed, self.copies = shape.embeddings[0][0], copies
        self.shortcut = nn.Linear(self.observed + more, shape.memory_size)
        sizes = (2 * shape.memory_size, *shape.hidden_sizes, outputs)
        _ = parameters_of(sizes)  # refused if they are too many
        self.heads = nn.ModuleList([_dense(sizes, shape.activation) for _ in range(max(1, copies))])
        self.flat = torch.empty(0)  # all parameters; given by who has them
        self._along: dict[str, Any] = {}  # the sequences it went along last, the parameters' version, hidden states

    def forward(self, shown: Shown, more: Tensor | None = None, first: bool = False) -> Tensor:
        """`first`: of the first of the copies alone."""
        observed = shown.vector[:, : self.observed][shown.rows]
        short = self.shortcut(observed if more is None else torch.cat((observed, more), -1)).relu()
        given = torch.cat((self._hidden(shown)[shown.rows], short), -1)
        if first or not self.copies:
            return self.heads[0](given)
        return torch.stack([head(given) for head in self.heads])

    def _hidden(self, shown: Shown) -> Tensor:
        """[rows, size] hidden states after all rows of all sequences."""
        version = self.flat._version
        if self._along.get("vector") is not shown.vector or self._along["version"] != version:
            # With a graph even where the first to ask needs no gradient: others ask for the same sequences after it.
            with torch.enable_grad():
                parts = [layer(shown.vector[:, of]) for of, layer in zip(self.columns, self.embeddings)]
                packed = PackedSequence(torch.cat(parts, -1).relu(), torch.tensor(shown.counts))
                hidden = self.cell(packed)[0].data
            self._along.update(vector=shown.vector, version=version, hidden=hidden)
        found: Tensor = self._along["hidden"]
        return found


class TorchNetwork:
    """A module and its optimizer: `network(batch.observations)`, or `network(batch.observations, actions)` for a critic
    that judges actions."""

    xp = torch

    def __init__(
        self,
        shape: Shape,
        outputs: int,
        copies: int,
        seed: Sequence[int],
        device: str,
        epsilon: float = 1e-8,
        more: int = 0,
    ) -> None:
        self.device, self._shape, self.remembers = torch.device(device), shape, shape.memory is not None
        with first_weights(seed):
            self.module: Any = (
                Recurrent(shape, outputs, more, copies)
                if shape.memory is not None
                else Stacked([Network(shape, outputs, 1.0) for _ in range(max(1, copies))], copies, shape.size)
            )
        self.module.to(self.device)
        self.parameters = list(self.module.parameters())
        flat = torch.cat([one.detach().reshape(-1) for one in self.parameters])
        self.optimizer: Optimizer = Adam(torch, flat, epsilon)
        in_one_tensor(self.parameters, self.optimizer)
        self.module.flat = self.optimizer.parameters

    def __call__(self, shown: Shown, more: Tensor | None = None) -> Tensor:
        found: Tensor = self.module(shown, more)
        return found

    def put(self, array: Array) -> Tensor:
        """Where the network is."""
        return torch.as_tensor(array, device=self.device)

    def gradient(
        self, loss: Loss, name: str = "loss", auxiliary: AuxiliaryParameters | None = None
    ) -> dict[str, Tensor]:
        """Put the gradient of this loss by the network's own parameters where the optimizer takes it, and add that by
        auxiliary ones to theirs; returns the metrics of the loss. `name`: of the method that returned it."""
        return backward(loss, self.optimizer, self.parameters, name, auxiliary)

    def first(self) -> Callable[..., Tensor]:
        """The first of the copies alone, with the same parameters."""
        return partial(self.module, first=True)

    def target(self) -> TorchTarget:
        """A network that begins as this one and follows it slowly."""
        return TorchTarget(self)

    # -- acting --------------------------------------------------------------------------------------------------
    @property
    def networks(self) -> Any:
        """The copies, of networks that do not remember."""
        return self.module.networks

    def layers(self) -> list[tuple[Array, Array]]:
        """(weights [in, out], bias) of the dense layers, copies."""
        return layers_of(self.module.heads[0] if self.remembers else self.module.networks[0].dense)

    def cell(self) -> list[Array]:
        """The weights of the recurrent cell, copies."""
        return [as_numpy(one) for one in self.module.cell.parameters()]

    def embedding(self) -> tuple[Array, Array]:
        """(weights [in, out], bias) of one layer that computes all that is embedded, and then the shortcut."""
        layers = [*self.module.embeddings, self.module.shortcut]
        return embedding_of(self._shape, [(as_numpy(layer.weight), as_numpy(layer.bias)) for layer in layers])


class TorchTarget:
    """A module whose parameters follow another network's."""

    def __init__(self, network: TorchNetwork) -> None:
        self._module = deepcopy(network.module).requires_grad_(False)
        self._followed, self.parameters, start = network.optimizer, network.optimizer.parameters.clone(), 0
        for one in self._module.parameters():
            one.data = self.parameters[start : start + one.numel()].view_as(one)
            start += one.numel()
        self._module.flat = self.parameters

    def __call__(self, shown: Shown, more: Tensor | None = None) -> Tensor:
        found: Tensor = self._module(shown, more)
        return found

    def follow(self, tau: float) -> None:
        """θ' ← θ' + τ (θ - θ')"""
        self.parameters.lerp_(self._followed.parameters, tau)


class TorchParameters:
    """Learned numbers that depend on no input, with their optimizer."""

    xp = torch

    def __init__(self, first: Array, device: str, epsilon: float = 1e-8) -> None:
        self.optimizer: Optimizer = Adam(torch, torch.as_tensor(first, device=device).clone(), epsilon)
        self.values = nn.Parameter(torch.empty_like(self.optimizer.parameters))
        in_one_tensor([self.values], self.optimizer)

    def exp(self) -> Tensor:
        """e to the power of the first of them; no gradient flows through it."""
        return self.values[0].detach().exp()

    def gradient(
        self, loss: Loss, name: str = "loss", auxiliary: AuxiliaryParameters | None = None
    ) -> dict[str, Tensor]:
        """As of a network."""
        return backward(loss, self.optimizer, [self.values], name, auxiliary)


class AuxiliaryParameters:
    """Parameters of auxiliary modules, and their optimizer."""

    xp = torch

    def __init__(self, parameters: Sequence[nn.Parameter], epsilon: float = 1e-8) -> None:
        self.parameters = parameters
        flat = torch.cat([one.detach().reshape(-1) for one in parameters])
        self.optimizer: Optimizer = Adam(torch, flat, epsilon)
        in_one_tensor(parameters, self.optimizer)


def _dense(sizes: Sequence[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inward, outward in itertools.pairwise(sizes):
        layers += [nn.Linear(inward, outward), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
