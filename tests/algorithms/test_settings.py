"""Declaration of settings: help texts, bounds, and what a field of a subclass inherits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import multiverse as mv
from multiverse.algorithms import ALGORITHMS, PPO, PPOConfig, algorithm_class, setting
from multiverse.cli import flags
from multiverse.core.settings import check_bounds, metadata_of
from multiverse.training.config.build import build
from multiverse.training.config.train_config import TrainConfig


@dataclass(frozen=True)
class OwnConfig(PPOConfig):
    bonus: float = setting(0.1, "Weight of the bonus.", at_least=0, at_most=1)
    sizes: tuple[int, ...] = setting((2, 3), "Sizes of the layers.", above=0)
    options: Any = setting({"a": 1}, "Options of the bonus.")
    gamma: float = 0.5
    epochs: int = setting(2, "Number of passes.")
    limit: float | None = setting(None, "Limit.", above=0, at_most=2)
    undocumented: int = 3


class Own(PPO):
    Config = OwnConfig


@dataclass(frozen=True)
class PlainConfig:
    """A config that does not derive from `Settings`."""

    steps_per_env: int = setting(4, "Number of steps.", at_least=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bonus": -0.1}, r"bonus=-0\.1: expected a number from 0 to 1$"),
        ({"bonus": 1.1}, r"bonus=1\.1: expected a number from 0 to 1$"),
        ({"bonus": float("nan")}, r"bonus=nan: expected a number from 0 to 1$"),
        ({"sizes": (4, 0)}, r"sizes=\(4, 0\): expected more than 0 each$"),
        ({"limit": 0}, r"limit=0: expected more than 0 and at most 2$"),
        ({"limit": 2.5}, r"limit=2\.5: expected more than 0 and at most 2$"),
        ({"gamma": 2.0}, r"gamma=2\.0: expected a number from 0 to 1$"),
        ({"epochs": 0}, r"epochs=0: expected at least 1$"),
        ({"learning_rate": float("inf")}, r"learning_rate=inf: expected a finite number$"),
    ],
)
def test_value_outside_its_bounds_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=f"^{message}"):
        OwnConfig(**values)


def test_values_at_their_bounds_and_none_are_accepted() -> None:
    assert OwnConfig(bonus=0, limit=2, sizes=(1,)).limit == 2
    assert OwnConfig(bonus=1, limit=None).limit is None


def test_dict_default_is_not_shared_between_configs() -> None:
    OwnConfig().options["a"] = 2
    assert OwnConfig().options == {"a": 1}


def test_overriding_field_inherits_help_and_bounds_that_it_does_not_declare() -> None:
    assert metadata_of(OwnConfig, "gamma") == metadata_of(PPOConfig, "gamma")
    assert metadata_of(OwnConfig, "epochs") == {**metadata_of(PPOConfig, "epochs"), "help": "Number of passes."}


def test_own_settings_have_flags_with_their_help() -> None:
    texts = {one.name: one.help for one in flags.all_settings(f"{__name__}:Own")[f"settings of {__name__}:Own"]}
    assert texts["bonus"] == "Weight of the bonus."
    assert texts["gamma"] == "Discount factor."
    assert texts["undocumented"] == "undocumented."


def test_bounds_of_plain_dataclass_are_checked_with_its_run() -> None:
    with pytest.raises(mv.errors.InvalidConfig, match="steps_per_env=0: expected at least 1"):
        build(PlainConfig, {"steps_per_env": 0}, "mine.yaml")


@pytest.mark.parametrize("config", [TrainConfig, *(algorithm_class(name).Config for name in ALGORITHMS)])
def test_every_setting_has_a_help_text_and_a_default_within_its_bounds(config: Any) -> None:
    default = config()
    check_bounds(default)
    for name in vars(default):
        if name != "budget":
            assert metadata_of(config, name)["help"].endswith("."), name
