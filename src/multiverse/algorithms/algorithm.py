"""Interface of algorithms, and the base of those in this package."""

from __future__ import annotations

import difflib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.capabilities import Capabilities, RunRequirements, refuse_unsupported
from multiverse.core.errors import InvalidRequest, TrainingDiverged
from multiverse.core.layout import SINGLE_AGENT, Array, Group, Path
from multiverse.core.plan import whole_number
from multiverse.core.policy import Leaves, Policy
from multiverse.kernels import kernel_of
from multiverse.learning.loss import as_numpy
from multiverse.learning.network_spec import CustomNetwork, LeafInput, ObservationLayout
from multiverse.learning.threads import torch_for
from multiverse.policies.features import Features, Previous, channels_last
from multiverse.policies.numpy_policies import OBSERVATION_CLIP
from multiverse.rollouts.rollout import Rollout

log = logging.getLogger("multiverse")

MAX_SKIPPED_IN_A_ROW = 5
LOSSES = "loss", "policy_loss", "value_loss", "critic_loss", "actor_loss", "temperature_loss"
"""Names of the methods of our algorithms that are losses, or parts of one."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """Result of one update."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    gradient_steps: int = 0
    skipped: int = 0  # gradient steps that were not taken because a gradient was not finite


def mean_metrics(metrics: Sequence[Mapping[str, Any]], xp: Any) -> dict[str, float]:
    """Return the mean of each metric over the gradient steps that have it. `xp`: the library of these numbers. The
    values of all metrics are read at once, so that a GPU is waited for once per update."""
    values = [value for step in metrics for value in step.values()]
    numbers = np.asarray(values, np.float32) if xp is np else as_numpy(xp.stack(values)) if values else ()
    by_name: dict[str, list[float]] = {}
    for name, number in zip((name for step in metrics for name in step), numbers):
        by_name.setdefault(name, []).append(float(number))
    return {name: sum(numbers) / len(numbers) for name, numbers in by_name.items()}


class Algorithm(Protocol):
    """Networks, optimizer and everything else that learns.

    The trainer collects rollouts of `steps_per_env` steps with `policy()` and passes them to `update`. An algorithm
    with a replay buffer asks for short rollouts and copies them. `Config`, a frozen dataclass with defaults, holds the
    settings from the command line, config files and `mv.train`. The trainer calls the class with `(config,
    observation_space, action_space, slots, seed, device)`. The class declares what it supports (see `capabilities`).
    """

    features: Features
    steps_per_env: int

    @property
    def action(self) -> tuple[tuple[int, ...], Any]:
        """(shape, dtype) of one action in a rollout."""

    def policy(self) -> Policy:
        """Return the present policy: the same object until the weights change. Its own weights never change."""

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Learn from one rollout per group of agents. `progress`: share of the budget spent before, from 0 to 1."""

    def change(self, **settings: Any) -> None:
        """Change settings from now on. Changed settings are part of `state`."""

    def weights(self) -> dict[str, Any]:
        """Return the learned weights and nothing else: what `--init-from` loads."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights of another algorithm with the same networks."""

    def state(self) -> dict[str, Any]:
        """Return everything else that an exact resume needs: numbers, strings and numpy arrays."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of an algorithm with the same config and spaces, after its weights."""


OwnNetwork = tuple[str, Callable[[spaces.Space[Any]], Any]]
"""A network of the user: (its name, observation space → torch module)."""


# -- base of the algorithms here ---------------------------------------------------------------------------------
class Learner(Capabilities):
    """Base of `OnPolicy` and `OffPolicy`: modules of the user, the choice between torch and numpy kernels, changes of
    settings, and gradients that are not finite."""

    losses: tuple[str, ...] = ("loss",)
    """Names of the methods that return a loss."""
    noise_draws = 0
    """Number of arrays of Gaussian noise in the batch of each loss (`batch.noise`), drawn with the seed of the run."""
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
    """Torch modules that `modules` returned, by name."""
    own_network: CustomNetwork | None
    """The network of the user (`network`), which replaces the first layers."""
    progress = 0.0
    """Share of the budget that was spent before this update, from 0 to 1: for schedules in losses."""
    _seed: int

    def __init__(self) -> None:
        self._report_unknown_losses()
        self._changed: dict[str, Any] = {}  # all settings that were changed in this run
        self._skipped_in_a_row = 0

    def _refuse_unsupported(
        self,
        config: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: str,
        small_images: bool,
    ) -> None:
        """Refuse spaces that are not supported, for callers that did not ask `supports` before."""
        group = Group(SINGLE_AGENT, (SINGLE_AGENT,), observation_space, action_space)
        run = RunRequirements(settings=config, device=device, small_images=small_images, groups=(group,))
        refuse_unsupported(type(self), run)

    def _report_unknown_losses(self) -> None:
        """Warn about methods of the user that are named like a loss and never called."""
        own = type(self)
        stock = next(base for base in own.__mro__ if base.__module__.startswith(f"{__package__}."))
        called = [name for name in LOSSES if hasattr(stock, name) or name in own.losses]
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
        """Return the number of outputs of this network; refuse a missing one, or one below 1."""
        name, given = f"outputs() of {type(self).__name__}", self.outputs()
        if not isinstance(given, Mapping):
            raise InvalidRequest(f"{name} returned {given!r}: expected a dict such as {{{network!r}: 64}}")
        counts = {key: whole_number(f"{name}: {key}", count) for key, count in given.items()}
        if counts.get(network, 0) < 1:
            raise InvalidRequest(f"{name} returned {counts}: expected at least 1 of {network!r}")
        return counts[network]

    def _refuse_other_outputs(self, networks: Collection[str]) -> None:
        """Refuse names in `outputs` that are not those of networks."""
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
        """The trained parameters of the auxiliary modules."""
        parameters = (value for module in self.auxiliary.values() for value in module.parameters())
        return list(dict.fromkeys(value for value in parameters if value.requires_grad))

    # -- torch or numpy ------------------------------------------------------------------------------------------
    @cached_property
    def _has_custom_loss(self) -> bool:
        """Whether a loss may be one of the user: no kernel exists for it."""
        return any(kernel_of(type(self), loss) is None for loss in self.losses)

    def _choose_kernels(
        self, *, images: bool, device: str, units: int, max_units: int
    ) -> dict[str, Callable[..., Any]]:
        """Return the numpy kernel of each loss; none where torch differentiates the losses."""
        name, requested = type(self).__name__, self.config.learner
        kernels = {loss: kernel_of(type(self), loss) for loss in self.losses}
        custom = [loss for loss, kernel in kernels.items() if kernel is None]
        reasons = {
            f"the loss of {name} ({', '.join(custom)})": bool(custom),
            f"modules() of {name}": bool(self.auxiliary),
            f"network={'' if self.own_network is None else self.own_network.name}": self.own_network is not None,
            "learning from images": images,
            f"learning on {device}": device != "cpu",
            f"layers of more than {max_units} units": units > max_units,
        }
        needed = [reason for reason, holds in reasons.items() if holds]
        if requested == "numpy" and needed:
            raise InvalidRequest(
                f"learner='numpy' cannot be used with {needed[0]}, which needs torch: leave learner out"
            )
        if not needed and requested != "torch":
            return {loss: kernel for loss, kernel in kernels.items() if kernel is not None}
        torch_for("learner='torch'" if requested == "torch" else needed[0])
        if custom or self.auxiliary:
            parts = [*custom, *(["modules()"] if self.auxiliary else [])]
            log.info("%s learns in torch, because no numpy kernel exists for its %s", name, " and its ".join(parts))
        return {}

    # -- modules of the user -------------------------------------------------------------------------------------
    def _custom_modules(self) -> dict[str, Any]:
        """All torch modules that contain modules of the user, by name."""
        auxiliary = {"auxiliary": self.auxiliary} if self.auxiliary else {}
        return auxiliary if self.own_network is None else {**self._network_modules(), **auxiliary}

    def _network_modules(self) -> dict[str, Any]:
        """Return the torch networks by name; called if they contain a network of the user."""
        raise NotImplementedError

    def _training(self, when: Sequence[int]) -> AbstractContextManager[None]:
        """Context in which a loss is computed: modules of the user are in training mode, and torch's random numbers
        depend on the run's seed and `when`."""
        own = self._custom_modules()
        if not own and not self._has_custom_loss:
            return nullcontext()
        from multiverse.networks.modules import training

        return training([*own.values()], (self._seed, 5, *when))

    def _custom_weights(self) -> dict[str, Any]:
        """Return the part of `weights` for modules of the user: frozen parameters and buffers, and the order of the
        trained parameters in the optimizer."""
        if not (own := self._custom_modules()):
            return {}
        from multiverse.networks.modules import fixed_tensors, trained_parameters

        fixed, order = fixed_tensors(own, own), {"trained": trained_parameters(own)}
        return {**order, "fixed": fixed} if fixed else order  # guard: frozen-parts-and-statistics-are-saved

    def _load_custom_weights(self, weights: Mapping[str, Any]) -> None:
        if own := self._custom_modules():
            from multiverse.networks.modules import check_trained_parameters, load_fixed_tensors

            if "trained" in weights:
                check_trained_parameters(own, weights["trained"])
            load_fixed_tensors(own, own, weights.get("fixed", {}))

    @property
    def torch_device(self) -> str | None:
        """Type of the torch device of the networks, such as 'cpu'; None for networks in numpy."""
        networks = getattr(self, "_networks", None)
        first = next(iter(networks.values()), None) if isinstance(networks, dict) else networks
        return getattr(getattr(first, "device", None), "type", None)

    def change(self, **settings: Any) -> None:
        """Change settings from now on: `learning_rate`, `entropy_coef`, all that do not change the networks."""
        known = [setting.name for setting in fields(self.config)]
        if unknown := [name for name in settings if name not in known]:
            nearest = difflib.get_close_matches(unknown[0], known, 1)
            hint = f" Did you mean {nearest[0]}?" if nearest else f" Its settings are {', '.join(known)}"
            raise InvalidRequest(f"{unknown[0]}: {type(self).__name__} has no such setting.{hint}")
        if wrong := sorted(self.fixed.intersection(settings)):
            raise InvalidRequest(
                f"{', '.join(wrong)} cannot change in a run; start another run with its weights instead (init_from)"
            )
        self.config = replace(self.config, **settings)
        self._changed.update(settings)

    def _refuse_divergence(self, taken: Sequence[bool]) -> None:
        """Count the gradient steps that were skipped because their gradients were not finite; raise after several in a
        row."""
        for step_taken in taken:
            self._skipped_in_a_row = 0 if step_taken else self._skipped_in_a_row + 1
            if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:  # guard: five-in-a-row-is-enough
                smaller = "normalize_rewards" if hasattr(self.config, "normalize_rewards") else "smaller rewards"
                raise TrainingDiverged(
                    f"{MAX_SKIPPED_IN_A_ROW} gradients in a row were not finite; the weights are those of the last "
                    f"step that was taken. Try a smaller learning_rate or {smaller}, and check the env's rewards"
                )


# -- inputs of networks --------------------------------------------------------------------------------------------
def network_inputs(
    features: Features,
    observations: Leaves,
    shift_and_scale: tuple[Array, Array] | None,
    previous: Previous | None = None,
) -> tuple[Array, list[Array]]:
    """Return (vector, images); the vector is normalised with the statistics of the policy that acted."""
    vector = features.vector(observations, previous)
    if shift_and_scale is not None:
        shift, scale = shift_and_scale
        vector = np.clip((vector - shift) * scale, -OBSERVATION_CLIP, OBSERVATION_CLIP)
    return vector, [observations[leaf.path] for leaf in features.images]


def observation_layout(features: Features, space: spaces.Space[Any]) -> ObservationLayout:
    """Return the layout that converts the vector and images made by `features` to observations of this space."""
    images, inputs = {leaf.path: number for number, leaf in enumerate(features.images)}, []
    for leaf in features.leaves:
        shape, last = tuple(leaf.space.shape or ()), False
        if (number := images.get(leaf.path)) is not None:
            last = channels_last(shape)
            shape = (shape[2], *shape[:2]) if last else shape
        elif not isinstance(leaf.space, spaces.Box):
            columns = features.columns[leaf.path]
            shape = (columns.stop - columns.start,)
        place = features.columns.get(leaf.path)
        inputs.append(LeafInput(leaf.path, shape, columns=place, image=number, channels_last=last))
    return ObservationLayout(_input_space(space, {leaf.path: leaf for leaf in inputs}), inputs, features.parts[0])


def _input_space(space: spaces.Space[Any], inputs: dict[Path, LeafInput], path: Path = ()) -> spaces.Space[Any]:
    """Return the space without leaves that are not inputs, and images with their channels first."""
    if isinstance(space, spaces.Dict):
        inner = [
            (key, _input_space(value, inputs, (*path, key)))
            for key, value in space.items()
            if any(leaf[: len(path) + 1] == (*path, key) for leaf in inputs)
        ]
        return spaces.Dict(OrderedDict(inner))  # in this order; a dict would be sorted
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_input_space(value, inputs, (*path, k)) for k, value in enumerate(space.spaces)])
    if inputs[path].channels_last and isinstance(space, spaces.Box):
        low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)
    return space
