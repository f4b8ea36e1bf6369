"""The scripts' `config` dicts, and a flag for every key: `num_envs` is `--num-envs`. Both are checked alike."""

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
    """What one key may be."""

    help: str
    kind: type = int
    at_least: int | None = None
    at_most: int | None = None
    one_of: tuple[str, ...] = ()
    optional: bool = False  # None will do

    def refusal(self, value: Any) -> str | None:
        """What was expected, if it is not this value."""
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
    "num_envs": Setting("parallel envs", at_least=1),
    "total_timesteps": Setting("steps of all envs together", at_least=1),
    "seed": Setting("of the envs and of the learner", at_least=0, at_most=UNSEEN_SEEDS // 2),
    "preset": Setting("size of the grid", str, one_of=tuple(PRESETS)),
    "task": Setting(
        "reach a target that is shown, search for it, or watch it (the preset as it is)", str, one_of=TASKS
    ),
    "vec_env": Setting("envs in worker processes, or all in this one", str, one_of=("subproc", "dummy")),
    "workers": Setting("worker processes; left out: one per usable core", at_least=1, optional=True),
    "run_dir": Setting("folder for the folder of this run", str),
    "tracker": Setting("auto: also WandB, if it is installed", str, one_of=TRACKERS),
    "video": Setting("record episodes of env 0", bool),
    "eval_episodes": Setting("episodes after training, on seeds never trained on", at_least=0),
}


def configured(config: Mapping[str, Any], description: str, arguments: Sequence[str] | None = None) -> Config:
    """The config with the command line's values in place of its own. Ends the program, and says why, if one is bad."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    unknown = [key for key in config if key not in SETTINGS]
    if unknown:
        parser.error(f"config[{unknown[0]!r}]: there is no such key; the keys are {', '.join(SETTINGS)}")
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
