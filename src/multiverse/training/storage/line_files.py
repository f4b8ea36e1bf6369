"""Files that grow by whole lines, and can be cut back to what they were at a checkpoint."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.training.storage.durable_files import write_all


class LineFile:
    """Lines, appended. A write that fails leaves no half line behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        self.size = os.fstat(self._descriptor).st_size

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """These objects as JSON, one a line, in one go."""
        self.append_text("".join(f"{json.dumps(for_json(one), allow_nan=False)}\n" for one in objects))

    def append_text(self, lines: str) -> None:
        """Whole lines, each with its line break."""
        data = lines.encode()
        try:
            write_all(self._descriptor, data)
        except BaseException:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def sync(self) -> None:
        """What was appended is on the disk."""
        if not self.closed:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Twice does no harm."""
        if not self.closed:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    @property
    def closed(self) -> bool:
        return self._descriptor < 0


def for_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """As every reader of JSON takes it: numpy's numbers are numbers, and what is not finite is null."""
    return {key: _json_value(value) for key, value in row.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return for_json(value)
    return [_json_value(one) for one in value] if isinstance(value, (list, tuple)) else value


def cut(path: Path, size: int) -> int:
    """Cuts a file back to `size` bytes, or to its last whole line before that. How many bytes it is short of `size`.

    A file that is not there counts as empty.
    """
    if not path.exists():
        return size
    with path.open("r+b") as file:
        whole = _end_of_last_line(file, min(size, os.fstat(file.fileno()).st_size))
        file.truncate(whole)
        os.fsync(file.fileno())
    return size - whole


def _end_of_last_line(file: Any, end: int) -> int:
    """The largest position up to `end` that follows a line break."""
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        end = start
    return 0


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole object of a file; a last line that is still being written is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
