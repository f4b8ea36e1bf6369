"""Reading files that others may have put there, or that a user names: plain files only, and no more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_BINARY, _NO_LINK, _NO_WAIT = (getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a plain file. OSError for anything else: what a link points to, a directory, a pipe (which is
    not waited for)."""
    try:
        descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT | _BINARY, 0o666)  # guard: no-link-is-opened
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from None
        raise
    return _if_plain(descriptor, path)


def read_plain(path: Path, largest: int) -> tuple[bytes, os.stat_result]:
    """What is in a plain file, and what kind it is; OSError for anything else, and for more bytes than that."""
    return _read(open_plain(path, os.O_RDONLY), path, largest)


def read_named(path: Path | str, largest: int) -> bytes:
    """The bytes of a plain file that a user names, also through a link; OSError as `read_plain`."""
    path = Path(path)
    return _read(_if_plain(os.open(path, os.O_RDONLY | _NO_WAIT | _BINARY), path), path, largest)[0]


def _if_plain(descriptor: int, path: Path) -> int:
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):  # guard: only-plain-files-are-read
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def _read(descriptor: int, path: Path, largest: int) -> tuple[bytes, os.stat_result]:
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        data = file.read(largest + 1) if found.st_size <= largest else b""
    if found.st_size > largest or len(data) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", str(path))
    return data, found
