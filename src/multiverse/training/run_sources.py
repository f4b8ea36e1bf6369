"""What a run is made with: its env, wrappers and algorithm, as they are given or as its own config names them."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gymnasium

from multiverse.adapters.env_source import BUILT_IN, Wrapper, wrapped
from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, known_name
from multiverse.core.errors import InvalidRequest, UntrustedRun
from multiverse.core.imports import with_folders, without_folders
from multiverse.networks import NETWORKS, network_name
from multiverse.training.algorithm_maker import MakeAlgorithm
from multiverse.training.config.build import in_todays_names
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import TrainConfig, import_name, name_of, saved_config, wrapper_name
from multiverse.training.runs.find_runs import CONFIG, find_run
from multiverse.training.runs.origin import NETWORK, check_trusted, names_code
from multiverse.training.runs.run_directory import read_mark

log = logging.getLogger("multiverse")


class HasPath(Protocol):
    """A run that has come to its end knows where it lies."""

    @property
    def path(self) -> Path: ...


RunPath = HasPath | Path | str


def path_of(run: RunPath) -> Path:
    """Where a run lies."""
    return Path(run) if isinstance(run, str | Path) else run.path


def config_of(run: RunPath) -> dict[str, Any]:
    """The settings of a run as it has saved them."""
    return saved_settings(find_run(path_of(run)).path)


def trusted_config(
    run: Path,
    env: Any,
    algorithm: MakeAlgorithm | None,
    env_kwargs: Mapping[str, Any] | None,
    trust: bool,
    wrappers: Sequence[Wrapper | str] | None = None,
    needs_algorithm: bool = True,
    named: str | None = None,
    given: Iterable[str] = (),
    needs_env: bool = True,
    network: Any = None,
) -> TrainConfig:
    """The config of a run whose env is about to be made; `UntrustedRun` if that would call a stranger's code, or join
    a stranger's Ray cluster. `given`: names of settings that the caller gives, which replace the run's. Without its env
    (`needs_env`) only its algorithm is called.

    Its algorithm is where it is now: as `named` by the caller or, if its file is gone, in the working directory.
    """
    saved = saved_settings(run)
    learner = str(saved.get("algorithm", DEFAULT_ALGORITHM))
    if named is not None:
        refuse_another("algorithm", ALGORITHMS, learner, named)
    # What the caller brings is the caller's own, whatever the run says; the rest of what it names is not.
    theirs = {*_brought(env, algorithm or named, network), *given}
    to_act = {"algorithm": learner, NETWORK: saved.get(NETWORK)}  # guard: untrusted-algorithm-does-not-act
    called = saved if needs_env else to_act
    if names_code({name: value for name, value in called.items() if name not in theirs}):
        check_trusted(saved, read_mark(run), run, trust)
    inside = (env, wrappers) if needs_env else (True, ())
    brought = ((algorithm or named), network) if needs_algorithm else (True, True)
    _refuse_missing(saved, inside[0], brought[0], inside[1], brought[1])
    if algorithm is None and needs_algorithm:
        saved["algorithm"] = where_it_is_now("algorithm", learner) if named is None else with_folders(named)
    if needs_algorithm and (own := saved.get(NETWORK)) is not None:
        if isinstance(network, str):
            refuse_another(NETWORK, NETWORKS, str(own), network)
            saved[NETWORK] = with_folders(network)
        elif network is None:
            saved[NETWORK] = where_it_is_now(NETWORK, str(own))
    elif network is not None and needs_algorithm:
        raise InvalidRequest("network: this run was trained without a network of yours; leave it out")
    return saved_config(saved, str(run / CONFIG), algorithm, env_kwargs, needs_env, needs_algorithm)


def _brought(env: Any, algorithm: Any, network: Any = None) -> set[str]:
    """What of a config the caller brings himself."""
    given = {"env": env, "env_kwargs": env, "algorithm": algorithm, NETWORK: network}
    return {name for name, one in given.items() if one is not None}


def may_be_marked(run: Path, env: Any, algorithm: Any, network: Any = None) -> bool:
    """Whether a run that is gone on with may be marked as ours: it is, or its config names no code where the caller has
    brought his own (`env`, `algorithm`, `network`), which stays there and which nobody was asked about."""
    saved = saved_settings(run)
    if not names_code({name: saved.get(name) for name in _brought(env, algorithm, network)}):
        return True
    try:
        check_trusted(saved, read_mark(run), run, trust=False)
    except UntrustedRun:
        return False
    return True


def saved_settings(run: Path) -> dict[str, Any]:
    """The config is the run's own file: a checkpoint is data, and names nothing that would be imported."""
    # guard: the-config-is-the-runs-own
    return in_todays_names(read_config(run / CONFIG))


# -- given, and given again -----------------------------------------------------------------------------------------
def objects_among(**given: Any) -> dict[str, Any]:
    """Those that no file can name."""
    return {name: one for name, one in given.items() if one and not isinstance(one, str)}


def given_again(**given: Any) -> str:
    """Of what a run is made with, that which must be given again to go on, as arguments: ', env=Mine, wrappers=[…]'."""
    lost: dict[str, Any] = objects_among(env=given.get("env"))
    for name, named in (("algorithm", import_name), ("evaluation_opponent", opponent_name)):
        one = given.get(name.removeprefix("evaluation_"))
        if one is not None and not isinstance(one, str) and ":" not in named(one) and not hasattr(one, "path"):
            lost[name] = one
    if (network := given.get(NETWORK)) is not None and not isinstance(network, str) and "<" in network_name(network):
        lost[NETWORK] = network
    called = {name: getattr(one, "__name__", "") for name, one in lost.items()}
    words = [f"{name}={one if one.isidentifier() else '…'}" for name, one in called.items()]
    if any(":" not in wrapper_name(one) for one in given.get("wrappers") or () if not isinstance(one, str)):
        words.append("wrappers=[…]")
    return "".join(f", {word}" for word in [*words, *(f"{name}=…" for name in given.get("schedules") or ())])


def opponent_name(opponent: Any) -> str:
    """Of one that is no text, what a config can hold: where its run lies, `module:function` if that can be imported
    again, else a name in angle brackets."""
    if isinstance(opponent, Path) or hasattr(opponent, "path"):
        return str(path_of(opponent))
    module, name = getattr(opponent, "__module__", ""), name_of(opponent)
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is opponent:
        return f"{module}:{name}"
    return f"<{name.strip('<>')}>"


def _refuse_missing(saved: Mapping[str, Any], env: Any, algorithm: Any, wrappers: Any, network: Any) -> None:
    """All that no file holds and that is not given again (None), in one sentence."""
    named, learner, inside = (saved.get(name) for name in ("env", "algorithm", "wrappers"))
    lost = {}
    if env is None and isinstance(named, str) and not _is_known(named):
        lost["env=…"] = f"the env of this run, {named}, is none of Gymnasium's"
    if algorithm is None and isinstance(learner, str) and ":" not in learner and learner not in ALGORITHMS:
        lost[f"algorithm={learner}"] = f"the algorithm of this run is {learner}, one of your own"
    shape = str(saved.get(NETWORK) or "").strip("<>")
    if network is None and shape and saved[NETWORK] != shape:
        lost[f"network={shape}"] = f"the network of this run is {shape}, a class of a program"
    program = [str(one) for one in inside if ":" not in str(one)] if isinstance(inside, list) else []
    if wrappers is None and program:
        lost["wrappers=[…]"] = f"the wrapper {' and '.join(program)} of this run is one of a program"
    if lost:
        flags = {
            "env=…": "--env FILE.py:NAME",
            f"algorithm={learner}": "--algorithm FILE.py:CLASS",
            f"network={shape}": "--network FILE.py:CLASS",
        }
        shell = f" (in a shell: {' '.join(flags[one] for one in lost)})" if lost.keys() <= flags.keys() else ""
        what = "it" if len(lost) == 1 else "them"
        raise InvalidRequest(f"{'; '.join(lost.values())}: pass {what} again, {', '.join(lost)}{shell}")


def refuse_another(what: str, built_in: Container[str], named: str, brought: str) -> None:
    """What is brought by name is the run's own, or where one's own algorithm or network, that the run names, is now."""
    if brought != named if named in built_in else ":" not in brought:
        meant = "that cannot change in a run" if named in built_in else "expected your module:Class"
        raise InvalidRequest(f"{what} {brought}: the {what} of this run is {without_folders(named)}; {meant}")


def as_name(algorithm: MakeAlgorithm | str | None) -> tuple[MakeAlgorithm | None, str | None]:
    """(what makes an algorithm, its name): as one of them was given."""
    return (None, known_name(algorithm)) if isinstance(algorithm, str) else (algorithm, None)


def object_of(network: Any) -> Any:
    """The class of a network that was given; None where its name was given, which the config holds by now."""
    return None if isinstance(network, str) else network


def _is_known(env: str) -> bool:
    return ":" in env or env in BUILT_IN or env in gymnasium.registry


def config_with_folders(config: TrainConfig) -> TrainConfig:
    """The config with the whole paths of files that it names, which any directory finds."""
    network = config.network and with_folders(config.network)
    return dataclasses.replace(
        config, env=with_folders(config.env), algorithm=with_folders(config.algorithm), network=network
    )


def at_hand(run: RunPath, **given: Any) -> list[Any]:
    """What is given or, of a run that this program has made, what it was made with."""
    own = getattr(run, "objects", {})
    return [own.get(name) if value is None else value for name, value in given.items()]


def source_of(config: TrainConfig, env: Any, wrappers: Sequence[Wrapper | str] | None = None) -> Any:
    """The env that was given, or the one that the config names, if it names one that can be found; in its wrappers."""
    return wrapped(_bare_source(config, env), wrappers_of(config, wrappers))


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


def _bare_source(config: TrainConfig, env: Any) -> Any:
    if env is not None:
        return env
    return where_it_is_now("env", config.env)


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
