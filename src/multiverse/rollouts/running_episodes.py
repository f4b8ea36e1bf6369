"""The episodes that environments are in while rollouts are collected: their numbers, seeds and actions so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multiverse.core.policy import Policy
from multiverse.core.views import Array
from multiverse.rollouts.episodes import ActionLog, Episode
from multiverse.rollouts.rollout import ACTED_BY, BEGUN, FRESH, LOST, SEEDS, Rollout
from multiverse.rollouts.rollout_arrays import RolloutArrays
from multiverse.rollouts.self_play import CURRENT_POLICY, versions_by_slot
from multiverse.rollouts.slots import is_single


class RunningEpisodes:
    """Reads from the filled rows of rollouts which episodes ended there, and logs actions."""

    def __init__(self, arrays: RolloutArrays) -> None:
        self._arrays = arrays
        self.current: list[tuple[int, int | None]] = []  # number and seed of each env's episode
        self.actions = ActionLog(arrays.envs.num_envs, len(arrays.rollouts))
        self.keeps_actions = True  # for envs that are restored by replaying them

    def begin(self) -> None:
        """Begin with the episodes that the envs are in."""
        self.note_current()
        self.actions.mark()

    def note_current(self) -> None:
        self.current = [self._arrays.episode_of(env_id) for env_id in self._arrays.all_envs]

    def begin_again(self, env_ids: Sequence[int]) -> None:
        """Note that these envs have begun another episode between two rollouts."""
        self._arrays.arrays[FRESH][env_ids] = True
        for env_id in env_ids:
            self.current[env_id] = self._arrays.episode_of(env_id)
            self.actions.begin(env_id)

    def ended(self, env_ids: range) -> list[Episode]:
        """Episodes of these envs that ended in the filled rows, in order."""
        arrays, episodes = self._arrays.arrays, []
        rows, envs = np.nonzero(arrays[BEGUN][:, env_ids.start : env_ids.stop] >= 0)
        envs += env_ids.start
        lost, begun, seeds = (arrays[name][rows, envs].tolist() for name in (LOST, BEGUN, SEEDS))
        # [ends, 2, agents] lengths and returns, of each group
        sums = [self._arrays.by_env(values)[rows, 1:, envs] for values in self._arrays.values]
        lengths = np.concatenate([group[:, 0] for group in sums], axis=1).max(axis=1).tolist()
        returns = np.concatenate([group[:, 1] for group in sums], axis=1)
        several = returns.shape[1] > 1
        versions, learners = self._players(rows, envs, returns.shape[1])
        means = [float(row[mine].mean()) for row, mine in zip(returns, learners)] if several else returns[:, 0].tolist()
        agents = [agent for group in self._arrays.groups for agent in group.agents]
        for k, env_id in enumerate(envs.tolist()):
            index, seed = self.current[env_id]
            by_agent, acted_by = dict(zip(agents, returns[k].tolist())) if several else None, arrays[ACTED_BY][env_id]
            # By position: there are hundreds in a rollout.
            episodes.append(
                Episode(env_id, index, seed, means[k], int(lengths[k]), lost[k], by_agent, versions[k], int(acted_by))
            )
            self.current[env_id] = begun[k], None if seeds[k] < 0 else seeds[k]
        return episodes

    def _players(self, rows: Array, envs: Array, agents: int) -> tuple[list[int | None], Array]:
        """Of the episodes that ended there: the past version that played; [ends, agents] bool: the current policies."""
        if not self._arrays.matches:
            return [None] * len(rows), np.ones((len(rows), agents), np.bool_)
        versions, sides = (matches[rows, envs] for matches in self._arrays.matches)
        sizes = [rollout.agents for rollout in self._arrays.rollouts]
        by_group = [versions_by_slot(versions, sides, n, k, len(sizes)).reshape(-1, n) for k, n in enumerate(sizes)]
        past = [None if version == CURRENT_POLICY else version for version in versions.tolist()]
        return past, np.concatenate(by_group, axis=1) == CURRENT_POLICY

    def log_actions(self, policies: Sequence[Policy]) -> None:
        """Add the actions of the filled rollouts, of all envs, to the log."""
        if not self.keeps_actions:
            return
        arrays, ended = self._arrays, self._arrays.arrays[BEGUN] >= 0
        self.actions.add([self._for_env(r, policy) for r, policy in zip(arrays.rollouts, policies)], ended)
        if arrays.taken is not None:
            for env_id in np.flatnonzero(ended.any(axis=0)).tolist():
                self.actions.begin(env_id)  # guard: who-waits-has-taken-nothing

    def _for_env(self, rollout: Rollout, policy: Policy) -> Array:
        """[T, envs, agents, …] actions as the envs take them, [T, envs, …] of a single agent."""
        envs, actions = self._arrays.envs, rollout.actions
        agents = () if is_single(envs) else (rollout.agents,)
        taken = np.asarray(policy.for_env(actions.reshape(-1, *actions.shape[2:])))
        return taken.reshape(len(actions), envs.num_envs, *agents, *taken.shape[1:])
