"""Central collection: one batched forward pass per step for all envs, into a rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from multiverse.contracts.failures import BAD_VALUE, RESTARTED
from multiverse.contracts.infos import Infos
from multiverse.contracts.policy import ActingPolicy
from multiverse.contracts.reset_plan import ResetPlan
from multiverse.contracts.views import Array
from multiverse.experience.episodes import ActionLog, Episode
from multiverse.experience.features import Features
from multiverse.experience.rollout import Finals, Rollout, leaf_of
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

    def begin(self, observations: Any) -> None:
        """What the envs show now, after a reset or a replay."""
        self.observations = observations
        self._starts = self._envs.episode_lengths == 0
        self.actions.mark()

    @property
    def starts(self) -> Array:
        """[envs] bool: whose next step is the first of an episode."""
        return self._starts

    def collect(
        self, policy: ActingPolicy, noise: Array, should_stop: Callable[[], bool] = lambda: False
    ) -> Collected | None:
        """Fill the rollout. None if it was asked to stop before the rollout was full: then nothing of it counts."""
        rollout, collected = self._rollout, Collected()
        rollout.finals, rollout.policy_version = Finals(), policy.version
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
        return collected

    def _act(self, policy: ActingPolicy, noise: Array, t: int) -> Any:
        """Look, note what is seen, and choose."""
        rollout, seen = self._rollout, {}
        for path, rows in rollout.observations.items():
            rows[t] = leaf_of(self.observations, path)
            seen[path] = rows[t]
        rollout.starts[t] = self._starts
        masks = self._features.open_actions(seen)
        if masks is not None and rollout.action_masks is not None:
            rollout.action_masks[t] = masks
        rollout.actions[t] = policy.act(seen, noise, self._starts, masks)
        return policy.for_env(rollout.actions[t])

    def _step(self, actions: Any, t: int, collected: Collected) -> None:
        rollout = self._rollout
        self.observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        if self.keeps_actions:
            self.actions.add(actions)
        rollout.rewards[t], rollout.terminated[t], rollout.truncated[t] = rewards, terminated, truncated
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
