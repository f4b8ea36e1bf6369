"""One process at a time writes to a run directory.

The kernel's lock on `run.lock` is the truth: it ends with its process however that ends, and a forked child does not
inherit it. The file says whose it is: pid, boot and start of the process. Where file systems have no locks, that alone
decides: a holder of another boot, one that has ended, or one whose pid now belongs to a process that started at another
time, holds nothing any more.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from multiverse.contracts.errors import RunLocked
from multiverse.training.storage.files import open_plain, write_all

try:
    import fcntl
except ImportError:  # Rollouts: who holds it is all we know there
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("multiverse")

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
    """When a process began, by a clock that nobody sets where there is one; None if there is no such process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return float(after_name[19])  # in ticks since the boot
    except (OSError, IndexError, ValueError):
        pass
    try:
        return float(psutil.Process(pid).create_time())
    except (OSError, psutil.Error):
        return None


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
