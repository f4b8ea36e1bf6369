"""Features of observations: bytes are scaled to [0, 1]."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.policies.features import Features, byte_scaling

ACTIONS = spaces.Discrete(2)


def bytes_of(*shape: int, largest: Any = 255) -> spaces.Box:
    return spaces.Box(0, largest, shape, np.uint8)


BYTES = [
    bytes_of(20, 20, 3),
    bytes_of(84, 84),
    bytes_of(4, 5, 6, 3),
    bytes_of(128),
    spaces.Dict(a=bytes_of(3, 3, 1), b=bytes_of(2)),
]


@pytest.mark.parametrize("space", BYTES, ids=str)
def test_bytes_of_any_shape_are_scaled_to_the_unit_interval(space: spaces.Space[Any]) -> None:
    space.seed(0)
    features = Features(space, ACTIONS)
    seen = {leaf.path: leaf.space.sample()[None] for leaf in features.leaves}
    expected = np.concatenate([one.reshape(1, -1) for one in seen.values()], axis=1).astype(np.float32) / np.float32(
        255
    )
    found = features.vector(seen)
    assert found.dtype == np.float32 and 0.5 < found.max() <= 1.0
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(features)).vector(seen), expected)  # as in a worker
    assert features.scales_bytes


@pytest.mark.parametrize("space", [bytes_of(7, 7, 3, largest=10), spaces.Box(0, 255, (5,), np.int16)], ids=str)
def test_small_bounds_and_other_dtypes_are_not_scaled(space: spaces.Box) -> None:
    space.seed(0)
    features, seen = Features(space, ACTIONS), space.sample()[None]
    np.testing.assert_array_equal(features.vector({(): seen}), seen.reshape(1, -1))
    assert not features.scales_bytes


def test_only_numbers_whose_bound_is_255_are_scaled() -> None:
    features = Features(spaces.Box(np.zeros(3, np.uint8), np.array([255, 3, 255], np.uint8), dtype=np.uint8), ACTIONS)
    np.testing.assert_array_equal(features.vector({(): np.array([[51, 3, 255]], np.uint8)}), np.float32([[0.2, 3, 1]]))


def test_features_of_earlier_runs_keep_bytes_unscaled() -> None:
    seen = {(): np.full((1, 2, 2), 200, np.uint8)}
    with byte_scaling(False):
        before = Features(bytes_of(2, 2), ACTIONS)
    assert before.vector(seen).max() == 200.0 and not before.scales_bytes
    assert Features(bytes_of(2, 2), ACTIONS).vector(seen).max() < 1.0


SCALED = "flattened, bytes scaled to [0, 1]"
SEVERAL = spaces.Dict(a=spaces.Discrete(3), b=bytes_of(36, 36, 3), c=bytes_of(9))


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (bytes_of(20, 20, 3), f"image 20×20×3 {SCALED}; 1,200 inputs to the dense layers"),
        (bytes_of(84, 84, 3), "image 84×84×3 through convolutions"),
        (bytes_of(4, 84, 84, 1), f"stack of images 4×84×84×1 {SCALED}; 28,224 inputs to the dense layers"),
        (bytes_of(7, 7, largest=10), "image 7×7 flattened, not scaled (0 to 10); 49 inputs to the dense layers"),
        (spaces.Box(-9, np.inf, (2, 3)), "array 2×3 flattened, not scaled (no bounds); 6 inputs to the dense layers"),
        (
            SEVERAL,
            "a: Discrete(3); b: image 36×36×3 through convolutions; c: 9 numbers, bytes scaled to [0, 1]; "
            "12 inputs to the dense layers beside the convolutions'",
        ),
        (spaces.Box(-1, 1, (4,)), ""),
        (spaces.Discrete(4), ""),
    ],
    ids=str,
)
def test_description_names_the_treatment_of_images_and_bytes(space: spaces.Space[Any], said: str) -> None:
    assert Features(space, ACTIONS).description() == said
