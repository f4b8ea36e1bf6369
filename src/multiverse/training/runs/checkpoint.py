"""Checkpoints on disk: saved whole or not at all, verified when read, the last few and the best kept.

At every instant of a save, a killed process or a power loss leaves the old checkpoint, the new one, or both:

    .saving-NAME-…     being written; a leftover of this kind was never a checkpoint
    NAME               one in place
    .replaced-NAME     the former NAME while the new one takes its place; counts as NAME while there is no other
    .removing-NAME     no longer wanted
    NAME.broken        found broken by a resumed run, set aside, never read again
    NAME.leftovers     what somebody else has put into a checkpoint that is no longer wanted

NAME is `best` or `step-<12 digits>`. In `tables/` lies what only grows (`tables.py`). Whatever else lies in the folder
is somebody else's: it is neither read, taken for a checkpoint, nor removed, and neither is what somebody has put beside
the three files of a checkpoint.

Reading changes nothing, so that a run can be looked at while it trains; only `Checkpoints`, which belongs to whoever
holds the run's lock, sweeps and removes.
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
    """A checkpoint `folder/name` of this state, on the disk when this returns; OSError leaves what was there before.

    `manifest` is what can be known of it without reading the state: env steps, config, anything JSON can hold. Secrets
    in it are redacted.
    """
    if not name or name != Path(name).name or name.startswith(".") or name.endswith(BROKEN):
        raise InvalidRequest(f"{name!r} cannot be the name of a checkpoint")
    return _write(Path(folder), name, pack(state, manifest, TableStore(Path(folder))))


def load(path: Path | str) -> Checkpoint:
    """The checkpoint at this path, every byte verified; `CheckpointBroken` says what is wrong with it, also where
    something learned in it is not finite."""
    path = Path(path)
    if path.is_file():
        raise CheckpointBroken(path, _what_file(path), "A checkpoint is a directory that multiverse has written")
    path = _where(path)
    if not path.is_dir():
        raise CheckpointBroken(path, "there is no checkpoint here", "Look at the names in its folder")
    found = read_files(path)
    if (place := not_finite(migrated(found).state)) is not None:  # guard: a-diverged-checkpoint-is-passed-over
        raise CheckpointBroken(path, f"{place} is not finite: the training had diverged when it was saved")
    return found


def _where(path: Path) -> Path:
    """Where the checkpoint of this name is: there or, while another takes its place, aside."""
    replaced = path.with_name(f"{REPLACED}{path.name}")
    return replaced if not path.exists() and replaced.is_dir() else path


def load_latest(folder: Path | str) -> Checkpoint | None:
    """The newest good checkpoint of a folder, or None where none was ever finished.

    Broken ones are named in a warning and passed over; if all are broken, that is an error: nobody starts from scratch
    without being told.
    """
    return _latest(Path(folder))[0]


def saved_steps(folder: Path | str) -> int | None:
    """Env steps of the newest checkpoint of a folder, unread; None where there is none."""
    found = _in_place(Path(folder))
    return None if not found else max(_number(found[0]), 0) or _steps_of(found[0])


class Checkpoints:
    """The checkpoints of one run: the last `keep` and the best. For the one process that holds the run's lock.

    Making it sweeps what a killed save has left behind.
    """

    def __init__(self, folder: Path | str, keep: int = 3) -> None:
        if keep < 1:
            raise InvalidRequest(f"keep={keep}: at least the last checkpoint must be kept")
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
        """Saves `step-<env_steps>`, and as `best` too if it is that. Where it went, or None if the disk did not let us.

        Then a warning says why, all older ones are still there, and the caller tries again later. A `final` save
        raises the OSError instead: there is no later. `TrainingDiverged` if something learned is not finite.
        """
        if (place := not_finite(state)) is not None:  # guard: a-diverged-state-is-not-saved
            left = "there is no checkpoint yet" if self.latest is None else f"the last checkpoint is {self.latest}"
            raise TrainingDiverged(
                f"{place} is not finite after {env_steps:,} env steps, so nothing was saved; {left}. Lower the "
                "learning rate, or check what the env returns"
            )
        try:
            packed = pack(state, {**manifest, "env_steps": env_steps}, self._tables)
            if best:  # first: were we killed in between, the resumed run would find the same best again
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
        """As `load_latest`, for the run that resumes from it: broken ones are set aside as NAME.broken. Those whose
        tables are damaged are broken too, unless none is wanted (`with_tables`)."""
        found, broken = _latest(self.folder, with_tables)
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
        return found

    def cut_back(self, env_steps: int, continue_tables: bool = True) -> None:
        """Remove those after this step: the run resumes from an earlier one, and they are no longer its own. The
        tables of the one that is latest then are continued, unless new ones are to be begun."""
        for path in _in_place(self.folder):
            if _number(path) > env_steps:
                _remove(path)
        if self.latest is not None and continue_tables:  # guard: new-records-do-not-follow-dropped-ones
            with suppress(CheckpointBroken):  # then all is written again
                self._tables.go_on_from(read_manifest(_where(self.latest)))

    def after(self, env_steps: int) -> list[Path]:
        """Those that `go_back` would remove."""
        later = [path for path in _in_place(self.folder) if _number(path) > env_steps]
        if self.best is not None and _steps_of(self.best) > env_steps:
            later.append(self.best)
        return later

    def go_back(self, env_steps: int) -> None:
        """As `cut_back`, for a run that is asked to go on from an earlier one: the best is of its past too."""
        for path in self.after(env_steps):
            _remove(path)

    @property
    def latest(self) -> Path | None:
        """The newest by name, unread."""
        found = _in_place(self.folder)
        return found[0] if found else None

    @property
    def best(self) -> Path | None:
        """The best one, if one was ever called that."""
        path = self.folder / BEST
        return path if path.is_dir() else None

    def _remove_old(self, newest: Path) -> None:
        numbered = [path for path in _in_place(self.folder) if _number(path) >= 0 and path != newest]
        for path in numbered[self.keep - 1 :]:
            _remove(path)

    def _sweep_tables(self) -> None:
        """What no checkpoint names. While one cannot be read nobody knows what it names."""
        if not (self.folder / TABLES).is_dir():
            return
        try:
            manifests = [read_manifest(_where(path)) for path in _in_place(self.folder)]
            named = {piece["file"] for one in manifests for told in one.get("tables", {}).values() for piece in told}
        except (CheckpointBroken, TypeError, LookupError, AttributeError):
            return
        self._tables.sweep(named)

    def _sweep(self) -> None:
        for entry in _names(self.folder):
            path, (how, name) = self.folder / entry, _stepped_aside(entry)
            if how == REPLACED and not (self.folder / name).exists():
                os.rename(path, self.folder / name)
            elif how:
                _discard(path, name)


def _write(folder: Path, name: str, packed: Packed) -> Path:
    """Aside, to the disk, into place."""
    aside = folder / f"{SAVING}{name}-{secrets.token_hex(4)}"
    try:
        write_files(aside, packed)  # guard: a-save-is-written-aside
        _put_in_place(aside, folder / name)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)  # what stays is swept later  # guard: a-failed-save-leaves-nothing
        raise
    return folder / name


def _put_in_place(aside: Path, target: Path) -> None:
    """A directory with files cannot be renamed over another: the former one steps aside for an instant."""
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
    """Renamed first: a checkpoint that is half removed must not look like one."""
    going = path.with_name(f"{REMOVING}{path.name}")
    try:
        _discard(going, path.name)  # guard: removed-under-another-name
        os.rename(path, going)
        # guard: an-old-name-is-off-the-disk-before-its-files-are
        sync_directory(path.parent)  # else a power loss could bring the name back without its files
    except OSError as error:
        log.warning("%s: an old checkpoint could not be removed (%s)", path, error.strerror or error)
    _discard(going, path.name)


def _discard(path: Path, name: str) -> None:
    """Away with the files of a checkpoint that has stepped aside, as far as that goes; what stays is swept later.

    What somebody else has put there is kept under a name that can be seen.
    """
    if path.is_symlink() or not path.is_dir():
        return
    strangers = [one for one in os.listdir(path) if one not in FILES]  # guard: only-what-we-wrote-is-removed
    try:
        for one in FILES:
            (path / one).unlink(missing_ok=True)
        if not strangers:
            os.rmdir(path)
        else:
            kept = path.with_name(f"{name}{LEFTOVERS}")
            while kept.exists():
                kept = path.with_name(f"{name}{LEFTOVERS}-{secrets.token_hex(4)}")
            os.rename(path, kept)
            log.warning("%s: what is not of the checkpoint that was removed (%s) is kept here", kept, strangers[0])
    except OSError:
        pass


def _latest(folder: Path, with_tables: bool = False) -> tuple[Checkpoint | None, list[Path]]:
    """The newest good one, and the broken ones that are newer. Those that vanish meanwhile were only old."""
    for _ in range(_RELISTS):
        broken: dict[Path, CheckpointBroken] = {}
        hint = _ALL_BROKEN
        candidates = _in_place(folder)
        for path in candidates:
            try:
                found = load(path)
                hint = WITHOUT_REPLAY if found.tables else hint
                for table in found.tables if with_tables else ():
                    table.verify()
            except CheckpointBroken as error:
                if path.exists():
                    log.warning("%s Trying the one before", CheckpointBroken(error.path, error.wrong))
                    broken[path] = error
            else:
                return found, list(broken)
        if len(broken) == len(candidates):
            break
    aside = [one for one in _names(folder) if one.endswith(BROKEN) and is_checkpoint(one.removesuffix(BROKEN))]
    if lost := len(broken) + len(aside):  # guard: all-broken-is-no-fresh-start
        raise CheckpointBroken(folder, f"none of its {lost} checkpoints is whole", hint)
    return None, []


_ALL_BROKEN = "Restore one from a copy, or start a new run in another directory"


def is_checkpoint(name: str) -> bool:
    """Whether this is the name of a checkpoint of ours."""
    return _NAME.fullmatch(name) is not None  # guard: only-our-own-names-count


def own_names(folder: Path) -> list[str]:
    """What in a folder of checkpoints is ours, whatever it is: checkpoints, and those that have stepped aside."""
    return [one for one in _names(folder) if is_checkpoint(one.removesuffix(BROKEN)) or _stepped_aside(one)[0]]


def _stepped_aside(entry: str) -> tuple[str, str]:
    """How a directory of ours that is in no checkpoint's place is marked, and whose it is; ("", "") for any other."""
    how = next((mark for mark in (SAVING, REPLACED, REMOVING) if entry.startswith(mark)), "")
    name = entry.removeprefix(how)
    if how == SAVING:
        name = name[: -len("-01234567")] if _TOKEN.fullmatch(name[-len("-01234567") :]) else ""
    return (how, name) if how and is_checkpoint(name) else ("", "")


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _in_place(folder: Path) -> list[Path]:
    """Every checkpoint, newest first: by the number in its name, then by its age."""
    named = {name for name in _names(folder) if is_checkpoint(name) and (folder / name).is_dir()}
    for how, name in map(_stepped_aside, _names(folder)):
        if how == REPLACED:  # guard: one-that-stepped-aside-counts
            named.add(name)
    return sorted((folder / name for name in named), key=lambda path: (_number(path), _age(path)), reverse=True)


def _number(path: Path) -> int:
    """The env steps in its name; those of the best one are not there."""
    return -1 if path.name == BEST else int(path.name.removeprefix("step-"))


def _steps_of(path: Path) -> int:
    """As its manifest says; 0 if that cannot be read."""
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
        return "it is a pickle (of torch.save?), which could run any code when it is loaded, so it is not"
    return "it is a file"
