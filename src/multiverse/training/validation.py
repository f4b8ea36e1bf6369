"""Validate, the third of the four steps to a run: whatever can be refused before envs are started is refused here, and
what will differ from the run as it was is reported."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

import multiverse
from multiverse.adapters.env_source import BUILT_IN, wrapped
from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class
from multiverse.core.errors import InvalidRequest, UntrustedRun
from multiverse.core.imports import with_folders
from multiverse.core.plan import Plan
from multiverse.networks import NETWORKS
from multiverse.training.config.budget import Clock
from multiverse.training.config.build import build, in_todays_names
from multiverse.training.config.changes import (
    HOLD,
    changed_config,
    edited_settings,
    last_progress,
    refuse_kept,
    without_schedules,
)
from multiverse.training.config.train_config import BUDGETS, TrainConfig, plain_config, saved_config
from multiverse.training.learners import AlgorithmMaker, algorithm_maker, drop_replay, trained_on_scaled_bytes
from multiverse.training.opening import (
    RunObjects,
    SavedRun,
    checkpoint_of,
    config_with_folders,
    refuse_another,
    source_of,
    steps_of,
    where_it_is_now,
    wrappers_of,
)
from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.runs.checkpoint_format import Checkpoint, differences, taken_over
from multiverse.training.runs.find_runs import CHECKPOINTS, CONFIG, RunPath
from multiverse.training.runs.metric_sinks import check_tensorboard
from multiverse.training.runs.origin import NETWORK, blas, check_trusted, names_code, redacted
from multiverse.training.runs.run_directory import last_part, read_mark
from multiverse.training.session_envs import NEW_ENVS, WHERE, ResumedEnvs, saved_masks

log = logging.getLogger("multiverse")

SCHEDULES, BEGUN_FROM = "schedules", "begun_from"
"""Of a part of a run, in its provenance: settings that were functions; the checkpoint whose weights it began with."""


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """How a new run begins, and where it lies: in `run_dir`, or in a fresh directory `root/<env>/<algorithm>-…`."""

    run_dir: Path | str | None = None
    root: Path | str = "runs"
    init_from: RunPath | None = None  # a run whose weights it begins with
    tensorboard: bool = False
    ours: bool = True  # its config is nobody else's


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """How a run goes on; see `resume`."""

    trust: bool = False
    tensorboard: bool = False
    without_replay: bool = False


START, RESUME = StartOptions(), ResumeOptions()


@dataclass(frozen=True, kw_only=True)
class ValidRun:
    """A run that can be built: nothing that was asked for contradicts its config, its checkpoint or its algorithm."""

    config: TrainConfig
    objects: RunObjects
    source: Any  # of its envs
    maker: AlgorithmMaker
    ours: bool  # it may be marked as this user's own
    saved: SavedRun | None = None  # None: it is a new one
    weights: Checkpoint | None = None  # that it begins with
    envs: ResumedEnvs = NEW_ENVS
    changed: frozenset[str] = frozenset()  # settings that are given, or otherwise than in the checkpoint
    changes_config: bool = True

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The one that it goes on from."""
        return None if self.saved is None else self.saved.checkpoint


# -- a run that is begun, or gone on with --------------------------------------------------------------------------
def validate_new(config: TrainConfig, options: StartOptions, objects: RunObjects) -> ValidRun:
    """A new run of a whole config: what it begins with is there, and can be called."""
    if options.tensorboard:
        check_tensorboard()
    weights = None if options.init_from is None else checkpoint_of(options.init_from)
    if config.evaluation_opponent is not None and Path(config.evaluation_opponent).exists():
        absolute = str(Path(config.evaluation_opponent).absolute())  # it is asked for again, from wherever
        config = dataclasses.replace(config, evaluation_opponent=absolute)
    config = config_with_folders(config)
    source = wrapped(config.env if objects.env is None else objects.env, wrappers_of(config, objects.wrappers))
    maker = maker_of(config, objects, weights)
    return ValidRun(config=config, objects=objects, source=source, maker=maker, ours=options.ours, weights=weights)


def validate(saved: SavedRun, settings: Mapping[str, Any], objects: RunObjects, options: ResumeOptions) -> ValidRun:
    """A saved run that is gone on with, with these settings from here on: its code is trusted, everything that no file
    holds is there, what a run keeps is unchanged, and its budget is not spent. What differs is told."""
    if options.tensorboard:
        check_tensorboard()
    config = trusted_config(saved.path, saved.settings, objects, options.trust, given=settings)
    kind = objects.maker or algorithm_class(config.algorithm)
    moved = (config.algorithm, config.network) != named_in(saved.settings)
    given, schedules = without_schedules(settings, kind)
    before, found = last_part(saved.path), saved.checkpoint
    _refuse_lost_schedules(before, given)
    hold = bool(given.pop(HOLD, False))
    config, changed = changed_config(config, given, kind), {*given}
    _tell_where_it_begins(saved)
    envs, weights = NEW_ENVS, None
    if found is not None:
        config = _held(config, found) if hold else config
        _refuse_less_than_spent(given.get("env_steps"), found)
        _tell_differences(found, config)  # guard: differences-are-told
        envs = resumed_envs(found, config)
        edited = edited_settings(found.manifest["config"], redacted(plain_config(config)))
        refuse_kept(edited & {"num_envs", "seed"})  # others may have moved, or be new in this version
        changed = given.keys() | edited  # guard: an-edited-setting-is-used
        if options.without_replay:
            _drop_replay(found)
    elif (begun_from := before.get(BEGUN_FROM)) is not None:
        weights = checkpoint_of(str(begun_from))
    if changed & {*WHERE, "asynchronous"}:  # guard: an-edited-executor-is-used
        envs = dataclasses.replace(envs, plan=None)
    return ValidRun(
        config=config,
        objects=dataclasses.replace(objects, schedules=schedules),
        source=source_of(config, objects),
        maker=maker_of(config, objects, found or weights),
        ours=may_be_marked(saved.path, saved.settings, dataclasses.replace(objects, algorithm=objects.maker)),
        saved=saved,
        weights=weights,
        envs=envs,
        changed=frozenset(changed),
        changes_config=bool(given or moved or hold),
    )


def maker_of(config: TrainConfig, objects: RunObjects, learned: Checkpoint | None) -> AlgorithmMaker:
    """What makes the algorithm of this config; `learned`: the checkpoint whose weights it goes on with."""
    scaled = True
    if learned is not None:
        with taken_over(learned):
            scaled = trained_on_scaled_bytes(learned.state["session"])
    return algorithm_maker(config, objects.maker, scaled, objects.network_class)


def named_in(settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The algorithm and the network that the settings of a run name."""
    return settings.get("algorithm", DEFAULT_ALGORITHM), settings.get(NETWORK)


def resumed_envs(found: Checkpoint | None, config: TrainConfig) -> ResumedEnvs:
    """What the envs of a run keep that goes on from this checkpoint: their plan, number and source of action masks."""
    if found is None:
        return NEW_ENVS
    with taken_over(found):
        plan = build(Plan, found.state["plan"], "its plan")
        if plan.ray is not None:  # a checkpoint is data: only the config, which is trusted, names a cluster
            address = config.ray_address  # guard: a-checkpoint-names-no-cluster
            plan = dataclasses.replace(plan, ray=dataclasses.replace(plan.ray, address=address))
        return ResumedEnvs(plan, num_envs_in(found, config), saved_masks(found.state["session"]))


def num_envs_in(found: Checkpoint, config: TrainConfig) -> int:
    """Number of envs of a run when this checkpoint was taken."""
    return len(found.state["session"]["envs"]["episodes"]) if config.num_envs == "auto" else config.num_envs


def settings_and_clock(found: Checkpoint) -> tuple[dict[str, Any], Clock]:
    """The settings and the clock that a run had at this checkpoint."""
    with taken_over(found):
        return found.manifest["config"], build(Clock, found.state["clock"], "its clock")


def _held(config: TrainConfig, found: Checkpoint) -> TrainConfig:
    """The config with schedules as they were in the last update before this checkpoint."""
    settings, clock = settings_and_clock(found)
    return dataclasses.replace(config, schedule_progress=last_progress(settings, clock))


def _drop_replay(found: Checkpoint) -> None:
    with taken_over(found):
        drop_replay(found.state["session"])
    log.warning("%s: its replay buffer is left out and begins empty: not bit-exact", found.path.name)


def _refuse_lost_schedules(before: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """No file holds a function: to go on without it would be another run."""
    if lost := [name for name in before.get(SCHEDULES) or () if name not in given]:
        raise InvalidRequest(
            f"{lost[0]} of this run was a function of a program: pass it again, {lost[0]}=…, or a number to go on with"
        )


def _refuse_less_than_spent(env_steps: int | None, found: Checkpoint) -> None:
    """A smaller budget makes no run shorter. Episodes are not asked: programs go on in stretches of them, and a stretch
    that the rollout before it has covered already is no mistake."""
    spent = found.manifest["clock"].get("env_steps")
    if env_steps is not None and isinstance(spent, int) and env_steps < spent:
        raise InvalidRequest(
            f"env_steps={env_steps:,}: the run has had {spent:,} already; a larger one makes it longer"
        )


def _tell_where_it_begins(saved: SavedRun) -> None:
    if saved.checkpoint is None:
        log.warning("%s was ended before its first checkpoint: it begins anew", saved.path)
    elif saved.named is not None:
        later = Checkpoints(saved.path / CHECKPOINTS).after(steps_of(saved.checkpoint))
        if later:
            log.warning(
                "going on from %s: what came after it is removed (%s), its metrics and episodes too",
                saved.named,
                ", ".join(path.name for path in later),
            )


def _tell_differences(found: Checkpoint, config: TrainConfig) -> None:
    """Whoever goes on with other settings, another version, or on another CPU, is told: it is no longer quite the same
    run."""
    before = {**found.manifest, "config": {**found.manifest["config"], **dict.fromkeys(BUDGETS)}}
    # guard: no-difference-tells-a-secret
    settings = {**redacted(plain_config(config)), **dict.fromkeys(BUDGETS)}
    for line in differences(before, {"multiverse": multiverse.__version__, "blas": blas(), "config": settings}):
        log.warning("%s: %s", found.path.name, line)


# -- whose code is called, and what is missing ---------------------------------------------------------------------
def trusted_config(
    run: Path,
    settings: Mapping[str, Any],
    objects: RunObjects,
    trust: bool,
    given: Iterable[str] = (),
    needs_env: bool = True,
    needs_algorithm: bool = True,
) -> TrainConfig:
    """The config of a run with these settings, whose env is about to be made; `UntrustedRun` if that would call a
    stranger's code, or join a stranger's Ray cluster. `given`: names of settings that the caller gives, which replace
    the run's. Without its env (`needs_env`) only its algorithm is called.

    Its algorithm is where it is now: as the caller names it or, if its file is gone, in the working directory.
    """
    saved = in_todays_names(settings)  # a copy
    learner, own = named_in(saved)
    learner, named, network = str(learner), objects.algorithm_name, objects.network
    if named is not None:
        refuse_another("algorithm", ALGORITHMS, learner, named)
    # What the caller brings is the caller's own, whatever the run says; the rest of what it names is not.
    theirs = {*objects.brought(), *given}
    to_act = {"algorithm": learner, NETWORK: saved.get(NETWORK)}  # guard: untrusted-algorithm-does-not-act
    called = saved if needs_env else to_act
    if names_code({name: value for name, value in called.items() if name not in theirs}):
        check_trusted(saved, read_mark(run), run, trust)
    _refuse_missing(saved, objects, needs_env, needs_algorithm)
    if objects.maker is None and needs_algorithm:
        saved["algorithm"] = where_it_is_now("algorithm", learner) if named is None else with_folders(named)
    if needs_algorithm and own is not None:
        if isinstance(network, str):
            refuse_another(NETWORK, NETWORKS, str(own), network)
            saved[NETWORK] = with_folders(network)
        elif network is None:
            saved[NETWORK] = where_it_is_now(NETWORK, str(own))
    elif network is not None and needs_algorithm:
        raise InvalidRequest("network: this run was trained without a network of yours; leave it out")
    return saved_config(saved, str(run / CONFIG), objects.maker, objects.env_kwargs, needs_env, needs_algorithm)


def may_be_marked(run: Path, saved: Mapping[str, Any], objects: RunObjects) -> bool:
    """Whether a run with these settings, which is gone on with, may be marked as ours: it is, or its config names no
    code where the caller has brought his own (`env`, `algorithm`, `network`), which stays there and which nobody was
    asked about."""
    if not names_code({name: saved.get(name) for name in objects.brought()}):
        return True
    try:
        check_trusted(saved, read_mark(run), run, trust=False)
    except UntrustedRun:
        return False
    return True


def _refuse_missing(saved: Mapping[str, Any], objects: RunObjects, needs_env: bool, needs_algorithm: bool) -> None:
    """All that no file holds and that is not given again, in one sentence."""
    named, learner, inside = (saved.get(name) for name in ("env", "algorithm", "wrappers"))
    lost: list[tuple[str, str, str]] = []  # argument, reason, flag
    if needs_env and objects.env is None and isinstance(named, str) and not _is_known(named):
        lost.append(("env=…", f"the env of this run, {named}, is none of Gymnasium's", "--env FILE.py:NAME"))
    bare = isinstance(learner, str) and ":" not in learner and learner not in ALGORITHMS
    if needs_algorithm and objects.algorithm is None and bare:
        why = f"the algorithm of this run is {learner}, one of your own"
        lost.append((f"algorithm={learner}", why, "--algorithm FILE.py:CLASS"))
    shape = str(saved.get(NETWORK) or "").strip("<>")
    if needs_algorithm and objects.network is None and shape and saved[NETWORK] != shape:
        why = f"the network of this run is {shape}, a class of a program"
        lost.append((f"network={shape}", why, "--network FILE.py:CLASS"))
    program = [str(one) for one in inside if ":" not in str(one)] if isinstance(inside, list) else []
    if needs_env and objects.wrappers is None and program:
        lost.append(("wrappers=[…]", f"the wrapper {' and '.join(program)} of this run is one of a program", ""))
    if lost:
        arguments, reasons, flags = zip(*lost)
        shell = f" (in a shell: {' '.join(flags)})" if all(flags) else ""
        what = "it" if len(lost) == 1 else "them"
        raise InvalidRequest(f"{'; '.join(reasons)}: pass {what} again, {', '.join(arguments)}{shell}")


def _is_known(env: str) -> bool:
    return ":" in env or env in BUILT_IN or env in gymnasium.registry
