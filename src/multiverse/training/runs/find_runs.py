"""Names of the files in the directory of a run, and finding the run that a path names."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

from multiverse.core.errors import InvalidRequest
from multiverse.core.wording import short_repr
from multiverse.training.runs.checkpoint import own_names
from multiverse.training.runs.checkpoint_format import FILES, MANIFEST
from multiverse.training.runs.files import LOCK
from multiverse.training.runs.tables import TABLES

log = logging.getLogger("multiverse")

CONFIG, PROVENANCE, SUMMARY = "config.yaml", "provenance.json", "summary.json"
SPACES, ORIGIN = "spaces.json", "origin.json"
METRICS, TABLE, EPISODES = "metrics.jsonl", "metrics.csv", "episodes.jsonl"
SEEDS = "seeds.json"
"""File of a set of runs that differ only in their seeds."""
CHECKPOINTS, TENSORBOARD, VIDEOS = "checkpoints", "tensorboard", "videos"
ADVICE, NUM_ENVS = "advice.jsonl", "num_envs.jsonl"
OWN_FILES = (CONFIG, PROVENANCE, SUMMARY, SPACES, ORIGIN, METRICS, TABLE, EPISODES, ADVICE, NUM_ENVS, LOCK)
FIRST = "first_checkpoint"
"""Key in the provenance of a part of a run: when its first checkpoint was saved."""
_BELOW = ("*", "*/*", "*/*/seed-*", "runs/*/*", "runs/*/*/seed-*")


class HasPath(Protocol):
    """An object with the path of a run, such as `Run`."""

    @property
    def path(self) -> Path: ...


RunPath = HasPath | Path | str


def path_of(run: RunPath) -> Path:
    """Directory of a run; `InvalidRequest` for what is neither a run nor a path."""
    path = getattr(run, "path", run)
    if not isinstance(path, str | os.PathLike):
        raise InvalidRequest(
            f"run={short_repr(run)}: expected a run, as mv.train returns it, or its path, such as 'runs/CartPole-v1'"
        )
    return Path(path)


class FoundRun(NamedTuple):
    """A run, and the checkpoint in it if a path named one."""

    path: Path
    checkpoint: Path | None


def is_run(path: Path) -> bool:
    """Whether this is the directory of a run. One with metrics may have lost its checkpoints."""
    return (path / CONFIG).is_file() and ((path / CHECKPOINTS).is_dir() or (path / METRICS).is_file())


def find_run(run: RunPath) -> FoundRun:
    """Find the run that a path names: its directory, a checkpoint in it, or a directory above (the most recent run)."""
    location = _find_run(path_of(run))
    _refuse_foreign(location.path)  # guard: links-in-a-run-are-not-followed
    return location


def _find_run(path: Path) -> FoundRun:
    if is_run(path):
        return FoundRun(path, None)
    for place in (Path(os.path.abspath(path)), path.resolve()):  # links inside a run are not followed
        if (path / MANIFEST).exists() and is_run(place.parent.parent):
            return FoundRun(place.parent.parent, path)
        if path.name == CHECKPOINTS and is_run(place.parent):
            return FoundRun(place.parent, None)
    if (several := find_set(path)) is not None:
        first, *_ = runs = runs_below(several)
        raise InvalidRequest(
            f"{several} has a run for each of several seeds ({', '.join(run.name for run in runs)}): choose one, "
            f"{first}, or in Python run.runs[{first.name.removeprefix('seed-')}]"
        )
    runs = runs_below(path)
    newest = max(runs, key=_last_written)
    if len(runs) > 1:
        log.info("%s holds %d runs; using the most recent, %s", path, len(runs), newest)
    return FoundRun(newest, None)


def find_set(run: RunPath) -> Path | None:
    """Return the directory of the set of seeds that a path names: itself or, for a directory above, that of the most
    recent run. None if that is not one of a set."""
    path = path_of(run)
    if is_run(path) or not path.is_dir():
        return None
    if not (path / SEEDS).is_file():
        below = _runs_below(path)
        path = max(below, key=_last_written).parent if below else path
    if not (path / SEEDS).is_file():
        return None
    for own in (*path.glob("seed-*"), path / SEEDS, path / CONFIG, path / ORIGIN):
        refuse_link(own)  # guard: no-seed-is-a-link
    return path


def refuse_link(path: Path) -> None:
    """Refuse a symbolic link in a set or a search: what it leads to lies elsewhere, and would be read or changed."""
    if path.is_symlink():
        raise InvalidRequest(
            f"{path} is a symbolic link, which is not followed: replace it by its target, or use the path of the target"
        )


def runs_below(path: Path) -> list[Path]:
    """Return the runs below a directory, such as the seeds of one training; at least one."""
    runs = _runs_below(path) if path.is_dir() else []
    if not runs:
        raise InvalidRequest(f"{path}: {_why_no_run(path)}")
    return sorted(runs)


def _runs_below(path: Path) -> list[Path]:
    return [*{below for pattern in _BELOW for below in path.glob(pattern) if is_run(below)}]


def _refuse_foreign(run: Path) -> None:
    """Refuse links and special files in place of a run's files: nothing is read, written or removed through a link."""
    own = [run / CHECKPOINTS / name for name in own_names(run / CHECKPOINTS)]
    folders = (run / CHECKPOINTS, run / CHECKPOINTS / TABLES, run / TENSORBOARD, run / VIDEOS)
    files = [*(run / name for name in OWN_FILES), *(folder / name for folder in own for name in FILES)]
    for path, right, kind in [
        *((path, stat.S_ISDIR, "directory") for path in (*folders, *own)),
        *((path, stat.S_ISREG, "plain file") for path in files),
    ]:
        try:
            mode = path.lstat().st_mode
        except OSError:  # not there, or no longer
            continue
        if not right(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a file"
            what = "a symbolic link, which is not followed" if stat.S_ISLNK(mode) else what
            raise InvalidRequest(f"{path} is {what}: a run has a {kind} there. Replace it by one, or move it away")


def _why_no_run(path: Path) -> str:
    if not path.exists():
        return "there is no such directory; runs are in runs/<env>/<algorithm>-<seed>-<time> unless --run-dir is given"
    return f"there is no run here or in the directories below (a run has {CONFIG}, and {METRICS} or {CHECKPOINTS}/)"


def _last_written(path: Path) -> int:
    files = [path / name for name in (CONFIG, METRICS, SUMMARY, EPISODES, CHECKPOINTS)]
    return max(file.stat().st_mtime_ns for file in files if file.exists())
