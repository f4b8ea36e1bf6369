"""`train` and `resume`: runs, as a program or the command line asks for them.

Four steps lead to a run that trains, and all but the first two to a new one: open and migrate (`opening`), validate
(`validation`), build (`Session`). `load` and `evaluate` go the same way (`loading`).
"""

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
from multiverse.core.imports import refuse_in_import, without_folders
from multiverse.networks import checked_network, network_name
from multiverse.rollouts.slots import is_single
from multiverse.training.config.build import as_plain, build, takes_old_names
from multiverse.training.config.changes import HOLD, in_our_names, schedule_jumps, without_schedules
from multiverse.training.config.train_config import (
    BUDGETS,
    TrainConfig,
    config_for,
    own_settings,
    plain_config,
    wrapper_name,
)
from multiverse.training.events import ResumeCommand, Sinks, run_with_sinks
from multiverse.training.hooks import Hook, Schedules
from multiverse.training.learners import MakeAlgorithm
from multiverse.training.opening import NO_OBJECTS, RunObjects, migrate, open_to_train, opponent_name
from multiverse.training.progress import InterruptWarning, ProgressLines, evaluated, printer_for_programs
from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.runs.checkpoint_format import taken_over
from multiverse.training.runs.find_runs import RunPath, find_run, find_set
from multiverse.training.runs.origin import provenance
from multiverse.training.runs.records import RunRecord
from multiverse.training.runs.run_directory import RunDirectory, last_part, read_summary
from multiverse.training.session import Session
from multiverse.training.session_envs import warn_of_a_long_rollout
from multiverse.training.space_description import described_groups
from multiverse.training.trainer import Trainer
from multiverse.training.validation import (
    BEGUN_FROM,
    RESUME,
    SCHEDULES,
    START,
    ResumeOptions,
    StartOptions,
    ValidRun,
    settings_and_clock,
    validate,
    validate_new,
)

log = logging.getLogger("multiverse")


@dataclass(frozen=True, repr=False)
class Run:
    """A run that has come to its end: where it lies, and how it went; `objects`: env, algorithm and wrappers where they
    were some of this program, which no file holds, so that whoever is given this run need not be given them again."""

    path: Path
    summary: dict[str, Any]
    objects: Mapping[str, Any] = field(default_factory=dict, compare=False, kw_only=True)

    @classmethod
    def at(cls, path: Path | str) -> Run:
        """The run that lies there, or, of a directory above, the one written to last; also one that is under way."""
        where = find_run(path).path
        return cls(where, read_summary(where))

    def rows(self) -> list[dict[str, Any]]:
        """Its metrics, a dict for each number of env steps at which there are some: those of updates and, as
        `evaluation_…`, those of an evaluation there. `metrics.jsonl` has separate lines."""
        return RunRecord(self.path).rows()

    def metrics(self) -> Any:
        """The same as a pandas DataFrame, with a column for each metric; NaN where there is none.
        `.dropna(subset="evaluation_mean_return")` has the rows with an evaluation."""
        try:
            import pandas
        except ImportError as error:
            raise PreflightError(
                "metrics() needs pandas, which is not installed: pip install pandas; rows() gives the same as a list"
            ) from error
        return pandas.DataFrame(self.rows())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "objects": {}}  # of which another program has none

    def __repr__(self) -> str:
        found = self.summary.get("evaluation")
        told = evaluated(found) if found else "no evaluation"
        return f"<Run {self.path}: {self.summary.get('env_steps', 0):,} env steps, {told}>"


@takes_old_names
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
        env: whatever `make_vec` takes.
        algorithm: its name, or what makes one of your own: `(observation_space, action_space, slots, seed)` → it.
        run_dir: exactly where the run lies; by default a fresh directory `root/<env>/<algorithm>-<seed>-<time>`.
        hooks: `Hook`s that watch the run, stop it or change its settings.
        init_from: a run whose weights this one begins with.
        preset: whether to begin from the settings known to suit this env, or another env whose settings to begin from;
            what is given here goes before them.
        wrappers: what each env is wrapped in, the innermost first: callables, or module:name of one.
        tensorboard: metrics for TensorBoard too, in the run's own `tensorboard/`.
        progress: whether to tell how it goes: in terminals and notebooks by a bar, elsewhere in a line now and then.
        seeds: so many runs, from `seed` on, in one directory (`SeedRuns`): side by side in processes of their own where
            there are cores, unless env, algorithm, hooks, wrappers or schedules are objects of this program.
        settings: fields of `TrainConfig` and of the algorithm's config, `num_envs=8`, `learning_rate=1e-3`, also by
            the names that flags have (`lr`, `total_timesteps`, `net_arch`). A number of the algorithm's may be a
            function of how much of the budget is left: `lr=lambda left: 3e-4 * left`. `evaluation_opponent` may be a
            run, policies (`mv.load`) or a function, too. `network`: a class of your own (a torch module) that takes the
            place of the first layers, with `network_kwargs`; feature extractors of Stable-Baselines3 work unchanged.

    Ctrl-C saves the run, says how to go on with it, and goes on its way.
    """
    refuse_in_import("trains")
    kind = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    opponent = _named(settings, "evaluation_opponent", opponent_name)
    given, schedules = without_schedules(in_our_names(settings), kind)
    network = _named(given, "network", lambda brought: network_name(checked_network(brought)))
    if wrappers:
        given["wrappers"] = [one if isinstance(one, str) else wrapper_name(one) for one in wrappers]
    config = config_for(env, algorithm, given, preset)
    own = None if isinstance(algorithm, str) else algorithm
    objects = RunObjects(env=env, algorithm=own, network=network, wrappers=wrappers or None, opponent=opponent)
    objects = dataclasses.replace(objects, schedules=schedules)
    options = StartOptions(run_dir=run_dir, root=root, init_from=init_from, tensorboard=tensorboard)
    if seeds != 1:
        from multiverse.training import seed_runs

        return seed_runs.run_in_program(seed_runs.new_set(config, seeds, options), objects, hooks, progress)
    begin = functools.partial(start_run, config, options, objects)
    return watched(begin, hooks, progress, objects.arguments())


def _named(settings: dict[str, Any], name: str, name_of: Callable[[Any], str]) -> Any:
    """The object that this setting is, which is replaced by its name; None where it is a name, which a config holds."""
    brought = settings.get(name)
    if brought is None or isinstance(brought, str):
        return None
    settings[name] = name_of(brought)
    return brought


def watched(begin: Callable[..., Run], own: Sequence[Hook], progress: bool, again: str = "") -> Run:
    """Begin a run (`begin(hooks=…, sinks=…)`) from a program, with these hooks, and show how it goes or not. `again`:
    as of `RunObjects.arguments`."""
    sink = ProgressLines(printer_for_programs(), commands=False) if progress else InterruptWarning()
    return run_with_sinks(functools.partial(begin, hooks=own), [sink], ResumeCommand(in_python=True, arguments=again))


def start_run(
    config: TrainConfig,
    options: StartOptions = START,
    objects: RunObjects = NO_OBJECTS,
    hooks: Sequence[Hook] = (),
    sinks: Sinks | None = None,
) -> Run:
    """A new run of a whole config."""
    valid = validate_new(config, options, objects)
    with closing(Session(valid.config, valid.source, valid.maker, opponent=objects.opponent)) as session:
        warn_of_a_long_rollout(config, session.envs.num_envs, next(iter(session.learners)).steps_per_env)
        _begin_with_weights(valid, session)
        with RunDirectory.create(
            options.root,
            env=without_folders(config.env),
            algorithm=config.algorithm.rpartition(":")[2],
            seed=config.seed,
            run_dir=options.run_dir,
        ) as directory:
            _write_part(directory, valid, session, options.tensorboard)
            session.begin()
            trainer = Trainer(valid.config, session, directory, _with_schedules(objects, hooks), sinks)
            return Run(directory.path, trainer.run(), objects=objects.unnamed())


@takes_old_names
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
    """Go on with a run exactly where its last checkpoint was taken, or where the one was that is named
    (`RUN/checkpoints/step-000000098304`): what came after that goes. A larger budget makes it longer.

    `env`, `algorithm`, `network`, `evaluation_opponent`, `env_kwargs`, `wrappers`: for runs of which one was an object
    of the program, or whose env got a secret: no file holds those. `algorithm` and `network` may be the `file.py:Class`
    of one that has moved, too: the run keeps that. `trust`: whether code that the run names may be called though
    somebody else has written it. `without_replay`: begin with an empty replay buffer, for a run whose buffer is
    damaged; all else is that of the checkpoint, but the run is not bit-exact. `hold_schedules`: keep learning rate,
    clip range and exploration as they were in the last update; by default those that follow the budget follow the new
    one. `settings`: other ones from here on, `learning_rate=1e-4`, `executor="serial"`; as for `train`.
    """
    refuse_in_import("trains")
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
        resumed, schedules = seed_runs.resumed_set(path, in_our_names(settings), objects, trust)
        objects = dataclasses.replace(objects, schedules=schedules)
        return seed_runs.run_in_program(resumed, objects, hooks, progress)
    begin = functools.partial(resume_run, run, in_our_names(settings), options, objects)
    return watched(begin, hooks, progress, objects.arguments())


def resume_run(
    run: RunPath,
    settings: Mapping[str, Any],
    options: ResumeOptions = RESUME,
    objects: RunObjects = NO_OBJECTS,
    hooks: Sequence[Hook] = (),
    sinks: Sinks | None = None,
) -> Run:
    """As `resume`; `settings` go before those of the run."""
    found = find_run(run)
    with RunDirectory.open(found.path) as directory:
        opened = open_to_train(directory, found.checkpoint, with_replay=not options.without_replay)
        valid = validate(migrate(opened), settings, objects, options)
        with closing(Session(valid.config, valid.source, valid.maker, valid.envs, objects.opponent)) as session:
            trainer = Trainer(valid.config, session, directory, _with_schedules(valid.objects, hooks), sinks)
            _bring_back(trainer, valid, options)
            _write_part(directory, valid, session, options.tensorboard, options.without_replay)
            return Run(directory.path, trainer.run(), objects=valid.objects.unnamed())


# -- build ---------------------------------------------------------------------------------------------------------
def _begin_with_weights(valid: ValidRun, session: Session) -> None:
    if valid.weights is not None:
        with taken_over(valid.weights):
            session.learners.load_weights(valid.weights.state["session"])


def _bring_back(trainer: Trainer, valid: ValidRun, options: ResumeOptions) -> None:
    """The run as it was at its checkpoint, with the settings that it has from here on."""
    session, found = trainer.session, valid.checkpoint
    if found is None:
        trainer.directory.cut_back({})
        _begin_with_weights(valid, session)
        session.begin()
        return
    with taken_over(found):
        trainer.load(found.state, options.without_replay)
        for learner in session.learners:
            _check_settings(learner)
    if valid.changed & {*BUDGETS, "schedule_progress"}:
        _warn_of_jumps(trainer, valid)
    kind = valid.maker.kind
    free = own_settings(kind) - capabilities_of(kind).fixed
    wanted = {name: getattr(valid.config.settings, name) for name in free & valid.changed}
    for learner in session.learners:  # also where a hook had changed them before
        if theirs := {name: value for name, value in wanted.items() if _differs(learner, name, value)}:
            learner.change(**theirs)
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
    """Whether an algorithm has another value of this setting; one that holds no settings may have any."""
    settings = settings_of(algorithm)
    return not hasattr(settings, name) or getattr(settings, name) != value


def _check_settings(algorithm: Algorithm) -> None:
    """Those that a hook has changed are part of its state, and have their types as those of a file do."""
    settings = settings_of(algorithm)
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        build(type(settings), as_plain(settings), "its settings")


def _with_schedules(objects: RunObjects, hooks: Sequence[Hook]) -> list[Hook]:
    return [*([Schedules(objects.schedules)] if objects.schedules else []), *hooks]


def _write_part(
    directory: RunDirectory, valid: ValidRun, session: Session, tensorboard: bool, without_replay: bool = False
) -> None:
    """What is known of a part of a run when it begins: settings, spaces, where it came from."""
    if valid.changes_config:
        directory.write_config(plain_config(valid.config))  # the next resume has them too
    if valid.ours:
        directory.write_origin()
    try:  # so that the policy can act without an env
        directory.write_spaces(described_groups(session.envs.views.layout, is_single(session.envs)))
    except InvalidRequest as error:  # no file can hold them
        log.info("to act with this run's policy its env will be needed: %s", error)
    weights = valid.weights and str(valid.weights.path.absolute())
    begun_from = weights or last_part(directory.path).get(BEGUN_FROM)
    part = {**provenance(valid.config.seed, session.envs.plan), BEGUN_FROM: begun_from}
    part |= {SCHEDULES: [*valid.objects.schedules], **({"without_replay": True} if without_replay else {})}
    directory.write_provenance(part)
    if tensorboard:
        directory.keep_for_tensorboard()
