"""Files that are whole or not there: written aside, forced to the disk, then renamed into place; files that grow; and
the lock, by which one process at a time writes to a run directory.

A rename is atomic, but not what it names: without an fsync before it, a power loss can leave the new name on an empty
file; without an fsync of the directory after it, the old name can come back.

The kernel's lock on `run.lock` is the truth: it ends with its process however that ends, and a forked child does not
inherit it. The file says whose it is: pid, boot and start of the process. Where file systems have no locks, that alone
decides: a holder of another boot, one that has ended, or one whose pid now belongs to a process that started at another
time, holds nothing any more.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from multiverse.core.errors import RunLocked
from multiverse.core.plain_files import open_plain

try:
    import fcntl
except ImportError:  # Windows: who holds it is all we know there
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("multiverse")

UNFINISHED = ".writing-"
"""How the names of files begin that are not in place yet. Whoever owns the folder may sweep them."""


def write_new(path: Path, data: bytes, mode: int = 0o666) -> None:
    """A new file with these bytes, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)  # guard: bytes-are-on-the-disk-before-their-name
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Every byte, however many the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def replace_file(path: Path, data: bytes) -> None:
    """The file has these bytes, or, if anything fails, those it had before. OSError for what is no plain file, also
    behind a link: a rename would put one in the place of a device or a pipe."""
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
    """The names in this directory are on the disk. Windows has no such call, and renames there need none."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep_unfinished(folder: Path, names: Iterable[str]) -> None:
    """What a killed `replace_file` of these has left here. Only for who is known to be the only one to write here."""
    known = re.compile(rf"{re.escape(UNFINISHED)}(?:{'|'.join(map(re.escape, names))})-[0-9a-f]{{8}}")
    for leftover in [one for one in os.listdir(folder) if known.fullmatch(one)]:
        if not (folder / leftover).is_dir():
            (folder / leftover).unlink(missing_ok=True)


_BINARY = getattr(os, "O_BINARY", 0)


class LineFile:
    """Lines, appended. A write that fails leaves no half line behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size = os.fstat(self._descriptor).st_size

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """These objects as JSON, one a line, in one go."""
        self.append_text(_as_json_lines(list(objects)))

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
_encode_split = json.JSONEncoder(allow_nan=False, separators=("\n", ": ")).encode


def _as_json_lines(rows: list[Mapping[str, Any]]) -> str:
    """Plain numbers and text, of which there may be thousands, in one call: half the time of one for each."""
    try:
        found = _encode_split(rows)
    except (TypeError, ValueError):  # numpy's numbers, or what is not finite
        return "".join(f"{_encode(for_json(row))}\n" for row in rows)
    if found.count("}\n{") != len(rows) - 1:  # a list of objects in one of them; no text has a plain line break in it
        return "".join(f"{_encode(row)}\n" for row in rows)
    return found[1:-1].replace("}\n{", "}\0{").replace("\n", ", ").replace("\0", "\n") + "\n"


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


# -- the lock ---------------------------------------------------------------------------------------------------
LOCK = "run.lock"
_BUSY = (errno.EACCES, errno.EAGAIN)
_held: dict[Path, tuple[int, object]] = {}  # by this process: the kernel would let it lock the same file twice


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, told apart from any other that had or will have its pid."""

    pid: int
    boot_id: str
    started: float
    host: str
    since: str

    @classmethod
    def me(cls) -> Holder:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(os.getpid(), boot_id(), started(os.getpid()) or 0.0, socket.gethostname(), since)

    def lives(self) -> bool:
        return self.boot_id == boot_id() and started(self.pid) == self.started  # guard: a-pid-alone-is-nobody

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class RunLock:
    """Held from when it is made until `release()` or the end of the process. `RunLocked` if it is another's."""

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
        """The directory is free. Does nothing the second time, nor in a forked child: the lock is its parent's."""
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
            raise RunLocked(self.path.parent, f"this very process ({pid})", pid)

    def _acquire(self) -> int:
        while True:
            descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT)
            try:
                self._lock(descriptor)
                if _is_still(self.path, descriptor):  # its former holder may have removed it meanwhile
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
        """Our name instead of that of a holder that is gone."""
        me, former = Holder.me(), read_holder(descriptor)
        if former is not None and former.pid != me.pid and former.lives():
            raise RunLocked(self.path.parent, str(former), former.pid)
        if former is not None:
            log.warning("%s was in use by %s, which has ended without saying so; going on", self.path.parent, former)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        write_all(descriptor, json.dumps(asdict(me)).encode())
        os.fsync(descriptor)


def read_holder(descriptor: int) -> Holder | None:
    """Who has signed; None if nobody, or if it cannot be read: whoever wrote it was killed over it."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        return Holder(**json.loads(os.read(descriptor, 4096)))
    except (ValueError, TypeError):
        return None


def boot_id() -> str:
    """Another after every start of the machine; "" where nobody tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def started(pid: int) -> float | None:
    """When a process began, by a clock that nobody sets where there is one; None if there is no such process, or only
    a zombie that nobody has waited for."""
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


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
