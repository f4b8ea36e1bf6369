"""A policy of agents that look at each other, in plain numpy: attention over whoever is in the same env.

A team has as many places as the group has agents, whoever of them is there: matrix products have equal shapes then,
and what a team does depends, to the last bit, on nobody else. (`numpy_policies` says why that matters.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.contracts.policy import MASKED_LOGIT, Memory, Policy, Seen
from multiverse.contracts.views import Array
from multiverse.experience.cells import in_blocks
from multiverse.experience.features import Features
from multiverse.experience.heads import DiscreteHead, head_for
from multiverse.experience.numpy_policies import normalized

LAYERS = ("embed", "queries", "keys", "values", "out", "hidden", "head")
"""Dense ones, in this order; what follows on `embed` and on `hidden` is a LeakyReLU."""
LEAK = np.float32(0.01)
MOST_AGENTS = 4096


class TeamPolicy:
    """Embeds each agent's features, lets it attend to its team, and chooses one of its actions. Remembers nothing."""

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
        """[rows, actions] of features [rows, size]; of rows that are in no team, 0."""
        rows = np.arange(len(x)) if teams is None else np.flatnonzero(teams >= 0)
        found = np.zeros((len(x), self._head.count), np.float32)
        if not len(rows):
            return found
        of = rows if teams is None else teams[rows]
        order = np.argsort(of, kind="stable")
        _, first, team, count = np.unique(of[order], return_index=True, return_inverse=True, return_counts=True)
        place = np.arange(len(rows)) - first[team]  # of a row in its team
        size = max(self._agents, int(count.max()))
        together = np.zeros((len(count), size, x.shape[1]), np.float32)
        present = np.zeros((len(count), size), np.bool_)
        together[team, place], present[team, place] = x[rows[order]], True
        found[rows[order]] = self._logits(together, present)[team, place]
        return found

    def _logits(self, x: Array, present: Array) -> Array:
        """[teams, places, actions]"""
        teams, places, _ = x.shape
        own = _leaky(self._dense("embed", x.reshape(teams * places, -1)))
        queries, keys, values = (
            self._dense(name, own).reshape(teams, places, self._heads, -1).transpose(0, 2, 1, 3)
            for name in ("queries", "keys", "values")
        )
        scores = np.matmul(queries, keys.transpose(0, 1, 3, 2)) * np.float32(1 / math.sqrt(queries.shape[-1]))
        scores = np.where(present[:, None, None, :], scores, np.float32(MASKED_LOGIT))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        attended = np.matmul(weights, values).transpose(0, 2, 1, 3).reshape(teams * places, -1)
        hidden = _leaky(self._dense("hidden", own + self._dense("out", attended)))
        return self._dense("head", hidden).reshape(teams, places, -1)

    def _dense(self, name: str, x: Array) -> Array:
        """In blocks of rows, as dense policies do."""
        weights, bias = self._layers[name]
        blocks: Array = np.matmul(in_blocks(x), weights)
        blocks += bias
        return blocks.reshape(-1, blocks.shape[2])[: len(x)]

    # -- in a run ------------------------------------------------------------------------------------------------
    def saved(self) -> dict[str, Any]:
        """As a run holds it: `loaded_team_policy` makes an equal one of this and the run's spaces."""
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
        return saved


def loaded_team_policy(
    saved: Mapping[str, Any], observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> TeamPolicy:
    """The policy that a run holds; ValueError if its parts do not fit together."""
    layers = {name: (np.asarray(saved["weights"][name]), np.asarray(saved["biases"][name])) for name in LAYERS}
    frozen = (np.asarray(saved["shift"]), np.asarray(saved["scale"])) if "shift" in saved else None
    features, head = Features(observation_space, action_space), head_for(action_space)
    heads, agents = int(saved["num_heads"]), int(saved["agents"])
    size, hidden = len(layers["embed"][1]), len(layers["hidden"][1])
    if not isinstance(head, DiscreteHead) or not 1 <= agents <= MOST_AGENTS or heads < 1 or size % heads:
        raise ValueError("it does not fit the actions, or has no sizes that make sense")
    inward = {"embed": features.size, "head": hidden}
    outward = {"hidden": hidden, "head": head.count}
    for name, (weights, bias) in layers.items():
        shape = inward.get(name, size), outward.get(name, size)
        if weights.shape != shape or bias.shape != shape[1:]:
            raise ValueError("its layers do not fit together, or not the observations")
    if frozen and any(one.shape != (features.size,) for one in frozen):
        raise ValueError("what normalises does not fit the observations")
    return TeamPolicy(features, layers, heads, agents, head, int(saved["version"]), frozen)


def _leaky(x: Array) -> Array:
    return np.maximum(x, x * LEAK)
