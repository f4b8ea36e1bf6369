"""Scripted players, with which trained teams are compared."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

STOP, LEFT, RIGHT, DOWN, UP = range(5)
"""Actions of an MPE particle."""
ROWS, COLUMNS, IN_A_ROW = 6, 7, 4


# -- simple_spread -----------------------------------------------------------------------------------------------
def assigned(observation: Any) -> int:
    """Go to the landmark that is one's own in the assignment with the least distance in all. Everybody sees everybody,
    so all come to the same one."""
    velocity, landmarks, others = observation[:2], observation[4:10].reshape(3, 2), observation[10:14].reshape(2, 2)
    agents = np.vstack([np.zeros(2), others])  # as seen from oneself, who is the first
    distances = np.linalg.norm(agents[:, None] - landmarks, axis=2)
    mine = min(itertools.permutations(range(3)), key=lambda order: distances[range(3), order].sum())[0]
    return towards(landmarks[mine], velocity)


def towards(goal: Any, velocity: Any) -> int:
    """Return the action that moves a particle towards a goal, taking its drift into account."""
    left = goal - 0.4 * velocity
    axis = int(np.abs(left).argmax())
    if abs(left[axis]) < 0.05:
        return STOP
    return ((LEFT, RIGHT), (DOWN, UP))[axis][int(left[axis] > 0)]


# -- connect four ------------------------------------------------------------------------------------------------
def one_ply(observation: Any, open_now: Any, rng: np.random.Generator) -> int:
    """Takes a win, blocks a loss, and else drops anywhere. The first plane is one's own, the last row the lowest."""
    columns = np.flatnonzero(open_now)
    taken = observation["observation"].any(axis=2)
    for player in range(2):
        own = observation["observation"][:, :, player].astype(bool)
        for column in columns:
            if _wins(own, int(ROWS - 1 - taken[:, column].sum()), int(column)):
                return int(column)
    return int(rng.choice(columns))


def _wins(own: Any, row: int, column: int) -> bool:
    """Whether one more piece there makes four in a row."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        length = 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < ROWS and 0 <= c < COLUMNS and own[r, c]:
                length, r, c = length + 1, r + sign * down, c + sign * right
        if length >= IN_A_ROW:
            return True
    return False
