"""Files of runs: atomic replacement (written aside, forced to the disk, renamed), files that grow, and the lock with
which one process at a time writes to a run directory.

A rename is atomic, but the content is not: without an fsync before it, a power loss can leave the new name on an empty
file; without an fsync of the directory after it, the old name can come back.

The kernel's lock on `run.lock` is decisive: it ends with its process, and a forked child does not inherit it. The file
names its holder: pid, boot and start time of the process. On file systems without locks that alone decides: a holder of
another boot, one that has ended, or one whose pid now belongs to a process with another start time, no longer holds it.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from multiverse.core.errors import RunLocked
from multiverse.core.plain_files import open_plain

try:
    import fcntl
except ImportError:  # Windows: only the holder's name decides
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("multiverse")

UNFINISHED = ".writing-"
"""Prefix of the names of files that are being written. The owner of the folder may remove them."""


def write_new(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a new file; it is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)  # guard: bytes-are-on-the-disk-before-their-name
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes, in as many calls as the system needs."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file; after an error it is unchanged. OSError for what is not a plain file, also behind
    a link: the rename would replace a device or a pipe."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # guard: no-device-is-replaced
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    aside = path.with_name(f"{UNFINISHED}{path.name}-{secrets.token_hex(4)}")
    try:
        write_new(aside, data)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Force the names in this directory to the disk. Windows has no such call, and needs none for renames."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep_unfinished(folder: Path, names: Iterable[str]) -> None:
    """Remove leftovers of killed calls of `replace_file` for these names. Only one process may write here."""
    known = re.compile(rf"{re.escape(UNFINISHED)}(?:{'|'.join(map(re.escape, names))})-[0-9a-f]{{8}}")
    for leftover in [one for one in os.listdir(folder) if known.fullmatch(one)]:
        if not (folder / leftover).is_dir():
            (folder / leftover).unlink(missing_ok=True)


_BINARY = getattr(os, "O_BINARY", 0)


class LineFile:
    """A file to which lines are appended. A write that fails leaves no incomplete line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size = os.fstat(self._descriptor).st_size

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Append these objects as JSON, one per line, in one write."""
        self.append_text(_as_json_lines(list(objects)))

    def append_text(self, lines: str) -> None:
        """Append whole lines, each with its line break."""
        data = lines.encode()
        try:
            write_all(self._descriptor, data)
        except BaseException:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Force what was appended to the disk."""
        if not self.closed:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if not self.closed:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    @property
    def closed(self) -> bool:
        return self._descriptor < 0


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one object as JSON to a file; it is on the disk when this returns."""
    with closing(LineFile(path)) as file:
        file.append([row])
        file.sync()


_encode = json.JSONEncoder(allow_nan=False).encode
_encode_split = json.JSONEncoder(allow_nan=False, separators=("\n", ": ")).encode


def _as_json_lines(rows: list[Mapping[str, Any]]) -> str:
    """One JSON object per line. Thousands of rows are encoded in one call, in half the time of one call for each."""
    try:
        text = _encode_split(rows)
    except (TypeError, ValueError):  # numpy's numbers, or values that are not finite
        return "".join(f"{_encode(for_json(row))}\n" for row in rows)
    if text.count("}\n{") != len(rows) - 1:  # a row has a list of objects (JSON text has no plain line breaks)
        return "".join(f"{_encode(row)}\n" for row in rows)
    return text[1:-1].replace("}\n{", "}\0{").replace("\n", ", ").replace("\0", "\n") + "\n"


def for_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row in values that JSON has: numpy's numbers as numbers, values that are not finite as null."""
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
    """Cut a file back to `size` bytes, or to its last whole line before that. Return how many bytes it is shorter than
    `size`. A missing file counts as empty."""
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
    """Largest position up to `end` that follows a line break."""
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        position = file.read(end - start).rfind(b"\n")
        if position >= 0:
            return int(start + position + 1)
        end = start
    return 0


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, without an incomplete last line. Malformed lines are skipped with one warning."""
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
                content = json.loads(line)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                yield content
            else:
                bad.append(number)
    if bad:
        more = f" and {len(bad) - 1} more were" if len(bad) > 1 else " was"
        log.warning("%s: line %d%s malformed and skipped", path, bad[0], more)


# -- the lock ---------------------------------------------------------------------------------------------------
LOCK = "run.lock"
_BUSY = (errno.EACCES, errno.EAGAIN)
_held: dict[Path, tuple[int, object]] = {}  # by this process: the kernel would let it lock the same file twice


@dataclass(frozen=True, slots=True)
class Holder:
    """Identity of a process, which differs from that of any other that had or will have its pid."""

    pid: int
    boot_id: str
    started: float
    host: str
    since: str

    @classmethod
    def me(cls) -> Holder:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(os.getpid(), boot_id(), started(os.getpid()) or 0.0, socket.gethostname(), since)

    def is_alive(self) -> bool:
        return self.boot_id == boot_id() and started(self.pid) == self.started  # guard: a-pid-alone-is-nobody

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class RunLock:
    """Lock of a run directory, held until `release()` or the end of the process. `RunLocked` if another holds it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory.resolve() / LOCK
        self._pid = os.getpid()
        self._claim()
        try:
            self._descriptor = self._acquire()
        except BaseException:
            del _held[self.path]
            raise

    def release(self) -> None:
        """Release the lock. Idempotent; does nothing in a forked child, because the lock belongs to its parent."""
        if _held.get(self.path, (0, None))[1] is not self or self._pid != os.getpid():
            return
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        del _held[self.path]

    def _claim(self) -> None:
        pid, _ = _held.setdefault(self.path, (self._pid, self))
        if pid != self._pid:  # inherited from the process that forked us
            _held[self.path] = (self._pid, self)
        elif _held[self.path][1] is not self:
            raise RunLocked(self.path.parent, f"this process ({pid})", pid)

    def _acquire(self) -> int:
        while True:
            descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT)
            try:
                self._lock(descriptor)
                if _is_same_file(self.path, descriptor):  # its former holder may have removed it meanwhile
                    self._sign(descriptor)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:  # guard: the-kernel-holds-the-lock
                holder = read_holder(descriptor)
                name, pid = (str(holder), holder.pid) if holder else ("another process", None)
                raise RunLocked(self.path.parent, name, pid) from None

    def _sign(self, descriptor: int) -> None:
        """Write this process as holder, in place of one that has ended."""
        me, former = Holder.me(), read_holder(descriptor)
        if former is not None and former.pid != me.pid and former.is_alive():
            raise RunLocked(self.path.parent, str(former), former.pid)
        if former is not None:
            log.warning("%s: %s has ended and left a stale lock; taking it over", self.path.parent, former)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        write_all(descriptor, json.dumps(asdict(me)).encode())
        os.fsync(descriptor)


def read_holder(descriptor: int) -> Holder | None:
    """The holder that the file names; None if there is none, or if its process was killed while writing it."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        return Holder(**json.loads(os.read(descriptor, 4096)))
    except (ValueError, TypeError):
        return None


def boot_id() -> str:
    """Identifier of this start of the machine; "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def started(pid: int) -> float | None:
    """Start time of a process, by a monotonic clock if the system has one; None if it has ended, also as a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ended = after_name[0] in ("Z", "X")  # guard: a-zombie-holds-no-lock
        return None if ended else float(after_name[19])  # in ticks since the boot
    except (OSError, IndexError, ValueError):
        pass
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (OSError, psutil.Error):
        return None


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
