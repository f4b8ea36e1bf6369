"""The mark: the state of the envs after the last update, to which a checkpoint always belongs, and how it is restored.

Envs that can save themselves are asked for their states; the episodes of other envs are replayed action by action.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from time import perf_counter
from typing import Any, cast

import numpy as np

from multiverse.core.errors import ReplyTimeout, WorkerDied
from multiverse.core.layout import ACTION_MASKS, OBSERVATIONS, STATE, FieldName
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.episodes import Taken
from multiverse.rollouts.restoring import Lost, put_back, restore_by_replay, saved_states
from multiverse.rollouts.rollout import name_in_block
from multiverse.rollouts.slots import is_single, sums
from multiverse.training.runs.state_codec import encode
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.single import VectorEnv

log = logging.getLogger("multiverse")

BEGIN_AT = "begin_at"
"""Key in the state of an asynchronous run: the episode with which each env begins when the run is resumed."""
MAX_SHARE_OF_ROLLOUT = 0.01
"""Envs that save themselves are saved at every mark if that takes at most this share of the time of a rollout."""


class EnvMarks:
    """Marks the envs that were passed to `follow` last."""

    def __init__(self, can_be_saved: bool) -> None:
        self.can_be_saved = can_be_saved
        self._saves_at_marks: bool | None = None  # None: the duration of a rollout is not known yet
        self._mark_s = float("inf")  # duration of the shortest mark until then
        self._marked: dict[str, Any] = {}

    def follow(self, envs: BaseVectorEnv, collector: Collector) -> None:
        """Mark these envs from now on. Whether a file can hold what they save is checked here, not at the first
        checkpoint."""
        self._envs, self._collector = envs, collector
        if self.can_be_saved:
            try:
                encode({"states": self._saved_states()})
            except TypeError as error:
                self.can_be_saved = False
                log.warning("save_state() of the env is not used: %s; its episodes are replayed instead", error)
        collector.actions.enabled = not self.can_be_saved

    @property
    def requires_whole_rollout(self) -> bool:
        """Whether a rollout must be completed: envs save themselves and have not done so at the mark, so that they can
        only be saved before they step on."""
        return self.can_be_saved and "states" not in self._marked

    # -- marking -------------------------------------------------------------------------------------------------
    def mark(self, rollout_s: float | None) -> None:
        """Mark the present state. The duration of the first rollout (`rollout_s`) decides whether envs save themselves
        at every mark, or only for a checkpoint because that would take too large a share of the time."""
        began_at = perf_counter()
        self._mark_envs(with_states=self.can_be_saved and self._saves_at_marks is not False)
        self._mark_s = min(self._mark_s, perf_counter() - began_at)
        if rollout_s is not None and self._saves_at_marks is None:
            self._saves_at_marks = self._mark_s < MAX_SHARE_OF_ROLLOUT * rollout_s
        self._collector.actions.mark()

    def mark_beginnings(self, episodes: list[int]) -> None:
        """Mark the next episode of each env, for asynchronous collection, in which envs are never at rest."""
        self._marked = {BEGIN_AT: episodes}

    def _mark_envs(self, with_states: bool) -> None:
        # The states come first: an env that is lost while it saves itself begins another episode.
        states = {"states": deepcopy(self._saved_states())} if with_states else {}  # guard: marked-states-are-copies
        # Returns and lengths of an episode that has just ended are still in the block.
        starts, rollouts = self._collector.starts, self._collector.rollouts
        continues = np.concatenate([np.repeat(~starts, rollout.agents) for rollout in rollouts])
        returns, lengths = sums(self._envs)
        self._marked = {
            "episodes": self._envs.episode_counts,
            "observations": {str(k): np.array(self._envs.views[name]) for k, name in enumerate(self._shown())},
            "returns": np.where(continues, returns, 0.0),
            "lengths": np.where(continues, lengths, 0),
            "remembered": self._collector.memory(),
            **states,
        }

    def _shown(self) -> list[FieldName]:
        """Names of the block's arrays with what slots observe, group after group, and with the envs' `state()`."""
        rollouts = self._collector.rollouts
        names = [name_in_block(rollout.group, path) for rollout in rollouts for path in rollout.last]
        if is_single(self._envs):
            masks = (rollouts[0].group, ACTION_MASKS)
            # guard: masks-are-part-of-the-mark
            names += [masks] if masks in self._envs.views.arrays and masks not in names else []
        return [*names, *((STATE, OBSERVATIONS, *path) for path in rollouts[0].last_states)]

    def _saved_states(self) -> list[Any]:
        """The present states of the envs; an env that is lost with its worker meanwhile begins another episode."""
        while True:
            try:
                return saved_states(cast(VectorEnv, self._envs))
            except (WorkerDied, ReplyTimeout) as error:
                lost = self._envs.awaiting_reset
                if not lost:  # guard: a-worker-lost-in-a-save-is-replaced
                    raise
                log.warning("envs %s begin another episode: %s", lost, str(error).partition("\n")[0])
                self._envs.reset(env_ids=lost)
                self._collector.begin_again(lost)

    # -- in a checkpoint -----------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Return the state of the envs at the mark."""
        if self.requires_whole_rollout:
            self._mark_envs(with_states=True)  # the envs have not stepped since the mark
        return {**self._marked, **({} if self.can_be_saved or BEGIN_AT in self._marked else self._actions())}

    def _actions(self) -> dict[str, Any]:
        """The actions of the present episodes, which restore envs that cannot be saved."""
        names = [rollout.group for rollout in self._collector.rollouts]
        by_env = {str(i): taken for i, taken in enumerate(self._collector.actions.state()) if taken is not None}
        single = is_single(self._envs)
        return {"actions": {i: taken[0] if single else dict(zip(names, taken)) for i, taken in by_env.items()}}

    def _actions_from(self, saved: Mapping[str, Any]) -> list[Taken | None]:
        """The actions of each env's agents, from what `_actions` returned."""
        by_env = [saved.get(str(i)) for i in range(self._envs.num_envs)]
        if is_single(self._envs):
            return [None if taken is None else (taken,) for taken in by_env]
        groups = [rollout.group for rollout in self._collector.rollouts]
        return [None if taken is None else tuple(taken[group] for group in groups) for taken in by_env]

    def restore(self, envs: BaseVectorEnv, collector: Collector, saved: Mapping[str, Any]) -> None:
        """Restore every env in the middle of its episode from what `state` returned. Envs that cannot be restored begin
        another episode and are named in a warning."""
        self._envs, self._collector = envs, collector
        rows = {name: np.asarray(saved["observations"][str(k)]) for k, name in enumerate(self._shown())}
        if wrong := [name for name, array in rows.items() if array.shape != envs.views[name].shape]:
            raise ValueError(f"{wrong[0]} has shape {rows[wrong[0]].shape}")
        episodes = np.asarray(saved["episodes"]).tolist()
        returns, lengths = saved["returns"], saved["lengths"]
        if "states" in saved:
            lost = put_back(cast(VectorEnv, envs), episodes, saved["states"], rows, returns, lengths)
        else:
            actions = self._actions_from(saved["actions"])
            lost = restore_by_replay(envs, episodes, actions, rows, returns, lengths)
            for env_id, taken in enumerate(actions):
                if taken is not None and env_id not in lost:
                    collector.actions.load(env_id, taken)  # guard: a-replayed-episode-goes-on-in-the-log
        if lost:
            log.warning(
                "envs %s could not be restored: %s. Their episodes end here, and this run is not exactly the one "
                "that was interrupted (`multiverse check-env` shows whether an env can be replayed)",
                list(lost),
                _reasons_text(lost),
            )
        if saved["remembered"] is not None:
            collector.load_memory(saved["remembered"])


def _reasons_text(lost: Lost) -> str:
    """Every reason, with its envs if there are several reasons."""
    reasons = {why: [i for i, one in lost.items() if one == why] for why in lost.values()}
    return "; ".join(f"{why} (envs {ids})" if len(reasons) > 1 else why for why, ids in reasons.items())
