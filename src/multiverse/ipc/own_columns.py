"""A host's private copy of the small columns: rewards, ends, and the running sums of each episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.env import SlotRow
from multiverse.core.layout import (
    ACTING,
    ACTION_MASKS,
    ALIVE,
    COUNTS,
    EARLIER_STEPS,
    ENDED,
    EPISODE_LENGTH,
    OBSERVATIONS,
    PRESENT,
    TRUNCATED,
    VALUES,
    Array,
    Group,
    Views,
)
from multiverse.ipc.space_rows import row_writer

_add = np.add


class OwnColumns:
    """One group's small columns for the rows of one host, published as a whole, never cell by cell.

    If two hosts write neighbouring cells of one cache line, it moves between their cores at every store. Each host
    therefore writes private memory and copies it to the block once per step. `env` below is a position in the host's
    range; an env with several agents in the group has a row for each.
    """

    def __init__(self, views: Views, group: Group, env_ids: range) -> None:
        self._views, self._group = views, group
        agents = len(group.agents)
        rows = views.layout.rows(group, env_ids)
        self._first = rows.start
        masks = views.arrays.get((group.name, ACTION_MASKS))
        self._masks = None if masks is None else masks[rows]
        shared = [views[(group.name, name)][:, rows] for name in (VALUES, ENDED, PRESENT)]
        self._shared_values, self._shared_ended, self._shared_present = shared
        count = rows.stop - rows.start
        # Added to (length, return) at every step, in one call.
        self._added = np.zeros((2, count))
        self._counts, self.rewards = self._added
        self._counts[...] = 1.0
        self._shared_rewards, self.lengths, self.returns = self._shared_values
        self._sums = self._shared_values[EPISODE_LENGTH:]
        self.ended = np.zeros((2, count), np.bool_)
        self.present = np.zeros((2, count), np.bool_)
        self._may_be_absent = group.may_be_absent
        # A number if an env has one row, because a slice takes twice as long.
        self._of = [i if agents == 1 else slice(i * agents, (i + 1) * agents) for i in range(len(env_ids))]

    def rows_of(self, env_id: int) -> list[SlotRow]:
        """The rows of one env, one per agent of the group."""
        group, rows = self._group, []
        terminated, truncated = [memoryview(column) for column in self.ended]
        alive, acting = [memoryview(column) for column in self.present]
        masks = self._views.arrays.get((group.name, ACTION_MASKS))
        for agent in range(len(group.agents)):
            slot = env_id * len(group.agents) + agent
            write = row_writer(group.observation_space, self._views, (group.name, OBSERVATIONS), slot)
            plain = isinstance(group.observation_space, spaces.Box) and group.observation_space.shape
            target = self._views[(group.name, OBSERVATIONS)][slot] if plain else None
            mask = None if masks is None else masks[slot]
            rows.append(
                SlotRow(
                    slot=slot - self._first,
                    write_observation=write,
                    plain_target=target,
                    action_mask=mask,
                    rewards=memoryview(self.rewards),
                    terminated=terminated,
                    truncated=truncated,
                    alive=alive,
                    acting=acting,
                )
            )
        return rows

    def add_step(self) -> None:
        """Record a step of every env."""
        _add(self._sums, self._added, self._sums)
        self._shared_rewards[...] = self.rewards
        if self._may_be_absent:
            self._counts[...] = self.present[ACTING]  # the agents that take the next step

    def add_step_of(self, envs: list[int]) -> None:
        """Record a step of some envs."""
        if self._may_be_absent:
            for env in envs:
                self._sums[:, self._of[env]] += self._added[:, self._of[env]]
        else:
            self._sums[:, envs] += self._added[:, envs]
        self._shared_rewards[...] = self.rewards
        if self._may_be_absent:
            self._counts[...] = self.present[ACTING]

    def begin(self, env: int) -> None:
        """Begin a new episode, in which no agent has ended."""
        rows = self._of[env]
        self.ended[:, rows] = False
        self.lengths[rows] = self.returns[rows] = 0.0
        if self._may_be_absent:
            self._counts[rows] = self.present[ACTING, rows]

    def forget_length(self, env: int) -> None:
        self.lengths[self._of[env]] = 0.0

    def length(self, env: int) -> int:
        rows = self._of[env]
        return int(self.lengths[rows] if isinstance(rows, int) else np.max(self.lengths[rows]))

    def agents_asked(self, env: int) -> list[tuple[str, bool]]:
        """(agent, whether an action was expected from it), as last published."""
        acting: list[bool] = np.atleast_1d(self._shared_present[ACTING, self._of[env]]).tolist()
        return list(zip(self._group.agents, acting))

    def cut(self, env: int) -> None:
        """Truncate the episode of all agents that were present, with reward 0."""
        rows = self._of[env]
        self.rewards[rows] = 0.0  # guard: a-lost-step-has-no-reward
        self.ended[:, rows] = False
        self.ended[TRUNCATED, rows] = self._shared_present[ALIVE, rows]
        self.lengths[rows] -= self._counts[rows]  # the lost step does not count
        if self._may_be_absent:
            self.present[:, rows] = False  # until the next episode begins
        if self._masks is not None:
            self._masks[rows] = 1  # as for all absent agents

    def take_over(self) -> None:
        """Take over the rows of a lost host: cut every episode."""
        self.ended[TRUNCATED] = self._shared_present[ALIVE]
        self.rewards[...] = self._shared_rewards[...] = 0.0
        if self._masks is not None:
            self._masks[...] = 1  # guard: the-dead-forbid-nothing

    def forget_reward(self, env: int) -> None:
        rows = self._of[env]
        self.rewards[rows] = self._shared_rewards[rows] = 0.0

    def publish_ends(self) -> None:
        """Copy the ends, and which agents are present, to the block."""
        self._shared_ended[...] = self.ended
        self._shared_present[...] = self.present


class RangeColumns:
    """The small columns of every group, for the envs of one host."""

    def __init__(self, views: Views, env_ids: range) -> None:
        self._envs = len(env_ids)
        self.groups = [OwnColumns(views, group, env_ids) for group in views.layout.groups]
        self.several = any(group.may_be_absent for group in views.layout.groups)
        self._steps = np.zeros(self._envs, np.int64)  # per env, because no agent need have taken all of them
        self._earlier_steps = views[COUNTS][EARLIER_STEPS, env_ids.start : env_ids.stop]

    def rows_of(self, env_id: int) -> list[SlotRow]:
        """The rows of one env, one per agent, in the order of the groups."""
        return [row for own in self.groups for row in own.rows_of(env_id)]

    def add_step(self) -> None:
        for own in self.groups:
            own.add_step()
        if self.several:
            self._steps += 1

    def add_step_of(self, envs: list[int]) -> None:
        for own in self.groups:
            own.add_step_of(envs)
        if self.several:
            self._steps[envs] += 1

    def length(self, env: int) -> int:
        """Number of steps of the env in its current episode."""
        return int(self._steps[env]) if self.several else self.groups[0].length(env)

    def all_steps(self, env: int) -> int:
        """Number of steps of the env in all its episodes."""
        return int(self._earlier_steps[env]) + self.length(env)

    def by_agent(self, env: int, actions: Sequence[Any]) -> dict[str, Any]:
        """An env's actions as it received them: agent → action, of the agents that acted."""
        agents = [pair for own in self.groups for pair in own.agents_asked(env)]
        return {agent: action for (agent, acted), action in zip(agents, actions) if acted}

    def begin(self, env: int) -> None:
        self._earlier_steps[env] += self.length(env)
        self._steps[env] = 0
        for own in self.groups:
            own.begin(env)

    def forget_length(self, env: int) -> None:
        self._steps[env] = 0
        for own in self.groups:
            own.forget_length(env)

    def cut(self, env: int) -> None:
        for own in self.groups:
            own.cut(env)

    def forget_reward(self, env: int) -> None:
        for own in self.groups:
            own.forget_reward(env)

    def take_over(self) -> None:
        for own in self.groups:
            own.take_over()

    def publish_ends(self) -> None:
        for own in self.groups:
            own.publish_ends()

    @property
    def any_ended(self) -> bool:
        """Whether any agent of any env has ended in its env's last step."""
        return any(np.count_nonzero(own.ended) for own in self.groups)  # ten times as fast as numpy's any()

    def envs_with_ends(self) -> Array:
        """[envs] bool: the envs in whose last step an agent has ended."""
        by_group = [own.ended.any(axis=0).reshape(self._envs, -1).any(axis=1) for own in self.groups]
        return np.asarray(np.logical_or.reduce(by_group))
