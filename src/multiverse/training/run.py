"""`train` and `resume`: runs, as a program or the command line asks for them."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import multiverse
from multiverse.adapters.env_source import Wrapper, wrapped
from multiverse.algorithms import DEFAULT_ALGORITHM, algorithm_class
from multiverse.algorithms.algorithm import Algorithm
from multiverse.algorithms.capabilities import capabilities_of, settings_of
from multiverse.core.env import MaskSource
from multiverse.core.errors import CheckpointBroken, InvalidRequest, PreflightError
from multiverse.core.imports import refuse_in_import, without_folders
from multiverse.core.plan import Plan
from multiverse.networks import checked_network, network_name
from multiverse.rollouts.slots import is_single
from multiverse.training.algorithm_maker import MakeAlgorithm, algorithm_maker
from multiverse.training.config.budget import Clock
from multiverse.training.config.build import as_plain, build, takes_old_names
from multiverse.training.config.changes import (
    HOLD,
    Schedule,
    changed_config,
    edited_settings,
    in_our_names,
    last_progress,
    refuse_kept,
    schedule_jumps,
    without_schedules,
)
from multiverse.training.config.train_config import (
    BUDGETS,
    TrainConfig,
    config_for,
    own_settings,
    plain_config,
    wrapper_name,
)
from multiverse.training.events import Sinks
from multiverse.training.hooks import Hook, Schedules
from multiverse.training.loading import checkpoint_of, num_envs_in, scales_bytes, steps_of
from multiverse.training.progress import (
    InterruptWarning,
    ProgressLines,
    ResumeCommand,
    printer_for_programs,
    run_with_sinks,
)
from multiverse.training.run_sources import (
    RunPath,
    as_name,
    at_hand,
    config_with_folders,
    given_again,
    may_be_marked,
    object_of,
    objects_among,
    opponent_name,
    path_of,
    saved_settings,
    source_of,
    trusted_config,
    wrappers_of,
)
from multiverse.training.run_text import evaluated
from multiverse.training.runs.checkpoint import Checkpoints, taken_over
from multiverse.training.runs.checkpoint import load as load_checkpoint
from multiverse.training.runs.checkpoint_format import Checkpoint, differences
from multiverse.training.runs.find_runs import find_run, find_set
from multiverse.training.runs.metric_sinks import check_tensorboard
from multiverse.training.runs.origin import blas, provenance, redacted
from multiverse.training.runs.records import RunRecord
from multiverse.training.runs.run_directory import RunDirectory, had_checkpoint, read_summary
from multiverse.training.session import Session
from multiverse.training.session_envs import WHERE, saved_masks, warn_of_a_long_rollout
from multiverse.training.space_description import described
from multiverse.training.trainer import Trainer

log = logging.getLogger("multiverse")

SCHEDULES, BEGUN_FROM = "schedules", "begun_from"
"""Of a part of a run, in its provenance: settings that were functions; the checkpoint whose weights it began with."""


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
    opponent = settings.get("evaluation_opponent")
    opponent = None if isinstance(opponent, str) else opponent  # else the config holds it
    if opponent is not None:
        settings["evaluation_opponent"] = opponent_name(opponent)
    given, schedules = without_schedules(in_our_names(settings), kind)
    network = given.get("network")
    network = None if isinstance(network, str) else network  # else the config holds it
    if network is not None:
        given["network"] = network_name(checked_network(network))
    if wrappers:
        given["wrappers"] = [one if isinstance(one, str) else wrapper_name(one) for one in wrappers]
    config = config_for(env, algorithm, given, preset)
    own: dict[str, Any] = {"env": env, "wrappers": wrappers or None, "schedules": schedules, "opponent": opponent}
    own |= {"algorithm": None if isinstance(algorithm, str) else algorithm, "network": network}
    if seeds != 1:
        from multiverse.training import seed_runs

        begun_from = None if init_from is None else str(path_of(init_from).absolute())
        path = seed_runs.new_set(config, seeds, run_dir, root, init_from=begun_from, tensorboard=tensorboard)
        return seed_runs.run_in_program(path, config, {}, hooks, progress, **own)
    begin = functools.partial(
        start_run, config, run_dir=run_dir, root=root, init_from=init_from, tensorboard=tensorboard, **own
    )
    return watched(begin, hooks, progress, given_again(**own))


def watched(begin: Callable[..., Run], own: Sequence[Hook], progress: bool, again: str = "") -> Run:
    """Begin a run (`begin(hooks=…, sinks=…)`) from a program, with these hooks, and show how it goes or not. `again`:
    as of `given_again`."""
    sink = ProgressLines(printer_for_programs(), commands=False) if progress else InterruptWarning()
    return run_with_sinks(functools.partial(begin, hooks=own), [sink], ResumeCommand(in_python=True, arguments=again))


def start_run(
    config: TrainConfig,
    env: Any = None,
    run_dir: Path | str | None = None,
    root: Path | str = "runs",
    hooks: Sequence[Hook] = (),
    init_from: Path | str | None = None,
    algorithm: MakeAlgorithm | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    tensorboard: bool = False,
    opponent: Any = None,
    ours: bool = True,
    network: Any = None,
    sinks: Sinks | None = None,
) -> Run:
    """A new run of a whole config. `wrappers`: those that it names, if they are at hand; `opponent`: of its
    evaluations, where it is no name that a config holds; `ours`: whether the config is nobody else's; `network`: the
    class that it names, where the caller has it."""
    if tensorboard:
        check_tensorboard()
    begun_from = None if init_from is None else checkpoint_of(init_from)
    if config.evaluation_opponent is not None and Path(config.evaluation_opponent).exists():
        absolute = str(Path(config.evaluation_opponent).absolute())  # it is asked for again, from wherever
        config = dataclasses.replace(config, evaluation_opponent=absolute)
    name = without_folders(config.env)
    config = config_with_folders(config)
    source = wrapped(config.env if env is None else env, wrappers_of(config, wrappers))
    maker = algorithm_maker(config, algorithm, scales_bytes(begun_from), network)
    session = Session(config, source, maker, opponent=opponent)
    try:
        warn_of_a_long_rollout(config, session.envs.num_envs, next(iter(session.learners)).steps_per_env)
        _begin_with(begun_from, session)
        with RunDirectory.create(
            root, env=name, algorithm=config.algorithm.rpartition(":")[2], seed=config.seed, run_dir=run_dir
        ) as where:
            where.write_config(plain_config(config))
            if ours:
                where.write_origin()
            _write_spaces(where, session)
            begun = {BEGUN_FROM: begun_from and str(begun_from.path.absolute()), SCHEDULES: [*(schedules or ())]}
            where.write_provenance({**provenance(config.seed, session.envs.plan), **begun})
            if tensorboard:
                where.keep_for_tensorboard()
            session.begin()
            summary = Trainer(config, session, where, _with(schedules, hooks), sinks).run()
            objects = objects_among(env=env, algorithm=algorithm, wrappers=wrappers, network=network)
            return Run(where.path, summary, objects=objects)
    finally:
        session.close()


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
    from multiverse.training import seed_runs

    refuse_in_import("trains")
    settings |= {HOLD: True} if hold_schedules else {}
    env, algorithm, wrappers, network = at_hand(run, env=env, algorithm=algorithm, wrappers=wrappers, network=network)
    if (path := find_set(path_of(run))) is not None:
        if env_kwargs is not None or tensorboard or without_replay:
            raise InvalidRequest(
                "env_kwargs, tensorboard and without_replay apply to one run: resume each of these separately"
            )
        config, given, schedules = seed_runs.set_config(path, in_our_names(settings), trust, env, algorithm, network)
        maker, named = as_name(algorithm)
        own = {"env": env, "algorithm": maker, "wrappers": wrappers, "schedules": schedules, "network": network}
        own["opponent"] = evaluation_opponent
        return seed_runs.run_in_program(path, config, given, hooks, progress, trust, named, **own)
    how: dict[str, Any] = {"env": env, "algorithm": algorithm, "env_kwargs": env_kwargs, "wrappers": wrappers}
    how |= {"opponent": evaluation_opponent, "network": network}
    again = given_again(**how)
    how |= {"trust": trust, "tensorboard": tensorboard, "without_replay": without_replay}
    return watched(functools.partial(resume_run, run, in_our_names(settings), **how), hooks, progress, again)


def resume_run(
    run: RunPath,
    settings: Mapping[str, Any],
    *,
    env: Any = None,
    algorithm: MakeAlgorithm | str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    hooks: Sequence[Hook] = (),
    trust: bool = False,
    tensorboard: bool = False,
    opponent: Any = None,
    without_replay: bool = False,
    network: Any = None,
    sinks: Sinks | None = None,
) -> Run:
    """As `resume`; `settings` go before those of the run, `opponent` is its `evaluation_opponent`."""
    if tensorboard:
        check_tensorboard()
    named = find_run(path_of(run))
    with RunDirectory.open(named.path) as where:
        maker, name = as_name(algorithm)
        config = trusted_config(
            where.path, env, maker, env_kwargs, trust, wrappers, named=name, given=settings, network=network
        )
        before = saved_settings(where.path)
        named_before = before.get("algorithm", DEFAULT_ALGORITHM), before.get("network")
        moved = (config.algorithm, config.network) != named_before
        kind = maker or algorithm_class(config.algorithm)
        given, schedules = without_schedules(settings, kind)
        _refuse_lost_schedules(where, given)
        hold = bool(given.pop(HOLD, False))
        config = changed_config(config, given, kind)
        found = _checkpoint_to_go_on_from(where, named.checkpoint, with_tables=not without_replay)
        if hold and found is not None:
            config = dataclasses.replace(config, schedule_progress=last_progress(*_as_saved(found)))
        _refuse_less_than_spent(given.get("env_steps"), found)
        source = source_of(config, env, wrappers)
        if found is not None:
            _tell_differences(found, config)  # guard: differences-are-told
        plan, num_envs, masks = _envs_of(found, config)
        edited = set() if found is None else edited_settings(_saved_config_in(found), redacted(plain_config(config)))
        refuse_kept(edited & {"num_envs", "seed"})  # others may have moved, or be new in this version
        if (given.keys() | edited) & {*WHERE, "asynchronous"}:  # guard: an-edited-executor-is-used
            plan = None
        begun_from = where.last_part().get(BEGUN_FROM)
        weights = None if found is not None or begun_from is None else checkpoint_of(str(begun_from))
        make = algorithm_maker(config, maker, scales_bytes(found or weights), object_of(network))
        session = Session(config, source, make, plan, num_envs, opponent, masks)
        try:
            trainer = Trainer(config, session, where, _with(schedules, hooks), sinks)
            if found is None:
                where.cut_back({})
                _begin_with(weights, session)
                session.begin()
            else:
                if without_replay:
                    log.warning("%s: its replay buffer is left out and begins empty: not bit-exact", found.path.name)
                with taken_over(found):
                    trainer.load(found.state, without_replay)
                    for learner in session.learners:
                        _check_settings(learner)
                if (given.keys() | edited) & {*BUDGETS, "schedule_progress"}:
                    _warn_of_jumps(trainer, schedules, found)
                free = own_settings(kind) - capabilities_of(kind).fixed
                # guard: an-edited-setting-is-used
                wanted = {name: getattr(config.settings, name) for name in free & (given.keys() | edited)}
                for learner in session.learners:  # also where a hook had changed them before
                    if theirs := {name: value for name, value in wanted.items() if _differs(learner, name, value)}:
                        learner.change(**theirs)
                if named.checkpoint is not None:
                    Checkpoints(where.checkpoints).go_back(trainer.clock.env_steps)
            ours = may_be_marked(where.path, env, maker, network)
            if given or moved or hold:
                where.write_config(plain_config(config))  # the next resume has them too
            if ours:
                where.write_origin()
            _write_spaces(where, session)
            begun = {BEGUN_FROM: begun_from, SCHEDULES: [*schedules]}
            begun |= {"without_replay": True} if without_replay else {}
            where.write_provenance({**provenance(config.seed, session.envs.plan), **begun})
            if tensorboard:
                where.keep_for_tensorboard()
            objects = objects_among(env=env, algorithm=maker, wrappers=wrappers, network=network)
            return Run(where.path, trainer.run(), objects=objects)
        finally:
            session.close()


def _checkpoint_to_go_on_from(where: RunDirectory, named: Path | None, with_tables: bool) -> Checkpoint | None:
    """The latest, or the one that was named; None if this run never had any. To have lost them all is an error."""
    checkpoints = Checkpoints(where.checkpoints)
    if named is not None:
        found = load_checkpoint(named)
        if later := [path.name for path in checkpoints.after(steps_of(found))]:
            log.warning(
                "going on from %s: what came after it is removed (%s), its metrics and episodes too",
                named,
                ", ".join(later),
            )
        return found
    latest = checkpoints.load_latest(with_tables)
    if latest is None:
        if had_checkpoint(where.path):  # guard: lost-checkpoints-are-no-fresh-start
            raise CheckpointBroken(
                where.checkpoints, "none of those that this run had is left", _ANEW.format(where.path)
            )
        log.warning("%s was ended before its first checkpoint: it begins anew", where.path)
    return latest


_ANEW = "Restore one from a copy, or begin another run with its settings: `multiverse train --config {}/config.yaml`"


def _write_spaces(where: RunDirectory, session: Session) -> None:
    """So that the policy can act without an env; of spaces that no file can hold there is none."""
    try:
        groups = [
            {
                "group": group.name,
                "agents": list(group.agents),
                "observation": described(group.observation_space),
                "action": described(group.action_space),
            }
            for group in session.envs.views.layout.groups
        ]
        only = {name: groups[0][name] for name in ("observation", "action")}
        state_space = session.envs.views.layout.state_space
        state = {} if state_space is None else {"state": described(state_space)}
        where.write_spaces(only if is_single(session.envs) else {"groups": groups, **state})
    except InvalidRequest as error:
        log.info("to act with this run's policy its env will be needed: %s", error)


def _begin_with(weights: Checkpoint | None, session: Session) -> None:
    if weights is not None:
        with taken_over(weights):
            session.learners.load_weights(weights.state["session"])


def _with(schedules: Mapping[str, Schedule] | None, hooks: Sequence[Hook]) -> list[Hook]:
    return [*([Schedules(schedules)] if schedules else []), *hooks]


def _refuse_lost_schedules(where: RunDirectory, given: Mapping[str, Any]) -> None:
    """No file holds a function: to go on without it would be another run."""
    if lost := [name for name in where.last_part().get(SCHEDULES) or () if name not in given]:
        raise InvalidRequest(
            f"{lost[0]} of this run was a function of a program: pass it again, {lost[0]}=…, or a number to go on with"
        )


def _refuse_less_than_spent(env_steps: int | None, found: Checkpoint | None) -> None:
    """A smaller budget makes no run shorter. Episodes are not asked: programs go on in stretches of them, and a stretch
    that the rollout before it has covered already is no mistake."""
    clock = {} if found is None else found.manifest.get("clock")
    spent = clock.get("env_steps") if isinstance(clock, dict) else None
    if env_steps is not None and isinstance(spent, int) and env_steps < spent:
        raise InvalidRequest(
            f"env_steps={env_steps:,}: the run has had {spent:,} already; a larger one makes it longer"
        )


def _tell_differences(found: Checkpoint, config: TrainConfig) -> None:
    """Whoever goes on with other settings, another version, or on another CPU, is told: it is no longer quite the same
    run."""
    before = {**found.manifest, "config": {**_saved_config_in(found), **dict.fromkeys(BUDGETS)}}
    # guard: no-difference-tells-a-secret
    settings = {**redacted(plain_config(config)), **dict.fromkeys(BUDGETS)}
    for line in differences(before, {"multiverse": multiverse.__version__, "blas": blas(), "config": settings}):
        log.warning("%s: %s", found.path.name, line)


def _saved_config_in(found: Checkpoint) -> dict[str, Any]:
    """Return the run's config as it was when this checkpoint was taken."""
    saved = found.manifest.get("config")
    return saved if isinstance(saved, dict) else {}


def _as_saved(found: Checkpoint) -> tuple[dict[str, Any], Clock]:
    """The settings and the clock that a run had at this checkpoint."""
    with taken_over(found):
        return _saved_config_in(found), build(Clock, found.state["clock"], "its clock")


def _warn_of_jumps(trainer: Trainer, schedules: Mapping[str, Schedule], found: Checkpoint) -> None:
    learner = next(iter(trainer.session.learners))
    if jumps := schedule_jumps(learner, schedules, *_as_saved(found), trainer.schedule_progress):
        # guard: jumps-of-schedules-are-reported
        log.warning(
            "%s: schedules follow the budget, which has changed. %s=True (--hold-schedules) keeps the last values",
            jumps,
            HOLD,
        )


def _envs_of(found: Checkpoint | None, config: TrainConfig) -> tuple[Plan | None, int | None, MaskSource | None]:
    """The plan of the run's envs, their number, and the source of their action masks: a resumed run keeps all three,
    whatever a stopwatch would say today."""
    if found is None:
        return None, None, "method"
    with taken_over(found):
        plan = build(Plan, found.state["plan"], "its plan")
        if plan.ray is not None:  # a checkpoint is data: only the config, which is trusted, names a cluster
            address = config.ray_address  # guard: a-checkpoint-names-no-cluster
            plan = dataclasses.replace(plan, ray=dataclasses.replace(plan.ray, address=address))
        return plan, num_envs_in(found.state, config), saved_masks(found.state["session"])


def _differs(algorithm: Algorithm, name: str, value: Any) -> bool:
    """Whether an algorithm has another value of this setting; one that holds no settings may have any."""
    settings = settings_of(algorithm)
    return not hasattr(settings, name) or getattr(settings, name) != value


def _check_settings(algorithm: Algorithm) -> None:
    """Those that a hook has changed are part of its state, and have their types as those of a file do."""
    settings = settings_of(algorithm)
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        build(type(settings), as_plain(settings), "its settings")
