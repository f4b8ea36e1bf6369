"""The words of `multiverse train …`: one flag for every setting. Each mistake is one sentence.

Not by tyro, as the other commands: the flags come from two configs, and what was given must be told apart from what
was left alone, for only the first goes before a config file and a preset.
"""

from __future__ import annotations

import difflib
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from multiverse.cli.settings import Setting, all_settings, in_short
from multiverse.contracts.errors import InvalidRequest

WIDTH = 80
DESCRIPTION = """\
  Trains an agent, and keeps the run in a directory of its own: settings,
  metrics, episodes, checkpoints and summary. Ctrl-C saves it; `multiverse
  resume` goes on exactly where it was. Flags go before --config, this before
  the preset of the env, this before the defaults; a budget (--env-steps,
  --episodes, --minutes) takes the place of those that it goes before.

examples:
    multiverse train CartPole-v1
    multiverse train Pendulum-v1 --minutes 5 --learning-rate 5e-4 --seeds 3
    multiverse train my_module:make_env --preset CartPole-v1 --num-envs 16
    multiverse train --config runs/CartPole-v1/ppo-0-…/config.yaml --seed 7"""

ENV_WORDS = "A Gymnasium id, or module:name of something that builds an env. A config file may name it instead."
COMMAND = (
    Setting("config", "command", str, "", "A YAML file with settings, such as the config.yaml of a run."),
    Setting("preset", "command", str, "", "The env whose preset to begin from. Default: that of ENV, if there is one."),
    Setting("no_preset", "command", bool, False, "Begin from the plain defaults instead."),
    Setting("seeds", "command", int, 1, "So many runs, with the seeds SEED, SEED + 1, …; then their IQM."),
    Setting("init_from", "command", str, "", "A run whose weights to begin with."),
    Setting("run_dir", "command", str, "", "Where the run lies. Default: runs/<env>/<agent>-<seed>-<time>."),
    Setting("tensorboard", "command", bool, False, "Metrics for TensorBoard too (an extra)."),
)
TITLES = {"command": "what to do", "run": "settings of the run", "ppo": "settings of PPO"}


@dataclass(frozen=True)
class TrainOptions:
    """What was typed: the env ('' if it was left out), options of the command, and settings that were given."""

    env: str
    command: dict[str, Any]
    settings: dict[str, Any]


def train_options(arguments: Sequence[str]) -> TrainOptions:
    """From words to options; shows help and exits where that is asked for."""
    if "-h" in arguments or "--help" in arguments:
        print(help_text())
        raise SystemExit(0)
    known = {one.name: one for one in COMMAND} | all_settings()
    positional, given = _read(list(arguments), _flags(known.values()))
    if len(positional) > 1:
        raise InvalidRequest(f"one env at a time: {positional[0]}, or {positional[1]}?")
    command = {one.name: given.pop(one.name, one.default) for one in COMMAND}
    return TrainOptions(positional[0] if positional else "", command, given)


def _flags(settings: Any) -> dict[str, tuple[Setting, bool]]:
    """Every flag → what it sets, and whether it does so or takes it away (`--no-normalize-rewards`)."""
    flags = {}
    for one in settings:
        for flag in (one.flag, *one.other_flags):
            flags[flag] = one, True
            if one.is_switch and one.group != "command":
                flags[f"--no-{flag.removeprefix('--')}"] = one, False
    return flags


def _read(words: list[str], flags: dict[str, tuple[Setting, bool]]) -> tuple[list[str], dict[str, Any]]:
    """(words that belong to no flag, the value of every setting that was given; the last one counts)."""
    loose: list[str] = []
    given: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if not _is_flag(word):
            loose.append(word)
            continue
        typed, equals, attached = word.partition("=")
        setting, wanted = _known(typed, flags)
        if setting.is_switch:
            if equals:
                raise InvalidRequest(f"{word}: {typed} is a switch and takes no value")
            given[setting.name] = wanted
        else:
            values = [attached] if equals else _values(typed, setting, words)
            given[setting.name] = setting.read(values, typed)
    return loose, given


def _is_flag(word: str) -> bool:
    """Also -n, which is none of ours and should be told so; -0.5 is a number."""
    return word.startswith("--") or (word.startswith("-") and word[1:2].isalpha())


def _known(typed: str, flags: dict[str, tuple[Setting, bool]]) -> tuple[Setting, bool]:
    flag = typed.replace("_", "-").lower()
    if flag not in flags:
        near = difflib.get_close_matches(flag, flags, n=1)
        hint = f"did you mean {near[0]}?" if near else "`multiverse train --help` shows all"
        raise InvalidRequest(f"there is no {typed}; {hint}")
    return flags[flag]


def _values(typed: str, setting: Setting, words: list[str]) -> list[str]:
    """Take the words that belong to a flag: one, or all up to the next flag where it is a list."""
    taken: list[str] = []
    while words and not _is_flag(words[0]) and (setting.is_list or not taken):
        taken.append(words.pop(0))
    if not taken:
        raise InvalidRequest(f"{typed} needs a value: {setting.metavar}")
    return taken


# -- help --------------------------------------------------------------------------------------------------------
def help_text() -> str:
    """Every flag in its group, with its other names and its default."""
    lines = ["usage: multiverse train [OPTIONS] ENV", "", DESCRIPTION, "", "ENV:", *_filled(ENV_WORDS), ""]
    for group, settings in itertools.groupby((*COMMAND, *all_settings().values()), key=lambda one: one.group):
        lines += [f"{TITLES[group]}:", *(line for one in settings for line in _help_of(one)), ""]
    return "\n".join(lines)


def _help_of(setting: Setting) -> list[str]:
    flag = setting.flag if setting.is_switch else f"{setting.flag} {setting.metavar}"
    if setting.is_list:
        flag += " …"
    if setting.is_switch and setting.group != "command":
        flag += f", --no-{setting.flag.removeprefix('--')}"
    told = [f"default: {in_short(setting.default)}"] if setting.default not in ("", None, {}) else []
    told += [f"also {', '.join(setting.other_flags)}"] if setting.other_flags else []
    if setting.is_switch and setting.group == "command":
        told = []
    return [f"  {flag}", *_filled(f"{setting.help} ({'; '.join(told)})" if told else setting.help)]


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False)
