"""Bringing envs back to where they were: by playing the current episodes' actions again from their known seeds, or by
what envs that can be saved said of themselves. One that cannot be brought back is named, and begins another episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.core.failures import RESTARTED
from multiverse.core.layout import FieldName
from multiverse.core.views import Array
from multiverse.rollouts.episodes import Taken
from multiverse.rollouts.slots import by_env, step_slots, sums
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.single import VectorEnv

Rows = dict[FieldName, Array]
"""What slots showed: (group, "observations", …) → [slots, …]."""
Lost = dict[int, str]
"""Env id → why it could not be brought back."""

TOO_LONG = "the episode is too long to be played again"
FAILED = "the env or its worker failed on the way"
ENDED = "played again from its seed, the episode ended sooner"
SHOWED = "played again from its seed, the episode showed something else"
PAID = "played again from its seed, the episode gave other rewards"


def restore_by_replay(
    envs: BaseVectorEnv,
    episodes: Sequence[int],
    actions: Sequence[Taken | None],
    expected: Rows,
    returns: Array | None = None,
    lengths: Array | None = None,
) -> Lost:
    """Those that could not be brought back. `expected`: observations of slots; returns and lengths of all slots, as
    `slots.sums` has them.

    Env i plays episode `episodes[i]` again: its actions, from the seed its reset plan gives. If it then does not show
    what it showed before, or has not the return and length it had (None: not known), it draws from a random generator
    that its seed does not set, or remembers earlier episodes. Such an env, one whose actions are not known, and one
    that is lost on the way, has begun another episode.
    """
    envs.begin_at(episodes)
    lost = {i: TOO_LONG for i, known in enumerate(actions) if known is None}
    counts = [0 if known is None else len(known[0]) for known in actions]
    for t in range(max(counts)):
        ids = [i for i, count in enumerate(counts) if t < count and i not in lost]
        if not ids:
            break
        before = envs.episode_counts[ids]
        infos = step_slots(
            envs, [np.stack(part) for part in zip(*([one[t] for one in actions[i] or ()] for i in ids))], ids
        )
        failed = infos.get(f"_{RESTARTED}", np.zeros(len(ids), np.bool_))
        ended = np.flatnonzero(envs.episode_counts[ids] != before).tolist()
        lost.update({ids[row]: FAILED if failed[row] else ENDED for row in ended})
        _begin_others(envs, envs.awaiting_reset, lost)  # guard: envs-lost-in-a-replay-are-reset
    for i in set(range(envs.num_envs)).difference(lost):
        if envs.episode_counts[i] != episodes[i]:
            lost[i] = FAILED  # its worker was lost in the reset, which was done again: an episode later
        elif not _same(envs, expected, i):  # guard: a-replay-is-compared
            lost[i] = SHOWED
        elif not _paid_the_same(envs, returns, lengths, i):
            lost[i] = PAID
    _begin_others(envs, sorted(lost), lost)
    return dict(sorted(lost.items()))


def put_back(
    envs: VectorEnv, episodes: Sequence[int], states: Sequence[Any], rows: Rows, returns: Array, lengths: Array
) -> Lost:
    """The same for envs that can be saved, from what `saved_states` gave; lost is who was lost with its worker."""
    envs.begin_at(episodes)
    envs.put_back([as_saved(state) for state in states], rows, returns, lengths)
    lost = dict.fromkeys(envs.awaiting_reset, FAILED)
    lost.update(dict.fromkeys(np.flatnonzero(envs.episode_counts != np.asarray(episodes)).tolist(), FAILED))
    _begin_others(envs, sorted(lost), lost)
    return dict(sorted(lost.items()))


def saved_states(envs: VectorEnv) -> list[Any]:
    """The state of each env, in the env's own words, as a checkpoint holds it. Some of it may be the env's own memory:
    copy what is to stay as it is now."""
    return [_storable(state) for state in envs.call("save_state")]


def _begin_others(envs: BaseVectorEnv, ids: Sequence[int], lost: Lost) -> None:
    """Another episode for these; and for whoever is lost with its worker meanwhile."""
    while ids:
        lost.update({i: FAILED for i in ids if i not in lost})
        envs.reset(env_ids=ids)
        ids = envs.awaiting_reset


def _same(envs: BaseVectorEnv, expected: Rows, env: int) -> bool:
    """Bit for bit, as the rollout had it."""
    for name, rows in expected.items():
        mine = envs.views.layout.rows_of_field(name, range(env, env + 1))
        if envs.views[name][mine].astype(rows.dtype).tobytes() != rows[mine].tobytes():
            return False
    return True


def _paid_the_same(envs: BaseVectorEnv, returns: Array | None, lengths: Array | None, env: int) -> bool:
    for now, before in zip(sums(envs), (returns, lengths)):
        if before is not None:
            here, there = (np.concatenate([one[env] for one in by_env(envs, column)]) for column in (now, before))
            if not np.array_equal(here, there, equal_nan=True):  # guard: returns-are-compared-too
                return False
    return True


def _storable(state: Any) -> Any:
    """Bytes, which many emulators save themselves as, are kept as an array of them."""
    return {"bytes": np.frombuffer(state, np.uint8)} if isinstance(state, bytes | bytearray) else {"value": state}


def as_saved(kept: Mapping[str, Any]) -> Any:
    """What the env's `save_state()` had returned, for its `restore_state`."""
    return np.asarray(kept["bytes"]).tobytes() if "bytes" in kept else kept["value"]
