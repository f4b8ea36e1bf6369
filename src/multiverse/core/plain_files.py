"""Reading of files that other users may have placed, or that the user names: plain files up to a size limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_BINARY, _NO_LINK, _NO_WAIT = (getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a plain file. OSError for anything else: a symbolic link, a directory, or a pipe (without
    waiting for it)."""
    try:
        descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT | _BINARY, 0o666)  # guard: no-link-is-opened
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from None
        raise
    return _if_plain(descriptor, path)


def read_plain(path: Path, largest: int) -> tuple[bytes, os.stat_result]:
    """The content of a plain file, and its status; OSError for anything else, and for more than `largest` bytes."""
    return _read(open_plain(path, os.O_RDONLY), path, largest)


def read_named(path: Path | str, largest: int) -> bytes:
    """The content of a plain file that the user names, also through a link; OSError as in `read_plain`."""
    path = Path(path)
    return _read(_if_plain(os.open(path, os.O_RDONLY | _NO_WAIT | _BINARY), path), path, largest)[0]


def _if_plain(descriptor: int, path: Path) -> int:
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):  # guard: only-plain-files-are-read
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a plain file", str(path))


def _read(descriptor: int, path: Path, largest: int) -> tuple[bytes, os.stat_result]:
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        data = file.read(largest + 1) if status.st_size <= largest else b""
    if status.st_size > largest or len(data) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
    return data, status
