"""Options of runs, the objects that a caller brings for one, and validation, the third of the four steps to a run, of
new runs: refuse what can be refused before envs are started. Saved runs are validated in `opening`."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from multiverse.adapters.env_source import BUILT_IN, Wrapper, wrapped
from multiverse.algorithms import DEFAULT_ALGORITHM, known_name
from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import absolute_name, display_name
from multiverse.core.wording import short_repr
from multiverse.networks import network_name
from multiverse.training.config.changes import Schedule
from multiverse.training.config.resolve import import_name, name_of, wrapper_name
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.learners import AlgorithmMaker, MakeAlgorithm, algorithm_maker, trained_on_scaled_bytes
from multiverse.training.runs.checkpoint_format import Checkpoint, reading_state
from multiverse.training.runs.find_runs import RunPath, path_of
from multiverse.training.runs.metric_sinks import check_tensorboard
from multiverse.training.runs.origin import NETWORK
from multiverse.training.session_envs import NEW_ENVS, ResumedEnvs

if TYPE_CHECKING:
    from multiverse.training.saved_runs import SavedRun

log = logging.getLogger("multiverse")

SCHEDULES, BEGUN_FROM = "schedules", "begun_from"
"""Keys in the provenance of a part of a run: settings that were functions; checkpoint of its initial weights."""


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Options of a new run. Its directory is `run_dir`, or a new one, `root/<env>/<algorithm>-…`."""

    run_dir: Path | str | None = None
    root: Path | str = "runs"
    init_from: RunPath | None = None  # run whose weights are the initial weights
    tensorboard: bool = False
    ours: bool = True  # this user wrote its config


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Options of a resumed run; see `resume`."""

    trust: bool = False
    tensorboard: bool = False
    without_replay: bool = False


START, RESUME = StartOptions(), ResumeOptions()


@dataclass(frozen=True, kw_only=True)
class ValidRun:
    """A run that can be built: its options fit its config, its checkpoint and its algorithm."""

    config: TrainConfig
    objects: RunObjects
    source: Any  # source of its envs
    maker: AlgorithmMaker
    ours: bool  # it may be marked as this user's
    saved: SavedRun | None = None  # None: a new run
    weights: Checkpoint | None = None  # the initial weights
    envs: ResumedEnvs = NEW_ENVS
    changed: frozenset[str] = frozenset()  # settings that are given, or differ from those of the checkpoint
    changes_config: bool = True

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from."""
        return None if self.saved is None else self.saved.checkpoint


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
        """Whether another process can make the run from its config. Only this program may have registered an env id."""
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
            f"algorithm={DEFAULT_ALGORITHM!r}, learning_rate=1e-3"
        )
    if not callable(algorithm):
        expected = "expected the name of an algorithm, or a class or function that makes one"
        raise InvalidRequest(f"algorithm={short_repr(algorithm)}: {expected}")


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
    network = config.network and absolute_name(config.network)
    return dataclasses.replace(
        config, env=absolute_name(config.env), algorithm=absolute_name(config.algorithm), network=network
    )


def refuse_another(what: str, built_in: Container[str], named: str, brought: str) -> None:
    """Refuse another algorithm or network than the run's. A user-defined one may be given by its new module:Class."""
    if brought != named if named in built_in else ":" not in brought:
        why = "that cannot change in a run" if named in built_in else "expected your module:Class"
        raise InvalidRequest(f"{what} {brought}: the {what} of this run is {display_name(named)}; {why}")


def current_location(what: str, named: str, warn: bool = True) -> str:
    """Return where an env or algorithm of a file is: there, or in the working directory if the file was moved."""
    file, _, name = named.rpartition(":")
    here = Path(file).name
    if not file.endswith(".py") or Path(file).is_file():
        return named
    if not Path(here).is_file():
        where = f"--{what} /path/to/{here}:{name}, in Python {what}='/path/to/{here}:{name}'"
        raise InvalidRequest(f"the {what} of this run was in {file}, and is not there: {where}")
    if warn:
        log.warning("there is no %s: the %s of %s in this directory is used", file, what, here)
    return absolute_name(f"{here}:{name}")


# -- new runs ----------------------------------------------------------------------------------------------------
def validate_new(
    config: TrainConfig, options: StartOptions, objects: RunObjects, weights: Checkpoint | None = None
) -> ValidRun:
    """Validate a new run with this config: its initial weights exist, and what it names can be called."""
    if options.tensorboard:
        check_tensorboard()
    if config.evaluation_opponent is not None and Path(config.evaluation_opponent).exists():
        absolute = str(Path(config.evaluation_opponent).absolute())  # it may be resumed from another directory
        config = dataclasses.replace(config, evaluation_opponent=absolute)
    config = config_with_folders(config)
    source = wrapped(config.env if objects.env is None else objects.env, wrappers_of(config, objects.wrappers))
    maker = maker_of(config, objects, weights)
    return ValidRun(config=config, objects=objects, source=source, maker=maker, ours=options.ours, weights=weights)


def maker_of(config: TrainConfig, objects: RunObjects, learned: Checkpoint | None) -> AlgorithmMaker:
    """Return the maker of this config's algorithm. `learned`: the checkpoint whose weights it will load."""
    scaled = True
    if learned is not None:
        with reading_state(learned):
            scaled = trained_on_scaled_bytes(learned.state["session"])
    return algorithm_maker(config, objects.maker, scaled, objects.network_class)
