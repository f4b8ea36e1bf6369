"""Flags of the commands that train: one for each setting of a config, with its synonyms, its type and its help.

Only flags that were given override a config file, a preset or a saved run, so nothing here returns a complete config.
Values are read as in a file and checked with the whole config. Nothing here imports torch or environments, so that help
appears at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class
from multiverse.cli.main import parsed_kwargs
from multiverse.cli.options import CommandParser, spelled
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.settings import metadata_of
from multiverse.core.wording import nearest, short_repr
from multiverse.training.config.build import NOTHING, OLD_NAMES, in_type_words
from multiverse.training.config.files import parse_config
from multiverse.training.config.other_libraries import SYNONYMS, equivalent
from multiverse.training.config.resolve import own_settings
from multiverse.training.config.train_config import TrainConfig

KWARGS = ("env_kwargs", "network_kwargs")
"""Settings that are given as JSON."""


@dataclass(frozen=True)
class Setting:
    """Field of a config, or option of a command."""

    name: str
    kind: Any
    default: Any
    help: str

    @property
    def flags(self) -> tuple[str, ...]:
        old = [old for old, new in OLD_NAMES.items() if new == self.name]
        return tuple(f"--{name.replace('_', '-')}" for name in (self.name, *SYNONYMS.get(self.name, ()), *old))

    @property
    def takes_nothing(self) -> bool:
        """Return whether `none` is one of its values."""
        return type(None) in get_args(self.kind)

    @property
    def metavar(self) -> str:
        kinds = get_args(self.kind) if get_origin(self.kind) in (Union, types.UnionType) else (self.kind,)
        choices = [one for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
        if choices or self.name in KWARGS:
            choices = [one.__name__.upper() for one in kinds if one in (int, float)] + choices
            choices += [NOTHING] if choices and self.takes_nothing else []
            return "{" + ",".join(choices) + "}" if choices else "JSON"
        return str(getattr(get_args(kinds[0])[0] if get_args(kinds[0]) else kinds[0], "__name__", "value")).upper()

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        more = [] if self.default in ("", None, {}) or self.default is False else [f"default: {in_short(self.default)}"]
        more += [f"also {', '.join(self.flags[1:])}"] if self.flags[1:] else []
        words = f"{self.help} ({'; '.join(more)})" if more else self.help
        options: dict[str, Any] = {"dest": self.name, "help": words.replace("%", "%%")}
        if self.kind is bool:
            options["action"] = argparse.BooleanOptionalAction if self.default is not None else "store_true"
        else:
            options |= {"metavar": self.metavar, "nargs": "+" if get_origin(self.kind) is tuple else None}
        group.add_argument(*self.flags, **options)

    def takes(self, word: str) -> bool:
        """Return whether this word can be an item of its list: a whole number, or module:name."""
        return ":" in word if str in get_args(self.kind) else word.replace(",", "").isdigit()

    def read(self, words: Any) -> Any:
        """Return the value of what was typed, as a config file would have it."""
        if isinstance(words, bool):
            return words
        if self.name in KWARGS:
            return parsed_kwargs(words, self.flags[0])
        if isinstance(words, list):
            return [_scalar(one, int) for word in words for one in word.split(",") if one]
        return words if self.kind is str else _scalar(words, *(get_args(self.kind) or (self.kind,)))

    def checked(self, value: Any) -> Any:
        """Return the value of an option that belongs to no config; refuse what must be a whole number and is not."""
        if self.kind is int and value != self.default and type(value) is not int:
            found = "nothing" if value is None else short_repr(value)
            raise InvalidRequest(f"{self.flags[0]}: expected a whole number, found {found}")
        return value


def all_settings(algorithm: str = DEFAULT_ALGORITHM) -> dict[str, list[Setting]]:
    """Return all settings by group: those of the run, and those of its algorithm."""
    run = [one for one in _fields_of(TrainConfig()) if one.name not in ("env", "settings")]
    return {"settings of the run": run, f"settings of {algorithm}": _own_settings_of(algorithm)}


def _own_settings_of(algorithm: str) -> list[Setting]:
    kind = algorithm_class(algorithm)
    return _fields_of(kind.Config()) if own_settings(kind) else []


def parser(
    command: str, description: str, what: str, words: str, groups: Mapping[str, Iterable[Setting]]
) -> argparse.ArgumentParser:
    """Return a parser with every flag in its group; `what` is the command's positional argument, ENV or RUN."""
    flags = CommandParser(command, description)
    flags.usage = f"{flags.usage} {what}"
    flags.add_argument(WORDS, nargs="*", metavar=what, help=words)
    for title, settings in groups.items():
        group = flags.add_argument_group(title)
        for one in settings:
            one.add_to(group)
    return flags


WORDS = "words"
"""Name of the words that belong to no flag."""


@dataclass(frozen=True)
class Typed:
    """Result of parsing: words that belong to no flag, and the values and flags by setting."""

    words: list[str]
    values: dict[str, Any]
    flags: dict[str, str]


def typed(
    flags: argparse.ArgumentParser,
    settings: Iterable[Setting],
    arguments: Sequence[str],
    algorithm: str = DEFAULT_ALGORITHM,
) -> Typed:
    """Parse arguments; `--help` shows help and exits. `algorithm`: the algorithm whose settings these are."""
    every = {one.name: one for one in settings}
    try:
        found, unknown = flags.parse_known_intermixed_args([spelled(word) for word in arguments])
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{str(error.argument_name).partition('/')[0]}: {error.message}") from None
    if strange := next((word for word in unknown if word.startswith("-")), ""):
        raise InvalidRequest(_no_such_flag(strange, every, algorithm, flags.prog))
    given = vars(found)
    words = [*given.pop(WORDS, []), *unknown]
    for name, several in given.items():  # `--hidden-sizes 64 64 CartPole-v1`: the last word is the env
        while isinstance(several, list) and len(several) > 1 and not every[name].takes(several[-1]):
            words.append(several.pop())
    read = {name: every[name].read(one) for name, one in given.items()}
    return Typed(words, read, {name: every[name].flags[0] for name in read})


def _no_such_flag(word: str, known: Mapping[str, Setting], algorithm: str, command: str) -> str:
    flag, asked = word.partition("=")[0], word.partition("=")[0].replace("--no-", "--", 1)
    if (one := next((one for one in known.values() if asked in one.flags), None)) is not None:
        off = f"; {one.flags[0]} none turns it off" if one.takes_nothing else ""
        return f"there is no {flag}: {one.flags[0]} needs a value, {one.metavar}{off}"
    if instead := equivalent(flag.removeprefix("--").replace("-", "_")):
        return f"there is no {flag}. {instead}"
    if others := [name for name in ALGORITHMS if any(asked in one.flags for one in _own_settings_of(name))]:
        hint = f" (for example --algorithm {others[0]})" if "algorithm" in known else ""
        return f"{flag} is a setting of {', '.join(others)}; the algorithm of this run is {algorithm}{hint}"
    near = nearest(word, [flag for one in known.values() for flag in one.flags])
    if not near:
        flags = [one.flags[0] for one in known.values()]
        return f"there is no {word}; similar: {', '.join(nearest(word, flags, 3, 0.0))}; `{command} --help` lists all"
    return f"there is no {word}; did you mean {near[0]}?"


def in_short(value: Any) -> str:
    """Return a default as a user would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "{}" if value == {} else f"{value:g}" if isinstance(value, float) else str(value)


def flag_words(name: str, value: Any) -> list[str]:
    """Return the words of a setting on a command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, *value_words(value)]


def value_words(value: Any) -> list[str]:
    """Return a value as words: a list as several, arguments of an env as JSON."""
    if isinstance(value, list | tuple):
        return [word for one in value for word in value_words(one)]
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, float):
        return [f"{value:g}" if float(f"{value:g}") == value else repr(value)]
    return ["none" if value is None else json.dumps(value) if isinstance(value, dict) else str(value)]


def table() -> str:
    """Return a table of all settings in Markdown, for docs/training.md."""
    rows, shown = ["| setting | other names | value | default | |", "|---|---|---|---|---|"], set[str]()
    for title, settings in {title: own for name in ALGORITHMS for title, own in all_settings(name).items()}.items():
        found = {one.name: _row(one) for one in settings}
        rows += [f"| **{title}** | | | | |", *(row for row in found.values() if row not in shown)]
        shown.update(found.values())  # settings that several algorithms share are listed once
    return "\n".join(rows)


def _row(one: Setting) -> str:
    others = ", ".join(f"`{name}`" for name in SYNONYMS.get(one.name, ()))
    words = in_type_words(one.kind).replace("|", "\\|")
    return f"| `{one.name}` | {others} | {words} | {in_short(one.default)} | {one.help} |"


def _fields_of(config: Any) -> list[Setting]:
    kind, kinds = type(config), typing.get_type_hints(type(config))
    return [
        Setting(field.name, kinds[field.name], getattr(config, field.name), help_of(kind, field.name))
        for field in dataclasses.fields(config)
    ]


def help_of(config: type, name: str) -> str:
    """Return the help text of a setting; its name if it was declared without one."""
    return str(metadata_of(config, name).get("help", f"{name}."))


def _scalar(word: str, *kinds: Any) -> Any:
    """Return a word as a config file would have it; whole numbers may be written 1e6, and nothing as none."""
    if word.lower() == NOTHING and type(None) in kinds:
        return None
    try:
        value = parse_config(f"value: {word}")["value"]
    except InvalidConfig:
        return word
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    return value
