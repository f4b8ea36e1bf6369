"""Tables beside the checkpoints, in files that are only ever appended to: a checkpoint costs what is new.

    checkpoints/tables/<table>-<number of its first record>-<token>.rows

A file holds records one after the other, as they lie in memory. A checkpoint names the files that its table is in, how
many bytes of each are its own, and their sha256; what comes after those is somebody else's, or was being written when
its process was killed, and is never read. So nothing has to be cut off or written twice, and the same file serves all
checkpoints after it. A process that goes on with a run begins new files. A file goes when no checkpoint names it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multiverse.core.errors import CheckpointBroken
from multiverse.core.plain_files import open_plain
from multiverse.core.tables import Table
from multiverse.training.runs.files import sync_directory, write_all

if TYPE_CHECKING:  # which would load Gymnasium
    from multiverse.core.layout import Array

TABLES = "tables"
FULL_BYTES = 2**24
"""Of a file: then another begins."""
WITHOUT_REPLAY = (
    "To resume with the weights and an empty replay buffer, which is not bit-exact, pass --without-replay (in Python: "
    "without_replay=True)"
)
LONGEST_STEM = 110
"""Characters of a file's name that say whose it is; file systems allow 255 bytes for a whole name, some 143."""
_NAME = re.compile(r"[\w-]+-\d{12,}-[0-9a-f]{8}\.rows")


@dataclass(frozen=True, slots=True)
class Piece:
    """The first bytes of a file."""

    file: str
    first: int  # the number of its first record
    count: int  # of records
    bytes: int
    sha256: str

    @property
    def last(self) -> int:
        return self.first + self.count


class StoredTable:
    """A table as a checkpoint names it. Read when it is asked for, and verified then."""

    def __init__(self, folder: Path, first: int, last: int, pieces: list[Piece]) -> None:
        """`folder`: that of the checkpoints."""
        self._folder, self.first, self.last, self._pieces = folder, first, last, pieces
        at = first
        for piece in pieces:
            if not piece.first <= at < piece.last or not piece.bytes or piece.bytes % piece.count:
                raise ValueError(f"{piece.file} does not go on where the piece before it ended")
            at = piece.last
        if at < last or first > last:
            raise ValueError(f"its records end at {at} instead of {last}")

    def pieces(self, dtype: np.dtype[Any]) -> Iterator[Array]:
        """The records in their order; ValueError if they are of another kind."""
        at = self.first
        for piece in self._pieces:
            if piece.count * dtype.itemsize != piece.bytes:
                raise ValueError(f"a record has {piece.bytes // piece.count} bytes instead of {dtype.itemsize}")
            records = np.frombuffer(self._read(piece), dtype)
            yield records[at - piece.first : self.last - piece.first]
            at = piece.last

    def verify(self) -> None:
        """`CheckpointBroken` if anything of it is not what was written."""
        for piece in self._pieces:
            self._read(piece)

    def _read(self, piece: Piece) -> bytes:
        path = self._folder / TABLES / piece.file
        try:
            with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
                data = file.read(piece.bytes)
        except OSError as error:
            raise CheckpointBroken(path, f"it cannot be read ({error.strerror or error})", WITHOUT_REPLAY) from None
        if hashlib.sha256(data).hexdigest() != piece.sha256:  # guard: every-record-is-verified
            raise CheckpointBroken(
                path, "it has other bytes than were written, or fewer (their sha256 differs)", WITHOUT_REPLAY
            )
        return data


def stored_table(folder: Path, name: str, place: Mapping[str, Any], manifest: Mapping[str, Any]) -> StoredTable:
    """The one that a state speaks of, by what the manifest says of it. ValueError, KeyError or TypeError if that is
    nothing."""
    pieces = _pieces(manifest["tables"][name])
    return StoredTable(folder, int(place["first"]), int(place["last"]), pieces)


def _pieces(told: Any) -> list[Piece]:
    found = [Piece(one["file"], int(one["first"]), int(one["count"]), int(one["bytes"]), one["sha256"]) for one in told]
    for piece in found:
        if not _NAME.fullmatch(piece.file) or piece.count < 1:  # guard: no-table-is-read-from-elsewhere
            raise ValueError(f"{piece.file!r} is no file of a table")
    return found


class TableStore:
    """The tables of one run, as the process that writes to it has them."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the checkpoints."""
        self.folder, self._written = folder / TABLES, dict[str, list[Piece]]()
        self._growing: dict[str, _Growing] = {}

    def go_on_from(self, manifest: Mapping[str, Any]) -> None:
        """What this checkpoint names is there, and need not be written again."""
        self._written = {name: _pieces(told) for name, told in manifest.get("tables", {}).items()}
        self._growing.clear()

    def write(self, tables: Mapping[str, Table]) -> dict[str, list[dict[str, Any]]]:
        """All records are on the disk when this returns: what the manifest says of each. OSError leaves everything as
        it was; what was written in vain is not named by anybody."""
        told = {}
        for name, table in tables.items():
            self._written[name] = self._with_new(name, table)
            told[name] = [
                {"file": p.file, "first": p.first, "count": p.count, "bytes": p.bytes, "sha256": p.sha256}
                for p in self._written[name]
            ]
        return told

    def _with_new(self, name: str, table: Table) -> list[Piece]:
        """The pieces of a table, what is new among them."""
        size, written = table.dtype.itemsize, self._written.get(name, [])
        pieces = [piece for piece in written if piece.last > table.first]  # the others are forgotten
        if any(piece.bytes != piece.count * size or piece.last > table.last for piece in pieces):
            pieces = []  # of another kind
        at, file = max(table.first, pieces[-1].last if pieces else 0), self._growing.get(name)
        if at == table.last:
            return pieces
        if not self.folder.is_dir():
            self.folder.mkdir()
        if file is not None and not (pieces and pieces[-1].file == file.name):
            file = None
        before, begun = (file, file.bytes if file else 0), list[_Growing]()
        try:
            while at < table.last:
                if file is None or file.bytes >= FULL_BYTES:
                    file = _Growing(self.folder, name, at)
                    begun.append(file)
                    pieces.append(file.piece(at, 0))
                count = min(table.last - at, max(1, (FULL_BYTES - file.bytes) // size))
                file.append(np.ascontiguousarray(table.records(at, at + count)))
                at += count
                pieces[-1] = file.piece(pieces[-1].first, at - pieces[-1].first)
            sync_directory(self.folder)
        except BaseException:
            self._growing.pop(name, None)  # a torn file is not gone on with
            for one in begun:
                one.cut_back(0)
            if before[0] is not None:
                before[0].cut_back(before[1])
            raise
        assert file is not None
        self._growing[name] = file
        return pieces

    def sweep(self, named: set[str]) -> None:
        """Away with what none of the checkpoints names, and this process will not go on with."""
        mine = {piece.file for pieces in self._written.values() for piece in pieces}
        for entry in os.listdir(self.folder) if self.folder.is_dir() else []:
            if _NAME.fullmatch(entry) and entry not in named | mine:  # guard: named-tables-stay
                with suppress(OSError):
                    (self.folder / entry).unlink()


def _file_stem(table: str) -> str:
    """Return what a table's file names begin with. A table is called after its agents, whose names may be longer than
    a file name can be: then a hash takes the place of the end."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", table)
    if len(stem) <= LONGEST_STEM:  # guard: no-file-name-is-too-long
        return stem
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    return f"{stem[: LONGEST_STEM - len(digest) - 1]}-{digest}"


class _Growing:
    """A file that this process has begun."""

    def __init__(self, folder: Path, table: str, first: int) -> None:
        self.name = f"{_file_stem(table)}-{first:012d}-{secrets.token_hex(4)}.rows"
        self._path, self.bytes, self._sha256 = folder / self.name, 0, hashlib.sha256()

    def append(self, records: Array) -> None:
        """On the disk when this returns; if it fails, what is in the file beyond its earlier bytes is nothing."""
        data = records.tobytes()
        flags = os.O_WRONLY | (os.O_APPEND if self.bytes else os.O_CREAT | os.O_EXCL)
        descriptor = open_plain(self._path, flags)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)  # guard: records-are-on-the-disk-before-they-are-named
        finally:
            os.close(descriptor)
        self.bytes += len(data)
        self._sha256.update(data)

    def cut_back(self, size: int) -> None:
        """To as many bytes, as far as that goes: the disk may be full. The file is not to be gone on with."""
        with suppress(OSError):
            os.truncate(self._path, size) if size else self._path.unlink()

    def piece(self, first: int, count: int) -> Piece:
        return Piece(self.name, first, count, self.bytes, self._sha256.hexdigest())
