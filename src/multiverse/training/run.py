"""`train` and `resume`, for programs and for the command line.

A run is resumed in four steps: open, migrate, validate (`opening`), build (`Session`). A new run takes the last two
(`validation` has the third). `load` and `evaluate` take the same steps (`loading`)."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multiverse.adapters.env_source import Wrapper
from multiverse.algorithms import DEFAULT_ALGORITHM, algorithm_class
from multiverse.algorithms.algorithm import Algorithm
from multiverse.algorithms.capabilities import capabilities_of, settings_of
from multiverse.core.errors import InvalidRequest, PreflightError
from multiverse.core.imports import display_name, refuse_in_import
from multiverse.networks import checked_network, network_name
from multiverse.rollouts.episodes import is_single
from multiverse.training.config.build import accepts_old_names, as_plain, build
from multiverse.training.config.changes import HOLD, schedule_jumps, without_schedules, without_synonyms
from multiverse.training.config.resolve import config_for, own_settings, plain_config, wrapper_name
from multiverse.training.config.train_config import BUDGETS, TrainConfig
from multiverse.training.events import ResumeCommand, Sinks, run_with_sinks
from multiverse.training.hooks import Hook, Schedules, checked_hooks
from multiverse.training.learners import MakeAlgorithm
from multiverse.training.progress import InterruptWarning, ProgressLines, evaluation_text, printer_for_programs
from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.runs.checkpoint_format import reading_state
from multiverse.training.runs.find_runs import RunPath, find_run, find_set
from multiverse.training.runs.origin import provenance
from multiverse.training.runs.records import RunRecord
from multiverse.training.runs.run_directory import RunDirectory, last_part, read_summary
from multiverse.training.saved_runs import checkpoint_of, migrate, open_to_train, settings_and_clock, validate
from multiverse.training.session import Session
from multiverse.training.session_envs import warn_of_long_rollout
from multiverse.training.space_description import described_groups
from multiverse.training.trainer import Trainer
from multiverse.training.validation import (
    BEGUN_FROM,
    NO_OBJECTS,
    RESUME,
    SCHEDULES,
    START,
    ResumeOptions,
    RunObjects,
    StartOptions,
    ValidRun,
    check_algorithm,
    opponent_name,
    validate_new,
)

log = logging.getLogger("multiverse")


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run: its directory and its summary. `objects` holds the env, algorithm, network and wrappers that were
    objects of this program: no file can hold them, and functions that take this run use them from here."""

    path: Path
    summary: dict[str, Any]
    objects: Mapping[str, Any] = field(default_factory=dict, compare=False, kw_only=True)

    @classmethod
    def at(cls, path: Path | str) -> Run:
        """The run in this directory or, if runs lie below it, the most recent of them. It may still be training."""
        run = find_run(path).path
        return cls(run, read_summary(run))

    def rows(self) -> list[dict[str, Any]]:
        """Metrics, one dict for each number of env steps at which any were logged. Those of an evaluation have names
        that begin with `evaluation_`; in `metrics.jsonl` they are separate lines."""
        return RunRecord(self.path).rows()

    def metrics(self) -> Any:
        """The rows as a pandas DataFrame with a column for each metric, NaN where a row lacks it.
        `.dropna(subset="evaluation_mean_return")` selects the rows with an evaluation."""
        try:
            import pandas
        except ImportError as error:
            raise PreflightError(
                "metrics() needs pandas, which is not installed: pip install pandas; rows() gives the same as a list"
            ) from error
        return pandas.DataFrame(self.rows())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "objects": {}}  # another program does not have them

    def __repr__(self) -> str:
        evaluation = self.summary.get("evaluation")
        result = evaluation_text(evaluation) if evaluation else "no evaluation"
        return f"<Run {self.path}: {self.summary.get('env_steps', 0):,} env steps, {result}>"


@accepts_old_names
def train(
    env: Any,
    algorithm: str | MakeAlgorithm = DEFAULT_ALGORITHM,
    *,
    run_dir: Path | str | None = None,
    root: Path | str = "runs",
    hooks: Sequence[Hook] = (),
    init_from: Path | str | None = None,
    preset: bool | str = True,
    wrappers: Sequence[Any] = (),
    tensorboard: bool = False,
    progress: bool = True,
    seeds: int = 1,
    **settings: Any,
) -> Run:
    """Train an algorithm: `run = mv.train("CartPole-v1", num_envs=8, env_steps=100_000, seed=1)`.

    Args:
        env: Any env that `make_vec` accepts.
        algorithm: Name of an algorithm, or a class or function that makes your own:
            `(observation_space, action_space, slots, seed)` → algorithm.
        run_dir: Directory of the run. Default: a new directory `root/<env>/<algorithm>-<seed>-<time>`.
        hooks: List of `Hook`s that watch the run, stop it or change its settings.
        init_from: Run whose weights are the initial weights.
        preset: Whether to start from the preset of this env, or the env whose preset to start from. Settings that are
            given replace those of the preset.
        wrappers: Wrappers of each env, innermost first: callables, or their names as module:name.
        tensorboard: Whether to write metrics for TensorBoard too, to `tensorboard/` in the run.
        progress: Whether to show progress: as a bar in terminals and notebooks, elsewhere as a line every few seconds.
        seeds: Number of runs, with seeds from `seed` on, in one directory (`SeedRuns`). They run in parallel processes
            if there are enough cores, unless env, algorithm, hooks, wrappers or schedules are objects of this program.
        settings: Fields of `TrainConfig` and of the algorithm's config, `num_envs=8`, `learning_rate=1e-3`, also by
            the names of the flags (`lr`, `total_timesteps`, `net_arch`). A numeric setting of the algorithm may be a
            function of the remaining share of the budget: `lr=lambda left: 3e-4 * left`. `evaluation_opponent` may also
            be a run, policies (`mv.load`) or a function. `network`: your torch module class, used in place of the first
            layers, with `network_kwargs`; feature extractors of Stable-Baselines3 work unchanged.

    Ctrl-C saves the run, prints how to resume it, and raises KeyboardInterrupt.
    """
    refuse_in_import("trains")
    hooks = checked_hooks(hooks)
    check_algorithm(algorithm)
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    opponent = _named(settings, "evaluation_opponent", opponent_name)
    given, schedules = without_schedules(without_synonyms(settings), kind)
    network = _named(given, "network", lambda value: network_name(checked_network(value)))
    if wrappers:
        given["wrappers"] = [wrapper if isinstance(wrapper, str) else wrapper_name(wrapper) for wrapper in wrappers]
    config = config_for(env, algorithm, given, preset)
    own = None if isinstance(algorithm, str) else algorithm
    objects = RunObjects(env=env, algorithm=own, network=network, wrappers=wrappers or None, opponent=opponent)
    objects = dataclasses.replace(objects, schedules=schedules)
    options = StartOptions(run_dir=run_dir, root=root, init_from=init_from, tensorboard=tensorboard)
    if seeds != 1:
        from multiverse.training import seed_runs

        return seed_runs.run_in_program(seed_runs.new_set(config, seeds, options), objects, hooks, progress)
    begin = functools.partial(start_run, config, options, objects)
    return run_from_program(begin, hooks, progress, objects.arguments())


def _named(settings: dict[str, Any], name: str, name_of: Callable[[Any], str]) -> Any:
    """Return this setting if it is an object, and replace it by its name in `settings`; None if it is a name."""
    value = settings.get(name)
    if value is None or isinstance(value, str):
        return None
    settings[name] = name_of(value)
    return value


def run_from_program(begin: Callable[..., Run], hooks: Sequence[Hook], progress: bool, arguments: str = "") -> Run:
    """Run `begin(hooks=…, sinks=…)` for a Python program, with its progress on the screen if `progress`. `arguments`:
    of `mv.resume`, as `RunObjects.arguments` returns them."""
    sink = ProgressLines(printer_for_programs(), commands=False) if progress else InterruptWarning()
    resume = ResumeCommand(in_python=True, arguments=arguments)
    return run_with_sinks(functools.partial(begin, hooks=hooks), [sink], resume)


def start_run(
    config: TrainConfig,
    options: StartOptions = START,
    objects: RunObjects = NO_OBJECTS,
    hooks: Sequence[Hook] = (),
    sinks: Sinks | None = None,
) -> Run:
    """Train a new run with this config."""
    weights = None if options.init_from is None else checkpoint_of(options.init_from)
    valid = validate_new(config, options, objects, weights)
    with closing(Session(valid.config, valid.source, valid.maker, opponent=objects.opponent)) as session:
        warn_of_long_rollout(config, session.envs.num_envs, next(iter(session.learners)).steps_per_env)
        _begin_with_weights(valid, session)
        with RunDirectory.create(
            options.root,
            env=display_name(config.env),
            algorithm=config.algorithm.rpartition(":")[2],
            seed=config.seed,
            run_dir=options.run_dir,
        ) as directory:
            _write_part(directory, valid, session, options.tensorboard)
            session.begin()
            trainer = Trainer(valid.config, session, directory, _with_schedules(objects, hooks), sinks)
            return Run(directory.path, trainer.run(), objects=objects.unnamed())


@accepts_old_names
def resume(
    run: RunPath,
    *,
    env: Any = None,
    algorithm: MakeAlgorithm | str | None = None,
    network: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    evaluation_opponent: Any = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    hooks: Sequence[Hook] = (),
    trust: bool = False,
    tensorboard: bool = False,
    without_replay: bool = False,
    progress: bool = True,
    hold_schedules: bool = False,
    **settings: Any,
) -> Run:
    """Resume a run exactly at its last checkpoint, or at the one that the path names
    (`RUN/checkpoints/step-000000098304`), which removes what came after it. A larger budget makes the run longer.

    Args:
        env, algorithm, network, evaluation_opponent, env_kwargs, wrappers: For runs in which one of them was an object
            of the program, or whose env got a secret: no file holds those. `algorithm` and `network` may also be the
            `file.py:Class` of one that has moved; the run keeps the new name.
        trust: Whether to call code that the run names although another user wrote it.
        without_replay: Whether to start with an empty replay buffer, for a run whose buffer is damaged. Everything else
            is that of the checkpoint, but the run is not bit-exact.
        hold_schedules: Whether to keep learning rate, clip range and exploration as they were in the last update. By
            default schedules follow the new budget.
        settings: New values of settings, `learning_rate=1e-4`, `executor="serial"`; as for `train`.
    """
    refuse_in_import("trains")
    hooks = checked_hooks(hooks)
    settings |= {HOLD: True} if hold_schedules else {}
    objects = RunObjects(env=env, algorithm=algorithm, network=network, wrappers=wrappers, env_kwargs=env_kwargs)
    objects = dataclasses.replace(objects.filled_from(run), opponent=evaluation_opponent)
    options = ResumeOptions(trust=trust, tensorboard=tensorboard, without_replay=without_replay)
    if (path := find_set(run)) is not None:
        from multiverse.training import seed_runs

        if env_kwargs is not None or tensorboard or without_replay:
            raise InvalidRequest(
                "env_kwargs, tensorboard and without_replay apply to one run: resume each of these separately"
            )
        resumed, schedules = seed_runs.resumed_set(path, without_synonyms(settings), objects, trust)
        objects = dataclasses.replace(objects, schedules=schedules)
        return seed_runs.run_in_program(resumed, objects, hooks, progress)
    begin = functools.partial(resume_run, run, without_synonyms(settings), options, objects)
    return run_from_program(begin, hooks, progress, objects.arguments())


def resume_run(
    run: RunPath,
    settings: Mapping[str, Any],
    options: ResumeOptions = RESUME,
    objects: RunObjects = NO_OBJECTS,
    hooks: Sequence[Hook] = (),
    sinks: Sinks | None = None,
) -> Run:
    """Resume a run as `resume` does; `settings` replace those of the run."""
    location = find_run(run)
    with RunDirectory.open(location.path) as directory:
        opened = open_to_train(directory, location.checkpoint, with_replay=not options.without_replay)
        valid = validate(migrate(opened), settings, objects, options)
        with closing(Session(valid.config, valid.source, valid.maker, valid.envs, objects.opponent)) as session:
            trainer = Trainer(valid.config, session, directory, _with_schedules(valid.objects, hooks), sinks)
            _restore(trainer, valid, options)
            _write_part(directory, valid, session, options.tensorboard, options.without_replay)
            return Run(directory.path, trainer.run(), objects=valid.objects.unnamed())


# -- build ---------------------------------------------------------------------------------------------------------
def _begin_with_weights(valid: ValidRun, session: Session) -> None:
    """Load the initial weights from the run that `init_from` names, if it does."""
    if valid.weights is not None:
        with reading_state(valid.weights):
            session.learners.load_weights(valid.weights.state["session"])


def _restore(trainer: Trainer, valid: ValidRun, options: ResumeOptions) -> None:
    """Restore the run from its checkpoint, then apply the settings that have changed."""
    session, checkpoint = trainer.session, valid.checkpoint
    if checkpoint is None:
        trainer.directory.cut_back({})
        _begin_with_weights(valid, session)
        session.begin()
        return
    with reading_state(checkpoint):
        trainer.load(checkpoint.state, options.without_replay)
        for learner in session.learners:
            _check_settings(learner)
    if valid.changed & {*BUDGETS, "schedule_progress"}:
        _warn_of_jumps(trainer, valid)
    kind = valid.maker.kind
    free = own_settings(kind) - capabilities_of(kind).fixed
    wanted = {name: getattr(valid.config.settings, name) for name in free & valid.changed}
    for learner in session.learners:  # a hook may have changed settings since they were saved
        if changes := {name: value for name, value in wanted.items() if _differs(learner, name, value)}:
            learner.change(**changes)
    if valid.saved is not None and valid.saved.named is not None:
        Checkpoints(trainer.directory.checkpoints).go_back(trainer.clock.env_steps)


def _warn_of_jumps(trainer: Trainer, valid: ValidRun) -> None:
    assert valid.checkpoint is not None
    learner, (saved, clock) = next(iter(trainer.session.learners)), settings_and_clock(valid.checkpoint)
    if jumps := schedule_jumps(learner, valid.objects.schedules, saved, clock, trainer.schedule_progress):
        # guard: jumps-of-schedules-are-reported
        log.warning(
            "%s: schedules follow the budget, which has changed. %s=True (--hold-schedules) keeps the last values",
            jumps,
            HOLD,
        )


def _differs(algorithm: Algorithm, name: str, value: Any) -> bool:
    """Whether an algorithm has another value of this setting; assumed of one that does not expose its settings."""
    settings = settings_of(algorithm)
    return not hasattr(settings, name) or getattr(settings, name) != value


def _check_settings(algorithm: Algorithm) -> None:
    """Check the types of an algorithm's settings: those that a hook changed come from the state of the checkpoint."""
    settings = settings_of(algorithm)
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        build(type(settings), as_plain(settings), "its settings")


def _with_schedules(objects: RunObjects, hooks: Sequence[Hook]) -> list[Hook]:
    return [*([Schedules(objects.schedules)] if objects.schedules else []), *hooks]


def _write_part(
    directory: RunDirectory, valid: ValidRun, session: Session, tensorboard: bool, without_replay: bool = False
) -> None:
    """Write what is known when this part of a run begins: settings, spaces and provenance."""
    if valid.changes_config:
        directory.write_config(plain_config(valid.config))  # the next resume uses them too
    if valid.ours:
        directory.write_origin()
    try:  # so that the policy can act without an env
        directory.write_spaces(described_groups(session.envs.views.layout, is_single(session.envs)))
    except InvalidRequest as error:  # a custom space
        log.info("acting with this run's policy will need its env: %s", error)
    weights = valid.weights and str(valid.weights.path.absolute())
    begun_from = weights or last_part(directory.path).get(BEGUN_FROM)
    part = {**provenance(valid.config.seed, session.envs.plan), BEGUN_FROM: begun_from}
    part |= {SCHEDULES: [*valid.objects.schedules], **({"without_replay": True} if without_replay else {})}
    directory.write_provenance(part)
    if tensorboard:
        directory.keep_for_tensorboard()
