"""Metrics reach their sinks; row F4: a sink that fails affects only itself."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multiverse.core.errors import PreflightError
from multiverse.training.events import EvaluationDone, Event, MetricsLogged, Sink, Sinks
from multiverse.training.runs.files import LineFile, for_json
from multiverse.training.runs.metric_sinks import CsvSink, JsonLinesSink, TensorBoardSink


def logged(env_steps: int, **metrics: float) -> MetricsLogged:
    return MetricsLogged(env_steps=env_steps, metrics=metrics)


class Kept(Sink):
    """A sink that keeps its input, or fails from a chosen moment on."""

    def __init__(self, fails_at: int | None = None, error: type[Exception] = RuntimeError) -> None:
        self.rows: list[int] = []
        self.fails_at, self.error, self.calls, self.closed = fails_at, error, 0, 0

    def handle(self, event: Event) -> None:
        assert isinstance(event, MetricsLogged)
        self.calls += 1
        if event.env_steps == self.fails_at:
            raise self.error("no more")
        self.rows.append(event.env_steps)

    def close(self) -> None:
        self.closed += 1
        if self.fails_at is not None:
            raise self.error("nor this")


@pytest.mark.fault("F4")
@pytest.mark.parametrize("error", [OSError, BrokenPipeError, RuntimeError, ValueError])
def test_failing_sink_is_reported_once_and_disabled_while_others_continue(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    first, bad, last = Kept(), Kept(2, error), Kept()
    sinks = Sinks([first, bad, last])
    for step in range(5):
        sinks.handle(logged(step))
    assert first.rows == last.rows == [0, 1, 2, 3, 4]
    assert bad.rows == [0, 1] and bad.calls == 3
    assert len(caplog.messages) == 1
    assert f"Kept failed and is disabled from now on: {error.__name__}: no more" in caplog.messages[0]
    sinks.close()
    sinks.close()
    assert (first.closed, bad.closed, last.closed) == (1, 1, 1)
    assert len(caplog.messages) == 1


@pytest.mark.fault("F4")
def test_sink_that_fails_to_close_is_reported_and_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    bad, last = Kept(99), Kept()
    Sinks([bad, last]).close()
    assert last.closed == 1 and "nor this" in caplog.text


@pytest.mark.fault("F4")
def test_ctrl_c_in_a_sink_is_raised() -> None:
    class Interrupted(Kept):
        def handle(self, event: Event) -> None:
            raise KeyboardInterrupt

    sinks = Sinks([Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        sinks.handle(logged(1))
    sinks.close()


@pytest.mark.fault("F4")
@pytest.mark.parametrize("make", [JsonLinesSink, CsvSink])
def test_full_disk_disables_a_file_sink_and_keeps_its_whole_lines(
    make: Callable[[Path], Sink], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics"
    sinks = Sinks([make(path)])
    sinks.handle(logged(10, a=1))
    before = path.read_text()
    pid = os.fork()
    if pid == 0:
        try:
            import resource

            size = path.stat().st_size + 3
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            sinks.handle(logged(20, a=2))
            sinks.handle(logged(30, a=3))
            os._exit(0 if caplog.text.count("is disabled from now on") == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert path.read_text() == before
    sinks.close()


ROWS: list[dict[str, Any]] = [
    {"env_id": 0, "seed": None, "return": -1.5, "lost": False},
    {},
    {"text": "}\n{ and \0, ü", "nested": {"a": [1, 2]}},
    {"a list of objects": [{"b": 1}, {"b": 2}], "last": True},
    {"not finite": float("nan"), "numpy": np.float32(0.5)},
]


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS[:3], ROWS[:4], ROWS[3:4], ROWS], ids=len)
def test_appended_rows_are_one_line_each(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    with closing(LineFile(tmp_path / "lines")) as file:
        file.append(rows)
    expected = "".join(f"{json.dumps(for_json(row))}\n" for row in rows)
    assert (tmp_path / "lines").read_text() == expected


def test_json_lines_are_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    sink.write({"loss": float("nan"), "kl": float("inf"), "name": "é"}, 1)
    sink.write({"loss": np.float32(0.5), "count": np.int64(3)}, 2)  # type: ignore[dict-item]
    sink.close()
    sink.close()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()] == [
        {"env_steps": 1, "loss": None, "kl": None, "name": "é"},
        {"env_steps": 2, "loss": 0.5, "count": 3},
    ]


def test_csv_file_gains_columns_and_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = CsvSink(path)
    first.write({"a": 0.1, "text": 'say "hi",\nbye'}, 1)
    first.write({"b": 2}, 2)
    first.close()
    again = CsvSink(path)
    again.write({"b": 3, "a": float("nan"), "c": "new"}, 3)
    again.close()
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["env_steps", "a", "text", "b", "c"],
        ["1", "0.1", 'say "hi",\nbye', "", ""],
        ["2", "", "", "2", ""],
        ["3", "", "", "3", "new"],
    ]


def test_column_that_cannot_be_added_leaves_the_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.write({"a": 1}, 1)
    before = (tmp_path / "metrics.csv").read_text()

    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        sink.write({"b": 1}, 2)
    assert (tmp_path / "metrics.csv").read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_evaluations_are_written_as_metrics(tmp_path: Path) -> None:
    sinks = Sinks([JsonLinesSink(tmp_path / "lines"), CsvSink(tmp_path / "table")])
    sinks.handle(EvaluationDone(env_steps=7, summary={"mean_return": 1.5}, opponent=None, is_best=True))
    sinks.close()
    assert json.loads((tmp_path / "lines").read_text()) == {"env_steps": 7, "evaluation_mean_return": 1.5}
    assert (tmp_path / "table").read_text() == "env_steps,evaluation_mean_return\n7,1.5\n"


def test_tensorboard_has_metrics_in_groups_and_the_settings(tmp_path: Path) -> None:
    hparams = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    sink = TensorBoardSink(tmp_path, {"seed": 3, "executor": "auto", "workers": None, "ppo": {"gamma": 0.5}})
    sink.write({"mean_return": 1.0, "act_share": 0.25, "env_steps_per_s": 9.0, "note": "text"}, 10)
    sink.write({"evaluation_mean_return": 2.0}, 10)
    sink.close()
    events = shown(tmp_path)
    groups = {"train/mean_return", "time/act_share", "time/env_steps_per_s", "evaluation/mean_return"}
    assert set(events.Tags()["scalars"]) == groups
    result = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    found = hparams.HParamsPluginData.FromString(result).session_start_info.hparams
    assert {name: value.number_value or value.string_value for name, value in found.items()} == {
        "seed": 3.0,
        "executor": "auto",
        "ppo.gamma": 0.5,
    }


def test_tensorboard_of_a_resumed_run_equals_its_metrics_file(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    for step in (10, 30):  # killed, it lacks what was still to be written at 20; and 30 is beyond the checkpoint
        first.write({"loss": step / 10}, step)
    first.close()
    (tmp_path / "events.out.tfevents.1.theirs").write_bytes(b"")
    lines = [{"env_steps": 10, "seconds": 1.0, "loss": 1.0}, {"env_steps": 20, "seconds": 2.5, "loss": None}]
    again = TensorBoardSink(tmp_path, before=lines)
    again.write({"loss": 7.5}, 25)
    again.close()
    events = shown(tmp_path).Scalars("train/loss")
    assert [event.step for event in events] == [10, 20, 25]
    assert (events[0].value, str(events[1].value), events[2].value) == (1.0, "nan", 7.5)
    assert events[1].wall_time - events[0].wall_time == pytest.approx(1.5, abs=1e-3)
    assert len(list(tmp_path.glob("*.multiverse"))) == 1 and (tmp_path / "events.out.tfevents.1.theirs").exists()


def shown(folder: Path) -> Any:
    """The values as TensorBoard itself reads them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return events


def test_missing_tensorboard_is_reported_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(PreflightError, match=r"pip install 'multiverse\[tensorboard\]'"):
        TensorBoardSink(tmp_path)
