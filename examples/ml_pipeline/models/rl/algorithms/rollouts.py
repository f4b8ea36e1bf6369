"""Training one rollout at a time, under the caller's control. In multiverse, pass an `mv.Hook` to `mv.train` instead.

`mv.train` runs its own loop, here in a thread that waits after every update until the next one is requested.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from statistics import fmean
from typing import Any

import multiverse as mv


class Rollouts(mv.Hook):
    """Hook that stops a training after every update. `begin(hook)` runs the whole training with this hook."""

    def __init__(self, begin: Callable[[mv.Hook], mv.Run]) -> None:
        self._updates: SimpleQueue[dict[str, Any] | None] = SimpleQueue()  # None: training has ended
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._run: Future[mv.Run] = Future()
        self._running, self._completed = True, []
        threading.Thread(target=self._train, args=(begin,), daemon=True, name="PPOTrainer").start()

    def next(self) -> dict[str, Any]:
        """Return statistics of the next rollout and update. After Ctrl-C, the current rollout is still available."""
        if not self._running:
            self._requests.put(True)
        self._running = True
        update = self._updates.get()
        if update is None:
            self._updates.put(None)
            raise self._run.exception() or RuntimeError("training has ended")
        self._running = False
        return update

    def end(self) -> mv.Run:
        """End training after the current update; return the run, evaluated and saved."""
        self._requests.put(False)
        return self._run.result()

    # -- in the thread -------------------------------------------------------------------------------------------
    def _train(self, begin: Callable[[mv.Hook], mv.Run]) -> None:
        try:
            self._run.set_result(begin(self))
        except BaseException as error:
            self._run.set_exception(error)
        finally:
            self._updates.put(None)

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        self._completed = collected.episodes

    def on_update(self, trainer: Any, report: Any) -> None:
        self._updates.put(statistics(self._completed, trainer))
        if not self._requests.get():
            trainer.stop("closed by the caller")


def statistics(completed: list[Any], trainer: Any) -> dict[str, Any]:
    """Return statistics of a rollout under the document's names, and the metrics of its update."""
    missing = float("nan")
    return {
        "reward": fmean(episode.returned for episode in completed) if completed else missing,
        "length": fmean(episode.length for episode in completed) if completed else missing,
        "n_completed_episodes": len(completed),
        "n_envs": trainer.config.num_envs,
        "env_steps": trainer.clock.env_steps,
        **trainer.metrics,
    }
