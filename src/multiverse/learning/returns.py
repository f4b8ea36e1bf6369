"""Advantages and returns of a rollout, slot by slot."""

from __future__ import annotations

import itertools

import numpy as np

from multiverse.core.views import Array


def generalized_advantages(
    rewards: Array,
    values: Array,
    next_values: Array,
    ended: Array,
    valid: Array,
    gamma: float,
    gae_lambda: float,
    acting: Array | None = None,
    log_ratios: Array | None = None,
) -> tuple[Array, Array]:
    """(advantages, returns), [T, S] each: A_t = δ_t + γλ ρ_{t+1} A_{t+1}, and R_t = V_t + ρ_t A_t.

    `next_values[t]` is the value of what step t led to: of the next row inside an episode; of the final observation
    where it was cut short; 0 where it came to its end; of what the slot saw after the rollout in the last row. So
    nothing flows over an episode's end, and nothing from one slot to another. A row that is not valid ends what was
    before it (which has led to what that row saw) and has no advantage of its own. Rows in which a slot did not act
    (`acting`, as `merge_turns` leaves them) are none of its own, and passed over.

    `log_ratios`: of what another policy did, the log of the probability that this one would have done it over that
    policy's; ρ is that ratio, at most 1. That is V-trace (Espeholt et al. 2018) with ρ̄ = c̄ = 1, where R_t is its v_t
    and ρ_t A_t the weight of its policy gradient. Without them ρ = 1: generalized advantages.
    """
    deltas = rewards + np.float32(gamma) * next_values - values
    deltas[~valid] = 0.0
    carry_on = np.float32(gamma * gae_lambda) * ~(ended | ~valid)
    weights = None if log_ratios is None else np.exp(np.minimum(log_ratios, np.float32(0)))
    if acting is not None:
        carry_on[~acting] = 1.0  # deltas are 0 there
        if weights is not None:
            weights[~acting] = 1.0
    advantages = np.empty_like(deltas)
    later = np.zeros_like(deltas[0])
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is noticed where its gradient is
        each = itertools.repeat(None) if weights is None else weights[::-1]
        for row, delta, carry, weight in zip(advantages[::-1], deltas[::-1], carry_on[::-1], each):
            np.multiply(carry, later, out=row)
            row += delta
            later = row if weight is None else weight * row  # guard: stale-rows-are-corrected
    return advantages, (advantages if weights is None else weights * advantages) + values


def merge_turns(
    rewards: Array,
    terminated: Array,
    truncated: Array,
    acting: Array,
    acting_next: Array,
    values: Array,
    last_values: Array,
    finals: tuple[Array, Array, Array],
) -> tuple[Array, Array, Array, Array]:
    """(rewards, next values, ended, whether it is known what the row led to), [T, S] each, of rows in which slots act.

    Where slots act in turn, or come and go, what a slot earns between two of its actions is for the first of them, and
    so is its end; that row has led to its next acting one. What comes before a slot's first action belongs to none, and
    an action whose outcome the rollout does not show is not known.
    """
    moved, following = np.zeros_like(rewards), np.zeros_like(values)
    ended, known = np.zeros(acting.shape, np.bool_), np.zeros(acting.shape, np.bool_)
    final_values = np.zeros_like(values)
    steps, slots, found = finals
    final_values[steps, slots] = found
    # What the slot's next acting row, or its end, has for the action before it.
    earned, value = np.zeros_like(rewards[0]), np.where(acting_next, last_values, 0).astype(values.dtype)
    over, told = np.zeros_like(acting_next), np.array(acting_next)
    for t in range(len(rewards) - 1, -1, -1):
        ends = terminated[t] | truncated[t]
        if ends.any():
            earned[ends], over[ends], told[ends] = 0.0, True, True
            value[ends] = np.where(terminated[t], 0, final_values[t])[ends]
        earned += rewards[t]
        acts = acting[t]
        moved[t, acts], following[t, acts], ended[t, acts], known[t, acts] = (
            one[acts] for one in (earned, value, over, told)
        )
        earned[acts], value[acts], over[acts], told[acts] = 0.0, values[t, acts], False, True
    return moved, following, ended, known


def next_values(
    values: Array, last_values: Array, terminated: Array, truncated: Array, finals: tuple[Array, Array, Array]
) -> Array:
    """[T, S] the value of what each step led to; `finals`: steps, slots and values of the final observations."""
    following = np.empty_like(values)
    following[:-1], following[-1] = values[1:], last_values
    following[terminated | truncated] = 0.0
    steps, slots, final_values = finals
    if len(steps):
        following[steps, slots] = final_values
    following[terminated] = 0.0
    return following
