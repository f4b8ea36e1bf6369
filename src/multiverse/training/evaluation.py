"""Evaluation: one env by itself, one episode after another, on seeds that no training ever sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from multiverse.contracts.errors import EvaluationFailed, MultiverseError
from multiverse.contracts.failures import BAD_VALUE, RESTARTED, Failures
from multiverse.contracts.infos import Infos
from multiverse.contracts.policy import Policy, Seen
from multiverse.contracts.seeds import evaluation_seed
from multiverse.experience.features import Features
from multiverse.experience.restoring import as_saved, saved_states
from multiverse.experience.rollout import dtype_of, leaf_of
from multiverse.vector.single import VectorEnv

log = logging.getLogger("multiverse")

MOST_STEPS = 50_000
"""Of one episode: about twice what the longest of the usual benchmarks has."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good a policy was, deterministic, over some episodes."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    lost: tuple[int, ...] = ()  # episodes that their env failed in, from 0: they do not count

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    def summary(self) -> dict[str, Any]:
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "mean_length": self.mean_length,
            "episodes": len(self.returns),
            **({"lost_episodes": len(self.lost)} if self.lost else {}),
        }


def evaluate(
    env: VectorEnv,
    policy: Policy,
    features: Features,
    episodes: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    lost_before: Collection[int] = (),
) -> Evaluation | None:
    """Episodes on a single env, the same ones for the same seed whatever the training looked like.

    None if it was asked to stop on the way; `EvaluationFailed` if no episode came to its end. An episode of an env that
    never ends one is cut after `MOST_STEPS`; one that the env failed in does not count, and is told, all the more if it
    was lost in the last evaluation too.
    """
    returns, lengths, lost = [], [], []
    for k in range(episodes):
        infos = _played(env, policy, features, evaluation_seed(seed, k), should_stop)
        if infos is None:
            return None
        if RESTARTED in infos or BAD_VALUE in infos:  # guard: an-episode-that-failed-does-not-count
            again = ", as in the evaluation before (evaluation_seed= gives other seeds)" if k in lost_before else ""
            log.warning("episode %d (seed %d) failed and does not count%s", k, evaluation_seed(seed, k), again)
            lost.append(k)
            continue
        returns.append(float(env.episode_returns[0]))
        lengths.append(int(env.episode_lengths[0]))
    if not returns:
        raise EvaluationFailed(f"the env failed in each of its {episodes} episodes")
    return Evaluation(tuple(returns), tuple(lengths), tuple(lost))


def _played(
    env: VectorEnv, policy: Policy, features: Features, seed: int, should_stop: Callable[[], bool]
) -> Infos | None:
    """One episode: the infos of its last step; None if it was asked to stop."""
    nobody, somebody = np.zeros(1, np.bool_), np.ones(1, np.bool_)
    observations, _ = env.reset(seed=[seed])
    starts, over, steps = somebody, False, 0
    memory = policy.first_memory(1)
    previous: tuple[Any, Any] = (None, np.zeros(1, np.float32))
    infos: Infos = {}
    while not over:
        if should_stop():
            return None
        seen = {
            leaf.path: np.asarray(leaf_of(observations, leaf.path)).astype(dtype_of(leaf), copy=False)
            for leaf in features.all_leaves
        }
        shown = Seen(seen, starts, features.open_actions(seen), previous[0], previous[1])
        action, memory = policy.act(shown, None, memory)
        observations, rewards, terminated, truncated, infos = env.step(policy.for_env(action))
        steps, previous = steps + 1, (action, rewards.astype(np.float32))
        starts, over = nobody, bool(terminated[0] or truncated[0]) or steps >= MOST_STEPS
    if steps >= MOST_STEPS:
        log.warning("an episode was cut after %d steps of an evaluation: does this env never end one?", MOST_STEPS)
    return infos


class EvaluationEnv:
    """The env that a run's evaluations are played on, with an account of what went wrong there.

    One that has failed is not used again: the next evaluation has a new one.
    """

    def __init__(self, make: Callable[[], VectorEnv]) -> None:
        self._make = make
        self._env: VectorEnv | None = self._built()
        self._earlier = Failures()  # of envs that are not used any more
        self.failed = self.failed_in_a_row = self.lost_episodes = 0
        self.lost_before: tuple[int, ...] = ()  # episodes of the last evaluation
        self.saves = False  # whether its state belongs to the run's
        self._state: Any = None

    @property
    def env(self) -> VectorEnv:
        if self._env is None:
            self._env = self._built()
        return self._env

    def _built(self) -> VectorEnv:
        try:
            return self._make()
        except MultiverseError as error:
            raise EvaluationFailed(f"the evaluation env could not be built: {error}") from error

    def succeeded(self, found: Evaluation) -> None:
        """An evaluation has come to its end; whoever failed on the way is replaced."""
        self.failed_in_a_row, self.lost_before = 0, found.lost
        self.lost_episodes += len(found.lost)
        if found.lost:
            self._replace()  # guard: restarts-are-counted-anew-for-every-evaluation
        elif self.saves:
            try:
                self._state = deepcopy(saved_states(self.env)[0])
            except MultiverseError as error:
                log.warning("save_state() failed, and the next one is built anew: %s", _one_line(error))
                self._replace()

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
        self._replace()  # guard: a-failed-evaluation-env-is-replaced

    def account(self) -> dict[str, int]:
        """Evaluations that failed, episodes that were lost in others, and what is counted of any vector env."""
        now = Failures() if self._env is None else self._env.failures
        return {"failed": self.failed, "lost_episodes": self.lost_episodes, **asdict(_sum(self._earlier, now))}

    def state(self) -> Any:
        """How the env was after the last evaluation, if it can be saved."""
        return self._state

    def load(self, state: Any) -> None:
        """Be as it was then; from what `state` gave."""
        if state is None or not self.saves:
            return
        try:
            self.env.reset(seed=[0])
            self.env.call("restore_state", as_saved(state))
            self._state = state
        except MultiverseError as error:
            log.warning("it could not be put back as it was, and is built anew: %s", _one_line(error))
            self._replace()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _replace(self) -> None:
        """Not before somebody asks for it: perhaps nobody does."""
        env, self._env, self._state = self._env, None, None
        if env is not None:
            self._earlier = _sum(self._earlier, env.failures)
            try:
                env.close()
            except MultiverseError:  # it failed already: how it goes does not matter
                pass


@contextmanager
def told_as_evaluations() -> Iterator[None]:
    """What this thread's envs have to say meanwhile is said of the evaluation env: the training has an env 0 too."""
    here = threading.get_ident()

    def name(record: logging.LogRecord) -> bool:
        if record.thread == here:
            record.msg = f"evaluation env: {record.msg}"  # guard: evaluations-failures-are-named
        return True

    log.addFilter(name)
    try:
        yield
    finally:
        log.removeFilter(name)


def _sum(one: Failures, other: Failures) -> Failures:
    return Failures(*(a + b for a, b in zip(astuple(one), astuple(other))))


def _one_line(error: MultiverseError) -> str:
    return str(error).partition("\n")[0]
