"""Info columns: by columns or by pipe, the caller gets the infos that Gymnasium would return."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multiverse.core.infos import add_info
from multiverse.core.layout import MAX_INFO_COLUMNS, SINGLE_AGENT, Group, Layout, Views
from multiverse.ipc.block import private_arrays
from multiverse.ipc.info_columns import InfoReader, InfoWriter
from tests.equality import assert_same


class Sides:
    """The writers of some hosts and the caller's reader over the same arrays."""

    def __init__(self, hosts: list[range]) -> None:
        group = Group(SINGLE_AGENT, (SINGLE_AGENT,), spaces.Discrete(2), spaces.Discrete(2))
        layout = Layout(hosts[-1].stop, (group,), False)
        views = Views.over(layout, private_arrays(layout.fields()))
        rows = [slice(h.start, h.stop) for h in hosts]
        self.hosts, self.num_envs = hosts, hosts[-1].stop
        self.writers = [InfoWriter(views, r) for r in rows]
        self.reader = InfoReader(views, rows)

    def step(self, infos: dict[int, Any]) -> tuple[list[bool], dict[int, Any]]:
        """One step of some envs; returns the data sent by pipe."""
        left: dict[int, Any] = {}
        for number, (host, writer) in enumerate(zip(self.hosts, self.writers)):
            writer.clear()
            for env_id in host:
                if infos.get(env_id):
                    rest = writer.write(env_id - host.start, infos[env_id])
                    if rest:
                        left[env_id] = rest
            self.reader.announce(number, writer.take_announcements())
        return [w.wrote for w in self.writers], left

    def whole(self, infos: dict[int, Any]) -> Any:
        return self.reader.whole_batch(*self.step(infos))


def expected(infos: dict[int, Any], ids: Any) -> Any:
    merged: dict[str, Any] = {}
    for row, env_id in enumerate(ids):
        if env_id in infos:
            add_info(merged, infos[env_id], row, len(ids))
    return merged


HOSTS = [range(1), range(1, 4)]

STEPS = {
    "all envs have the same keys": {i: {"x": i / 2, "n": i, "on": i > 1} for i in range(4)},
    "one env says nothing": {i: {"x": i / 2} for i in range(3)},
    "a host says nothing": {0: {"x": 1.0, "n": 2}},
    "no env has infos": {},
    "a key of one env only": {i: {"x": 1.0, **({"rare": 5} if i == 2 else {})} for i in range(4)},
    "a key with two types": {i: {"x": float(i) if i % 2 else i} for i in range(4)},
    "the same keys in another order": {i: dict(sorted({"a": 1, "b": 2.0}.items(), reverse=i > 1)) for i in range(4)},
    "objects beside numbers": {i: {"x": 1.0, "text": str(i)} for i in range(4)},
    "objects only": {i: {"array": np.arange(2) * i, "nested": {"k": i}} for i in range(4)},
    "every numeric type": {
        i: {
            kind.__name__: kind(i)
            for kind in (float, np.float64, np.float32, np.float16, int, bool, np.int64, np.int8, np.uint32, np.uint64)
        }
        for i in range(4)
    },
    "numpy bools are objects": {i: {"flag": np.bool_(i % 2)} for i in range(4)},
    "integers at the edge of 64 bits": {i: {"n": 2**63 - 1 - i, "m": -(2**63) + i} for i in range(4)},
    "not a number and infinite": {i: {"x": [np.nan, np.inf, -np.inf, -0.0][i]} for i in range(4)},
    "more keys than columns": {i: {f"k{k}": k + i for k in range(MAX_INFO_COLUMNS + 6)} for i in range(4)},
    "a final_obs of the env's own": {i: {"final_obs": 1.0} for i in range(4)},
}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_whole_batch_equals_gymnasiums_merge(name: str) -> None:
    infos = STEPS[name]
    sides = Sides(HOSTS)
    for _ in range(2):  # keys are announced in the first step only
        assert_same(sides.whole(infos), expected(infos, range(4)))


def test_step_has_no_infos_of_the_one_before() -> None:
    sides = Sides(HOSTS)
    for name in [*STEPS, *reversed(STEPS)]:
        assert_same(sides.whole(STEPS[name]), expected(STEPS[name], range(4)), name)


def test_results_are_copies() -> None:
    sides = Sides(HOSTS)
    first = sides.whole({i: {"x": 1.0, "n": 1} for i in range(4)})
    sides.whole({i: {"x": 2.0, "n": 2} for i in range(4)})
    assert first["x"].tolist() == [1.0] * 4
    assert first["n"].tolist() == [1] * 4
    assert first["_x"].all()


def test_missing_infos_are_zero_whatever_was_there_before() -> None:
    sides = Sides(HOSTS)
    sides.whole({i: {"x": 7.5, "n": -1} for i in range(4)})
    found = sides.whole({1: {"x": 1.0, "n": 3}, 0: {"x": 2.0, "n": 4}})
    assert found["x"].tolist() == [2.0, 1.0, 0.0, 0.0]
    assert found["n"].tolist() == [4, 3, 0, 0]
    assert found["_n"].tolist() == [True, True, False, False]


@pytest.mark.parametrize("ids", [[2], [0, 3], [1, 2, 3], [3, 1]])
@pytest.mark.parametrize("name", sorted(STEPS))
def test_infos_of_some_envs_are_in_their_order(name: str, ids: list[int]) -> None:
    infos = {i: info for i, info in STEPS[name].items() if i in ids}
    sides = Sides(HOSTS)
    sides.step(STEPS[name])
    wrote, left = sides.step(infos)
    assert_same(sides.reader.partial_batch(np.array(ids), wrote, left), expected(infos, ids))


def test_key_is_announced_once() -> None:
    writer = Sides([range(2)]).writers[0]
    writer.write(0, {"x": 1.0})
    writer.write(1, {"x": 2.0, "y": 1})
    assert writer.take_announcements() == [(0, "x", float), (1, "y", int)]
    writer.clear()
    writer.write(0, {"x": 3.0})
    assert writer.take_announcements() == []


def test_lost_announcement_loses_only_its_column() -> None:
    sides = Sides([range(2)])
    writer = sides.writers[0]
    writer.write(0, {"lost": 1.0})
    writer.take_announcements()
    found = sides.whole({i: {"lost": 2.0, "kept": i} for i in range(2)})
    assert_same(found, expected({i: {"kept": i} for i in range(2)}, range(2)))


def test_integer_beyond_64_bits_is_sent_by_pipe() -> None:
    writer = Sides([range(1)]).writers[0]
    assert writer.write(0, {"n": 2**70}) == {"n": 2**70}
    assert writer.write(0, {"n": 5}) is None


values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.text(max_size=3),
    st.none(),
)
an_info = st.dictionaries(st.sampled_from("abcdef"), values, max_size=4)


@pytest.mark.filterwarnings("error")
def test_columns_of_different_meaning_cause_no_warning() -> None:
    sides = Sides(HOSTS)
    infos = {0: {"a": 1e300}, 1: {"b": np.float32(1.0)}, 2: {"b": np.float32(2.0)}}
    assert_same(sides.whole(infos), expected(infos, range(4)))


@pytest.mark.filterwarnings("ignore:overflow")
@settings(max_examples=30, deadline=None)
@example([{3: {"c": None}, 4: {"c": ""}, 2: {"a": None, "c": 0.0}}], set())  # a None becomes NaN in a float column
@given(st.lists(st.dictionaries(st.integers(0, 4), an_info), max_size=5), st.sets(st.integers(1, 4)))
def test_arbitrary_infos_are_merged_as_in_gymnasium(steps: list[Any], cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), 5]
    sides = Sides([range(a, b) for a, b in itertools.pairwise(bounds)])
    for infos in steps:
        try:
            wanted = expected(infos, range(5))
        except (TypeError, ValueError, OverflowError):  # types that Gymnasium itself cannot put into one column
            sides.step(infos)
            continue
        assert_same(sides.whole(infos), wanted)
