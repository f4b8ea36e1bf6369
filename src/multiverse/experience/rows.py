"""Filling a rollout, row after row: act, step, note what came of it. The same where the envs run and in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Protocol

import numpy as np

from multiverse.contracts.errors import InvalidActions
from multiverse.contracts.layout import (
    ACTIONS,
    ENDED,
    EPISODE_LENGTH,
    EPISODES,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    REWARD,
    VALUES,
    FieldName,
    Layout,
    Path,
)
from multiverse.contracts.policy import Memory, Policy, Seen
from multiverse.contracts.views import Array, Views
from multiverse.executors.env_range import EnvRange
from multiverse.executors.hosts import GoOn
from multiverse.executors.step_reply import EXTRAS, Extras
from multiverse.experience.rollout import BEGUN, LOST, ROLLOUT, SECONDS, SEEDS
from multiverse.memory.space_rows import ActionWriter

Arrays = Mapping[FieldName, Array]


class Rows:
    """The slots of one group in one host's envs, in the block and in the rollout."""

    def __init__(
        self, arrays: Arrays, layout: Layout, env_ids: range, mask: Path | None, next_step: bool = False
    ) -> None:
        """`mask`: the leaf of the observations that says which actions are open. `next_step`: the row after an
        episode's end begins the next one, and is no step."""
        group, slots = layout.groups[0].name, layout.rows(layout.groups[0], env_ids)
        mine = {name[2:]: rows for name, rows in arrays.items() if name[:2] == (group, ROLLOUT)}
        seen = {name[1:]: rows[:, slots] for name, rows in mine.items() if name[0] == "observations"}
        self._observations, self._mask, self.next_step = seen, mask, next_step
        self._shown = [(rows, arrays[(group, OBSERVATIONS, *path)][slots]) for path, rows in seen.items()]
        where = OBSERVATIONS if next_step else FINAL_OBSERVATIONS
        self._finals = [(mine[("finals", *path)][:, slots], arrays[(group, where, *path)][slots]) for path in seen]
        self._kept = {str(name[1]): rows[:, slots] for name, rows in mine.items() if name[0] == "memory"}
        self._actions, self._noise = mine[("actions",)][:, slots], mine[("noise",)][:, slots]
        self._values, self._ended = mine[("values",)][:, :, slots], mine[("ended",)][:, :, slots]
        self._starts, self._valid = mine[("starts",)][:, slots], mine[("valid",)][:, slots]
        self._masks = mine[("masks",)][:, slots] if ("masks",) in mine else None
        own = Views(replace(layout, num_envs=len(env_ids)), {(group, ACTIONS): arrays[(group, ACTIONS)][slots]})
        self._write_actions = ActionWriter(layout.groups[0].action_space, own, (group, ACTIONS)).write_all
        self._values_now, self._ended_now = arrays[(group, VALUES)][:, slots], arrays[(group, ENDED)][:, slots]

    def begin(self, row: int) -> None:
        """What the envs show now is in this row already; from the first one on, what was remembered goes on."""
        before = -1 if row == 0 else row - 1  # the last row of the rollout before, or one that was lost
        self._memory = {name: rows[-1 if row == 0 else row].copy() for name, rows in self._kept.items()}
        self._previous = self._actions[before], self._values[before, REWARD]
        ended = self._ended_now[0] | self._ended_now[1]
        self._now = (self._values_now[EPISODE_LENGTH] == 0) | ended
        self._resetting = ended if self.next_step else None

    def act(self, policy: Policy, row: int) -> None:
        """Look, note what is seen and remembered, choose, and tell the envs."""
        starts = self._starts[row] = self._now
        if self._resetting is not None:
            starts = self._starts[row] = starts & ~self._resetting
            self._valid[row] = ~self._resetting  # guard: a-row-that-begins-an-episode-is-no-step
        memory = self._forget(policy, starts) if starts.any() else self._memory
        for name, rows in self._kept.items():
            rows[row] = memory[name]
        seen = {path: rows[row] for path, rows in self._observations.items()}
        masks = None
        if self._mask is not None and self._masks is not None:
            masks = self._masks[row] = seen[self._mask].astype(np.bool_)
        actions, self._memory = policy.act(Seen(seen, starts, masks, *self._previous), self._noise[row], memory)
        self._take(actions, row)
        self._write_actions(policy.for_env(self._actions[row]))

    def _take(self, actions: Array, row: int) -> None:
        """As the policy has them; what the rollout cannot hold as it is would be learned from as something else."""
        kept = self._actions[row]
        if actions.shape != kept.shape or not np.can_cast(actions.dtype, kept.dtype, "same_kind"):
            raise InvalidActions(  # guard: a-policys-actions-are-as-it-said
                f"the policy's act() returned {actions.dtype} of shape {actions.shape} for {len(kept)} rows, and not "
                f"{kept.dtype} of shape {kept.shape}, as its algorithm's `action` says"
            )
        kept[...] = actions

    def _forget(self, policy: Policy, starts: Array) -> Memory:
        """Where an episode starts nothing is remembered."""
        actions, rewards = (before.copy() for before in self._previous)
        actions[starts], rewards[starts] = 0, 0.0
        self._previous = actions, rewards
        if self._kept:
            for name, first in policy.first_memory(len(starts)).items():
                self._memory[name][starts] = first[starts]
        return self._memory

    def note(self, row: int) -> Array:
        """What the step came to; returns [slots] bool: whose episode has ended."""
        for rows, now in self._shown:
            rows[row + 1] = now
        self._values[row], self._ended[row] = self._values_now, self._ended_now
        ended: Array = self._ended[row, 0] | self._ended[row, 1]
        self._now = ended if self._resetting is None else self._resetting
        if self._resetting is not None:
            self._resetting = ended
        self._previous = self._actions[row], self._values[row, REWARD]
        return ended

    def end(self, row: int, ended: Array) -> None:
        """Some episodes have: what was seen last in them."""
        for rows, now in self._finals:
            rows[row, ended] = now[ended]

    def finish(self) -> None:
        for name, rows in self._kept.items():
            rows[-1] = self._memory[name]


class Steps(Protocol):
    """Whoever steps the envs of some rows."""

    def step(self) -> Iterable[int]:
        """One step of each, with the actions that are in the block; returns those whose step was lost."""

    def failed(self) -> bool:
        """Whether one of them failed for good in that step."""

    def seed_of(self, i: int) -> int | None:
        """What the episode began from that follows on one that has just ended."""


def fill(rows: Rows, arrays: Arrays, env_ids: range, policy: Policy, first: int, go_on: GoOn, steps: Steps) -> bool:
    """Fill the rows from `first` on. False if it was to stop before, or an env has failed."""
    mine = slice(env_ids.start, env_ids.stop)
    begun, seeds, lost = (arrays[name][:, mine] for name in (BEGUN, SEEDS, LOST))
    episodes, act_s, step_s = arrays[EPISODES][mine], 0.0, 0.0
    rows.begin(first)
    for t in range(first, len(begun)):
        if not go_on(t):
            return False
        began_at = perf_counter()
        rows.act(policy, t)
        acted_at = perf_counter()
        for i in steps.step():
            lost[t, i] = True  # guard: lost-rows-are-marked
        if steps.failed():
            return False
        ended = rows.note(t)
        if ended.any():
            rows.end(t, ended)
            begun[t, ended] = episodes[ended] + rows.next_step
            for i in np.flatnonzero(ended).tolist():
                seed = steps.seed_of(i)
                seeds[t, i] = -1 if seed is None else seed
        act_s, step_s = act_s + acted_at - began_at, step_s + perf_counter() - acted_at
    rows.finish()
    arrays[SECONDS][env_ids.start] = act_s, step_s
    return go_on(len(begun))


# -- where the envs are ------------------------------------------------------------------------------------------
class _HostSteps:
    """A host steps its own envs."""

    def __init__(self, envs: EnvRange, step: Callable[[], int]) -> None:
        self._envs, self._step, self.seed_of = envs, step, envs.seed_of
        self._failed = False

    def step(self) -> Iterable[int]:
        if not self._step() & EXTRAS:
            return ()
        said = self._envs.step_extras()
        self._failed = bool(said.failures)
        return [env_id - self._envs.config.env_ids.start for env_id in (*said.restarts, *said.truncated)]

    def failed(self) -> bool:
        return self._failed


def fill_rows(
    envs: EnvRange, step: Callable[[], int], go_on: GoOn, first: int, policy: Policy, mask: Path | None
) -> Extras:
    """One host's share of a rollout, from a row on; returns what its envs had to say."""
    arrays, ids = envs.views.arrays, envs.config.env_ids
    fill(Rows(arrays, envs.views.layout, ids, mask), arrays, ids, policy, first, go_on, _HostSteps(envs, step))
    return envs.take_extras()
