"""Rollouts filled by workers, under the same faults, audited row by row.

A fault within a rollout is only known after it: the lost rows show where it happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import multiverse as mv
from benchmarks.soaking.audit import MOST_COMPLAINTS
from benchmarks.soaking.fates import COSTS_THE_WORKER, NUM_ACTIONS, Schedule, Soaked
from benchmarks.soaking.signals import Hits
from multiverse.core.env import EnvDescription
from multiverse.core.layout import SINGLE_AGENT, Field
from multiverse.core.policy import Policy, Seen
from multiverse.policies.features import Features
from multiverse.policies.heads import DiscreteHead
from multiverse.policies.numpy_policies import NumpyPolicy
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.episodes import Collected, Episode
from multiverse.rollouts.rollout import Rollout, RolloutShape
from multiverse.rollouts.rollout_arrays import rollout_fields

STEPS = 40
"""Number of steps in a rollout."""
VERSION = 0
"""Version of the policy, which is not trained."""


def shape_for(observation_space: Any, num_envs: int) -> RolloutShape:
    return RolloutShape(
        SINGLE_AGENT, observation_space, STEPS, num_envs, ((), np.int64), noise=((NUM_ACTIONS,), np.float32)
    )


def fields_for(description: EnvDescription, num_envs: int) -> list[Field]:
    """For `OpenedEnvs.bind`: rollouts are filled where the envs run."""
    return rollout_fields([shape_for(description.groups[0].observation_space, num_envs)], num_envs)


class Rollouts:
    """Collects rollouts with a policy that depends on observations, and audits them."""

    def __init__(self, envs: mv.VectorEnv, schedule: Schedule, envs_per_worker: int, hits: Hits) -> None:
        features = Features(envs.single_observation_space, envs.single_action_space)
        shape = shape_for(envs.single_observation_space, envs.num_envs)
        self._envs, self._collector = envs, Collector(envs, [shape], None, schedule)
        draw = np.random.default_rng((schedule.run_seed, 3))
        layers = [
            (draw.normal(size=(features.size, NUM_ACTIONS)).astype(np.float32), np.zeros(NUM_ACTIONS, np.float32))
        ]
        self._policy = NumpyPolicy(features, layers, "tanh", DiscreteHead(NUM_ACTIONS), VERSION)
        self._noise, self._same_noise = (np.random.default_rng((schedule.run_seed, 4)) for _ in range(2))
        (self.rollout,) = self._collector.rollouts
        self.auditor = RolloutAuditor(schedule, envs.num_envs, envs_per_worker, hits)

    def begin(self) -> None:
        self._envs.reset()
        self._collector.begin()
        self.auditor.begin(self._envs.episode_counts)

    def collect(self) -> Collected:
        collected = self._collector.collect([self._policy], self._noise)
        assert collected is not None
        return collected

    def check(self, collected: Collected) -> None:
        noise = self._policy.noise(self._same_noise, STEPS, self.rollout.slots)
        self.auditor.check_actions(self.rollout, self._policy, noise)
        self.auditor.take(self.rollout, collected, self._envs.episode_counts, self._envs.worker_pids)


class _Book:
    """One env's episode, replayed by a clean env with the same actions."""

    def __init__(self, env_id: int) -> None:
        self.env_id, self.episode = env_id, -1
        self._env = Soaked(harmless=True)

    def begin(self, schedule: Schedule, episode: int) -> None:
        self.episode, self.steps, self.returned = episode, 0, 0.0
        request = schedule(self.env_id, episode)
        self.fate, self.seed = schedule.fate(self.env_id, episode), request.seed
        self.shown, _ = self._env.reset(seed=request.seed, options=request.options)

    @property
    def due(self) -> str:
        """Fault scheduled for the next step."""
        return self.fate.what if self.steps + 1 == self.fate.step else ""

    def step(self, action: int) -> tuple[float, bool, bool]:
        self.shown, reward, terminated, truncated, _ = self._env.step(action)
        self.steps, self.returned = self.steps + 1, self.returned + reward
        return reward, terminated, truncated

    def summed_up(self, lost: bool) -> Episode:
        return Episode(self.env_id, self.episode, self.seed, self.returned, self.steps, lost, version=VERSION)


class RolloutAuditor:
    """Checks that every row of a rollout is that of a clean run, or lost because of a known fault."""

    def __init__(self, schedule: Schedule, num_envs: int, envs_per_worker: int, hits: Hits) -> None:
        self._schedule, self._per_worker, self._hits = schedule, envs_per_worker, hits
        self._books = [_Book(env_id) for env_id in range(num_envs)]
        self._replaced: set[str] = set()  # hit from outside and then replaced
        self.met: Counter[str] = Counter()
        self.unsure: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.rows_sent = self.rows_lost = self.rows_equal = self.whole_episodes = self.cut_episodes = 0

    def begin(self, episodes: np.ndarray) -> None:
        for book, episode in zip(self._books, episodes.tolist()):
            book.begin(self._schedule, episode)

    def check_actions(self, rollout: Rollout, policy: Policy, noise: np.ndarray) -> None:
        """Check that every valid action is that of the policy for its observation."""
        for t in range(rollout.steps):
            seen = Seen({path: rows[t] for path, rows in rollout.observations.items()}, rollout.starts[t])
            wrong = (policy.act(seen, noise[t], {})[0] != rollout.actions[t]) & rollout.valid[t]
            for env_id in np.flatnonzero(wrong).tolist():
                self._expect(False, self._books[env_id], f"row {t}: an action that is not the policy's")

    def take(self, rollout: Rollout, collected: Collected, episodes: np.ndarray, pids: Sequence[int]) -> None:
        """Check a whole rollout, the episodes that ended in it, and the causes of lost rows."""
        self._rollout, self._ended = rollout, iter(collected.episodes)
        self._following = [
            [*(e.index for e in collected.episodes if e.env_id == i), episode][1:] for i, episode in enumerate(episodes)
        ]
        losses: Counter[int] = Counter()  # of workers
        hangs: Counter[int] = Counter()  # those of them in which an env was to hang
        for t in range(rollout.steps):
            self._blame(t, losses, hangs)
            for book in self._books:
                self._row(t, book)
        for book in self._books:
            self._expect(_same(rollout.last[()][book.env_id], book.shown), book, "what is seen last is another")
            self._expect(not self._following[book.env_id], book, "more episodes ended than rows say")
        self.rows_sent += rollout.valid.size
        lost = int((~rollout.valid).sum())
        self.rows_lost += lost
        self._expect(collected.lost_steps == lost, self._books[0], f"{collected.lost_steps} lost steps, {lost} rows")
        self._account(losses, hangs, pids)

    def _blame(self, t: int, losses: Counter[int], hangs: Counter[int]) -> None:
        """Check lost rows: either a fault of the env was due, or the worker and all its envs are lost."""
        for worker in range(len(self._books) // self._per_worker):
            mine = self._books[worker * self._per_worker : (worker + 1) * self._per_worker]
            lost = [book for book in mine if not self._rollout.valid[t, book.env_id]]
            for book in mine:
                self._expect(not book.due or book in lost, book, f"{book.due} was due, and a good row came")
            alone = {book.due for book in lost}.isdisjoint({"", *COSTS_THE_WORKER})
            for book in lost:
                if book.due:
                    (self.met if alone or book.due in COSTS_THE_WORKER else self.unsure)[book.due] += 1
            if lost and not alone:
                self._expect(len(lost) == len(mine), lost[0], "lost for no reason, and the others of its worker not")
                losses[worker] += 1
                hangs[worker] += any(book.due in COSTS_THE_WORKER for book in lost)

    def _row(self, t: int, book: _Book) -> None:
        rollout, i = self._rollout, book.env_id
        seen, valid = rollout.observations[()][t, i], bool(rollout.valid[t, i])
        self._expect(_same(seen, book.shown), book, "differs from a clean run")
        self._expect(bool(rollout.starts[t, i]) == (book.steps == 0), book, "starts where none does")
        expected = book.step(int(rollout.actions[t, i])) if valid else (0.0, False, True)
        delivered = float(rollout.rewards[t, i]), bool(rollout.terminated[t, i]), bool(rollout.truncated[t, i])
        self._expect(delivered == (np.float32(expected[0]), *expected[1:]), book, f"{delivered} instead of {expected}")
        self.rows_equal += valid
        if delivered[1] or delivered[2]:
            self._expect(_same(rollout.finals[()][t, i], book.shown), book, "its final observation is another")
            ended = next(self._ended, None)
            summed = book.summed_up(lost=not valid)
            self._expect(ended == summed, book, f"{ended} instead of {summed}")
            self.whole_episodes, self.cut_episodes = self.whole_episodes + valid, self.cut_episodes + (not valid)
            following = self._following[i].pop(0) if self._following[i] else -1
            self._expect(following > book.episode, book, f"episode {following} after {book.episode}")
            book.begin(self._schedule, max(following, 0))

    def _account(self, losses: Counter[int], hangs: Counter[int], pids: Sequence[int]) -> None:
        """Check that every lost worker was hit from outside or hung; workers that hung are noted as hit."""
        for worker in range(len(pids)):
            now = self._hits.process(pids[worker])
            gone = {process for process in self._hits.workers[worker] if process != now} - self._replaced
            self._replaced |= gone
            least, most = losses[worker] - hangs[worker], losses[worker]
            message = f"worker {worker} lost {most} times, {hangs[worker]} of them hung, {len(gone)} hit"
            self._expect(least <= len(gone) <= most, self._books[worker * self._per_worker], message)
            if hangs[worker]:
                self._hits.silenced |= gone  # one of them may have hung before it was hit
            for _ in range(most - len(gone)):
                self._hits.silenced.add(f"unknown {len(self._hits)}")  # its pid is unknown

    def _expect(self, fine: bool, book: _Book, complaint: str) -> None:
        if not fine and len(self.complaints) < MOST_COMPLAINTS:
            self.complaints.append(f"env {book.env_id}, episode {book.episode}, step {book.steps}: {complaint}")


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays are bit-identical."""
    return one.tobytes() == other.tobytes()
