"""Open and migrate, the first two of the four steps to a saved run: from its path to what it has saved, in the names
and shapes of this version. `validation` and `session` (or `loading`) have the other two."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from multiverse.adapters.env_source import BUILT_IN, Wrapper, wrapped
from multiverse.algorithms import known_name
from multiverse.core.errors import CheckpointBroken, InvalidRequest, in_words
from multiverse.core.imports import with_folders, without_folders
from multiverse.networks import network_name
from multiverse.training.config.build import in_todays_names
from multiverse.training.config.changes import Schedule
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import TrainConfig, import_name, name_of, wrapper_name
from multiverse.training.learners import MakeAlgorithm
from multiverse.training.runs.checkpoint import Checkpoints, load_latest
from multiverse.training.runs.checkpoint import load as load_checkpoint
from multiverse.training.runs.checkpoint_format import Checkpoint, migrated
from multiverse.training.runs.find_runs import CONFIG, FoundRun, RunPath, find_run, path_of
from multiverse.training.runs.origin import NETWORK
from multiverse.training.runs.run_directory import RunDirectory, had_checkpoint

log = logging.getLogger("multiverse")


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


# -- the objects that a caller brings ----------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class RunObjects:
    """What the caller of a run brings in place of what its config names. None: what the config names is used."""

    env: Any = None
    algorithm: MakeAlgorithm | str | None = None  # or the `file.py:Class` where the run's own algorithm is now
    network: Any = None  # likewise
    wrappers: Sequence[Wrapper | str] | None = None
    env_kwargs: Mapping[str, Any] | None = None  # over those of the config
    opponent: Any = None  # of evaluations
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    @property
    def maker(self) -> MakeAlgorithm | None:
        """What makes the algorithm, where that is an object."""
        return None if isinstance(self.algorithm, str) else self.algorithm

    @property
    def algorithm_name(self) -> str | None:
        """The name of the algorithm, where that was brought."""
        return known_name(self.algorithm) if isinstance(self.algorithm, str) else None

    @property
    def network_class(self) -> Any:
        """The class of the network; None where its name was brought, which the config holds by now."""
        return None if isinstance(self.network, str) else self.network

    def filled(self, **given: Any) -> RunObjects:
        """The same with these where nothing was brought."""
        return dataclasses.replace(self, **{name: one for name, one in given.items() if getattr(self, name) is None})

    def filled_from(self, run: Any) -> RunObjects:
        """The same with the objects that a run of this program was made with, where nothing was brought."""
        return self.filled(**getattr(run, "objects", {}))

    def brought(self) -> set[str]:
        """The settings of a config that these take the place of."""
        given = {"env": self.env, "env_kwargs": self.env, "algorithm": self.algorithm, NETWORK: self.network}
        return {name for name, one in given.items() if one is not None}

    def unnamed(self) -> dict[str, Any]:
        """Those of which a run is made and that no file can name; see `Run.objects`."""
        made_of = {"env": self.env, "algorithm": self.algorithm, "wrappers": self.wrappers, NETWORK: self.network}
        return {name: one for name, one in made_of.items() if one and not isinstance(one, str)}

    def arguments(self) -> str:
        """Those that must be given again to resume the run, as arguments: ', env=Mine, wrappers=[…]'."""
        lost: dict[str, Any] = {name: one for name, one in self.unnamed().items() if name == "env"}
        named = (("algorithm", self.algorithm, import_name), ("evaluation_opponent", self.opponent, opponent_name))
        for name, one, name_in_config in named:
            if one is not None and not isinstance(one, str) and not hasattr(one, "path"):
                lost |= {name: one} if ":" not in name_in_config(one) else {}
        if self.network_class is not None and "<" in network_name(self.network):
            lost[NETWORK] = self.network
        called = {name: getattr(one, "__name__", "") for name, one in lost.items()}
        words = [f"{name}={one if one.isidentifier() else '…'}" for name, one in called.items()]
        if any(":" not in wrapper_name(one) for one in self.wrappers or () if not isinstance(one, str)):
            words.append("wrappers=[…]")
        return "".join(f", {word}" for word in [*words, *(f"{name}=…" for name in self.schedules)])

    def known_elsewhere(self, config: TrainConfig) -> bool:
        """Whether another process, which has the config only, finds all of this: an id may be one that only this
        program registers."""
        objects = (self.maker, self.network_class, self.opponent, self.schedules)
        # guard: another-process-has-no-other-env
        same_env = self.env is None or (isinstance(self.env, str) and self.env == config.env)
        if any(objects) or not same_env or any(":" not in name for name in config.wrappers):
            return False
        module, colon, _ = config.env.partition(":")
        if colon or config.env in BUILT_IN:
            return module != "__main__"
        found = gymnasium.registry.get(config.env)
        return found is not None and str(found.entry_point).startswith(("gymnasium.", "multiverse."))


NO_OBJECTS = RunObjects()


def opponent_name(opponent: Any) -> str:
    """Of one that is no text, what a config can hold: where its run lies, `module:function` if that can be imported
    again, else a name in angle brackets."""
    if isinstance(opponent, Path) or hasattr(opponent, "path"):
        return str(path_of(opponent))
    module, name = getattr(opponent, "__module__", ""), name_of(opponent)
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is opponent:
        return f"{module}:{name}"
    return f"<{name.strip('<>')}>"


# -- what a config names --------------------------------------------------------------------------------------------
def source_of(config: TrainConfig, objects: RunObjects) -> Any:
    """The env that was given, or the one that the config names, if it names one that can be found; in its wrappers."""
    env = where_it_is_now("env", config.env) if objects.env is None else objects.env
    return wrapped(env, wrappers_of(config, objects.wrappers))


def wrappers_of(config: TrainConfig, given: Sequence[Wrapper | str] | None = None) -> list[Wrapper]:
    """Those that are given, which must be the run's, or else those that the config names."""
    names = [one if isinstance(one, str) else wrapper_name(one) for one in (given or ())]
    bare, known = ([name.rpartition(":")[2] for name in several] for several in (names, config.wrappers))
    if given is not None and bare != known:  # a module may have them from another
        raise InvalidRequest(f"wrappers={names}: the envs of this run are in {list(config.wrappers)}")
    return [_wrapper(one) if isinstance(one, str) else one for one in (config.wrappers if given is None else given)]


def _wrapper(name: str) -> Wrapper:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InvalidRequest(f"the wrapper {name} of this run is one of a program: pass it again, wrappers=[…]")
    try:
        found: Wrapper = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the user's module does
        raise InvalidRequest(f"wrapper {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    return found


def config_with_folders(config: TrainConfig) -> TrainConfig:
    """The config with the whole paths of files that it names, which any directory finds."""
    network = config.network and with_folders(config.network)
    return dataclasses.replace(
        config, env=with_folders(config.env), algorithm=with_folders(config.algorithm), network=network
    )


def refuse_another(what: str, built_in: Container[str], named: str, brought: str) -> None:
    """What is brought by name is the run's own, or where one's own algorithm or network, that the run names, is now."""
    if brought != named if named in built_in else ":" not in brought:
        meant = "that cannot change in a run" if named in built_in else "expected your module:Class"
        raise InvalidRequest(f"{what} {brought}: the {what} of this run is {without_folders(named)}; {meant}")


def where_it_is_now(what: str, named: str, tell: bool = True) -> str:
    """The env or the algorithm of a file that was moved together with its run is in the working directory."""
    file, _, name = named.rpartition(":")
    here = Path(file).name
    if not file.endswith(".py") or Path(file).is_file():
        return named
    if not Path(here).is_file():
        where = f"--{what} /path/to/{here}:{name}, in Python {what}='/path/to/{here}:{name}'"
        raise InvalidRequest(f"the {what} of this run was in {file}, and is not there: {where}")
    if tell:
        log.warning("there is no %s: the %s is that of %s in this directory", file, what, here)
    return with_folders(f"{here}:{name}")
