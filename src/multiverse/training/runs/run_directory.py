"""The directory of a run: its lock, and writing and reading its files.  docs/runs.md describes them.

    config.yaml  spaces.json  origin.json  provenance.json  summary.json
    metrics.jsonl  metrics.csv  episodes.jsonl  checkpoints/  run.lock

`metrics.csv` has the content of `metrics.jsonl`, for spreadsheets.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiverse.core.errors import InvalidRequest, RunNotWritable
from multiverse.core.plain_files import read_plain
from multiverse.core.wording import format_bytes
from multiverse.training.config.build import with_current_names
from multiverse.training.config.files import dump_yaml, read_config
from multiverse.training.events import Guarded, Sinks
from multiverse.training.runs.files import (
    LOCK,
    LineFile,
    RunLock,
    cut,
    for_json,
    read_lines,
    replace_file,
    sweep_unfinished,
)
from multiverse.training.runs.find_runs import (
    CHECKPOINTS,
    CONFIG,
    EPISODES,
    FIRST,
    METRICS,
    ORIGIN,
    OWN_FILES,
    PROVENANCE,
    SPACES,
    SUMMARY,
    TABLE,
    TENSORBOARD,
    find_run,
    is_run,
)
from multiverse.training.runs.metric_sinks import (
    CsvSink,
    EpisodesSink,
    JsonLinesSink,
    TensorBoardSink,
    check_tensorboard,
    csv_from_json_lines,
)
from multiverse.training.runs.origin import mark_of, names_code, redacted

log = logging.getLogger("multiverse")

LARGEST_JSON = 2**24  # bytes
RUN_ID = "run_id"


class RunDirectory:
    """A run on disk, locked for this process until `close()`. Made by `create` and `open`."""

    def __init__(self, path: Path) -> None:
        self.path, self.checkpoints = path, path / CHECKPOINTS
        try:
            self._lock = RunLock(path)
            try:
                sweep_unfinished(path, OWN_FILES)
                self.checkpoints.mkdir(exist_ok=True)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise RunNotWritable(path, error.strerror or str(error)) from error
        self._has_checkpoint = False
        self._files: dict[str, LineFile] = {}
        self._sinks: list[Sinks] = []
        self._syncing = Guarded("forcing metrics to the disk")

    @classmethod
    def create(
        cls,
        root: Path | str = "runs",
        *,
        env: str,
        algorithm: str,
        seed: int,
        run_dir: Path | str | None = None,
    ) -> RunDirectory:
        """Create a run in `root/<env>/<algorithm>-<seed>-<time>/`, or in `run_dir`, which must be empty or new."""
        path = Path(root) / safe_name(env) if run_dir is None else Path(run_dir)
        try:
            if run_dir is None:
                return cls(fresh(path, f"{safe_name(algorithm)}-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"))
            _refuse_used(path)
            path.mkdir(parents=True, exist_ok=True)
        except RunNotWritable:
            raise
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be the directory of a run: {error.strerror or error}") from error
        run = cls(path)
        try:
            _refuse_used(path)  # another process may have created one meanwhile
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """Open an existing run to resume it. `RunLocked` while another process has it open."""
        return cls(find_run(path).path)

    # -- files that are replaced as a whole --------------------------------------------------------------------
    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the config without its secrets."""
        self._replace(CONFIG, dump_yaml(redacted(config)).encode())

    def read_config(self) -> dict[str, Any]:
        """Read what `write_config` wrote; `origin.redacted_fields` returns what must be given again."""
        return read_config(self.path / CONFIG)

    def write_origin(self) -> None:
        """If the config names code, write a mark that later identifies the run as this user's."""
        config = with_current_names(self.read_config())
        if names_code(config):
            self._write_json(ORIGIN, {"mark": mark_of(config)})

    def write_spaces(self, spaces: Mapping[str, Any]) -> None:
        """Write the policy's spaces as JSON, so that acting needs no env."""
        text = f"{json.dumps(spaces, allow_nan=False)}\n".encode()
        if len(text) > LARGEST_JSON:
            raise InvalidRequest(
                f"{SPACES} would have {format_bytes(len(text))}: expected at most {format_bytes(LARGEST_JSON)}"
            )
        self._replace(SPACES, text)

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Add the provenance of this part of the run; all parts have the same `run_id`."""
        part = {RUN_ID: self.run_id or uuid.uuid4().hex, **provenance}
        self._write_json(PROVENANCE, {"parts": [*read_provenance(self.path), part]})

    @property
    def run_id(self) -> str:
        """Identifier of the run, the same in all parts of a resumed run; '' before its first `write_provenance`."""
        return next((str(part[RUN_ID]) for part in read_provenance(self.path) if RUN_ID in part), "")

    def note_checkpoint(self) -> None:
        """Note that this part of the run has a checkpoint: if none is found later, it was lost."""
        if not self._has_checkpoint:
            *before, part = read_provenance(self.path) or [{}]
            try:
                self._write_json(
                    PROVENANCE, {"parts": [*before, {**part, FIRST: time.strftime("%Y-%m-%dT%H:%M:%S%z")}]}
                )
            except OSError:  # noted at the next one
                return
            self._has_checkpoint = True

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of the run."""
        self._write_json(SUMMARY, summary)

    # -- files that grow ---------------------------------------------------------------------------------------
    def sinks(self) -> Sinks:
        """Return the sinks that record this run: `metrics.jsonl`, `metrics.csv`, `episodes.jsonl` and, if it has a
        directory for them, TensorBoard's files. Closed with the run at the latest."""
        episodes = EpisodesSink(functools.partial(self._file, EPISODES))
        self._sinks.append(Sinks([JsonLinesSink(self._file(METRICS)), CsvSink(self.path / TABLE), episodes]))
        if (self.path / TENSORBOARD).is_dir():
            Guarded("writing for TensorBoard")(self._add_tensorboard)
        return self._sinks[-1]

    def keep_for_tensorboard(self) -> None:
        """Make `sinks()` write for TensorBoard too, from now on and in every later part of the run."""
        check_tensorboard()
        (self.path / TENSORBOARD).mkdir(exist_ok=True)

    def _add_tensorboard(self) -> None:
        before = read_lines(self.path / METRICS)
        self._sinks[-1].add(TensorBoardSink(self.path / TENSORBOARD, self.read_config(), before))

    def position(self) -> dict[str, int]:
        """Return the sizes of the growing files, after forcing them to the disk, for the next checkpoint."""
        for file in self._files.values():
            self._syncing(file.sync)
        return {name: _size(self.path / name) for name in (METRICS, EPISODES)}

    def cut_back(self, position: Mapping[str, int]) -> None:
        """Cut the growing files back to this position; `{}` empties them. Closes the sinks made before."""
        sizes = {name: int(size) for name, size in position.items()}
        if any(size < 0 for size in sizes.values()):
            raise ValueError(f"a file cannot have {min(sizes.values())} bytes")
        self._close_files()
        for name in (METRICS, EPISODES):
            if short := cut(self.path / name, sizes.get(name, 0)):
                log.warning("%s is %d bytes shorter than at the checkpoint: lines are missing", self.path / name, short)
        csv_from_json_lines(self.path / METRICS, self.path / TABLE)

    def close(self) -> None:
        """Close the files and release the lock. Idempotent; a forked child does not release its parent's lock."""
        self._close_files()
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _file(self, name: str) -> LineFile:
        if name not in self._files or self._files[name].closed:
            self._files[name] = LineFile(self.path / name)
        return self._files[name]

    def _close_files(self) -> None:
        for sinks in self._sinks:
            sinks.close()
        for file in self._files.values():
            file.close()
        self._sinks.clear()
        self._files.clear()

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(for_json(redacted(content)), indent=2, allow_nan=False)
        self._replace(name, f"{text}\n".encode())

    def _replace(self, name: str, data: bytes) -> None:
        try:
            replace_file(self.path / name, data)
        except OSError as error:
            raise RunNotWritable(self.path, f"{name}: {error.strerror or error}") from error


def had_checkpoint(run: Path) -> bool:
    """Whether this run ever had a checkpoint. In runs of version 0.1 only the way in which they ended shows that."""
    if any(FIRST in part for part in read_provenance(run)):
        return True
    summary = read_summary(run)
    return bool(summary) and "error" not in summary  # without an error a run is always saved at its end


def read_provenance(run: Path) -> list[dict[str, Any]]:
    """Provenance of each part of a run, in order."""
    parts = read_object(run / PROVENANCE).get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def last_part(run: Path) -> Mapping[str, Any]:
    """Provenance of the last part of a run; empty if there is none."""
    return (read_provenance(run) or [{}])[-1]


def read_summary(run: Path) -> dict[str, Any]:
    """Summary of a run; {} before its end."""
    return read_object(run / SUMMARY)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is none."""
    try:
        content = json.loads(read_plain(path, LARGEST_JSON)[0])
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_mark(run: Path) -> Any:
    """The mark of a run, unverified; `origin.check_trusted` verifies it."""
    return read_object(run / ORIGIN).get("mark")


def read_spaces(run: Path) -> Any:
    """Read what `write_spaces` wrote; None in a run of a version that wrote none."""
    try:
        return json.loads(read_plain(run / SPACES, LARGEST_JSON)[0])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise InvalidRequest(f"{run / SPACES} cannot be used: {reason}. {NEW_SPACES}") from None


NEW_SPACES = "Pass env=…, which has the same spaces, or restore the file from a copy"


def safe_name(text: str) -> str:
    """Return a directory name made from the name of an env or an algorithm: 'ALE/Pong-v5' → 'ALE-Pong-v5'.

    Names of nested functions are shortened: 'make_env.<locals>.<lambda>' → 'make_env'; a lambda alone is 'lambda'."""
    if "<lambda>" in text or "<locals>" in text:
        text = re.sub(r"(^|\.)(<locals>|<lambda>)", "", text).strip(".") or "lambda"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80] or "unnamed"


def fresh(parent: Path, name: str) -> Path:
    """Create a new directory of this name, or of this name with a number."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _refuse_used(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InvalidRequest(f"{path} is a file; a run needs a directory")
    if is_run(path):
        raise InvalidRequest(f"{path} already holds a run: resume it, or choose another directory")
    used = [entry.name for entry in path.iterdir() if not _is_ours_and_empty(entry)] if path.exists() else []
    if used:
        raise InvalidRequest(f"{path} is not empty and holds no run (there is {used[0]}): choose another directory")


def _is_ours_and_empty(path: Path) -> bool:
    """Whether this is a leftover of a run that was killed before it began."""
    return path.name == LOCK or (path.name == CHECKPOINTS and path.is_dir() and not any(path.iterdir()))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
