"""Inputs of a central critic (MAPPO): the slot's own observation, and those of its team or the env's state."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.policy import Leaves
from multiverse.learning.normalizers import RunningMeanStd
from multiverse.policies.features import Features
from multiverse.policies.numpy_policies import OBSERVATION_CLIP
from multiverse.rollouts.rollout import Rollout

CriticInputs = tuple[Array, Array, Array]
"""([T, S, size] of all rows, [S, size] after the last row, [ends, size] of final observations)."""


class TeamInputs:
    """The observations of the whole team: the slot's own, then its teammates'."""

    moments: RunningMeanStd | None = None  # observations are normalised as the slots' own

    def __init__(self, size: int, observed: Features, agents: int) -> None:
        """`size`: of one slot's input vector; `observed`: features of the env's observations alone."""
        self._features, self._agents = observed, agents
        self.size = size * agents

    def build(self, rollout: Rollout, own: Array, last: Array, final: Array) -> CriticInputs:
        """Return the critic's inputs, from the slots' own vectors."""
        steps, slots, _ = rollout.ends()
        last = np.where(self._absent(rollout.last, rollout.acting_next), 0, last)
        own = np.where(self._absent(rollout.observations, rollout.acting), 0, own)
        following = np.concatenate([own[1:], last[None]])  # what each row led to
        following[self._episode_over(rollout)] = 0  # of a team whose episode is over only the final observations count
        following[steps, slots] = final
        return self.of_team(own), self.of_team(last), self.of_team(following)[steps, slots]

    def _absent(self, observations: Leaves, acting: Array | None) -> Array:
        """[…, slots, 1] bool: absent agents, which observe zeros. One that waits for its turn is present."""
        if acting is None:
            return np.zeros((1,), np.bool_)
        leaves = {path: rows.reshape(-1, *rows.shape[acting.ndim :]) for path, rows in observations.items()}
        zeros = ~self._features.vector(leaves).any(axis=1)
        return np.asarray(~acting & zeros.reshape(acting.shape))[..., None]

    def _episode_over(self, rollout: Rollout) -> Array:
        """[T, slots] bool: the last agents of the team ended in this row."""
        ended = rollout.terminated | rollout.truncated
        gone = ended if rollout.acting is None else ended | ~rollout.acting
        by_team = (len(gone), -1, self._agents)
        over = gone.reshape(by_team).all(axis=2) & ended.reshape(by_team).any(axis=2)
        return np.repeat(over, self._agents, axis=1)

    def of_team(self, own: Array) -> Array:
        """[…, slots, size] → […, slots, agents × size]: each slot's own, then its teammates', the next ones first."""
        agents, size = self._agents, own.shape[-1]
        in_order = (np.arange(agents)[:, None] + np.arange(agents)) % agents
        by_env = own.reshape(*own.shape[:-2], -1, agents, size)
        return by_env[..., in_order, :].reshape(*own.shape[:-1], agents * size)


class StateInputs:
    """The slot's own observation, then the env's state()."""

    def __init__(
        self, size: int, agents: int, space: spaces.Space[Any] | None, action_space: Any, normalize: bool
    ) -> None:
        instead = "; critic='central' uses the observations of the whole team instead" if agents > 1 else ""
        if space is None:
            raise InvalidRequest(
                f"critic='state': the env has no state() with a `state_space` of numbers, as PettingZoo's{instead}"
            )
        self._features, self._agents = Features(space, action_space), agents
        if self._features.images:
            raise InvalidRequest(
                f"critic='state': the env's state() is an image, {space}, but the value network needs numbers{instead}"
            )
        self.size = size + self._features.size
        self.moments = RunningMeanStd(self._features.size) if normalize else None

    def build(self, rollout: Rollout, own: Array, last: Array, final: Array) -> CriticInputs:
        """Return the critic's inputs, from the slots' own vectors."""
        steps, slots, _ = rollout.ends()
        states, final_states = self._vectors(rollout.states, 2), self._vectors(rollout.final_states, 2)
        last_states = self._vectors(rollout.last_states, 1)
        return (
            np.concatenate([own, np.repeat(states, self._agents, axis=1)], axis=2),
            np.concatenate([last, np.repeat(last_states, self._agents, axis=0)], axis=1),
            np.concatenate([final, final_states[steps, slots // self._agents]], axis=1),
        )

    def _vectors(self, leaves: Leaves, axes: int) -> Array:
        """[…, envs, size] normalised. `axes`: number of leading axes, up to that of the envs."""
        vectors = self._flat(leaves, axes)
        if self.moments is not None:
            shift, scale = self.moments.shift_and_scale()
            vectors = np.clip((vectors - shift) * scale, -OBSERVATION_CLIP, OBSERVATION_CLIP)
        return vectors.reshape(*next(iter(leaves.values())).shape[:axes], -1)

    def _flat(self, leaves: Leaves, axes: int) -> Array:
        """[rows, size]"""
        return self._features.vector({path: rows.reshape(-1, *rows.shape[axes:]) for path, rows in leaves.items()})

    def update_statistics(self, rollout: Rollout) -> None:
        """Update the statistics that normalise states; they stay the same within a rollout."""
        if self.moments is not None:
            valid = rollout.valid.reshape(-1, self._agents).any(axis=1)
            self.moments.update(self._flat(rollout.states, 2)[valid])
