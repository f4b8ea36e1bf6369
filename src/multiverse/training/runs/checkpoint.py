"""Checkpoints on disk: saved atomically, verified when read; the last few and the best are kept.

If the process is killed or the power fails at any instant of a save, the old checkpoint, the new one, or both exist:

    .saving-NAME-…     being written; never a checkpoint
    NAME               a checkpoint
    .replaced-NAME     the former NAME while the new one takes its place; counts as NAME while there is no other
    .removing-NAME     being removed
    NAME.broken        found broken by a resumed run, set aside, never read again
    NAME.leftovers     files that were not written by us, from a checkpoint that was removed

NAME is `best` or `step-<12 digits>`. `tables/` holds data that only grows (`tables.py`). Other files in the folder, and
files beside the three files of a checkpoint, were not written by us: they are neither read nor removed.

Reading changes nothing, so that a run can be read while it trains. Only `Checkpoints`, which requires the run's lock,
removes files.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from multiverse.core.errors import CheckpointBroken, InvalidRequest, TrainingDiverged
from multiverse.training.runs.checkpoint_format import (
    FILES,
    Checkpoint,
    Packed,
    migrated,
    not_finite,
    pack,
    read_files,
    read_manifest,
    write_files,
)
from multiverse.training.runs.files import sync_directory
from multiverse.training.runs.state_codec import State
from multiverse.training.runs.tables import TABLES, WITHOUT_REPLAY, TableStore

log = logging.getLogger("multiverse")

SAVING, REPLACED, REMOVING, BROKEN, LEFTOVERS = ".saving-", ".replaced-", ".removing-", ".broken", ".leftovers"
BEST = "best"
_NAME = re.compile(rf"{BEST}|step-(?:\d{{12}}|[1-9]\d{{12,}})")  # as `step-{{env_steps:012d}}` writes it
_TOKEN = re.compile(r"-[0-9a-f]{8}")
_PICKLES = (b"PK\x03\x04", b"\x80")
_RELISTS = 5


def save(folder: Path | str, name: str, state: State, manifest: Mapping[str, Any]) -> Path:
    """Save this state as checkpoint `folder/name`, on the disk when this returns; after an OSError nothing has changed.

    `manifest`: what can be read without reading the state: env steps, config, anything JSON can hold. Secrets in it are
    redacted.
    """
    if not name or name != Path(name).name or name.startswith(".") or name.endswith(BROKEN):
        raise InvalidRequest(f"{name!r} cannot be the name of a checkpoint")
    return _write(Path(folder), name, pack(state, manifest, TableStore(Path(folder))))


def load(path: Path | str) -> Checkpoint:
    """Load the checkpoint at this path and verify every byte. `CheckpointBroken` gives the reason if it is damaged, or
    if learned values in it are not finite."""
    path = Path(path)
    if path.is_file():
        raise CheckpointBroken(path, _what_file(path), "A checkpoint is a directory that multiverse has written")
    path = _location(path)
    if not path.is_dir():
        raise CheckpointBroken(path, "there is no checkpoint here", "Look at the names in its folder")
    checkpoint = read_files(path)
    if (place := not_finite(migrated(checkpoint).state)) is not None:  # guard: a-diverged-checkpoint-is-passed-over
        raise CheckpointBroken(path, f"{place} is not finite: the training had diverged when it was saved")
    return checkpoint


def _location(path: Path) -> Path:
    """Actual location of the checkpoint of this name: its path or, while it is being replaced, aside."""
    replaced = path.with_name(f"{REPLACED}{path.name}")
    return replaced if not path.exists() and replaced.is_dir() else path


def load_latest(folder: Path | str) -> Checkpoint | None:
    """Load the newest valid checkpoint of a folder; None if none was ever completed.

    Broken ones are skipped with a warning. If all are broken, that is an error, so that no run starts from scratch
    unnoticed.
    """
    return _latest(Path(folder))[0]


def saved_steps(folder: Path | str) -> int | None:
    """Number of env steps of the newest checkpoint of a folder, by its name; None if there is none."""
    paths = _in_place(Path(folder))
    return None if not paths else max(_number(paths[0]), 0) or _steps_of(paths[0])


class Checkpoints:
    """The checkpoints of a run: the last `keep` and the best. For the process that holds the run's lock.

    The constructor removes leftovers of saves that were killed.
    """

    def __init__(self, folder: Path | str, keep: int = 3) -> None:
        if keep < 1:
            raise InvalidRequest(f"keep={keep}: expected at least 1")
        self.folder, self.keep = Path(folder), keep
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        self._sweep_tables()

    @functools.cached_property
    def _tables(self) -> TableStore:
        return TableStore(self.folder)

    def save(
        self, state: State, manifest: Mapping[str, Any], env_steps: int, *, best: bool = False, final: bool = False
    ) -> Path | None:
        """Save `step-<env_steps>`, and `best` too if it is the best. Return its path, or None after an OSError.

        Such an error is logged, older checkpoints are kept, and the caller tries again later. A `final` save raises the
        OSError instead. `TrainingDiverged` if learned values are not finite.
        """
        if (place := not_finite(state)) is not None:  # guard: a-diverged-state-is-not-saved
            last = "there is no checkpoint yet" if self.latest is None else f"the last checkpoint is {self.latest}"
            raise TrainingDiverged(
                f"{place} is not finite after {env_steps:,} env steps, so nothing was saved; {last}. Lower the "
                "learning rate, or check what the env returns"
            )
        try:
            packed = pack(state, {**manifest, "env_steps": env_steps}, self._tables)
            if best:  # first: if the process is killed in between, the resumed run finds the same best again
                _write(self.folder, BEST, packed)
            path = _write(self.folder, f"step-{env_steps:012d}", packed)
        except OSError as error:
            if final:  # guard: a-final-save-raises
                raise
            reason = error.strerror or error
            older = "older ones are kept" if self.latest is not None else "there is no older one"
            log.warning("checkpoint at %d env steps not saved (%s); %s", env_steps, reason, older)
            return None
        self._remove_old(path)
        self._sweep_tables()
        return path

    def load_latest(self, with_tables: bool = True) -> Checkpoint | None:
        """Load the latest checkpoint as `load_latest` does, for a run that resumes from it. Broken ones are renamed to
        NAME.broken, including those with damaged tables unless `with_tables` is False."""
        latest, broken = _latest(self.folder, with_tables)
        if broken and self.best is not None and self.best not in broken:  # guard: a-diverged-best-is-set-aside
            try:
                load(self.best)
            except CheckpointBroken as error:
                log.warning("%s", error)
                broken.append(self.best)
        for path in broken:
            aside = path.with_name(path.name + BROKEN)
            _discard(aside, path.name)
            os.rename(path, aside)
        return latest

    def cut_back(self, env_steps: int, continue_tables: bool = True) -> None:
        """Remove checkpoints after this step, because the run resumes from an earlier one. The tables of the one that
        is the latest then are continued, unless `continue_tables` is False."""
        for path in _in_place(self.folder):
            if _number(path) > env_steps:
                _remove(path)
        if self.latest is not None and continue_tables:  # guard: new-records-do-not-follow-dropped-ones
            with suppress(CheckpointBroken):  # then all records are written again
                self._tables.continue_from(read_manifest(_location(self.latest)))

    def after(self, env_steps: int) -> list[Path]:
        """The checkpoints that `go_back` would remove."""
        later = [path for path in _in_place(self.folder) if _number(path) > env_steps]
        if self.best is not None and _steps_of(self.best) > env_steps:
            later.append(self.best)
        return later

    def go_back(self, env_steps: int) -> None:
        """Remove checkpoints after this step, the best included, for a run that resumes from an earlier one by name."""
        for path in self.after(env_steps):
            _remove(path)

    @property
    def latest(self) -> Path | None:
        """Path of the newest checkpoint, by name."""
        paths = _in_place(self.folder)
        return paths[0] if paths else None

    @property
    def best(self) -> Path | None:
        """Path of the best checkpoint, if there is one."""
        path = self.folder / BEST
        return path if path.is_dir() else None

    def _remove_old(self, newest: Path) -> None:
        numbered = [path for path in _in_place(self.folder) if _number(path) >= 0 and path != newest]
        for path in numbered[self.keep - 1 :]:
            _remove(path)

    def _sweep_tables(self) -> None:
        """Remove tables that no checkpoint names, unless one cannot be read: what it names is not known."""
        if not (self.folder / TABLES).is_dir():
            return
        try:
            manifests = [read_manifest(_location(path)) for path in _in_place(self.folder)]
            tables = [pieces for manifest in manifests for pieces in manifest.get("tables", {}).values()]
            named = {piece["file"] for pieces in tables for piece in pieces}
        except (CheckpointBroken, TypeError, LookupError, AttributeError):
            return
        self._tables.sweep(named)

    def _sweep(self) -> None:
        for entry in _names(self.folder):
            path, (mark, name) = self.folder / entry, _split_mark(entry)
            if mark == REPLACED and not (self.folder / name).exists():
                os.rename(path, self.folder / name)
            elif mark:
                _discard(path, name)


def _write(folder: Path, name: str, packed: Packed) -> Path:
    """Write a checkpoint aside, force it to the disk, and move it into place."""
    aside = folder / f"{SAVING}{name}-{secrets.token_hex(4)}"
    try:
        write_files(aside, packed)  # guard: a-save-is-written-aside
        _put_in_place(aside, folder / name)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)  # the rest is removed later  # guard: a-failed-save-leaves-nothing
        raise
    return folder / name


def _put_in_place(aside: Path, target: Path) -> None:
    """Move a directory to `target`. It cannot be renamed over another, so the former one is moved aside first."""
    former = target.with_name(f"{REPLACED}{target.name}")
    if target.exists():
        _discard(former, target.name)
        os.rename(target, former)
    try:
        os.rename(aside, target)
    except BaseException:
        if former.exists() and not target.exists():
            os.rename(former, target)
        raise
    sync_directory(target.parent)  # guard: names-are-on-the-disk-before-old-ones-go
    _discard(former, target.name)


def _remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, because a half-removed one must not look like a checkpoint."""
    going = path.with_name(f"{REMOVING}{path.name}")
    try:
        _discard(going, path.name)  # guard: removed-under-another-name
        os.rename(path, going)
        # guard: an-old-name-is-off-the-disk-before-its-files-are
        sync_directory(path.parent)  # otherwise a power loss could restore the name without its files
    except OSError as error:
        log.warning("%s: an old checkpoint could not be removed (%s)", path, error.strerror or error)
    _discard(going, path.name)


def _discard(path: Path, name: str) -> None:
    """Remove the files of a checkpoint that was moved aside; what cannot be removed is removed later.

    Files that were not written by us are kept under a visible name.
    """
    if path.is_symlink() or not path.is_dir():
        return
    others = [entry for entry in os.listdir(path) if entry not in FILES]  # guard: only-what-we-wrote-is-removed
    try:
        for file in FILES:
            (path / file).unlink(missing_ok=True)
        if not others:
            os.rmdir(path)
        else:
            kept = path.with_name(f"{name}{LEFTOVERS}")
            while kept.exists():
                kept = path.with_name(f"{name}{LEFTOVERS}-{secrets.token_hex(4)}")
            os.rename(path, kept)
            log.warning("%s: files that did not belong to a removed checkpoint (%s) are kept here", kept, others[0])
    except OSError:
        pass


def _latest(folder: Path, with_tables: bool = False) -> tuple[Checkpoint | None, list[Path]]:
    """Return the newest valid checkpoint, and the newer ones that are broken. One that vanishes meanwhile is not
    broken: the run that trains has removed it."""
    for _ in range(_RELISTS):
        broken: dict[Path, CheckpointBroken] = {}
        hint = _ALL_BROKEN
        candidates = _in_place(folder)
        for path in candidates:
            try:
                checkpoint = load(path)
                hint = WITHOUT_REPLAY if checkpoint.tables else hint
                for table in checkpoint.tables if with_tables else ():
                    table.verify()
            except CheckpointBroken as error:
                if path.exists():
                    log.warning("%s Trying the one before", CheckpointBroken(error.path, error.wrong))
                    broken[path] = error
            else:
                return checkpoint, list(broken)
        if len(broken) == len(candidates):
            break
    aside = [name for name in _names(folder) if name.endswith(BROKEN) and is_checkpoint(name.removesuffix(BROKEN))]
    if lost := len(broken) + len(aside):  # guard: all-broken-is-no-fresh-start
        raise CheckpointBroken(folder, f"all of its {lost} checkpoints are damaged", hint)
    return None, []


_ALL_BROKEN = "Restore one from a copy, or start a new run in another directory"


def is_checkpoint(name: str) -> bool:
    """Whether this is the name of a checkpoint."""
    return _NAME.fullmatch(name) is not None  # guard: only-our-own-names-count


def own_names(folder: Path) -> list[str]:
    """Names in a folder of checkpoints that are ours: checkpoints, and directories that were moved aside."""
    return [name for name in _names(folder) if is_checkpoint(name.removesuffix(BROKEN)) or _split_mark(name)[0]]


def _split_mark(entry: str) -> tuple[str, str]:
    """Split the name of a directory that was moved aside: (mark, name of the checkpoint); ("", "") for others."""
    mark = next((mark for mark in (SAVING, REPLACED, REMOVING) if entry.startswith(mark)), "")
    name = entry.removeprefix(mark)
    if mark == SAVING:
        name = name[: -len("-01234567")] if _TOKEN.fullmatch(name[-len("-01234567") :]) else ""
    return (mark, name) if mark and is_checkpoint(name) else ("", "")


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _in_place(folder: Path) -> list[Path]:
    """All checkpoints, newest first: by the number in the name, then by age."""
    named = {name for name in _names(folder) if is_checkpoint(name) and (folder / name).is_dir()}
    for mark, name in map(_split_mark, _names(folder)):
        if mark == REPLACED:  # guard: one-that-stepped-aside-counts
            named.add(name)
    return sorted((folder / name for name in named), key=lambda path: (_number(path), _age(path)), reverse=True)


def _number(path: Path) -> int:
    """Number of env steps in the name; -1 for the best one, whose name has none."""
    return -1 if path.name == BEST else int(path.name.removeprefix("step-"))


def _steps_of(path: Path) -> int:
    """Number of env steps in the manifest; 0 if it cannot be read."""
    try:
        steps = read_manifest(path).get("env_steps")
    except CheckpointBroken:
        return 0
    return steps if isinstance(steps, int) else 0


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _what_file(path: Path) -> str:
    with path.open("rb") as file:
        pickled = file.read(8).startswith(_PICKLES)
    if pickled:  # guard: a-pickle-is-called-one
        return "it is a pickle (perhaps of torch.save), which is not loaded because loading it could execute code"
    return "it is a file"
