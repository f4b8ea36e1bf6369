"""Contents of a checkpoint: three files, their verification, migration and comparison.  Loading executes no code.

    arrays.safetensors   every array of the state
    state.json           the rest of the state, and the places of the arrays
    manifest.json        format number, version, size and sha256 of the other two, shapes, and entries of the caller

Data that grows (replay) is in tables beside the checkpoints (`tables`); the manifest names their pieces.

A manifest has one text only (sorted, indented). One that can be read, but has other bytes than writing it again gives,
was changed.
"""

from __future__ import annotations

import dataclasses
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
from multiverse.core.wording import format_bytes, short_error, short_repr
from multiverse.executors.machine import memory_available
from multiverse.training.config.build import OLD_NAMES
from multiverse.training.runs.files import sync_directory, write_new
from multiverse.training.runs.origin import redacted
from multiverse.training.runs.state_codec import Arrays, State, decode, encode
from multiverse.training.runs.tables import StoredTable, TableStore, stored_table

FORMAT = 1
FILES = ARRAYS, STATE, MANIFEST = "arrays.safetensors", "state.json", "manifest.json"
RESERVED = frozenset({"format", "multiverse", "files", "arrays", "tables", "sha256"})
"""Keys of a manifest that the caller cannot set."""
LARGEST = {MANIFEST: 2**24, STATE: 2**26, ARRAYS: 2**40}
"""Maximum size of each file in bytes. JSON takes up to thirty times its size in memory: large data must be arrays."""

MAX_SENTENCES = 20
Packed = dict[str, bytes]
"""A checkpoint's files by name, ready to be written more than once."""
_LEARNED = frozenset({"weights", "optimizer", "optimizers", "targets", "fixed_of_targets", "rewards"})
"""Entries of an algorithm's saved state that learning changes: parameters, moments, target networks and statistics."""
NO_STATE = (SafetensorError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, struct.error)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    path: Path
    state: dict[str, Any]
    manifest: dict[str, Any]
    tables: tuple[StoredTable, ...] = ()  # not read yet


@contextmanager
def reading_state(checkpoint: Checkpoint) -> Iterator[None]:
    """Context in which the state of a checkpoint is used: errors about it name the checkpoint, `CheckpointBroken` if
    the state is invalid although its bytes are those that were written."""
    try:
        yield
    except InvalidConfig as error:
        raise CheckpointBroken(checkpoint.path, f"its state is invalid ({error})") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"checkpoint {checkpoint.path} does not fit here: {error}") from error
    except MultiverseError:
        raise
    except MemoryError as error:
        raise PreflightError(f"there is not enough memory for the contents of {checkpoint.path}") from error
    except (*NO_STATE, AttributeError, AssertionError, RuntimeError) as error:
        # guard: twisted-states-are-refused
        raise CheckpointBroken(checkpoint.path, f"its state is invalid ({short_error(error)})") from error


def pack(state: State, manifest: Mapping[str, Any], store: TableStore) -> Packed:
    """Return the bytes of a checkpoint, after writing its tables to the disk. TypeError or ValueError if the state or
    the manifest cannot be stored."""
    if taken := RESERVED & manifest.keys():
        raise ValueError(f"the manifest's {', '.join(sorted(taken))} cannot be set by the caller")
    text, parts = encode(state)
    arrays = {name: part for name, part in parts.items() if not isinstance(part, Table)}
    tables = {name: part for name, part in parts.items() if isinstance(part, Table)}
    files: Packed = {ARRAYS: safetensors.numpy.save(arrays), STATE: text}
    described: dict[str, Any] = {**redacted(manifest), "format": FORMAT, "multiverse": multiverse.__version__}
    described["files"] = {name: {"bytes": len(data), "sha256": _sha256(data)} for name, data in files.items()}
    described["arrays"] = {name: {"shape": list(a.shape), "dtype": a.dtype.name} for name, a in arrays.items()}
    if tables:
        described["tables"] = store.write(tables)
    files[MANIFEST] = _manifest_text(_as_read(described))
    for name in (STATE, MANIFEST):
        if len(files[name]) > LARGEST[name]:
            raise ValueError(f"{name} would have {format_bytes(len(files[name]))}: store lists of numbers as arrays")
    return files


def write_files(folder: Path, packed: Packed) -> None:
    """Write the three files to a new folder; they are on the disk when this returns."""
    os.mkdir(folder)
    for name in FILES:
        write_new(folder / name, packed[name])
    sync_directory(folder)


def read_files(folder: Path) -> Checkpoint:
    """Read the checkpoint in this folder; `CheckpointBroken` if any byte differs from what was written."""
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
        raise CheckpointBroken(folder, f"its contents are not a state ({short_error(error)})") from None


def _table(folder: Path, manifest: Mapping[str, Any], tables: list[StoredTable], place: dict[str, Any]) -> StoredTable:
    tables.append(stored_table(folder.parent, place["$table"], place, manifest))
    return tables[-1]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and verify the manifest, without the other files."""
    raw = _read(folder / MANIFEST, LARGEST[MANIFEST])
    try:
        manifest: Any = json.loads(raw)
        untouched = isinstance(manifest, dict) and manifest.pop("sha256", None) == _sha256(_json(manifest))
    except (ValueError, RecursionError):
        raise CheckpointBroken(folder, f"{MANIFEST} is not JSON") from None
    if isinstance(manifest, dict) and manifest.get("format", FORMAT) != FORMAT:
        version = manifest.get("multiverse", "another version")
        raise CheckpointBroken(
            folder, f"it has format {manifest['format']!r} (of multiverse {version}); this version reads {FORMAT}"
        )
    if not untouched or _manifest_text(manifest) != raw:  # guard: the-manifest-is-verified-too
        raise CheckpointBroken(folder, f"{MANIFEST} was changed after it was written")
    return dict(manifest)


def _verified(path: Path, manifest: dict[str, Any]) -> bytes:
    """Return the bytes of a file, verified by the manifest."""
    try:
        size, digest = int(manifest["files"][path.name]["bytes"]), manifest["files"][path.name]["sha256"]
    except (KeyError, TypeError, ValueError):
        raise CheckpointBroken(path.parent, f"{MANIFEST} does not describe {path.name}") from None
    data = _read(path, LARGEST[path.name], size)
    if _sha256(data) != digest:  # guard: every-byte-is-verified
        raise CheckpointBroken(path.parent, f"{path.name} has other bytes than were written (its sha256 differs)")
    return data


def _read(path: Path, largest: int, expected: int | None = None) -> bytes:
    """Return the bytes of a plain file, after checking its size."""
    try:
        descriptor = open_plain(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if size > largest:  # guard: sizes-are-bounded
                limit = format_bytes(largest)
                raise CheckpointBroken(path.parent, f"{path.name} has {format_bytes(size)}, above the limit of {limit}")
            if expected is not None and size != expected:
                raise CheckpointBroken(path.parent, f"{path.name} has {size} bytes instead of {expected}")
            _check_memory(path, 2 * size)
            return file.read(largest if expected is None else expected + 1)
    except FileNotFoundError:
        raise CheckpointBroken(path.parent, f"{path.name} is missing") from None
    except OSError as error:
        raise CheckpointBroken(path.parent, f"{path.name} cannot be read ({error.strerror or error})") from None


def _check_memory(path: Path, needed: int) -> None:
    """Raise if memory does not suffice. A sparse file takes no disk space, and reading it could take all memory."""
    available = memory_available()
    if needed > available:  # guard: memory-is-asked-for-before-reading
        raise PreflightError(
            f"loading {path} takes {format_bytes(needed)} of memory, and only {format_bytes(available)} are available"
        )


def _manifest_text(manifest: Mapping[str, Any]) -> bytes:
    return _json({**manifest, "sha256": _sha256(_json(manifest))})


def _as_read(value: Any) -> Any:
    """The value as reading it from JSON gives it: keys are text, tuples are lists."""
    return json.loads(json.dumps(value, default=_number))


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _number(value: Any) -> Any:
    """Convert numbers of numpy in a manifest."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a manifest holds numbers, text, lists and dicts, not a {type(value).__qualname__}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- migration of what earlier versions saved ----------------------------------------------------------------------
LATER: dict[str, Any] = {"failures": {}, "evaluation": None, "evaluation_steps": 0, "evaluation_env": None}
"""Parts of a state that earlier versions did not save, with their default values."""
LATER_OF_ENVS = {"returns": None, "lengths": None, "remembered": None}
"""The same for the envs of a session, if they are in the middle of episodes."""


def migrated(saved: Checkpoint) -> Checkpoint:
    """Convert a checkpoint to the names and shapes of this version; its manifest has a `config` and a `clock` then.

    Nothing here raises: invalid values are kept, and refused where they are used. Names of config keys are in
    `config.build.OLD_NAMES`."""
    manifest = _renamed(saved.manifest)
    manifest |= {part: _renamed(_mapping(manifest.get(part))) for part in ("config", "clock")}
    return dataclasses.replace(saved, manifest=manifest, state=migrated_state(saved.state, manifest))


def migrated_state(saved: State, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the state of a checkpoint to this version, with a manifest that was converted before."""
    state = LATER | _renamed(saved)
    state.setdefault("told", {"since": _mapping(state.get("clock")).get("env_steps")})
    settings = manifest["config"]
    state.setdefault("best_episodes", settings.get("evaluation_episodes") or settings.get("held_out_tasks") or 10)
    if isinstance(state["evaluation_env"], Mapping):  # versions with one evaluation env saved its state alone
        state["evaluation_env"] = [state["evaluation_env"]]
    if isinstance(state.get("session"), Mapping):
        state["session"] = _session(state["session"])
    return state


def _session(saved: Mapping[str, Any]) -> dict[str, Any]:
    session = _renamed(saved)
    if "algorithm" in session:
        session = {"policy": None} | session
    learned = _mapping(session.get("algorithm"))
    if "parameters" in (optimizer := _mapping(learned.get("optimizer"))):  # weights were part of the state
        weights = {"parameters": optimizer["parameters"]}
        weights |= {"observations": learned["observations"]} if "observations" in learned else {}
        rest = {key: value for key, value in learned.items() if key != "observations"}
        session["algorithm"] = {"weights": weights, "state": rest}
    if isinstance(envs := session.get("envs"), Mapping) and "episodes" in envs:
        session["envs"] = LATER_OF_ENVS | dict(envs)
    return session


def _renamed(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {OLD_NAMES.get(key, key): value for key, value in saved.items()}


# -- values that are not finite ---------------------------------------------------------------------------------
def not_finite(state: State) -> str | None:
    """Return the place of the first learned array with a value that is not finite, or None.

    Weights, optimizer moments, statistics and saved policies are checked. Elsewhere an infinity may be valid: in the
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


# -- differences ------------------------------------------------------------------------------------------------
def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Describe the differences of two manifests in sentences: version, BLAS, settings and arrays.

    `config` and `arrays` are compared if both have them; `arrays` maps names to shape and dtype.
    """
    sentences = list(_made_with(old, new))
    if "config" in old and "config" in new:
        sentences += _bounded(_fields(old["config"], new["config"], ""))
    if "arrays" in old and "arrays" in new:
        sentences += _bounded(_arrays(old["arrays"], new["arrays"]))
    return sentences


def _made_with(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    templates = {
        "multiverse": "It was written by multiverse {}; this is {}.",
        "blas": "Its matrices were multiplied by {}, and here by {}: the run continues, but not bit-exactly.",
    }
    for name, sentence in templates.items():
        before, now = old.get(name), new.get(name)
        if before is not None and now is not None and before != now:
            yield sentence.format(short_repr(before).strip("'"), short_repr(now).strip("'"))


def _fields(old: Any, new: Any, place: str) -> Iterator[str]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if old != new and not (old != old and new != new):  # two NaNs are equal here
            yield f"{place} changed from {short_repr(old)} to {short_repr(new)}."
        return
    for key in [*old, *(key for key in new if key not in old)]:
        inner = f"{place}.{key}" if place else str(key)
        if key not in new:
            yield f"{inner} was {short_repr(old[key])} and no longer exists."
        elif key not in old:
            yield f"{inner} is new: {short_repr(new[key])}."
        else:
            yield from _fields(old[key], new[key], inner)


def _arrays(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"The array {name} {_shape_text(old[name])} is not used now."
        elif name not in old:
            yield f"The array {name} {_shape_text(new[name])} is missing in it."
        elif _shape_text(old[name]) != _shape_text(new[name]):
            yield f"The array {name} was {_shape_text(old[name])} and is {_shape_text(new[name])} now."


def _shape_text(array: Mapping[str, Any]) -> str:
    return f"{list(array['shape'])} {array['dtype']}"


def _bounded(sentences: Iterator[str]) -> list[str]:
    listed = list(sentences)
    more = [f"And {len(listed) - MAX_SENTENCES} more of this kind."] if len(listed) > MAX_SENTENCES else []
    return listed[:MAX_SENTENCES] + more
