"""Schema of the document's config file, `configs/boxjump.yaml`. Unknown keys are refused."""

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
"""Maps the document's environment names to those of multiverse. Any other environment of `mv.make_vec` also works."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    """Settings of the environment."""

    name: str
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    apply_wrappers: bool = False
    """Has no effect, because observations need no wrappers. Accepted for existing config files."""

    @property
    def source(self) -> str:
        """Environment as `mv.make_vec` accepts it."""
        return NAMES.get(self.name, self.name)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings of the model."""

    num_heads: int = 2
    embedding_dim: int = 64
    hidden_size: int = 128
    model_name: str = "boxjump"
    """Name of the directory with the weights in `models_dir`."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of the training."""

    episodes: int = 100
    max_steps_per_episode: int | None = None
    """Maximum number of steps of every env between two updates."""
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
    """Settings of the progress lines."""

    log_interval: int = 10
    """Number of episodes between two lines."""

    def __post_init__(self) -> None:
        _at_least_one(self, "log_interval")


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """Settings of the output files."""

    models_dir: str = "files/Models"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a config file."""

    environment: EnvironmentSettings
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    load_model: str | None = None

    @property
    def best_model(self) -> Path:
        """Path of the best weights, as in the document's `--model_path`."""
        return Path(self.output.models_dir, self.model.model_name, "best_model.pth")


def _at_least_one(settings: Any, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise mv.errors.InvalidRequest(f"{name}={value}: expected at least 1")


def load_settings(path: Path | str) -> Settings:
    """Read settings from a file. Errors name the invalid line."""
    return settings_from(read_config(path), str(path))


def settings_from(config: Mapping[str, Any], where: str = "config") -> Settings:
    return build(Settings, config, where)
