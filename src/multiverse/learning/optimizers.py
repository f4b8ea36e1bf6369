"""Adam and RMSprop, once for numpy and torch.

All parameters lie in one array: one call, instead of one per layer, clips, checks and steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.views import Array
from multiverse.learning.loss import as_numpy


class Optimizer:
    """Parameters, their gradient, and steps down it. A gradient that is not finite changes nothing.

    Nobody waits for a GPU to know whether it was: `taken`, there, is a number that lies beside the parameters, and a
    step is multiplied by it.
    """

    moments: tuple[str, ...] = ()
    """What it remembers of earlier gradients."""

    def __init__(self, xp: Any, parameters: Any, epsilon: float = 1e-5) -> None:
        self._xp, self.parameters, self._epsilon = xp, parameters, epsilon
        self._steps = self._counter(0)
        self.gradient, self._buffer = xp.zeros_like(parameters), xp.zeros_like(parameters)
        self._moments = [xp.zeros_like(parameters) for _ in self.moments]

    @property
    def steps(self) -> int:
        """That were taken."""
        return int(self._steps)

    def step(self, learning_rate: float, max_norm: float) -> Any:
        """Clip the gradient to that norm and go down it. Returns whether the step was taken."""
        taken = self._clip_in_numpy(max_norm) if self._xp is np else self._clip_in_torch(max_norm)
        if taken is False:  # guard: gradients-are-finite-in-numpy
            return taken
        self._descend(learning_rate, taken)
        self._steps = self._steps + taken
        return taken

    def _clip_in_numpy(self, max_norm: float) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):  # that is what is looked for
            norm = float(np.sqrt(np.dot(self.gradient, self.gradient)))
        if max_norm < norm < math.inf:
            self.gradient *= max_norm / (norm + 1e-6)
        return math.isfinite(norm)

    def _clip_in_torch(self, max_norm: float) -> Any:
        norm = self._xp.linalg.vector_norm(self.gradient)
        taken = self._xp.isfinite(norm)
        self.gradient *= taken * (max_norm / (norm + 1e-6)).clamp(max=1.0)
        self.gradient.nan_to_num_(0.0, 0.0, 0.0)  # guard: gradients-are-finite
        return taken

    def _descend(self, learning_rate: float, taken: Any) -> None:
        raise NotImplementedError

    # -- saving --------------------------------------------------------------------------------------------------
    def weights(self) -> Array:
        """All parameters, a copy."""
        return as_numpy(self.parameters)

    def load_weights(self, saved: Any) -> None:
        given = np.asarray(saved)
        if given.shape != tuple(self.parameters.shape):  # guard: sizes-are-compared
            raise InvalidRequest(
                f"the saved algorithm has {len(given)} parameters and this one {len(self.parameters)}: its networks "
                "have other sizes"
            )
        self.parameters[...] = self._xp.asarray(given)

    def state(self) -> dict[str, Any]:
        """Everything but the parameters."""
        moments = {name: as_numpy(moment) for name, moment in zip(self.moments, self._moments)}
        return {**moments, "steps": int(self._steps)}

    def load(self, state: Mapping[str, Any]) -> None:
        given, steps = [np.asarray(state[name]) for name in self.moments], int(state.get("steps", 0))
        if any(one.shape != tuple(self.parameters.shape) for one in given) or steps < 0:
            raise ValueError("the moments do not belong to the parameters")
        for moment, one in zip(self._moments, given):
            moment[...] = self._xp.asarray(one)
        self._steps = self._counter(steps)

    def _counter(self, steps: int) -> Any:
        """Of steps that were taken, where that is known."""
        return steps if self._xp is np else self._xp.asarray(steps, device=self.parameters.device)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015): m / (√v + ε), both corrected for having begun at 0."""

    moments = ("first", "second")

    def _descend(self, learning_rate: float, taken: Any) -> None:
        xp, gradient, room, (first, second) = self._xp, self.gradient, self._buffer, self._moments
        step = self._steps + 1
        xp.subtract(gradient, first, out=room)
        room *= taken * _new(0.9)
        first += room
        second *= 1 - taken * _new(0.999)
        xp.multiply(gradient, gradient, out=room)
        room *= _new(0.999)
        second += room
        # The corrections are taken out of the roots and quotients: numbers, instead of passes over all parameters.
        correction = _one_minus_power(0.999, step) ** 0.5
        xp.sqrt(second, out=room)
        room += self._epsilon * correction
        xp.divide(first, room, out=room)
        room *= taken * (learning_rate * correction / _one_minus_power(0.9, step))
        self.parameters -= room


class RMSprop(Optimizer):
    """RMSprop (Hinton 2012), without momentum."""

    moments = ("squares",)

    def _descend(self, learning_rate: float, taken: Any) -> None:
        xp, gradient, room, (squares,) = self._xp, self.gradient, self._buffer, self._moments
        squares *= 1 - taken * _new(0.99)
        xp.multiply(gradient, gradient, out=room)
        room *= _new(0.99)
        squares += room
        xp.sqrt(squares, out=room)
        room += self._epsilon
        xp.divide(gradient, room, out=room)
        room *= learning_rate
        self.parameters -= room


@functools.cache
def _new(decay: float) -> float:
    """What a running mean takes of a new value: 1 - decay, as single precision has it."""
    return float(1 - np.float32(decay))


def _one_minus_power(decay: float, steps: Any) -> Any:
    """1 - decay ** steps, exact too where single precision counts the steps (in torch)."""
    power = steps * math.log(decay)
    return -(math.expm1(power) if isinstance(power, float) else power.expm1())
