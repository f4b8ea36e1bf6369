"""Validation of the scripts' `config` dicts, and a flag for every key: `num_envs` is `--num-envs`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.grid_world.evaluation import UNSEEN_SEEDS
from examples.grid_world.tracking import TRACKERS
from examples.grid_world.worlds import TASKS
from multiverse.envs.grid_world import PRESETS

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """Accepted values of one key."""

    help: str
    kind: type = int
    at_least: int | None = None
    at_most: int | None = None
    one_of: tuple[str, ...] = ()
    optional: bool = False  # whether None is accepted

    def refusal(self, value: Any) -> str | None:
        """Return the expected values if this value is invalid, otherwise None."""
        if value is None and self.optional:
            return None
        if self.one_of:
            return None if value in self.one_of else f"expected one of {', '.join(self.one_of)}"
        if type(value) is not self.kind:
            return f"expected {self.kind.__name__}"
        if self.at_least is not None and value < self.at_least:
            return f"expected at least {self.at_least}"
        if self.at_most is not None and value > self.at_most:
            return f"expected at most {self.at_most}"
        return None


SETTINGS = {
    "num_envs": Setting("number of parallel envs", at_least=1),
    "total_timesteps": Setting("total number of env steps", at_least=1),
    "seed": Setting("seed of the envs and of the learner", at_least=0, at_most=UNSEEN_SEEDS // 2),
    "preset": Setting("size of the grid", str, one_of=tuple(PRESETS)),
    "task": Setting(
        "reach: the target's position is observed; search: it is not; watch: the unchanged preset", str, one_of=TASKS
    ),
    "vec_env": Setting(
        "subproc: envs in worker processes; dummy: all envs in this process", str, one_of=("subproc", "dummy")
    ),
    "workers": Setting("number of worker processes; default: one per usable core", at_least=1, optional=True),
    "run_dir": Setting("directory that contains one directory per run", str),
    "tracker": Setting("auto: also log to WandB if it is installed", str, one_of=TRACKERS),
    "video": Setting("record episodes of env 0", bool),
    "eval_episodes": Setting("number of evaluation episodes after training, on unseen seeds", at_least=0),
}


def configured(config: Mapping[str, Any], description: str, arguments: Sequence[str] | None = None) -> Config:
    """Return the config with the command line's values. Exit with an error message if a value is invalid."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    unknown = [key for key in config if key not in SETTINGS]
    if unknown:
        parser.error(f"config has an unknown key {unknown[0]!r}; the keys are {', '.join(SETTINGS)}")
    for key, value in config.items():
        _add_flag(parser, key, value, SETTINGS[key])
    chosen = vars(parser.parse_args(arguments))
    for key, value in chosen.items():
        refusal = SETTINGS[key].refusal(value)
        if refusal:
            parser.error(f"{key}={value!r}: {refusal}")
    return chosen


def _add_flag(parser: argparse.ArgumentParser, key: str, default: Any, setting: Setting) -> None:
    flag = f"--{key.replace('_', '-')}"
    if setting.kind is bool:
        parser.add_argument(flag, default=default, action=argparse.BooleanOptionalAction, help=setting.help)
        return
    choices = "{" + ",".join(setting.one_of) + "}" if setting.one_of else key.upper()
    parser.add_argument(flag, default=default, type=setting.kind, metavar=choices, help=setting.help)
