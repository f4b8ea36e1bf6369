"""Following a run from the command line: its lines, TensorBoard, how it ended, and how to go on after Ctrl-C."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from multiverse.cli.progress import ProgressLines, Voice, summary_lines
from multiverse.training.hooks import Hook
from multiverse.training.storage.metric_sinks import Sinks, TensorBoardSink

if TYPE_CHECKING:
    from multiverse.algorithms.algorithm import UpdateReport
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.run import Run
    from multiverse.training.trainer import Trainer

TENSORBOARD = "tensorboard"


class TensorBoardHook(Hook):
    """Metrics of updates and evaluations into the run's own `tensorboard/`; a failure there costs only itself."""

    def __init__(self) -> None:
        self._sinks = Sinks()

    def open(self, trainer: Trainer) -> None:
        self._sinks.add(TensorBoardSink(trainer.directory.path / TENSORBOARD, trainer.clock.env_steps))

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        self._sinks.write(trainer.metrics, trainer.clock.env_steps)

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        metrics = {f"evaluation_{name}": value for name, value in evaluation.summary().items()}
        self._sinks.write(metrics, trainer.clock.env_steps)

    def close(self) -> None:
        self._sinks.close()


def followed(begin: Callable[..., Run], voice: Voice, *, tensorboard: bool = False) -> Run:
    """Begin a run (`begin(hooks=…, on_start=…)`) and tell of it to its end.

    A run that is interrupted says how to go on with it, and the interrupt goes on its way.
    """
    lines, board = ProgressLines(voice), TensorBoardHook()

    def on_start(trainer: Trainer) -> None:
        lines.on_start(trainer)
        if tensorboard or (trainer.directory.path / TENSORBOARD).is_dir():
            board.open(trainer)

    try:
        run = begin(hooks=[lines, board], on_start=on_start)
    except (KeyboardInterrupt, SystemExit):
        if lines.path is not None:
            voice.say(
                f"Interrupted at {lines.env_steps:,} env steps. To go on: multiverse resume {_quoted(lines.path)}"
            )
        raise
    finally:
        board.close()
    for line in summary_lines(run.summary, run.path):
        voice.say(line)
    return run


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))
