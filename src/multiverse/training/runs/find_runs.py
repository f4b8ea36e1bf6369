"""Where runs are: the names in the directory of one, and the run that somebody means by a path."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

from multiverse.core.errors import InvalidRequest, in_words
from multiverse.training.runs.checkpoint import own_names
from multiverse.training.runs.checkpoint_format import FILES, MANIFEST
from multiverse.training.runs.files import LOCK
from multiverse.training.runs.tables import TABLES

log = logging.getLogger("multiverse")

CONFIG, PROVENANCE, SUMMARY = "config.yaml", "provenance.json", "summary.json"
SPACES, ORIGIN = "spaces.json", "origin.json"
METRICS, TABLE, EPISODES = "metrics.jsonl", "metrics.csv", "episodes.jsonl"
SEEDS = "seeds.json"
"""Where several runs differ only in their seeds, of all of them."""
CHECKPOINTS, TENSORBOARD, VIDEOS = "checkpoints", "tensorboard", "videos"
ADVICE, NUM_ENVS = "advice.jsonl", "num_envs.jsonl"
OWN_FILES = (CONFIG, PROVENANCE, SUMMARY, SPACES, ORIGIN, METRICS, TABLE, EPISODES, ADVICE, NUM_ENVS, LOCK)
FIRST = "first_checkpoint"
"""Of a part of a run, in its provenance: when its first checkpoint was saved."""
_BELOW = ("*", "*/*", "*/*/seed-*", "runs/*/*", "runs/*/*/seed-*")


class HasPath(Protocol):
    """A run that has come to its end knows where it lies."""

    @property
    def path(self) -> Path: ...


RunPath = HasPath | Path | str


def path_of(run: RunPath) -> Path:
    """Directory of a run; `InvalidRequest` for what is neither a run nor a path."""
    path = getattr(run, "path", run)
    if not isinstance(path, str | os.PathLike):
        raise InvalidRequest(
            f"run={in_words(run)}: expected a run (as mv.train returns it) or the path of one, as in 'runs/CartPole-v1'"
        )
    return Path(path)


class FoundRun(NamedTuple):
    """A run, and the checkpoint in it if a path named one."""

    path: Path
    checkpoint: Path | None


def is_run(path: Path) -> bool:
    """Whether a run was begun here. One that has metrics may have lost its checkpoints."""
    return (path / CONFIG).is_file() and ((path / CHECKPOINTS).is_dir() or (path / METRICS).is_file())


def find_run(run: RunPath) -> FoundRun:
    """The run that a path means: its directory, a checkpoint in it, or a directory above: the one written to last."""
    found = _find_run(path_of(run))
    _refuse_foreign(found.path)  # guard: links-in-a-run-are-not-followed
    return found


def _find_run(path: Path) -> FoundRun:
    if is_run(path):
        return FoundRun(path, None)
    for place in (Path(os.path.abspath(path)), path.resolve()):  # a link in a run leads nowhere else
        if (path / MANIFEST).exists() and is_run(place.parent.parent):
            return FoundRun(place.parent.parent, path)
        if path.name == CHECKPOINTS and is_run(place.parent):
            return FoundRun(place.parent, None)
    if (several := find_set(path)) is not None:
        one, *_ = found = runs_below(several)
        raise InvalidRequest(
            f"{several} has a run for each of several seeds ({', '.join(run.name for run in found)}): choose one, "
            f"{one}, or in Python run.runs[{one.name.removeprefix('seed-')}]"
        )
    found = runs_below(path)
    newest = max(found, key=_last_written)
    if len(found) > 1:
        log.info("%s holds %d runs; taking %s, which was written to last", path, len(found), newest)
    return FoundRun(newest, None)


def find_set(run: RunPath) -> Path | None:
    """The directory of several seeds that a path means: itself, or, of a directory above, that of the run written to
    last, if that is one of several."""
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
    """Refuse a run of a set or a search, or a file of theirs, that is a link: it would be read or changed elsewhere."""
    if path.is_symlink():
        raise InvalidRequest(
            f"{path} is a symbolic link, which is not followed: put what it leads to in its place, or use that by its "
            "own path"
        )


def runs_below(path: Path) -> list[Path]:
    """The runs in a directory that is none itself, such as the seeds of one training; at least one."""
    found = _runs_below(path) if path.is_dir() else []
    if not found:
        raise InvalidRequest(f"{path}: {_why_no_run(path)}")
    return sorted(found)


def _runs_below(path: Path) -> list[Path]:
    return [*{below for pattern in _BELOW for below in path.glob(pattern) if is_run(below)}]


def _refuse_foreign(run: Path) -> None:
    """A run's own names are plain files and directories: nothing is read, written or removed through a link."""
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
            what = "a directory" if stat.S_ISDIR(mode) else "no file"
            what = "a symbolic link, which is not followed" if stat.S_ISLNK(mode) else what
            raise InvalidRequest(f"{path} is {what}: a run has a {kind} there. Put one in its place, or move it away")


def _why_no_run(path: Path) -> str:
    if not path.exists():
        return "there is no such directory; runs are in runs/<env>/<algorithm>-<seed>-<time> unless --run-dir is given"
    return f"no run here, nor in the directories below it (a run has {CONFIG}, and {METRICS} or {CHECKPOINTS}/)"


def _last_written(path: Path) -> int:
    files = [path / name for name in (CONFIG, METRICS, SUMMARY, EPISODES, CHECKPOINTS)]
    return max(file.stat().st_mtime_ns for file in files if file.exists())
