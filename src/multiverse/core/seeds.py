"""Seeds: Gymnasium's convention for resets, and independent seeds for every episode of a run."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.plan import whole_number

_EXPECTED = "pass one int (env i gets it plus i), or a list with one int or None per env"


def seeds_for(seed: int | Sequence[int | None] | None, env_ids: Sequence[int], num_envs: int) -> list[int | None]:
    """One seed for each of `env_ids`: an int s gives env i the seed s + i, a list gives each its own."""
    if seed is None:
        return [None] * len(env_ids)
    if not is_list(seed):
        first = _checked("seed", seed)
        return [first + i for i in env_ids]
    seeds = [None if s is None else _checked(f"seed[{i}]", s) for i, s in enumerate(seed)]  # type: ignore[arg-type]
    if len(seeds) == len(env_ids):
        return seeds
    if len(seeds) == num_envs:  # with a reset mask Gymnasium takes one seed per env, masked or not
        return [seeds[i] for i in env_ids]
    raise InvalidRequest(f"{len(seeds)} seeds for {len(env_ids)} envs: pass one int, or a list with one seed per env")


def is_list(value: Any) -> bool:
    """Whether a value is an ordered collection; an array without dimensions is a number."""
    if isinstance(value, str | bytes | Mapping | Set):
        return False
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0


def _checked(name: str, seed: Any) -> int:
    try:
        return whole_number(name, seed)
    except InvalidRequest:
        raise InvalidRequest(f"{name}={seed!r}: {_EXPECTED}") from None


LARGEST_SEED = 2**64 - 1
"""Largest seed that every generator accepts."""


def checked_run_seed(name: str, seed: Any) -> int:
    """The seed of a run, an evaluation or a reset plan, as an int in the valid range."""
    number = whole_number(name, seed)
    if not 0 <= number <= LARGEST_SEED:
        raise InvalidRequest(f"{name}={number}: expected a number from 0 to 2**64 - 1")
    return number


def episode_seed(run_seed: int, env_id: int, episode: int) -> int:
    """The seed of one episode of a run: independent of executor, worker count and restarts, and different for every
    episode. Below 2³¹, so that evaluations never use it.
    """
    if not (0 <= episode < _WORD - _AT_ONCE and 0 <= env_id < _WORD):  # outside the range of `_next_words`
        return _first_word((run_seed, env_id, episode)) >> 1
    return _next_words(run_seed, env_id, episode // _AT_ONCE)[episode % _AT_ONCE] >> 1


def evaluation_seed(seed: int, episode: int) -> int:
    """The seed of one episode of an evaluation: at least 2³¹, which no training episode has."""
    return (1 << 31) | _first_word((seed, episode)) >> 1


DEFAULT_TEST_SEED = 1_000_000


def default_test_seed(evaluation_seed: int) -> int:
    """Return the default seed for evaluating a run after training: never the `evaluation_seed` of its training, on
    whose episodes its best checkpoint was selected."""
    return DEFAULT_TEST_SEED if evaluation_seed != DEFAULT_TEST_SEED else DEFAULT_TEST_SEED + 1


def _first_word(entropy: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


_AT_ONCE = 128
_WORD = 1 << 32


@functools.lru_cache(maxsize=4096)
def _next_words(run_seed: int, env_id: int, block: int) -> array[int]:
    """`_first_word` of `_AT_ONCE` consecutive episodes. This is the algorithm of numpy's `SeedSequence`, vectorised: a
    pool of four words that are mixed into each other, of which the first is returned. Short episodes need many seeds.
    """
    entropy = [run_seed % _WORD, *([run_seed // _WORD] if run_seed >= _WORD else []), env_id]
    pool = [np.full(_AT_ONCE, word, np.uint32) for word in entropy]
    pool.append(np.arange(block * _AT_ONCE, (block + 1) * _AT_ONCE, dtype=np.uint32))
    pool += [np.zeros(_AT_ONCE, np.uint32)] * (4 - len(pool))
    hashed = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [hashed(word) for word in pool]
    for source in range(4):
        for to in range(4):
            if to != source:
                word = pool[to] * np.uint32(0xCA01F9DD) - hashed(pool[source]) * np.uint32(0x4973F715)
                pool[to] = word ^ (word >> np.uint32(16))
    return array("I", _Hash(0x8B51F9DD, 0x58F38DED)(pool[0]).tolist())


class _Hash:
    """Mix the bits of words, with a constant that changes at every call."""

    def __init__(self, constant: int, factor: int) -> None:
        self._constant, self._factor = constant, factor

    def __call__(self, words: Any) -> Any:
        words = words ^ np.uint32(self._constant)
        self._constant = self._constant * self._factor % _WORD
        words = words * np.uint32(self._constant)
        return words ^ (words >> np.uint32(16))
