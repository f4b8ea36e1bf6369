"""Policies of runs: to act with, and to be evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import gymnasium

from multiverse.adapters.env_source import BUILT_IN, Wrapper
from multiverse.contracts.errors import CheckpointBroken, InvalidRequest, in_a_line, in_words
from multiverse.contracts.seeds import checked_run_seed
from multiverse.experience.numpy_policies import loaded_policy
from multiverse.training.algorithm_maker import MakeAlgorithm, algorithm_maker
from multiverse.training.config.build import in_todays_names, takes_old_names
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import TrainConfig, saved_config
from multiverse.training.evaluation import Evaluation, evaluate
from multiverse.training.policy import LoadedPolicy
from multiverse.training.space_description import space_from
from multiverse.training.storage.checkpoint import load as load_checkpoint
from multiverse.training.storage.checkpoint import load_latest, taken_over
from multiverse.training.storage.checkpoint_format import Checkpoint
from multiverse.training.storage.origin import check_trusted
from multiverse.training.storage.run_directory import (
    CONFIG,
    NEW_SPACES,
    SPACES,
    find_run,
    had_checkpoint,
    read_mark,
    read_spaces,
)
from multiverse.vector.make import make_vec


class HasPath(Protocol):
    """A run that has come to its end knows where it lies."""

    @property
    def path(self) -> Path: ...


RunPath = HasPath | Path | str


Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
"""Of observations and of actions."""


@takes_old_names
def load(
    run: RunPath,
    *,
    env: Any = None,
    algorithm: MakeAlgorithm | None = None,
    which: str = "latest",
    env_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> LoadedPolicy:
    """The policy of a run, to act with: `mv.load(run).act(observation)`. `which`: `"latest"` or `"best"`.

    Neither needs nor builds its env, and runs no code that the run names. `algorithm`: as for `resume`. `env`,
    `env_kwargs`, `trust`: for runs of 0.1, which do not say what their policies see and do.
    """
    where, found = find_run(path_of(run)).path, checkpoint_of(run, which)
    spaces = None if env is not None else saved_spaces(where)
    if spaces is not None:
        saved = _saved(where)
        if algorithm is None and (held := _held(saved, spaces, found)) is not None:
            return held
        config = saved_config(saved, str(where / CONFIG), algorithm, needs_env=False)
        return _policy(config, algorithm, spaces, found)
    config = trusted_config(where, env, algorithm, env_kwargs, trust)
    with make_vec(source_of(config, env), 1, "serial", env_kwargs=config.env_kwargs or None) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
    return _policy(config, algorithm, spaces, found)


@takes_old_names
def evaluate_run(
    run: RunPath,
    *,
    episodes: int = 100,
    seed: int = 0,
    which: str = "latest",
    env: Any = None,
    algorithm: MakeAlgorithm | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
    watch: Wrapper | None = None,
) -> Evaluation:
    """How good a run's policy is: deterministic, on seeds no training sees. `trust`: as for `resume`. `watch` wraps the
    env, of which there is only one then, in this process."""
    checked_run_seed("seed", seed)
    found = checkpoint_of(run, which)
    config = trusted_config(find_run(path_of(run)).path, env, algorithm, env_kwargs, trust)
    count = 1 if watch else dataclasses.replace(config, evaluation_episodes=episodes).num_evaluation_envs
    how: dict[str, Any] = {"workers": config.workers, "start_method": config.start_method} if count > 1 else {}
    how |= {"env_kwargs": config.env_kwargs or None, "autoreset": "disabled", "infos": False, "copy": False}
    how |= {"wrappers": [watch]} if watch else {}
    with make_vec(source_of(config, env), count, config.executor if count > 1 else "serial", **how) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
        held = None if algorithm is not None else _held(vars(config), spaces, found)
        policy = held or _policy(config, algorithm, spaces, found)
        evaluation = evaluate(envs, policy.acting, policy.features, episodes, seed)
    assert evaluation is not None
    return evaluation


def _held(saved: Mapping[str, Any], spaces: Spaces, found: Checkpoint) -> LoadedPolicy | None:
    """The policy that the run itself holds: nothing of its algorithm is needed. None if it holds none."""
    with taken_over(found):
        policy = found.state["session"].get("policy")
        return None if policy is None else LoadedPolicy(loaded_policy(policy, *spaces), *spaces, _told(saved, found))


def _policy(config: TrainConfig, algorithm: MakeAlgorithm | None, spaces: Spaces, found: Checkpoint) -> LoadedPolicy:
    with taken_over(found):
        loaded = algorithm_maker(config, algorithm)(*spaces, config.num_envs, config.seed)
        loaded.load_weights(found.state["session"]["algorithm"]["weights"])
        loaded.load(found.state["session"]["algorithm"]["state"])
        return LoadedPolicy(loaded.policy(), *spaces, _told(vars(config), found))


def _told(saved: Mapping[str, Any], found: Checkpoint) -> str:
    return f"{saved.get('algorithm')} for {saved.get('env')} after {found.manifest.get('env_steps')} env steps"


def saved_spaces(run: Path) -> Spaces | None:
    """What the policy of a run sees and does, as the run itself says; None if it does not."""
    if (said := read_spaces(run)) is None:
        return None
    try:
        return space_from(said["observation"]), space_from(said["action"])
    except (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, RecursionError) as error:
        wrong = f"it describes no spaces ({in_a_line(error)})"
        raise InvalidRequest(f"{run / SPACES} cannot be used: {wrong}. {NEW_SPACES}") from None


def checkpoint_of(run: RunPath, which: str = "latest") -> Checkpoint:
    """A run's latest good checkpoint, its best one, or the very one that the path names."""
    found = find_run(path_of(run))
    if found.checkpoint is not None:
        return load_checkpoint(found.checkpoint)
    if which == "best":
        return load_checkpoint(found.path / "checkpoints" / "best")
    if which != "latest":
        raise InvalidRequest(f"which={which!r}: 'latest' or 'best'")
    latest = load_latest(found.path / "checkpoints")
    if latest is None:
        raise InvalidRequest(
            f"{found.path}: this run has no checkpoint {'any more' if had_checkpoint(found.path) else 'yet'}"
        )
    return latest


def env_of(run: RunPath) -> str:
    """What the config of a run calls its env."""
    return str(_saved(find_run(path_of(run)).path).get("env"))


def steps_of(found: Checkpoint) -> int:
    """Env steps of the run when a checkpoint was taken, as its manifest says."""
    steps = found.manifest.get("env_steps")
    if type(steps) is not int or steps < 0:
        raise CheckpointBroken(found.path, f"its manifest has {in_words(steps)} env steps")
    return steps


def trusted_config(
    run: Path, env: Any, algorithm: MakeAlgorithm | None, env_kwargs: Mapping[str, Any] | None, trust: bool
) -> TrainConfig:
    """The config of a run whose env is about to be made; `UntrustedRun` if that would call a stranger's code."""
    saved = _saved(run)
    if env is None:  # else it is the caller's own, whatever the run says
        check_trusted(saved, read_mark(run), run, trust)
    return saved_config(saved, str(run / CONFIG), algorithm, env_kwargs)


def _saved(run: Path) -> dict[str, Any]:
    """The config is the run's own file: a checkpoint is data, and names nothing that would be imported."""
    # guard: the-config-is-the-runs-own
    return in_todays_names(read_config(run / CONFIG))


def path_of(run: RunPath) -> Path:
    """Where a run lies."""
    return Path(run) if isinstance(run, str | Path) else run.path


def source_of(config: TrainConfig, env: Any) -> Any:
    """The env that was given, or the one that the config names, if it names one that can be found."""
    if env is not None:
        return env
    if ":" not in config.env and config.env not in BUILT_IN and config.env not in gymnasium.registry:
        raise InvalidRequest(f"the env of this run, {config.env}, is none of Gymnasium's: pass it again, env=…")
    return config.env
