"""Hooks: whoever wants to watch a run, stop it, or change its settings on the way."""

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
        return dict, (dict(self),)  # a copy is the caller's own


class Hook:
    """Override what you need. `trainer.clock` tells how far the run is, `trainer.stop(why)` ends it after this rollout,
    `trainer.algorithm.change(learning_rate=…)` changes a setting from here on; `trainer.save()` and
    `trainer.evaluate()`, in `on_update`, do so at once."""

    def __init_subclass__(cls) -> None:
        if "on_window" in vars(cls):
            warnings.warn("Hook.on_window is on_rollout now; the old name goes", DeprecationWarning, stacklevel=2)
            cls.on_rollout = vars(cls)["on_window"]  # type: ignore[method-assign]

    def on_start(self, trainer: Trainer) -> None:
        """The run has its directory, `trainer.directory.path`; in this part of it nothing has been learned yet."""

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        """A rollout is full and has not been learned from yet."""

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        """The algorithm has learned from it."""

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """The policy was tried out on unseen seeds."""

    def on_end(self, trainer: Trainer, summary: dict[str, Any]) -> None:
        """The run is over."""


class Schedules(Hook):
    """Settings of the algorithm that are functions of how much of the budget is left, from 1 to 0."""

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self._schedules = schedules

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        left = 1.0 - trainer.schedule_progress  # as it was before this rollout
        trainer.algorithm.change(**{name: schedule(left) for name, schedule in self._schedules.items()})
