"""The files of a run as sinks of its events: metrics as JSON lines, as CSV and for TensorBoard, and episodes."""

from __future__ import annotations

import csv
import importlib
import io
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiverse.core.errors import PreflightError
from multiverse.training.config.files import flat
from multiverse.training.events import EpisodesEnded, EvaluationDone, Event, Metrics, MetricsLogged, Sink
from multiverse.training.runs.files import LineFile, for_json, read_lines, replace_file
from multiverse.training.runs.find_runs import EPISODES, METRICS, TABLE

if TYPE_CHECKING:
    from multiverse.rollouts.episodes import Episode

LOGGED = (MetricsLogged, EvaluationDone)
"""Events with metrics."""


class MetricSink(Sink):
    """Writes metrics, those of evaluations too."""

    def handle(self, event: Event) -> None:
        if isinstance(event, LOGGED):
            self.write(event.metrics, event.env_steps)

    @abstractmethod
    def write(self, metrics: Metrics, env_steps: int) -> None: ...


class JsonLinesSink(MetricSink):
    """One object a line: `{"env_steps": 2048, …}`. NaN and infinities are null."""

    name = METRICS

    def __init__(self, file: LineFile | Path) -> None:
        self._file = file if isinstance(file, LineFile) else LineFile(file)

    def write(self, metrics: Metrics, env_steps: int) -> None:
        self._file.append([{"env_steps": env_steps, **metrics}])

    def close(self) -> None:
        self._file.close()


class EpisodesSink(Sink):
    """One object a line for each episode that has ended; `open_file` is called when the first one has."""

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
    """A table for spreadsheets. A metric that appears later is one more column; in earlier rows it is empty."""

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
        """The whole table again with more columns, in one replacement."""
        self.close()
        rows = _rows(self.path)[1:]
        write_csv(self.path, columns, (row + [""] * (len(columns) - len(row)) for row in rows))
        self._columns = columns


def write_csv(path: Path, columns: list[str], rows: Iterable[list[Any]]) -> None:
    """A whole table, or, if that fails, the one that was there."""
    replace_file(path, "".join(map(_csv_line, [columns, *rows])).encode())


def csv_from_json_lines(lines: Path, path: Path) -> None:
    """The table that belongs to a file of JSON lines."""
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
    """The name of an agent may have lone surrogates, which no file in UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


class TensorBoardSink(MetricSink):
    """Numbers as TensorBoard's scalars, in groups (`train/`, `evaluation/`, `time/`), and settings as its
    hyper-parameters.

    `before` is what the run has told so far, which is written again first: TensorBoard's own files end somewhere before
    or after the checkpoint that a run goes on from, those of a killed process minutes before.
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
        self._add(step=0, session_log=start)  # a reader forgets what it has seen of the files before
        self._add(step=0, summary=self._hyper_parameters(settings or {}))
        self._write_again(list(before))

    def _write_again(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """With the times they had, as far as they tell; evaluations were at that of the line before."""
        seconds = [line.get("seconds") or 0.0 for line in lines]
        began_at, so_far = time.time() - max(seconds, default=0.0), 0.0
        for line, told in zip(lines, seconds):
            so_far = max(so_far, told)
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
"""How the names of TensorBoard's files end that are ours to replace."""


def check_tensorboard() -> None:
    """Refused in one sentence where it is not installed."""
    try:
        importlib.import_module("tensorboard.compat.proto")
    except ImportError:
        raise PreflightError("TensorBoard is not installed: pip install 'multiverse[tensorboard]'") from None


def _tag(name: str) -> str:
    """A metric in its group."""
    if name.startswith("evaluation_"):
        return name.replace("_", "/", 1)
    return f"time/{name}" if name.endswith(("_share", "seconds", "_per_s")) else f"train/{name}"
