"""Networks in torch, which algorithms train by autograd. Imports no algorithm and no environment.

Public, for `network=` and as parts of networks of your own: `MLP`, `NatureCNN` and `SmallCNN` compute features of
observations; `TeamAttention(size, num_heads)` is self-attention over the agents, or other entities, of [rows, agents,
size], with a mask `present` [rows, agents].
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import colon_spelling, module_named
from multiverse.core.wording import nearest

if TYPE_CHECKING:  # for editors and type checkers; imported when asked for
    from multiverse.networks.extractors import MLP as MLP
    from multiverse.networks.extractors import NatureCNN as NatureCNN
    from multiverse.networks.extractors import SmallCNN as SmallCNN

NETWORKS = {"mlp": "MLP", "nature_cnn": "NatureCNN", "small_cnn": "SmallCNN"}
"""Built-in networks by name; imported when asked for."""
PUBLIC = {**dict.fromkeys(NETWORKS.values(), "extractors"), "TeamAttention": "attention"}
"""Public classes, with their modules."""
SUMMARIES = {
    "mlp": "dense layers over all numbers of the observation, of any space (hidden_sizes)",
    "nature_cnn": "three convolutions over one image of at least 36 × 36 (features_dim)",
    "small_cnn": "two convolutions over one board, grid or small image of any size (features_dim)",
}
"""One line about each network, with its arguments in brackets."""


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"multiverse.networks.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])


def network_class(name: str) -> Callable[..., Any]:
    """Return the class (or function) of the network with this name or `module:Class`."""
    if name in NETWORKS:
        built_in: Any = __getattr__(NETWORKS[name])
        return built_in  # type: ignore[no-any-return]
    module, _, attribute = name.rpartition(":")
    if not (module and attribute):
        near = colon_spelling(name) or next(iter(nearest(name, NETWORKS)), "")
        meant = f". Did you mean {near}?" if near else ""
        raise InvalidRequest(
            f"network={name!r} does not exist: expected {', '.join(NETWORKS)}, or your module:Class or file.py:Class"
            f"{meant}"
        )
    try:
        network = getattr(module_named(module), attribute)
    except InvalidRequest as error:
        raise InvalidRequest(f"network={name!r}: {error}") from error
    except Exception as error:  # raised by the user's module
        raise InvalidRequest(f"network={name!r} cannot be imported: {type(error).__name__}: {error}") from error
    return checked_network(network, name)


def checked_network(network: Any, name: str = "") -> Callable[..., Any]:
    """Return the same class or function; refuse what cannot make a network."""
    if not callable(network) or (hasattr(network, "state_dict") and not isinstance(network, type)):
        kind = f"{name} is " * bool(name) + f"an instance of {type(network).__name__}"
        raise InvalidRequest(
            f"network: {kind}: expected a class, or a function (observation_space, **network_kwargs) that returns a "
            "torch module"
        )
    return network  # type: ignore[no-any-return]


def network_name(network: Any) -> str:
    """Return the name of a class or function for a config: that of a built-in network, `module:Class` if it can be
    imported again, else the bare name in angle brackets."""
    if isinstance(network, functools.partial):
        return f"<{network_name(network.func).rpartition(':')[2].strip('<>')}>"
    module, name = getattr(network, "__module__", ""), getattr(network, "__qualname__", type(network).__name__)
    if module == "multiverse.networks.extractors" and name in NETWORKS.values():
        return next(short for short, built_in in NETWORKS.items() if built_in == name)
    importable = module != "__main__" and getattr(sys.modules.get(module), name, None) is network
    return f"{module}:{name}" if importable else f"<{name.rpartition('.')[2].strip('<>')}>"
