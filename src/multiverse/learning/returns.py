"""Advantages and returns of a rollout, computed for each slot."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from multiverse.core.layout import Array


@dataclass(frozen=True)
class ValueEstimates:
    """Values of all observations of a rollout."""

    values: Array  # [T, S] of the rows
    last: Array  # [S] of the observations after the last row
    final_steps: Array  # [ends] row of each episode that ended
    final_slots: Array  # [ends] slot of each
    final: Array  # [ends] values of their final observations


@dataclass(frozen=True)
class Transitions:
    """Rows of a rollout, [T, S] each.

    `next_values` are the values of what each step led to: of the next row inside an episode; of the final observation
    where it was truncated; 0 where it terminated; of the observation after the rollout in the last row.
    """

    rewards: Array
    values: Array
    next_values: Array
    ended: Array  # bool: no advantage flows back over this row's end
    valid: Array  # bool: the row was not lost
    acting: Array | None = None  # bool: the slot acted in this row, as in `merge_turns`; None: in every row


def generalized_advantages(
    rows: Transitions, *, gamma: float, gae_lambda: float, log_ratios: Array | None = None
) -> tuple[Array, Array]:
    """Return (advantages, returns), [T, S] each: A_t = δ_t + γλ ρ_{t+1} A_{t+1}, and R_t = V_t + ρ_t A_t.

    Nothing flows over the end of an episode, or from one slot to another. An invalid row ends the rows before it, which
    have led to its observation, and has no advantage. Rows in which a slot did not act are skipped.

    `log_ratios`: for actions of another policy, the logarithm of this policy's probability over that policy's; ρ is
    that ratio, at most 1. This is V-trace (Espeholt et al. 2018) with ρ̄ = c̄ = 1, where R_t is its v_t and ρ_t A_t the
    weight of its policy gradient. None: ρ = 1, generalized advantage estimation (Schulman et al. 2016).
    """
    deltas = rows.rewards + np.float32(gamma) * rows.next_values - rows.values
    deltas[~rows.valid] = 0.0
    decay = np.float32(gamma * gae_lambda) * ~(rows.ended | ~rows.valid)
    weights = None if log_ratios is None else np.exp(np.minimum(log_ratios, np.float32(0)))
    if rows.acting is not None:
        decay[~rows.acting] = 1.0  # deltas are 0 there
        if weights is not None:
            weights[~rows.acting] = 1.0
    advantages = np.empty_like(deltas)
    later = np.zeros_like(deltas[0])
    with np.errstate(over="ignore", invalid="ignore"):  # the optimizer checks whether gradients are finite
        row_weights = itertools.repeat(None) if weights is None else weights[::-1]
        for row, delta, factor, weight in zip(advantages[::-1], deltas[::-1], decay[::-1], row_weights):
            np.multiply(factor, later, out=row)
            row += delta
            later = row if weight is None else weight * row  # guard: stale-rows-are-corrected
    return advantages, (advantages if weights is None else weights * advantages) + rows.values


def merge_turns(
    rewards: Array, terminated: Array, truncated: Array, acting: Array, acting_next: Array, estimates: ValueEstimates
) -> tuple[Array, Array, Array, Array]:
    """Return (rewards, next values, ended, known), [T, S] each, for slots that do not act in every row.

    Where agents act in turn, or come and go, the rewards between two actions of a slot belong to the first of them, as
    does an episode's end; that action has led to the slot's next action. Rewards before a slot's first action belong to
    none. `known` is False for actions whose outcome lies after the rollout.
    """
    values = estimates.values
    merged, following = np.zeros_like(rewards), np.zeros_like(values)
    ended, known = np.zeros(acting.shape, np.bool_), np.zeros(acting.shape, np.bool_)
    final_values = np.zeros_like(values)
    final_values[estimates.final_steps, estimates.final_slots] = estimates.final
    # Reward, value, end and outcome that the rows seen so far, from the last one back, give to the action before them.
    reward, value = np.zeros_like(rewards[0]), np.where(acting_next, estimates.last, 0).astype(values.dtype)
    end, has_outcome = np.zeros_like(acting_next), np.array(acting_next)
    for t in range(len(rewards) - 1, -1, -1):
        ends = terminated[t] | truncated[t]
        if ends.any():
            reward[ends], end[ends], has_outcome[ends] = 0.0, True, True
            value[ends] = np.where(terminated[t], 0, final_values[t])[ends]
        reward += rewards[t]
        acts = acting[t]
        merged[t, acts], following[t, acts], ended[t, acts], known[t, acts] = (
            column[acts] for column in (reward, value, end, has_outcome)
        )
        reward[acts], value[acts], end[acts], has_outcome[acts] = 0.0, values[t, acts], False, True
    return merged, following, ended, known


def next_values(estimates: ValueEstimates, terminated: Array, truncated: Array) -> Array:
    """Return the values [T, S] of what each step led to."""
    following = np.empty_like(estimates.values)
    following[:-1], following[-1] = estimates.values[1:], estimates.last
    following[terminated | truncated] = 0.0
    if len(estimates.final_steps):
        following[estimates.final_steps, estimates.final_slots] = estimates.final
    following[terminated] = 0.0
    return following


def explained_variance(values: Array, returns: Array) -> float:
    """Return 1 - Var(R - V) / Var(R): 1 if the values are the returns, 0 if they are no better than their mean."""
    with np.errstate(invalid="ignore"):
        variance = float(returns.var())
    return 1.0 - float((returns - values).var()) / variance if variance > 0 else float("nan")
