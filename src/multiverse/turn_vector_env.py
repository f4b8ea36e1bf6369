"""Many copies of an env whose agents act in turn (PettingZoo AEC): a step is one action per env, of whoever acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multiverse.agent_batches import AgentsBatch, GroupReader
from multiverse.contracts.errors import InvalidActions, InvalidRequest
from multiverse.contracts.infos import Infos, reordered_infos
from multiverse.contracts.views import Array
from multiverse.multi_agent_vector_env import MultiAgentEnvBatch


@dataclass(frozen=True, slots=True)
class TurnRows:
    """The envs in which an agent of one group has to act."""

    env_ids: Array  # [m]
    observations: Any  # [m, *obs] what that agent sees
    action_masks: Array | None  # [m, actions]; None where actions are not Discrete


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of some envs.  n: envs in the batch, A: all agents, in the order of `TurnVectorEnv.agents`."""

    env_ids: Array  # [n]
    agents: Array  # [n] index of the agent to act; -1 where none is (an episode that is over, without autoreset)
    groups: dict[str, TurnRows]
    acting: Array  # [n, A] bool
    alive: Array  # [n, A] bool
    rewards: Array  # [n, A] since the slot's own last action, told where it next acts or ends
    terminated: Array  # [n, A] bool: ended in this step; told exactly once
    truncated: Array  # [n, A] bool
    episode_over: Array  # [n] bool: the episode ended, and (autoreset) a new one has begun
    infos: Infos = field(default_factory=dict)

    @property
    def observations(self) -> Any:
        """[n, *obs] what the agent to act sees; where groups differ in their spaces: `groups`."""
        return self._only_group().observations

    @property
    def action_masks(self) -> Any:
        """[n, actions] what is open to it."""
        return self._only_group().action_masks

    def _only_group(self) -> TurnRows:
        if len(self.groups) > 1:
            raise InvalidRequest(f"agents have different spaces: turn.groups[name], with name of {list(self.groups)}")
        return next(iter(self.groups.values()))


class TurnVectorEnv(MultiAgentEnvBatch):
    """Made by `multiverse.make_vec` from a PettingZoo AEC env.

    `turn = games.reset(seed=0)`, then `turn = games.step(actions)` with one action per env, for the agent
    `turn.agents[i]` of env i. Where groups differ in their spaces: `games.step({group: actions})`, in the order of
    `turn.groups[group].env_ids`. Steps that only remove agents that have ended happen in the worker.
    """

    def reset(self, **kwargs: Any) -> Turn:
        """Begin episodes, as `VectorEnv.reset` does: `seed`, `options`, `tasks`, `env_ids`."""
        turn, infos = super().reset(**kwargs)
        turn.infos.update(infos)
        return turn  # type: ignore[no-any-return]

    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        envs = self._everyone if ids is None else ids
        whose = self._whose_turn(envs)
        if not isinstance(actions, Mapping):
            if len(self._readers) > 1:
                raise InvalidActions(
                    f"agents have different spaces: a dict with actions for each of {list(self.groups)}"
                )
            actions = {self._readers[0].group.name: actions}
        known = {reader.group.name for reader in self._readers}
        unknown = [key for key in actions if key not in known]
        if unknown:
            raise InvalidActions(f"actions for {unknown}: the groups are {sorted(known)}")
        writes = []
        for reader in self._readers:
            mine, slots = self._slots_of(reader, envs, whose)
            name = reader.group.name
            if not len(mine) and len(self._readers) > 1:
                continue
            if name not in actions:
                raise InvalidActions(f"no actions for group {name!r}, whose turn it is in envs {envs[mine].tolist()}")
            if len(self._readers) == 1 and len(mine) < len(envs):  # over, and not reset: the host ignores what it gets
                slots = np.where(whose >= 0, envs * len(reader.group.agents) + whose, envs * len(reader.group.agents))
            writes.append(self._writers[name].prepared(actions[name], slots))
        for write in writes:
            write()

    def _whose_turn(self, envs: Array) -> Array:
        """[n] index of the acting agent, -1 where there is none."""
        acting = np.concatenate([reader.acting(envs) for reader in self._readers], axis=1)
        return np.where(acting.any(axis=1), acting.argmax(axis=1), -1)

    def _slots_of(self, reader: GroupReader, envs: Array, whose: Array) -> tuple[Array, Array]:
        """(positions in `envs` where a group acts, the slots that act)."""
        agents = len(reader.group.agents)
        first = self.agents.index(reader.group.agents[0])
        mine = np.flatnonzero((whose >= first) & (whose < first + agents))
        return mine, envs[mine] * agents + whose[mine] - first

    def _turn(self, ids: Array | None, infos: Infos) -> Turn:
        envs = self._everyone if ids is None else ids
        batch: AgentsBatch = self._groups_batch(ids, infos, copy=True)
        whose = self._whose_turn(envs)
        groups = {}
        for reader in self._readers:
            mine, slots = self._slots_of(reader, envs, whose)
            if len(self._readers) == 1:  # a row for every env, whatever its agent does
                agents = len(reader.group.agents)
                mine, slots = np.arange(len(envs)), envs * agents + np.maximum(whose, 0)
            masks = reader.action_masks(envs)
            local = slots % len(reader.group.agents)
            groups[reader.group.name] = TurnRows(
                envs[mine], reader.observation_rows(slots), None if masks is None else masks[mine, local]
            )
        joined = {
            name: np.concatenate([getattr(group, name) for group in batch.groups.values()], axis=1)
            for name in ("acting", "alive", "rewards", "terminated", "truncated")
        }
        over = self._episodes_over(envs, joined)
        return Turn(envs, whose, groups, **joined, episode_over=over, infos=infos)

    def _episodes_over(self, envs: Array, joined: dict[str, Array]) -> Array:
        """Where everybody who was there has ended: nobody is left or, if a new one has begun, its count has gone up."""
        nobody_left = ~joined["alive"].any(axis=1)
        begun = self._episodes[envs] != self._seen_episodes[envs]
        self._seen_episodes[envs] = self._episodes[envs]
        ended = joined["terminated"].any(axis=1) | joined["truncated"].any(axis=1)
        return np.asarray(ended & (nobody_left | begun))

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seen_episodes = self._episodes.copy()

    def _step_result(self, infos: Infos) -> Turn:
        return self._turn(None, infos)

    def _batch(self, ids: Array, infos: Infos) -> Turn:
        return self._turn(ids, infos)

    def _reordered(self, batch: Turn, ids: Array) -> Turn:
        order = np.searchsorted(batch.env_ids, ids)
        if (order == np.arange(len(ids))).all():
            return batch
        infos = batch.infos and reordered_infos(batch.infos, order)
        arrays = {
            name: getattr(batch, name)[order]
            for name in ("agents", "acting", "alive", "rewards", "terminated", "truncated", "episode_over")
        }
        groups = batch.groups
        if len(self._readers) == 1:
            whose = batch.agents[order]
            reader = self._readers[0]
            agents = len(reader.group.agents)
            masks = reader.action_masks(ids)
            local = np.maximum(whose, 0)
            rows = reader.observation_rows(ids * agents + local)
            taken = None if masks is None else masks[np.arange(len(ids)), local]
            groups = {reader.group.name: TurnRows(ids, rows, taken)}
        return Turn(ids, groups=groups, infos=infos, **arrays)

    def _first_observations(self, ids: Array | None) -> Turn:
        envs = self._everyone if ids is None else ids
        self._seen_episodes[envs] = self._episodes[envs]
        return self._turn(ids, {})
