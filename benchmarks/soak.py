"""Soak test: 16 envs in 8 worker processes that are killed, stopped, hang, raise and return NaN, on a seeded schedule.

    python benchmarks/soak.py --seconds 120 --seed 1
    python benchmarks/soak.py --seconds 3600 --json soak.json

Faults in the envs are a function of (seed, env, episode, step); SIGKILL and SIGSTOP are sent from outside every few
hundred calls. The test alternates between `step`, `send` and `receive`, and rollouts that the same number of further
workers fill. The run must continue, and every check of the summary must hold: nothing hangs, every delivered row is
bit-identical to a clean serial run, every lost row is marked and caused by an injected fault, the counters agree,
nothing leaks and memory does not grow.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import provenance, write_results
from benchmarks.soaking.audit import Auditor
from benchmarks.soaking.fates import Schedule, Soaked
from benchmarks.soaking.resources import Holdings, Memory
from benchmarks.soaking.rollouts import RolloutAuditor, Rollouts, fields_for
from benchmarks.soaking.signals import Hits, Sniper
from benchmarks.soaking.summary import Summary
from multiverse.core.failures import FailureOptions
from multiverse.core.plan import Timeouts, WorkerOptions
from multiverse.vector.opening import OpenedEnvs, VectorOptions, open_envs

NUM_ENVS, WORKERS, SPARED_WORKERS = 16, 8, 1
PER_WORKER = NUM_ENVS // WORKERS
CALL_DEADLINE_S = 60.0
CALLS_IN_A_TURN, ROLLOUTS_IN_A_TURN = 200, 40
CALLS_OF_A_ROLLOUT, ROLLOUT_S = 10, 0.05
"""Calls that a rollout counts for, and the time within which signals are sent."""
LOOK_EVERY_S, REPORT_EVERY_S = 0.5, 5.0
ALL_ENVS = list(range(NUM_ENVS))
SPARED = ("worker 0", "worker 0 of the rollouts")


class Soak:
    """One soak test, from the first reset to `close`."""

    def __init__(self, seconds: float, seed: int, reply_timeout_s: float) -> None:
        self.seconds, self._seed, self._reply_timeout_s = seconds, seed, reply_timeout_s
        self.schedule = Schedule(seed, spared=SPARED_WORKERS * PER_WORKER)
        self._make().close()  # the fork server keeps running, which is not a leak
        self.before = Holdings.now()
        self.envs = self._make()
        opened = self._opened(autoreset="same_step", infos=False, copy=False)
        self.rollout_envs = opened.bind(fields_for(opened.description, NUM_ENVS))
        self.hits, self.rollout_hits = Hits(), Hits()
        self.auditor = Auditor(self.schedule, NUM_ENVS, PER_WORKER, self.hits)
        self.rollouts = Rollouts(self.rollout_envs, self.schedule, PER_WORKER, self.rollout_hits)
        self.memory = {"caller": Memory(os.getpid()), **dict(zip(SPARED, map(Memory, self._spared_pids())))}
        self.calls, self.rollouts_collected, self.longest_call_s = 0, 0, 0.0
        self._begun = time.monotonic()
        self._reported_s = self._looked_s = -REPORT_EVERY_S

    def _make(self) -> Any:
        return self._opened().bind()

    def _opened(self, **settings: Any) -> OpenedEnvs:
        options = VectorOptions(
            executor="process",
            workers=WorkerOptions(count=WORKERS),
            reset_plan=self.schedule,
            failures=FailureOptions(on_failure="restart", on_bad_value="truncate", restarts_per_minute=100_000),
            timeouts=Timeouts(reply_s=self._reply_timeout_s),
            **settings,
        )
        return open_envs(Soaked, NUM_ENVS, options)

    def _spared_pids(self) -> list[int]:
        return [envs.worker_pids[0] for envs in (self.envs, self.rollout_envs)]

    def run(self) -> Summary:
        """Run the test, replace the last workers that were hit, close, and return the summary."""
        with self._watched():
            observations, _ = self.envs.reset()
        self.auditor.begin(observations, self.envs.episode_counts)
        with self._watched():
            self.rollouts.begin()
        running = Holdings.now()
        self.sniper = Sniper(self._seed, SPARED_WORKERS, lambda: self.envs.worker_pids, self.hits)
        self.rollout_sniper = Sniper(
            self._seed, SPARED_WORKERS, lambda: self.rollout_envs.worker_pids, self.rollout_hits, ROLLOUT_S
        )
        self._turn_of_rollouts(1)  # modules loaded for the first rollout belong to the warm-up
        while self._elapsed_s() < self.seconds:
            self._turn_in_lock_step(CALLS_IN_A_TURN)
            self._turn_of_ready_envs(CALLS_IN_A_TURN)
            self._turn_of_rollouts(ROLLOUTS_IN_A_TURN)
        self.sniper.rest()
        self.rollout_sniper.rest()
        self._turn_in_lock_step(3)
        self._turn_of_rollouts(3)
        self.auditor.end()
        at_end, spared = Holdings.now(), self._spared_pids() == [self.memory[name].pid for name in SPARED]
        summary = Summary(self.auditor, self.sniper, self.hits, self.envs.failures)
        of_rollouts = Summary(self.rollouts.auditor, self.rollout_sniper, self.rollout_hits, self.rollout_envs.failures)
        with self._watched():
            self.envs.close()
            self.rollout_envs.close()
        del self.envs, self.rollout_envs, self.rollouts
        summary.add(of_rollouts, "in rollouts")
        summary.check_holdings(running, at_end, self.before, Holdings.now())
        summary.check_memory(self.memory, same_worker=spared)
        summary.figures.update(calls=self.calls, rollouts=self.rollouts_collected, seconds=self._elapsed_s())
        summary.figures.update(longest_call_s=self.longest_call_s)
        return summary

    # -- stepping ------------------------------------------------------------------------------------------------
    def _turn_in_lock_step(self, calls: int) -> None:
        for _ in range(calls):
            self._before_call()
            actions = self.auditor.actions(ALL_ENVS, self.envs.worker_pids)
            with self._watched():
                result = self.envs.step(actions)
            self.auditor.take(ALL_ENVS, result, self.envs.episode_counts)

    def _turn_of_ready_envs(self, calls: int) -> None:
        pending = self._send(ALL_ENVS)
        for call in range(calls):
            self._before_call()
            ready = self._receive(min(pending, NUM_ENVS // 2))
            pending -= len(ready)
            if call < calls - 1:
                pending += self._send(ready)
        while pending:
            pending -= len(self._receive(pending))

    def _turn_of_rollouts(self, rollouts: int) -> None:
        for _ in range(rollouts):
            self.rollouts_collected += 1
            self._check_schedule(self.rollout_sniper, self.rollouts_collected * CALLS_OF_A_ROLLOUT)
            with self._watched():
                collected = self.rollouts.collect()
            self.rollouts.check(collected)

    def _send(self, env_ids: list[int]) -> int:
        actions = self.auditor.actions(env_ids, self.envs.worker_pids)
        with self._watched():
            self.envs.send(actions, env_ids)
        return len(env_ids)

    def _receive(self, min_envs: int) -> list[int]:
        with self._watched():
            batch = self.envs.receive(min_envs)
        ready: list[int] = batch.env_ids.tolist()
        rows = (batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos)
        self.auditor.take(ready, rows, self.envs.episode_counts)
        return ready

    # -- watching ------------------------------------------------------------------------------------------------
    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Watch one call: after the deadline, print the stacks of all threads and exit with an error."""
        faulthandler.dump_traceback_later(CALL_DEADLINE_S, exit=True)
        begun = time.monotonic()
        try:
            yield
        finally:
            self.longest_call_s = max(self.longest_call_s, time.monotonic() - begun)
            faulthandler.cancel_dump_traceback_later()

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def _before_call(self) -> None:
        """Before a call: send signals, measure memory and print progress if they are due."""
        self.calls += 1
        self._check_schedule(self.sniper, self.calls)

    def _check_schedule(self, sniper: Sniper, calls: int) -> None:
        now_s = self._elapsed_s()
        sniper.look(calls)
        if now_s > self._looked_s + LOOK_EVERY_S:
            self._looked_s = now_s
            for memory in self.memory.values():
                memory.look(now_s)
        if now_s > self._reported_s + REPORT_EVERY_S:
            self._reported_s = now_s
            stepping = self._state(self.envs, self.auditor)
            in_rollouts = self._state(self.rollout_envs, self.rollouts.auditor)
            progress = f"{self.calls} calls, {stepping}; {self.rollouts_collected} rollouts, {in_rollouts}"
            print(f"{now_s:6.0f} s  {progress}", file=sys.stderr, flush=True)

    def _state(self, envs: mv.VectorEnv, auditor: Auditor | RolloutAuditor) -> str:
        failures = envs.failures
        restarted = f"{failures.worker_restarts} workers and {failures.env_restarts} envs restarted"
        progress = f"{failures.steps_sent} steps, {auditor.whole_episodes} whole episodes, {restarted}"
        return f"{progress}, {failures.bad_values} bad values, {len(auditor.complaints)} complaints"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--reply-timeout-s",
        type=float,
        default=1.0,
        help="reply timeout of the workers; a late reply counts as a failure",
    )
    parser.add_argument("--json", type=Path, help="also write the summary to this file")
    options = parser.parse_args()
    origin = provenance()
    logging.getLogger("multiverse").setLevel(logging.ERROR)  # without the log line of every restart
    summary = Soak(options.seconds, options.seed, options.reply_timeout_s).run()
    print("\n".join(summary.lines()))
    if options.json:
        write_results(options.json, origin, summary.as_json())
    sys.exit(0 if summary.held else 1)


if __name__ == "__main__":
    main()
