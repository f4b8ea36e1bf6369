"""Filling the rows of one host's envs: act, step, record the outcome. The same code in workers and in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from multiverse.core.layout import EPISODES, STEPPING, Array, Layout, Path
from multiverse.core.policy import Policy
from multiverse.executors.env_range import EnvRange
from multiverse.executors.hosts import GoOn
from multiverse.executors.step_reply import EXTRAS, Extras
from multiverse.rollouts.rollout import ACTED_BY, BEGUN, FRESH, LOST, SECONDS, SEEDS, SIDES, TAKEN, VERSIONS
from multiverse.rollouts.rows import Arrays, Matches, Rows
from multiverse.rollouts.self_play import CURRENT_POLICY, Opponents


class EnvSteps(Protocol):
    """Steps the envs of one host."""

    next_step: bool
    """The row after an episode's end begins the next episode, and is not a step."""

    def step(self, only_marked: bool) -> Iterable[int]:
        """Step every env, or those that are marked, with the actions in the block; return those whose step was lost."""

    def failed(self) -> bool:
        """Whether an env failed for good in that step."""

    def seed_of(self, i: int) -> int | None:
        """Seed of the episode that follows the one that has just ended."""


class HostRows:
    """Rows of one host's envs, of all groups."""

    def __init__(self, arrays: Arrays, layout: Layout, env_ids: range, mask: Path | None) -> None:
        """`mask`: see `Rows`."""
        self._arrays, self._env_ids = arrays, env_ids
        self._groups = [Rows(arrays, layout, group, env_ids, mask) for group in layout.groups]

    def fill(
        self,
        policies: Sequence[Policy],
        first: int,
        go_on: GoOn,
        steps: EnvSteps,
        opponents: Opponents | None = None,
    ) -> bool:
        """Fill the rows from `first` on. False if `go_on` ended it early, or an env has failed.

        Of whole episodes (where the arrays have `TAKEN`), an env whose episode is over waits for the others."""
        arrays, env_ids, groups = self._arrays, self._env_ids, self._groups
        draw, matches = None if opponents is None else _OpponentDraw(arrays, env_ids, opponents), None
        mine = slice(env_ids.start, env_ids.stop)
        begun, seeds, lost = (arrays[name][:, mine] for name in (BEGUN, SEEDS, LOST))
        episodes, fresh, act_s, step_s = arrays[EPISODES][mine], arrays[FRESH][mine], 0.0, 0.0
        taken, stepping = (arrays[TAKEN][mine], arrays[STEPPING][mine]) if TAKEN in arrays else (None, None)
        waiting: Array = np.zeros(len(env_ids), np.bool_)
        if taken is not None:
            waiting = np.logical_or.reduce(begun[:first] >= 0)
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
            if draw is not None:
                matches = draw.matches(t, fresh, episodes)
            for rows in groups:
                rows.act(t, fresh, resetting, matches)
            acted_at = perf_counter()
            before, any_waits = episodes.copy(), False
            if taken is not None and stepping is not None:
                stepping[...], any_waits = ~waiting, bool(waiting.any())
                taken += stepping
            for i in steps.step(any_waits):
                lost[t, i] = True  # guard: lost-rows-are-marked
            if steps.failed():
                return False
            for rows in groups:
                ended = rows.record(t)
            fresh[...] = over = episodes != before
            if any_waits:
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
        if draw is not None and taken is not None:
            draw.end_matches(waiting)
        arrays[SECONDS][env_ids.start] = act_s, step_s
        return go_on(len(begun))


class _OpponentDraw:
    """Opponents in the episodes of one host's envs, row by row; drawn where episodes start."""

    def __init__(self, arrays: Arrays, env_ids: range, opponents: Opponents) -> None:
        mine = slice(env_ids.start, env_ids.stop)
        self._versions, self._sides = arrays[VERSIONS][:, mine], arrays[SIDES][:, mine]
        self._first, self._opponents = env_ids.start, opponents

    def matches(self, row: int, fresh: Array, episodes: Array) -> Matches | None:
        """Versions and sides in this row; None if only the current policies play."""
        versions, sides = self._versions[row], self._sides[row]
        versions[...], sides[...] = self._versions[row - 1], self._sides[row - 1]  # before row 0: the last row
        for i in np.flatnonzero(fresh).tolist():
            versions[i], sides[i] = self._opponents.draw(self._first + i, int(episodes[i]))
        return (versions, sides) if (versions != CURRENT_POLICY).any() else None

    def end_matches(self, waiting: Array) -> None:
        """These envs are not in the middle of an episode."""
        self._versions[-1, waiting] = self._sides[-1, waiting] = CURRENT_POLICY


class _HostSteps:
    """Steps a host's own envs."""

    next_step = False

    def __init__(self, envs: EnvRange, step: Callable[[bool], int]) -> None:
        self._envs, self._step, self.seed_of = envs, step, envs.episodes.seed_of
        self._failed = False

    def step(self, only_marked: bool) -> Iterable[int]:
        if not self._step(only_marked) & EXTRAS:
            return ()
        extras = self._envs.step_extras()
        self._failed = bool(extras.failures)
        return [env_id - self._envs.config.env_ids.start for env_id in (*extras.restarts, *extras.truncated)]

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
    """Fill one host's rows of a rollout from row `first` on; return the extras of its envs' steps."""
    if mask not in envs.kept:
        envs.kept[mask] = HostRows(envs.views.arrays, envs.views.layout, envs.config.env_ids, mask)
    envs.kept[mask].fill(policies, first, go_on, _HostSteps(envs, step), opponents)
    return envs.take_extras()
