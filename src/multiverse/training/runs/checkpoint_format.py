"""What lies in a checkpoint: three files, and the checks that they are what was written.  Loading runs no code.

    arrays.safetensors   every array of the state
    state.json           the rest of it, and where the arrays belong
    manifest.json        format number, version, size and sha256 of the other two, shapes, and what the caller says

What grows (replay) lies in tables beside the checkpoints (`tables`); the manifest names its pieces.

The manifest is written in one way only (sorted, indented), so a manifest that reads well but is not byte for byte what
writing it again gives was changed by somebody or something. In what two manifests differ is said in sentences.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

import multiverse
from multiverse.core.errors import CheckpointBroken, InvalidConfig, InvalidRequest, MultiverseError, PreflightError
from multiverse.core.plain_files import open_plain
from multiverse.core.tables import Table
from multiverse.core.wording import in_a_line, in_bytes, in_words
from multiverse.executors.machine import memory_available
from multiverse.training.runs.files import sync_directory, write_new
from multiverse.training.runs.origin import redacted
from multiverse.training.runs.state_codec import Arrays, State, decode, encode
from multiverse.training.runs.tables import StoredTable, TableStore, stored_table

FORMAT = 1
FILES = ARRAYS, STATE, MANIFEST = "arrays.safetensors", "state.json", "manifest.json"
RESERVED = frozenset({"format", "multiverse", "files", "arrays", "tables", "sha256"})
"""Keys of a manifest that are ours, not the caller's."""
LARGEST = {MANIFEST: 2**24, STATE: 2**26, ARRAYS: 2**40}
"""Bytes that a file may have. JSON takes up to thirty times its size in memory: what is large belongs into arrays."""

MOST_SENTENCES = 20
Packed = dict[str, bytes]
"""A checkpoint's files by name, ready to be written more than once."""
_LEARNED = frozenset({"weights", "optimizer", "optimizers", "targets", "fixed_of_targets", "rewards"})
"""Entries of an algorithm's saved state that learning changes: parameters, moments, target networks and statistics."""
NO_STATE = (SafetensorError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, struct.error)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that was read and found to be what was written."""

    path: Path
    state: dict[str, Any]
    manifest: dict[str, Any]
    tables: tuple[StoredTable, ...] = ()  # beside it, unread as yet


@contextmanager
def taken_over(found: Checkpoint) -> Iterator[None]:
    """Inside, a state is taken over: one that was written as it is, and still makes no sense, is `CheckpointBroken`."""
    try:
        yield
    except InvalidConfig as error:
        raise CheckpointBroken(found.path, f"its state makes no sense here ({error})") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"checkpoint {found.path} does not fit here: {error}") from error
    except MultiverseError:
        raise
    except MemoryError as error:
        raise PreflightError(f"there is not enough memory for what {found.path} holds") from error
    except (*NO_STATE, AttributeError, AssertionError, RuntimeError) as error:
        # guard: twisted-states-are-refused
        raise CheckpointBroken(found.path, f"its state makes no sense here ({in_a_line(error)})") from error


def pack(state: State, manifest: Mapping[str, Any], store: TableStore) -> Packed:
    """The bytes of a checkpoint, its tables being on the disk then. TypeError or ValueError if the state or the
    manifest cannot be stored."""
    if taken := RESERVED & manifest.keys():
        raise ValueError(f"the manifest's {', '.join(sorted(taken))} are written by save itself")
    text, found = encode(state)
    arrays = {name: one for name, one in found.items() if not isinstance(one, Table)}
    tables = {name: one for name, one in found.items() if isinstance(one, Table)}
    files: Packed = {ARRAYS: safetensors.numpy.save(arrays), STATE: text}
    described: dict[str, Any] = {**redacted(manifest), "format": FORMAT, "multiverse": multiverse.__version__}
    described["files"] = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()}
    described["arrays"] = {name: {"shape": list(a.shape), "dtype": a.dtype.name} for name, a in arrays.items()}
    if tables:
        described["tables"] = store.write(tables)
    files[MANIFEST] = _manifest_text(_as_read(described))
    for name in (STATE, MANIFEST):
        if len(files[name]) > LARGEST[name]:
            raise ValueError(f"{name} would have {in_bytes(len(files[name]))}: lists of numbers belong into arrays")
    return files


def write_files(folder: Path, packed: Packed) -> None:
    """The three files in a new folder, on the disk when this returns."""
    os.mkdir(folder)
    for name in FILES:
        write_new(folder / name, packed[name])
    sync_directory(folder)


def read_files(folder: Path) -> Checkpoint:
    """The checkpoint in this folder; `CheckpointBroken` if any byte of it is not what was written."""
    manifest = read_manifest(folder)
    try:
        files = {name: _verified(folder / name, manifest) for name in (ARRAYS, STATE)}
        parts: Arrays = safetensors.numpy.load(files[ARRAYS])
        tables: list[StoredTable] = []
        for name in manifest.get("tables", {}):
            parts[name] = functools.partial(_table, folder, manifest, tables)
        return Checkpoint(folder, decode(files[STATE], parts), manifest, tuple(tables))
    except CheckpointBroken:
        raise
    except MemoryError:
        raise PreflightError(f"there is not enough memory to load {folder}") from None
    except NO_STATE as error:
        raise CheckpointBroken(folder, f"its contents make no state ({in_a_line(error)})") from None


def _table(folder: Path, manifest: Mapping[str, Any], tables: list[StoredTable], place: dict[str, Any]) -> StoredTable:
    tables.append(stored_table(folder.parent, place["$table"], place, manifest))
    return tables[-1]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, if it is one of ours and untouched. The other files are not looked at."""
    raw = _read(folder / MANIFEST, LARGEST[MANIFEST])
    try:
        manifest: Any = json.loads(raw)
        untouched = isinstance(manifest, dict) and manifest.pop("sha256", None) == _sha256(_json(manifest))
    except (ValueError, RecursionError):
        raise CheckpointBroken(folder, f"{MANIFEST} is no JSON") from None
    if isinstance(manifest, dict) and manifest.get("format", FORMAT) != FORMAT:
        version = manifest.get("multiverse", "another version")
        raise CheckpointBroken(
            folder, f"it has format {manifest['format']!r} (of multiverse {version}); this version reads {FORMAT}"
        )
    if not untouched or _manifest_text(manifest) != raw:  # guard: the-manifest-is-verified-too
        raise CheckpointBroken(folder, f"{MANIFEST} was changed after it was written")
    return dict(manifest)


def _verified(path: Path, manifest: dict[str, Any]) -> bytes:
    """The bytes of a file, which are those that the manifest speaks of."""
    try:
        size, digest = int(manifest["files"][path.name]["bytes"]), manifest["files"][path.name]["sha256"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointBroken(path.parent, f"{MANIFEST} says nothing of {path.name}") from None
    data = _read(path, LARGEST[path.name], size)
    if _sha256(data) != digest:  # guard: every-byte-is-verified
        raise CheckpointBroken(path.parent, f"{path.name} has other bytes than were written (its sha256 differs)")
    return data


def _read(path: Path, largest: int, expected: int | None = None) -> bytes:
    """A plain file's bytes, after a look at how many there are."""
    try:
        descriptor = open_plain(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if size > largest:  # guard: sizes-are-bounded
                limit = in_bytes(largest)
                raise CheckpointBroken(
                    path.parent, f"{path.name} has {in_bytes(size)}, more than the {limit} that are read"
                )
            if expected is not None and size != expected:
                raise CheckpointBroken(path.parent, f"{path.name} has {size} bytes instead of {expected}")
            _check_memory(path, 2 * size)
            return file.read(largest if expected is None else expected + 1)
    except FileNotFoundError:
        raise CheckpointBroken(path.parent, f"{path.name} is missing") from None
    except OSError as error:
        raise CheckpointBroken(path.parent, f"{path.name} cannot be read ({error.strerror or error})") from None


def _check_memory(path: Path, needed: int) -> None:
    """A hole in a file costs no disk, and reading it would cost all memory."""
    available = memory_available()
    if needed > available:  # guard: memory-is-asked-for-before-reading
        raise PreflightError(f"loading {path} takes {in_bytes(needed)} of memory: {in_bytes(available)} are available")


def _manifest_text(manifest: Mapping[str, Any]) -> bytes:
    return _json({**manifest, "sha256": _sha256(_json(manifest))})


def _as_read(value: Any) -> Any:
    """Keys are text then, tuples are lists: what is written must be what writing it again gives."""
    return json.loads(json.dumps(value, default=_number))


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _number(value: Any) -> Any:
    """Numbers of numpy in a manifest are numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a manifest holds numbers, text, lists and dicts, not a {type(value).__qualname__}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- values that are not finite ---------------------------------------------------------------------------------
def not_finite(state: State) -> str | None:
    """Return the place of the first learned array with a value that is not finite, or None.

    Weights, optimizer moments, statistics and saved policies are searched. Elsewhere an infinity may be meant: in the
    bounds of a space, or as the best return before any evaluation.
    """
    session = _mapping(state.get("session"))
    parts: dict[str, Any] = {}
    learners = {f"algorithms/{name}": one for name, one in _mapping(session.get("algorithms")).items()}
    for name, learner in {"algorithm": session.get("algorithm"), **learners}.items():
        saved = {"weights": _mapping(learner).get("weights"), **_mapping(_mapping(learner).get("state"))}
        parts |= {f"{name}/{key}": one for key, one in saved.items() if key in _LEARNED}
    parts |= {name: session.get(name) for name in ("policy", "policies", "opponents")}
    return next((place for name, part in parts.items() for place in _not_finite(part, name)), None)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return the value, or an empty mapping where a changed state has something else."""
    return value if isinstance(value, Mapping) else {}


def _not_finite(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _not_finite(one, f"{place}/{key}")
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _not_finite(one, f"{place}/{index}")
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fc" and not np.isfinite(value).all():
        yield place


# -- what differs -----------------------------------------------------------------------------------------------
def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Sentences: another version, another BLAS, config fields changed from one value to another, other arrays.

    `config` and `arrays` are compared where both have them; `arrays` maps names to shape and dtype.
    """
    found = list(_made_with(old, new))
    if "config" in old and "config" in new:
        found += _bounded(_fields(old["config"], new["config"], ""))
    if "arrays" in old and "arrays" in new:
        found += _bounded(_arrays(old["arrays"], new["arrays"]))
    return found


def _made_with(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    said = {
        "multiverse": "It was written by multiverse {}; this is {}.",
        "blas": "Its matrices were multiplied by {}, here they are by {}: it goes on, but not bit for bit.",
    }
    for name, sentence in said.items():
        before, now = old.get(name), new.get(name)
        if before is not None and now is not None and before != now:
            yield sentence.format(*(in_words(one).strip("'") for one in (before, now)))


def _fields(old: Any, new: Any, place: str) -> Iterator[str]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if old != new and not (old != old and new != new):  # two NaNs are the same
            yield f"{place} changed from {in_words(old)} to {in_words(new)}."
        return
    for key in [*old, *(key for key in new if key not in old)]:
        inner = f"{place}.{key}" if place else str(key)
        if key not in new:
            yield f"{inner} was {in_words(old[key])} and is no longer there."
        elif key not in old:
            yield f"{inner} is new, with {in_words(new[key])}."
        else:
            yield from _fields(old[key], new[key], inner)


def _arrays(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"The array {name} {_looks(old[name])} is not used now."
        elif name not in old:
            yield f"The array {name} {_looks(new[name])} is missing in it."
        elif _looks(old[name]) != _looks(new[name]):
            yield f"The array {name} was {_looks(old[name])} and is {_looks(new[name])} now."


def _looks(array: Mapping[str, Any]) -> str:
    return f"{list(array['shape'])} {array['dtype']}"


def _bounded(sentences: Iterator[str]) -> list[str]:
    found = list(sentences)
    more = [f"And {len(found) - MOST_SENTENCES} more of this kind."] if len(found) > MOST_SENTENCES else []
    return found[:MOST_SENTENCES] + more
