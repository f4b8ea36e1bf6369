"""A trained policy, for whoever wants to use it: numpy in, numpy out."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.algorithm import Algorithm
from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.layout import Leaf
from multiverse.contracts.policy import Seen
from multiverse.experience.rollout import dtype_of, leaf_of, shape_of


class LoadedPolicy:
    """`policy.act(observation)` for one env, or for a batch of observations."""

    def __init__(
        self, algorithm: Algorithm, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.acting, self.features = algorithm.policy(), algorithm.features
        self._rng = np.random.default_rng()

    def act(self, observation: Any, deterministic: bool = True) -> Any:
        """The action for an observation, or one per row of a batch; not deterministic: a draw from the policy."""
        leaves = self.features.all_leaves
        kinds = [_is_batch(np.shape(leaf_of(observation, leaf.path)), leaf) for leaf in leaves]
        batched = kinds[0]
        seen = {
            leaf.path: np.asarray(leaf_of(observation, leaf.path), dtype_of(leaf)).reshape(-1, *shape_of(leaf))
            for leaf in leaves
        }
        rows = len(next(iter(seen.values())))
        noise = None if deterministic else self.acting.noise(self._rng, 1, rows)[0]
        shown = Seen(seen, np.ones(rows, np.bool_), self.features.open_actions(seen))
        actions, _ = self.acting.act(shown, noise, self.acting.first_memory(rows))
        chosen = self.acting.for_env(actions)
        return chosen if batched else chosen[0]


def _is_batch(shape: tuple[int, ...], leaf: Leaf) -> bool:
    """Whether this is one observation (False) or several; anything else is refused."""
    one = shape_of(leaf)
    if shape in (one, (*shape[:1], *one)):
        return shape != one
    name = ".".join(map(str, leaf.path)) or "the observation"
    raise InvalidRequest(f"{name} has shape {shape}: expected {one}, or (rows, *{one}) for several")
