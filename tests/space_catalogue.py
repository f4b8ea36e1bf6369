"""One space of every kind, as observation and as action space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.envs import Directions


def catalogue() -> dict[str, spaces.Space[Any]]:
    """New spaces at every call: sampling changes the random generator of a space."""
    box = spaces.Box(-1, 1, (2,), np.float32)
    graph = spaces.Graph(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))
    return {
        "box_float16": spaces.Box(-3, 3, (2, 3), np.float16),
        "box_float32": spaces.Box(-3, 3, (2, 3), np.float32),
        "box_float64": spaces.Box(-np.inf, np.inf, (4,), np.float64),
        "box_int8": spaces.Box(-100, 100, (3,), np.int8),
        "box_uint8": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "box_int64": spaces.Box(-(2**40), 2**40, (2,), np.int64),
        "box_bool": spaces.Box(0, 1, (3,), np.bool_),
        "box_scalar": spaces.Box(-1, 1, (), np.float32),
        "discrete": spaces.Discrete(5),
        "discrete_start": spaces.Discrete(4, start=-2),
        "discrete_large": spaces.Discrete(10_000),
        "multi_binary": spaces.MultiBinary(4),
        "multi_binary_2d": spaces.MultiBinary((2, 3)),
        "multi_discrete": spaces.MultiDiscrete([3, 5, 2]),
        "multi_discrete_2d": spaces.MultiDiscrete([[3, 5], [2, 4]]),
        "dict": spaces.Dict({"position": box, "mode": spaces.Discrete(3), "switches": spaces.MultiBinary(2)}),
        "tuple": spaces.Tuple((spaces.Discrete(3), box, spaces.MultiDiscrete([2, 2]))),
        "nested": spaces.Dict(
            {
                "arm": spaces.Tuple((box, spaces.Dict({"grip": spaces.Discrete(2, start=1)}))),
                "camera": spaces.Dict({"image": spaces.Box(0, 255, (3, 3), np.uint8)}),
            }
        ),
        "text": spaces.Text(12, min_length=1),
        "graph": graph,
        "sequence": spaces.Sequence(box),
        "sequence_stacked": spaces.Sequence(box, stack=True),
        "one_of": spaces.OneOf((spaces.Discrete(3), box)),
        "custom": Directions(),
        "dict_mixed": spaces.Dict(
            {"fast": box, "mode": spaces.Discrete(3), "words": spaces.Text(8, min_length=1), "graph": graph}
        ),
        "tuple_mixed": spaces.Tuple((Directions(), box, spaces.Dict({"words": spaces.Text(4, min_length=1)}))),
    }


SPACES = sorted(catalogue())
