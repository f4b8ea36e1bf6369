"""Envs of evaluations: kept between evaluations, replaced when they fail, with counts of their failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from typing import Any, cast

from multiverse.core.errors import EvaluationFailed, MultiverseError
from multiverse.core.failures import FAILURES_COMPARED, RESTARTS_IN_A_ROW, Failures
from multiverse.core.policy import Policy
from multiverse.rollouts.restoring import as_saved, saved_states
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.evaluation import Evaluation, EvaluationOptions, evaluate
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.single import VectorEnv

log = logging.getLogger("multiverse")

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
        """Whether one env that plays all episodes would certainly have been restarted often enough for these
        failures."""
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
