"""States of a run's envs between rollouts and evaluations.

The mark is the state of the training envs after the last update, to which a checkpoint always belongs. Envs that can
save themselves are asked for their states; the episodes of other envs are replayed action by action. The envs of
evaluations are kept between evaluations and replaced when they fail; their failures are counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from time import perf_counter
from typing import Any, cast

import numpy as np

from multiverse.core.errors import EvaluationFailed, MultiverseError, ReplyTimeout, WorkerDied
from multiverse.core.failures import FAILURES_COMPARED, RESTARTS_IN_A_ROW, Failures
from multiverse.core.layout import ACTION_MASKS, OBSERVATIONS, STATE, FieldName
from multiverse.core.policy import Policy
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.episodes import Taken, is_single, sums
from multiverse.rollouts.restoring import Lost, as_saved, put_back, restore_by_replay, saved_states
from multiverse.rollouts.rollout import name_in_block
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.evaluation import Evaluation, EvaluationOptions, evaluate
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
        """Mark these envs from now on. Checks early whether a file can hold what they save."""
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


# -- envs of evaluations -----------------------------------------------------------------------------------------
EVALUATION_COST = 10
"""Number of env steps of training for each env step of default evaluations before the last one."""


def affordable_episodes(config: TrainConfig, trained: int, evaluated: int, length: float, least: int) -> int:
    """Return the number of episodes of a default evaluation before the last one; 0 leaves it out.

    All evaluations together, with `evaluated` env steps before this one, get a tenth of the env steps of training so
    far (`trained`). There are at least `least` episodes, unless all evaluations would then take more env steps than the
    training so far. `length`: of an episode. No clock is involved, so a resumed run makes the same choice."""
    affordable = int((trained / EVALUATION_COST - evaluated) // max(1.0, length))
    episodes = min(config.episodes_per_evaluation, max(least, affordable - affordable % least))
    return episodes if evaluated + least * length <= trained else 0


class EvaluationEnvs:
    """The envs of a run's evaluations, with counts of their failures.

    If one of them has failed, all are replaced before the next evaluation.
    """

    def __init__(self, make: Callable[[int], BaseVectorEnv], count: int, restarts_per_minute: int | None) -> None:
        self._make, self._count, self._restarts_per_minute = make, count, restarts_per_minute
        self._envs: BaseVectorEnv | None = self._built(count)
        self._earlier = Failures()  # of former envs
        self.failed = self.failed_in_a_row = self.lost_episodes = 0
        self.lost_before: tuple[int, ...] = ()  # lost episodes of the last evaluation
        self._begun = 0  # number of envs that have been reset since they were built
        self.saves = False  # whether their states belong to the run's state
        self._states: Any = None

    @property
    def envs(self) -> BaseVectorEnv:
        if self._envs is None:
            self._envs = self._built(self._count)
        return self._envs

    def _built(self, count: int) -> BaseVectorEnv:
        try:
            return self._make(count)
        except MultiverseError as error:
            raise EvaluationFailed(f"the evaluation env could not be built: {error}") from error

    def evaluate(
        self,
        policies: Sequence[Policy],
        episodes: int | Sequence[int],
        seed: int,
        options: EvaluationOptions | None = None,
    ) -> Evaluation | None:
        """Evaluate as `evaluate` does. If several envs fail, repeat the evaluation on one env: which episodes are lost,
        and whether they are too many, must not depend on the number of envs or on which of them share a worker."""
        envs, several = self.envs, self.envs.num_envs > 1
        try:
            evaluation = evaluate(envs, policies, episodes, seed, options)
            if evaluation is None or not several or self._suits_one_env(evaluation, envs.failures.env_restarts):
                return evaluation
            why = f"{envs.failures.env_restarts} restarts, which may be too many for one env"
        except MultiverseError as error:
            if not several:
                raise
            why = _one_line(error)
        log.warning("repeated on one env: %s", why)
        self.replace()
        self._envs = self._built(1)
        return evaluate(self._envs, policies, episodes, seed, options)

    def _suits_one_env(self, evaluation: Evaluation, restarts: int) -> bool:
        """Whether one env that plays all episodes would be restarted often enough for these failures."""
        if self._restarts_per_minute is not None:
            return restarts <= self._restarts_per_minute
        if restarts <= RESTARTS_IN_A_ROW:
            return True
        in_a_row = zip(evaluation.lost, evaluation.lost[RESTARTS_IN_A_ROW:])
        once_each = restarts == len(evaluation.lost) < FAILURES_COMPARED
        return once_each and not any(last - first == RESTARTS_IN_A_ROW for first, last in in_a_row)

    def succeeded(self, evaluation: Evaluation) -> None:
        """Note a completed evaluation. Envs that failed in it are replaced."""
        self.failed_in_a_row, self.lost_before = 0, evaluation.lost
        self.lost_episodes += len(evaluation.lost)
        if evaluation.lost or self.envs.failures.env_restarts or self.envs.num_envs != self._count:
            self.replace()  # guard: restarts-are-counted-anew-for-every-evaluation
        elif self.saves:
            try:
                self._reset_unused(len(evaluation.returns))
                self._states = deepcopy(saved_states(cast(VectorEnv, self.envs)))
            except MultiverseError as error:
                log.warning("save_state() failed; new envs are built for the next one: %s", _one_line(error))
                self.replace()

    def _reset_unused(self, played: int) -> None:
        """Reset the envs that an evaluation of few episodes did not use: an env may have no state before its reset."""
        count = self.envs.num_envs
        self._begun = max(self._begun, min(played, count))
        if rest := [*range(self._begun, count)]:
            self.envs.reset(env_ids=rest, seed=[0] * len(rest))  # guard: an-env-is-reset-before-it-is-saved
        self._begun = count

    def fail(self, error: MultiverseError, env_steps: int) -> None:
        """Note an evaluation that ended without a result."""
        self.failed += 1
        self.failed_in_a_row += 1
        before = f", as did the {self.failed_in_a_row - 1} before on the same seeds (evaluation_seed= gives others)"
        log.warning(
            "the evaluation at %s env steps failed%s; the run continues without it: %s",
            f"{env_steps:,}",
            before if self.failed_in_a_row > 1 else "",
            _one_line(error),
        )
        self.replace()  # guard: a-failed-evaluation-env-is-replaced

    def account(self) -> dict[str, int]:
        """Return the numbers of failed evaluations and of episodes lost in others, and the failures of the envs."""
        now = Failures() if self._envs is None else self._envs.failures
        return {"failed": self.failed, "lost_episodes": self.lost_episodes, **asdict(self._earlier + now)}

    def state(self) -> Any:
        """Return the state of each env after the last evaluation, if they can be saved."""
        return self._states

    def load(self, states: Any) -> None:
        """Restore the envs from what `state` returned."""
        if states is None or not self.saves:
            return
        try:
            if len(states) != self._count:
                raise EvaluationFailed(f"{len(states)} were saved, and there are {self._count} now")
            self.envs.reset(seed=[0] * self._count)
            self._begun = self._count
            for env_id, state in enumerate(states):
                self.envs.call("restore_state", as_saved(state), env_ids=[env_id])
            self._states = states
        except MultiverseError as error:
            log.warning("the envs could not be restored; new ones are built: %s", _one_line(error))
            self.replace()

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()

    def replace(self) -> None:
        """Close these envs. New ones are built when they are needed."""
        envs, self._envs, self._states, self._begun = self._envs, None, None, 0
        if envs is not None:
            self._earlier = self._earlier + envs.failures
            try:
                envs.close()
            except MultiverseError:  # it has failed already
                pass


@contextmanager
def evaluation_log_prefix() -> Iterator[None]:
    """Prefix what this thread logs meanwhile with "evaluation": the training has an env 3 too."""
    here = threading.get_ident()

    def name(record: logging.LogRecord) -> bool:
        if record.thread == here:
            message = record.getMessage()
            named = f"evaluation {message}" if message.startswith("env ") else f"evaluation: {message}"
            record.msg, record.args = named, ()  # guard: evaluations-failures-are-named
        return True

    log.addFilter(name)
    try:
        yield
    finally:
        log.removeFilter(name)


def _one_line(error: MultiverseError) -> str:
    return str(error).partition("\n")[0]
