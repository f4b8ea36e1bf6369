"""The mark: where the envs were after the last update, and how they come back there. A checkpoint is always of it.

Envs that can be saved are asked for their states; the others' episodes are played again, action by action.
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
"""Of envs in the state of an asynchronous run: the episode that each begins with when the run goes on."""
MOST_OF_A_ROLLOUT = 0.01
"""Envs that save themselves are saved at every mark where that takes a smaller share of the time of a rollout."""


class EnvMarks:
    """Of the envs that `over` has named last."""

    def __init__(self, can_be_saved: bool) -> None:
        self.can_be_saved = can_be_saved
        self._saves_at_marks: bool | None = None  # None: it is not known yet what a rollout takes
        self._mark_s = float("inf")  # the shortest mark, while that is so
        self._marked: dict[str, Any] = {}

    def over(self, envs: BaseVectorEnv, collector: Collector) -> None:
        """These are marked from here on. Better now than at the first checkpoint: what envs save must be something that
        a file can hold."""
        self._envs, self._collector = envs, collector
        if self.can_be_saved:
            try:
                encode({"states": self._saved_states()})
            except TypeError as error:
                self.can_be_saved = False
                log.warning("save_state() of the env is not used: %s; its episodes are played again instead", error)
        collector.actions.enabled = not self.can_be_saved

    @property
    def cannot_be_left(self) -> bool:
        """The envs save themselves and have not done so at the mark: they can only be saved while they are at it."""
        return self.can_be_saved and "states" not in self._marked

    # -- marking -------------------------------------------------------------------------------------------------
    def mark(self, rollout_s: float | None) -> None:
        """Remember where they are. After the first rollout, which took `rollout_s`, it is known what share of one it
        takes to have envs save themselves: that decides, once, whether they do so at every mark or only for a
        checkpoint."""
        began_at = perf_counter()
        self._mark_envs(with_states=self.can_be_saved and self._saves_at_marks is not False)
        self._mark_s = min(self._mark_s, perf_counter() - began_at)
        if rollout_s is not None and self._saves_at_marks is None:
            self._saves_at_marks = self._mark_s < MOST_OF_A_ROLLOUT * rollout_s
        self._collector.actions.mark()

    def mark_beginnings(self, episodes: list[int]) -> None:
        """Of envs that are under way all the time, hence nowhere in particular: each will begin that episode."""
        self._marked = {BEGIN_AT: episodes}

    def _mark_envs(self, with_states: bool) -> None:
        # The states come first: an env that is lost while it is asked begins another episode.
        states = {"states": deepcopy(self._saved_states())} if with_states else {}  # guard: marked-states-are-copies
        # An env whose episode has just ended still shows what that one had.
        starts, rollouts = self._collector.starts, self._collector.rollouts
        going_on = np.concatenate([np.repeat(~starts, rollout.agents) for rollout in rollouts])
        returns, lengths = sums(self._envs)
        self._marked = {
            "episodes": self._envs.episode_counts,
            "observations": {str(k): np.array(self._envs.views[name]) for k, name in enumerate(self._shown())},
            "returns": np.where(going_on, returns, 0.0),
            "lengths": np.where(going_on, lengths, 0),
            "remembered": self._collector.memory(),
            **states,
        }

    def _shown(self) -> list[FieldName]:
        """Where the block has what slots see, group after group, and what envs are like as a whole."""
        rollouts = self._collector.rollouts
        shown = [name_in_block(rollout.group, path) for rollout in rollouts for path in rollout.last]
        if is_single(self._envs):
            masks = (rollouts[0].group, ACTION_MASKS)
            # guard: masks-are-part-of-the-mark
            shown += [masks] if masks in self._envs.views.arrays and masks not in shown else []
        return [*shown, *((STATE, OBSERVATIONS, *path) for path in rollouts[0].last_states)]

    def _saved_states(self) -> list[Any]:
        """The envs' states as they are now; an env that is lost with its worker meanwhile begins another episode."""
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

    # -- what a checkpoint holds ---------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """The envs as they were at the mark."""
        if self.cannot_be_left:
            self._mark_envs(with_states=True)  # the envs are still where they were then
        return {**self._marked, **({} if self.can_be_saved or BEGIN_AT in self._marked else self._played_so_far())}

    def _played_so_far(self) -> dict[str, Any]:
        """What brings envs back that cannot be saved: the actions of their episodes."""
        names = [rollout.group for rollout in self._collector.rollouts]
        known = {str(i): one for i, one in enumerate(self._collector.actions.state()) if one is not None}
        return {"actions": {i: one[0] if is_single(self._envs) else dict(zip(names, one)) for i, one in known.items()}}

    def _taken(self, saved: Mapping[str, Any]) -> list[Taken | None]:
        """From that, what each env's agents did."""
        known = [saved.get(str(i)) for i in range(self._envs.num_envs)]
        if is_single(self._envs):
            return [None if one is None else (one,) for one in known]
        groups = [rollout.group for rollout in self._collector.rollouts]
        return [None if one is None else tuple(one[group] for group in groups) for one in known]

    def bring_back(self, envs: BaseVectorEnv, collector: Collector, saved: Mapping[str, Any]) -> None:
        """Every env in the middle of its episode, as `state` has it; those with which that fails begin another one, and
        are named."""
        self._envs, self._collector = envs, collector
        rows = {name: np.asarray(saved["observations"][str(k)]) for k, name in enumerate(self._shown())}
        if odd := [name for name, one in rows.items() if one.shape != envs.views[name].shape]:
            raise ValueError(f"{odd[0]} has shape {rows[odd[0]].shape}")
        episodes = np.asarray(saved["episodes"]).tolist()
        returns, lengths = saved["returns"], saved["lengths"]
        if "states" in saved:
            lost = put_back(cast(VectorEnv, envs), episodes, saved["states"], rows, returns, lengths)
        else:
            actions = self._taken(saved["actions"])
            lost = restore_by_replay(envs, episodes, actions, rows, returns, lengths)
            for env_id, known in enumerate(actions):
                if known is not None and env_id not in lost:
                    collector.actions.load(env_id, known)  # guard: a-replayed-episode-goes-on-in-the-log
        if lost:
            log.warning(
                "envs %s could not be brought back: %s. Those episodes end here, and this run is not exactly the one "
                "that was interrupted (`multiverse check-env` says whether an env can be replayed)",
                list(lost),
                _in_words(lost),
            )
        if saved["remembered"] is not None:
            collector.load_memory(saved["remembered"])


def _in_words(lost: Lost) -> str:
    """Every reason, with its envs if there are several."""
    reasons = {why: [i for i, one in lost.items() if one == why] for why in lost.values()}
    return "; ".join(f"{why} (envs {ids})" if len(reasons) > 1 else why for why, ids in reasons.items())
