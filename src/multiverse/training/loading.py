"""Policies of runs: to act with, and to be evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import gymnasium

from multiverse.contracts.errors import InvalidRequest
from multiverse.training.config.build import takes_old_names
from multiverse.training.config.files import read_config
from multiverse.training.config.resolve import saved_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.evaluation import Evaluation, evaluate
from multiverse.training.policy import LoadedPolicy
from multiverse.training.session import MakeAlgorithm, algorithm_maker
from multiverse.training.storage.checkpoint import Checkpoint, load_latest
from multiverse.training.storage.checkpoint import load as load_checkpoint
from multiverse.training.storage.run_directory import CONFIG, find_run
from multiverse.vector.make import make_vec


class HasPath(Protocol):
    """A run that has come to its end knows where it lies."""

    @property
    def path(self) -> Path: ...


RunPath = HasPath | Path | str


@takes_old_names
def load(
    run: RunPath,
    *,
    env: Any = None,
    algorithm: MakeAlgorithm | None = None,
    which: str = "latest",
    env_kwargs: Mapping[str, Any] | None = None,
) -> LoadedPolicy:
    """The policy of a run, to act with: `mv.load(run).act(observation)`. `which`: `"latest"` or `"best"`.

    `env`, `algorithm`, `env_kwargs`: as for `resume`.
    """
    config, found = _config_and_checkpoint(run, which, algorithm, env_kwargs)
    with make_vec(source_of(config, env), 1, "serial", env_kwargs=config.env_kwargs or None) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
    loaded = algorithm_maker(config, algorithm)(*spaces, config.num_envs, config.seed)
    loaded.load_weights(found.state["session"]["algorithm"]["weights"])
    loaded.load(found.state["session"]["algorithm"]["state"])
    return LoadedPolicy(loaded, *spaces)


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
) -> Evaluation:
    """How good a run's policy is: deterministic, on one env, on seeds no training sees."""
    config, _ = _config_and_checkpoint(run, which, algorithm, env_kwargs)
    policy = load(run, env=env, algorithm=algorithm, which=which, env_kwargs=env_kwargs)
    kwargs = config.env_kwargs or None
    with make_vec(source_of(config, env), 1, "serial", autoreset="disabled", infos=False, env_kwargs=kwargs) as one:
        found = evaluate(one, policy.acting, policy.features, episodes, seed)
    assert found is not None
    return found


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
        raise InvalidRequest(f"{found.path}: this run has no checkpoint yet")
    return latest


def _config_and_checkpoint(
    run: RunPath, which: str, algorithm: MakeAlgorithm | None, env_kwargs: Mapping[str, Any] | None
) -> tuple[TrainConfig, Checkpoint]:
    """The config is the run's own file: a checkpoint is data, and names nothing that would be imported."""
    where = find_run(path_of(run)).path / CONFIG
    # guard: the-config-is-the-runs-own
    return saved_config(read_config(where), str(where), algorithm, env_kwargs), checkpoint_of(run, which)


def path_of(run: RunPath) -> Path:
    """Where a run lies."""
    return Path(run) if isinstance(run, str | Path) else run.path


def source_of(config: TrainConfig, env: Any) -> Any:
    """The env that was given, or the one that the config names, if it names one that can be found."""
    if env is not None:
        return env
    if ":" not in config.env and config.env not in gymnasium.registry:
        raise InvalidRequest(f"the env of this run, {config.env}, is none of Gymnasium's: pass it again, env=…")
    return config.env
