"""Advantages, against the definition written out step by step and episode by episode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiverse.learning.returns import generalized_advantages, next_values, over_turns


def by_definition(
    rewards: list[float], values: list[float], following: list[float], ended: list[bool], gamma: float, lam: float
) -> list[float]:
    """One slot: the sum of discounted one-step errors up to the end of its episode."""
    found = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for k in range(t, len(rewards)):
            total += weight * (rewards[k] + gamma * following[k] - values[k])
            weight *= gamma * lam
            if ended[k]:
                break
        found.append(total)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_what_their_definition_says(seed: int, steps: int, slots: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, following = (rng.normal(size=(steps, slots)).astype(np.float32) for _ in range(3))
    ended = rng.random((steps, slots)) < 0.3
    everything = np.ones_like(ended)
    advantages, returns = generalized_advantages(rewards, values, following, ended, everything, gamma, lam)
    for s in range(slots):
        columns = (column[:, s].tolist() for column in (rewards, values, following, ended))
        assert advantages[:, s] == pytest.approx(by_definition(*columns, gamma, lam), abs=1e-4)
    assert returns == pytest.approx(advantages + values)


def test_one_slot_changes_nothing_in_another() -> None:
    rng = np.random.default_rng(0)
    rewards, values, following = (rng.normal(size=(6, 3)).astype(np.float32) for _ in range(3))
    ended, valid = np.zeros((6, 3), bool), np.ones((6, 3), bool)
    before, _ = generalized_advantages(rewards, values, following, ended, valid, 0.9, 0.8)
    rewards[:, 1] += 7.0
    after, _ = generalized_advantages(rewards, values, following, ended, valid, 0.9, 0.8)
    assert (before[:, [0, 2]] == after[:, [0, 2]]).all() and (before[:, 1] != after[:, 1]).all()


def test_a_lost_row_has_no_advantage_and_what_was_before_it_ends_there() -> None:
    rewards, values, following = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32), np.ones((4, 1), np.float32)
    valid = np.array([[True], [True], [False], [True]])
    ended = ~valid
    advantages, _ = generalized_advantages(rewards, values, following, ended, valid, 1.0, 1.0)
    assert advantages[:, 0].tolist() == [4.0, 2.0, 0.0, 2.0]


def test_what_followed_a_step_is_valued_as_it_ended() -> None:
    values = np.arange(1.0, 9.0, dtype=np.float32).reshape(4, 2)
    terminated, truncated = np.zeros((4, 2), bool), np.zeros((4, 2), bool)
    terminated[1, 0] = truncated[2, 1] = True
    last = np.array([10.0, 20.0], np.float32)
    finals = ([1, 2], [0, 1], np.array([99.0, 50.0], np.float32))
    following = next_values(values, last, terminated, truncated, finals)
    # Slot 0 came to its end in row 1: worth nothing. Slot 1 was cut short in row 2: worth what it saw last.
    assert following[:, 0].tolist() == [3.0, 0.0, 7.0, 10.0]
    assert following[:, 1].tolist() == [4.0, 6.0, 50.0, 20.0]


# -- in turn -----------------------------------------------------------------------------------------------------
@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_turns_are_what_each_slots_own_actions_came_to(
    seed: int, steps: int, slots: int, gamma: float, lam: float
) -> None:
    """Slot by slot with lists: its own actions one after another, each with what it earned until the next one."""
    rng = np.random.default_rng(seed)
    rewards, values, final_values = (rng.normal(size=(steps, slots)).astype(np.float32) for _ in range(3))
    acting, acting_next = rng.random((steps, slots)) < 0.5, rng.random(slots) < 0.5
    terminated, truncated = (rng.random((steps, slots)) < 0.15 for _ in range(2))
    last_values = rng.normal(size=slots).astype(np.float32)
    finals = (*np.nonzero(terminated | truncated), final_values[terminated | truncated])
    moved, following, ended, known = over_turns(
        rewards, terminated, truncated, acting, acting_next, values, last_values, finals
    )
    advantages, _ = generalized_advantages(moved, values, following, ended, acting & known, gamma, lam, acting)
    for s in range(slots):
        actions: list[dict[str, float]] = []
        open_now = False  # the last action still earns
        for t in range(steps):
            if acting[t, s]:
                if open_now:
                    actions[-1]["next"] = values[t, s]
                actions.append({"t": t, "reward": 0.0, "value": values[t, s]})
                open_now = True
            if open_now:
                actions[-1]["reward"] += rewards[t, s]
            if open_now and (terminated[t, s] or truncated[t, s]):
                actions[-1] |= {"next": 0.0 if terminated[t, s] else final_values[t, s], "ended": True}
                open_now = False
            elif terminated[t, s] or truncated[t, s]:
                open_now = False
        if open_now and acting_next[s]:
            actions[-1]["next"] = last_values[s]
        unknown = [one for one in actions if "next" not in one]
        assert unknown in ([], actions[-1:])
        assert np.flatnonzero(acting[:, s] & ~known[:, s]).tolist() == [one["t"] for one in unknown]
        whole = [one for one in actions if "next" in one]
        columns = [[one[name] for one in whole] for name in ("reward", "value", "next")]
        expected = by_definition(*columns, [bool(one.get("ended")) for one in whole], gamma, lam)
        assert [advantages[int(one["t"]), s] for one in whole] == pytest.approx(expected, abs=1e-4)


def test_where_everybody_always_acts_turns_change_nothing() -> None:
    rng = np.random.default_rng(3)
    rewards, values, final_values = (rng.normal(size=(9, 3)).astype(np.float32) for _ in range(3))
    terminated, truncated = rng.random((9, 3)) < 0.2, rng.random((9, 3)) < 0.2
    ends = terminated | truncated
    finals, last_values = (*np.nonzero(ends), final_values[ends]), values[0]
    moved, following, ended, known = over_turns(
        rewards, terminated, truncated, np.ones((9, 3), bool), np.ones(3, bool), values, last_values, finals
    )
    assert (moved == rewards).all() and (ended == ends).all() and known.all()
    assert (following == next_values(values, last_values, terminated, truncated, finals)).all()
