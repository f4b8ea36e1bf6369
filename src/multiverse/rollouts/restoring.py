"""Restoring envs: by replaying the actions of their current episodes from known seeds, or from states that they saved.

An env that cannot be restored is reported, and begins another episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.core.failures import RESTARTED
from multiverse.core.layout import Array, FieldName
from multiverse.rollouts.episodes import Taken, by_env, step_slots, sums
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.single import VectorEnv

Observations = dict[FieldName, Array]
"""Observations of slots: (group, "observations", …) → [slots, …]."""
Lost = dict[int, str]
"""Env id → reason why it could not be restored."""

TOO_LONG = "the episode is too long to be replayed"
FAILED = "the env or its worker failed meanwhile"
ENDED = "replayed from its seed, the episode ended sooner"
OTHER_OBSERVATIONS = "replayed from its seed, the episode returned other observations"
OTHER_REWARDS = "replayed from its seed, the episode returned other rewards"


def restore_by_replay(
    envs: BaseVectorEnv,
    episodes: Sequence[int],
    actions: Sequence[Taken | None],
    expected: Observations,
    returns: Array | None = None,
    lengths: Array | None = None,
) -> Lost:
    """Replay the current episodes; return the envs that could not be restored. `expected`: observations of slots;
    returns and lengths of all slots, as from `episodes.sums`.

    Env i replays the actions of episode `episodes[i]` from the seed of its reset plan. If its observations, return or
    length (None: not known) differ then, the env uses a random generator that its seed does not set, or depends on
    earlier episodes. Such an env, one whose actions are not known, and one that is lost meanwhile, begins another
    episode.
    """
    envs.begin_at(episodes)
    lost = {i: TOO_LONG for i, known in enumerate(actions) if known is None}
    counts = [0 if known is None else len(known[0]) for known in actions]
    for t in range(max(counts)):
        ids = [i for i, count in enumerate(counts) if t < count and i not in lost]
        if not ids:
            break
        before = envs.episode_counts[ids]
        actions_by_env = ([group[t] for group in actions[i] or ()] for i in ids)
        infos = step_slots(envs, [np.stack(group) for group in zip(*actions_by_env)], ids)
        failed = infos.get(f"_{RESTARTED}", np.zeros(len(ids), np.bool_))
        ended = np.flatnonzero(envs.episode_counts[ids] != before).tolist()
        lost.update({ids[row]: FAILED if failed[row] else ENDED for row in ended})
        _begin_others(envs, envs.awaiting_reset, lost)  # guard: envs-lost-in-a-replay-are-reset
    for i in set(range(envs.num_envs)).difference(lost):
        if envs.episode_counts[i] != episodes[i]:
            lost[i] = FAILED  # its worker was lost in the reset, whose repetition began the next episode
        elif not _observations_equal(envs, expected, i):  # guard: a-replay-is-compared
            lost[i] = OTHER_OBSERVATIONS
        elif not _returns_equal(envs, returns, lengths, i):
            lost[i] = OTHER_REWARDS
    _begin_others(envs, sorted(lost), lost)
    return dict(sorted(lost.items()))


def put_back(
    envs: VectorEnv, episodes: Sequence[int], states: Sequence[Any], rows: Observations, returns: Array, lengths: Array
) -> Lost:
    """Restore envs from `saved_states`; return those that were lost with their worker meanwhile."""
    envs.begin_at(episodes)
    envs.put_back([as_saved(state) for state in states], rows, returns, lengths)
    lost = dict.fromkeys(envs.awaiting_reset, FAILED)
    lost.update(dict.fromkeys(np.flatnonzero(envs.episode_counts != np.asarray(episodes)).tolist(), FAILED))
    _begin_others(envs, sorted(lost), lost)
    return dict(sorted(lost.items()))


def saved_states(envs: VectorEnv) -> list[Any]:
    """State of each env for a checkpoint, as returned by its `save_state`. It may share memory with the env: copy it to
    keep it unchanged."""
    return [_storable(state) for state in envs.call("save_state")]


def _begin_others(envs: BaseVectorEnv, ids: Sequence[int], lost: Lost) -> None:
    """Begin another episode in these envs, and in those that are lost with their worker meanwhile."""
    while ids:
        lost.update({i: FAILED for i in ids if i not in lost})
        envs.reset(env_ids=ids)
        ids = envs.awaiting_reset


def _observations_equal(envs: BaseVectorEnv, expected: Observations, env: int) -> bool:
    """Whether the env's observations are these, bit for bit, in the dtype of rollouts."""
    for name, rows in expected.items():
        mine = envs.views.layout.rows_of_field(name, range(env, env + 1))
        if envs.views[name][mine].astype(rows.dtype).tobytes() != rows[mine].tobytes():
            return False
    return True


def _returns_equal(envs: BaseVectorEnv, returns: Array | None, lengths: Array | None, env: int) -> bool:
    for now, before in zip(sums(envs), (returns, lengths)):
        if before is not None:
            here, there = (np.concatenate([group[env] for group in by_env(envs, column)]) for column in (now, before))
            if not np.array_equal(here, there, equal_nan=True):  # guard: returns-are-compared-too
                return False
    return True


def _storable(state: Any) -> Any:
    """The state with bytes, which many emulators return, as an array."""
    return {"bytes": np.frombuffer(state, np.uint8)} if isinstance(state, bytes | bytearray) else {"value": state}


def as_saved(kept: Mapping[str, Any]) -> Any:
    """The value that `save_state()` had returned, for `restore_state`."""
    return np.asarray(kept["bytes"]).tobytes() if "bytes" in kept else kept["value"]
