"""`multiverse train ENV`: one flag for every setting; from what was typed to a whole config; then the run, or several.

Its flags are read by argparse, not by tyro as those of the other commands: what was given must be told apart from what
was left alone, for only the first goes before a config file and a preset. Values are read as in a file, and checked
with the whole config.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Union, get_args, get_origin

from multiverse.adapters.env_source import recipes
from multiverse.algorithms import ALGORITHMS, algorithm_class
from multiverse.cli.commands.list import env_names
from multiverse.cli.main import parsed_kwargs, require, require_positive
from multiverse.contracts.errors import InvalidConfig, InvalidRequest, in_words
from multiverse.training.config.build import OLD_NAMES, Located, in_todays_names, in_type_words, place_of
from multiverse.training.config.files import parse_config, read_config
from multiverse.training.config.train_config import PRESETS, SYNONYMS, TrainConfig, config_for, merged, own_settings
from multiverse.training.storage.origin import check_trusted

if TYPE_CHECKING:
    from multiverse.cli.progress import LinePrinter
    from multiverse.training.run import Run

DESCRIPTION = """\
  Trains an algorithm, and keeps the run in a directory of its own: settings,
  metrics, episodes, checkpoints and summary. Ctrl-C saves it; `multiverse
  resume` goes on exactly where it was. Flags go before --config, this before
  the preset of the env, this before the defaults; a budget (--env-steps,
  --episodes, --minutes) takes the place of those that it goes before.

examples:
    multiverse train CartPole-v1
    multiverse train Pendulum-v1 --minutes 5 --learning-rate 5e-4 --seeds 3
    multiverse train my_module:make_env --preset CartPole-v1 --num-envs 16
    multiverse train --config runs/CartPole-v1/ppo-0-…/config.yaml --seed 7"""


def run(arguments: Sequence[str]) -> int:
    from multiverse.cli.progress import LinePrinter

    options = train_options(arguments)
    config = config_from(options)
    _refuse_early(options, config)
    voice = LinePrinter()
    for line in _announced(options, config):
        voice.say(line)
    if options.command["seeds"] == 1:
        _train(options, config, voice, options.command["run_dir"])
    else:
        _train_seeds(options, config, voice)
    return 0


# -- the config --------------------------------------------------------------------------------------------------
def config_from(options: TrainOptions) -> TrainConfig:
    """Flags before the file, the file before the preset, the preset before the defaults."""
    from multiverse.training.storage.run_directory import read_mark

    command = options.command
    file = in_todays_names(read_config(command["config"])) if command["config"] else {}
    algorithm = _named("algorithm", options.settings, file) or "ppo"
    typed = {*options.settings, *(("env", "env_kwargs") if options.env else ())}  # whoever types a name means it
    if named := {key: value for key, value in file.items() if key not in typed}:
        check_trusted(named, read_mark(Path(command["config"]).parent), command["config"], command["trust"])
    own = own_settings(algorithm_class(algorithm))
    settings = merged(merged({}, file, algorithm, own), options.settings, algorithm, own)
    env = options.env or _named("env", settings)
    settings.pop("env", None)
    settings.pop("algorithm", None)
    if not env:
        raise InvalidRequest("which env? `multiverse train CartPole-v1`, or a --config that names one")
    return config_for(env, algorithm, settings, not command["no_preset"] and (command["preset"] or True))


def _named(key: str, *given: Mapping[str, Any]) -> str:
    """The first of these that names it; '' if none does."""
    for mapping in given:
        if key in mapping and not isinstance(mapping[key], str):
            raise InvalidConfig(place_of(mapping, key), f"expected a name, found {in_words(mapping[key])}")
        if mapping.get(key):
            return str(mapping[key])
    return ""


def _refuse_early(options: TrainOptions, config: TrainConfig) -> None:
    """What cannot be is said before anything is started."""
    from multiverse.training.algorithm_maker import checked_device
    from multiverse.training.loading import checkpoint_of

    command = options.command
    require_positive(seeds=command["seeds"])
    if command["no_preset"] and command["preset"]:
        raise InvalidRequest(f"--no-preset, or --preset {command['preset']}?")
    checked_device(config.device)
    _refuse_unknown_env(config)
    if command["init_from"]:
        checkpoint_of(command["init_from"])
    if command["tensorboard"]:
        require("tensorboard", "tensorboard", purpose="--tensorboard")


def _refuse_unknown_env(config: TrainConfig) -> None:
    """With the id that was probably meant: of several versions the one that has a preset."""
    try:
        recipes(config.env, 1, config.env_kwargs, None)
    except InvalidRequest as error:
        by_form = {name.lower(): name for name in env_names()}
        near = [by_form[form] for form in difflib.get_close_matches(config.env.lower(), by_form, n=5)]
        best = next((name for name in near if (name, config.algorithm) in PRESETS), near[0] if near else None)
        if ":" in config.env or best is None or best in str(error):
            raise
        raise InvalidRequest(f"there is no env {config.env}; did you mean {best}?") from error


# -- the run -----------------------------------------------------------------------------------------------------
def _announced(options: TrainOptions, config: TrainConfig) -> list[str]:
    budget = [
        f"{config.budget.env_steps:,} env steps" if config.budget.env_steps else "",
        f"{config.budget.episodes:,} episodes" if config.budget.episodes else "",
        f"{config.budget.minutes:g} minutes" if config.budget.minutes else "",
    ]
    spend = " or ".join(part for part in budget if part)
    envs = {1: "1 env", "auto": "as many envs as pay"}.get(config.num_envs, f"{config.num_envs} envs")
    lines = [f"Training {config.algorithm} on {config.env}: {envs}, {spend}, seed {config.seed}."]
    source = options.command["preset"] or config.env
    if not options.command["no_preset"] and (source, config.algorithm) in PRESETS:
        lines.append(f"Settings: the preset for {source} (`multiverse list presets`), unless given otherwise.")
    return lines


def _train(options: TrainOptions, config: TrainConfig, voice: LinePrinter, run_dir: Path | str) -> Run:
    from multiverse.cli.progress import run_with_progress
    from multiverse.training.run import start_run

    return run_with_progress(
        lambda **watching: start_run(
            config, run_dir=run_dir or None, init_from=options.command["init_from"] or None, **watching
        ),
        voice,
        tensorboard=options.command["tensorboard"],
    )


def _train_seeds(options: TrainOptions, config: TrainConfig, voice: LinePrinter) -> None:
    from multiverse.cli.seeds import seed_lines

    runs: dict[int, Run] = {}
    home, count = options.command["run_dir"], options.command["seeds"]
    for seed in range(config.seed, config.seed + count):
        voice.say(f"\nSeed {seed} ({len(runs) + 1} of {count})")
        mine = Path(home) / f"seed-{seed}" if home else ""
        runs[seed] = _train(options, dataclasses.replace(config, seed=seed), voice, mine)
    for line in seed_lines(runs):
        voice.say(line)


# -- the flags ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Setting:
    """One field of a config, or one option of the command."""

    name: str
    kind: Any
    default: Any
    help: str

    @property
    def flags(self) -> tuple[str, ...]:
        old = [old for old, new in OLD_NAMES.items() if new == self.name]
        return tuple(f"--{name.replace('_', '-')}" for name in (self.name, *SYNONYMS.get(self.name, ()), *old))

    @property
    def metavar(self) -> str:
        kinds = get_args(self.kind) if get_origin(self.kind) in (Union, types.UnionType) else (self.kind,)
        choices = [one for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
        if choices or self.name == "env_kwargs":
            choices = [one.__name__.upper() for one in kinds if one in (int, float)] + choices
            return "{" + ",".join(choices) + "}" if choices else "JSON"
        return str(getattr(get_args(kinds[0])[0] if get_args(kinds[0]) else kinds[0], "__name__", "value")).upper()

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        more = [] if self.default in ("", None, {}) or self.default is False else [f"default: {in_short(self.default)}"]
        more += [f"also {', '.join(self.flags[1:])}"] if self.flags[1:] else []
        words = f"{self.help} ({'; '.join(more)})" if more else self.help
        how: dict[str, Any] = {"dest": self.name, "help": words.replace("%", "%%")}
        if self.kind is bool:
            how["action"] = argparse.BooleanOptionalAction if self.default is not None else "store_true"
        else:
            how |= {"metavar": self.metavar, "nargs": "+" if get_origin(self.kind) is tuple else None}
        group.add_argument(*self.flags, **how)

    def read(self, words: Any) -> Any:
        """What was typed, as a config file would have it."""
        if isinstance(words, bool):
            return words
        if self.name == "env_kwargs":
            return parsed_kwargs(words)
        if isinstance(words, list):
            return [_scalar(one, int) for word in words for one in word.split(",") if one]
        return words if self.kind is str else _scalar(words, *(get_args(self.kind) or (self.kind,)))


COMMAND = (
    Setting("config", str, "", "A YAML file with settings, such as the config.yaml of a run."),
    Setting(
        "trust",
        bool,
        None,
        "Call the env that the config file names (module:name), though it is not of a run of yours.",
    ),
    Setting("preset", str, "", "The env whose preset to begin from. Default: that of ENV, if there is one."),
    Setting("no_preset", bool, None, "Begin from the plain defaults instead."),
    Setting("seeds", int, 1, "So many runs, with the seeds SEED, SEED + 1, …; then their IQM."),
    Setting("init_from", str, "", "A run whose weights to begin with."),
    Setting("run_dir", str, "", "Where the run lies. Default: runs/<env>/<algorithm>-<seed>-<time>."),
    Setting("tensorboard", bool, None, "Metrics for TensorBoard too (an extra)."),
)


def all_settings(algorithm: str = "ppo") -> dict[str, list[Setting]]:
    """By group: those of the run, and those of its algorithm."""
    run = [one for one in _fields_of(TrainConfig()) if one.name not in ("env", "settings")]
    kind = algorithm_class(algorithm)
    own = _fields_of(kind.Config()) if own_settings(kind) else []
    return {"settings of the run": run, f"settings of {algorithm}": own}


def algorithm_in(arguments: Sequence[str]) -> str:
    """The algorithm that these words name, or the config file among them does; flags follow from it."""
    from multiverse.training.storage.run_directory import read_mark

    words = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    words.add_argument("--algorithm", "--agent")
    words.add_argument("--config")
    words.add_argument("--trust", action="store_true")
    found, _ = words.parse_known_args([_spelled(word) for word in arguments])
    if "config" in found and "algorithm" not in found:
        file = in_todays_names(read_config(found.config))
        named = file.get("algorithm")
        if not named or not isinstance(named, str):
            return "ppo"
        if named not in ALGORITHMS:  # guard: a-strangers-algorithm-is-not-imported-for-its-flags
            check_trusted(file, read_mark(Path(found.config).parent), found.config, "trust" in found)
        return named
    return str(getattr(found, "algorithm", "ppo"))


@dataclass(frozen=True)
class TrainOptions:
    """What was typed: the env ('' if it was left out), options of the command, and settings that were given."""

    env: str
    command: dict[str, Any]
    settings: Located


def train_options(arguments: Sequence[str]) -> TrainOptions:
    """From words to options; shows help and exits where that is asked for."""
    algorithm = algorithm_in(arguments)
    every = {one.name: one for one in (*COMMAND, *(one for group in all_settings(algorithm).values() for one in group))}
    try:
        typed, unknown = parser(algorithm).parse_known_intermixed_args([_spelled(word) for word in arguments])
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{str(error.argument_name).partition('/')[0]}: {error.message}") from None
    if strange := next((word for word in unknown if word.startswith("-")), ""):
        near = difflib.get_close_matches(strange, [flag for one in every.values() for flag in one.flags], n=1)
        hint = f"did you mean {near[0]}?" if near else "`multiverse train --help` shows all"
        raise InvalidRequest(f"there is no {strange}; {hint}")
    given = vars(typed)
    envs = [*given.pop("env", []), *unknown]
    for words in given.values():  # `--hidden-sizes 64 64 CartPole-v1`: what is no number is the env
        while isinstance(words, list) and len(words) > 1 and not words[-1].replace(",", "").isdigit():
            envs.append(words.pop())
    if len(envs) > 1:
        raise InvalidRequest(f"one env at a time: {envs[0]}, or {envs[1]}?")
    read = {name: every[name].read(words) for name, words in given.items()}
    command = {one.name: read.pop(one.name, one.default) for one in COMMAND}
    settings = Located(read, {name: every[name].flags[0] for name in read})
    return TrainOptions(envs[0] if envs else "", command, settings)


def parser(algorithm: str = "ppo") -> argparse.ArgumentParser:
    """Every flag in its group, with its other names and its default."""
    flags = _Parser(
        prog="multiverse train",
        usage="multiverse train [OPTIONS] ENV",
        description=DESCRIPTION,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=8, width=80),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
    )
    which = "A Gymnasium id, or module:name of something that builds an env. A config file may name it instead."
    flags.add_argument("env", nargs="*", metavar="ENV", help=which)
    for title, settings in {"what to do": COMMAND, **all_settings(algorithm)}.items():
        group = flags.add_argument_group(title)
        for one in settings:
            one.add_to(group)
    return flags


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """A flag by its own name; its other names are in its help."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        flag = action.option_strings[0]
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"{flag}, --no-{flag.removeprefix('--')}"
        return flag if action.nargs == 0 else f"{flag} {self._format_args(action, str(action.metavar))}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(message)


def _spelled(word: str) -> str:
    """Flags may be typed with underscores, and in any case."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-").lower() + equals + value


def in_short(value: Any) -> str:
    """A default as one would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "{}" if value == {} else f"{value:g}" if isinstance(value, float) else str(value)


def table() -> str:
    """Every setting in Markdown, for docs/training.md."""
    rows, shown = ["| setting | other names | value | default | |", "|---|---|---|---|---|"], set[str]()
    for title, settings in {title: own for name in ALGORITHMS for title, own in all_settings(name).items()}.items():
        found = {one.name: _row(one) for one in settings}
        rows += [f"| **{title}** | | | | |", *(row for row in found.values() if row not in shown)]
        shown.update(found.values())  # what another has just so is not told again
    return "\n".join(rows)


def _row(one: Setting) -> str:
    others = ", ".join(f"`{name}`" for name in SYNONYMS.get(one.name, ()))
    words = in_type_words(one.kind).replace("|", "\\|")
    return f"| `{one.name}` | {others} | {words} | {in_short(one.default)} | {one.help} |"


def _fields_of(config: Any) -> list[Setting]:
    kinds, words = typing.get_type_hints(type(config)), _words_below_fields(type(config))
    return [Setting(f.name, kinds[f.name], getattr(config, f.name), words[f.name]) for f in dataclasses.fields(config)]


def _words_below_fields(config: type) -> dict[str, str]:
    """What stands below each field of a dataclass, or of one it inherits from, in one line."""
    found = {field.name: f"{field.name}." for field in dataclasses.fields(config)}  # where nothing stands below
    for kind in [one for one in reversed(config.__mro__) if dataclasses.is_dataclass(one)]:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:]):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = " ".join(words.split())
    return found


def _scalar(word: str, *kinds: Any) -> Any:
    """A word as a config file would have it; whole numbers may be written 1e6 here, and nothing as none."""
    if word.lower() == "none" and type(None) in kinds:
        return None
    try:
        value = parse_config(f"value: {word}")["value"]
    except InvalidConfig:
        return word
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    return value
