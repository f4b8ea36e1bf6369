"""Self-play: past versions of the policies, which play against the current ones.

The opponent of an episode is drawn at its start from (seed, env, episode), so that it does not depend on executors or
numbers of workers. The current policies play one side, which alternates; all other sides are played by the same past
version. A side is an agent of the only group or, with several groups, a group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array, Group
from multiverse.core.policy import Policy
from multiverse.policies.numpy_policies import NumpyPolicy, loaded_policy

Choice = Literal["uniform", "recent"]
CURRENT_POLICY = -1
"""Version that stands for the current policies: they play all sides."""


@dataclass(frozen=True, slots=True)
class Opponents:
    """Past versions that may be drawn in one rollout, and their policies."""

    seed: int
    share: float  # of the episodes
    choice: Choice
    versions: tuple[int, ...]  # oldest first
    policies: Mapping[int, Sequence[Policy]]  # version → a policy for each group; also of versions drawn before
    sides: int

    def draw(self, env_id: int, episode: int) -> tuple[int, int]:
        """(past version that the current policies play against, or `CURRENT_POLICY`; their own side)."""
        rng = np.random.default_rng((self.seed, 4, env_id, episode))
        against, which = rng.random(2)
        side = (env_id + episode) % self.sides
        if not self.versions or against >= self.share:
            return CURRENT_POLICY, side
        count = len(self.versions)
        # recent: the n-th is n times as likely as the oldest.
        weights = np.arange(1, count + 1) if self.choice == "recent" else np.ones(count)
        number = int(np.searchsorted(np.cumsum(weights) / weights.sum(), which, side="right"))
        return self.versions[min(number, count - 1)], side


def versions_by_slot(versions: Array, sides: Array, agents: int, group: int, groups: int) -> Array:
    """[envs] of each → [slots] version that acts for each slot of this group."""
    if groups > 1:
        return np.repeat(np.where(sides == group, CURRENT_POLICY, versions), agents)
    ours = np.arange(agents) == sides[:, None]
    return np.asarray(np.where(ours, CURRENT_POLICY, versions[:, None])).reshape(-1)


class Pool:
    """Past versions of a run's policies, which are saved and resumed with the run."""

    def __init__(self, groups: Sequence[Group], size: int, share: float, every: int, choice: Choice, seed: int) -> None:
        sides = len(groups[0].agents) if len(groups) == 1 else len(groups)
        if sides < 2:
            raise InvalidRequest(f"opponents={size} needs an env with several agents, and this env has one agent")
        self._groups, self._size, self._every = groups, size, every
        self._share, self._choice, self._seed, self._sides = share, choice, seed, sides
        self._versions: list[int] = []
        self._policies: dict[int, list[NumpyPolicy]] = {}

    def opponents(self) -> Opponents:
        """The opponents of the next rollout."""
        return Opponents(
            seed=self._seed,
            share=self._share,
            choice=self._choice,
            versions=tuple(self._versions),
            policies=dict(self._policies),
            sides=self._sides,
        )

    def updated(self, updates: int, policies: Sequence[Policy], playing: Collection[int]) -> None:
        """Note that an update is complete. Every few updates, the current policies join the pool and the oldest leave
        it; their weights are dropped after their last episode."""
        if updates % self._every == 0:
            self._versions = [*self._versions, updates][-self._size :]
            self._policies[updates] = [_portable(policy) for policy in policies]
        kept = {*self._versions, *playing}
        self._policies = {version: policies for version, policies in self._policies.items() if version in kept}

    def state(self) -> dict[str, Any]:
        return {
            "versions": list(self._versions),
            "policies": {
                str(v): [policy.saved(whole=True) for policy in policies] for v, policies in self._policies.items()
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._versions = [int(version) for version in state["versions"]]
        self._policies = {
            int(version): [
                loaded_policy(policy, group.observation_space, group.action_space)
                for policy, group in zip(saved, self._groups)
            ]
            for version, saved in state["policies"].items()
        }


def _portable(policy: Policy) -> NumpyPolicy:
    portable = policy.portable()
    if not isinstance(portable, NumpyPolicy):
        raise InvalidRequest(
            f"opponents: past versions must act in numpy, and this policy is a {type(policy).__name__}: use a small "
            "network without images, or leave opponents out"
        )
    return portable
