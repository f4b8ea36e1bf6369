"""The auditor: every row is either that of a clean run, or lost because of a known fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.soaking.fates import BAD_VALUES, COSTS_THE_WORKER, Delivered, Fate, Schedule, action_of, clean_episode
from benchmarks.soaking.signals import Hits

MOST_COMPLAINTS = 20


class _Book:
    """Rows of one env's episode delivered so far."""

    def __init__(self, env_id: int) -> None:
        self.env_id, self.episode = env_id, -1
        self.rows: list[Delivered] = []  # the first observation, then one per step
        self.over = True
        self.fate = Fate(0)
        self.due = ""  # fault scheduled for the current step
        self.asked = ""  # process of the worker that makes the step


class Auditor:
    """Chooses the actions of each env and checks the results."""

    def __init__(self, schedule: Schedule, num_envs: int, envs_per_worker: int, hits: Hits) -> None:
        self._schedule, self._per_worker, self._hits = schedule, envs_per_worker, hits
        self._books = [_Book(env_id) for env_id in range(num_envs)]
        self.met: Counter[str] = Counter()  # faults in the envs, by kind
        self.unsure: Counter[str] = (
            Counter()
        )  # faults whose worker was also hit from outside, which may not have happened
        self.complaints: list[str] = []
        self.rows_sent = self.rows_lost = self.rows_equal = 0
        self.whole_episodes = self.cut_episodes = 0

    # -- before a step -------------------------------------------------------------------------------------------
    def actions(self, env_ids: Sequence[int], worker_pids: Sequence[int]) -> np.ndarray:
        """Return the next action of each env, noting the scheduled faults."""
        return np.array([self._ask(self._books[i], worker_pids) for i in env_ids], np.int64)

    def _ask(self, book: _Book, worker_pids: Sequence[int]) -> int:
        self.rows_sent += 1
        book.asked = self._hits.process(worker_pids[book.env_id // self._per_worker])
        step = len(book.rows)
        book.due = book.fate.what if not book.over and step == book.fate.step else ""
        if book.due in COSTS_THE_WORKER:
            self._hits.silenced.add(book.asked)
        return action_of(book.env_id, book.episode, step)

    # -- after it ------------------------------------------------------------------------------------------------
    def begin(self, observations: np.ndarray, episodes: np.ndarray) -> None:
        """After the first reset of all."""
        for book, observation, episode in zip(self._books, observations, episodes.tolist()):
            self._begin(book, observation, episode)

    def take(self, env_ids: Sequence[int], result: tuple[Any, ...], episodes: np.ndarray) -> None:
        """Check the rows of one call, in the form that `step` returns."""
        observations, rewards, terminated, truncated, infos = result
        restarted, bad = _marks(infos, "restarted", len(env_ids)), _marks(infos, "bad_value", len(env_ids))
        for row, env_id in enumerate(env_ids):
            book = self._books[env_id]
            delivered = (float(rewards[row]), bool(terminated[row]), bool(truncated[row]))
            if restarted[row] or bad[row]:
                self._lost(book, observations[row], delivered, "bad_value" if bad[row] else "restarted")
            elif book.over:
                self._begin(book, observations[row], int(episodes[env_id]))
                self._expect(delivered == (0.0, False, False), book, f"its reset came with {delivered}")
            else:
                self._step(book, observations[row], delivered)

    def _begin(self, book: _Book, observation: np.ndarray, episode: int) -> None:
        self._expect(episode > book.episode, book, f"episode {episode} after {book.episode}")
        book.episode, book.over, book.due = episode, False, ""
        book.fate = self._schedule.fate(book.env_id, episode)
        book.rows = [(observation.tobytes(), 0.0, False, False)]

    def _step(self, book: _Book, observation: np.ndarray, delivered: tuple[float, bool, bool]) -> None:
        self._expect(not book.due, book, f"{book.due} was due, and a good row came")
        book.rows.append((observation.tobytes(), *delivered))
        if delivered[1] or delivered[2]:
            self.whole_episodes += 1
            self._compare(book, whole=True)

    def _lost(self, book: _Book, observation: np.ndarray, delivered: tuple[float, bool, bool], marker: str) -> None:
        """Check a row that is marked as lost: it must have a cause, and the documented content."""
        self.rows_lost += 1
        hit = book.asked in self._hits
        expected = "bad_value" if book.due in BAD_VALUES else "restarted"
        self._expect(hit or book.due != "", book, f"{marker}, and no fault had happened")
        self._expect(hit or marker == expected, book, f"{book.due} was due and the row says {marker}")
        self._expect(delivered == (0.0, False, True), book, f"a lost row with {delivered}")
        if book.due:
            (self.unsure if hit and book.due not in COSTS_THE_WORKER else self.met)[book.due] += 1
        if not book.over:
            self._expect(observation.tobytes() == book.rows[-1][0], book, "a lost row that does not show the last one")
            self.cut_episodes += 1
            self._compare(book, whole=False)

    def _compare(self, book: _Book, whole: bool) -> None:
        """Compare the delivered rows of an episode with a clean run, bit for bit."""
        expected = list(clean_episode(self._schedule, book.env_id, book.episode))
        if not whole:
            expected = expected[: len(book.rows)]
        self._expect(book.rows == expected, book, "differs from a clean run")
        self.rows_equal += len(book.rows)
        book.over, book.rows = True, book.rows[-1:]

    def end(self) -> None:
        """Compare the delivered rows of unfinished episodes too."""
        for book in self._books:
            if not book.over:
                self._compare(book, whole=False)

    def _expect(self, fine: bool, book: _Book, complaint: str) -> None:
        if not fine and len(self.complaints) < MOST_COMPLAINTS:
            self.complaints.append(f"env {book.env_id}, episode {book.episode}, step {len(book.rows)}: {complaint}")


def _marks(infos: Mapping[str, Any], key: str, count: int) -> Sequence[bool]:
    marks: Sequence[bool] = infos.get(f"_{key}", [False] * count)
    return marks
