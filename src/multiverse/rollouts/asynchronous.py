"""Collecting without waiting for whoever learns: workers fill rollout after rollout, the learner takes what is there.

A thread has the envs to itself. As soon as a worker has filled its rows they are copied out and put into a queue; the
worker begins again with the newest weights. The learner takes from the queue as many rollouts of workers as make one of
all envs. It may be some updates further than the policy that acted: that lag is known of every rollout, bounded, and
what goes beyond it is discarded. Of a queue that is full the oldest is discarded, or workers rest until there is room:
where they would take the learner's cores to fill what nobody learns from. Every env step is accounted for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from multiverse.core.layout import REWARD, VALUES, Path
from multiverse.core.policy import Policy
from multiverse.core.reset_plan import ResetPlan
from multiverse.ipc.interrupts import NAP_S, PATIENCE_S, StopRequests, StopWaiting
from multiverse.rollouts.collector import Collected, Collector
from multiverse.rollouts.episodes import Episode
from multiverse.rollouts.rollout import ACTED_BY, LOST, SECONDS, Rollout, RolloutShape
from multiverse.rollouts.rows import fill_rows
from multiverse.rollouts.self_play import Opponents
from multiverse.vector.base import BaseVectorEnv

LONGEST_STOP_S = 5 * PATIENCE_S
"""A thread that has not come to its end by then (a worker is just being replaced) does so when its envs are closed."""


@dataclass(slots=True)
class Account:
    """What became of the env steps that workers took: sent = used + discarded (in three ways) + lost + waiting."""

    sent: int = 0
    used: int = 0  # learned from
    discarded_full: int = 0  # the queue was full, and they were the oldest in it
    discarded_old: int = 0  # too many updates had been made since they were begun
    discarded_unfinished: int = 0  # when it was to stop: rollouts that were not full, and what was in the queue
    lost: int = 0  # with an env or a worker
    waiting: int = 0  # in the queue
    largest_lag: int = 0  # of a rollout that was learned from, in updates

    @classmethod
    def saved(cls, counts: Mapping[str, int]) -> Account:
        """To go on counting from: what waited when it was saved is gone."""
        found = cls(**{name: int(count) for name, count in counts.items()})
        found.discarded_unfinished, found.waiting = found.discarded_unfinished + found.waiting, 0
        return found

    @property
    def discarded(self) -> int:
        return self.discarded_full + self.discarded_old + self.discarded_unfinished


@dataclass(frozen=True, slots=True, eq=False)
class WorkerRollout:
    """The rows of one worker's envs, of every group."""

    rollouts: list[Rollout]
    version: int  # of the policy that acted, as the worker has written it down
    envs: int
    lost: int  # env steps
    seconds: tuple[float, float]  # it acted and stepped

    @property
    def env_steps(self) -> int:
        return self.rollouts[0].steps * self.envs

    @property
    def real_steps(self) -> int:
        """Those that were not lost."""
        return self.env_steps - self.lost


class RolloutQueue:
    """Rollouts of workers that nobody has learned from yet. One thread puts them in and never waits, another takes."""

    def __init__(self, most_envs: int, max_lag: int, discards: bool = True) -> None:
        """It is `full` when rollouts of so many envs are in it, of one or several each. Then the oldest is discarded;
        or whoever puts them in sees to it that only those still come which are under way."""
        self._most_envs, self._max_lag, self.discards = most_envs, max_lag, discards
        self._rollouts: deque[WorkerRollout] = deque()
        self._changed = threading.Condition()
        self.account, self.error = Account(), None

    error: BaseException | None
    """What ended the thread that puts rollouts in."""

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def envs(self) -> int:
        return sum(one.envs for one in self._rollouts)

    @property
    def full(self) -> bool:
        with self._changed:
            return self.envs >= self._most_envs

    def counted(self) -> Account:
        """At one moment."""
        with self._changed:
            return replace(self.account)

    def put(self, rollout: WorkerRollout) -> None:
        with self._changed:
            account = self.account
            account.sent += rollout.env_steps
            account.lost += rollout.lost
            self._rollouts.append(rollout)
            # What is left is enough: of workers with unequal shares, no slow one is ever needed to make it so.
            # guard: the-queue-is-bounded
            while self.discards and self.envs - self._rollouts[0].envs >= self._most_envs:
                account.discarded_full += self._rollouts.popleft().real_steps
            self._count_waiting()
            self._changed.notify()

    def fail(self, error: BaseException) -> None:
        """No more will come."""
        with self._changed:
            self.error = error
            self._changed.notify()

    def take(self, envs: int, version: int, should_stop: Callable[[], bool]) -> list[WorkerRollout] | None:
        """The oldest that make so many envs, as soon as there are; `version`: of the policy that learns from them. None
        if it was to stop before that."""
        with self._changed:
            while True:
                if self.error is not None:
                    raise self.error
                self._discard_older_than(version - self._max_lag)
                if self.envs >= envs:
                    break
                if should_stop():
                    return None
                self._changed.wait(NAP_S)  # a signal that is only noted wakes nobody
            found: list[WorkerRollout] = []
            while sum(one.envs for one in found) < envs:
                found.append(self._rollouts.popleft())
            for one in found:
                self.account.used += one.real_steps
                self.account.largest_lag = max(self.account.largest_lag, version - one.version)
            self._count_waiting()
            return found

    def count_unfinished(self, env_steps: int) -> None:
        """They were taken, and are in no rollout: those that were not full when it was to stop."""
        with self._changed:
            self.account.sent += env_steps
            self.account.discarded_unfinished += env_steps

    def clear(self) -> None:
        """Nobody will learn from what waits."""
        with self._changed:
            self.account.discarded_unfinished += sum(one.real_steps for one in self._rollouts)
            self._rollouts.clear()
            self._count_waiting()

    def _discard_older_than(self, version: int) -> None:
        old = [one for one in self._rollouts if one.version < version]  # guard: the-lag-is-bounded
        self.account.discarded_old += sum(one.real_steps for one in old)
        self._rollouts = deque(one for one in self._rollouts if one not in old)
        self._count_waiting()

    def _count_waiting(self) -> None:
        self.account.waiting = sum(one.real_steps for one in self._rollouts)


class AsynchronousCollector(Collector):
    """Rollouts that workers have filled meanwhile, from the first `collect` until it is stopped.

    Only the thread that it starts has anything to do with the envs while it runs.
    """

    def __init__(
        self,
        envs: BaseVectorEnv,
        shapes: Sequence[RolloutShape],
        mask: Path | None,
        reset_plan: ResetPlan,
        queue_size: int,
        max_lag: int,
        discards: bool = True,
    ) -> None:
        """`queue_size`: rollouts of all envs that wait for the learner at most. `max_lag`: updates that it may be ahead
        of a rollout's policy. `discards`: the oldest, if the queue is full; else workers rest until there is room."""
        super().__init__(envs, shapes, mask, reset_plan)
        self.keeps_actions = False
        self._queue = RolloutQueue(queue_size * envs.num_envs, max_lag, discards)
        self._thread: threading.Thread | None = None
        self._resting = False
        self._requests = StopRequests()
        self._full: Sequence[Rollout] = self.rollouts
        self._steps = 0
        self._ended: list[Episode] = []  # since the last `collect`, also in what was discarded
        self._begun_lock = threading.Lock()  # of what the thread writes down of episodes

    # -- whoever learns ------------------------------------------------------------------------------------------
    @property
    def full(self) -> Sequence[Rollout]:
        return self._full

    @property
    def env_steps(self) -> int:
        return self._steps

    @property
    def account(self) -> Account:
        """As it is now."""
        return self._queue.counted()

    def load_account(self, account: Account) -> None:
        """Go on counting from there."""
        self._queue.account = account

    def next_episodes(self) -> list[int]:
        """The number of the episode that each env begins when it is begun anew: none is played twice."""
        with self._begun_lock:
            return [episode + 1 for episode, _ in self._current]

    def collect(
        self,
        policies: Sequence[Policy],
        rng: np.random.Generator,
        should_stop: Callable[[], bool] = lambda: False,
        opponents: Opponents | None = None,
    ) -> Collected | None:
        """The next of what was collected; these policies are the newest from here on."""
        began_at, self._newest, self._resting = perf_counter(), list(policies), False
        if self._thread is None:
            self._start(rng)
        found = self._queue.take(self._envs.num_envs, policies[0].version, should_stop)
        if found is None:
            return None
        self._full = [Rollout.joined(group) for group in zip(*(one.rollouts for one in found))]
        for rollout in self._full:
            if rollout.action_masks is not None and rollout.action_masks.all():
                rollout.action_masks = None
        self._steps = sum(one.env_steps for one in found)
        with self._begun_lock:
            episodes, self._ended = self._ended, []
        act_s, step_s = (sum(one.seconds[k] for one in found) for k in range(2))
        return Collected.in_time(episodes, sum(one.lost for one in found), began_at, act_s, step_s)

    def rest(self) -> None:
        """Workers fill the rows that they are at, and begin no others until the next `collect`."""
        self._resting = True

    def stop(self) -> None:
        """Nobody steps any more; what was under way, and what waits, is discarded and counted."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.ask()
            thread.join(LONGEST_STOP_S)
        self._queue.clear()

    # -- the thread that has the envs ----------------------------------------------------------------------------
    def _start(self, rng: np.random.Generator) -> None:
        self._rng, self._requests = rng, StopRequests()
        self._thread = threading.Thread(target=self._fill_until_stopped, name="collecting", daemon=True)
        self._thread.start()

    def _fill_until_stopped(self) -> None:
        envs, requests, queue = self._envs, self._requests, self._queue
        sent, received = envs.failures.steps_sent, queue.account.sent
        try:
            with requests:
                lost, everyone = self._arrays[LOST], range(envs.num_envs)
                with self._begun_lock:
                    self._current = [self._begun(env_id) for env_id in everyone]
                self._before = [self._arrays[(r.group, VALUES)].copy() for r in self.rollouts], self.starts
                arguments = self._begun_anew(everyone)
                how = self._lost_with_worker, None, self._take_over, self._again
                envs.run_rows(fill_rows, arguments, lost, requests.asked, *how)
        except StopWaiting:
            pass  # somebody hangs who was told to stop: closing ends it
        except BaseException as error:
            queue.fail(error)
        finally:
            queue.count_unfinished(envs.failures.steps_sent - sent - (queue.account.sent - received))

    def _take_over(self, env_ids: range) -> None:
        """These envs' rows are full: into the queue with a copy of them."""
        arrays, mine = self._arrays, slice(env_ids.start, env_ids.stop)
        rollouts, lost = [], arrays[LOST][:, mine]
        version = int(arrays[ACTED_BY][env_ids.start])  # guard: the-version-is-that-of-who-acted
        for rollout, values in zip(self.rollouts, self._values):
            slots = self._layout.rows(self._group(rollout), env_ids)
            rollout.policy_version = version
            rollout.rewards[:, slots] = values[:, REWARD, slots]
            rollout.valid[:, slots] &= ~self._of_slots(lost, rollout)
            rollouts.append(rollout.some(slots))
        with self._begun_lock:
            self._ended += self._episodes(env_ids)
        act_s, step_s = arrays[SECONDS][mine].sum(axis=0).tolist()
        self._queue.put(WorkerRollout(rollouts, version, len(env_ids), int(lost.sum()), (act_s, step_s)))

    def _again(self, env_ids: range) -> tuple[Any, ...] | None:
        """What these envs go on with; None: not now."""
        rests = self._resting or (not self._queue.discards and self._queue.full)  # guard: a-full-queue-is-not-filled
        return None if rests else self._begun_anew(env_ids)

    def _begun_anew(self, env_ids: range) -> tuple[Any, ...]:
        """The next rows of these envs are about to be filled, with the newest policies: the arguments for that."""
        policies, (values_before, starts_before) = self._newest, self._before
        self._begin_rows(policies, self._rng, env_ids)
        for rollout, values in zip(self.rollouts, values_before):  # for rows that are lost
            slots = self._layout.rows(self._group(rollout), env_ids)
            values[:, slots] = self._arrays[(rollout.group, VALUES)][:, slots]
        starts_before[env_ids.start : env_ids.stop] = self.starts[env_ids.start : env_ids.stop]
        return [policy.portable() for policy in policies], self._mask, None


def account_lines(account: Account) -> dict[str, int]:
    """As metrics have it."""
    return {f"steps_{name}" if name != "largest_lag" else name: count for name, count in asdict(account).items()}
