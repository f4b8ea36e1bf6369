"""Torch modules of the networks: dense layers over a vector, convolutions over images, recurrent cells; and the
handling of their parameters and gradients."""

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
from multiverse.core.layout import Array
from multiverse.learning.convolution import Convolution
from multiverse.learning.initial_weights import cell_weights, dense_weights
from multiverse.learning.loss import Loss, as_numpy
from multiverse.learning.network_spec import CustomNetwork, NetworkSpec, count_parameters
from multiverse.learning.optimizers import Optimizer
from multiverse.learning.threads import torch_threads
from multiverse.networks.extractors import NatureCNN, create_network, validate_features

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
_GENERATOR_LOCK = threading.RLock()  # threads share torch's random number generator


@contextmanager
def initial_weights(seed: int | Sequence[int]) -> Iterator[None]:
    """Seed torch's generator for the modules that are created inside, and restore it afterwards.

    The dense layers and cells of stock networks then get the initial weights of `learning/initial_weights.py`.
    Convolutions over images and attention keep those of torch: no numpy network has them, and torch's QR is several
    times as fast.
    """
    torch_seed = seed if isinstance(seed, int) else int(np.random.SeedSequence(seed).generate_state(1)[0])
    # The last bits of the weights depend on the number of threads.
    with _GENERATOR_LOCK, torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        yield


def share_storage(parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
    """Make parameters and their gradients views of the optimizer's tensors."""
    start = 0
    for parameter in parameters:
        part = slice(start, start + parameter.numel())
        parameter.data = optimizer.parameters[part].view_as(parameter)
        parameter.grad = optimizer.gradient[part].view_as(parameter)
        start = part.stop


def trained(*modules: Any) -> list[nn.Parameter]:
    """Return the trained parameters of these modules, each once."""
    parameters = (value for module in modules for value in module.parameters() if value.requires_grad)
    return list(dict.fromkeys(parameters))


def fixed_names(module: nn.Module) -> list[str]:
    """Return the names of the frozen parameters and buffers of a module, such as the running statistics of a BatchNorm
    layer."""
    return [name for name, value in module.state_dict(keep_vars=True).items() if not value.requires_grad]


def fixed_tensors(modules: Mapping[str, nn.Module], like: Mapping[str, nn.Module]) -> dict[str, Array]:
    """Return the tensors of `fixed_names`, by module and name. `like`: the trained modules; targets have the same
    names."""
    return {
        f"{name}.{key}": as_numpy(module.state_dict()[key])
        for name, module in modules.items()
        for key in fixed_names(like[name])
    }


def load_fixed_tensors(modules: Mapping[str, nn.Module], like: Mapping[str, nn.Module], saved: Any) -> None:
    """Load the result of `fixed_tensors`."""
    own = fixed_tensors(modules, like)
    if not isinstance(saved, Mapping) or saved.keys() != own.keys():
        names = sorted({*saved}.symmetric_difference(own)) if isinstance(saved, Mapping) else ["a part"]
        raise InvalidRequest(f"the saved network differs from this one: only one of the two has {names[0]}")
    for name, module in modules.items():
        tensors = module.state_dict()
        for key in fixed_names(like[name]):
            value, tensor = np.asarray(saved[f"{name}.{key}"]), tensors[key]
            if value.shape != tuple(tensor.shape):
                raise InvalidRequest(
                    f"{name}.{key} of the saved network has shape {value.shape}, and that of this one "
                    f"{tuple(tensor.shape)}"
                )
            tensor.copy_(torch.as_tensor(value))


def trained_parameters(modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the names and shapes of the trained parameters of the user's parts of these modules, in their order."""
    return [
        f"{key} of shape {tuple(value.shape)}"
        for module in modules.values()
        for part in _custom_parts(module)
        for key, value in part.named_parameters()
        if value.requires_grad
    ]


def check_trained_parameters(modules: Mapping[str, nn.Module], saved: Any) -> None:
    """Refuse the result of `trained_parameters` for modules with other parameters, or in another order."""
    for saved_name, own_name in itertools.zip_longest(saved, trained_parameters(modules), fillvalue="none"):
        if saved_name != own_name:
            raise InvalidRequest(
                f"the saved network has parameter {saved_name}, where this one has {own_name}: the layers must be the "
                "same, and __init__ must create them in the same order"
            )


@contextmanager
def training(modules: Sequence[nn.Module], seed: Sequence[int]) -> Iterator[None]:
    """Context in which modules of the user are in training mode (dropout is active), and torch's random numbers depend
    on the seed alone."""
    torch_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    on_gpu = torch.cuda.is_initialized()
    parts = dict.fromkeys(part for module in modules for part in _custom_parts(module))
    with _GENERATOR_LOCK, torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []):
        # Not torch.manual_seed, which formats a traceback where no GPU is in use.
        torch.default_generator.manual_seed(torch_seed)  # guard: dropout-follows-the-seed-of-the-run
        if on_gpu:
            torch.cuda.manual_seed(torch_seed)
        for part in parts:
            part.train()
        try:
            yield
        finally:
            for part in parts:
                part.eval()  # guard: networks-act-in-evaluation-mode


def _custom_parts(module: nn.Module) -> list[nn.Module]:
    """Return the parts of a network that the user wrote: the whole module if it is not a network of ours."""
    return [part.inner for part in module.modules() if isinstance(part, CustomExtractor)] or [module]


def check_aliasing(parameters: Sequence[nn.Parameter], optimizer: Optimizer, name: str) -> None:
    """Raise if parameters or gradients are no longer views of the optimizer's tensors, so that it would not train
    them."""
    places = [(flat.data_ptr(), flat.element_size()) for flat in (optimizer.parameters, optimizer.gradient)]
    (values, size), (gradients, _), start = *places, 0
    for parameter in parameters:
        grad = None if parameter.grad is None else parameter.grad.data_ptr()
        if grad != gradients + start * size or parameter.data_ptr() != values + start * size:
            raise InvalidRequest(
                f"{name}(): the optimizer has lost the gradient of a parameter of shape {tuple(parameter.shape)}. The "
                "training clears gradients and keeps them in one tensor: do not call zero_grad() or an optimizer, and "
                "do not replace parameters or gradients"
            )
        start += parameter.numel()


def backward(
    loss: Loss | Tensor,
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    name: str = "loss",
    auxiliary: Any = None,
    first: bool = False,
) -> dict[str, Tensor]:
    """Compute the gradient of the loss by these parameters, which are views of the optimizer's tensors; return the
    metrics of the loss. `name`: of the method that returned the loss. `auxiliary`: further parameters with their
    optimizer, to whose gradient that of the loss is added. `first`: refuse a loss that depends on none of the
    parameters."""
    loss = loss if isinstance(loss, Loss) else Loss(loss)
    total = loss.total
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
    metrics = {metric: torch.as_tensor(value, device=total.device) for metric, value in loss.metrics.items()}
    if rows := [metric for metric, value in metrics.items() if value.numel() != 1]:
        raise InvalidRequest(
            f"{name}() returned the metric {rows[0]!r} with shape {tuple(metrics[rows[0]].shape)}: expected a single "
            "number, such as a mean over the rows"
        )
    if first:
        grads = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
        if all(grad is None for grad in grads):
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
    """Refuse modules of a user's algorithm whose parameters no optimizer would train."""
    known = {id(parameter) for parameter in trained}
    for name, value in vars(algorithm).items():
        parameters = value.parameters() if isinstance(value, nn.Module) else [value]
        if any(isinstance(p, nn.Parameter) and p.requires_grad and id(p) not in known for p in parameters):
            raise InvalidRequest(
                f"{type(algorithm).__name__}.{name} has parameters that are not trained: the optimizer has those of "
                "the networks and of what modules() returns. Create it in modules(), or freeze it with "
                "requires_grad_(False)"
            )


def auxiliary_modules(algorithm: Any, seed: int | Sequence[int]) -> nn.ModuleDict:
    """Return the torch modules of `algorithm.modules()`, created with initial weights of this seed."""
    with initial_weights(seed):
        modules = algorithm.modules()
    method = f"{type(algorithm).__name__}.modules()"
    if not isinstance(modules, Mapping):
        raise InvalidRequest(f"{method} returned {type(modules).__name__}: expected a dict of names and torch modules")
    for name, module in modules.items():
        if not (isinstance(name, str) and isinstance(module, nn.Module)):
            raise InvalidRequest(f"{method} returned {name!r}: {type(module).__name__}: expected a torch.nn.Module")
        if any(nn.parameter.is_lazy(value) for value in (*module.parameters(), *module.buffers())):
            raise InvalidRequest(f"{method}: {name!r} has lazy layers: set the number of their inputs")
    try:
        return nn.ModuleDict(modules).float()
    except (KeyError, TypeError) as error:
        raise InvalidRequest(f"{method} returned a name that torch does not allow: {error.args[0]}") from error


def layers_of(dense: nn.Sequential) -> list[tuple[Array, Array]]:
    """Return copies of the (weights [in, out], bias) of the dense layers."""
    linear = [layer for layer in dense if isinstance(layer, nn.Linear)]
    return [(as_numpy(layer.weight).T.copy(), as_numpy(layer.bias)) for layer in linear]


def dense_layers(layers: Sequence[tuple[Array, Array]], activation: str) -> nn.Sequential:
    """Return dense layers with these (weights [in, out], bias), as from `layers_of`; the last has no activation."""
    modules: list[nn.Module] = []
    for weights, bias in layers:
        linear = nn.Linear(weights.shape[0], weights.shape[1])
        linear.weight.data, linear.bias.data = torch.tensor(weights.T), torch.tensor(bias)
        modules += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*modules[:-1])


class Network(nn.Module):
    """(vector [rows, size], images) → [rows, outputs].

    `shared`: the `extract` of another network, whose convolutions, or network of the user, it shares. Call
    `initialize_cell` and `initialize_dense` to set the initial weights of its cell and of its dense layers.
    """

    def __init__(self, spec: NetworkSpec, outputs: int, shared: Any = None) -> None:
        super().__init__()
        self.extract = extractor_for(spec, shared)
        size = self.extract.size
        widths = [size if spec.memory is None else spec.memory_size, *spec.hidden, outputs]
        _ = count_parameters(widths)  # refuses too many
        self.cell = None if spec.memory is None else cell_for(spec, size)
        self.dense = dense(widths, spec.activation)
        self._convolution = spec.convolution
        if spec.convolution is not None:
            self.register_buffer("tied", torch.from_numpy(spec.convolution.tied), persistent=False)

    def tie(self) -> None:
        """Sum the gradients of equal weights, if the first layer is a convolution."""
        if self._convolution is not None:
            first = self.dense[0]
            self._convolution.tie(first.weight.grad, first.bias.grad, self.tied)

    def features(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Return the input of the dense layers, or of the cell."""
        features: Tensor = self.extract(vector, images)
        return features

    def forward(self, vector: Tensor, images: Sequence[Tensor] = ()) -> Tensor:
        output: Tensor = self.dense(self.features(vector, images))
        return output

    def recur(self, features: Tensor, counts: Sequence[int], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return (hidden states [rows, size] of packed chunks, memory [chunks, parts, size] after each chunk).
        `memory`: before each chunk. See `Packing`."""
        assert self.cell is not None
        return run_cell(self.cell, features, counts, memory)


def run_cell(cell: nn.Module, inputs: Tensor, counts: Sequence[int], memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of `Network.recur`."""
    initial = memory.transpose(0, 1).unsqueeze(1).contiguous()  # [parts, 1, chunks, size]
    state = (initial[0], initial[1]) if len(initial) == 2 else initial[0]
    hidden, last = cell(PackedSequence(inputs, torch.tensor(counts)), state)
    return hidden.data, torch.stack([part[0] for part in (last if isinstance(last, tuple) else (last,))], dim=1)


def extractor_for(spec: NetworkSpec, shared: Any = None) -> ImageExtractor | CustomExtractor:
    """Return the module from a vector and images to features; `shared`: an extractor whose layers it shares."""
    return ImageExtractor(spec, shared) if spec.network is None else CustomExtractor(spec, spec.network, shared)


class ImageExtractor(nn.Module):
    """(vector [rows, size], images) → [rows, features]: the vector, and the features of each image from
    convolutions."""

    def __init__(self, spec: NetworkSpec, shared: ImageExtractor | None = None) -> None:
        super().__init__()
        self._channels_last = [image[2] < image[0] for image in spec.images]
        shapes = [(image[2], *image[:2]) if last else image for image, last in zip(spec.images, self._channels_last)]
        networks = (NatureCNN(spaces.Box(0, 255, shape)) for shape in shapes)
        self.inner: Any = nn.ModuleList(networks) if shared is None else shared.inner
        self.size: int = spec.size + sum(network.features_dim for network in self.inner)

    def forward(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        if not self.inner:
            return vector
        scaled = [image / 255.0 for image in images]
        inputs = [image.permute(0, 3, 1, 2) if last else image for image, last in zip(scaled, self._channels_last)]
        return torch.cat([vector, *(network(image) for network, image in zip(self.inner, inputs))], dim=-1)


class CustomExtractor(nn.Module):
    """(vector [rows, size], images) → [rows, features], by a network of the user.

    The first columns of the vector are the observation; the others are appended to the features. The vector of a
    central critic has such a part for each of `spec.critic_members` agents: the same network computes the features of
    each, and those of an absent agent (all zeros) are zeros.
    """

    def __init__(self, spec: NetworkSpec, choice: CustomNetwork, shared: CustomExtractor | None = None) -> None:
        super().__init__()
        self.inner: nn.Module
        self.features: int
        self.inner, self.features = create_network(choice) if shared is None else (shared.inner, shared.features)
        self._name, self._layout, self._members = choice.name, choice.layout, spec.critic_members
        self._each = spec.size // self._members if self._members > 1 else spec.size
        self.size: int = self._members * (self.features + self._each - choice.layout.size)

    def forward(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        rows = vector.reshape(len(vector) * self._members, self._each)
        features = self.inner(self._layout.observation(rows, images))
        validate_features(self._name, features, len(rows))
        output = torch.cat([features, rows[:, self._layout.size :]], dim=-1)
        if self._members > 1:
            output = output * (rows != 0).any(-1, keepdim=True)
        return output.reshape(len(vector), self.size)


def cell_for(spec: NetworkSpec, inputs: int) -> nn.LSTM | nn.GRU:
    """Return the recurrent cell for this number of inputs."""
    kind, gates = {"lstm": (nn.LSTM, 4), "gru": (nn.GRU, 3)}[str(spec.memory)]
    _ = count_parameters([inputs + spec.memory_size + 1, gates * spec.memory_size])
    return kind(inputs, spec.memory_size)


def dense(widths: Sequence[int], activation: str) -> nn.Sequential:
    """Return dense layers of these widths; the last has no activation."""
    layers: list[nn.Module] = []
    for inward, outward in itertools.pairwise(widths):
        layers += [nn.Linear(inward, outward), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


# -- initial weights ---------------------------------------------------------------------------------------------
def initialize_dense(
    rng: np.random.Generator,
    networks: Sequence[Iterable[nn.Module]],
    last_gain: float = 1.0,
    *,
    ortho_init: bool,
    convolution: Convolution | None = None,
) -> None:
    """Set the initial weights of the dense layers of copies of a network, equal to those of numpy networks."""
    layers = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
    widths = [layers[0][0].in_features, *(layer.out_features for layer in layers[0])]
    initial = dense_weights(rng, widths, last_gain, ortho_init=ortho_init, copies=len(layers), convolution=convolution)
    for copies, values in zip(zip(*layers), initial):
        for layer, weights, bias in zip(copies, *values):
            _set(layer, [weights, bias])


def initialize_cell(rng: np.random.Generator, cell: nn.Module, spec: NetworkSpec) -> None:
    """Set the initial weights of a recurrent cell, equal to those of numpy networks."""
    _set(cell, cell_weights(rng, spec, [tuple(value.shape) for value in cell.parameters()]))


def _set(module: nn.Module, values: Iterable[Array]) -> None:
    for parameter, value in zip(module.parameters(), values):
        parameter.data.copy_(torch.from_numpy(value))
