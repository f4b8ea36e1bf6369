"""Open, migrate and validate, three of the four steps to a saved run. `session` (or `loading`) has the last one: build.

Validation refuses what can be refused before envs are started, and reports what differs from the saved run.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

import multiverse
from multiverse.adapters.env_source import BUILT_IN
from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class
from multiverse.core.errors import CheckpointBroken, InvalidRequest, UntrustedRun
from multiverse.core.imports import absolute_name
from multiverse.core.plan import Plan
from multiverse.core.wording import short_repr
from multiverse.networks import NETWORKS
from multiverse.training.config.budget import Clock
from multiverse.training.config.build import build, with_current_names
from multiverse.training.config.changes import (
    HOLD,
    changed_config,
    edited_settings,
    last_progress,
    refuse_kept,
    without_schedules,
)
from multiverse.training.config.files import read_config
from multiverse.training.config.resolve import plain_config, saved_config
from multiverse.training.config.train_config import BUDGETS, TrainConfig
from multiverse.training.learners import drop_replay
from multiverse.training.runs.checkpoint import Checkpoints, load_latest
from multiverse.training.runs.checkpoint import load as load_checkpoint
from multiverse.training.runs.checkpoint_format import Checkpoint, differences, migrated, reading_state
from multiverse.training.runs.find_runs import CHECKPOINTS, CONFIG, FoundRun, RunPath, find_run
from multiverse.training.runs.metric_sinks import check_tensorboard
from multiverse.training.runs.origin import NETWORK, blas, check_trusted, names_code, redacted
from multiverse.training.runs.run_directory import RunDirectory, had_checkpoint, last_part, read_mark
from multiverse.training.session_envs import NEW_ENVS, WHERE, ResumedEnvs, saved_masks
from multiverse.training.validation import (
    BEGUN_FROM,
    SCHEDULES,
    ResumeOptions,
    RunObjects,
    ValidRun,
    current_location,
    maker_of,
    refuse_another,
    source_of,
)

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
    def existing_checkpoint(self) -> Checkpoint:
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
    return SavedRun(opened.path, with_current_names(opened.settings), checkpoint, opened.named)


# -- parts of a run ------------------------------------------------------------------------------------------------
def settings_in(run: Path) -> dict[str, Any]:
    """Settings of the run, or of the set of runs, in this directory."""
    return with_current_names(read_settings(run))


def checkpoint_of(run: RunPath, which: str = "latest") -> Checkpoint:
    """The latest valid checkpoint of a run, its best one, or the one that the path names."""
    return migrated(_chosen_checkpoint(find_run(run), which))


def steps_of(checkpoint: Checkpoint) -> int:
    """Number of env steps of the run when this checkpoint was taken, from its manifest."""
    steps = checkpoint.manifest.get("env_steps")
    if type(steps) is not int or steps < 0:
        raise CheckpointBroken(checkpoint.path, f"its manifest has {short_repr(steps)} env steps")
    return steps


# -- validate ------------------------------------------------------------------------------------------------------
def validate(saved: SavedRun, settings: Mapping[str, Any], objects: RunObjects, options: ResumeOptions) -> ValidRun:
    """Validate a saved run that is resumed with these settings: its code is trusted, objects that no file holds are
    given, settings that cannot change are unchanged, and its budget is not below its use. Differences are logged."""
    if options.tensorboard:
        check_tensorboard()
    config = trusted_config(saved.path, saved.settings, objects, options.trust, given=settings)
    kind = objects.maker or algorithm_class(config.algorithm)
    moved = (config.algorithm, config.network) != named_in(saved.settings)
    given, schedules = without_schedules(settings, kind)
    before, checkpoint = last_part(saved.path), saved.checkpoint
    _refuse_lost_schedules(before, given)
    hold = bool(given.pop(HOLD, False))
    config, changed = changed_config(config, given, kind), {*given}
    _warn_of_start(saved)
    envs, weights = NEW_ENVS, None
    if checkpoint is not None:
        if hold:
            settings, clock = settings_and_clock(checkpoint)
            config = dataclasses.replace(config, schedule_progress=last_progress(settings, clock))
        _refuse_smaller_budget(given.get("env_steps"), checkpoint)
        _warn_of_differences(checkpoint, config)  # guard: differences-are-told
        envs = resumed_envs(checkpoint, config)
        edited = edited_settings(checkpoint.manifest["config"], redacted(plain_config(config)))
        refuse_kept(edited & {"num_envs", "seed"})  # others may have moved, or be new in this version
        changed = given.keys() | edited  # guard: an-edited-setting-is-used
        if options.without_replay:
            _drop_replay(checkpoint)
    elif (begun_from := before.get(BEGUN_FROM)) is not None:
        weights = checkpoint_of(str(begun_from))
    if changed & {*WHERE, "asynchronous"}:  # guard: an-edited-executor-is-used
        envs = dataclasses.replace(envs, plan=None)
    return ValidRun(
        config=config,
        objects=dataclasses.replace(objects, schedules=schedules),
        source=source_of(config, objects),
        maker=maker_of(config, objects, checkpoint or weights),
        ours=may_be_marked(saved.path, saved.settings, dataclasses.replace(objects, algorithm=objects.maker)),
        saved=saved,
        weights=weights,
        envs=envs,
        changed=frozenset(changed),
        changes_config=bool(given or moved or hold),
    )


def named_in(settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The algorithm and the network that the settings of a run name."""
    return settings.get("algorithm", DEFAULT_ALGORITHM), settings.get(NETWORK)


def resumed_envs(checkpoint: Checkpoint, config: TrainConfig) -> ResumedEnvs:
    """The plan, number and source of action masks of the envs of a run that resumes from this checkpoint."""
    with reading_state(checkpoint):
        plan = build(Plan, checkpoint.state["plan"], "its plan")
        if plan.ray is not None:  # a checkpoint is data: only the config, which is trusted, names a cluster
            address = config.ray_address  # guard: a-checkpoint-names-no-cluster
            plan = dataclasses.replace(plan, ray=dataclasses.replace(plan.ray, address=address))
        return ResumedEnvs(plan, saved_num_envs(checkpoint, config), saved_masks(checkpoint.state["session"]))


def saved_num_envs(checkpoint: Checkpoint, config: TrainConfig) -> int:
    """Number of envs of a run when this checkpoint was taken."""
    if isinstance(config.num_envs, int):
        return config.num_envs
    return len(checkpoint.state["session"]["envs"]["episodes"])


def settings_and_clock(checkpoint: Checkpoint) -> tuple[dict[str, Any], Clock]:
    """Settings and clock that a run had at this checkpoint."""
    with reading_state(checkpoint):
        return checkpoint.manifest["config"], build(Clock, checkpoint.state["clock"], "its clock")


def _drop_replay(checkpoint: Checkpoint) -> None:
    with reading_state(checkpoint):
        drop_replay(checkpoint.state["session"])
    log.warning("%s: its replay buffer is left out and begins empty: not bit-exact", checkpoint.path.name)


def _refuse_lost_schedules(before: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to resume without a schedule of the run: no file holds a function."""
    if lost := [name for name in before.get(SCHEDULES) or () if name not in given]:
        raise InvalidRequest(
            f"{lost[0]} of this run was a function of a program: pass it again, {lost[0]}=…, or a number instead"
        )


def _refuse_smaller_budget(env_steps: int | None, checkpoint: Checkpoint) -> None:
    """Refuse a budget below the env steps that the run has had. Episodes are not checked: a program that trains in
    portions of episodes may ask for a portion that the last rollout has already covered."""
    spent = checkpoint.manifest["clock"].get("env_steps")
    if env_steps is not None and isinstance(spent, int) and env_steps < spent:
        raise InvalidRequest(
            f"env_steps={env_steps:,}: the run has had {spent:,} already. Pass a larger number to train further"
        )


def _warn_of_start(saved: SavedRun) -> None:
    """Warn if the run starts again from the beginning, or from a checkpoint that later ones must be removed for."""
    if saved.checkpoint is None:
        log.warning("%s ended before its first checkpoint: it starts from the beginning", saved.path)
    elif saved.named is not None:
        later = Checkpoints(saved.path / CHECKPOINTS).after(steps_of(saved.checkpoint))
        if later:
            log.warning(
                "resuming from %s: later checkpoints (%s), metrics and episodes are removed",
                saved.named,
                ", ".join(path.name for path in later),
            )


def _warn_of_differences(checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Warn of other settings, another version or another CPU: the run is no longer bit-exact then."""
    before = {**checkpoint.manifest, "config": {**checkpoint.manifest["config"], **dict.fromkeys(BUDGETS)}}
    # guard: no-difference-tells-a-secret
    settings = {**redacted(plain_config(config)), **dict.fromkeys(BUDGETS)}
    for line in differences(before, {"multiverse": multiverse.__version__, "blas": blas(), "config": settings}):
        log.warning("%s: %s", checkpoint.path.name, line)


# -- code that the run names, and objects that are missing -----------------------------------------------------------
def trusted_config(
    run: Path,
    settings: Mapping[str, Any],
    objects: RunObjects,
    trust: bool,
    given: Iterable[str] = (),
    needs_env: bool = True,
    needs_algorithm: bool = True,
) -> TrainConfig:
    """Return the config of a run with these settings, whose env is about to be made. `UntrustedRun` if that would call
    code, or join a Ray cluster, that another user has named. `given`: names of settings that the caller replaces.
    Without its env (`needs_env`) only its algorithm is called.

    The algorithm is the one that the caller names or, if its file is missing, that of the same file name in the working
    directory.
    """
    saved = with_current_names(settings)  # a copy
    learner, own = named_in(saved)
    learner, named, network = str(learner), objects.algorithm_name, objects.network
    if named is not None:
        refuse_another("algorithm", ALGORITHMS, learner, named)
    # Values of the caller are trusted, whatever the run names in their place.
    trusted = {*objects.brought(), *given}
    to_act = {"algorithm": learner, NETWORK: saved.get(NETWORK)}  # guard: untrusted-algorithm-does-not-act
    called = saved if needs_env else to_act
    if names_code({name: value for name, value in called.items() if name not in trusted}):
        check_trusted(saved, read_mark(run), run, trust)
    _refuse_missing(saved, objects, needs_env, needs_algorithm)
    if objects.maker is None and needs_algorithm:
        saved["algorithm"] = current_location("algorithm", learner) if named is None else absolute_name(named)
    if needs_algorithm and own is not None:
        if isinstance(network, str):
            refuse_another(NETWORK, NETWORKS, str(own), network)
            saved[NETWORK] = absolute_name(network)
        elif network is None:
            saved[NETWORK] = current_location(NETWORK, str(own))
    elif network is not None and needs_algorithm:
        raise InvalidRequest("network: this run was trained without a user-defined network; leave it out")
    return saved_config(saved, str(run / CONFIG), objects.maker, objects.env_kwargs, needs_env, needs_algorithm)


def may_be_marked(run: Path, saved: Mapping[str, Any], objects: RunObjects) -> bool:
    """Whether a resumed run with these settings may be marked as this user's: it already is, or its config names no
    code in place of the objects that the caller brings (`env`, `algorithm`, `network`), because that code was not
    checked."""
    if not names_code({name: saved.get(name) for name in objects.brought()}):
        return True
    try:
        check_trusted(saved, read_mark(run), run, trust=False)
    except UntrustedRun:
        return False
    return True


def _refuse_missing(saved: Mapping[str, Any], objects: RunObjects, needs_env: bool, needs_algorithm: bool) -> None:
    """Raise one error that names all objects that no file holds and that are not given again."""
    named, learner, wrappers = (saved.get(name) for name in ("env", "algorithm", "wrappers"))
    lost: list[tuple[str, str, str]] = []  # argument, reason, flag
    if needs_env and objects.env is None and isinstance(named, str) and not _is_known(named):
        lost.append(("env=…", f"the env of this run, {named}, is not registered in Gymnasium", "--env FILE.py:NAME"))
    bare = isinstance(learner, str) and ":" not in learner and learner not in ALGORITHMS
    if needs_algorithm and objects.algorithm is None and bare:
        why = f"the algorithm of this run is {learner}, a class of a program"
        lost.append((f"algorithm={learner}", why, "--algorithm FILE.py:CLASS"))
    shape = str(saved.get(NETWORK) or "").strip("<>")
    if needs_algorithm and objects.network is None and shape and saved[NETWORK] != shape:
        why = f"the network of this run is {shape}, a class of a program"
        lost.append((f"network={shape}", why, "--network FILE.py:CLASS"))
    program = [str(one) for one in wrappers if ":" not in str(one)] if isinstance(wrappers, list) else []
    if needs_env and objects.wrappers is None and program:
        lost.append(("wrappers=[…]", f"the wrapper {' and '.join(program)} of this run is one of a program", ""))
    if lost:
        arguments, reasons, flags = zip(*lost)
        shell = f" (in a shell: {' '.join(flags)})" if all(flags) else ""
        what = "it" if len(lost) == 1 else "them"
        raise InvalidRequest(f"{'; '.join(reasons)}: pass {what} again, {', '.join(arguments)}{shell}")


def _is_known(env: str) -> bool:
    return ":" in env or env in BUILT_IN or env in gymnasium.registry
