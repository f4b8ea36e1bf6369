"""Heads: they convert a network's outputs, and noise, to actions of a space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.policy import MASKED_LOGIT
from multiverse.core.wording import short_repr

LOG_STD_RANGE = np.float32(-20.0), np.float32(2.0)
"""Bounds of the logarithm of a standard deviation that a network returns."""


class Head(Protocol):
    """Converts a network's outputs, and noise, to actions."""

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array: ...

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array: ...

    def for_env(self, actions: Array) -> Any: ...

    def saved(self) -> dict[str, Any]:
        """Values from which `saved_head` restores it, together with the action space."""


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
    """One of `counts[i]` actions for every i. Masks are concatenated as the logits are."""

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
    """True or False for every output: True where the sum of its logit and logistic noise is above 0."""

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
    """Mean from the network, and a fixed standard deviation. For the env, actions are clipped to its bounds, or
    (`squash`) squashed into them by a tanh."""

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
    """The action of the largest output or, with probability `epsilon`, a random one of the open actions."""

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
    """`EpsilonGreedyHead` for networks that describe the return of each action by a categorical distribution: their
    outputs are the logits of `support` [atoms] for every action, and an action's value is the mean."""

    support: Array = field(kw_only=True)

    def __post_init__(self) -> None:
        atoms = np.asarray(self.support, np.float32)
        if atoms.ndim != 1 or len(atoms) < 2 or not (np.isfinite(atoms).all() and (np.diff(atoms) > 0).all()):
            raise InvalidRequest(
                f"support={short_repr(self.support)}: expected at least two increasing finite values of the return"
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
    """Actions from -1 to 1, scaled to the bounds of the env. Of noise that is drawn at once, `noise_steps` steps share
    the same values."""

    low: Array  # [actions]
    high: Array
    shape: tuple[int, ...]
    noise_steps: int

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self.repeated(steps, rows, lambda shape: rng.standard_normal(shape, dtype=np.float32))

    def repeated(self, steps: int, rows: int, draw: Callable[[tuple[int, int, int]], Array]) -> Array:
        drawn = draw((-(-steps // self.noise_steps), rows, len(self.low)))
        return drawn.repeat(self.noise_steps, axis=0)[:steps] if self.noise_steps > 1 else drawn

    def for_env(self, actions: Array) -> Any:
        scaled = self.low + (actions + np.float32(1)) * (np.float32(0.5) * (self.high - self.low))
        return np.minimum(scaled, self.high).reshape(len(actions), *self.shape)


@dataclass(frozen=True, slots=True)
class SquashedGaussianHead(_Bounded):
    """The network returns means, then logarithms of standard deviations; a tanh bounds the drawn actions."""

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        mean, log_std = np.split(output, 2, axis=1)
        if noise is not None:
            lowest, highest = LOG_STD_RANGE
            mean = mean + np.exp(np.clip(log_std, lowest, highest)) * noise
        return np.asarray(np.tanh(mean))

    def saved(self) -> dict[str, Any]:
        return {"head": "squashed_gaussian"}


@dataclass(frozen=True, slots=True)
class DeterministicHead(_Bounded):
    """A tanh of the network's outputs, and noise of this standard deviation."""

    std: float = 0.0

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        action = np.tanh(output)
        return action if noise is None else np.clip(action + np.float32(self.std) * noise, -1.0, 1.0)

    def saved(self) -> dict[str, Any]:
        return {"head": "deterministic", "std": self.std}


@dataclass(frozen=True, slots=True)
class UniformHead:
    """Uniform actions during warm-up, whatever the network returns; without noise, and when saved, the head `then`."""

    then: Head

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        if isinstance(self.then, _Bounded):
            return self.then.repeated(steps, rows, lambda shape: rng.uniform(-1.0, 1.0, shape).astype(np.float32))
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
"""Every head that `saved_head` restores; subclasses, which may act differently, are not among them."""


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
    """Head for actions of this space; `std` of Box actions."""
    if isinstance(space, spaces.Discrete):
        return DiscreteHead(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteHead(tuple(space.nvec.reshape(-1).tolist()), space.start.reshape(-1), space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return BinaryHead(int(np.prod(space.shape)), tuple(space.shape), space.dtype)
    if isinstance(space, spaces.Box) and std is not None:
        if squash and not space.is_bounded():
            raise InvalidRequest(f"squash=True needs finite bounds, and those of {space} are not")
        return GaussianHead(np.asarray(std), space.low.reshape(-1), space.high.reshape(-1), space.shape, squash)
    hint = ": pass std to head_for" if isinstance(space, spaces.Box) else ""
    raise InvalidRequest(f"no policy in numpy acts in {space}{hint}")


def bounded_head(
    space: spaces.Space[Any], std: float | None = None, noise_steps: int = 1
) -> SquashedGaussianHead | DeterministicHead:
    """Head for actions with finite bounds; `std`: of the noise, which makes it deterministic."""
    if not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded()):
        raise InvalidRequest(
            f"actions must be a Box of floats with bounds on every side, and the action space is {space}"
        )
    low, high = space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
    if std is None:
        return SquashedGaussianHead(low, high, space.shape, noise_steps)
    return DeterministicHead(low, high, space.shape, noise_steps, std)


def saved_head(saved: Mapping[str, Any], space: spaces.Space[Any]) -> Head:
    """The head of a saved policy."""
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
    raise ValueError(f"unknown head {kind!r} for actions of {space}")


def action_of(space: spaces.Space[Any]) -> tuple[tuple[int, ...], Any]:
    """(shape, dtype) of one action in policies and rollouts."""
    if isinstance(space, spaces.Discrete):
        return (), np.int64
    return (int(np.prod(space.shape or ())),), np.float32 if isinstance(space, spaces.Box) else np.int64


def no_actions(space: spaces.Space[Any], rows: int) -> Array:
    """[rows, …] previous actions for a policy that has not acted yet."""
    shape, dtype = action_of(space)
    return np.zeros((rows, *shape), dtype)


def outputs_of(space: spaces.Space[Any]) -> int:
    """Number of outputs of a network for an action of this space."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else int(np.prod(space.shape or ()))


def outputs_for(head: Head, space: spaces.Space[Any]) -> int:
    """Number of outputs of a network that this head takes for actions of this space."""
    parts = (
        len(head.support) if isinstance(head, CategoricalHead) else 2 if isinstance(head, SquashedGaussianHead) else 1
    )
    return outputs_of(space) * parts


def _scores(output: Array, noise: Array | None, masks: Array | None) -> Array:
    if masks is not None:
        output = np.where(masks, output, np.float32(MASKED_LOGIT))
    return output if noise is None else np.asarray(output + noise)


def gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Gumbel noise: the argmax of logits plus this noise is a draw from their softmax."""
    return np.asarray(-np.log(rng.standard_exponential(shape, dtype=np.float32) + np.float32(1e-20)))
