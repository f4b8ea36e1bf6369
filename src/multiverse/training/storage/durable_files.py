"""Files that are whole or not there: written aside, forced to the disk, then renamed into place. Knows no formats.

A rename is atomic, but not what it names: without an fsync before it, a power loss can leave the new name on an empty
file; without an fsync of the directory after it, the old name can come back.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

UNFINISHED = ".writing-"
"""How the names of files begin that are not in place yet. Whoever owns the folder may sweep them."""


def write_new(path: Path, data: bytes) -> None:
    """A new file with these bytes, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
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


def sweep_unfinished(folder: Path) -> None:
    """What a killed `replace_file` has left here. Only for who is known to be the only one to write here."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        leftover.unlink(missing_ok=True)


_BINARY = getattr(os, "O_BINARY", 0)
