"""Open and migrate, the first two of the four steps to a saved run, and the objects that a caller brings for a run.
`validation` and `session` (or `loading`) have the other two steps."""

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
from multiverse.training.runs.find_runs import CHECKPOINTS, CONFIG, FoundRun, RunPath, find_run, path_of
from multiverse.training.runs.origin import NETWORK
from multiverse.training.runs.run_directory import RunDirectory, had_checkpoint

log = logging.getLogger("multiverse")


@dataclass(frozen=True)
class OpenedRun:
    """A run as it is on disk, of any version, with its bytes verified."""

    path: Path
    settings: dict[str, Any]  # of its config file
    checkpoint: Checkpoint | None  # None: the run ended before its first checkpoint
    named: Path | None = None  # the checkpoint, if the path named it


@dataclass(frozen=True)
class SavedRun(OpenedRun):
    """A run as this version would have written it, so that no later step needs to know earlier versions."""

    @property
    def found(self) -> Checkpoint:
        """The checkpoint, of a run that has one."""
        assert self.checkpoint is not None
        return self.checkpoint


# -- open ----------------------------------------------------------------------------------------------------------
def open_run(run: RunPath, which: str = "latest") -> OpenedRun:
    """Open a run with its `"latest"` or `"best"` checkpoint, to use its policy. The run may still be training."""
    location = find_run(run)
    checkpoint = _chosen_checkpoint(location, which)
    return OpenedRun(location.path, read_settings(location.path), checkpoint)


def open_to_train(directory: RunDirectory, named: Path | None, with_replay: bool = True) -> OpenedRun:
    """Open the run in this directory, which this process has locked, with the checkpoint to resume from: the latest, or
    the one that was named. `CheckpointBroken` if all its checkpoints are lost."""
    settings, checkpoints = read_settings(directory.path), Checkpoints(directory.checkpoints)
    checkpoint = checkpoints.load_latest(with_replay) if named is None else load_checkpoint(named)
    if checkpoint is None and had_checkpoint(directory.path):  # guard: lost-checkpoints-are-no-fresh-start
        restart = f"begin another run with its settings: `multiverse train --config {directory.path}/config.yaml`"
        raise CheckpointBroken(
            checkpoints.folder, "none of those that this run had is left", f"Restore one from a copy, or {restart}"
        )
    return OpenedRun(directory.path, settings, checkpoint, named)


def read_settings(run: Path) -> dict[str, Any]:
    """Read the run's config file. Settings in a checkpoint are not used: nothing is imported because of them."""
    # guard: the-config-is-the-runs-own
    return read_config(run / CONFIG)


def _chosen_checkpoint(location: FoundRun, which: str) -> Checkpoint:
    if location.checkpoint is not None:
        return load_checkpoint(location.checkpoint)
    if which == "best":
        best = location.path / CHECKPOINTS / "best"
        try:
            return load_checkpoint(best)
        except CheckpointBroken:
            if best.exists() or load_latest(best.parent) is None:
                raise
            why = "no evaluation has found a best checkpoint yet; the latest (which='latest', --which latest) is there"
            raise InvalidRequest(f"{location.path}: {why}") from None
    if which != "latest":
        raise InvalidRequest(f"which={which!r}: expected 'latest' or 'best'")
    latest = load_latest(location.path / CHECKPOINTS)
    if latest is None:
        when = "any more" if had_checkpoint(location.path) else "yet"
        raise InvalidRequest(f"{location.path}: this run has no checkpoint {when}")
    return latest


# -- migrate -------------------------------------------------------------------------------------------------------
def migrate(opened: OpenedRun) -> SavedRun:
    """Convert a run of any version to the names and shapes of this one; nothing on disk changes."""
    checkpoint = None if opened.checkpoint is None else migrated(opened.checkpoint)
    return SavedRun(opened.path, in_todays_names(opened.settings), checkpoint, opened.named)


# -- parts of a run ------------------------------------------------------------------------------------------------
def settings_in(run: Path) -> dict[str, Any]:
    """Settings of the run, or of the set of runs, in this directory."""
    return in_todays_names(read_settings(run))


def checkpoint_of(run: RunPath, which: str = "latest") -> Checkpoint:
    """The latest valid checkpoint of a run, its best one, or the one that the path names."""
    return migrated(_chosen_checkpoint(find_run(run), which))


def steps_of(found: Checkpoint) -> int:
    """Number of env steps of the run when this checkpoint was taken, from its manifest."""
    steps = found.manifest.get("env_steps")
    if type(steps) is not int or steps < 0:
        raise CheckpointBroken(found.path, f"its manifest has {in_words(steps)} env steps")
    return steps


# -- the objects that a caller brings ----------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class RunObjects:
    """Objects that the caller brings in place of those that the config names. None: use what the config names."""

    env: Any = None
    algorithm: MakeAlgorithm | str | None = None  # or the new `file.py:Class` of a user-defined algorithm
    network: Any = None  # likewise
    wrappers: Sequence[Wrapper | str] | None = None
    env_kwargs: Mapping[str, Any] | None = None  # over those of the config
    opponent: Any = None  # of evaluations
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.algorithm is not None:
            check_algorithm(self.algorithm)

    @property
    def maker(self) -> MakeAlgorithm | None:
        """The class or function that makes the algorithm, if that is an object."""
        return None if isinstance(self.algorithm, str) else self.algorithm

    @property
    def algorithm_name(self) -> str | None:
        """The name of the algorithm, if the caller gave a name."""
        return known_name(self.algorithm) if isinstance(self.algorithm, str) else None

    @property
    def network_class(self) -> Any:
        """The class of the network; None if the caller gave a name, which is in the config by now."""
        return None if isinstance(self.network, str) else self.network

    def filled(self, **given: Any) -> RunObjects:
        """A copy with these objects in place of those that are None."""
        missing = {name: value for name, value in given.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)

    def filled_from(self, run: Any) -> RunObjects:
        """A copy with the objects that `run`, if it is a `Run` of this program, was made with, in place of None."""
        return self.filled(**getattr(run, "objects", {}))

    def brought(self) -> set[str]:
        """Names of the config's settings that these objects replace."""
        given = {"env": self.env, "env_kwargs": self.env, "algorithm": self.algorithm, NETWORK: self.network}
        return {name for name, value in given.items() if value is not None}

    def unnamed(self) -> dict[str, Any]:
        """The objects of the run that no file can name; see `Run.objects`."""
        parts = {"env": self.env, "algorithm": self.algorithm, "wrappers": self.wrappers, NETWORK: self.network}
        return {name: value for name, value in parts.items() if value and not isinstance(value, str)}

    def arguments(self) -> str:
        """Arguments that `mv.resume` needs again for this run, as text: ', env=Mine, wrappers=[…]'."""
        needed: dict[str, Any] = {name: value for name, value in self.unnamed().items() if name == "env"}
        named = (("algorithm", self.algorithm, import_name), ("evaluation_opponent", self.opponent, opponent_name))
        for name, value, name_in_config in named:
            if value is not None and not isinstance(value, str) and not hasattr(value, "path"):
                needed |= {name: value} if ":" not in name_in_config(value) else {}
        if self.network_class is not None and "<" in network_name(self.network):
            needed[NETWORK] = self.network
        names = {name: getattr(value, "__name__", "") for name, value in needed.items()}
        arguments = [f"{name}={value if value.isidentifier() else '…'}" for name, value in names.items()]
        if any(":" not in wrapper_name(wrapper) for wrapper in self.wrappers or () if not isinstance(wrapper, str)):
            arguments.append("wrappers=[…]")
        return "".join(f", {argument}" for argument in [*arguments, *(f"{name}=…" for name in self.schedules)])

    def known_elsewhere(self, config: TrainConfig) -> bool:
        """Whether another process can make the run from its config alone. An env id may be one that only this program
        has registered."""
        objects = (self.maker, self.network_class, self.opponent, self.schedules)
        # guard: another-process-has-no-other-env
        same_env = self.env is None or (isinstance(self.env, str) and self.env == config.env)
        if any(objects) or not same_env or any(":" not in name for name in config.wrappers):
            return False
        module, colon, _ = config.env.partition(":")
        if colon or config.env in BUILT_IN:
            return module != "__main__"
        spec = gymnasium.registry.get(config.env)
        return spec is not None and str(spec.entry_point).startswith(("gymnasium.", "multiverse."))


NO_OBJECTS = RunObjects()


def check_algorithm(algorithm: Any) -> None:
    """Refuse what cannot make an algorithm, such as a config of one."""
    if isinstance(algorithm, str):
        return
    if dataclasses.is_dataclass(algorithm) and not hasattr(algorithm, "update"):
        name = (algorithm if isinstance(algorithm, type) else type(algorithm)).__name__
        given = name if isinstance(algorithm, type) else f"{algorithm!r:.60}"
        raise InvalidRequest(
            f"algorithm={given} is a config, not an algorithm: pass the algorithm, and its settings beside it, such as "
            "algorithm='ppo', learning_rate=1e-3"
        )
    if not callable(algorithm):
        expected = "expected the name of an algorithm, or a class or function that makes one"
        raise InvalidRequest(f"algorithm={in_words(algorithm)}: {expected}")


def opponent_name(opponent: Any) -> str:
    """Return what a config can hold of an opponent that is an object: the path of its run, `module:function` if that
    can be imported again, else a name in angle brackets."""
    if isinstance(opponent, Path) or hasattr(opponent, "path"):
        return str(path_of(opponent))
    module, name = getattr(opponent, "__module__", ""), name_of(opponent)
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is opponent:
        return f"{module}:{name}"
    return f"<{name.strip('<>')}>"


# -- objects that a config names --------------------------------------------------------------------------------------
def source_of(config: TrainConfig, objects: RunObjects) -> Any:
    """The env that the caller brings, or else the one that the config names, in its wrappers."""
    env = current_location("env", config.env) if objects.env is None else objects.env
    return wrapped(env, wrappers_of(config, objects.wrappers))


def wrappers_of(config: TrainConfig, given: Sequence[Wrapper | str] | None = None) -> list[Wrapper]:
    """The wrappers that are given, which must be those of the run, or else those that the config names."""
    names = [wrapper if isinstance(wrapper, str) else wrapper_name(wrapper) for wrapper in (given or ())]
    bare, known = ([name.rpartition(":")[2] for name in several] for several in (names, config.wrappers))
    if given is not None and bare != known:  # only bare names are compared: one module may import them from another
        raise InvalidRequest(
            f"wrappers={names}: the envs of this run are wrapped in {list(config.wrappers)}, which cannot change"
        )
    wrappers = config.wrappers if given is None else given
    return [_wrapper(wrapper) if isinstance(wrapper, str) else wrapper for wrapper in wrappers]


def _wrapper(name: str) -> Wrapper:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InvalidRequest(f"the wrapper {name} of this run is one of a program: pass it again, wrappers=[…]")
    try:
        wrapper: Wrapper = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        raise InvalidRequest(f"wrapper {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    return wrapper


def config_with_folders(config: TrainConfig) -> TrainConfig:
    """The config with absolute paths of the files that it names, so that they are found from any directory."""
    network = config.network and with_folders(config.network)
    return dataclasses.replace(
        config, env=with_folders(config.env), algorithm=with_folders(config.algorithm), network=network
    )


def refuse_another(what: str, built_in: Container[str], named: str, brought: str) -> None:
    """Refuse another algorithm or network than the run's. A user-defined one may be given by its new module:Class."""
    if brought != named if named in built_in else ":" not in brought:
        why = "that cannot change in a run" if named in built_in else "expected your module:Class"
        raise InvalidRequest(f"{what} {brought}: the {what} of this run is {without_folders(named)}; {why}")


def current_location(what: str, named: str, warn: bool = True) -> str:
    """Return where an env or algorithm of a file is: there or, if the file was moved with its run, in the working
    directory."""
    file, _, name = named.rpartition(":")
    here = Path(file).name
    if not file.endswith(".py") or Path(file).is_file():
        return named
    if not Path(here).is_file():
        where = f"--{what} /path/to/{here}:{name}, in Python {what}='/path/to/{here}:{name}'"
        raise InvalidRequest(f"the {what} of this run was in {file}, and is not there: {where}")
    if warn:
        log.warning("there is no %s: the %s of %s in this directory is used", file, what, here)
    return with_folders(f"{here}:{name}")
