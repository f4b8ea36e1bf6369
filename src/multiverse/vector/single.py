"""Vector env over single-agent envs: a `gymnasium.vector.VectorEnv` with send/receive, tasks and partial calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from multiverse.core.errors import ReplyTimeout, WorkerDied
from multiverse.core.infos import Infos, reordered_infos
from multiverse.core.layout import ACTIONS, ENDED, OBSERVATIONS, PRESENT, VALUES, Array, FieldName
from multiverse.executors.env_range import EnvRange
from multiverse.ipc.space_rows import ActionWriter, BatchReader
from multiverse.vector.base import BaseVectorEnv, Running
from multiverse.vector.batches import StepBatch

Step = tuple[Any, Array, Array, Array, Infos]


class VectorEnv(BaseVectorEnv, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many envs stepped as one batch. Made by `multiverse.make_vec`.

    It does everything that Gymnasium's vector envs do, with the same results for the same seeds and actions. In
    addition any call can be limited to some envs (`env_ids=`), `send`/`receive` process envs as they become ready,
    `plan` names the executor and the reason, and `episode_returns` and `episode_lengths` are kept for every env.
    """

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        views, (group,) = running.executor.views, running.description.groups
        self.metadata["autoreset_mode"] = AutoresetMode[running.autoreset.upper()]
        self.single_observation_space, self.single_action_space = group.observation_space, group.action_space
        self.observation_space = batch_space(group.observation_space, self.num_envs)
        self.action_space = batch_space(group.action_space, self.num_envs)
        name = group.name
        self._actions = ActionWriter(group.action_space, views, (name, ACTIONS))
        self._batch_reader = BatchReader(group.observation_space, views, (name, OBSERVATIONS))
        self._rewards, self._lengths, self._returns = views[(name, VALUES)]
        self._terminated, self._truncated = views[(name, ENDED)]
        self._alive, self._acting = views[(name, PRESENT)]

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Random generator of each env."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Seed of each env."""
        return self.get_attr("np_random_seed")

    @property
    def known_tasks(self) -> int | None:
        """Number of tasks that were given as `tasks=`; None without such a list."""
        return self._executor.known_tasks

    @property
    def episode_returns(self) -> Array:
        """[num_envs] summed reward of each env's episode, up to and including its last step."""
        returns: Array = self._returns.copy()
        return returns

    @property
    def episode_lengths(self) -> Array:
        """[num_envs] steps of each env's episode, up to and including its last one."""
        lengths: Array = self._lengths.astype(np.int64)
        return lengths

    def observations(self) -> Any:
        """Return the current observations of all envs, from their last step or reset, as one batch."""
        return self._batch_reader.all_rows(self.copy)

    def can_be_saved(self) -> bool:
        """Return whether every env, by its outermost wrapper, has `save_state` and `restore_state`."""
        return all(self._calls.run(_can_be_saved, dict.fromkeys(self._executor.hosts, ())).values())

    def put_back(
        self, states: Sequence[Any], observations: dict[FieldName, Array], returns: Array, lengths: Array
    ) -> None:
        """Restore envs from their `save_state()`: `restore_state(state)` of each env, and its row of the batch.

        Their episodes must have begun: `begin_at`. Envs whose worker is lost meanwhile and replaced are
        `awaiting_reset` afterwards.
        """
        for env_id, state in enumerate(states):
            if env_id not in self.awaiting_reset:
                try:
                    self.call("restore_state", state, env_ids=[env_id])
                except (WorkerDied, ReplyTimeout):
                    if env_id not in self.awaiting_reset:  # guard: envs-lost-while-put-back-are-told
                        raise
        for name, rows in observations.items():
            self._executor.views[name][...] = rows
        self._returns[...], self._lengths[...] = returns, lengths

    if TYPE_CHECKING:  # the types of its steps and resets

        def step(self, actions: Any, env_ids: Sequence[int] | None = None) -> Step: ...

        def reset(
            self,
            *,
            seed: int | Sequence[int | None] | None = None,
            options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
            env_ids: Sequence[int] | None = None,
            tasks: Sequence[Any] | None = None,
        ) -> tuple[Any, Infos]: ...

        def receive(self, min_envs: int | None = None, timeout_s: float | None = None) -> StepBatch: ...

    # -- batches -----------------------------------------------------------------------------------------------
    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        if ids is None:
            self._actions.write_all(actions)
        else:
            self._actions.write(actions, ids, len(ids))

    def _step_result(self, infos: Infos) -> Step:
        observations = self._batch_reader.all_rows(self.copy)
        if self._poison is not None:
            self._poison.add(observations, self._all_ids)
        return observations, self._rewards.copy(), self._terminated.copy(), self._truncated.copy(), infos

    def _batch(self, ids: Array, infos: Infos) -> StepBatch:
        contiguous = len(ids) == ids[-1] - ids[0] + 1
        rows: slice | Array = slice(int(ids[0]), int(ids[-1]) + 1) if contiguous else ids
        return StepBatch(
            env_ids=ids,
            observations=self._returned(self._batch_reader.rows(rows, self.copy), ids),
            rewards=self._rewards[rows].copy(),
            terminated=self._terminated[rows].copy(),
            truncated=self._truncated[rows].copy(),
            alive=self._alive[rows].copy(),
            acting=self._acting[rows].copy(),
            episode_returns=self._returns[rows].copy(),
            episode_lengths=self._lengths[rows].astype(np.int64),
            infos=infos,
        )

    def _reordered(self, batch: StepBatch, ids: Array) -> Step:
        order = np.searchsorted(batch.env_ids, ids)
        if (order == np.arange(len(ids))).all():
            return batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos
        infos = batch.infos and reordered_infos(batch.infos, order)
        rewards, terminated, truncated = batch.rewards[order], batch.terminated[order], batch.truncated[order]
        return self._returned(self._batch_reader.rows(ids, True), ids), rewards, terminated, truncated, infos

    def _first_observations(self, ids: Array | None) -> Any:
        if ids is None:
            return self._returned(self._batch_reader.all_rows(self.copy), self._all_ids)
        return self._returned(self._batch_reader.rows(ids, self.copy), ids)

    def episodes_over(self, ids: Array) -> Array:
        ended: Array = self._terminated[ids] | self._truncated[ids]
        return ended


def _can_be_saved(envs: EnvRange) -> bool:
    """Runs where the envs are. `save_state` of an env inside a wrapper would not save the wrapper's own state."""
    return all(_saves(env.classes()) for env in envs.envs)


def _saves(classes: Sequence[type]) -> bool:
    """Return whether an env of these classes, outermost first, saves itself; a wrapper may leave it to the next one."""
    if not all(callable(getattr(classes[0], name, None)) for name in ("save_state", "restore_state")):
        return False
    return not getattr(classes[0], "saves_if_env_does", False) or _saves(classes[1:])
