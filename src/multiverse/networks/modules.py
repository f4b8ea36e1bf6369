"""Networks in torch: dense layers over a vector of features, convolutions over images, or both; and recurrent cells."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multiverse.core.errors import InvalidRequest
from multiverse.core.views import Array
from multiverse.learning.convolution import Convolution
from multiverse.learning.initial_weights import cell_weights, dense_weights
from multiverse.learning.loss import Loss, as_numpy
from multiverse.learning.network_spec import CustomNetwork, NetworkSpec, count_parameters
from multiverse.learning.optimizers import Optimizer
from multiverse.learning.threads import torch_threads
from multiverse.networks.extractors import NatureCNN, build_network, validate_features

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
_ONE_AT_A_TIME = threading.RLock()  # torch's generator is the process's: networks built in threads would share it


@contextmanager
def first_weights(seed: int | Sequence[int]) -> Iterator[None]:
    """Seed torch's generator for the modules that are made inside, and restore it afterwards.

    The dense layers and cells of stock networks then get the first weights of `learning/initial_weights.py`.
    Convolutions over images and attention keep those of torch: no numpy network has them, and torch's QR is several
    times as fast.
    """
    drawn = seed if isinstance(seed, int) else int(np.random.SeedSequence(seed).generate_state(1)[0])
    # One thread: with several the last bits of the first weights would depend on how many.
    with _ONE_AT_A_TIME, torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(drawn)
        yield


def share_storage(parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
    """The modules go on using their parameters, and their gradients, where the optimizer has them."""
    start = 0
    for one in parameters:
        place = slice(start, start + one.numel())
        one.data = optimizer.parameters[place].view_as(one)
        one.grad = optimizer.gradient[place].view_as(one)
        start = place.stop


def trained(*modules: Any) -> list[nn.Parameter]:
    """The parameters of these modules that are trained, each once."""
    every = (one for module in modules for one in module.parameters() if one.requires_grad)
    return list(dict.fromkeys(every))


def fixed_names(module: nn.Module) -> list[str]:
    """Names of the frozen parameters of a module and of its buffers, such as the running statistics of a BatchNorm
    layer."""
    return [name for name, value in module.state_dict(keep_vars=True).items() if not value.requires_grad]


def fixed_tensors(modules: Mapping[str, nn.Module], like: Mapping[str, nn.Module]) -> dict[str, Array]:
    """The tensors of `fixed_names`, by module and name. `like`: the modules that are trained, `modules` or others."""
    return {
        f"{name}.{key}": as_numpy(module.state_dict()[key])
        for name, module in modules.items()
        for key in fixed_names(like[name])
    }


def load_fixed_tensors(modules: Mapping[str, nn.Module], like: Mapping[str, nn.Module], saved: Any) -> None:
    """Take over what `fixed_tensors` returned."""
    own = fixed_tensors(modules, like)
    if not isinstance(saved, Mapping) or saved.keys() != own.keys():
        other = sorted({*saved}.symmetric_difference(own)) if isinstance(saved, Mapping) else ["a part"]
        raise InvalidRequest(f"the saved network differs from this one: only one of the two has {other[0]}")
    for name, module in modules.items():
        tensors = module.state_dict()
        for key in fixed_names(like[name]):
            given, tensor = np.asarray(saved[f"{name}.{key}"]), tensors[key]
            if given.shape != tuple(tensor.shape):
                raise InvalidRequest(
                    f"{name}.{key} of the saved network has shape {given.shape}, and that of this one "
                    f"{tuple(tensor.shape)}"
                )
            tensor.copy_(torch.as_tensor(given))


def trained_parameters(modules: Mapping[str, nn.Module]) -> list[str]:
    """Names and shapes of the trained parameters of the user's parts of these modules, in their order."""
    return [
        f"{key} of shape {tuple(one.shape)}"
        for module in modules.values()
        for part in _custom_parts(module)
        for key, one in part.named_parameters()
        if one.requires_grad
    ]


def check_trained_parameters(modules: Mapping[str, nn.Module], saved: Any) -> None:
    """Refuse what `trained_parameters` returned of modules whose parameters are others, or in another order."""
    for theirs, ours in itertools.zip_longest(saved, trained_parameters(modules), fillvalue="none"):
        if theirs != ours:
            raise InvalidRequest(
                f"the saved network has parameter {theirs}, where this one has {ours}: the layers must be the same, "
                "and __init__ must create them in the same order"
            )


@contextmanager
def training(modules: Sequence[nn.Module], seed: Sequence[int]) -> Iterator[None]:
    """Modules of the user compute as in training (dropout is active); what they draw at random depends on the seed
    alone."""
    drawn = int(np.random.SeedSequence(seed).generate_state(1)[0])
    on_gpu = torch.cuda.is_initialized()
    own = dict.fromkeys(part for module in modules for part in _custom_parts(module))
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []):
        # Not torch.manual_seed, which formats a traceback where no GPU is in use.
        torch.default_generator.manual_seed(drawn)  # guard: dropout-follows-the-seed-of-the-run
        if on_gpu:
            torch.cuda.manual_seed(drawn)
        for module in own:
            module.train()
        try:
            yield
        finally:
            for module in own:
                module.eval()  # guard: networks-act-in-evaluation-mode


def _custom_parts(module: nn.Module) -> list[nn.Module]:
    """The parts of a network that the user wrote; the whole module if it is not a network of ours."""
    return [part.inner for part in module.modules() if isinstance(part, CustomExtractor)] or [module]


def check_aliasing(parameters: Sequence[nn.Parameter], optimizer: Optimizer, name: str) -> None:
    """Raise if parameters or gradients no longer lie where the optimizer has them, so that it would not train them."""
    places = [(flat.data_ptr(), flat.element_size()) for flat in (optimizer.parameters, optimizer.gradient)]
    (values, size), (gradients, _), start = *places, 0
    for one in parameters:
        grad = None if one.grad is None else one.grad.data_ptr()
        if grad != gradients + start * size or one.data_ptr() != values + start * size:
            raise InvalidRequest(
                f"{name}(): the optimizer has lost the gradient of a parameter of shape {tuple(one.shape)}. The "
                "training clears gradients and keeps them in one tensor: do not call zero_grad() or an optimizer, and "
                "do not replace parameters or gradients"
            )
        start += one.numel()


def backward(
    loss: Loss | Tensor,
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    name: str = "loss",
    auxiliary: Any = None,
    first: bool = False,
) -> dict[str, Tensor]:
    """Put the gradient of the loss by these parameters, which lie where the optimizer has them, into its gradient;
    return the metrics of the loss. `name`: of the method that returned the loss. `auxiliary`: what has further
    parameters and their optimizer, to whose gradient that of the loss is added. `first`: refuse a loss that depends on
    none of the parameters."""
    found = loss if isinstance(loss, Loss) else Loss(loss)
    total = found.total
    if not isinstance(total, Tensor) or total.dim():
        kind = f"shape {tuple(total.shape)}" if isinstance(total, Tensor) else f"type {type(total).__name__}"
        raise InvalidRequest(
            f"{name}() returned a total of {kind}: expected a scalar tensor, such as a mean over the rows"
        )
    if not total.requires_grad:
        raise InvalidRequest(
            f"{name}() returned a total that depends on no parameter: compute it from outputs of the networks, without "
            "detach() or no_grad()"
        )
    metrics = {metric: torch.as_tensor(value, device=total.device) for metric, value in found.metrics.items()}
    if rows := [metric for metric, value in metrics.items() if value.numel() != 1]:
        raise InvalidRequest(
            f"{name}() returned the metric {rows[0]!r} with shape {tuple(metrics[rows[0]].shape)}: expected a single "
            "number, such as a mean over the rows"
        )
    if first:
        grad_each = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
        if all(one is None for one in grad_each):
            raise InvalidRequest(
                f"{name}() returned a total that depends on no parameter of the network that it trains: compute it "
                "from outputs of this network, without detach() or no_grad()"
            )
    optimizer.gradient.zero_()
    further = [] if auxiliary is None else auxiliary.parameters
    total.backward(inputs=[*parameters, *further])
    check_aliasing(parameters, optimizer, name)  # guard: gradients-reach-the-optimizer
    if auxiliary is not None:
        check_aliasing(further, auxiliary.optimizer, name)
    return {metric: value.detach().reshape(()) for metric, value in metrics.items()}


def refuse_untrained(algorithm: Any, trained: Iterable[nn.Parameter]) -> None:
    """Refuse modules of an own algorithm whose parameters no optimizer would change."""
    known = {id(one) for one in trained}
    for name, value in vars(algorithm).items():
        parameters = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(one, nn.Parameter) and one.requires_grad and id(one) not in known for one in parameters):
            raise InvalidRequest(
                f"{type(algorithm).__name__}.{name} has parameters that are not trained: the optimizer has those of "
                "the networks and of what modules() returns. Create it in modules(), or freeze it with "
                "requires_grad_(False)"
            )


def auxiliary_modules(algorithm: Any, seed: int | Sequence[int]) -> nn.ModuleDict:
    """The torch modules that `algorithm.modules()` returns, created with first weights of this seed."""
    with first_weights(seed):
        found = algorithm.modules()
    method = f"{type(algorithm).__name__}.modules()"
    if not isinstance(found, Mapping):
        raise InvalidRequest(f"{method} returned {type(found).__name__}: expected a dict of names and torch modules")
    for name, module in found.items():
        if not (isinstance(name, str) and isinstance(module, nn.Module)):
            raise InvalidRequest(f"{method} returned {name!r}: {type(module).__name__}: expected a torch.nn.Module")
        if any(nn.parameter.is_lazy(one) for one in (*module.parameters(), *module.buffers())):
            raise InvalidRequest(f"{method}: {name!r} has lazy layers: state the number of their inputs")
    try:
        return nn.ModuleDict(found).float()
    except (KeyError, TypeError) as error:
        raise InvalidRequest(f"{method} returned a name that torch does not allow: {error.args[0]}") from error


def layers_of(dense: nn.Sequential) -> list[tuple[Array, Array]]:
    """(weights [in, out], bias) of the dense layers, copies."""
    linear = [layer for layer in dense if isinstance(layer, nn.Linear)]
    return [(as_numpy(layer.weight).T.copy(), as_numpy(layer.bias)) for layer in linear]


def dense_layers(layers: Sequence[tuple[Array, Array]], activation: str) -> nn.Sequential:
    """Dense layers with these (weights [in, out], bias), as `layers_of` returns them; the last has no activation."""
    found: list[nn.Module] = []
    for weights, bias in layers:
        linear = nn.Linear(*weights.shape)
        linear.weight.data, linear.bias.data = torch.tensor(weights.T), torch.tensor(bias)
        found += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*found[:-1])


class Network(nn.Module):
    """(vector [rows, size], images) → [rows, outputs].

    `shared`: the `extract` of another network, whose convolutions, or network of the user, it uses too. Call
    `begin_cell` and `begin_dense` to set the first weights of its cell and of its dense layers.
    """

    def __init__(self, spec: NetworkSpec, outputs: int, shared: Any = None) -> None:
        super().__init__()
        self.extract = extractor_for(spec, shared)
        seen = self.extract.size
        widths = [seen if spec.memory is None else spec.memory_size, *spec.hidden, outputs]
        _ = count_parameters(widths)  # refused if they are too many
        self.cell = None if spec.memory is None else cell_for(spec, seen)
        self.dense = dense(widths, spec.activation)
        self._convolution = spec.convolution
        if spec.convolution is not None:
            self.register_buffer("tied", torch.from_numpy(spec.convolution.tied), persistent=False)

    def tie(self) -> None:
        """Of a first layer that is a convolution, the gradients of what is the same are one."""
        if self._convolution is not None:
            first = self.dense[0]
            self._convolution.tie(first.weight.grad, first.bias.grad, self.tied)

    def features(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Return the input of the dense layers, or of the cell."""
        found: Tensor = self.extract(vector, images)
        return found

    def forward(self, vector: Tensor, images: Sequence[Tensor] = ()) -> Tensor:
        found: Tensor = self.dense(self.features(vector, images))
        return found

    def recur(self, seen: Tensor, counts: Sequence[int], memory: Tensor) -> tuple[Tensor, Tensor]:
        """([rows, size] hidden states along chunks of rows, [chunks, parts, size] what is remembered after each);
        `memory`: before each. See `Packing`."""
        assert self.cell is not None
        return along(self.cell, seen, counts, memory)


def along(cell: nn.Module, seen: Tensor, counts: Sequence[int], memory: Tensor) -> tuple[Tensor, Tensor]:
    """What `Network.remember` returns."""
    first = memory.transpose(0, 1).unsqueeze(1).contiguous()  # [parts, 1, chunks, size]
    given = (first[0], first[1]) if len(first) == 2 else first[0]
    hidden, last = cell(PackedSequence(seen, torch.tensor(counts)), given)
    return hidden.data, torch.stack([part[0] for part in (last if isinstance(last, tuple) else (last,))], dim=1)


def extractor_for(spec: NetworkSpec, shared: Any = None) -> ImageExtractor | CustomExtractor:
    """Return the module from a vector and images to features; `shared`: one whose layers it uses too."""
    return ImageExtractor(spec, shared) if spec.network is None else CustomExtractor(spec, spec.network, shared)


class ImageExtractor(nn.Module):
    """(vector [rows, size], images) → [rows, features]: the vector, and what convolutions make of each image."""

    def __init__(self, spec: NetworkSpec, shared: ImageExtractor | None = None) -> None:
        super().__init__()
        self._channels_last = [image[2] < image[0] for image in spec.images]
        first = [(one[2], *one[:2]) if last else one for one, last in zip(spec.images, self._channels_last)]
        made = (NatureCNN(spaces.Box(0, 255, image)) for image in first)
        self.inner: Any = nn.ModuleList(made) if shared is None else shared.inner
        self.size: int = spec.size + sum(network.features_dim for network in self.inner)

    def forward(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        if not self.inner:
            return vector
        scaled = [image / 255.0 for image in images]
        first = [one.permute(0, 3, 1, 2) if last else one for one, last in zip(scaled, self._channels_last)]
        return torch.cat([vector, *(look(image) for look, image in zip(self.inner, first))], dim=-1)


class CustomExtractor(nn.Module):
    """(vector [rows, size], images) → [rows, features], by a network of the user.

    The vector holds the observation, and behind it numbers that the network is not given: they are passed on. That of a
    critic that sees the whole team holds one such part for each of `spec.critic_members` agents; the same network
    looks at each of them, and the features of an agent that is absent (all zeros) are zeros.
    """

    def __init__(self, spec: NetworkSpec, choice: CustomNetwork, shared: CustomExtractor | None = None) -> None:
        super().__init__()
        self.inner: nn.Module
        self.features: int
        self.inner, self.features = build_network(choice) if shared is None else (shared.inner, shared.features)
        self._name, self._layout, self._members = choice.name, choice.layout, spec.critic_members
        self._each = spec.size // self._members if self._members > 1 else spec.size
        self.size: int = self._members * (self.features + self._each - choice.layout.size)

    def forward(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        rows = vector.reshape(len(vector) * self._members, self._each)
        features = self.inner(self._layout.observation(rows, images))
        validate_features(self._name, features, len(rows))
        found = torch.cat([features, rows[:, self._layout.size :]], dim=-1)
        if self._members > 1:
            found = found * (rows != 0).any(-1, keepdim=True)
        return found.reshape(len(vector), self.size)


def cell_for(spec: NetworkSpec, seen: int) -> nn.LSTM | nn.GRU:
    kind, gates = (nn.LSTM, 4) if spec.memory == "lstm" else (nn.GRU, 3)
    _ = count_parameters([seen + spec.memory_size + 1, gates * spec.memory_size])
    return kind(seen, spec.memory_size)


def dense(widths: Sequence[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inward, outward in itertools.pairwise(widths):
        layers += [nn.Linear(inward, outward), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


# -- first weights -----------------------------------------------------------------------------------------------
def begin_dense(
    rng: np.random.Generator,
    networks: Sequence[Iterable[nn.Module]],
    last_gain: float = 1.0,
    *,
    ortho_init: bool,
    convolution: Convolution | None = None,
) -> None:
    """Set the first weights of the dense layers of networks that are alike: those that the numpy networks have."""
    layers = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
    widths = [layers[0][0].in_features, *(layer.out_features for layer in layers[0])]
    first = dense_weights(rng, widths, last_gain, ortho_init=ortho_init, copies=len(layers), convolution=convolution)
    for alike, values in zip(zip(*layers), first):
        for layer, weights, bias in zip(alike, *values):
            _set(layer, [weights, bias])


def begin_cell(rng: np.random.Generator, cell: nn.Module, spec: NetworkSpec) -> None:
    """Set the first weights of a recurrent cell: those that the numpy networks have."""
    _set(cell, cell_weights(rng, spec, [tuple(one.shape) for one in cell.parameters()]))


def _set(module: nn.Module, values: Iterable[Array]) -> None:
    for parameter, value in zip(module.parameters(), values):
        parameter.data.copy_(torch.from_numpy(value))
