"""Tables beside the checkpoints, in files that are only appended to, so that a checkpoint writes only new records.

    checkpoints/tables/<table>-<number of its first record>-<token>.rows

A file holds records as they are in memory. A checkpoint names the files of its table, the number of bytes of each that
belong to it, and their sha256. Bytes after those belong to a later checkpoint, or were being written when the process
was killed, and are never read. So nothing must be cut off or written twice, and all later checkpoints use the same
file. A process that resumes a run begins new files. A file is removed when no checkpoint names it."""

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
"""Size of a file after which another is begun."""
WITHOUT_REPLAY = (
    "To resume with the weights and an empty replay buffer, which is not bit-exact, pass --without-replay (in Python: "
    "without_replay=True)"
)
MAX_STEM = 110
"""Maximum length of the part of a file's name for the table; file systems allow 255 bytes for a name, some 143."""
_NAME = re.compile(r"[\w-]+-\d{12,}-[0-9a-f]{8}\.rows")


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a file that belongs to a table: its first bytes."""

    file: str
    first: int  # number of its first record
    count: int  # of records
    bytes: int
    sha256: str

    @property
    def last(self) -> int:
        return self.first + self.count


class StoredTable:
    """A table that a checkpoint names. It is read and verified when it is needed."""

    def __init__(self, folder: Path, first: int, last: int, pieces: list[Piece]) -> None:
        """`folder`: the folder of the checkpoints."""
        self._folder, self.first, self.last, self._pieces = folder, first, last, pieces
        at = first
        for piece in pieces:
            if not piece.first <= at < piece.last or not piece.bytes or piece.bytes % piece.count:
                raise ValueError(f"{piece.file} does not continue where the piece before it ended")
            at = piece.last
        if at < last or first > last:
            raise ValueError(f"its records end at {at} instead of {last}")

    def pieces(self, dtype: np.dtype[Any]) -> Iterator[Array]:
        """Yield the records in order; ValueError if they do not have this dtype."""
        at = self.first
        for piece in self._pieces:
            if piece.count * dtype.itemsize != piece.bytes:
                raise ValueError(f"a record has {piece.bytes // piece.count} bytes instead of {dtype.itemsize}")
            records = np.frombuffer(self._read(piece), dtype)
            yield records[at - piece.first : self.last - piece.first]
            at = piece.last

    def verify(self) -> None:
        """Raise `CheckpointBroken` if any byte differs from what was written."""
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
    """Return the table that a state names; ValueError, KeyError or TypeError if its description is invalid."""
    pieces = _pieces(manifest["tables"][name])
    return StoredTable(folder, int(place["first"]), int(place["last"]), pieces)


def _pieces(description: Any) -> list[Piece]:
    pieces = [
        Piece(entry["file"], int(entry["first"]), int(entry["count"]), int(entry["bytes"]), entry["sha256"])
        for entry in description
    ]
    for piece in pieces:
        if not _NAME.fullmatch(piece.file) or piece.count < 1:  # guard: no-table-is-read-from-elsewhere
            raise ValueError(f"{piece.file!r} is not a file of a table")
    return pieces


class TableStore:
    """The tables of a run, for the process that writes them."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the folder of the checkpoints."""
        self.folder, self._written = folder / TABLES, dict[str, list[Piece]]()
        self._growing: dict[str, _Growing] = {}

    def continue_from(self, manifest: Mapping[str, Any]) -> None:
        """Continue the tables of this checkpoint: their records need not be written again."""
        self._written = {name: _pieces(description) for name, description in manifest.get("tables", {}).items()}
        self._growing.clear()

    def write(self, tables: Mapping[str, Table]) -> dict[str, list[dict[str, Any]]]:
        """Write all new records to the disk; return the descriptions of the tables for a manifest. After an OSError no
        checkpoint names what was written."""
        descriptions = {}
        for name, table in tables.items():
            self._written[name] = self._write_new(name, table)
            descriptions[name] = [
                {"file": p.file, "first": p.first, "count": p.count, "bytes": p.bytes, "sha256": p.sha256}
                for p in self._written[name]
            ]
        return descriptions

    def _write_new(self, name: str, table: Table) -> list[Piece]:
        """Write the new records of a table; return all its pieces."""
        size, written = table.dtype.itemsize, self._written.get(name, [])
        pieces = [piece for piece in written if piece.last > table.first]  # earlier records were removed from the table
        if any(piece.bytes != piece.count * size or piece.last > table.last for piece in pieces):
            pieces = []  # the table has other records now
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
            self._growing.pop(name, None)  # a partly written file is not continued
            for new in begun:
                new.cut_back(0)
            if before[0] is not None:
                before[0].cut_back(before[1])
            raise
        assert file is not None
        self._growing[name] = file
        return pieces

    def sweep(self, named: set[str]) -> None:
        """Remove files that no checkpoint names and that this process does not continue."""
        mine = {piece.file for pieces in self._written.values() for piece in pieces}
        for entry in os.listdir(self.folder) if self.folder.is_dir() else []:
            if _NAME.fullmatch(entry) and entry not in named | mine:  # guard: named-tables-stay
                with suppress(OSError):
                    (self.folder / entry).unlink()


def _file_stem(table: str) -> str:
    """Return the first part of the names of a table's files. A table is named after its agents, whose names may be too
    long for a file name: then a hash replaces the end."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", table)
    if len(stem) <= MAX_STEM:  # guard: no-file-name-is-too-long
        return stem
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    return f"{stem[: MAX_STEM - len(digest) - 1]}-{digest}"


class _Growing:
    """A file that this process writes."""

    def __init__(self, folder: Path, table: str, first: int) -> None:
        self.name = f"{_file_stem(table)}-{first:012d}-{secrets.token_hex(4)}.rows"
        self._path, self.bytes, self._sha256 = folder / self.name, 0, hashlib.sha256()

    def append(self, records: Array) -> None:
        """Append records to the disk. After an error, bytes beyond the former size do not count."""
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
        """Cut the file back to this size, if the disk allows it. The file is not written to again."""
        with suppress(OSError):
            os.truncate(self._path, size) if size else self._path.unlink()

    def piece(self, first: int, count: int) -> Piece:
        return Piece(self.name, first, count, self.bytes, self._sha256.hexdigest())
