"""The document's config file, `configs/boxjump.yaml`: its keys, with what they may be. Unknown ones are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import multiverse as mv
from multiverse.training.config.build import build
from multiverse.training.config.files import read_config

NAMES = {
    "boxjump": "BoxJump-v0",
    "boxjump_v1": "BoxJump-v1",
    "simple_spread": "mpe2.simple_spread_v3:parallel_env",
}
"""The document's names of envs, and ours. Whatever else `mv.make_vec` takes will do too."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    """What is played."""

    name: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    apply_wrappers: bool = False
    """There are none to apply: observations need no preparing here. Kept for files that have it."""

    @property
    def source(self) -> str:
        """What `mv.make_vec` takes."""
        return NAMES.get(self.name, self.name)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What learns."""

    num_heads: int = 2
    embedding_dim: int = 64
    hidden_size: int = 128
    model_name: str = "boxjump"
    """The folder of its weights, in `models_dir`."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How it learns."""

    episodes: int = 100
    max_steps_per_episode: int | None = None
    """Steps of every env between two updates: an episode, if it is as long as one."""
    gamma: float = 0.995
    learning_rate: float = 5e-4
    epsilon_clip: float = 0.2
    K_epochs: int = 10
    c_entropy: float = 0.05
    max_grad_norm: float = 20.0
    c_value: float = 0.5
    lam: float = 0.97
    batch_size: int = 128
    min_learning_rate: float = 1e-4
    similarity_loss_coef: float = 0.0
    num_parallel: int = 1

    def __post_init__(self) -> None:
        _at_least_one(self, "episodes", "max_steps_per_episode", "K_epochs", "batch_size", "num_parallel")


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """What is told on the way."""

    log_interval: int = 10
    """Episodes between two lines."""

    def __post_init__(self) -> None:
        _at_least_one(self, "log_interval")


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """What is left behind."""

    models_dir: str = "files/Models"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole file."""

    environment: EnvironmentSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    load_model: str | None = None

    @property
    def best_model(self) -> Path:
        """Where the best weights are kept: what the document's `--model_path` names."""
        return Path(self.output.models_dir, self.model.model_name, "best_model.pth")


def _at_least_one(settings: Any, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise mv.errors.InvalidRequest(f"{name}={value}: at least 1")


def load_settings(path: Path | str) -> Settings:
    """The file's settings, or one sentence with the line that is wrong."""
    return settings_from(read_config(path), str(path))


def settings_from(config: Mapping[str, Any], where: str = "config") -> Settings:
    return build(Settings, config, where)
