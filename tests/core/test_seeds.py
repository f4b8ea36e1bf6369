"""Seeds: Gymnasium's convention for resets, and independent seeds for every episode of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multiverse as mv
from multiverse.core.seeds import episode_seed, seeds_for


@pytest.mark.parametrize(
    ("seed", "ids", "expected"),
    [
        (None, [0, 1, 2], [None, None, None]),
        (10, [0, 1, 2], [10, 11, 12]),
        (10, [2, 0], [12, 10]),
        (np.int32(10), [1], [11]),
        ([5, 6, 7], [0, 1, 2], [5, 6, 7]),
        ((5, None), [2, 0], [5, None]),
        ([5, 6, 7], [2, 0], [7, 5]),  # one per env, masked or not, as Gymnasium has it
        (np.array([5, 6, 7]), [0, 1, 2], [5, 6, 7]),
    ],
)
def test_each_env_gets_its_seed(seed: Any, ids: list[int], expected: list[int | None]) -> None:
    found = seeds_for(seed, ids, 3)
    assert found == expected
    assert all(type(s) in (int, type(None)) for s in found)


@pytest.mark.parametrize("seed", [[1], [1, 2, 3, 4], []])
def test_seed_list_of_another_length_is_refused(seed: list[int]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=f"{len(seed)} seeds for 2 envs"):
        seeds_for(seed, [0, 1], 3)


def test_episode_seed_is_constant() -> None:
    assert episode_seed(1, 0, 0) == int(np.random.SeedSequence((1, 0, 0)).generate_state(1, np.uint32)[0]) >> 1
    assert [episode_seed(7, 3, e) for e in range(3)] == [episode_seed(7, 3, e) for e in range(3)]


@given(
    st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**32 - 1, 2**32, 2**64 - 1]),
    st.integers(0, 2**20) | st.sampled_from([2**32 - 1, 2**32]),
    st.integers(0, 2**33) | st.sampled_from([127, 128, 2**32 - 129, 2**32 - 128, 2**32 - 1, 2**32]),
)
def test_episode_seed_equals_that_of_numpy(run_seed: int, env_id: int, episode: int) -> None:
    alone = np.random.SeedSequence((run_seed, env_id, episode)).generate_state(1, np.uint32)[0]
    assert episode_seed(run_seed, env_id, episode) == int(alone) >> 1


def test_derived_seed_is_valid_for_gymnasium() -> None:
    request = mv.DerivedSeeds(2**40)(10_000, 10**9)
    assert type(request.seed) is int
    assert request.seed >= 0
    assert (request.options, request.task) == (None, None)
