"""Initial weights of networks, drawn by numpy: the same seed gives the same weights in numpy and in torch.

Shapes and order are those of torch's layers. Modules that exist in torch only (convolutions over images, attention,
networks of the user) are not initialised here.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from multiverse.core.layout import Array
from multiverse.learning.convolution import Convolution
from multiverse.learning.network_spec import NetworkSpec, initial_gate_bias

_BLAS_LOCK = threading.Lock()  # the number of BLAS threads is a setting of the process


def dense_weights(
    rng: np.random.Generator,
    widths: Sequence[int],
    last_gain: float = 1.0,
    *,
    ortho_init: bool,
    copies: int = 1,
    convolution: Convolution | None = None,
) -> Iterator[tuple[Array, Array]]:
    """Yield (weights [copies, out, in], biases [copies, out]) of each layer.

    `ortho_init`: weights are orthogonal and biases zero; else both are uniform, as torch's defaults. `last_gain` is
    small for a policy, so that initially all actions are about as likely, and 1 for a value. `convolution`: the first
    layer, whose filters are orthogonal in either case.
    """
    last = len(widths) - 2
    for i, (inward, outward) in enumerate(itertools.pairwise(widths)):
        if i == 0 and convolution is not None:
            kernels = [orthogonal(rng, convolution.kernel) * np.sqrt(2) for _ in range(copies)]
            weights = np.stack([convolution.spread(kernel) for kernel in kernels])
        elif ortho_init:
            gain = last_gain if i == last else np.sqrt(2)
            weights = np.stack([orthogonal(rng, (outward, inward)) * gain for _ in range(copies)])
        else:
            limit = 1 / np.sqrt(inward)
            yield rng.uniform(-limit, limit, (copies, outward, inward)), rng.uniform(-limit, limit, (copies, outward))
            continue
        yield weights, np.zeros((copies, outward), np.float32)


def cell_weights(rng: np.random.Generator, spec: NetworkSpec, sizes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the weights and biases of a recurrent cell, of these `sizes`: orthogonal, with biases for its time scales
    (`ortho_init`), or uniform, as torch's defaults."""
    limit = 1 / np.sqrt(spec.memory_size)
    if not spec.ortho_init:
        return [rng.uniform(-limit, limit, size) for size in sizes]
    values = [orthogonal(rng, (size[0], size[1])) if len(size) == 2 else np.zeros(size) for size in sizes]
    gate, bias = initial_gate_bias(spec, rng.random(spec.memory_size))
    values[2][gate] = bias
    return values


def orthogonal(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    """Return a random matrix whose rows, or columns where those are fewer, are orthonormal (Saxe et al. 2013)."""
    rows, columns = size
    normal = rng.standard_normal((max(size), min(size)))
    if min(size) <= 64:  # BLAS uses one thread
        q, r = np.linalg.qr(normal)
    else:  # several threads on cores that other programs use too would take up to a hundred times as long
        with _BLAS_LOCK, threadpool_limits(1, "blas"):
            q, r = np.linalg.qr(normal)
    q = q * np.sign(np.diag(r))
    return np.asarray(q if rows >= columns else q.T)
