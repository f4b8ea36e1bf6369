"""Seeds: Gymnasium's convention for a reset, and independent seeds for every episode of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multiverse.contracts.errors import InvalidRequest


def seeds_for(seed: int | Sequence[int | None] | None, env_ids: Sequence[int], num_envs: int) -> list[int | None]:
    """One seed for each of `env_ids`: an int s gives env i the seed s + i, a list gives each its own."""
    if seed is None:
        return [None] * len(env_ids)
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in env_ids]
    given = [None if s is None else int(s) for s in seed]
    if len(given) == len(env_ids):
        return given
    if len(given) == num_envs:  # with a reset mask Gymnasium takes one seed per env, masked or not
        return [given[i] for i in env_ids]
    raise InvalidRequest(f"{len(given)} seeds for {len(env_ids)} envs: pass one int, or a list with one seed per env")


def episode_seed(run_seed: int, env_id: int, episode: int) -> int:
    """The seed of one episode of a run: the same whatever executor, worker count or restart, shared with no other."""
    return int(np.random.SeedSequence((run_seed, env_id, episode)).generate_state(1, np.uint32)[0])
