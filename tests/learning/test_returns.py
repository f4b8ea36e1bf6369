"""Advantages, compared with the definition computed step by step and episode by episode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiverse.learning.returns import Transitions, ValueEstimates, generalized_advantages, merge_turns, next_values


def by_definition(
    rewards: list[float], values: list[float], following: list[float], ended: list[bool], gamma: float, lam: float
) -> list[float]:
    """The advantages of one slot: the sum of discounted one-step errors up to the end of its episode."""
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
def test_advantages_equal_their_definition(seed: int, steps: int, slots: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values, following = (rng.normal(size=(steps, slots)).astype(np.float32) for _ in range(3))
    ended = rng.random((steps, slots)) < 0.3
    everything = np.ones_like(ended)
    advantages, returns = generalized_advantages(
        Transitions(rewards, values, following, ended, everything), gamma=gamma, gae_lambda=lam
    )
    for s in range(slots):
        columns = (column[:, s].tolist() for column in (rewards, values, following, ended))
        assert advantages[:, s] == pytest.approx(by_definition(*columns, gamma, lam), abs=1e-4)
    assert returns == pytest.approx(advantages + values)


def test_slots_do_not_affect_each_other() -> None:
    rng = np.random.default_rng(0)
    rewards, values, following = (rng.normal(size=(6, 3)).astype(np.float32) for _ in range(3))
    ended, valid = np.zeros((6, 3), bool), np.ones((6, 3), bool)
    before, _ = generalized_advantages(Transitions(rewards, values, following, ended, valid), gamma=0.9, gae_lambda=0.8)
    rewards[:, 1] += 7.0
    after, _ = generalized_advantages(Transitions(rewards, values, following, ended, valid), gamma=0.9, gae_lambda=0.8)
    assert (before[:, [0, 2]] == after[:, [0, 2]]).all() and (before[:, 1] != after[:, 1]).all()


def test_lost_row_has_no_advantage_and_ends_the_rows_before_it() -> None:
    rewards, values, following = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32), np.ones((4, 1), np.float32)
    valid = np.array([[True], [True], [False], [True]])
    ended = ~valid
    advantages, _ = generalized_advantages(
        Transitions(rewards, values, following, ended, valid), gamma=1.0, gae_lambda=1.0
    )
    assert advantages[:, 0].tolist() == [4.0, 2.0, 0.0, 2.0]


def test_next_values_depend_on_how_the_episode_ended() -> None:
    values = np.arange(1.0, 9.0, dtype=np.float32).reshape(4, 2)
    terminated, truncated = np.zeros((4, 2), bool), np.zeros((4, 2), bool)
    terminated[1, 0] = truncated[2, 1] = True
    last = np.array([10.0, 20.0], np.float32)
    estimates = ValueEstimates(values, last, np.array([1, 2]), np.array([0, 1]), np.array([99.0, 50.0], np.float32))
    following = next_values(estimates, terminated, truncated)
    # Slot 0 terminated in row 1: value 0. Slot 1 was truncated in row 2: value of its last observation.
    assert following[:, 0].tolist() == [3.0, 0.0, 7.0, 10.0]
    assert following[:, 1].tolist() == [4.0, 6.0, 50.0, 20.0]


# -- in turn -----------------------------------------------------------------------------------------------------
@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_merged_turns_equal_a_reference_for_each_slot(
    seed: int, steps: int, slots: int, gamma: float, lam: float
) -> None:
    """Slot by slot with lists: the actions of a slot one after another, each with its reward until the next one."""
    rng = np.random.default_rng(seed)
    rewards, values, final_values = (rng.normal(size=(steps, slots)).astype(np.float32) for _ in range(3))
    acting, acting_next = rng.random((steps, slots)) < 0.5, rng.random(slots) < 0.5
    terminated, truncated = (rng.random((steps, slots)) < 0.15 for _ in range(2))
    last_values = rng.normal(size=slots).astype(np.float32)
    ends = terminated | truncated
    estimates = ValueEstimates(values, last_values, *np.nonzero(ends), final_values[ends])
    moved, following, ended, known = merge_turns(rewards, terminated, truncated, acting, acting_next, estimates)
    advantages, _ = generalized_advantages(
        Transitions(moved, values, following, ended, acting & known, acting), gamma=gamma, gae_lambda=lam
    )
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


def test_merging_turns_changes_nothing_if_all_slots_act() -> None:
    rng = np.random.default_rng(3)
    rewards, values, final_values = (rng.normal(size=(9, 3)).astype(np.float32) for _ in range(3))
    terminated, truncated = rng.random((9, 3)) < 0.2, rng.random((9, 3)) < 0.2
    ends = terminated | truncated
    estimates = ValueEstimates(values, values[0], *np.nonzero(ends), final_values[ends])
    moved, following, ended, known = merge_turns(
        rewards, terminated, truncated, np.ones((9, 3), bool), np.ones(3, bool), estimates
    )
    assert (moved == rewards).all() and (ended == ends).all() and known.all()
    assert (following == next_values(estimates, terminated, truncated)).all()


def v_trace_by_definition(
    rewards: list[float], values: list[float], following: list[float], ended: list[bool], ratios: list[float],
    gamma: float, lam: float,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """One slot, as in the paper, with λ in its traces: v_s = V(s) + Σ γ^(t-s) (Π λ c_i) ρ_t δ_t, and the advantages
    r_s + γ q_{s+1} - V(s), of which ρ_s is the weight, where q is v, and V in it as far as λ is not 1."""
    rho, targets = [min(1.0, ratio) for ratio in ratios], []
    for s in range(len(rewards)):
        total, weight = values[s], 1.0
        for t in range(s, len(rewards)):
            total += weight * rho[t] * (rewards[t] + gamma * following[t] - values[t])
            weight *= gamma * lam * rho[t]
            if ended[t]:
                break
        targets.append(total)
    advantages = []
    for s in range(len(rewards)):
        after = following[s]
        if not ended[s] and s + 1 < len(rewards):
            after = lam * targets[s + 1] + (1 - lam) * values[s + 1]
        advantages.append(rewards[s] + gamma * after - values[s])
    return targets, advantages


@pytest.mark.fault("F3")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.floats(0, 1), st.floats(0, 1))
def test_advantages_with_ratios_equal_v_trace(seed: int, steps: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = (rng.normal(size=(steps, 3)).astype(np.float32) for _ in range(2))
    log_ratios = (2 * rng.normal(size=(steps, 3))).astype(np.float32)
    ended, last = rng.random((steps, 3)) < 0.3, rng.normal(size=3).astype(np.float32)
    none = np.zeros(0, int)
    following = next_values(ValueEstimates(values, last, none, none, np.zeros(0)), ended, np.zeros_like(ended))
    rows = Transitions(rewards, values, following, ended, np.ones_like(ended))
    advantages, returns = generalized_advantages(rows, gamma=gamma, gae_lambda=lam, log_ratios=log_ratios)
    for s in range(3):
        columns = (column[:, s].tolist() for column in (rewards, values, following, ended, np.exp(log_ratios)))
        targets, expected = v_trace_by_definition(*columns, gamma, lam)
        assert returns[:, s] == pytest.approx(targets, abs=1e-4)
        assert advantages[:, s] == pytest.approx(expected, abs=1e-4)
    with_zeros = generalized_advantages(rows, gamma=gamma, gae_lambda=lam, log_ratios=np.zeros_like(rewards))
    without = generalized_advantages(rows, gamma=gamma, gae_lambda=lam)
    assert all((one == other).all() for one, other in zip(with_zeros, without)), "bit-equal"


def test_lost_and_skipped_rows_have_no_weight_in_v_trace() -> None:
    """As without ratios: nothing passes a lost row; a row in which a slot did not act passes on its input."""
    rewards, values, following = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)
    valid, ended = np.array([[True, True], [False, False], [True, True]]), np.zeros((3, 2), bool)
    acting, half = np.array([[True, True], [True, False], [True, True]]), np.full((3, 2), np.log(0.5), np.float32)
    advantages, _ = generalized_advantages(
        Transitions(rewards, values, following, ended, valid, acting), gamma=1.0, gae_lambda=1.0, log_ratios=half
    )
    assert advantages[:, 0].tolist() == [1.0, 0.0, 1.0]
    assert advantages[:, 1].tolist() == [1.5, 0.5, 1.0]
