"""Today this is an `mv.Hook` given to `multiverse.train`: here the caller takes a training one rollout at a time.

`mv.train` has a loop of its own. It runs in a thread that waits, after every update, until the next one is asked for.
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
    """`begin(hook)` is a whole training with this hook."""

    def __init__(self, begin: Callable[[mv.Hook], mv.Run]) -> None:
        self._updates: SimpleQueue[dict[str, Any] | None] = SimpleQueue()  # None: there will be no more
        self._go_on: SimpleQueue[bool] = SimpleQueue()
        self._run: Future[mv.Run] = Future()
        self._under_way, self._completed = True, []
        threading.Thread(target=self._train, args=(begin,), daemon=True, name="PPOTrainer").start()

    def next(self) -> dict[str, Any]:
        """What the next rollout and its update brought. After Ctrl-C the one under way is still to be had."""
        if not self._under_way:
            self._go_on.put(True)
        self._under_way = True
        update = self._updates.get()
        if update is None:
            self._updates.put(None)
            raise self._run.exception() or RuntimeError("the training has ended")
        self._under_way = False
        return update

    def end(self) -> mv.Run:
        """The run, evaluated and saved, after the update under way."""
        self._go_on.put(False)
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
        if not self._go_on.get():
            trainer.stop("closed by its caller")


def statistics(completed: list[Any], trainer: Any) -> dict[str, Any]:
    """One rollout under the document's names, and the metrics of its update: policy_loss, kl, clip_fraction …"""
    nothing = float("nan")
    return {
        "reward": fmean(one.returned for one in completed) if completed else nothing,
        "length": fmean(one.length for one in completed) if completed else nothing,
        "n_completed_episodes": len(completed),
        "n_envs": trainer.config.num_envs,
        "env_steps": trainer.clock.env_steps,
        **trainer.metrics,
    }
