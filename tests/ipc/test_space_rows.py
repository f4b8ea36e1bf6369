"""Rows of any space: values are read as they were written, bit for bit, alone and in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

import multiverse as mv
from multiverse.core.layout import ACTIONS, OBSERVATIONS, SINGLE_AGENT, Group, Layout, Views
from multiverse.ipc.block import private_arrays
from multiverse.ipc.space_rows import ActionWriter, BatchReader, actions_reader, row_reader, row_writer
from tests.envs import Directions
from tests.equality import assert_same

dimensions = st.lists(st.integers(1, 3), max_size=3).map(tuple)
boxes = st.builds(
    lambda shape, dtype: spaces.Box(0, 1, shape, dtype),
    dimensions,
    st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_]),
)
discretes = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5))
numeric = st.one_of(
    boxes,
    discretes,
    st.builds(spaces.Discrete, st.just(5000)),
    dimensions.filter(bool).map(spaces.MultiBinary),
    st.lists(st.integers(1, 5), min_size=1, max_size=4).map(spaces.MultiDiscrete),
)
objects = st.one_of(
    st.builds(spaces.Text, st.integers(1, 6)),
    st.builds(lambda: spaces.Sequence(spaces.Box(-1, 1, (2,)))),
    st.builds(lambda: spaces.Graph(spaces.Discrete(3), spaces.Box(-1, 1, (1,)))),
    st.builds(lambda: spaces.OneOf((spaces.Discrete(2), spaces.Text(3)))),
    st.builds(Directions),
)
any_space = st.recursive(
    st.one_of(numeric, objects),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)
few = settings(max_examples=40, deadline=None)


def views_for(space: spaces.Space[Any], num_envs: int) -> Views:
    group = Group(SINGLE_AGENT, (SINGLE_AGENT,), space, space)
    layout = Layout(num_envs, (group,), False)
    return Views.over(layout, private_arrays(layout.fields()))


def samples(space: spaces.Space[Any], count: int, seed: int) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(count)]


@few
@given(any_space, st.integers(1, 4), st.integers(0, 2**31 - 1))
def test_value_written_to_a_row_is_read_from_it(space: spaces.Space[Any], num_envs: int, seed: int) -> None:
    views, name = views_for(space, num_envs), (SINGLE_AGENT, OBSERVATIONS)
    values = samples(space, num_envs, seed)
    for row, value in enumerate(values):
        row_writer(space, views, name, row)(value)
    read = row_reader(space, views, name)
    for row, value in enumerate(values):
        assert_same(read(row), value)


@few
@given(any_space, st.integers(1, 4), st.integers(0, 2**31 - 1))
def test_batch_equals_gymnasiums_concatenate(space: spaces.Space[Any], num_envs: int, seed: int) -> None:
    views, name = views_for(space, num_envs), (SINGLE_AGENT, OBSERVATIONS)
    values = samples(space, num_envs, seed)
    for row, value in enumerate(values):
        row_writer(space, views, name, row)(value)
    expected = concatenate(space, values, create_empty_array(space, num_envs))
    reader = BatchReader(space, views, name)
    for copy in (True, False):
        assert_same(reader.all_rows(copy), expected)
    order = np.arange(num_envs)[::-1]
    assert_same(reader.rows(order, True), concatenate(space, values[::-1], create_empty_array(space, num_envs)))


@few
@given(any_space, st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_each_env_gets_its_action_as_in_gymnasium(space: Any, num_envs: int, seed: int) -> None:
    views, name = views_for(space, num_envs), (SINGLE_AGENT, ACTIONS)
    batched = batch_space(space, num_envs)
    batch = samples(batched, 1, seed)[0]
    ActionWriter(space, views, name).write_all(batch)
    cut = num_envs // 2
    found = [a for rows in (slice(0, cut), slice(cut, num_envs)) for a in actions_reader(space, views, name, rows)()]
    assert_same(found, list(iterate(batched, batch)))


@few
@given(any_space, st.integers(0, 2**31 - 1))
def test_actions_for_some_envs_do_not_change_the_others(space: Any, seed: int) -> None:
    views, name = views_for(space, 4), (SINGLE_AGENT, ACTIONS)
    batched, pair = batch_space(space, 4), batch_space(space, 2)
    batch, two = samples(batched, 1, seed)[0], samples(pair, 1, seed)[0]
    writer, read = ActionWriter(space, views, name), actions_reader(space, views, name, slice(0, 4))
    writer.write_all(batch)
    writer.write(two, np.array([3, 1]), 2)
    before, changed = list(iterate(batched, batch)), list(iterate(pair, two))
    assert_same(read(), [before[0], changed[1], before[2], changed[0]])


@few
@given(any_space, st.integers(0, 2**31 - 1))
def test_actions_already_read_do_not_change_with_the_next_batch(space: Any, seed: int) -> None:
    views, name = views_for(space, 3), (SINGLE_AGENT, ACTIONS)
    batched = batch_space(space, 3)
    first, second = samples(batched, 2, seed)
    writer, read = ActionWriter(space, views, name), actions_reader(space, views, name, slice(0, 3))
    writer.write_all(first)
    kept = read()
    writer.write_all(second)
    assert_same(kept, list(iterate(batched, first)))


@few
@given(any_space, st.integers(0, 2**31 - 1))
def test_batch_of_wrong_length_is_refused_and_leaves_no_trace(space: Any, seed: int) -> None:
    views, name = views_for(space, 3), (SINGLE_AGENT, ACTIONS)
    batched = batch_space(space, 3)
    batch, longer = samples(batched, 1, seed)[0], samples(batch_space(space, 5), 1, seed)[0]
    writer, read = ActionWriter(space, views, name), actions_reader(space, views, name, slice(0, 3))
    writer.write_all(batch)
    with pytest.raises(mv.errors.InvalidActions):
        writer.write_all(longer)
    assert_same(read(), list(iterate(batched, batch)))


@pytest.mark.fault("B7")
def test_mistake_in_the_last_leaf_does_not_change_the_first() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(3)})
    views, name = views_for(space, 2), (SINGLE_AGENT, ACTIONS)
    writer = ActionWriter(space, views, name)
    with pytest.raises(mv.errors.InvalidActions):
        writer.write_all({"a": np.array([1, 1]), "b": np.array([1.5, 1.5])})
    assert not views[(*name, "a")].any()


@pytest.mark.parametrize("value", [np.array([1e300, 0.0]), np.array([np.inf, 0.0])])
def test_infinite_and_large_float64_actions_are_accepted(value: Any) -> None:
    space = spaces.Box(-1, 1, (), np.float64)
    views, name = views_for(space, 2), (SINGLE_AGENT, ACTIONS)
    ActionWriter(space, views, name).write_all(value)
    assert_same(views[name], value)


def test_copies_do_not_share_memory_and_views_do() -> None:
    space = spaces.Dict({"a": spaces.Box(0, 1, (2,))})
    views, name = views_for(space, 3), (SINGLE_AGENT, OBSERVATIONS)
    reader = BatchReader(space, views, name)
    shared = views[(*name, "a")]
    assert np.shares_memory(reader.all_rows(False)["a"], shared)
    assert not np.shares_memory(reader.all_rows(True)["a"], shared)
    assert not np.shares_memory(reader.rows(np.array([0, 2]), False)["a"], shared)
