"""Filling a rollout, row after row: act, step, note what came of it. The same where the envs run and in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from multiverse.core.errors import InvalidActions
from multiverse.core.layout import (
    ACTING,
    ACTION_MASKS,
    ACTIONS,
    ENDED,
    EPISODE_LENGTH,
    EPISODES,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    PRESENT,
    REWARD,
    STATE,
    STEPPING,
    VALUES,
    FieldName,
    Group,
    Layout,
    Path,
)
from multiverse.core.policy import Memory, Policy, Seen
from multiverse.core.views import Array, Views
from multiverse.executors.env_range import EnvRange
from multiverse.executors.hosts import GoOn
from multiverse.executors.step_reply import EXTRAS, Extras
from multiverse.ipc.space_rows import ActionWriter
from multiverse.rollouts.rollout import (
    ACTED_BY,
    BEGUN,
    FRESH,
    LOST,
    ROLLOUT,
    SECONDS,
    SEEDS,
    SIDES,
    TAKEN,
    VERSIONS,
    name_in_block,
)
from multiverse.rollouts.self_play import NOBODY, Opponents, who_plays

Arrays = Mapping[FieldName, Array]
Played = tuple[Array, Array]
"""[envs] the past version that plays in each, and the learner's side."""


class Rows:
    """The slots of one group in one host's envs, in the block and in the rollout, and the policy that acts for them."""

    def __init__(self, arrays: Arrays, layout: Layout, group: Group, env_ids: range, mask: Path | None) -> None:
        """`mask`: the leaf of the observations that says which actions are open, where the group has no masks."""
        slots, self._mask = layout.rows(group, env_ids), mask
        self._number, self._of = layout.groups.index(group), len(layout.groups)
        mine = {name[2:]: rows for name, rows in arrays.items() if name[:2] == (group.name, ROLLOUT)}
        now = {name[1:]: rows[..., slots] if name[1] in (VALUES, ENDED, PRESENT) else rows[slots]
               for name, rows in arrays.items() if name[0] == group.name and name[1] != ROLLOUT}  # fmt: skip
        self._observations = {name[1:]: rows[:, slots] for name, rows in mine.items() if name[0] == "observations"}
        in_block = {p: [name_in_block("", p, final)[1:] for final in (False, True)] for p in self._observations}
        self._shown = [(rows, now[in_block[path][0]]) for path, rows in self._observations.items()]
        self._finals = [
            (mine[("finals", *path)][:, slots], now.get(last, now[name])) for path, (name, last) in in_block.items()
        ]
        envs, states = slice(env_ids.start, env_ids.stop), [name[1:] for name in mine if name[0] == "states"]
        shown = [
            [arrays.get((STATE, kind, *path), arrays[(STATE, OBSERVATIONS, *path)])[envs] for path in states]
            for kind in (OBSERVATIONS, FINAL_OBSERVATIONS)
        ]
        self._shown += [(mine[("states", *path)][:, envs], now) for path, now in zip(states, shown[0])]
        self._final_states = [(mine[("final_states", *path)][:, envs], now) for path, now in zip(states, shown[1])]
        self._kept = {str(name[1]): rows[:, slots] for name, rows in mine.items() if name[0] == "memory"}
        self._shown_before = [mine[(f"previous_{n}",)][:, slots] for n in ("actions", "rewards") if self._kept]
        self._actions, self._noise = mine[("actions",)][:, slots], mine[("noise",)][:, slots]
        self._values, self._ended = mine[("values",)][:, :, slots], mine[("ended",)][:, :, slots]
        self._starts, self._valid = mine[("starts",)][:, slots], mine[("valid",)][:, slots]
        self._masks = mine[("masks",)][:, slots] if ("masks",) in mine else None
        self._acting = mine[("acting",)][:, slots] if ("acting",) in mine else None
        own = Views(replace(layout, num_envs=slots.stop - slots.start), {(group.name, ACTIONS): now[(ACTIONS,)]})
        self._write_actions = ActionWriter(group.action_space, own, (group.name, ACTIONS)).write_all
        self._values_now, self._ended_now, self._present_now = now[(VALUES,)], now[(ENDED,)], now[(PRESENT,)]
        self._masks_now, self._agents = now.get((ACTION_MASKS,)), len(group.agents)
        self._teams = np.repeat(np.arange(len(env_ids)), self._agents) if self._agents > 1 else None

    def ended_now(self) -> Array:
        """[slots] bool: who has ended in the last step of all."""
        return np.asarray(self._ended_now[0] | self._ended_now[1])

    def begin(self, policy: Policy, row: int, opponents: Opponents | None) -> None:
        """What the envs show now is in this row already; from the first one on, what was remembered goes on."""
        self._policy = policy
        self._past = {} if opponents is None else {v: each[self._number] for v, each in opponents.policies.items()}
        before = -1 if row == 0 else row - 1  # the last row of the rollout before, or one that was lost
        self._memory = {name: rows[-1 if row == 0 else row].copy() for name, rows in self._kept.items()}
        self._previous = self._actions[before], self._values[before, REWARD]
        if row == 0 and self._shown_before:  # of who has not acted in the last row it was not that row's
            actions, rewards = self._shown_before
            self._previous = actions[-1].copy(), rewards[-1].copy()

    def act(self, row: int, fresh: Array, resetting: Array | None, played: Played | None = None) -> None:
        """Look, note what is seen and remembered, choose, and tell the envs. `played`: the versions and sides of envs
        in which somebody of the past plays too."""
        starts = fresh
        if self._acting is not None:
            acting = self._acting[row] = self._valid[row] = self._present_now[ACTING]
            starts = np.repeat(fresh, self._agents) | (self._values_now[EPISODE_LENGTH] == 0)
            starts &= acting
        elif resetting is not None:
            self._valid[row] = ~resetting  # guard: a-row-that-begins-an-episode-is-no-step
        self._starts[row] = starts
        memory = self._forget(starts) if np.count_nonzero(starts) else self._memory  # `any` takes three times as long
        for name, rows in self._kept.items():
            rows[row] = memory[name]
        for rows, before in zip(self._shown_before, self._previous):
            rows[row] = before
        seen = {path: rows[row] for path, rows in self._observations.items()}
        masks = None
        if self._masks is not None:
            open_now = self._masks_now if self._mask is None else seen[self._mask]
            masks = self._masks[row] = np.asarray(open_now, np.bool_)
        teams = self._teams
        if teams is not None and self._acting is not None:
            teams = np.where(self._acting[row], teams, -1)  # guard: nobody-looks-at-who-is-not-there
        shown = Seen(seen, starts, masks, *self._previous, teams)
        if played is None:
            actions, after = answer_of(self._policy.act(shown, self._noise[row], memory), memory)
        else:
            who = who_plays(*played, self._agents, self._number, self._of)
            self._valid[row] &= who == NOBODY  # guard: opponents-rows-are-not-learned-from
            actions, after = self._acted_by_several(who, shown, self._noise[row], memory)
        take(actions, self._actions[row])
        self._memory = after if self._acting is None else self._where_acting(row, after, memory)
        self._write_actions(self._policy.for_env(self._actions[row]))

    def _acted_by_several(self, who: Array, seen: Seen, noise: Array, memory: Memory) -> tuple[Array, Memory]:
        """The present policy and past ones, each for its own slots."""
        actions, after = None, {name: kept.copy() for name, kept in memory.items()}
        for version in np.unique(who).tolist():
            mine = np.flatnonzero(who == version)
            policy = self._policy if version == NOBODY else self._past[version]
            before = {name: kept[mine] for name, kept in memory.items()}
            chosen, then = answer_of(policy.act(_some(seen, mine), noise[mine], before), before)
            if actions is None:
                actions = np.zeros((len(who), *chosen.shape[1:]), chosen.dtype)
            actions[mine] = chosen
            for name, kept in then.items():
                after[name][mine] = kept
        assert actions is not None
        return actions, after

    def _forget(self, starts: Array) -> Memory:
        """Where an episode starts nothing is remembered."""
        actions, rewards = (before.copy() for before in self._previous)
        actions[starts], rewards[starts] = 0, 0.0
        self._previous = actions, rewards
        if self._kept:  # copies: what act() returned may be the policy's own
            self._memory = {name: np.array(kept) for name, kept in self._memory.items()}
            for name, first in self._policy.first_memory(len(starts)).items():
                self._memory[name][starts] = first[starts]
        return self._memory

    def _where_acting(self, row: int, after: Memory, before: Memory) -> Memory:
        """Who does not act has seen nothing to remember."""
        assert self._acting is not None
        acting = self._acting[row]
        return {name: np.where(_like(acting, kept), kept, before[name]) for name, kept in after.items()}

    def note(self, row: int) -> Array:
        """What the step came to; returns [slots] bool: who has ended."""
        for rows, now in self._shown:
            rows[row + 1] = now
        self._values[row], self._ended[row] = self._values_now, self._ended_now
        ended: Array = self._ended[row, 0] | self._ended[row, 1]
        if np.count_nonzero(ended):
            for rows, now in self._finals:
                rows[row, ended] = now[ended]
            for rows, now in self._final_states:
                somebody = ended.reshape(-1, self._agents).any(axis=1)
                rows[row, somebody] = now[somebody]  # guard: final-states-are-kept
        if self._acting is None:
            self._previous = self._actions[row], self._values[row, REWARD]
        else:  # what a slot earns until it acts again is for its last action
            acted, (actions, rewards) = self._acting[row], self._previous
            actions = np.where(_like(acted, actions), self._actions[row], actions)
            self._previous = actions, np.where(acted, 0.0, rewards) + self._values[row, REWARD]
        return ended

    def wait(self, row: int | slice, envs: Array) -> None:
        """These envs [envs] bool were not stepped in this row: their episodes are over, and nothing of them goes on."""
        slots = np.repeat(envs, self._agents)
        self._valid[row, slots] = self._starts[row, slots] = False  # guard: who-waits-is-not-learned-from
        self._actions[row, slots], self._values[row, :, slots], self._ended[row, :, slots] = 0, 0.0, False
        if self._acting is not None:
            self._acting[row, slots] = False
        self._memory, before = {name: np.array(kept) for name, kept in self._memory.items()}, self._previous
        self._previous = np.array(before[0]), np.array(before[1])
        for kept in (*self._memory.values(), *self._previous):
            kept[slots] = 0

    def finish(self) -> None:
        for rows, now in self._shown:
            rows[-1] = now
        for name, rows in self._kept.items():
            rows[-1] = self._memory[name]
        for rows, before in zip(self._shown_before, self._previous):
            rows[-1] = before
        if self._acting is not None:
            self._acting[-1] = self._present_now[ACTING]


def _some(seen: Seen, rows: Array) -> Seen:
    """What these rows are shown."""
    columns = (None if column is None else column[rows] for column in seen[1:])
    return Seen({path: leaf[rows] for path, leaf in seen.observations.items()}, *columns)  # type: ignore[arg-type]


def answer_of(answer: Any, before: Memory) -> tuple[Array, Memory]:
    """What a policy's act() has returned, if it is that."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
        raise InvalidActions(f"the policy's act() returned {_kind(answer)}: expected (actions, memory)")
    actions, after = answer
    if before and {n: np.shape(kept) for n, kept in after.items()} != {n: k.shape for n, k in before.items()}:
        told, expected = ({n: np.shape(k) for n, k in memory.items()} for memory in (after, before))
        raise InvalidActions(f"the policy's act() remembers {told}: expected {expected}, as first_memory() says")
    return np.asarray(actions), after


def take(actions: Array, kept: Array) -> None:
    """As the policy has them; what the rollout cannot hold as it is would be learned from as something else."""
    alike = actions.dtype is kept.dtype or np.can_cast(actions.dtype, kept.dtype, "same_kind")
    if actions.shape != kept.shape or not alike:
        raise InvalidActions(  # guard: a-policys-actions-are-as-it-said
            f"the policy's act() returned {actions.dtype} of shape {actions.shape} for {len(kept)} rows, and not "
            f"{kept.dtype} of shape {kept.shape}, as its algorithm's `action` says"
        )
    kept[...] = actions


def _kind(answer: Any) -> str:
    if isinstance(answer, tuple):
        return f"({', '.join(type(part).__name__ for part in answer)})"
    return type(answer).__name__


def _like(mask: Array, rows: Array) -> Array:
    """[slots] with as many axes as these rows have."""
    return mask.reshape(-1, *(1,) * (rows.ndim - 1))


class Steps(Protocol):
    """Whoever steps the envs of some rows."""

    next_step: bool
    """The row after an episode's end begins the next one, and is no step."""

    def step(self, only_some: bool) -> Iterable[int]:
        """One step of each, or of those that are marked, with the actions that are in the block; returns those whose
        step was lost."""

    def failed(self) -> bool:
        """Whether one of them failed for good in that step."""

    def seed_of(self, i: int) -> int | None:
        """What the episode began from that follows on one that has just ended."""


class _Drawn:
    """Who plays the episodes of one host's envs, row by row; drawn where they start."""

    def __init__(self, arrays: Arrays, env_ids: range, opponents: Opponents) -> None:
        mine = slice(env_ids.start, env_ids.stop)
        self._versions, self._sides = arrays[VERSIONS][:, mine], arrays[SIDES][:, mine]
        self._first, self._opponents = env_ids.start, opponents

    def at(self, row: int, fresh: Array, episodes: Array) -> Played | None:
        versions, sides = self._versions[row], self._sides[row]
        versions[...], sides[...] = self._versions[row - 1], self._sides[row - 1]  # before the first: the last one's
        for i in np.flatnonzero(fresh).tolist():
            versions[i], sides[i] = self._opponents.draw(self._first + i, int(episodes[i]))
        return (versions, sides) if (versions != NOBODY).any() else None

    def finish(self, waiting: Array) -> None:
        """Of these envs nobody is in the middle of an episode."""
        self._versions[-1, waiting] = self._sides[-1, waiting] = NOBODY


def fill(
    groups: Sequence[Rows],
    policies: Sequence[Policy],
    arrays: Arrays,
    env_ids: range,
    first: int,
    go_on: GoOn,
    steps: Steps,
    opponents: Opponents | None = None,
) -> bool:
    """Fill the rows from `first` on. False if it was to stop before, or an env has failed.

    Of whole episodes (where the arrays have `TAKEN`), an env whose episode is over waits for the others."""
    drawn, played = None if opponents is None else _Drawn(arrays, env_ids, opponents), None
    mine = slice(env_ids.start, env_ids.stop)
    begun, seeds, lost = (arrays[name][:, mine] for name in (BEGUN, SEEDS, LOST))
    episodes, fresh, act_s, step_s = arrays[EPISODES][mine], arrays[FRESH][mine], 0.0, 0.0
    taken, stepping = (arrays[TAKEN][mine], arrays[STEPPING][mine]) if TAKEN in arrays else (None, None)
    waiting: Array = np.logical_or.reduce(begun[:first] >= 0) if taken is not None else np.zeros(len(env_ids), np.bool_)
    arrays[ACTED_BY][mine] = policies[0].version
    resetting = groups[0].ended_now() if steps.next_step else None
    for rows, policy in zip(groups, policies):
        rows.begin(policy, first, opponents)
    for t in range(first, len(begun)):
        if taken is not None and waiting.all():
            for rows in groups:
                rows.wait(slice(t, None), waiting)
            break
        if not go_on(t):
            return False
        began_at = perf_counter()
        if drawn is not None:
            played = drawn.at(t, fresh, episodes)
        for rows in groups:
            rows.act(t, fresh, resetting, played)
        acted_at = perf_counter()
        before, some_wait = episodes.copy(), False
        if taken is not None and stepping is not None:
            stepping[...], some_wait = ~waiting, bool(waiting.any())
            taken += stepping
        for i in steps.step(some_wait):
            lost[t, i] = True  # guard: lost-rows-are-marked
        if steps.failed():
            return False
        for rows in groups:
            ended = rows.note(t)
        fresh[...] = over = episodes != before
        if some_wait:
            fresh |= waiting
            for rows in groups:
                rows.wait(t, waiting)
        if resetting is not None:
            resetting = over = ended
        if np.count_nonzero(over):
            begun[t, over] = episodes[over] + steps.next_step
            for i in np.flatnonzero(over).tolist():
                seed = steps.seed_of(i)
                seeds[t, i] = -1 if seed is None else seed
        act_s, step_s = act_s + acted_at - began_at, step_s + perf_counter() - acted_at
        if taken is not None:
            waiting |= over
    for rows in groups:
        rows.finish()
    if drawn is not None and taken is not None:
        drawn.finish(waiting)
    arrays[SECONDS][env_ids.start] = act_s, step_s
    return go_on(len(begun))


# -- where the envs are ------------------------------------------------------------------------------------------
class _HostSteps:
    """A host steps its own envs."""

    next_step = False

    def __init__(self, envs: EnvRange, step: Callable[[bool], int]) -> None:
        self._envs, self._step, self.seed_of = envs, step, envs.seed_of
        self._failed = False

    def step(self, only_some: bool) -> Iterable[int]:
        if not self._step(only_some) & EXTRAS:
            return ()
        said = self._envs.step_extras()
        self._failed = bool(said.failures)
        return [env_id - self._envs.config.env_ids.start for env_id in (*said.restarts, *said.truncated)]

    def failed(self) -> bool:
        return self._failed


def fill_rows(
    envs: EnvRange,
    step: Callable[[bool], int],
    go_on: GoOn,
    first: int,
    policies: Sequence[Policy],
    mask: Path | None,
    opponents: Opponents | None = None,
) -> Extras:
    """One host's share of a rollout, from a row on; returns what its envs had to say."""
    views, ids = envs.views, envs.config.env_ids
    if mask not in envs.kept:
        envs.kept[mask] = rows_of(views.arrays, views.layout, ids, mask)
    fill(envs.kept[mask], policies, views.arrays, ids, first, go_on, _HostSteps(envs, step), opponents)
    return envs.take_extras()


def rows_of(arrays: Arrays, layout: Layout, env_ids: range, mask: Path | None) -> list[Rows]:
    """Of every group."""
    return [Rows(arrays, layout, group, env_ids, mask) for group in layout.groups]
