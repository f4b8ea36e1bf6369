"""Metrics of a run: those that are logged next, and the sinks that write metrics and episodes to its files."""

from __future__ import annotations

import csv
import importlib
import io
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multiverse.core.errors import InvalidRequest, PreflightError
from multiverse.training.config.budget import PARTS, Clock
from multiverse.training.config.files import flat
from multiverse.training.events import EpisodesEnded, EvaluationDone, Event, Metrics, MetricsLogged, Sink
from multiverse.training.runs.files import LineFile, for_json, read_lines, replace_file
from multiverse.training.runs.find_runs import EPISODES, METRICS, TABLE

if TYPE_CHECKING:
    from multiverse.rollouts.episodes import Episode, RecentEpisodes

LONG_ROLLOUT, ENV_STEPS_OF_SHORT_ROLLOUTS = 8, 1_000
"""By default a rollout of this many steps has metrics of its own; shorter ones share them over this many env steps."""


# -- the metrics that are logged next ---------------------------------------------------------------------------------
RUN_METRICS = frozenset({"env_steps", "episodes", "updates", "seconds", "env_steps_per_s", "mean_return", "mean_length",
                      "num_envs", *(f"{part}_share" for part in PARTS)})  # fmt: skip
"""Metrics that the run itself logs."""


def _check_metric(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"update() returned a metric named {name!r}: expected a name as text")
    if name in RUN_METRICS or name.startswith(("evaluation_", "mean_return/")):
        raise InvalidRequest(f"update() returned a metric {name!r}, which the run itself logs: choose another name")
    if not isinstance(value, int | float | np.number | np.bool_) and not hasattr(value, "item"):
        raise InvalidRequest(f"update() returned {value!r:.60} as the metric {name!r}: expected a number")


class NextMetrics:
    """Collects the metrics that are logged next: those of the updates since the last time."""

    def __init__(self) -> None:
        self.since = Clock()  # as it was the last time
        self._sums: dict[str, list[Any]] = {}  # by metric: the sum over these updates, and their number

    def leave_out_time_before(self, clock: Clock) -> None:
        """Measure speed from here on, over the env steps since the last time."""
        self.since = replace(clock, env_steps=self.since.env_steps)

    def are_due(self, clock: Clock, every: int | None, rollout_steps: int) -> bool:
        """Whether another `every` env steps have passed. None: one line for each rollout, or for several short ones."""
        if every is None:
            every = 1 if rollout_steps >= LONG_ROLLOUT else ENV_STEPS_OF_SHORT_ROLLOUTS
        return clock.env_steps // every > self.since.env_steps // every

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of an update; refuse those that a line could not hold beside the run's own."""
        for name, value in metrics.items():
            if name not in self._sums:
                _check_metric(name, value)
            before, count = self._sums.get(name, (0.0, 0))
            summed = count and isinstance(value, int | float | np.number) and not isinstance(before, str)
            self._sums[name] = [before + value, count + 1] if summed else [value, 1]

    def take(self, clock: Clock, recent: RecentEpisodes, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return counts, speed and shares of the time, then `more`, then the mean of each metric; then start again."""
        before, self.since = self.since, replace(clock)
        took_s = clock.seconds - before.seconds
        metrics: dict[str, Any] = {
            "episodes": clock.episodes,
            "updates": clock.updates,
            "seconds": round(clock.seconds, 3),
            "env_steps_per_s": (clock.env_steps - before.env_steps) / took_s if took_s else 0.0,
            "mean_return": recent.mean_return,
            "mean_length": recent.mean_length,
            **{f"mean_return/{agent}": value for agent, value in recent.by_agent.items()},
            **{f"{part}_share": share for part, share in clock.shares_since(before).items()},
            **more,
        }
        means = {name: value if count == 1 else value / count for name, (value, count) in self._sums.items()}
        self._sums.clear()
        return metrics | {name: value for name, value in means.items() if name not in metrics}

    def state(self) -> dict[str, Any]:
        return {"since": self.since.env_steps, **self._sums}

    def load(self, state: Mapping[str, Any], clock: Clock) -> None:
        sums = {"since": clock.env_steps, **state}
        self.since = replace(clock, env_steps=int(sums.pop("since")))
        self._sums = {name: [value, int(count)] for name, (value, count) in sums.items()}


# -- sinks -------------------------------------------------------------------------------------------------------
LOGGED = (MetricsLogged, EvaluationDone)
"""Events with metrics."""


class MetricSink(Sink):
    """Writes metrics, including those of evaluations."""

    def handle(self, event: Event) -> None:
        if isinstance(event, LOGGED):
            self.write(event.metrics, event.env_steps)

    @abstractmethod
    def write(self, metrics: Metrics, env_steps: int) -> None: ...


class JsonLinesSink(MetricSink):
    """Writes one JSON object per line: `{"env_steps": 2048, …}`. NaN and infinities are null."""

    name = METRICS

    def __init__(self, file: LineFile | Path) -> None:
        self._file = file if isinstance(file, LineFile) else LineFile(file)

    def write(self, metrics: Metrics, env_steps: int) -> None:
        self._file.append([{"env_steps": env_steps, **metrics}])

    def close(self) -> None:
        self._file.close()


class EpisodesSink(Sink):
    """Writes one JSON object per line for each episode that has ended; `open_file` is called at the first one."""

    name = EPISODES

    def __init__(self, open_file: Callable[[], LineFile]) -> None:
        self._open_file = open_file

    def handle(self, event: Event) -> None:
        if isinstance(event, EpisodesEnded):
            self._open_file().append(_episode_row(episode, event.env_steps) for episode in event.episodes)


def _episode_row(episode: Episode, env_steps: int) -> dict[str, Any]:
    return {
        "env_id": episode.env_id,
        "episode": episode.index,
        "seed": episode.seed,
        "return": episode.returned,
        "length": episode.length,
        "lost": episode.lost,
        "env_steps": env_steps,
        **({"returns": episode.by_agent} if episode.by_agent else {}),
        **({} if episode.opponent is None else {"opponent": episode.opponent}),
        **({} if episode.version is None else {"version": episode.version}),
    }


class CsvSink(MetricSink):
    """Writes a table for spreadsheets. A metric that appears later adds a column, which is empty in earlier rows."""

    name = TABLE

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns = next(iter(_rows(path)), [])
        self._file: LineFile | None = None

    def write(self, metrics: Metrics, env_steps: int) -> None:
        row = for_json({"env_steps": env_steps, **{_in_utf8(name): value for name, value in metrics.items()}})
        if new := [name for name in row if name not in self._columns]:
            self._widen([*self._columns, *new])
        if self._file is None:
            self._file = LineFile(self.path)
        self._file.append_text(_csv_line([row.get(name) for name in self._columns]))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _widen(self, columns: list[str]) -> None:
        """Rewrite the whole table with more columns, in one replacement of the file."""
        self.close()
        rows = _rows(self.path)[1:]
        write_csv(self.path, columns, (row + [""] * (len(columns) - len(row)) for row in rows))
        self._columns = columns


def write_csv(path: Path, columns: list[str], rows: Iterable[list[Any]]) -> None:
    """Write a whole table; if that fails, the former file is unchanged."""
    replace_file(path, "".join(map(_csv_line, [columns, *rows])).encode())


def csv_from_json_lines(lines: Path, path: Path) -> None:
    """Write the table that corresponds to a file of JSON lines."""
    rows = list(read_lines(lines))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if rows:
        write_csv(path, columns, ([row.get(name) for name in columns] for row in rows))
    else:
        path.unlink(missing_ok=True)


def _rows(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.reader(file))


def _csv_line(values: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["" if value is None else value for value in values])
    return _in_utf8(text.getvalue())


def _in_utf8(text: str) -> str:
    """Escape lone surrogates, which names of agents may have and UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


class TensorBoardSink(MetricSink):
    """Writes numbers as TensorBoard's scalars, in groups (`train/`, `evaluation/`, `time/`), and settings as its
    hyper-parameters.

    `before`: the metrics of the run so far, which are written again first. TensorBoard's own files end before or after
    the checkpoint from which a run is resumed, those of a killed process minutes before.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any] | None = None, before: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        check_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events, self._summaries = event_pb2, summary_pb2
        for old in folder.glob(f"*{_OURS}"):
            old.unlink()
        self._writer = EventFileWriter(str(folder), filename_suffix=_OURS)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=0, session_log=start)  # makes a reader discard what it has read of former files
        self._add(step=0, summary=self._hyper_parameters(settings or {}))
        self._write_again(list(before))

    def _write_again(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write lines with their original times; an evaluation has the time of the line before it."""
        seconds = [line.get("seconds") or 0.0 for line in lines]
        began_at, so_far = time.time() - max(seconds, default=0.0), 0.0
        for line, line_s in zip(lines, seconds):
            so_far = max(so_far, line_s)
            numbers = {name: math.nan if value is None else value for name, value in line.items()}
            self.write(numbers, int(numbers.pop("env_steps")), began_at + so_far)

    def write(self, metrics: Metrics, env_steps: int, at: float | None = None) -> None:
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, str)}
        values = [self._summaries.Summary.Value(tag=_tag(name), simple_value=float(v)) for name, v in numbers.items()]
        self._add(at, step=env_steps, summary=self._summaries.Summary(value=values))

    def close(self) -> None:
        self._writer.close()

    def _add(self, at: float | None = None, **fields: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time() if at is None else at, **fields))

    def _hyper_parameters(self, settings: Mapping[str, Any]) -> Any:
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        begun = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        for name, value in flat(settings):
            if value is None or value == {}:
                continue
            if isinstance(value, bool):
                begun.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                begun.hparams[name].number_value = value
            else:
                begun.hparams[name].string_value = str(value)
        content = plugin_data_pb2.HParamsPluginData(session_start_info=begun)
        kind = metadata.create_summary_metadata(content)
        value = self._summaries.Summary.Value(
            tag=metadata.SESSION_START_INFO_TAG, metadata=kind, tensor=metadata.NULL_TENSOR
        )
        return self._summaries.Summary(value=[value])


_OURS = ".multiverse"
"""Suffix of the names of TensorBoard's files that we wrote and may replace."""


def check_tensorboard() -> None:
    """Raise `PreflightError` if TensorBoard is not installed."""
    try:
        importlib.import_module("tensorboard.compat.proto")
    except ImportError:
        raise PreflightError("TensorBoard is not installed: pip install 'multiverse[tensorboard]'") from None


def _tag(name: str) -> str:
    """The name of a metric with its group."""
    if name.startswith("evaluation_"):
        return name.replace("_", "/", 1)
    return f"time/{name}" if name.endswith(("_share", "seconds", "_per_s")) else f"train/{name}"
