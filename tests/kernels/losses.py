"""A loss in torch and in its kernel, without the rest of an algorithm."""

from __future__ import annotations

from functools import partial
from typing import Any

from multiverse.kernels import kernel_of


def algorithm_with(kind: Any, config: Any) -> Any:
    """An algorithm that has only settings, for the methods that define its loss."""
    algorithm = object.__new__(kind)
    algorithm.config, algorithm.progress = config, 0.0
    return algorithm


def torch_loss(kind: Any, config: Any) -> Any:
    return algorithm_with(kind, config).loss


def kernel(kind: Any, config: Any) -> Any:
    found = kernel_of(kind)
    assert found is not None
    return partial(found, algorithm_with(kind, config))
