"""`add_info` is Gymnasium's `_add_info`, for any number of rows."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from multiverse.core.errors import BadValue
from multiverse.core.infos import add_info
from tests.envs import RichInfos
from tests.equality import assert_same


def gymnasiums(infos: list[Any]) -> Any:
    merger = gymnasium.vector.VectorEnv()
    merger.num_envs = len(infos)
    merged: dict[str, Any] = {}
    for row, info in enumerate(infos):
        merged = merger._add_info(merged, info, row)
    return merged


def ours(infos: list[Any]) -> Any:
    merged: dict[str, Any] = {}
    for row, info in enumerate(infos):
        add_info(merged, info, row, len(infos))
    return merged


CASES: dict[str, list[dict[str, Any]]] = {
    "nothing": [{}, {}],
    "numbers": [{"a": 1, "b": 2.0, "c": True}, {"a": 3, "b": 4.0, "c": False}],
    "numpy numbers": [{"a": np.float32(1), "b": np.uint8(2), "c": np.complex64(1j)}, {"a": np.float32(2)}],
    "numpy bools": [{"a": np.bool_(True)}, {"a": np.bool_(False)}],
    "text and none": [{"a": "x", "b": None}, {"a": "yy"}],
    "arrays": [{"a": np.arange(3)}, {"a": np.ones(3, np.int64)}],
    "arrays come late": [{}, {"a": np.ones((2, 2), np.float32)}],
    "lists": [{"a": [1, 2]}, {"a": [3]}],
    "nested": [{"a": {"b": {"c": 1}}}, {"a": {"b": {"d": "x"}, "e": 2.0}}],
    "an int column given a float": [{"a": 1}, {"a": 2.7}],
    "a bool column given an int": [{"a": True}, {"a": 5}],
    "final observations": [
        {"final_obs": np.arange(3), "final_info": {"x": 1}},
        {"final_obs": {"k": np.zeros(2)}, "final_info": {}},
    ],
    "an empty nested dict": [{"a": {}}, {"a": {"b": 1}}],
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_infos_are_merged_as_in_gymnasium(name: str) -> None:
    assert_same(ours(CASES[name]), gymnasiums(CASES[name]))


def test_rich_infos_are_merged_as_in_gymnasium() -> None:
    envs = [RichInfos(index=i) for i in range(4)]
    for env in envs:
        env.reset(seed=0)
    for _ in range(6):
        infos = [env.step(0)[-1] for env in envs]
        assert_same(ours(infos), gymnasiums(infos))


@pytest.mark.parametrize(
    "values", [["x", 1], [1, "x"], [1, np.arange(2)], [np.arange(3), np.arange(1)], [np.arange(2), 7], [1, 10**30]]
)
def test_incompatible_values_become_object_arrays(values: list[Any]) -> None:
    """Gymnasium raises numpy's error, or broadcasts a short array to a longer one."""
    merged = ours([{"a": value} for value in values])
    assert merged["a"].dtype == object
    assert_same(list(merged["a"]), values)
    assert merged["_a"].all()


@pytest.mark.parametrize("infos", [[{"a": 1}, {"a": {"b": 1}}], [{"a": {"b": 1}}, {"a": 1}]])
def test_dict_and_value_under_one_key_is_an_error_that_names_the_key(infos: list[Any]) -> None:
    with pytest.raises(BadValue, match=r"infos\['a'\] is a (value|dict) in one env and a (value|dict) in another"):
        ours(infos)
