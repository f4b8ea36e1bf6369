"""Adam and RMSprop for numpy and torch.

All parameters are in one array, so that one call, instead of one per layer, clips, checks and steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.learning.loss import as_numpy


class Optimizer:
    """Parameters, their gradient, and gradient steps. A gradient that is not finite changes nothing.

    Whether a step was taken is known without waiting for a GPU: in torch it is a tensor on the device of the
    parameters, by which the step is multiplied.
    """

    moments: tuple[str, ...] = ()
    """Names of the running means of gradients."""

    def __init__(self, xp: Any, parameters: Any, epsilon: float = 1e-5) -> None:
        self._xp, self.parameters, self._epsilon = xp, parameters, epsilon
        self._steps = self._counter(0)
        self.gradient, self._buffer = xp.zeros_like(parameters), xp.zeros_like(parameters)
        self._moments = [xp.zeros_like(parameters) for _ in self.moments]

    @property
    def steps(self) -> int:
        """Number of steps that were taken."""
        return int(self._steps)

    def step(self, learning_rate: float, max_norm: float) -> Any:
        """Clip the gradient to this norm and take a step. Return whether the step was taken."""
        taken = self._clip_in_numpy(max_norm) if self._xp is np else self._clip_in_torch(max_norm)
        if taken is False:  # guard: gradients-are-finite-in-numpy
            return taken
        self._descend(learning_rate, taken)
        self._steps = self._steps + taken
        return taken

    def _clip_in_numpy(self, max_norm: float) -> bool:
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
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
        """Return a copy of all parameters."""
        return as_numpy(self.parameters)

    def load_weights(self, saved: Any) -> None:
        weights = np.asarray(saved)
        if weights.shape != tuple(self.parameters.shape):  # guard: sizes-are-compared
            raise InvalidRequest(
                f"the saved algorithm has {len(weights)} parameters and this one {len(self.parameters)}: its networks "
                "have other sizes"
            )
        self.parameters[...] = self._xp.asarray(weights)

    def state(self) -> dict[str, Any]:
        """Return everything but the parameters."""
        moments = {name: as_numpy(moment) for name, moment in zip(self.moments, self._moments)}
        return {**moments, "steps": int(self._steps)}

    def load(self, state: Mapping[str, Any]) -> None:
        moments, steps = [np.asarray(state[name]) for name in self.moments], int(state.get("steps", 0))
        if any(saved.shape != tuple(self.parameters.shape) for saved in moments) or steps < 0:
            raise ValueError("the moments do not belong to the parameters")
        for moment, saved in zip(self._moments, moments):
            moment[...] = self._xp.asarray(saved)
        self._steps = self._counter(steps)

    def _counter(self, steps: int) -> Any:
        """Return the number of steps: in torch a tensor on the device of the parameters."""
        return steps if self._xp is np else self._xp.asarray(steps, device=self.parameters.device)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015): m / (√v + ε), both corrected for their initial value of 0."""

    moments = ("first", "second")

    def _descend(self, learning_rate: float, taken: Any) -> None:
        xp, gradient, buffer, (first, second) = self._xp, self.gradient, self._buffer, self._moments
        step = self._steps + 1
        xp.subtract(gradient, first, out=buffer)
        buffer *= taken * _one_minus(0.9)
        first += buffer
        second *= 1 - taken * _one_minus(0.999)
        xp.multiply(gradient, gradient, out=buffer)
        buffer *= _one_minus(0.999)
        second += buffer
        # Both corrections are applied as scalars instead of passes over all parameters.
        correction = _one_minus_power(0.999, step) ** 0.5
        xp.sqrt(second, out=buffer)
        buffer += self._epsilon * correction
        xp.divide(first, buffer, out=buffer)
        buffer *= taken * (learning_rate * correction / _one_minus_power(0.9, step))
        self.parameters -= buffer


class RMSprop(Optimizer):
    """RMSprop (Hinton 2012), without momentum."""

    moments = ("squares",)

    def _descend(self, learning_rate: float, taken: Any) -> None:
        xp, gradient, buffer, (squares,) = self._xp, self.gradient, self._buffer, self._moments
        squares *= 1 - taken * _one_minus(0.99)
        xp.multiply(gradient, gradient, out=buffer)
        buffer *= _one_minus(0.99)
        squares += buffer
        xp.sqrt(squares, out=buffer)
        buffer += self._epsilon
        xp.divide(gradient, buffer, out=buffer)
        buffer *= learning_rate
        self.parameters -= buffer


@functools.cache
def _one_minus(decay: float) -> float:
    """1 - decay in single precision: the weight of a new value in a running mean."""
    return float(1 - np.float32(decay))


def _one_minus_power(decay: float, steps: Any) -> Any:
    """1 - decay ** steps, exact also for steps in single precision (in torch)."""
    power = steps * math.log(decay)
    return -(math.expm1(power) if isinstance(power, float) else power.expm1())
