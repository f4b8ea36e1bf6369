"""The layout: which arrays a batch has, in the same order on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.core.layout import (
    ACTIONS,
    ENDED,
    EPISODES,
    FINAL_OBSERVATIONS,
    INFO_VALUES,
    MAX_INFO_COLUMNS,
    OBSERVATIONS,
    SINGLE_AGENT,
    VALUES,
    Group,
    Layout,
    from_leaves,
    leaves,
)
from tests.envs import Directions
from tests.space_catalogue import SPACES, catalogue

NESTED = spaces.Dict(
    {"a": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"b": spaces.Box(0, 1, (3,))}))), "c": Directions()}
)


def layout_of(observation: Any, action: Any, num_envs: int = 3, finals: bool = False, agents: int = 1) -> Layout:
    names = tuple(f"agent_{i}" for i in range(agents))
    return Layout(num_envs, (Group(SINGLE_AGENT, names, observation, action),), finals)


def test_leaves_are_found_depth_first() -> None:
    assert [(leaf.path, leaf.numeric) for leaf in leaves(NESTED)] == [
        (("a", 0), True),
        (("a", 1, "b"), True),
        (("c",), False),
    ]


@pytest.mark.parametrize("name", SPACES)
def test_leaves_of_a_value_rebuild_it(name: str) -> None:
    space = catalogue()[name]
    space.seed(0)
    value = space.sample()

    def at(path: Any) -> Any:
        part = value
        for key in path:
            part = part[key]
        return part

    rebuilt = from_leaves(space, {leaf.path: at(leaf.path) for leaf in leaves(space)})
    assert space.contains(rebuilt)
    assert type(rebuilt) is type(value) or isinstance(value, dict)


def test_every_numeric_leaf_has_a_row_per_slot() -> None:
    fields = {f.name: f for f in layout_of(NESTED, spaces.MultiDiscrete([2, 3]), agents=2).fields()}
    box = fields[(SINGLE_AGENT, OBSERVATIONS, "a", 1, "b")]
    assert (box.shape, box.dtype) == ((6, 3), np.float32)
    assert fields[(SINGLE_AGENT, ACTIONS)].shape == (6, 2)
    assert fields[(SINGLE_AGENT, VALUES)].shape == (3, 6)
    assert fields[(SINGLE_AGENT, ENDED)].dtype == np.bool_
    assert fields[EPISODES].shape == (3,)
    assert fields[INFO_VALUES].shape == (MAX_INFO_COLUMNS, 3)


def test_non_numeric_leaves_are_listed_separately() -> None:
    layout = layout_of(NESTED, spaces.Text(4))
    assert layout.object_names() == [((SINGLE_AGENT, ACTIONS), 3), ((SINGLE_AGENT, OBSERVATIONS, "c"), 3)]
    assert not any("c" in f.name for f in layout.fields())


def test_final_observations_have_fields_only_if_needed() -> None:
    def kinds(layout: Layout) -> set[Any]:
        return {f.name[1] for f in layout.fields() if len(f.name) > 1}

    assert FINAL_OBSERVATIONS in kinds(layout_of(NESTED, spaces.Discrete(2), finals=True))
    assert FINAL_OBSERVATIONS not in kinds(layout_of(NESTED, spaces.Discrete(2)))


def test_pickled_layout_gives_equal_fields() -> None:
    import cloudpickle

    layout = layout_of(NESTED, spaces.Discrete(2), finals=True)
    assert cloudpickle.loads(cloudpickle.dumps(layout)).fields() == layout.fields()


def test_field_names_are_unique() -> None:
    names = [f.name for f in layout_of(NESTED, NESTED, finals=True).fields()]
    assert len(set(names)) == len(names)
