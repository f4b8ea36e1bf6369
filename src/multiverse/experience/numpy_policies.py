"""Small policies as plain numpy: for a handful of rows a tenth of what the same network costs in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from multiverse.contracts.policy import MASKED_LOGIT, Leaves
from multiverse.contracts.views import Array
from multiverse.experience.features import Features

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh,
    "relu": lambda x, out: np.maximum(x, np.float32(0), out=out),
}


class Head(Protocol):
    """From a network's output, and noise, to actions."""

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array: ...

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array: ...

    def for_env(self, actions: Array) -> Any: ...


@dataclass(frozen=True, slots=True)
class DiscreteHead:
    """One of `count` actions. Adding Gumbel noise to logits and taking the largest draws from their softmax."""

    count: int
    start: int = 0

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return gumbel(rng, (steps, rows, self.count))

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        if masks is not None:
            output = np.where(masks, output, np.float32(MASKED_LOGIT))
        return np.asarray((output if noise is None else output + noise).argmax(axis=1))

    def for_env(self, actions: Array) -> Any:
        return actions + self.start if self.start else actions


@dataclass(frozen=True, slots=True)
class MultiDiscreteHead:
    """One of `counts[i]` for every i. Masks, where there are any, lie side by side as the logits do."""

    counts: tuple[int, ...]
    starts: Array  # [counts]
    shape: tuple[int, ...]

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return gumbel(rng, (steps, rows, sum(self.counts)))

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        if masks is not None:
            output = np.where(masks, output, np.float32(MASKED_LOGIT))
        scores = output if noise is None else output + noise
        parts = np.split(scores, np.cumsum(self.counts)[:-1], axis=1)
        return np.stack([part.argmax(axis=1) for part in parts], axis=1)

    def for_env(self, actions: Array) -> Any:
        return (actions + self.starts).reshape(len(actions), *self.shape)


@dataclass(frozen=True, slots=True)
class GaussianHead:
    """Mean from the network, standard deviation of its own; what leaves the bounds is clipped for the env only."""

    std: Array  # [actions]
    low: Array
    high: Array
    shape: tuple[int, ...]

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return rng.standard_normal((steps, rows, len(self.std)), dtype=np.float32)

    def choose(self, output: Array, noise: Array | None, masks: Array | None) -> Array:
        return output if noise is None else np.asarray(output + self.std * noise)

    def for_env(self, actions: Array) -> Any:
        return np.clip(actions, self.low, self.high).reshape(len(actions), *self.shape)


def gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Noise under which the largest of several logits is a draw from their softmax."""
    return np.asarray(-np.log(rng.standard_exponential(shape, dtype=np.float32) + np.float32(1e-20)))


class NumpyPolicy:
    """Features of observations, normalised, through a few dense layers. Remembers nothing."""

    def __init__(
        self,
        features: Features,
        layers: Sequence[tuple[Array, Array]],
        activation: str,
        head: Head,
        version: int,
        shift_and_scale: tuple[Array, Array] | None = None,
        clip: float = 10.0,
    ) -> None:
        """`layers`: (weights [in, out], bias) of each; the last one has no activation."""
        self._features = features
        self._layers = [(np.ascontiguousarray(w), np.ascontiguousarray(b)) for w, b in layers]
        self._activate, self._head, self.version = ACTIVATIONS[activation], head, version
        self._shift_and_scale, self._clip = shift_and_scale, np.float32(clip)

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self._head.noise(rng, steps, rows)

    def act(self, observations: Leaves, noise: Array | None, starts: Array, masks: Array | None) -> Array:
        return self._head.choose(self._output(self._features.vector(observations)), noise, masks)

    def for_env(self, actions: Array) -> Any:
        return self._head.for_env(actions)

    def _output(self, x: Array) -> Array:
        if self._shift_and_scale is not None:
            shift, scale = self._shift_and_scale
            x = np.clip((x - shift) * scale, -self._clip, self._clip)
        last = len(self._layers) - 1
        for i, (weights, bias) in enumerate(self._layers):
            x = x @ weights
            x += bias
            if i != last:
                self._activate(x, out=x)
        return x
