"""Asynchronous collection: workers fill rollout after rollout while the learner updates.

A thread has exclusive use of the envs. When a worker has filled its rows, they are copied into a queue, and the worker
begins again with the newest weights. The learner takes as many workers' rollouts from the queue as cover all envs. The
learner may be ahead of the policy that acted: this lag is known for every rollout and bounded; rollouts beyond it are
discarded. A full queue discards its oldest rollout, or, where workers share the learner's cores, makes them pause.
Every env step is accounted for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from multiverse.ipc.interrupts import NAP_S, PATIENCE_S, StopRequests, StopWaiting
from multiverse.rollouts.episodes import Collected, Episode, RunningEpisodes
from multiverse.rollouts.host_rows import fill_rows
from multiverse.rollouts.rollout import ACTED_BY, LOST, SECONDS, Rollout
from multiverse.rollouts.rollout_arrays import RolloutArrays, RolloutRequest
from multiverse.vector.host_calls import RowRequest

LONGEST_STOP_S = 5 * PATIENCE_S
"""Time allowed for the thread to end; if it takes longer (a worker is being replaced), closing the envs ends it."""


@dataclass(slots=True)
class Account:
    """Env steps of the workers, by use: sent = used + discarded (in three ways) + lost + waiting."""

    sent: int = 0
    used: int = 0  # learned from
    discarded_full: int = 0  # the oldest in a full queue
    discarded_old: int = 0  # beyond the largest lag
    discarded_unfinished: int = 0  # at a stop: unfinished rollouts, and those in the queue
    lost: int = 0  # with an env or a worker
    waiting: int = 0  # in the queue
    largest_lag: int = 0  # of a rollout that was learned from, in updates

    @classmethod
    def saved(cls, counts: Mapping[str, int]) -> Account:
        """The account of a saved run, with steps that waited then counted as discarded."""
        account = cls(**{name: int(count) for name, count in counts.items()})
        account.discarded_unfinished, account.waiting = account.discarded_unfinished + account.waiting, 0
        return account

    @property
    def discarded(self) -> int:
        return self.discarded_full + self.discarded_old + self.discarded_unfinished


@dataclass(frozen=True, slots=True, eq=False)
class WorkerRollout:
    """Rollouts of one worker's envs, one for each group."""

    rollouts: list[Rollout]
    version: int  # of the policy that acted, as recorded by the worker
    envs: int
    lost: int  # env steps
    seconds: tuple[float, float]  # spent acting and stepping

    @property
    def env_steps(self) -> int:
        return self.rollouts[0].steps * self.envs

    @property
    def real_steps(self) -> int:
        """Number of env steps that were not lost."""
        return self.env_steps - self.lost


class RolloutQueue:
    """Rollouts of workers that wait for the learner. One thread puts them in and never waits, another takes them."""

    def __init__(self, most_envs: int, max_lag: int, discards: bool = True) -> None:
        """`most_envs`: number of envs whose rollouts make the queue full. Then the oldest is discarded, or, without
        `discards`, the producer must not begin others."""
        self._most_envs, self._max_lag, self.discards = most_envs, max_lag, discards
        self._rollouts: deque[WorkerRollout] = deque()
        self._changed = threading.Condition()
        self.account, self.error = Account(), None

    error: BaseException | None
    """Exception that ended the thread that puts rollouts in."""

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def envs(self) -> int:
        return sum(rollout.envs for rollout in self._rollouts)

    @property
    def full(self) -> bool:
        with self._changed:
            return self.envs >= self._most_envs

    def counted(self) -> Account:
        """Consistent copy of the account."""
        with self._changed:
            return replace(self.account)

    def put(self, rollout: WorkerRollout) -> None:
        with self._changed:
            account = self.account
            account.sent += rollout.env_steps
            account.lost += rollout.lost
            self._rollouts.append(rollout)
            # The rest suffices for `take`, also where workers have unequal numbers of envs.
            # guard: the-queue-is-bounded
            while self.discards and self.envs - self._rollouts[0].envs >= self._most_envs:
                account.discarded_full += self._rollouts.popleft().real_steps
            self._count_waiting()
            self._changed.notify()

    def fail(self, error: BaseException) -> None:
        """Report that no further rollouts will come; `take` raises this error."""
        with self._changed:
            self.error = error
            self._changed.notify()

    def take(self, envs: int, version: int, should_stop: Callable[[], bool]) -> list[WorkerRollout] | None:
        """Wait for rollouts of this number of envs, and return the oldest; `version`: that of the learner's policy.
        None if `should_stop` ended it before."""
        with self._changed:
            while True:
                if self.error is not None:
                    raise self.error
                self._discard_older_than(version - self._max_lag)
                if self.envs >= envs:
                    break
                if should_stop():
                    return None
                self._changed.wait(NAP_S)  # a signal that is only recorded does not end the wait
            taken: list[WorkerRollout] = []
            while sum(rollout.envs for rollout in taken) < envs:
                taken.append(self._rollouts.popleft())
            for rollout in taken:
                self.account.used += rollout.real_steps
                self.account.largest_lag = max(self.account.largest_lag, version - rollout.version)
            self._count_waiting()
            return taken

    def count_unfinished(self, env_steps: int) -> None:
        """Count steps of rollouts that were not full at a stop."""
        with self._changed:
            self.account.sent += env_steps
            self.account.discarded_unfinished += env_steps

    def clear(self) -> None:
        """Discard the waiting rollouts."""
        with self._changed:
            self.account.discarded_unfinished += sum(rollout.real_steps for rollout in self._rollouts)
            self._rollouts.clear()
            self._count_waiting()

    def _discard_older_than(self, version: int) -> None:
        old = [rollout for rollout in self._rollouts if rollout.version < version]  # guard: the-lag-is-bounded
        self.account.discarded_old += sum(rollout.real_steps for rollout in old)
        self._rollouts = deque(rollout for rollout in self._rollouts if rollout not in old)
        self._count_waiting()

    def _count_waiting(self) -> None:
        self.account.waiting = sum(rollout.real_steps for rollout in self._rollouts)


class AsynchronousCollection:
    """Collection strategy: workers fill rollouts without pause, from the first `collect` until `stop`.

    Only the thread that it starts uses the envs meanwhile.
    """

    def __init__(
        self, arrays: RolloutArrays, episodes: RunningEpisodes, *, queue_size: int, max_lag: int, discards: bool = True
    ) -> None:
        """`queue_size`: number of rollouts of all envs that may wait for the learner. `max_lag`: largest number of
        updates between a rollout's policy and the learner. `discards`: a full queue discards its oldest rollout;
        otherwise workers pause until there is room."""
        self._arrays, self._episodes, self._envs = arrays, episodes, arrays.envs
        self.queue = RolloutQueue(queue_size * arrays.envs.num_envs, max_lag, discards)
        self.thread: threading.Thread | None = None
        self._paused = False
        self.stop_requests = StopRequests()
        self.rollouts: Sequence[Rollout] = arrays.rollouts  # those that were taken from the queue last
        self.env_steps = 0
        self._ended: list[Episode] = []  # since the last `collect`, those of discarded rollouts included
        self._episodes_lock = threading.Lock()

    # -- in the learner's thread ---------------------------------------------------------------------------------
    @property
    def account(self) -> Account:
        """Copy of the current counts."""
        return self.queue.counted()

    def load_account(self, account: Account) -> None:
        """Continue counting from these counts."""
        self.queue.account = account

    def next_episodes(self) -> list[int]:
        """Number of the episode that each env begins after a restart of the run: none is played twice."""
        with self._episodes_lock:
            return [episode + 1 for episode, _ in self._episodes.current]

    def collect(self, request: RolloutRequest) -> Collected | None:
        """Take the next rollouts from the queue; workers continue with these policies."""
        began_at, self._request, self._paused = perf_counter(), request, False
        if self.thread is None:
            self._start()
        parts = self.queue.take(self._envs.num_envs, request.policies[0].version, request.should_stop)
        if parts is None:
            return None
        self.rollouts = [Rollout.joined(group) for group in zip(*(part.rollouts for part in parts))]
        for rollout in self.rollouts:
            if rollout.action_masks is not None and rollout.action_masks.all():
                rollout.action_masks = None
        self.env_steps = sum(part.env_steps for part in parts)
        with self._episodes_lock:
            episodes, self._ended = self._ended, []
        act_s, step_s = (sum(part.seconds[k] for part in parts) for k in range(2))
        return Collected.since(began_at, episodes, sum(part.lost for part in parts), act_s, step_s)

    def rest(self) -> None:
        """Pause: workers finish their current rows, and begin others with the next `collect`."""
        self._paused = True

    def stop(self) -> None:
        """Stop the workers; unfinished and waiting rollouts are discarded, and counted as such."""
        thread, self.thread = self.thread, None
        if thread is not None:
            self.stop_requests.ask()
            thread.join(LONGEST_STOP_S)
        self.queue.clear()

    # -- in the thread that uses the envs ------------------------------------------------------------------------
    def _start(self) -> None:
        self.stop_requests = StopRequests()
        self.thread = threading.Thread(target=self._fill_until_stopped, name="collecting", daemon=True)
        self.thread.start()

    def _fill_until_stopped(self) -> None:
        envs, requests, queue, arrays = self._envs, self.stop_requests, self.queue, self._arrays
        sent, received = envs.failures.steps_sent, queue.account.sent
        try:
            with requests:
                with self._episodes_lock:
                    self._episodes.note_current()
                envs.run_rows(
                    RowRequest(
                        function=fill_rows,
                        arguments=self._begin_rows(arrays.all_envs),
                        lost=arrays.arrays[LOST],
                        should_stop=requests.asked,
                        on_lost=arrays.lose_row,
                        on_full=self._take_over,
                        again=self._begin_rows_again,
                    )
                )
        except StopWaiting:
            pass  # a worker did not react to the request to stop: closing the envs ends it
        except BaseException as error:
            queue.fail(error)
        finally:
            queue.count_unfinished(envs.failures.steps_sent - sent - (queue.account.sent - received))

    def _take_over(self, env_ids: range) -> None:
        """Copy the rows of these envs, which are full, into the queue."""
        arrays, mine = self._arrays.arrays, slice(env_ids.start, env_ids.stop)
        rollouts, lost = [], arrays[LOST][:, mine]
        version = int(arrays[ACTED_BY][env_ids.start])  # guard: the-version-is-that-of-who-acted
        self._arrays.finish_rows(env_ids)
        for rollout, group in zip(self._arrays.rollouts, self._arrays.groups):
            rollout.policy_version = version
            rollouts.append(rollout.copy_of(self._arrays.layout.rows(group, env_ids)))
        with self._episodes_lock:
            self._ended += self._episodes.ended(env_ids)
        act_s, step_s = arrays[SECONDS][mine].sum(axis=0).tolist()
        self.queue.put(WorkerRollout(rollouts, version, len(env_ids), int(lost.sum()), (act_s, step_s)))

    def _begin_rows_again(self, env_ids: range) -> tuple[Any, ...] | None:
        """Arguments with which the worker of these envs continues; None: not now."""
        pauses = self._paused or (not self.queue.discards and self.queue.full)  # guard: a-full-queue-is-not-filled
        return None if pauses else self._begin_rows(env_ids)

    def _begin_rows(self, env_ids: range) -> tuple[Any, ...]:
        """Prepare the next rows of these envs for the newest policies: the arguments of `fill_rows`."""
        return self._arrays.begin_worker_rows(self._request, env_ids)


def account_lines(account: Account) -> dict[str, int]:
    """The account as metrics of the run."""
    return {f"steps_{name}" if name != "largest_lag" else name: count for name, count in asdict(account).items()}
