"""What a caller asks of some envs, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.reset_plan import ResetRequest, checked_task
from multiverse.contracts.seeds import seeds_for
from multiverse.contracts.views import Array

_BOOLS = frozenset({bool, np.bool_})


def checked_ids(env_ids: Sequence[int] | None, num_envs: int) -> Array:
    """The envs a call is for; None means all."""
    if env_ids is None:
        return np.arange(num_envs)
    ids = _as_whole_numbers(env_ids)
    if ids is None:
        raise InvalidRequest(f"env_ids={env_ids!r}: expected a non-empty list of ints")
    if ids.min() < 0 or ids.max() >= num_envs:
        raise InvalidRequest(f"env_ids={env_ids!r}: there are envs 0 to {num_envs - 1}")
    if len(set(ids.tolist())) != len(ids):
        raise InvalidRequest(f"env_ids={env_ids!r}: each env at most once")
    return ids.astype(np.intp)


def envs_to_reset(options: Any, env_ids: Sequence[int] | None, num_envs: int) -> tuple[Array, Any]:
    """(the envs a reset is for, the options without Gymnasium's reset mask); the caller's dict stays as it is."""
    if isinstance(options, Mapping) and "reset_mask" in options:
        if env_ids is not None:
            raise InvalidRequest("both env_ids and options['reset_mask'] say which envs to reset: pass one")
        rest = {key: value for key, value in options.items() if key != "reset_mask"}
        return np.flatnonzero(_checked_mask(options["reset_mask"], num_envs)), rest
    return checked_ids(env_ids, num_envs), options


def reset_requests(
    ids: Array, seed: Any, options: Any, tasks: Any, num_envs: int, known_tasks: int | None = None
) -> dict[int, ResetRequest]:
    """What each env's reset gets, by env id. Where there are known tasks, `tasks` are their indices."""
    seeds = seeds_for(seed, ids.tolist(), num_envs)
    each_options = _options_per_env(options, ids)
    each_task = [None] * len(ids) if tasks is None else _one_per_env(tasks, ids, "tasks")
    if known_tasks is not None:
        each_task = [None if t is None else checked_task(t, known_tasks) for t in each_task]
    return {
        int(env_id): ResetRequest(s, dict(o) if o is not None else None, t)
        for env_id, s, o, t in zip(ids, seeds, each_options, each_task)
    }


def _checked_mask(mask: Any, num_envs: int) -> Array:
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return mask


def _as_whole_numbers(env_ids: Any) -> Array | None:
    """The ids as an array; None if they are none. numpy would take [0, True] for two numbers."""
    try:
        ids = np.asarray(env_ids)
    except ValueError:  # lists of different lengths inside
        return None
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        return None
    return ids if isinstance(env_ids, np.ndarray) or _BOOLS.isdisjoint(map(type, env_ids)) else None


def _options_per_env(options: Any, ids: Array) -> list[Any]:
    if options is None or isinstance(options, Mapping):
        return [options] * len(ids)
    given = _one_per_env(options, ids, "options")
    for i, one in enumerate(given):
        if one is not None and not isinstance(one, Mapping):
            raise InvalidRequest(
                f"options[{i}]={one!r}: expected a dict or None; pass one dict for all, or one per env"
            )
    return given


def _one_per_env(value: Any, ids: Array, name: str) -> list[Any]:
    if (
        not isinstance(value, Iterable)
        or isinstance(value, str | bytes | Mapping | Set)
        or not getattr(value, "ndim", 1)
    ):
        raise InvalidRequest(
            f"{name}={value!r}: expected a list with one for each of the {len(ids)} envs that are reset"
        )
    given = list(value)
    if len(given) != len(ids):
        raise InvalidRequest(f"{len(given)} {name} for {len(ids)} envs: pass one per env that is reset")
    return given
