"""Policy of agents with attention over the agents in the same env, in numpy.

A team has as many places as the group has agents, whether they are present or not. So matrix products have equal
shapes, and the actions of a team do not depend on other teams, to the last bit, unless a team is larger than the group.
(See `numpy_policies` for the reason.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Array
from multiverse.core.policy import MASKED_LOGIT, Memory, Policy, Seen
from multiverse.policies.cells import in_blocks
from multiverse.policies.features import SCALED_BYTES, Features
from multiverse.policies.heads import DiscreteHead, head_for
from multiverse.policies.numpy_policies import normalized, saved_features

LAYERS = ("embed", "queries", "keys", "values", "out", "hidden", "head")
"""Dense layers, in this order; `embed` and `hidden` are followed by a LeakyReLU."""
LEAK = np.float32(0.01)
MOST_AGENTS = 4096


class TeamPolicy:
    """Embeds each agent's features, attends to its team, and chooses one of its actions. Has no memory."""

    def __init__(
        self,
        features: Features,
        layers: Mapping[str, tuple[Array, Array]],
        num_heads: int,
        agents: int,
        head: DiscreteHead,
        version: int,
        shift_and_scale: tuple[Array, Array] | None = None,
    ) -> None:
        """`layers`: (weights [in, out], bias) of each of `LAYERS`; `agents`: of one team."""
        self._features, self._heads, self._agents, self._head = features, num_heads, agents, head
        self._layers = {name: tuple(np.ascontiguousarray(part) for part in layers[name]) for name in LAYERS}
        self.version, self._shift_and_scale = version, shift_and_scale
        self._latest: tuple[Any, Places] | None = None

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self._head.noise(rng, steps, rows)

    def first_memory(self, rows: int) -> Memory:
        return {}

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        x = normalized(self._features.vector(seen.observations), self._shift_and_scale)
        return self._head.choose(self.output(x, seen.teams), noise, seen.masks), memory

    def for_env(self, actions: Array) -> Any:
        return self._head.for_env(actions)

    def portable(self) -> Policy:
        return self

    def output(self, x: Array, teams: Array | None) -> Array:
        """[rows, actions] of features [rows, size]; 0 for rows without a team."""
        at = self._places(len(x), teams)
        output = np.zeros((len(x), self._head.count), np.float32)
        if not len(at.rows):
            return output
        if at.present is None:
            together = x[at.rows].reshape(*at.shape, -1)
        else:
            together = np.zeros((*at.shape, x.shape[1]), np.float32)
            together[at.team, at.place] = x[at.rows]
        logits = self._logits(together, at.present)
        output[at.rows] = logits.reshape(len(at.rows), -1) if at.present is None else logits[at.team, at.place]
        return output

    def _places(self, rows: int, teams: Array | None) -> Places:
        """Places of the rows, computed again when their teams change."""
        key = rows, None if teams is None else teams.tobytes()
        latest = self._latest  # read once: worker threads share a policy
        if latest is None or latest[0] != key:
            self._latest = latest = key, places_of(np.arange(rows) if teams is None else teams, self._agents)
        return latest[1]

    def _logits(self, x: Array, present: Array | None) -> Array:
        """[teams, places, actions]; `present` is None if every place is taken."""
        teams, places, _ = x.shape
        own = _leaky(self._dense("embed", x))
        queries, keys, values = (
            self._dense(name, own).reshape(teams, places, self._heads, -1).swapaxes(1, 2)
            for name in ("queries", "keys", "values")
        )
        scores = np.matmul(queries, keys.swapaxes(2, 3))
        scores *= np.float32(1 / math.sqrt(queries.shape[-1]))
        if present is not None:
            scores = np.where(present[:, None, None, :], scores, np.float32(MASKED_LOGIT))
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        attended = self._dense("out", np.matmul(weights, values).swapaxes(1, 2).reshape(teams, places, -1))
        attended += own
        return self._dense("head", _leaky(self._dense("hidden", attended)))

    def _dense(self, name: str, x: Array) -> Array:
        """[teams, places, …] in blocks of rows, as in dense policies: one block per team is slower for wide layers."""
        weights, bias = self._layers[name]
        blocks: Array = np.matmul(in_blocks(x.reshape(-1, x.shape[-1])), weights)
        blocks += bias
        return blocks.reshape(-1, blocks.shape[2])[: x.shape[0] * x.shape[1]].reshape(*x.shape[:2], -1)

    # -- in a run ------------------------------------------------------------------------------------------------
    def saved(self) -> dict[str, Any]:
        """Contents for a run: `loaded_team_policy` makes an equal policy of them and the run's spaces."""
        saved: dict[str, Any] = {
            "kind": "attention",
            "version": self.version,
            "num_heads": self._heads,
            "agents": self._agents,
            "weights": {name: weights for name, (weights, _) in self._layers.items()},
            "biases": {name: bias for name, (_, bias) in self._layers.items()},
        }
        if self._shift_and_scale is not None:
            saved["shift"], saved["scale"] = self._shift_and_scale
        return {**saved, **saved_features(self._features)}


def loaded_team_policy(
    saved: Mapping[str, Any], observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> TeamPolicy:
    """The policy of a run; ValueError if its parts do not fit together."""
    layers = {name: (np.asarray(saved["weights"][name]), np.asarray(saved["biases"][name])) for name in LAYERS}
    frozen = (np.asarray(saved["shift"]), np.asarray(saved["scale"])) if "shift" in saved else None
    scaled = bool(saved.get(SCALED_BYTES, False))
    features, head = Features(observation_space, action_space, scale_bytes=scaled), head_for(action_space)
    heads, agents = int(saved["num_heads"]), int(saved["agents"])
    size, hidden = len(layers["embed"][1]), len(layers["hidden"][1])
    if not isinstance(head, DiscreteHead) or not 1 <= agents <= MOST_AGENTS or heads < 1 or size % heads:
        raise ValueError("it does not fit the actions, or its number of heads or agents is invalid")
    inward = {"embed": features.size, "head": hidden}
    outward = {"hidden": hidden, "head": head.count}
    for name, (weights, bias) in layers.items():
        shape = inward.get(name, size), outward.get(name, size)
        if weights.shape != shape or bias.shape != shape[1:]:
            raise ValueError("the shapes of its layers do not fit each other or the observations")
    if frozen and any(part.shape != (features.size,) for part in frozen):
        raise ValueError("the shape of its normaliser does not fit the observations")
    return TeamPolicy(features, layers, heads, agents, head, int(saved["version"]), frozen)


class Places(NamedTuple):
    """Positions of rows in teams: `rows`, team after team, are at `place` of `team`. `present`: [teams, places] bool,
    None if every place is taken."""

    rows: Array
    team: Array
    place: Array
    shape: tuple[int, int]
    present: Array | None


def places_of(teams: Array, agents: int) -> Places:
    """Places of rows whose teams [rows] are these, -1 for none; a team has at least `agents` places."""
    rows = np.flatnonzero(teams >= 0)
    rows = rows[np.argsort(teams[rows], kind="stable")]
    _, first, team, count = np.unique(teams[rows], return_index=True, return_inverse=True, return_counts=True)
    place = np.arange(len(rows)) - first[team]
    shape = len(count), max(agents, int(count.max(initial=0)))
    present = np.zeros(shape, np.bool_)
    present[team, place] = True
    return Places(rows, team, place, shape, None if present.all() else present)


def _leaky(x: Array) -> Array:
    return np.maximum(x, x * LEAK)
