"""From what a network says, and noise, to actions of a space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest, in_words
from multiverse.core.policy import MASKED_LOGIT
from multiverse.core.views import Array

LOG_STD_RANGE = np.float32(-20.0), np.float32(2.0)
"""Of what a network says of the standard deviation."""


class Head(Protocol):
    """From a network's output, and noise, to actions."""

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array: ...

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array: ...

    def for_env(self, actions: Array) -> Any: ...

    def saved(self) -> dict[str, Any]:
        """What makes it again, beside the space of the actions."""


@dataclass(frozen=True, slots=True)
class DiscreteHead:
    """One of `count` actions. Adding Gumbel noise to logits and taking the largest draws from their softmax."""

    count: int
    start: int = 0

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return gumbel(rng, (steps, rows, self.count))

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        return np.asarray(_scores(output, noise, masks).argmax(axis=1))

    def for_env(self, actions: Array) -> Any:
        return actions + self.start if self.start else actions

    def saved(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class MultiDiscreteHead:
    """One of `counts[i]` for every i. Masks, where there are any, lie side by side as the logits do."""

    counts: tuple[int, ...]
    starts: Array  # [counts]
    shape: tuple[int, ...]

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return gumbel(rng, (steps, rows, sum(self.counts)))

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        parts = np.split(_scores(output, noise, masks), np.cumsum(self.counts)[:-1], axis=1)
        return np.stack([part.argmax(axis=1) for part in parts], axis=1)

    def for_env(self, actions: Array) -> Any:
        return (actions + self.starts).reshape(len(actions), *self.shape)

    def saved(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class BinaryHead:
    """Yes or no, for every output: yes where its logit and logistic noise are above 0."""

    count: int
    shape: tuple[int, ...]
    dtype: Any

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return rng.logistic(size=(steps, rows, self.count)).astype(np.float32)

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        return ((output if noise is None else output + noise) > 0).astype(np.int64)

    def for_env(self, actions: Array) -> Any:
        return actions.astype(self.dtype).reshape(len(actions), *self.shape)

    def saved(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class GaussianHead:
    """Mean from the network, standard deviation of its own. For the env, what leaves the bounds is clipped, or
    (`squash`) everything is squashed into them by a tanh."""

    std: Array  # [actions]
    low: Array
    high: Array
    shape: tuple[int, ...]
    squash: bool = False

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return rng.standard_normal((steps, rows, len(self.std)), dtype=np.float32)

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        return output if noise is None else np.asarray(output + self.std * noise)

    def for_env(self, actions: Array) -> Any:
        if self.squash:
            bounded = self.low + (np.tanh(actions) + np.float32(1)) * (self.high - self.low) * np.float32(0.5)
            return bounded.reshape(len(actions), *self.shape)
        return np.clip(actions, self.low, self.high).reshape(len(actions), *self.shape)

    def saved(self) -> dict[str, Any]:
        return {"std": self.std, "squash": self.squash}


@dataclass(frozen=True, slots=True)
class EpsilonGreedyHead(DiscreteHead):
    """The action of the largest output or, one time in 1 / `epsilon`, any that is open."""

    epsilon: float = 0.0

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return rng.random((steps, rows, 1 + self.count), dtype=np.float32)

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        greedy = np.asarray(_scores(output, None, masks).argmax(axis=1))
        if noise is None:
            return greedy
        return np.where(noise[:, 0] < self.epsilon, _scores(noise[:, 1:], None, masks).argmax(axis=1), greedy)

    def saved(self) -> dict[str, Any]:
        return {"head": "epsilon_greedy", "epsilon": self.epsilon}


@dataclass(frozen=True, slots=True)
class CategoricalHead(EpsilonGreedyHead):
    """As `EpsilonGreedyHead`, where the network describes the return of each action by a categorical distribution: its
    outputs are the logits of `support` [atoms] for every action, and an action's value is the mean."""

    support: Array = field(kw_only=True)

    def __post_init__(self) -> None:
        atoms = np.asarray(self.support, np.float32)
        if atoms.ndim != 1 or len(atoms) < 2 or not (np.isfinite(atoms).all() and (np.diff(atoms) > 0).all()):
            raise InvalidRequest(
                f"support={in_words(self.support)}: expected at least two increasing finite values of the return"
            )
        object.__setattr__(self, "support", atoms)

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        return EpsilonGreedyHead.choose(self, self.values(output), noise, masks)

    def values(self, output: Array) -> Array:
        """[rows, count] mean return of each action, of outputs [rows, count × atoms]."""
        logits = output.reshape(len(output), self.count, -1)
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray((powers * self.support).sum(axis=-1) / powers.sum(axis=-1))

    def saved(self) -> dict[str, Any]:
        return {"head": "categorical", "epsilon": self.epsilon, "support": self.support}


@dataclass(frozen=True, slots=True)
class _Bounded:
    """Actions from -1 to 1, as a tanh gives them; for the env, from its low to its high. Noise stays the same for
    `noise_steps` of the steps that it is drawn for at once."""

    low: Array  # [actions]
    high: Array
    shape: tuple[int, ...]
    noise_steps: int

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self.held(steps, rows, lambda shape: rng.standard_normal(shape, dtype=np.float32))

    def held(self, steps: int, rows: int, draw: Callable[[tuple[int, int, int]], Array]) -> Array:
        drawn = draw((-(-steps // self.noise_steps), rows, len(self.low)))
        return drawn.repeat(self.noise_steps, axis=0)[:steps] if self.noise_steps > 1 else drawn

    def for_env(self, actions: Array) -> Any:
        scaled = self.low + (actions + np.float32(1)) * (np.float32(0.5) * (self.high - self.low))
        return np.minimum(scaled, self.high).reshape(len(actions), *self.shape)


@dataclass(frozen=True, slots=True)
class SquashedGaussianHead(_Bounded):
    """The network says a mean and, behind it, the logarithm of a standard deviation; a tanh bounds what is drawn."""

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        mean, log_std = np.split(output, 2, axis=1)
        if noise is not None:
            mean = mean + np.exp(np.clip(log_std, *LOG_STD_RANGE)) * noise
        return np.asarray(np.tanh(mean))

    def saved(self) -> dict[str, Any]:
        return {"head": "squashed_gaussian"}


@dataclass(frozen=True, slots=True)
class DeterministicHead(_Bounded):
    """A tanh of what the network says, and noise of this standard deviation."""

    std: float = 0.0

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        action = np.tanh(output)
        return action if noise is None else np.clip(action + np.float32(self.std) * noise, -1.0, 1.0)

    def saved(self) -> dict[str, Any]:
        return {"head": "deterministic", "std": self.std}


@dataclass(frozen=True, slots=True)
class UniformHead:
    """All actions alike, whatever the network says; without noise, and saved, the one that it warms up for."""

    then: Head

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        if isinstance(self.then, _Bounded):
            return self.then.held(steps, rows, lambda shape: rng.uniform(-1.0, 1.0, shape).astype(np.float32))
        return self.then.noise(rng, steps, rows)

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        if noise is not None and isinstance(self.then, _Bounded):
            return noise
        return self.then.choose(output if noise is None else output * 0, noise, masks)

    def for_env(self, actions: Array) -> Any:
        return self.then.for_env(actions)

    def saved(self) -> dict[str, Any]:
        return self.then.saved()


HEADS = (
    DiscreteHead,
    MultiDiscreteHead,
    BinaryHead,
    GaussianHead,
    EpsilonGreedyHead,
    CategoricalHead,
    SquashedGaussianHead,
    DeterministicHead,
)
"""Every head that `saved_head` makes; a subclass may act in another way."""


def learned_head(head: Head) -> Head:
    """The head that acts after the warm-up, and that is saved."""
    return head.then if type(head) is UniformHead else head


def is_equal_head(head: Head, other: Head) -> bool:
    """Whether two heads choose equal actions for equal outputs and noise."""
    names = [field.name for field in fields(head) if field.name != "noise_steps"]  # type: ignore[arg-type]
    return type(head) is type(other) and all(
        np.array_equal(getattr(head, name), getattr(other, name)) for name in names
    )


def head_for(space: spaces.Space[Any], std: Array | None = None, squash: bool = False) -> Head:
    """What turns outputs into actions of this space; `std` of Box actions."""
    if isinstance(space, spaces.Discrete):
        return DiscreteHead(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteHead(tuple(space.nvec.reshape(-1).tolist()), space.start.reshape(-1), space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return BinaryHead(int(np.prod(space.shape)), tuple(space.shape), space.dtype)
    if isinstance(space, spaces.Box) and std is not None:
        if squash and not space.is_bounded():
            raise InvalidRequest(f"squashed actions need bounds on every side, and {space} has not")
        return GaussianHead(np.asarray(std), space.low.reshape(-1), space.high.reshape(-1), space.shape, squash)
    wanted = ": head_for wants its std too" if isinstance(space, spaces.Box) else ""
    raise InvalidRequest(f"no policy in numpy acts in {space}{wanted}")


def bounded_head(
    space: spaces.Space[Any], std: float | None = None, noise_steps: int = 1
) -> SquashedGaussianHead | DeterministicHead:
    """For actions that have bounds on every side; `std`: of the noise of a deterministic one."""
    if not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded()):
        raise InvalidRequest(f"actions must be a Box of floats with bounds on every side, and these are {space}")
    bounds = space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
    if std is None:
        return SquashedGaussianHead(*bounds, space.shape, noise_steps)
    return DeterministicHead(*bounds, space.shape, noise_steps, std)


def saved_head(saved: Mapping[str, Any], space: spaces.Space[Any]) -> Head:
    """The head that a run holds."""
    kind = saved.get("head")
    if kind is None:
        return head_for(space, saved.get("std"), bool(saved.get("squash", False)))
    if kind in ("epsilon_greedy", "categorical") and isinstance(space, spaces.Discrete):
        count, start, epsilon = int(space.n), int(space.start), float(saved["epsilon"])
        if kind == "categorical":
            return CategoricalHead(count, start, epsilon, support=np.asarray(saved["support"]))
        return EpsilonGreedyHead(count, start, epsilon)
    if kind in ("squashed_gaussian", "deterministic"):
        return bounded_head(space, float(saved["std"]) if kind == "deterministic" else None)
    raise ValueError(f"a head of kind {kind!r} for {space} is none that we know")


def action_of(space: spaces.Space[Any]) -> tuple[tuple[int, ...], Any]:
    """(shape, dtype) of one action as policies and rollouts have it."""
    if isinstance(space, spaces.Discrete):
        return (), np.int64
    return (int(np.prod(space.shape or ())),), np.float32 if isinstance(space, spaces.Box) else np.int64


def no_actions(space: spaces.Space[Any], rows: int) -> Array:
    """[rows, …] what a policy is shown as its previous actions where there are none."""
    shape, dtype = action_of(space)
    return np.zeros((rows, *shape), dtype)


def outputs_of(space: spaces.Space[Any]) -> int:
    """How many numbers a network says of an action in this space."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else int(np.prod(space.shape or ()))


def outputs_for(head: Head, space: spaces.Space[Any]) -> int:
    """Number of outputs of a network that one of our heads for this space takes."""
    parts = (
        len(head.support) if isinstance(head, CategoricalHead) else 2 if isinstance(head, SquashedGaussianHead) else 1
    )
    return outputs_of(space) * parts


def _scores(output: Array, noise: Array | None, masks: Array | None) -> Array:
    if masks is not None:
        output = np.where(masks, output, np.float32(MASKED_LOGIT))
    return output if noise is None else np.asarray(output + noise)


def gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Noise under which the largest of several logits is a draw from their softmax."""
    return np.asarray(-np.log(rng.standard_exponential(shape, dtype=np.float32) + np.float32(1e-20)))
