"""Arrays of the rollouts of a vector env. They lie in the shared block where workers fill them, else in this process.

Every way to collect uses them: rows are begun for a range of envs, filled there or here (`host_rows`), and finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.layout import (
    EPISODE_LENGTH,
    OBSERVATIONS,
    REWARD,
    STATE,
    VALUES,
    Array,
    Field,
    FieldName,
    Group,
    Path,
)
from multiverse.core.policy import Policy
from multiverse.core.reset_plan import ResetPlan
from multiverse.rollouts.rollout import (
    BEGUN,
    FRESH,
    LOST,
    ROLLOUT,
    SECONDS,
    SEEDS,
    SIDES,
    TAKEN,
    VERSIONS,
    Rollout,
    RolloutShape,
    env_fields,
    name_in_block,
    private_fields,
)
from multiverse.rollouts.self_play import CURRENT_POLICY, Opponents
from multiverse.vector.base import BaseVectorEnv

SHORTEST_IN_WORKERS = 8
"""Steps of a rollout below which sending the weights to the workers costs more than it saves."""


def collected_in_workers(policy: Policy, steps: int) -> bool:
    """Whether workers fill rollouts of this policy and length without the caller."""
    return steps >= SHORTEST_IN_WORKERS and policy.portable() is not None


def rollout_fields(
    shapes: Sequence[RolloutShape], num_envs: int, self_play: bool = False, whole_episodes: bool = False
) -> list[Field]:
    """Fields that workers share with the caller (`OpenedEnvs.bind(fields)`). `whole_episodes`: a rollout has one
    episode of every env, or its first rows; environments that finish early wait for the rest."""
    of_envs = env_fields(shapes[0].steps, num_envs, self_play, whole_episodes)
    return [*(field for shape in shapes for field in shape.fields()), *of_envs]


class RolloutRequest(NamedTuple):
    """A rollout to collect."""

    policies: Sequence[Policy]  # one for each group
    rng: np.random.Generator
    should_stop: Callable[[], bool]
    opponents: Opponents | None = None


class RolloutArrays:
    """One rollout for each group of agents, filled again and again."""

    def __init__(
        self,
        envs: BaseVectorEnv,
        shapes: Sequence[RolloutShape],
        mask: Path | None,
        reset_plan: ResetPlan,
        self_play: bool = False,
    ) -> None:
        """`shapes`: one for each group, in the order of the envs' groups. `mask`: the leaf of a single agent's
        observations that has its action masks."""
        self.envs, self.mask, self.reset_plan, self.layout = envs, mask, reset_plan, envs.views.layout
        self.all_envs, self.groups = range(envs.num_envs), self.layout.groups
        arrays: Mapping[FieldName, Array] = envs.views.arrays
        self.in_workers = BEGUN in arrays
        if not self.in_workers:
            arrays = {**arrays, **private_fields(rollout_fields(shapes, envs.num_envs, self_play))}
        self.arrays, self.rollouts = arrays, [shape.rollout(arrays) for shape in shapes]
        self.masks = [rollout.action_masks for rollout in self.rollouts]
        self.values = [arrays[(shape.group, ROLLOUT, "values")] for shape in shapes]
        self._noise = [arrays[(shape.group, ROLLOUT, "noise")] for shape in shapes]
        self.taken = arrays.get(TAKEN)
        self.matches = [arrays[name] for name in (VERSIONS, SIDES)] if self_play else []
        for rows in self.matches:
            rows[...] = CURRENT_POLICY
        # values and starts of episodes before the first row, for rows that are lost with a worker
        self._values_before = [np.array(arrays[(shape.group, VALUES)]) for shape in shapes]
        self._fresh_before = self.starts

    @property
    def starts(self) -> Array:
        """[envs] bool: the next step is the first of an episode."""
        return np.array(self.arrays[FRESH])

    def by_env(self, column: Array) -> Array:
        """[…, slots] → […, envs, agents]"""
        return column.reshape(*column.shape[:-1], self.envs.num_envs, -1)

    def episode_of(self, env_id: int) -> tuple[int, int | None]:
        """Number and seed of the episode that the env is in."""
        episode = int(self.envs.episode_counts[env_id])
        return episode, self.reset_plan(env_id, episode).seed

    # -- filling -------------------------------------------------------------------------------------------------
    def note_starts(self) -> None:
        """Note which envs are at the start of an episode, after they were reset or restored."""
        lengths = [self.by_env(self.arrays[(r.group, VALUES)][EPISODE_LENGTH]) for r in self.rollouts]
        self.arrays[FRESH][...] = np.logical_and.reduce([(length == 0).all(axis=1) for length in lengths])

    def begin_rows(self, request: RolloutRequest, env_ids: range) -> None:
        """Prepare the rows of these envs for a rollout."""
        arrays, mine = self.arrays, slice(env_ids.start, env_ids.stop)
        for rollout, group, noise, policy in zip(self.rollouts, self.groups, self._noise, request.policies):
            slots = self.layout.rows(group, env_ids)
            noise[:, slots] = policy.noise(request.rng, rollout.steps, slots.stop - slots.start)
            rollout.policy_version, rollout.valid[:, slots] = policy.version, True
        arrays[LOST][:, mine], arrays[BEGUN][:, mine], arrays[SECONDS][mine] = False, -1, 0.0
        self._write_observations(0, env_ids)

    def begin_worker_rows(self, request: RolloutRequest, env_ids: range) -> tuple[Any, ...]:
        """`begin_rows` for workers: return the arguments of `fill_rows`, and note what `lose_row` restores."""
        self.begin_rows(request, env_ids)
        for rollout, group, before in zip(self.rollouts, self.groups, self._values_before):
            slots = self.layout.rows(group, env_ids)
            before[:, slots] = self.arrays[(rollout.group, VALUES)][:, slots]
        mine = slice(env_ids.start, env_ids.stop)
        self._fresh_before[mine] = self.arrays[FRESH][mine]
        return [policy.portable() for policy in request.policies], self.mask, request.opponents

    def finish_rows(self, env_ids: range) -> None:
        """Complete the rollouts of these envs, whose rows are filled."""
        lost = self.arrays[LOST][:, env_ids.start : env_ids.stop]
        for rollout, group, values in zip(self.rollouts, self.groups, self.values):
            slots = self.layout.rows(group, env_ids)
            rollout.rewards[:, slots] = values[:, REWARD, slots]
            rollout.valid[:, slots] &= ~_by_slot(lost, group)  # guard: lost-rows-are-not-valid

    def lose_row(self, env_ids: range, row: int) -> None:
        """The worker of these envs was lost in this row and replaced: their episodes end there, without that step."""
        arrays, mine = self.arrays, slice(env_ids.start, env_ids.stop)
        fresh = arrays[BEGUN][row - 1, mine] >= 0 if row else self._fresh_before[mine]
        waiting = np.zeros(len(env_ids), np.bool_)
        if self.taken is not None:
            waiting = np.logical_or.reduce(arrays[BEGUN][:row, mine] >= 0)
            arrays[BEGUN][row:, mine] = -1
        for rollout, group, all_values, before in zip(self.rollouts, self.groups, self.values, self._values_before):
            slots, over = self.layout.rows(group, env_ids), _by_slot(fresh, group)
            values = all_values[:, :, slots]
            values[row] = values[row - 1] if row else before[:, slots]
            values[row][:, over] = 0.0  # a new episode, without any step
            values[row, REWARD] = 0.0
            rollout.starts[row, slots] = over
            rollout.terminated[row, slots] = False
            rollout.truncated[row, slots] = rollout.valid[row, slots] = ~_by_slot(waiting, group)
            for path, rows in rollout.observations.items():
                rollout.finals[path][row, slots] = rows[row, slots]
            for path, rows in rollout.states.items():
                rollout.final_states[path][row, mine] = rows[row, mine]
        arrays[FRESH][mine] = True
        for env_id, had_ended in zip(env_ids, waiting.tolist()):
            at, (episode, seed) = row, self.episode_of(env_id)
            if had_ended:
                at = int(np.argmax(arrays[BEGUN][:, env_id] >= 0))
                arrays[LOST][row, env_id] = False  # guard: who-waited-has-lost-nothing
            if self.taken is not None:
                self.taken[env_id] = at + 1
            arrays[BEGUN][at, env_id], arrays[SEEDS][at, env_id] = episode, -1 if seed is None else seed
        self._write_observations(row + 1, env_ids)

    def _write_observations(self, row: int, env_ids: range) -> None:
        """Copy the current observations and states of these envs into this row."""
        arrays, mine = self.arrays, slice(env_ids.start, env_ids.stop)
        for rollout, group in zip(self.rollouts, self.groups):
            slots = self.layout.rows(group, env_ids)
            for path in rollout.observations:
                current = arrays[name_in_block(rollout.group, path)]
                arrays[(rollout.group, ROLLOUT, "observations", *path)][row, slots] = current[slots]
            for path in rollout.states:
                current = arrays[(STATE, OBSERVATIONS, *path)]
                arrays[(rollout.group, ROLLOUT, "states", *path)][row, mine] = current[mine]

    # -- from one rollout to the next ----------------------------------------------------------------------------
    @property
    def playing(self) -> set[int]:
        """Past versions of the policies that are in the middle of an episode."""
        return set(self.matches[0][-1].tolist()) if self.matches else set()

    def memory(self) -> dict[str, Any]:
        """Memory of the policies, and their last actions and rewards, by group: the next rollout begins with them."""
        matches = {"played": np.array([rows[-1] for rows in self.matches])} if self.matches else {}
        return matches | {
            rollout.group: {
                "memory": {name: kept.copy() for name, kept in rollout.last_memory.items()},
                **{name: column.copy() for name, column in zip(("actions", "rewards"), _last(rollout, values))},
            }
            for rollout, values in zip(self.rollouts, self.values)
        }

    def load_memory(self, state: Mapping[str, Any]) -> None:
        """Restore what `memory` returned."""
        if self.matches:
            for rows, last in zip(self.matches, state["played"]):
                rows[-1] = last
        for rollout, values in zip(self.rollouts, self.values):
            mine = state[rollout.group]
            actions, rewards = _last(rollout, values)
            actions[...], rewards[...] = mine["actions"], mine["rewards"]
            for name, kept in rollout.last_memory.items():
                kept[...] = mine["memory"][name]


def _last(rollout: Rollout, values: Array) -> tuple[Array, Array]:
    """Actions and rewards that the policy is given as the previous ones in the first row of the next rollout."""
    return rollout.last_previous or (rollout.actions[-1], values[-1, REWARD])


def _by_slot(envs: Array, group: Group) -> Array:
    """[…, envs] → […, slots]"""
    return np.repeat(envs, len(group.agents), axis=-1)
