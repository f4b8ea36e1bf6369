"""Files that are whole or not there: written aside, forced to the disk, then renamed into place; and files that grow.

A rename is atomic, but not what it names: without an fsync before it, a power loss can leave the new name on an empty
file; without an fsync of the directory after it, the old name can come back.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

log = logging.getLogger("multiverse")

UNFINISHED = ".writing-"
"""How the names of files begin that are not in place yet. Whoever owns the folder may sweep them."""


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a plain file. OSError for anything else: what a link points to, a directory, a pipe (which is
    not waited for)."""
    try:
        descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT | _BINARY, 0o666)  # guard: no-link-is-opened
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def read_plain(path: Path, largest: int) -> tuple[bytes, os.stat_result]:
    """What is in a plain file, and what kind it is; OSError for anything else, and for more bytes than that."""
    descriptor = open_plain(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        data = file.read(largest + 1) if found.st_size <= largest else b""
    if found.st_size > largest or len(data) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
    return data, found


def write_new(path: Path, data: bytes, mode: int = 0o666) -> None:
    """A new file with these bytes, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)  # guard: bytes-are-on-the-disk-before-their-name
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Every byte, however many the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def replace_file(path: Path, data: bytes) -> None:
    """The file has these bytes, or, if anything fails, those it had before."""
    aside = path.with_name(f"{UNFINISHED}{path.name}-{secrets.token_hex(4)}")
    try:
        write_new(aside, data)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """The names in this directory are on the disk. Rollouts has no such call, and renames there need none."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Away with it, as far as that goes; what cannot be removed stays for the next sweep."""
    shutil.rmtree(path, ignore_errors=True)


def sweep_unfinished(folder: Path, names: Iterable[str]) -> None:
    """What a killed `replace_file` of these has left here. Only for who is known to be the only one to write here."""
    known = re.compile(rf"{re.escape(UNFINISHED)}(?:{'|'.join(map(re.escape, names))})-[0-9a-f]{{8}}")
    for leftover in [one for one in os.listdir(folder) if known.fullmatch(one)]:
        if not (folder / leftover).is_dir():
            (folder / leftover).unlink(missing_ok=True)


_BINARY, _NO_LINK, _NO_WAIT = (getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))


class LineFile:
    """Lines, appended. A write that fails leaves no half line behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size = os.fstat(self._descriptor).st_size

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """These objects as JSON, one a line, in one go."""
        self.append_text("".join(f"{_as_json(one)}\n" for one in objects))

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


_encode = json.JSONEncoder(allow_nan=False).encode


def _as_json(row: Mapping[str, Any]) -> str:
    """Plain numbers and text, of which there may be thousands, as they are."""
    try:
        return _encode(row)
    except (TypeError, ValueError):  # numpy's numbers, or what is not finite
        return _encode(for_json(row))


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
    try:
        descriptor = open_plain(path, os.O_RDWR)
    except FileNotFoundError:
        return size
    with os.fdopen(descriptor, "r+b") as file:
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
    """Every whole object of a file; a last line that is still being written is passed over. Lines that are none are
    passed over too, and told in one warning."""
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    bad: list[int] = []
    with os.fdopen(descriptor, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                yield found
            else:
                bad.append(number)
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        log.warning("%s: line %d%s makes no sense, and is passed over", path, bad[0], more)
