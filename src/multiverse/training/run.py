"""`train`, `resume` and `load`: runs, as a program or the command line asks for them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import multiverse
from multiverse.contracts.errors import InvalidConfig, InvalidRequest
from multiverse.contracts.plan import Plan
from multiverse.training.checkpoint import Checkpoint, Checkpoints, differences, load_latest
from multiverse.training.checkpoint import load as load_checkpoint
from multiverse.training.config import TrainConfig
from multiverse.training.config_build import as_plain, build, nearest
from multiverse.training.config_file import read_config
from multiverse.training.evaluation import Evaluation, evaluate
from multiverse.training.hooks import Hook
from multiverse.training.known_agents import AGENTS, agent_maker
from multiverse.training.policy import LoadedPolicy
from multiverse.training.presets import PRESETS, preset_for
from multiverse.training.provenance import provenance
from multiverse.training.run_directory import CONFIG, RunDirectory, find_run
from multiverse.training.session import MakeAgent, Session
from multiverse.training.trainer import Trainer
from multiverse.vectorize import make_vec

log = logging.getLogger("multiverse")

BUDGETS = ("env_steps", "episodes", "minutes")
OnStart = Callable[[Trainer], None]


@dataclass(frozen=True)
class Run:
    """A run that has come to its end: where it lies, and how it went."""

    path: Path
    summary: dict[str, Any]


def train(
    env: Any,
    agent: str | MakeAgent = "ppo",
    *,
    run_dir: Path | str | None = None,
    root: Path | str = "runs",
    hooks: Sequence[Hook] = (),
    init_from: Path | str | None = None,
    preset: bool | str = True,
    **settings: Any,
) -> Run:
    """Train an agent: `run = mv.train("CartPole-v1", num_envs=8, env_steps=100_000, seed=1)`.

    Args:
        env: whatever `make_vec` takes.
        agent: its name, or what makes one of your own: `(observation_space, action_space, slots, seed) -> Agent`.
        run_dir: exactly where the run lies; by default a fresh directory `root/<env>/<agent>-<seed>-<time>`.
        hooks: `Hook`s that watch the run, stop it or change its settings.
        init_from: a run whose weights this one begins with.
        preset: whether to begin from the settings known to suit this env, or another env whose settings to begin from;
            what is given here goes before them.
        settings: fields of `TrainConfig` and of the agent's config: `num_envs=8`, `learning_rate=1e-3`.
    """
    config = config_for(env, agent, settings, preset)
    return start_run(config, env, run_dir, root, hooks, init_from, own_agent(agent))


def config_for(env: Any, agent: str | MakeAgent, settings: Mapping[str, Any], preset: bool | str = True) -> TrainConfig:
    """The whole config from a few settings; those of the agent may stand beside those of the run.

    A budget that is given takes the place of the preset's, in whatever unit that is.
    """
    if not isinstance(agent, str):  # the rest of its settings is its maker's own business
        return dataclasses.replace(_config_for(env, "ppo", settings, False, set()), agent=name_of(agent))  # type: ignore[arg-type]
    return _config_for(env, agent, settings, preset, {field.name for field in dataclasses.fields(TrainConfig().ppo)})


def _config_for(env: Any, agent: str, settings: Mapping[str, Any], preset: bool | str, theirs: set[str]) -> TrainConfig:
    name = env if isinstance(env, str) else name_of(env)
    known = _preset(name, agent, preset)
    if any(settings.get(unit) is not None for unit in BUDGETS):
        known = {key: value for key, value in known.items() if key not in BUDGETS}
    mine = {field.name for field in dataclasses.fields(TrainConfig)}
    merged: dict[str, Any] = {"env": name, "agent": agent, **{k: v for k, v in known.items() if k in mine}}
    agents: dict[str, Any] = {**{k: v for k, v in known.items() if k in theirs}, **dict(merged.pop("ppo", {}))}
    for key, value in settings.items():
        if key in ("ppo",):
            agents.update(value if isinstance(value, Mapping) else as_plain(value))
        elif key in mine:
            merged[key] = value
        elif key in theirs:
            agents[key] = value
        else:
            raise InvalidConfig(key, "there is no such setting", nearest(key, sorted(mine | theirs)))
    return build(TrainConfig, {**merged, "ppo": agents}, "config")


def _preset(env: str, agent: str, wanted: bool | str) -> dict[str, Any]:
    """The env's own if there is one, that of another env, which must be there, or none."""
    if isinstance(wanted, bool):
        return preset_for(env, agent) if wanted else {}
    known = [name for name, learner in PRESETS if learner == agent]
    if wanted not in known:
        raise InvalidConfig("preset", f"there is none for {wanted}", nearest(wanted, known))
    return preset_for(wanted, agent)


def start_run(
    config: TrainConfig,
    env: Any = None,
    run_dir: Path | str | None = None,
    root: Path | str = "runs",
    hooks: Sequence[Hook] = (),
    init_from: Path | str | None = None,
    agent: MakeAgent | None = None,
    on_start: OnStart | None = None,
) -> Run:
    """A new run of a whole config. `on_start` is called once it has its directory, before anything is learned."""
    begin_with = None if init_from is None else checkpoint_of(init_from)
    session = Session(config, config.env if env is None else env, agent_maker(config, agent))
    try:
        if begin_with is not None:
            session.agent.load(begin_with.state["session"]["agent"])
        with RunDirectory.create(root, env=config.env, agent=config.agent, seed=config.seed, run_dir=run_dir) as where:
            where.write_config(as_plain(config))
            where.write_provenance(provenance(config.seed, session.envs.plan))
            session.begin()
            return _trained(Trainer(config, session, where, hooks), on_start)
    finally:
        session.close()


def resume(
    run: Run | Path | str,
    *,
    env: Any = None,
    agent: MakeAgent | None = None,
    env_steps: int | None = None,
    episodes: int | None = None,
    minutes: float | None = None,
    hooks: Sequence[Hook] = (),
    on_start: OnStart | None = None,
) -> Run:
    """Go on with a run exactly where its last checkpoint was taken; a larger budget makes it longer.

    `env`, `agent`: for runs whose env or agent was a callable, which no file can hold.
    """
    with RunDirectory.open(_path(run)) as where:
        config = _config_of(where.read_config(), str(where.path / "config.yaml"), agent)
        more: dict[str, Any] = {"env_steps": env_steps, "episodes": episodes, "minutes": minutes}
        if any(value is not None for value in more.values()):
            config = dataclasses.replace(config, **{key: value for key, value in more.items() if value is not None})
            where.write_config(as_plain(config))  # the next resume has the new budget too
        found = Checkpoints(where.checkpoints).load_latest()
        if found is not None:
            _tell_differences(found, config)
        session = Session(config, _source(config, env), agent_maker(config, agent), _plan_of(found))
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


# -- policies ----------------------------------------------------------------------------------------------------
def load(
    run: Run | Path | str, *, env: Any = None, agent: MakeAgent | None = None, which: str = "latest"
) -> LoadedPolicy:
    """The policy of a run, to act with: `mv.load(run).act(observation)`. `which`: `"latest"` or `"best"`.

    `env`, `agent`: as for `resume`.
    """
    config, found = _config_and_checkpoint(run, which, agent)
    with make_vec(_source(config, env), 1, "serial", env_kwargs=config.env_kwargs or None) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
    loaded = agent_maker(config, agent)(*spaces, config.num_envs, config.seed)
    loaded.load(found.state["session"]["agent"])
    return LoadedPolicy(loaded, *spaces)


def evaluate_run(
    run: Run | Path | str,
    *,
    episodes: int = 100,
    seed: int = 0,
    which: str = "latest",
    env: Any = None,
    agent: MakeAgent | None = None,
) -> Evaluation:
    """How good a run's policy is: deterministic, on one env, on seeds no training sees."""
    config, _ = _config_and_checkpoint(run, which, agent)
    policy = load(run, env=env, agent=agent, which=which)
    kwargs = config.env_kwargs or None
    with make_vec(_source(config, env), 1, "serial", autoreset="disabled", infos=False, env_kwargs=kwargs) as one:
        found = evaluate(one, policy.acting, policy.features, episodes, seed)
    assert found is not None
    return found


def checkpoint_of(run: Run | Path | str, which: str = "latest") -> Checkpoint:
    """A run's latest good checkpoint, its best one, or the very one that the path names."""
    found = find_run(_path(run))
    if found.checkpoint is not None:
        return load_checkpoint(found.checkpoint)
    if which == "best":
        return load_checkpoint(found.path / "checkpoints" / "best")
    if which != "latest":
        raise InvalidRequest(f"which={which!r}: 'latest' or 'best'")
    latest = load_latest(found.path / "checkpoints")
    if latest is None:
        raise InvalidRequest(f"{found.path}: this run has no checkpoint yet")
    return latest


def _config_and_checkpoint(
    run: Run | Path | str, which: str, agent: MakeAgent | None = None
) -> tuple[TrainConfig, Checkpoint]:
    """The config is the run's own file: a checkpoint is data, and names nothing that would be imported."""
    where = find_run(_path(run)).path / CONFIG
    return _config_of(read_config(where), str(where), agent), checkpoint_of(run, which)


def _config_of(saved: Mapping[str, Any], where: str, agent: MakeAgent | None) -> TrainConfig:
    """A run's config as it was saved; of an agent of one's own only the name could be."""
    name = saved.get("agent")
    if agent is None or name in AGENTS:
        if isinstance(name, str) and name not in AGENTS:
            raise InvalidRequest(
                f"{where}: the agent of this run is {name}, one of your own: pass it again, agent={name}"
            )
        return build(TrainConfig, saved, where)
    config = build(TrainConfig, {**saved, "agent": AGENTS[0]}, where)
    return dataclasses.replace(config, agent=name)  # type: ignore[arg-type]


def _tell_differences(found: Checkpoint, config: TrainConfig) -> None:
    """Whoever goes on with other settings, or another version, is told: it is no longer quite the same run."""
    before = {**found.manifest, "config": {**found.manifest.get("config", {}), **dict.fromkeys(BUDGETS)}}
    now = {"multiverse": multiverse.__version__, "config": {**as_plain(config), **dict.fromkeys(BUDGETS)}}
    for line in differences(before, now):
        log.warning("%s: %s", found.path.name, line)


# -- small things ------------------------------------------------------------------------------------------------
def name_of(env: Any) -> str:
    """What to call an env that is no string."""
    return str(getattr(env, "__qualname__", None) or getattr(env, "__name__", None) or type(env).__name__)


def own_agent(agent: str | MakeAgent) -> MakeAgent | None:
    """The maker, if this is not the name of a known agent."""
    return None if isinstance(agent, str) else agent


def _path(run: Run | Path | str) -> Path:
    return run.path if isinstance(run, Run) else Path(run)


def _source(config: TrainConfig, env: Any) -> Any:
    return config.env if env is None else env


def _plan_of(found: Checkpoint | None) -> Plan | None:
    """How the run's envs ran: a run goes on as it began, whatever a stopwatch would say today."""
    return None if found is None else Plan(**found.state["plan"])
