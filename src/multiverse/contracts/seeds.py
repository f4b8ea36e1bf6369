"""Seeds: Gymnasium's convention for a reset, and independent seeds for every episode of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.plan import whole_number

_EXPECTED = "pass one int (env i gets it plus i), or a list with one int or None per env"


def seeds_for(seed: int | Sequence[int | None] | None, env_ids: Sequence[int], num_envs: int) -> list[int | None]:
    """One seed for each of `env_ids`: an int s gives env i the seed s + i, a list gives each its own."""
    if seed is None:
        return [None] * len(env_ids)
    if not is_list(seed):
        first = _checked("seed", seed)
        return [first + i for i in env_ids]
    given = [None if s is None else _checked(f"seed[{i}]", s) for i, s in enumerate(seed)]  # type: ignore[arg-type]
    if len(given) == len(env_ids):
        return given
    if len(given) == num_envs:  # with a reset mask Gymnasium takes one seed per env, masked or not
        return [given[i] for i in env_ids]
    raise InvalidRequest(f"{len(given)} seeds for {len(env_ids)} envs: pass one int, or a list with one seed per env")


def is_list(value: Any) -> bool:
    """Whatever can be gone through in an order that means something; an array without dimensions is one number."""
    if isinstance(value, str | bytes | Mapping | Set):
        return False
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0


def _checked(name: str, seed: Any) -> int:
    try:
        return whole_number(name, seed)
    except InvalidRequest:
        raise InvalidRequest(f"{name}={seed!r}: {_EXPECTED}") from None


LARGEST_SEED = 2**64 - 1
"""That every generator takes."""


def checked_run_seed(name: str, seed: Any) -> int:
    """The seed of a run, of an evaluation, or of a reset plan."""
    found = whole_number(name, seed)
    if not 0 <= found <= LARGEST_SEED:
        raise InvalidRequest(f"{name}={found}: from 0 to 2**64 - 1")
    return found


def episode_seed(run_seed: int, env_id: int, episode: int) -> int:
    """The seed of one episode of a run: the same whatever executor, worker count or restart, shared with no other.

    Below 2³¹, so that it is never an evaluation's.
    """
    return int(np.random.SeedSequence((run_seed, env_id, episode)).generate_state(1, np.uint32)[0]) >> 1


def evaluation_seed(seed: int, episode: int) -> int:
    """The seed of one episode of an evaluation: 2³¹ or more, which no training episode has."""
    return (1 << 31) | int(np.random.SeedSequence((seed, episode)).generate_state(1, np.uint32)[0]) >> 1
