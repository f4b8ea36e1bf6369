"""Hooks, with which a program watches a run, stops it or changes its settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from multiverse.core.errors import InvalidRequest

if TYPE_CHECKING:
    from multiverse.algorithms.algorithm import UpdateReport
    from multiverse.rollouts.episodes import Collected
    from multiverse.training.config.changes import Schedule
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.trainer import Trainer


READ_ONLY = (
    "the metrics that a hook gets are read-only: they have been counted for the log, and changes would not be logged. "
    "Hooks cannot log their own numbers yet: write them to a file in trainer.directory.path, or let update() of your "
    "own algorithm return them"
)


class ReadOnlyMetrics(dict[str, Any]):
    """Metrics for hooks to read. Writing raises `InvalidRequest`: nothing would log the value."""

    def _refuse(self, *arguments: Any, **more: Any) -> NoReturn:
        raise InvalidRequest(READ_ONLY)

    __setitem__ = __delitem__ = __ior__ = _refuse  # guard: hooks-cannot-write-metrics
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy can be changed


class Hook:
    """Base class of hooks: override the methods you need.

    `trainer.clock` has the progress of the run. `trainer.stop(why)` ends it after this rollout.
    `trainer.algorithm.change(learning_rate=…)` changes a setting from now on. In `on_update`, `trainer.save()` and
    `trainer.evaluate()` take effect at once.
    """

    def __init_subclass__(cls) -> None:
        if "on_window" in vars(cls):
            message = "Hook.on_window was renamed to on_rollout; the old name will be removed"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            cls.on_rollout = vars(cls)["on_window"]  # type: ignore[method-assign]

    def on_start(self, trainer: Trainer) -> None:
        """Called when the run, or a resumed part of it, begins. Its directory is `trainer.directory.path`."""

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        """Called when a rollout was collected, before the update."""

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        """Called after the update."""

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """Called after an evaluation on unseen seeds."""

    def on_end(self, trainer: Trainer, summary: dict[str, Any]) -> None:
        """Called when the run has ended, unless it was interrupted or failed."""


class Schedules(Hook):
    """Sets settings of the algorithm that are functions of the remaining share of the budget, from 1 to 0."""

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self._schedules = schedules

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        left = 1.0 - trainer.schedule_progress  # before this rollout
        trainer.algorithm.change(**{name: schedule(left) for name, schedule in self._schedules.items()})
