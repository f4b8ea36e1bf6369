"""From an algorithm's name, or what makes one, to the algorithm, once the spaces of the envs are known."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.algorithms import algorithm_class
from multiverse.algorithms.algorithm import Algorithm, OwnNetwork
from multiverse.algorithms.capabilities import RunRequirements, refuse_unsupported, takes_argument
from multiverse.core.errors import InvalidRequest
from multiverse.learning.threads import torch_for
from multiverse.networks import checked_network, network_class
from multiverse.policies.features import Features, byte_scaling
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.runs.origin import redacted, redacted_fields
from multiverse.training.runs.state_codec import encode

MakeAlgorithm = Callable[..., Algorithm]
"""(observation space, action space, slots, seed) → an algorithm; with a `Config`, (config, …, device) → one. Where the
slots are those of several agents in each env, and it takes `agents`, their number is passed too, and likewise
`state_space`, where its settings say `critic="state"`."""


@dataclass(frozen=True)
class AlgorithmMaker:
    """Makes the algorithm of a run for each group of agents, once the spaces of its env are known."""

    kind: Any
    """Class of the algorithm, or the function that makes it."""
    make: MakeAlgorithm

    def __call__(self, *arguments: Any, **named: Any) -> Algorithm:
        return self.make(*arguments, **named)


ASKED = (
    "features",
    "steps_per_env",
    "action",
    "policy",
    "update",
    "change",
    "weights",
    "load_weights",
    "state",
    "load",
)
"""Of every algorithm, by the trainer."""


def algorithm_maker(
    config: TrainConfig, own: MakeAlgorithm | None = None, scale_bytes: bool = True, network: Any = None
) -> AlgorithmMaker:
    """What makes the algorithm of this config, once the spaces of its env are known; `own` and `network` if the caller
    brings them. `scale_bytes`: False if its weights were learned from unscaled bytes."""
    device, kind = checked_device(config.device), algorithm_class(config.algorithm) if own is None else own
    chosen = _own_network(config, kind, network)

    @byte_scaling(scale_bytes)
    def make(
        observation_space: Any, action_space: Any, slots: int, seed: int, agents: int = 1, state_space: Any = None
    ) -> Algorithm:
        if 0 in (getattr(action_space, "shape", None) or ()):
            raise InvalidRequest(f"there is nothing to choose in the action space {action_space}: its shape has a 0")
        told = {"agents": agents if agents > 1 else None, "state_space": state_space, "network": chosen}
        team = {name: one for name, one in told.items() if one is not None and takes_argument(kind, name)}
        if getattr(kind, "Config", None) is None:
            _refuse_other_signature(kind, "observation_space, action_space, slots, seed")
            made = kind(observation_space, action_space, slots, seed, **team)
        else:
            _refuse_other_signature(kind, "config, observation_space, action_space, slots, seed, device")
            looks = config.device == "auto" and Features(observation_space, action_space).images
            where = "cuda" if looks and torch_for("learning from images").cuda.is_available() else device
            made = kind(config.settings, observation_space, action_space, slots, seed, where, **team)
        if missing := [name for name in ASKED if not hasattr(made, name)]:
            raise InvalidRequest(
                f"{type(made).__name__} does not implement the interface of algorithms: it has no "
                f"{', '.join(missing)} (see 'An algorithm of your own' in docs/training.md)"
            )
        _refuse_odd(made)
        return made

    return AlgorithmMaker(kind, make)


def _own_network(config: TrainConfig, kind: Any, network: Any) -> OwnNetwork | None:
    """The network of this config, or the class that the caller brings for it."""
    if config.network is None:
        return None
    name = config.network.rpartition(":")[2].strip("<>")
    refuse_unsupported(kind, RunRequirements(settings=config.settings, network=name))
    if hidden := redacted_fields(redacted(config.network_kwargs), "network_kwargs"):
        raise InvalidRequest(
            f"{hidden[0]}: a value of this name is hidden in files as a secret, and could not be read again: "
            f"rename the argument, or pass it inside the network, network=functools.partial({name}, …)"
        )
    torch_for(f"network={name}")
    made_by = network_class(config.network) if network is None else checked_network(network)
    return name, functools.partial(made_by, **config.network_kwargs)


def _refuse_odd(made: Any) -> None:
    """Mistakes that would show later, and as something else."""
    name = type(made).__name__
    for method, takes in (("update", "rollouts, progress"), ("load_weights", "weights"), ("load", "state")):
        if not callable(getattr(made, method)):
            raise InvalidRequest(f"{name}.{method} is {getattr(made, method)!r}: expected a method")
        _refuse_other_signature(getattr(made, method), takes, f"{name}.{method} cannot be called with")
    if not isinstance(made.steps_per_env, int) or made.steps_per_env < 1:
        raise InvalidRequest(f"{name}.steps_per_env is {made.steps_per_env!r}: expected a whole number from 1")
    try:
        shape, dtype = made.action
        np.zeros(shape, dtype)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}.action is {made.action!r}: expected (shape, dtype) of one action") from error
    policy = made.policy()
    if missing := [
        part for part in ("noise", "first_memory", "act", "for_env", "portable") if not hasattr(policy, part)
    ]:
        raise InvalidRequest(f"{name}.policy() is {type(policy).__name__}: it has no {', '.join(missing)}")
    memory, noise = policy.first_memory(3), policy.noise(np.random.default_rng(0), 2, 3)
    if not isinstance(memory, dict) or any(np.shape(kept)[:1] != (3,) for kept in memory.values()):
        raise InvalidRequest(f"{name}: first_memory(rows) is {memory!r}: expected a dict of arrays [rows, …], or {{}}")
    if np.shape(noise)[:2] != (2, 3):
        raise InvalidRequest(f"{name}: noise(rng, steps, rows) has shape {np.shape(noise)}: expected (steps, rows, …)")
    try:
        encode({"weights": made.weights(), "state": made.state()})
    except TypeError as error:
        raise InvalidRequest(
            f"{name}: weights() and state() must be something that a checkpoint holds: {error}"
        ) from error


def _refuse_other_signature(kind: Any, arguments: str, cannot: str = "") -> None:
    cannot = cannot or f"{getattr(kind, '__name__', kind)} cannot be made by"
    try:
        inspect.signature(kind).bind(*arguments.split(", "))
    except TypeError as error:
        raise InvalidRequest(f"{cannot} ({arguments}): {error}") from None
    except ValueError:  # one in C says nothing of its arguments
        pass


def checked_device(device: str) -> str:
    """`auto` is the CPU: for networks as small as the presets' it is faster than moving every batch elsewhere."""
    if device == "auto":
        return "cpu"
    if device == "cuda" and not torch_for("device='cuda'").cuda.is_available():
        raise InvalidRequest(f"device='cuda': {_why_no_cuda()}; device='cpu' works everywhere")
    if device == "mps" and not torch_for("device='mps'").backends.mps.is_available():
        raise InvalidRequest("device='mps': this machine has no Apple GPU that torch can use; device='cpu' works")
    return device


def _why_no_cuda() -> str:
    torch = torch_for("device='cuda'")
    if torch.version.cuda is None:
        return f"the installed torch {torch.__version__} was built without CUDA"
    return "torch finds no CUDA device"
