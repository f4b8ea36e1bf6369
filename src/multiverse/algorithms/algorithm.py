"""What the trainer asks of every algorithm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.capabilities import Capabilities, RunRequirements, refuse_unsupported
from multiverse.core.errors import InvalidRequest, TrainingDiverged
from multiverse.core.layout import SINGLE_AGENT, Group
from multiverse.core.plan import whole_number
from multiverse.core.policy import Policy
from multiverse.learning.loss import as_numpy
from multiverse.learning.network_spec import CustomNetwork
from multiverse.learning.threads import torch_for
from multiverse.policies.features import Features
from multiverse.rollouts.rollout import Rollout

log = logging.getLogger("multiverse")

BAD_IN_A_ROW = 5
LOSSES = "loss", "policy_loss", "value_loss", "critic_loss", "actor_loss", "temperature_loss"
"""Names of the methods of our algorithms that are losses, or parts of one."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one update did."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    gradient_steps: int = 0
    skipped: int = 0  # gradient steps that were not taken because a gradient was not finite


def mean_metrics(metrics: Sequence[Mapping[str, Any]], xp: Any) -> dict[str, float]:
    """Return the mean of each metric over the gradient steps that have it. `xp`: the library of these numbers. The
    values of all metrics are read at once, so that a GPU is waited for once per update."""
    values = [value for one in metrics for value in one.values()]
    read = np.asarray(values, np.float32) if xp is np else as_numpy(xp.stack(values)) if values else ()
    sums: dict[str, list[float]] = {}
    for name, value in zip((name for one in metrics for name in one), read):
        sums.setdefault(name, []).append(float(value))
    return {name: sum(found) / len(found) for name, found in sums.items()}


class Algorithm(Protocol):
    """Networks, optimizer and everything else that learns.

    The trainer collects rollouts of `steps_per_env` steps with `policy()`, hands them to `update`, and goes on. One
    with a replay buffer asks for short rollouts and keeps what it is given. `Config`, a frozen dataclass with defaults,
    is what the command line, config files and `mv.train` fill in; the class gets it: `(config, observation_space,
    action_space, slots, seed, device)`. What it can do its class declares (see `capabilities`).
    """

    features: Features
    steps_per_env: int

    @property
    def action(self) -> tuple[tuple[int, ...], Any]:
        """(shape, dtype) of one action as the rollout holds it."""

    def policy(self) -> Policy:
        """What acts now; the same object until the weights change, and these stay as they are while it is used."""

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Learn, one rollout per group of agents; `progress` from 0 to 1 is how much of the budget was spent before."""

    def change(self, **settings: Any) -> None:
        """Other settings from here on; they are part of its state."""

    def weights(self) -> dict[str, Any]:
        """What it has learned, and nothing else: what `--init-from` takes over."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Take over what another one has learned."""

    def state(self) -> dict[str, Any]:
        """Everything else it takes to go on exactly from here: numbers, strings and numpy arrays."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of one with the same config and spaces, whose weights it has already."""


# -- what ours have in common ------------------------------------------------------------------------------------
def reason_for_torch(learner: str, reasons: Mapping[str, bool]) -> str:
    """Why torch differentiates the losses: the first of these reasons that holds; "" where numpy kernels may do it."""
    needed = [reason for reason, holds in reasons.items() if holds]
    if learner == "numpy" and needed:
        raise InvalidRequest(f"learner='numpy' cannot be used with {needed[0]}, which needs torch: leave learner out")
    return "learner='torch'" if learner == "torch" else next(iter(needed), "")


OwnNetwork = tuple[str, Callable[[spaces.Space[Any]], Any]]
"""A network of the user: (its name, observation space → torch module)."""


class Learner(Capabilities):
    """Settings that may change while it learns, and gradients that may not be finite."""

    noise_draws = 0
    """Arrays of Gaussian noise that the batch of each loss has (`batch.noise`), drawn with the seed of the run."""
    actions: tuple[type[spaces.Space[Any]], ...] = (
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
        spaces.Box,
    )
    config: Any
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    auxiliary: Mapping[str, Any]
    """What `modules` returned, by name."""
    own_network: CustomNetwork | None
    """A network of the user (`network`), in the place of the first layers."""
    progress = 0.0
    """Share of the budget that was spent before this update, from 0 to 1: for schedules in losses."""
    _seed: int

    def __init__(self) -> None:
        self._report_unknown_losses()
        self._changed: dict[str, Any] = {}  # settings, since the beginning
        self._bad_in_a_row = 0

    def _refuse_unsupported(
        self,
        config: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: str,
        small_images: bool,
    ) -> None:
        """Refuse what it cannot learn from, also where no run has asked before."""
        group = Group(SINGLE_AGENT, (SINGLE_AGENT,), observation_space, action_space)
        run = RunRequirements(settings=config, device=device, small_images=small_images, groups=(group,))
        refuse_unsupported(type(self), run)

    def _report_unknown_losses(self) -> None:
        """Warn of methods of the user that have the name of a loss, and that the algorithm does not call."""
        own = type(self)
        stock = next(one for one in own.__mro__ if one.__module__.startswith(f"{__package__}."))
        called = [name for name in LOSSES if hasattr(stock, name) or name in getattr(own, "losses", ())]
        for name in LOSSES:
            if hasattr(own, name) and name not in called:
                log.warning(
                    "%s.%s() overrides nothing: %s calls %s", own.__name__, name, stock.__name__, ", ".join(called)
                )

    def modules(self) -> Mapping[str, Any]:
        """Return torch modules that the loss uses beside the networks, such as auxiliary heads, by name.

        Called once, when the settings and spaces are known, with first weights that depend on the seed of the run. A
        loss uses them as `self.auxiliary[name]`; every loss that does so trains them, and a run saves them.
        """
        return {}

    def outputs(self) -> Mapping[str, int]:
        """Return the number of outputs of each network, by name."""
        raise InvalidRequest(f"{type(self).__name__} does not define outputs(), the number of outputs of each network")

    def _outputs_of(self, network: str) -> int:
        """Return the number of outputs of this network; refuse one that `outputs` does not state, or below 1."""
        name, given = f"outputs() of {type(self).__name__}", self.outputs()
        if not isinstance(given, Mapping):
            raise InvalidRequest(f"{name} returned {given!r}: expected a dict such as {{{network!r}: 64}}")
        counts = {key: whole_number(f"{name}: {key}", count) for key, count in given.items()}
        if counts.get(network, 0) < 1:
            raise InvalidRequest(f"{name} returned {counts}: expected at least 1 of {network!r}")
        return counts[network]

    def _refuse_other_outputs(self, networks: Collection[str]) -> None:
        """Refuse names in `outputs` that no network has."""
        if unknown := sorted(self.outputs().keys() - {*networks}):
            names = f"those of {type(self).__name__} are {', '.join(networks)}"
            raise InvalidRequest(f"outputs() of {type(self).__name__} names {unknown[0]!r} among its networks: {names}")

    def _make_auxiliary(self, seed: int | Sequence[int], device: str) -> None:
        self.auxiliary = {}
        if type(self).modules is not Learner.modules:
            torch_for(f"modules() of {type(self).__name__}")
            from multiverse.networks.modules import auxiliary_modules

            self.auxiliary = auxiliary_modules(self, seed).to(device)

    @property
    def _auxiliary_parameters(self) -> list[Any]:
        """What is trained of the auxiliary modules."""
        every = (one for module in self.auxiliary.values() for one in module.parameters() if one.requires_grad)
        return list(dict.fromkeys(every))

    # -- modules of the user ------------------------------------------------------------------------------------
    def _of_network(self) -> dict[str, bool]:
        """A reason to learn in torch (see `reason_for_torch`)."""
        return {} if self.own_network is None else {f"network={self.own_network.name}": True}

    def _custom_modules(self) -> dict[str, Any]:
        """All torch modules that hold a part of the user, by name."""
        auxiliary = {"auxiliary": self.auxiliary} if self.auxiliary else {}
        return auxiliary if self.own_network is None else {**self._network_modules(), **auxiliary}

    @cached_property
    def _has_custom_loss(self) -> bool:
        """Whether a loss may be one of the user: no kernel exists for it."""
        raise NotImplementedError

    def _network_modules(self) -> dict[str, Any]:
        """The networks in torch, by name; asked for where they hold a network of the user."""
        raise NotImplementedError

    def _training(self, when: Sequence[int]) -> AbstractContextManager[None]:
        """While a loss is computed, modules of the user are in training mode; what they and losses of the user draw
        from torch depends on the run's seed and `when`."""
        own = self._custom_modules()
        if not own and not self._has_custom_loss:
            return nullcontext()
        from multiverse.networks.modules import training

        return training([*own.values()], (self._seed, 5, *when))

    def _custom_weights(self) -> dict[str, Any]:
        """Of modules of the user, as a part of `weights`: frozen parameters and buffers, and the order in which trained
        parameters lie among those of the optimizer."""
        if not (own := self._custom_modules()):
            return {}
        from multiverse.networks.modules import fixed_tensors, trained_parameters

        found, order = fixed_tensors(own, own), {"trained": trained_parameters(own)}
        return {**order, "fixed": found} if found else order  # guard: frozen-parts-and-statistics-are-saved

    def _load_custom_weights(self, weights: Mapping[str, Any]) -> None:
        if own := self._custom_modules():
            from multiverse.networks.modules import check_trained_parameters, load_fixed_tensors

            if "trained" in weights:
                check_trained_parameters(own, weights["trained"])
            load_fixed_tensors(own, own, weights.get("fixed", {}))

    @property
    def torch_device(self) -> str | None:
        """Kind of device that its networks are on in torch, such as 'cpu'; None of networks in numpy."""
        networks = getattr(self, "_networks", None)
        one = next(iter(networks.values()), None) if isinstance(networks, dict) else networks
        return getattr(getattr(one, "device", None), "type", None)

    def change(self, **settings: Any) -> None:
        """Other settings from here on: `learning_rate`, `entropy_coef`, whatever does not change the networks."""
        if wrong := sorted(self.fixed.intersection(settings)):
            raise InvalidRequest(f"{', '.join(wrong)} cannot change while it learns")
        self.config = replace(self.config, **settings)
        self._changed.update(settings)

    def _refuse_many_bad(self, taken: Sequence[bool]) -> None:
        """Whether each of these gradient steps was taken: its gradient was finite."""
        for took in taken:
            self._bad_in_a_row = 0 if took else self._bad_in_a_row + 1
            if self._bad_in_a_row >= BAD_IN_A_ROW:  # guard: five-in-a-row-is-enough
                smaller = "normalize_rewards" if hasattr(self.config, "normalize_rewards") else "smaller rewards"
                raise TrainingDiverged(
                    f"{BAD_IN_A_ROW} gradients in a row were not finite; the weights are those of the last good step. "
                    f"A smaller learning_rate, {smaller} or a look at the env's rewards may help"
                )
