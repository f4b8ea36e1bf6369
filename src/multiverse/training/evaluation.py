"""Evaluation: some envs by themselves, acting in one batch, on seeds that no training ever sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from multiverse.contracts.errors import EvaluationFailed, MultiverseError
from multiverse.contracts.failures import BAD_VALUE, RESTARTED, Failures
from multiverse.contracts.policy import Policy, Seen
from multiverse.contracts.seeds import evaluation_seed
from multiverse.experience.features import Features
from multiverse.experience.numpy_policies import no_actions
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
    envs: VectorEnv,
    policy: Policy,
    features: Features,
    episodes: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    lost_before: Collection[int] = (),
) -> Evaluation | None:
    """Episodes on these envs; one that has ended its episode takes the next. Equal seeds give equal episodes, however
    many envs there are and whatever the training looked like.

    None if it was asked to stop on the way; `EvaluationFailed` if no episode came to its end, or if several envs may
    have been lost with their worker. An episode of an env that never ends one is cut after `MOST_STEPS`; one that the
    env failed in does not count, and is told, all the more if it was lost in the last evaluation too.
    """
    batch, numbers = _Batch(envs, policy, features), iter(range(episodes))
    free: Collection[int] = range(envs.num_envs)
    playing: dict[int, int] = {}  # env id → the number of its episode
    found: dict[int, tuple[float, int]] = {}  # number → return and length
    lost: list[int] = []
    while True:
        if free and (begun := dict(zip(free, numbers))):
            batch.begin(list(begun), [evaluation_seed(seed, k) for k in begun.values()])
            playing |= begun
        if not playing:
            break
        if should_stop():
            return None
        free = ended = batch.step(sorted(playing))
        for env_id, failed in ended.items():
            k = playing.pop(env_id)
            if failed:  # guard: an-episode-that-failed-does-not-count
                again = ", as in the evaluation before (evaluation_seed= gives other seeds)" if k in lost_before else ""
                log.warning("episode %d (seed %d) failed and does not count%s", k, evaluation_seed(seed, k), again)
                lost.append(k)
            else:
                found[k] = float(envs.episode_returns[env_id]), int(envs.episode_lengths[env_id])
    if not found:
        raise EvaluationFailed(f"the env failed in each of its {episodes} episodes")
    returns, lengths = zip(*(found[k] for k in sorted(found)))
    return Evaluation(returns, lengths, tuple(sorted(lost)))


class _Batch:
    """Envs under way, and what the policy is shown and remembers of each."""

    def __init__(self, envs: VectorEnv, policy: Policy, features: Features) -> None:
        self._envs, self._policy, self._features, count = envs, policy, features, envs.num_envs
        self._starts, self._rewards = np.zeros(count, np.bool_), np.zeros(count, np.float32)
        self._actions = no_actions(envs.single_action_space, count)  # the last ones
        self._leaves, self._steps = [(leaf.path, dtype_of(leaf)) for leaf in features.all_leaves], 0
        self._first = policy.first_memory(count)
        self._memory = {name: kept.copy() for name, kept in self._first.items()}

    def begin(self, ids: list[int], seeds: list[int]) -> None:
        """Other episodes of these envs: nothing is remembered of those before."""
        self._envs.reset(env_ids=None if len(ids) == self._envs.num_envs else ids, seed=seeds)
        self._refuse_lost_workers()
        self._starts[ids], self._rewards[ids] = True, 0.0
        self._actions[ids] = 0
        for name, kept in self._memory.items():
            kept[ids] = self._first[name][ids]

    def step(self, ids: list[int]) -> dict[int, bool]:
        """One step of these envs: whose episode is over, and whether it failed."""
        envs, policy, everyone = self._envs, self._policy, len(ids) == self._envs.num_envs
        rows: Any = slice(None) if everyone else ids
        shown = envs.observations()
        seen = {path: np.asarray(leaf_of(shown, path), dtype)[rows] for path, dtype in self._leaves}
        open_now, before = self._features.open_actions(seen), (self._actions[rows], self._rewards[rows])
        looked = Seen(seen, self._starts[rows], open_now, *before)
        actions, memory = policy.act(looked, None, {name: kept[rows] for name, kept in self._memory.items()})
        for name, kept in memory.items():
            self._memory[name][rows] = kept
        if self._actions.shape[1:] != actions.shape[1:]:  # of an algorithm of one's own, with actions of another kind
            self._actions = np.zeros((envs.num_envs, *actions.shape[1:]), actions.dtype)
        self._actions[rows], self._starts[rows] = actions, False
        _, rewards, terminated, truncated, infos = envs.step(policy.for_env(actions), env_ids=None if everyone else ids)
        self._rewards[rows], self._steps, over = rewards, self._steps + 1, terminated | truncated
        if self._steps >= MOST_STEPS and (cut := envs.episode_lengths[rows] >= MOST_STEPS).any():
            log.warning("an episode was cut after %d steps of an evaluation: does this env never end one?", MOST_STEPS)
            over |= cut
        if True not in over.tolist():
            return {}
        self._refuse_lost_workers()
        nobody = np.zeros_like(over)
        failed = infos.get(f"_{RESTARTED}", nobody) | infos.get(f"_{BAD_VALUE}", nobody)
        return {env_id: bool(failed[row]) for row, env_id in enumerate(ids) if over[row]}

    def _refuse_lost_workers(self) -> None:
        """Nobody can tell which of several envs has cost all of them their worker, and their episodes."""
        if self._envs.num_envs > 1 and self._envs.failures.worker_restarts:  # guard: nobody-pays-for-a-neighbour
            raise EvaluationFailed("a worker was lost, and with it the episodes of its other envs")


class EvaluationEnvs:
    """The envs that a run's evaluations are played on, with an account of what went wrong there.

    Those of which one has failed are not used again: the next evaluation has new ones.
    """

    def __init__(self, make: Callable[[int], VectorEnv], count: int, restarts_per_minute: int) -> None:
        self._make, self._count, self._most_restarts = make, count, restarts_per_minute
        self._envs: VectorEnv | None = self._built(count)
        self._earlier = Failures()  # of envs that are not used any more
        self.failed = self.failed_in_a_row = self.lost_episodes = 0
        self.lost_before: tuple[int, ...] = ()  # episodes of the last evaluation
        self.saves = False  # whether their states belong to the run's
        self._states: Any = None

    @property
    def envs(self) -> VectorEnv:
        if self._envs is None:
            self._envs = self._built(self._count)
        return self._envs

    def _built(self, count: int) -> VectorEnv:
        try:
            return self._make(count)
        except MultiverseError as error:
            raise EvaluationFailed(f"the evaluation env could not be built: {error}") from error

    def evaluate(self, *how: Any) -> Evaluation | None:
        """As `evaluate` does. What several envs fail at is played again on one: which episodes are lost, and whether
        they are too many, depends neither on how many envs there are nor on who shares a worker with whom."""
        envs, several = self.envs, self.envs.num_envs > 1
        try:
            found = evaluate(envs, *how)
            if found is None or not several or envs.failures.env_restarts <= self._most_restarts:
                return found
            why = f"more than restarts_per_minute={self._most_restarts}"
        except MultiverseError as error:
            if not several:
                raise
            why = _one_line(error)
        log.warning("played again on one env by itself: %s", why)
        self._replace()
        self._envs = self._built(1)
        return evaluate(self._envs, *how)

    def succeeded(self, found: Evaluation) -> None:
        """An evaluation has come to its end; whoever failed on the way is replaced."""
        self.failed_in_a_row, self.lost_before = 0, found.lost
        self.lost_episodes += len(found.lost)
        if found.lost or self.envs.failures.env_restarts or self.envs.num_envs != self._count:
            self._replace()  # guard: restarts-are-counted-anew-for-every-evaluation
        elif self.saves:
            try:
                self._states = deepcopy(saved_states(self.envs))
            except MultiverseError as error:
                log.warning("save_state() failed, and the next ones are built anew: %s", _one_line(error))
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
        now = Failures() if self._envs is None else self._envs.failures
        return {"failed": self.failed, "lost_episodes": self.lost_episodes, **asdict(_sum(self._earlier, now))}

    def state(self) -> Any:
        """How each env was after the last evaluation, if they can be saved."""
        return self._states

    def load(self, states: Any) -> None:
        """Be as they were then; from what `state` gave, once of the only one."""
        if states is None or not self.saves:
            return
        states = [states] if isinstance(states, Mapping) else states
        try:
            if len(states) != self._count:
                raise EvaluationFailed(f"there were {len(states)}, and there are {self._count} now")
            self.envs.reset(seed=[0] * self._count)
            for env_id, state in enumerate(states):
                self.envs.call("restore_state", as_saved(state), env_ids=[env_id])
            self._states = states
        except MultiverseError as error:
            log.warning("they could not be put back as they were, and are built anew: %s", _one_line(error))
            self._replace()

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()

    def _replace(self) -> None:
        """Not before somebody asks for them: perhaps nobody does."""
        envs, self._envs, self._states = self._envs, None, None
        if envs is not None:
            self._earlier = _sum(self._earlier, envs.failures)
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


def _sum(one: Failures, other: Failures) -> Failures:
    return Failures(*(a + b for a, b in zip(astuple(one), astuple(other))))


def _one_line(error: MultiverseError) -> str:
    return str(error).partition("\n")[0]
