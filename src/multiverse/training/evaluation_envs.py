"""The envs of evaluations: kept between them, replaced when they fail, and what went wrong there counted."""

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
from multiverse.training.evaluation import Evaluation, evaluate
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.single import VectorEnv

log = logging.getLogger("multiverse")

EVALUATION_COST = 10
"""Env steps of training for each env step of default evaluations before the last one."""


def affordable_episodes(config: TrainConfig, trained: int, evaluated: int, length: float, least: int) -> int:
    """Return how many episodes a default evaluation before the last one has; 0 leaves it out.

    As many as keep all evaluations within a tenth of the env steps of training so far (`trained`), after the env steps
    `evaluated` in those before; but `least` in any case, unless all evaluations would then take more env steps than the
    training so far. `length`: of an episode. Nothing here is measured by a clock: a resumed run makes the same choice.
    """
    affordable = int((trained / EVALUATION_COST - evaluated) // max(1.0, length))
    episodes = min(config.episodes_per_evaluation, max(least, affordable - affordable % least))
    return episodes if evaluated + least * length <= trained else 0


class EvaluationEnvs:
    """The envs that a run's evaluations are played on, with an account of what went wrong there.

    Those of which one has failed are not used again: the next evaluation has new ones.
    """

    def __init__(self, make: Callable[[int], BaseVectorEnv], count: int, restarts_per_minute: int | None) -> None:
        self._make, self._count, self._restarts_per_minute = make, count, restarts_per_minute
        self._envs: BaseVectorEnv | None = self._built(count)
        self._earlier = Failures()  # of envs that are not used any more
        self.failed = self.failed_in_a_row = self.lost_episodes = 0
        self.lost_before: tuple[int, ...] = ()  # episodes of the last evaluation
        self._begun = 0  # envs that have been reset since they were built
        self.saves = False  # whether their states belong to the run's
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
        self, policies: Sequence[Policy], episodes: int | Sequence[int], seed: int, **how: Any
    ) -> Evaluation | None:
        """As `evaluate` does. What several envs fail at is played again on one: which episodes are lost, and whether
        they are too many, depends neither on how many envs there are nor on who shares a worker with whom."""
        envs, several = self.envs, self.envs.num_envs > 1
        try:
            found = evaluate(envs, policies, episodes, seed, **how)
            if found is None or not several or self._one_would_do(found, envs.failures.env_restarts):
                return found
            why = f"{envs.failures.env_restarts} restarts, which may be too many for one env"
        except MultiverseError as error:
            if not several:
                raise
            why = _one_line(error)
        log.warning("played again on one env by itself: %s", why)
        self.replace()
        self._envs = self._built(1)
        return evaluate(self._envs, policies, episodes, seed, **how)

    def _one_would_do(self, found: Evaluation, restarts: int) -> bool:
        """Whether one env, which plays all episodes, would surely have had enough restarts for these failures."""
        if self._restarts_per_minute is not None:
            return restarts <= self._restarts_per_minute
        if restarts <= RESTARTS_IN_A_ROW:
            return True
        in_a_row = zip(found.lost, found.lost[RESTARTS_IN_A_ROW:])
        once_each = restarts == len(found.lost) < FAILURES_COMPARED
        return once_each and not any(last - first == RESTARTS_IN_A_ROW for first, last in in_a_row)

    def succeeded(self, found: Evaluation) -> None:
        """An evaluation has come to its end; whoever failed on the way is replaced."""
        self.failed_in_a_row, self.lost_before = 0, found.lost
        self.lost_episodes += len(found.lost)
        if found.lost or self.envs.failures.env_restarts or self.envs.num_envs != self._count:
            self.replace()  # guard: restarts-are-counted-anew-for-every-evaluation
        elif self.saves:
            try:
                self._begin_the_rest(len(found.returns))
                self._states = deepcopy(saved_states(cast(VectorEnv, self.envs)))
            except MultiverseError as error:
                log.warning("save_state() failed, and the next ones are built anew: %s", _one_line(error))
                self.replace()

    def _begin_the_rest(self, played: int) -> None:
        """Reset the envs that an evaluation of few episodes has left out: an env may have no state before that."""
        count = self.envs.num_envs
        self._begun = max(self._begun, min(played, count))
        if rest := [*range(self._begun, count)]:
            self.envs.reset(env_ids=rest, seed=[0] * len(rest))  # guard: an-env-is-reset-before-it-is-saved
        self._begun = count

    def fail(self, error: MultiverseError, env_steps: int) -> None:
        """An evaluation has ended without a result."""
        self.failed += 1
        self.failed_in_a_row += 1
        before = f", as did the {self.failed_in_a_row - 1} before on the same seeds (evaluation_seed= gives others)"
        log.warning(
            "the evaluation at %s env steps failed%s; the run goes on without it: %s",
            f"{env_steps:,}",
            before if self.failed_in_a_row > 1 else "",
            _one_line(error),
        )
        self.replace()  # guard: a-failed-evaluation-env-is-replaced

    def account(self) -> dict[str, int]:
        """Evaluations that failed, episodes that were lost in others, and what is counted of any vector env."""
        now = Failures() if self._envs is None else self._envs.failures
        return {"failed": self.failed, "lost_episodes": self.lost_episodes, **asdict(self._earlier + now)}

    def state(self) -> Any:
        """How each env was after the last evaluation, if they can be saved."""
        return self._states

    def load(self, states: Any) -> None:
        """Be as they were then; from what `state` gave."""
        if states is None or not self.saves:
            return
        try:
            if len(states) != self._count:
                raise EvaluationFailed(f"there were {len(states)}, and there are {self._count} now")
            self.envs.reset(seed=[0] * self._count)
            self._begun = self._count
            for env_id, state in enumerate(states):
                self.envs.call("restore_state", as_saved(state), env_ids=[env_id])
            self._states = states
        except MultiverseError as error:
            log.warning("they could not be put back as they were, and are built anew: %s", _one_line(error))
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
            except MultiverseError:  # it failed already: how it goes does not matter
                pass


@contextmanager
def told_as_evaluations() -> Iterator[None]:
    """What this thread's envs have to say meanwhile is said of the evaluation's: the training has an env 3 too."""
    here = threading.get_ident()

    def name(record: logging.LogRecord) -> bool:
        if record.thread == here:
            told = record.getMessage()
            named = f"evaluation {told}" if told.startswith("env ") else f"evaluation: {told}"
            record.msg, record.args = named, ()  # guard: evaluations-failures-are-named
        return True

    log.addFilter(name)
    try:
        yield
    finally:
        log.removeFilter(name)


def _one_line(error: MultiverseError) -> str:
    return str(error).partition("\n")[0]
