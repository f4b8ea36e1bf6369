"""Hooks, with which a program watches a run, stops it or changes its settings."""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from multiverse.core.errors import InvalidRequest
from multiverse.core.wording import short_repr

if TYPE_CHECKING:
    from multiverse.algorithms.algorithm import UpdateReport
    from multiverse.rollouts.episodes import Collected
    from multiverse.training.config.changes import Schedule
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.trainer import Trainer


log = logging.getLogger("multiverse")

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


METHODS = tuple(name for name in vars(Hook) if name.startswith("on_"))


def checked_hooks(hooks: Any) -> list[Hook]:
    """Return the hooks as a list. Refuse what is not a list of hooks; warn of methods that are misspelt."""
    if not isinstance(hooks, list | tuple):
        kind = hooks if isinstance(hooks, type) else type(hooks)
        example = f"{kind.__name__}()" if issubclass(kind, Hook) else "MyHook()"
        raise InvalidRequest(f"hooks={short_repr(hooks)}: expected a list of hooks, such as hooks=[{example}]")
    for hook in hooks:
        if isinstance(hook, type):
            name = hook.__name__
            raise InvalidRequest(f"hooks: {name} is a class: pass an instance of it, hooks=[{name}()]")
        if not isinstance(hook, Hook):
            raise InvalidRequest(f"hooks: {short_repr(hook)} is not a hook: derive its class from multiverse.Hook")
        kind = type(hook)
        for method in sorted(name for name in dir(kind) if name not in METHODS and name.lower().startswith("on")):
            nearest = difflib.get_close_matches(method.lower(), METHODS, 1, cutoff=0.75)
            if nearest and method != "on_window":
                log.warning("%s.%s is never called: did you mean %s?", kind.__name__, method, nearest[0])
    return list(hooks)


class Schedules(Hook):
    """Sets settings of the algorithm that are functions of the remaining share of the budget, from 1 to 0."""

    def __init__(self, schedules: Mapping[str, Schedule]) -> None:
        self._schedules = schedules

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        left = 1.0 - trainer.schedule_progress  # before this rollout
        trainer.algorithm.change(**{name: schedule(left) for name, schedule in self._schedules.items()})
