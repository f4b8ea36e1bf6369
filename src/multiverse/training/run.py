"""`train` and `resume`: runs, as a program or the command line asks for them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import multiverse
from multiverse.contracts.plan import Plan
from multiverse.training.config.build import takes_old_names
from multiverse.training.config.resolve import BUDGETS, config_for, plain_config, saved_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.hooks import Hook
from multiverse.training.loading import RunPath, checkpoint_of, path_of, source_of
from multiverse.training.session import MakeAlgorithm, Session, algorithm_maker
from multiverse.training.storage.checkpoint import Checkpoint, Checkpoints, differences
from multiverse.training.storage.provenance import provenance
from multiverse.training.storage.run_directory import CONFIG, RunDirectory
from multiverse.training.trainer import Trainer

log = logging.getLogger("multiverse")

OnStart = Callable[[Trainer], None]


@dataclass(frozen=True)
class Run:
    """A run that has come to its end: where it lies, and how it went."""

    path: Path
    summary: dict[str, Any]


@takes_old_names
def train(
    env: Any,
    algorithm: str | MakeAlgorithm = "ppo",
    *,
    run_dir: Path | str | None = None,
    root: Path | str = "runs",
    hooks: Sequence[Hook] = (),
    init_from: Path | str | None = None,
    preset: bool | str = True,
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
        settings: fields of `TrainConfig` and of the algorithm's config: `num_envs=8`, `learning_rate=1e-3`.
    """
    config = config_for(env, algorithm, settings, preset)
    return start_run(config, env, run_dir, root, hooks, init_from, None if isinstance(algorithm, str) else algorithm)


def start_run(
    config: TrainConfig,
    env: Any = None,
    run_dir: Path | str | None = None,
    root: Path | str = "runs",
    hooks: Sequence[Hook] = (),
    init_from: Path | str | None = None,
    algorithm: MakeAlgorithm | None = None,
    on_start: OnStart | None = None,
) -> Run:
    """A new run of a whole config. `on_start` is called once it has its directory, before anything is learned."""
    begun_from = None if init_from is None else checkpoint_of(init_from)
    session = Session(config, config.env if env is None else env, algorithm_maker(config, algorithm))
    try:
        if begun_from is not None:
            session.algorithm.load_weights(begun_from.state["session"]["algorithm"]["weights"])
        with RunDirectory.create(
            root, env=config.env, algorithm=config.algorithm.rpartition(":")[2], seed=config.seed, run_dir=run_dir
        ) as where:
            where.write_config(plain_config(config))
            where.write_provenance(provenance(config.seed, session.envs.plan))
            session.begin()
            return _trained(Trainer(config, session, where, hooks), on_start)
    finally:
        session.close()


@takes_old_names
def resume(
    run: RunPath,
    *,
    env: Any = None,
    algorithm: MakeAlgorithm | None = None,
    env_steps: int | None = None,
    episodes: int | None = None,
    minutes: float | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook] = (),
    on_start: OnStart | None = None,
) -> Run:
    """Go on with a run exactly where its last checkpoint was taken; a larger budget makes it longer.

    `env`, `algorithm`, `env_kwargs`: for runs whose env or algorithm was a callable, or whose env got a secret: no
    file holds those.
    """
    with RunDirectory.open(path_of(run)) as where:
        config = saved_config(where.read_config(), str(where.path / CONFIG), algorithm, env_kwargs)
        more: dict[str, Any] = {"env_steps": env_steps, "episodes": episodes, "minutes": minutes}
        if any(value is not None for value in more.values()):
            config = dataclasses.replace(config, **{key: value for key, value in more.items() if value is not None})
            where.write_config(plain_config(config))  # the next resume has the new budget too
        found = Checkpoints(where.checkpoints).load_latest()
        if found is not None:
            _tell_differences(found, config)  # guard: differences-are-told
        session = Session(config, source_of(config, env), algorithm_maker(config, algorithm), _plan_of(found))
        try:
            trainer = Trainer(config, session, where, hooks)
            if found is None:
                where.cut_back({})
                session.begin()
            else:
                trainer.load(found.state)
            where.write_provenance(provenance(config.seed, session.envs.plan))
            return _trained(trainer, on_start)
        finally:
            session.close()


def _trained(trainer: Trainer, on_start: OnStart | None) -> Run:
    if on_start is not None:
        on_start(trainer)
    summary = trainer.run()
    return Run(trainer.directory.path, summary)


def _tell_differences(found: Checkpoint, config: TrainConfig) -> None:
    """Whoever goes on with other settings, or another version, is told: it is no longer quite the same run."""
    before = {**found.manifest, "config": {**found.manifest.get("config", {}), **dict.fromkeys(BUDGETS)}}
    now = {"multiverse": multiverse.__version__, "config": {**plain_config(config), **dict.fromkeys(BUDGETS)}}
    for line in differences(before, now):
        log.warning("%s: %s", found.path.name, line)


def _plan_of(found: Checkpoint | None) -> Plan | None:
    """How the run's envs ran: a run goes on as it began, whatever a stopwatch would say today."""
    return None if found is None else Plan(**found.state["plan"])
