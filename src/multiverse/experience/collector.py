"""Central collection: one batched forward pass per step for all envs, into a rollout; and what became of episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from multiverse.contracts.failures import BAD_VALUE, RESTARTED
from multiverse.contracts.infos import Infos
from multiverse.contracts.policy import Memory, Policy, Seen
from multiverse.contracts.reset_plan import ResetPlan
from multiverse.contracts.views import Array
from multiverse.experience.features import Features
from multiverse.experience.rollout import FinalObservations, Rollout, leaf_of
from multiverse.vector.single import VectorEnv


@dataclass(slots=True)
class Collected:
    """What one rollout brought beside its rows."""

    episodes: list[Episode] = field(default_factory=list)
    lost_steps: int = 0
    act_s: float = 0.0
    step_s: float = 0.0


class Collector:
    """Steps a vector env (autoreset `same_step`) with a policy, rollout after rollout, episodes running on between."""

    def __init__(self, envs: VectorEnv, rollout: Rollout, features: Features, reset_plan: ResetPlan) -> None:
        self._envs, self._rollout, self._features, self._plan = envs, rollout, features, reset_plan
        self.actions = ActionLog(envs.num_envs)
        self.keeps_actions = True  # for envs that are brought back by playing them again
        self.observations: Any = None
        self._starts = np.ones(envs.num_envs, np.bool_)
        self.memory: Memory = {}  # what the policy remembers of every slot
        self._previous_actions = np.zeros_like(rollout.actions[0])
        self._previous_rewards = np.zeros_like(rollout.rewards[0])

    def begin(self, observations: Any) -> None:
        """What the envs show now, after a reset or a replay."""
        self.observations = observations
        self._starts = self._envs.episode_lengths == 0
        self.actions.mark()

    def begin_again(self, env_ids: Sequence[int], observations: Any) -> None:
        """These envs have begun another episode between two rollouts; what all of them show now."""
        self.observations = observations
        self._starts[env_ids] = True
        for env_id in env_ids:
            self.actions.begin(env_id)

    @property
    def starts(self) -> Array:
        """[envs] bool: whose next step is the first of an episode."""
        return self._starts

    def collect(
        self, policy: Policy, noise: Array, should_stop: Callable[[], bool] = lambda: False
    ) -> Collected | None:
        """Fill the rollout. None if it was asked to stop before the rollout was full: then nothing of it counts."""
        rollout, collected = self._rollout, Collected()
        rollout.finals, rollout.policy_version = FinalObservations(), policy.version
        rollout.valid[...] = True
        for t in range(rollout.steps):
            if should_stop():
                return None
            began_at = perf_counter()
            actions = self._act(policy, noise[t], t)
            acted_at = perf_counter()
            self._step(actions, t, collected)
            collected.act_s += acted_at - began_at
            collected.step_s += perf_counter() - acted_at
        for path, rows in rollout.last.items():
            rows[...] = leaf_of(self.observations, path)
        rollout.last_memory = {name: kept.copy() for name, kept in self.memory.items()}
        return collected

    def _act(self, policy: Policy, noise: Array, t: int) -> Any:
        """Look, note what is seen and remembered, and choose."""
        rollout, seen = self._rollout, {}
        for path, rows in rollout.observations.items():
            rows[t] = leaf_of(self.observations, path)
            seen[path] = rows[t]
        self._forget(policy)
        for name, kept in self.memory.items():
            rollout.memory[name][t] = kept
        rollout.starts[t] = self._starts
        masks = self._features.open_actions(seen)
        if masks is not None and rollout.action_masks is not None:
            rollout.action_masks[t] = masks
        shown = Seen(seen, self._starts, masks, self._previous_actions, self._previous_rewards)
        rollout.actions[t], self.memory = policy.act(shown, noise, self.memory)
        self._previous_actions = rollout.actions[t].copy()
        return policy.for_env(rollout.actions[t])

    def _forget(self, policy: Policy) -> None:
        """Where an episode starts nothing is remembered."""
        starts = self._starts
        if not starts.any():
            return
        self._previous_actions[starts], self._previous_rewards[starts] = 0, 0.0
        first = policy.first_memory(len(starts))
        if not self.memory and first:
            self.memory = {name: kept.copy() for name, kept in first.items()}
            steps = self._rollout.steps
            self._rollout.memory = {n: np.zeros((steps, *kept.shape), kept.dtype) for n, kept in first.items()}
        for name, kept in self.memory.items():
            kept[starts] = first[name][starts]

    def _step(self, actions: Any, t: int, collected: Collected) -> None:
        rollout = self._rollout
        self.observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        if self.keeps_actions:
            self.actions.add(actions)
        rollout.rewards[t], rollout.terminated[t], rollout.truncated[t] = rewards, terminated, truncated
        self._previous_rewards = rollout.rewards[t].copy()
        self._starts = ended = terminated | truncated
        if ended.any():
            self._end(np.flatnonzero(ended).tolist(), t, infos, collected)

    def _end(self, envs: list[int], t: int, infos: Infos, collected: Collected) -> None:
        """Episodes that ended in this step; a step that was lost is marked, so that nobody learns from it."""
        returns, lengths, counts = self._envs.episode_returns, self._envs.episode_lengths, self._envs.episode_counts
        lost = _where(infos, RESTARTED, len(returns)) | _where(infos, BAD_VALUE, len(returns))
        for env in envs:
            index = int(counts[env]) - 1  # the next one has begun already
            seed = self._plan(env, index).seed
            collected.episodes.append(
                Episode(env, index, seed, float(returns[env]), int(lengths[env]), bool(lost[env]))
            )
            self._rollout.finals.add(t, env, infos["final_obs"][env])
            self.actions.begin(env)
        if lost.any():
            self._rollout.valid[t] &= ~lost  # guard: lost-rows-are-not-valid
            collected.lost_steps += int(lost.sum())


def _where(infos: Infos, key: str, count: int) -> Array:
    found = infos.get(f"_{key}")
    return np.zeros(count, np.bool_) if found is None else np.asarray(found)


RECENT = 100
MOST_ACTIONS = 200_000
"""Of one episode: what is longer is not brought back by playing it again."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One that has ended."""

    env_id: int
    index: int  # how many this env had before it
    seed: int | None
    returned: float
    length: int
    lost: bool = False  # the env or its worker was lost in it


class RecentEpisodes:
    """Returns and lengths of the last hundred."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=RECENT)
        self._lengths: deque[int] = deque(maxlen=RECENT)

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            if not episode.lost:
                self._returns.append(episode.returned)
                self._lengths.append(episode.length)

    def __len__(self) -> int:
        return len(self._returns)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self._returns)) if self._returns else float("nan")

    @property
    def mean_length(self) -> float:
        return float(np.mean(self._lengths)) if self._lengths else float("nan")

    def state(self) -> dict[str, Any]:
        return {"returns": list(self._returns), "lengths": list(self._lengths)}

    def load(self, state: dict[str, Any]) -> None:
        self._returns.extend(map(float, state["returns"]))
        self._lengths.extend(map(int, state["lengths"]))


class ActionLog:
    """The actions of every env's current episode, as the env took them.

    `mark` remembers this moment without copying anything; `state` gives the log as it was then, also when the
    episodes have gone on or ended since.
    """

    def __init__(self, num_envs: int) -> None:
        self._actions: list[list[Any]] = [[] for _ in range(num_envs)]
        self._marked: list[tuple[list[Any], int]] = []
        self.mark()

    def load(self, env_id: int, actions: Array) -> None:
        """The env is in the middle of an episode and has taken these."""
        self._actions[env_id] = list(actions)

    def add(self, actions: Sequence[Any] | Array) -> None:
        """One step of every env; copied, for the caller's array may be filled again. A log that has grown too long to
        be of use grows no further."""
        for log, action in zip(self._actions, np.array(actions)):
            if len(log) <= MOST_ACTIONS:
                log.append(action)

    def begin(self, env_id: int) -> None:
        """A new episode. The old list may be marked, so it is left as it is."""
        self._actions[env_id] = []

    def mark(self) -> None:
        self._marked = [(log, len(log)) for log in self._actions]

    def state(self) -> list[Array | None]:
        """Per env, its actions up to the mark; None where there are too many to play them again."""
        return [np.array(log[:count]) if count <= MOST_ACTIONS else None for log, count in self._marked]
