"""Episodes of collected rollouts: those that ended, and the current ones with their actions so far; and access to the
slots of any vector env."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import numpy as np

from multiverse.core.infos import Infos
from multiverse.core.layout import ACTING, EPISODE_LENGTH, EPISODE_RETURN, OBSERVATIONS, PRESENT, VALUES, Array
from multiverse.core.policy import Leaves, Policy
from multiverse.rollouts.rollout import ACTED_BY, BEGUN, FRESH, LOST, SEEDS, Rollout
from multiverse.rollouts.rollout_arrays import RolloutArrays
from multiverse.rollouts.self_play import CURRENT_POLICY, versions_by_slot
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.single import VectorEnv
from multiverse.vector.turns import TurnVectorEnv

RECENT = 100
MOST_ACTIONS = 200_000
"""Largest length of an episode that is restored by replaying its actions."""
Taken = tuple[Array, ...]
"""Actions of one env, [steps, …] of each group of its agents."""


@dataclass(slots=True)
class Episode:
    """An episode that has ended. Not frozen, which takes a third of the time to create hundreds per rollout."""

    env_id: int
    index: int  # number of earlier episodes of this env
    seed: int | None
    returned: float
    length: int
    lost: bool = False  # the env or its worker was lost
    by_agent: dict[str, float] | None = None  # returns of several agents; `returned` is the mean of the learners'
    opponent: int | None = None  # past version that played the other side
    version: int | None = None  # of the policy that acted at its end


@dataclass(slots=True)
class Collected:
    """Episodes, losses and times of one collected rollout."""

    episodes: list[Episode] = field(default_factory=list)
    lost_steps: int = 0
    act_s: float = 0.0
    step_s: float = 0.0

    @classmethod
    def since(cls, began_at: float, episodes: list[Episode], lost_steps: int, act_s: float, step_s: float) -> Collected:
        """Divide the time since then in proportion to the workers' times, which overlap."""
        share, took_s = act_s / (act_s + step_s) if act_s else 0.0, perf_counter() - began_at
        return cls(episodes, lost_steps, took_s * share, took_s * (1 - share))


class RecentEpisodes:
    """Returns and lengths of the last hundred episodes."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=RECENT)
        self._lengths: deque[int] = deque(maxlen=RECENT)
        self._by_agent: dict[str, deque[float]] = {}

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            if not episode.lost:
                self._returns.append(episode.returned)
                self._lengths.append(episode.length)
                for agent, returned in (episode.by_agent or {}).items():
                    self._by_agent.setdefault(agent, deque(maxlen=RECENT)).append(returned)

    def __len__(self) -> int:
        return len(self._returns)

    @property
    def mean_return(self) -> float:
        return sum(self._returns) / len(self._returns) if self._returns else math.nan

    @property
    def mean_length(self) -> float:
        return sum(self._lengths) / len(self._lengths) if self._lengths else math.nan

    @property
    def by_agent(self) -> dict[str, float]:
        """Mean return of each agent, if there are several."""
        return {agent: float(np.mean(returns)) for agent, returns in self._by_agent.items()}

    def state(self) -> dict[str, Any]:
        agents = {"agents": {agent: list(returns) for agent, returns in self._by_agent.items()}}
        return {"returns": list(self._returns), "lengths": list(self._lengths), **(agents if self._by_agent else {})}

    def load(self, state: Mapping[str, Any]) -> None:
        self._returns.extend(map(float, state["returns"]))
        self._lengths.extend(map(int, state["lengths"]))
        for agent, returns in state.get("agents", {}).items():
            self._by_agent[agent] = deque(map(float, returns), maxlen=RECENT)


class ActionLog:
    """Actions of every env's current episode, in the form that envs take, rollout by rollout: one array for each group
    of its agents.

    `mark` remembers this moment without copying; `state` returns the log of that moment, also if the episodes have
    continued or ended since.
    """

    def __init__(self, num_envs: int, groups: int = 1) -> None:
        self._parts: list[list[Taken]] = [[] for _ in range(num_envs)]
        self._lengths = [0] * num_envs
        self._marked: list[tuple[list[Taken], int]] = []
        self._groups = groups
        self.enabled = True  # needed for envs that are restored by replaying their actions
        self.mark()

    def load(self, env_id: int, actions: Taken) -> None:
        """Set the actions of the env's current episode. Empty arrays are dropped, since their shape is not known."""
        self._parts[env_id], self._lengths[env_id] = [actions] if len(actions[0]) else [], len(actions[0])

    def add(self, actions: Sequence[Array], ended: Array) -> None:
        """Add [T, envs, …] actions of each group, and begin again where episodes [T, envs] ended. Actions are copied,
        because rollouts are overwritten. Nothing is added beyond `MOST_ACTIONS`."""
        for env_id in range(len(self._parts)):
            ends = np.flatnonzero(ended[:, env_id])
            if len(ends):
                self.begin(env_id)
            if self._lengths[env_id] <= MOST_ACTIONS:
                first = ends[-1] + 1 if len(ends) else 0
                self._parts[env_id].append(tuple([group[first:, env_id].copy() for group in actions]))
                self._lengths[env_id] += len(ended) - first

    def begin(self, env_id: int) -> None:
        """Begin a new episode, with a new list: the old one may be marked."""
        self._parts[env_id], self._lengths[env_id] = [], 0

    def mark(self) -> None:
        self._marked = [(parts, len(parts)) for parts in self._parts]

    def state(self) -> list[Taken | None]:
        """Actions of each env up to the mark; None where there are too many to replay them."""
        marked = [parts[:count] for parts, count in self._marked]
        return [self._joined(parts) if _length(parts) <= MOST_ACTIONS else None for parts in marked]

    def _joined(self, parts: list[Taken]) -> Taken:
        return tuple(map(np.concatenate, zip(*parts))) if parts else (np.zeros(0),) * self._groups


def _length(parts: list[Taken]) -> int:
    return sum(len(part[0]) for part in parts)


class RunningEpisodes:
    """Reads episodes that ended from the filled rows of rollouts, and logs actions."""

    def __init__(self, arrays: RolloutArrays) -> None:
        self._arrays = arrays
        self.current: list[tuple[int, int | None]] = []  # number and seed of each env's episode
        self.actions = ActionLog(arrays.envs.num_envs, len(arrays.rollouts))

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
        """Players of the episodes that ended there: past versions; [ends, agents] bool: the current policies."""
        if not self._arrays.matches:
            return [None] * len(rows), np.ones((len(rows), agents), np.bool_)
        versions, sides = (matches[rows, envs] for matches in self._arrays.matches)
        sizes = [rollout.agents for rollout in self._arrays.rollouts]
        by_group = [versions_by_slot(versions, sides, n, k, len(sizes)).reshape(-1, n) for k, n in enumerate(sizes)]
        past = [None if version == CURRENT_POLICY else version for version in versions.tolist()]
        return past, np.concatenate(by_group, axis=1) == CURRENT_POLICY

    def log_actions(self, policies: Sequence[Policy]) -> None:
        """Add the actions of the filled rollouts, of all envs, to the log."""
        if not self.actions.enabled:
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


# -- slots of any vector env: of single agents, and of agents that act simultaneously or in turn -----------------------
def is_single(envs: BaseVectorEnv) -> bool:
    """Whether the vector env is for single agents."""
    return isinstance(envs, VectorEnv)


def step_slots(envs: BaseVectorEnv, actions: Sequence[Array], env_ids: Sequence[int]) -> Infos:
    """Step these envs, ascending, with an action for every slot: [envs, agents, …] of each group, [envs, …] of a single
    agent. Actions of slots that do not act are ignored."""
    subset = None if len(env_ids) == envs.num_envs else env_ids
    if isinstance(envs, VectorEnv):
        return envs.step(actions[0], env_ids=subset)[-1]
    by_group = {group.name: rows for group, rows in zip(envs.views.layout.groups, actions)}
    if isinstance(envs, TurnVectorEnv):
        turns = {name: rows[acting_of(envs, name)[env_ids]] for name, rows in by_group.items()}
        return cast(Infos, envs.step(turns, env_ids=subset).infos)
    return cast(Infos, envs.step(by_group, env_ids=subset)[-1])


def acting_of(envs: BaseVectorEnv, group: str) -> Array:
    """[envs, agents] bool: an action is required."""
    acting: Array = envs.views[(group, PRESENT)][ACTING].reshape(envs.num_envs, -1)
    return acting


def shown_by(envs: BaseVectorEnv, group: str, paths: Sequence[tuple[str | int, ...]]) -> Leaves:
    """Current observations of a group's slots, in the block."""
    return {path: envs.views[(group, OBSERVATIONS, *path)] for path in paths}


def sums(envs: BaseVectorEnv) -> tuple[Array, Array]:
    """(returns, lengths) of the current episode of every slot, group after group."""
    values = np.concatenate([envs.views[(group.name, VALUES)] for group in envs.views.layout.groups], axis=1)
    return values[EPISODE_RETURN], values[EPISODE_LENGTH].astype(np.int64)


def by_env(envs: BaseVectorEnv, column: Array) -> list[Array]:
    """A column of all slots, group after group, as [envs, agents] of each group."""
    parts, at = [], 0
    for group in envs.views.layout.groups:
        count = envs.num_envs * len(group.agents)
        parts.append(column[at : at + count].reshape(envs.num_envs, -1))
        at += count
    return parts
