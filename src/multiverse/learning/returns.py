"""Advantages and returns of a rollout, slot by slot."""

from __future__ import annotations

import numpy as np

from multiverse.contracts.views import Array


def generalized_advantages(
    rewards: Array,
    values: Array,
    next_values: Array,
    ended: Array,
    valid: Array,
    gamma: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """(advantages, returns), [T, S] each.

    `next_values[t]` is the value of what step t led to: of the next row inside an episode; of the final observation
    where it was cut short; 0 where it came to its end; of what the slot saw after the rollout in the last row. So
    nothing flows over an episode's end, and nothing from one slot to another. A row that is not valid ends what was
    before it (which has led to what that row saw) and has no advantage of its own.
    """
    deltas = rewards + np.float32(gamma) * next_values - values
    deltas[~valid] = 0.0
    carry_on = np.float32(gamma * gae_lambda) * ~(ended | ~valid)
    advantages = np.empty_like(deltas)
    later = np.zeros_like(deltas[0])
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is noticed where its gradient is
        for row, delta, carry in zip(advantages[::-1], deltas[::-1], carry_on[::-1]):
            np.multiply(carry, later, out=row)
            row += delta
            later = row
    return advantages, advantages + values


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
