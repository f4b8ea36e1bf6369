"""Open and migrate, the first two of the four steps to a saved run: from its path to what it has saved, in the names
and shapes of this version. `validation` and `session` (or `loading`) have the other two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multiverse.core.errors import CheckpointBroken, InvalidRequest
from multiverse.core.wording import in_words
from multiverse.training.config.build import in_todays_names
from multiverse.training.config.files import read_config
from multiverse.training.runs.checkpoint import Checkpoints, load_latest
from multiverse.training.runs.checkpoint import load as load_checkpoint
from multiverse.training.runs.checkpoint_format import Checkpoint
from multiverse.training.runs.find_runs import CONFIG, FoundRun, RunPath, find_run
from multiverse.training.runs.migration import migrated
from multiverse.training.runs.run_directory import RunDirectory, had_checkpoint


@dataclass(frozen=True)
class OpenedRun:
    """A run on disk, of whatever version: every byte that was read is the one that was written."""

    path: Path
    settings: dict[str, Any]  # of its config file
    checkpoint: Checkpoint | None  # None: it was ended before its first one
    named: Path | None = None  # the checkpoint that a path has named


@dataclass(frozen=True)
class SavedRun(OpenedRun):
    """A run on disk as this version would have written it: no later step knows of earlier versions."""

    @property
    def found(self) -> Checkpoint:
        """The checkpoint of a run that has one."""
        assert self.checkpoint is not None
        return self.checkpoint


# -- open ----------------------------------------------------------------------------------------------------------
def open_run(run: RunPath, which: str = "latest") -> OpenedRun:
    """The run that a path means, with its `"latest"` or `"best"` checkpoint, to act with; it may be under way."""
    found = find_run(run)
    checkpoint = _chosen_checkpoint(found, which)
    return OpenedRun(found.path, read_settings(found.path), checkpoint)


def open_to_train(directory: RunDirectory, named: Path | None, with_replay: bool = True) -> OpenedRun:
    """The run in this directory, which is locked for this process, with the checkpoint to go on from: the latest, or
    the one that was named. To have lost them all is an error."""
    settings, checkpoints = read_settings(directory.path), Checkpoints(directory.checkpoints)
    found = checkpoints.load_latest(with_replay) if named is None else load_checkpoint(named)
    if found is None and had_checkpoint(directory.path):  # guard: lost-checkpoints-are-no-fresh-start
        anew = f"begin another run with its settings: `multiverse train --config {directory.path}/config.yaml`"
        raise CheckpointBroken(
            checkpoints.folder, "none of those that this run had is left", f"Restore one from a copy, or {anew}"
        )
    return OpenedRun(directory.path, settings, found, named)


def read_settings(run: Path) -> dict[str, Any]:
    """The config is the run's own file: a checkpoint is data, and names nothing that would be imported."""
    # guard: the-config-is-the-runs-own
    return read_config(run / CONFIG)


def _chosen_checkpoint(found: FoundRun, which: str) -> Checkpoint:
    if found.checkpoint is not None:
        return load_checkpoint(found.checkpoint)
    if which == "best":
        best = found.path / "checkpoints" / "best"
        try:
            return load_checkpoint(best)
        except CheckpointBroken:
            if best.exists() or load_latest(best.parent) is None:
                raise
            told = "no evaluation has found a best checkpoint yet; the latest (which='latest', --which latest) is there"
            raise InvalidRequest(f"{found.path}: {told}") from None
    if which != "latest":
        raise InvalidRequest(f"which={which!r}: 'latest' or 'best'")
    latest = load_latest(found.path / "checkpoints")
    if latest is None:
        raise InvalidRequest(
            f"{found.path}: this run has no checkpoint {'any more' if had_checkpoint(found.path) else 'yet'}"
        )
    return latest


# -- migrate -------------------------------------------------------------------------------------------------------
def migrate(opened: OpenedRun) -> SavedRun:
    """The same run as this version would have written it; nothing on disk changes."""
    checkpoint = None if opened.checkpoint is None else migrated(opened.checkpoint)
    return SavedRun(opened.path, in_todays_names(opened.settings), checkpoint, opened.named)


# -- parts of a run ------------------------------------------------------------------------------------------------
def settings_in(run: Path) -> dict[str, Any]:
    """The settings of the run, or of the set of runs, in this directory."""
    return in_todays_names(read_settings(run))


def checkpoint_of(run: RunPath, which: str = "latest") -> Checkpoint:
    """A run's latest good checkpoint, its best one, or the very one that the path names."""
    return migrated(_chosen_checkpoint(find_run(run), which))


def steps_of(found: Checkpoint) -> int:
    """Env steps of the run when a checkpoint was taken, as its manifest says."""
    steps = found.manifest.get("env_steps")
    if type(steps) is not int or steps < 0:
        raise CheckpointBroken(found.path, f"its manifest has {in_words(steps)} env steps")
    return steps
