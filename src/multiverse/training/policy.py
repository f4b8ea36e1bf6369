"""Trained policies for use in programs: numpy in, numpy out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array, Leaf
from multiverse.core.policy import Leaves, Memory, Policy, Seen
from multiverse.core.wording import short_repr
from multiverse.policies.features import Features, dtype_of, leaf_of, shape_of
from multiverse.policies.heads import no_actions
from multiverse.policies.team_policy import TeamPolicy

_LARGEST = np.float64(np.finfo(np.float32).max)


class LoadedPolicy:
    """`policy.act(observation)` for one env, or for a batch of observations."""

    def __init__(
        self,
        policy: Policy,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        description: str = "",
        masks: bool = True,
    ) -> None:
        """`description`: of the policy, for `repr`. `masks`: whether action masks in observations are used."""
        self.observation_space, self.action_space, self._description = observation_space, action_space, description
        self.acting, self.features = policy, Features(observation_space, action_space)
        if not masks:
            self.features.mask = None
        self._rng, self._warned_of_rewards, self._alone = np.random.default_rng(), False, True
        self.reset()

    def __repr__(self) -> str:
        return f"<policy of {self._description}: {self.observation_space} → {self.action_space}>"

    def reset(self, seed: int | Sequence[int] | None = None) -> None:
        """Begin a new episode: forget the last one. `seed`: seeds the draws of actions from now on."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._memory: Memory = {}
        self._rows = 0
        self._previous_actions: Any = None

    def act(
        self, observation: Any, deterministic: bool = True, previous_reward: Any = None, action_mask: Any = None
    ) -> Any:
        """Return the action for an observation, or one per row of a batch.

        A policy with memory remembers the calls before: call `reset()` when an episode begins, and before a batch of
        other rows.

        Args:
            deterministic: Whether to return the most likely action, or one that is drawn.
            previous_reward: Reward of the last action, for policies that use it (with `see_previous`, and with memories
                that learned from replay).
            action_mask: 1 for each open action, if the observation does not contain the mask.
        """
        seen, batched = self.checked(observation, previous_reward)
        rows = len(next(iter(seen.values())))
        noise = None if deterministic else self.acting.noise(self._rng, 1, rows)[0]
        starts = np.full(rows, rows != self._rows)
        if self._memory and rows != self._rows:
            raise InvalidRequest(
                f"got {rows} rows after {self._rows} in the call before, which this policy remembers: pass the same "
                "number of rows in every call, or call reset() first if these are other episodes"
            )
        if rows != self._rows:
            self._memory, self._rows = self.acting.first_memory(rows), rows
            self._previous_actions = no_actions(self.action_space, rows)
        elif previous_reward is None and not self._warned_of_rewards and getattr(self.acting, "sees_rewards", False):
            self._warned_of_rewards = True
            warnings.warn("this policy uses the reward of its last action, which was not passed: 0 is assumed. Pass "
                          "it: act(observation, previous_reward=reward)", stacklevel=2)  # fmt: skip
        rewards = _rewards(0.0 if previous_reward is None else previous_reward, rows)
        masks = self.features.open_actions(seen)
        if action_mask is not None:
            masks = self._open(action_mask, rows)
        if masks is not None and not (batched or masks.any()) and self._alone:
            raise InvalidRequest("the action mask leaves no action open: at least one entry must be 1")
        shown = Seen(seen, starts, masks, self._previous_actions, rewards)
        actions, self._memory = self.acting.act(shown, noise, self._memory)
        self._previous_actions = actions
        chosen = self.acting.for_env(actions)
        return chosen if batched else chosen[0]

    def checked(self, observation: Any, previous_reward: Any = None) -> tuple[Leaves, bool]:
        """Return one array [rows, …] per leaf, and whether there were several rows; refuse values that are not finite.
        Nothing is drawn or remembered here."""
        _refuse_not_finite("the previous reward", previous_reward)
        return self._split(observation)

    def act_together(self, observations: Sequence[Any], deterministic: bool, masks: Sequence[Any]) -> list[Any]:
        """Return an action for each agent of a team, or one per row of batches: row i of each is the same team."""
        split = [self._split(observation) for observation in observations]
        agents, batched = len(split), split[0][1]
        seen = {path: np.concatenate([leaves[path] for leaves, _ in split]) for path in split[0][0]}
        rows = len(next(iter(seen.values())))
        if any(is_batch != batched for _, is_batch in split):
            raise InvalidRequest("expected one observation for each agent of a team, or a batch for each, not both")
        if rows % agents or any(len(next(iter(leaves.values()))) != rows // agents for leaves, _ in split):
            raise InvalidRequest("the batches of a team's agents must have the same number of rows")
        open_now = self.features.open_actions(seen)
        if any(mask is not None for mask in masks):
            open_now = np.concatenate([self._open(mask, rows // agents) for mask in masks])
        noise = None if deterministic else self.acting.noise(self._rng, 1, rows)[0]
        teams = np.tile(np.arange(rows // agents), agents)
        actions, _ = self.acting.act(Seen(seen, np.zeros(rows, np.bool_), open_now, teams=teams), noise, {})
        chosen = np.split(self.acting.for_env(actions), agents)
        return chosen if batched else [actions[0] for actions in chosen]

    def _open(self, mask: Any, rows: int) -> Array:
        """[rows, actions] bool: which actions are open; all if `mask` is None."""
        count = int(spaces.flatdim(self.action_space))
        if mask is None:
            return np.ones((rows, count), np.bool_)
        array = np.asarray(mask)
        if not ((array == 0) | (array == 1)).all():
            raise InvalidRequest(f"an action mask is {array.tolist()!r:.80}: expected 1 for an open action, else 0")
        if array.size != rows * count:
            shape = f"({rows}, {count})" if rows > 1 else f"({count},)"
            raise InvalidRequest(f"an action mask has shape {array.shape}: expected {shape}, 1 where an action is open")
        return array.reshape(rows, count).astype(np.bool_)

    def _split(self, observation: Any) -> tuple[Leaves, bool]:
        """Return one array [rows, …] per leaf, and whether this is a batch."""
        leaves = self.features.all_leaves
        for leaf in leaves:
            _refuse_not_finite(_name_of(leaf), leaf_of(observation, leaf.path))
        kinds = [_is_batch(np.shape(leaf_of(observation, leaf.path)), leaf) for leaf in leaves]
        seen = {
            leaf.path: np.asarray(leaf_of(observation, leaf.path), dtype_of(leaf)).reshape(-1, *shape_of(leaf))
            for leaf in leaves
        }
        return seen, kinds[0]


class LoadedPolicies(Mapping[str, LoadedPolicy]):
    """Policies of several agents, by agent: `policies["player_0"].act(observation)`, or for all agents that observe
    something `policies.act({agent: observation})`. Each agent has its own memory."""

    def __init__(self, by_agent: dict[str, LoadedPolicy], groups: dict[str, tuple[str, ...]]) -> None:
        self._by_agent, self.groups = by_agent, groups
        for policy in by_agent.values():
            policy._alone = False  # an agent that does not act now may have nothing open

    def __getitem__(self, agent: str) -> LoadedPolicy:
        if agent not in self._by_agent:
            raise InvalidRequest(f"there is no policy for {agent!r}; there are those of {', '.join(self._by_agent)}")
        return self._by_agent[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_agent)

    def __len__(self) -> int:
        return len(self._by_agent)

    def __repr__(self) -> str:
        groups = "; ".join(f"{name}: {', '.join(agents)}" for name, agents in self.groups.items())
        return f"<policies of {groups}; {next(iter(self._by_agent.values()))!r}>"

    @property
    def acting(self) -> list[Policy]:
        """One for each group."""
        return [self._by_agent[agents[0]].acting for agents in self.groups.values()]

    def act(
        self,
        observations: Mapping[str, Any],
        deterministic: bool = True,
        previous_rewards: Mapping[str, Any] | None = None,
        action_masks: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return an action for every agent that observes something.

        `previous_rewards`: agent → reward of its last action, for policies that use it (`see_previous`); 0 where it is
        missing. `action_masks`: agent → [actions] 1 for each open action, for envs with masks in their infos. If all
        agents are one team with attention (taac), there may be more agents than it was trained with.
        """
        rewards, masks = previous_rewards or {}, action_masks or {}
        for agent in [agent for agent in observations if agent in self._by_agent]:
            self[agent].checked(observations[agent], rewards.get(agent))  # guard: no-agent-acts-before-all-are-checked
        chosen: dict[str, Any] = {}
        new = [agent for agent in observations if agent not in self._by_agent] if len(self.groups) == 1 else []
        for agents in self.groups.values():
            here = [agent for agent in agents if agent in observations]
            if (here or new) and isinstance(self[agents[0]].acting, TeamPolicy):
                team = here + new
                seen = [observations[agent] for agent in team]
                actions = self[agents[0]].act_together(seen, deterministic, [masks.get(agent) for agent in team])
                chosen |= dict(zip(team, actions))
        return {
            agent: chosen[agent]
            if agent in chosen
            else self[agent].act(seen, deterministic, rewards.get(agent), masks.get(agent))
            for agent, seen in observations.items()
        }

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode. `seed`: seeds the draws of actions from now on, with another stream for each agent."""
        for k, policy in enumerate(self._by_agent.values()):
            policy.reset(None if seed is None else (seed, k))


def _rewards(given: Any, rows: int) -> Array:
    """[rows] previous rewards, given as one for each row or one for all."""
    try:
        return np.broadcast_to(np.asarray(given, np.float32), (rows,))
    except (TypeError, ValueError):
        each = f"a number, or {rows} of them, one for each row" if rows > 1 else "a number"
        raise InvalidRequest(f"previous_reward={short_repr(given)}: expected {each}") from None


def _is_batch(shape: tuple[int, ...], leaf: Leaf) -> bool:
    """Whether this is a batch of observations; refuse what is neither one observation nor a batch."""
    one = shape_of(leaf)
    if shape == (0, *one):
        raise InvalidRequest(f"{_name_of(leaf)} has shape {shape}: a batch needs at least one row")
    if shape in (one, (*shape[:1], *one)):
        return shape != one
    raise InvalidRequest(f"{_name_of(leaf)} has shape {shape}: expected {one}, or (rows, *{one}) for several")


def _name_of(leaf: Leaf) -> str:
    return ".".join(map(str, leaf.path)) or "the observation"


def _refuse_not_finite(what: str, value: Any) -> None:
    """Refuse values that float32 cannot hold: a policy with memory would carry them into all its later actions."""
    array = np.asarray(value)
    if array.dtype.kind == "O" and value is not None:  # None among numbers, or integers that exceed int64
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"{what} is {short_repr(value)}: expected numbers that floats can hold") from None
    if array.dtype.kind != "f" or (usable := np.abs(array) <= _LARGEST).all():  # guard: act-refuses-what-is-not-finite
        return
    index = tuple(int(k) for k in np.argwhere(~usable)[0])
    place = f" at index {index if len(index) > 1 else index[0]}" if index else ""
    large = ", which is too large for float32" if np.isfinite(array[index]) else ""
    raise InvalidRequest(
        f"{what} is {array[index]}{place}{large}: a policy acts on finite float32 numbers only. The policy remembers "
        "nothing of this call. Check what the env returns, and call reset() where a new episode begins"
    )
