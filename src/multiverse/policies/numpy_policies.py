"""Small policies as plain numpy: for a handful of rows a tenth of what the same network costs in torch.

Rows of a matrix product depend, in their last bits, on how many rows there are. So rows go through the layers in
blocks of four, padded with zeros: the same row gives the same bits in a batch of 1 and of 64, in the caller, in any
worker, in an evaluation and in a loaded run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.policy import Memory, Policy, Seen
from multiverse.policies.cells import GATES, Cells, in_blocks
from multiverse.policies.features import SCALED_BYTES, Features, previous_of
from multiverse.policies.heads import (
    HEADS,
    Head,
    is_equal_head,
    learned_head,
    outputs_for,
    saved_head,
)

OBSERVATION_CLIP = np.float32(10.0)
"""Bound to which normalised observations are clipped."""
ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh,
    "relu": lambda x, out: np.maximum(x, np.float32(0), out=out),
}


def normalized(x: Array, shift_and_scale: tuple[Array, Array] | None) -> Array:
    """Features shifted, scaled and clipped, if `shift_and_scale` is given."""
    if shift_and_scale is None:
        return x
    shift, scale = shift_and_scale
    return np.asarray(np.minimum(np.maximum((x - shift) * scale, -OBSERVATION_CLIP), OBSERVATION_CLIP))


# -- the policy ---------------------------------------------------------------------------------------------------
class NumpyPolicy:
    """Normalised features of observations, optional recurrent cells, dense layers, and a head."""

    def __init__(
        self,
        features: Features,
        layers: Sequence[tuple[Array, Array]],
        activation: str,
        head: Head,
        version: int,
        shift_and_scale: tuple[Array, Array] | None = None,
        cells: Cells | None = None,
        embedding: tuple[Array, Array] | None = None,
    ) -> None:
        """`layers`: (weights [in, out], bias) of each; the last one has no activation. `embedding`: a layer with a ReLU
        before the cells, which take its first units; the others are a shortcut past them."""
        if features.images:
            raise InvalidRequest(
                f"NumpyPolicy acts on numbers, and these observations have images ({features.images[0].space}): an "
                "algorithm that uses it declares images = False"
            )
        self._features, self._activation, self._head, self.version = features, activation, head, version
        self._layers = [(np.ascontiguousarray(w), np.ascontiguousarray(b)) for w, b in layers]
        self._activate, self._shift_and_scale, self._cells = ACTIVATIONS[activation], shift_and_scale, cells
        self._embedding = embedding

    @property
    def sees_rewards(self) -> bool:
        """Whether its actions depend on the previous reward, which is the last of its features."""
        embedding = self._embedding
        return self._features.see_previous and (embedding is None or bool(embedding[0][-1].any()))

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self._head.noise(rng, steps, rows)

    def first_memory(self, rows: int) -> Memory:
        return {} if self._cells is None else self._cells.first_memory(rows)

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        output, memory = self.output(self._features.vector(seen.observations, previous_of(seen)), memory)
        return self._head.choose(output, noise, seen.masks), memory

    def for_env(self, actions: Array) -> Any:
        return self._head.for_env(actions)

    def portable(self) -> Policy:
        return self

    def output(self, x: Array, memory: Memory) -> tuple[Array, Memory]:
        """([rows, outputs] of features [rows, size], next memory)."""
        rows, x = len(x), in_blocks(normalized(x, self._shift_and_scale))
        if self._cells is not None and self._embedding is not None:
            weights, bias = self._embedding
            x = np.matmul(x, weights)
            x += bias
            np.maximum(x, np.float32(0), out=x)
            inputs = self._cells.inputs
            hidden, memory = self._cells.step(np.ascontiguousarray(x[..., :inputs]), memory)
            x = np.concatenate((hidden, x[..., inputs:]), -1)
        elif self._cells is not None:
            x, memory = self._cells.step(x, memory)
        return self._through_layers(x)[:rows], memory

    def _through_layers(self, x: Array) -> Array:
        """[rows, outputs], padded as the blocks are."""
        multiply: Callable[..., Array] = np.dot  # half the time of matmul for one block, a frequent case in workers
        if several := len(x) > 1:
            multiply = np.matmul
        else:
            x = x[0]
        last = len(self._layers) - 1
        for i, (weights, bias) in enumerate(self._layers):
            x = multiply(x, weights)
            x += bias
            if i != last:
                self._activate(x, out=x)
        return x.reshape(-1, x.shape[2]) if several else x

    # -- to a worker, with every rollout -------------------------------------------------------------------------
    def __getstate__(self) -> dict[str, Any]:
        """Pack all layers into one piece, which takes half the time of pickling each."""
        parts = [part for layer in self._layers for part in layer]
        kinds, data = [(part.shape, part.dtype.str) for part in parts], b"".join([part.tobytes() for part in parts])
        return {**vars(self), "_layers": (kinds, data), "_activate": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        (kinds, data), parts, at = state["_layers"], [], 0
        for shape, dtype in kinds:
            parts.append(np.ndarray(shape, dtype, data, at))
            at += parts[-1].nbytes
        self._layers, self._activate = list(zip(parts[::2], parts[1::2])), ACTIVATIONS[self._activation]

    # -- in a run ------------------------------------------------------------------------------------------------
    def saved(self, whole: bool = False) -> dict[str, Any]:
        """Contents for a run: `loaded_policy` makes an equal policy of them and the run's spaces. `whole`: with the
        critic's cells too, which rollouts need."""
        saved: dict[str, Any] = {
            "kind": "dense" if self._cells is None else self._cells.kind,
            "activation": self._activation,
            "version": self.version,
            "weights": [weights for weights, _ in self._layers],
            "biases": [bias for _, bias in self._layers],
        }
        if self._cells is not None:  # only the actor's: acting needs no values
            saved["cell"], saved["see_previous"] = list(self._cells.weights[0]), self._features.see_previous
            if whole:
                saved["other_cells"] = [list(cell) for cell in self._cells.weights[1:]]
        if self._embedding is not None:
            saved["embedding"] = list(self._embedding)
        if self._shift_and_scale is not None:
            saved["shift"], saved["scale"] = self._shift_and_scale
        return {**saved, **saved_features(self._features), **self._head.saved()}


def saved_features(features: Features) -> dict[str, Any]:
    """Settings of a policy's features that a run saves beside its spaces."""
    return {SCALED_BYTES: True} if features.scales_bytes else {}


def saved_policy(
    policy: Policy, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> dict[str, Any]:
    """Contents of a policy for a run: `loaded_policy` makes an equal policy of them.

    ValueError, with the reason, if it would make a different one: a class of the policy or its parts is not ours.
    """
    from multiverse.policies.team_policy import TeamPolicy

    portable = policy.portable()
    if type(portable) not in (NumpyPolicy, TeamPolicy):  # guard: no-other-policy-is-saved
        raise ValueError(f"it is a {type(portable or policy).__name__}")
    assert isinstance(portable, NumpyPolicy | TeamPolicy)
    head, features = learned_head(portable._head), portable._features
    cells = portable._cells if isinstance(portable, NumpyPolicy) else None
    for name, part in {"head": head, "features": features, "memory": cells}.items():
        if type(part) not in (*HEADS, Features, Cells, type(None)):
            raise ValueError(f"its {name}: {type(part).__name__}")
    for name, whole in {"policy": portable, "features": features}.items():
        for key, value in vars(whole).items():
            if callable(value) and hasattr(type(whole), key):  # guard: a-replaced-method-is-not-lost
                raise ValueError(f"its {name}: {key} of {type(whole).__name__} was replaced")
    saved = portable.saved()
    made = loaded_policy(saved, observation_space, action_space)
    # guard: features-and-head-are-those-of-the-run
    if not made._features.is_equal(features) or not is_equal_head(made._head, head):
        raise ValueError("its features or its head differ from those of the run's spaces")
    return saved


def loaded_policy(
    saved: Mapping[str, Any], observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> Any:
    """The policy of a run, without the algorithm that learned it."""
    if saved["kind"] == "attention":
        from multiverse.policies.team_policy import loaded_team_policy

        return loaded_team_policy(saved, observation_space, action_space)
    if saved["kind"] not in ("dense", *GATES) or saved["activation"] not in ACTIVATIONS:
        raise ValueError(f"unknown policy {saved['kind']!r} with activation {saved['activation']!r}")
    head = saved_head(saved, action_space)
    frozen = (np.asarray(saved["shift"]), np.asarray(saved["scale"])) if "shift" in saved else None
    layers = [(np.asarray(w), np.asarray(b)) for w, b in zip(saved["weights"], saved["biases"])]
    see_previous, scaled = bool(saved.get("see_previous", False)), bool(saved.get(SCALED_BYTES, False))
    features = Features(observation_space, action_space, see_previous, scaled)  # guard: unscaled-bytes-stay-unscaled
    cells = None if saved["kind"] == "dense" else Cells(saved["kind"], [saved["cell"], *saved.get("other_cells", ())])
    weights, bias = map(np.asarray, saved.get("embedding", (None, None)))
    embedding = (weights, bias) if "embedding" in saved else None
    shortcut, embedded = 0, features.size
    if embedding is not None and cells is not None:
        embedded, shortcut = cells.inputs, embedding[0].shape[-1] - cells.inputs
        if embedding[0].shape != (features.size, *embedding[1].shape) or shortcut < 0:
            raise ValueError("the shape of its embedding does not fit the observations or the recurrent cells")
    if cells is not None and cells.inputs != embedded:
        raise ValueError("the shape of its recurrent cells does not fit the observations")
    widths = [features.size if cells is None else cells.size + shortcut, *(len(bias) for _, bias in layers)]
    if [weights.shape for weights, _ in layers] != list(itertools.pairwise(widths)) or len(layers) != len(
        saved["biases"]
    ):
        raise ValueError("the shapes of its layers do not fit each other or the observations")
    if widths[-1] != outputs_for(head, action_space) or (
        frozen and any(part.shape != (features.size,) for part in frozen)
    ):
        raise ValueError("the shape of its last layer does not fit the actions, or its normaliser not the observations")
    return NumpyPolicy(features, layers, saved["activation"], head, int(saved["version"]), frozen, cells, embedding)
