"""Flags of the commands that train: one for every setting, with its other names, its kind and its help.

They are read by argparse, not by tyro as those of the other commands: what was given must be told apart from what was
left alone, for only the first goes before a config file, a preset or what a run has. Values are read as in a file, and
checked with the whole config. Nothing here needs torch, or envs: help is shown at once.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class
from multiverse.cli.main import parsed_kwargs
from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.core.wording import in_words, nearest
from multiverse.training.config.build import NOTHING, OLD_NAMES, in_type_words
from multiverse.training.config.files import parse_config
from multiverse.training.config.other_libraries import SYNONYMS, equivalent
from multiverse.training.config.train_config import TrainConfig, own_settings

KWARGS = ("env_kwargs", "network_kwargs")
"""Settings that are typed as JSON."""


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
    def takes_nothing(self) -> bool:
        """Whether `none` is a value of it."""
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
        how: dict[str, Any] = {"dest": self.name, "help": words.replace("%", "%%")}
        if self.kind is bool:
            how["action"] = argparse.BooleanOptionalAction if self.default is not None else "store_true"
        else:
            how |= {"metavar": self.metavar, "nargs": "+" if get_origin(self.kind) is tuple else None}
        group.add_argument(*self.flags, **how)

    def takes(self, word: str) -> bool:
        """Whether this word may be one of a list of its values: whole numbers, or module:name."""
        return ":" in word if str in get_args(self.kind) else word.replace(",", "").isdigit()

    def read(self, words: Any) -> Any:
        """What was typed, as a config file would have it."""
        if isinstance(words, bool):
            return words
        if self.name in KWARGS:
            return parsed_kwargs(words, self.flags[0])
        if isinstance(words, list):
            return [_scalar(one, int) for word in words for one in word.split(",") if one]
        return words if self.kind is str else _scalar(words, *(get_args(self.kind) or (self.kind,)))

    def checked(self, value: Any) -> Any:
        """The value of an option of a command, which no config checks; refused where it is not a whole number."""
        if self.kind is int and value != self.default and type(value) is not int:
            found = "nothing" if value is None else in_words(value)
            raise InvalidRequest(f"{self.flags[0]}: expected a whole number, found {found}")
        return value


def all_settings(algorithm: str = DEFAULT_ALGORITHM) -> dict[str, list[Setting]]:
    """By group: those of the run, and those of its algorithm."""
    run = [one for one in _fields_of(TrainConfig()) if one.name not in ("env", "settings")]
    return {"settings of the run": run, f"settings of {algorithm}": _own_settings_of(algorithm)}


def _own_settings_of(algorithm: str) -> list[Setting]:
    kind = algorithm_class(algorithm)
    return _fields_of(kind.Config()) if own_settings(kind) else []


def parser(
    command: str, description: str, what: str, words: str, groups: Mapping[str, Iterable[Setting]]
) -> argparse.ArgumentParser:
    """Every flag in its group, with its other names and its default; `what` is the command's one word, ENV or RUN."""
    flags = _Parser(
        prog=f"multiverse {command}",
        usage=f"multiverse {command} [OPTIONS] {what}",
        description=description,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=8, width=80),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
    )
    flags.add_argument(WORDS, nargs="*", metavar=what, help=words)
    for title, settings in groups.items():
        group = flags.add_argument_group(title)
        for one in settings:
            one.add_to(group)
    return flags


WORDS = "words"
"""What is typed beside the flags."""


@dataclass(frozen=True)
class Typed:
    """What was typed: words that belong to no flag, and by setting its value and its flag."""

    words: list[str]
    values: dict[str, Any]
    flags: dict[str, str]


def typed(
    flags: argparse.ArgumentParser,
    settings: Iterable[Setting],
    arguments: Sequence[str],
    algorithm: str = DEFAULT_ALGORITHM,
) -> Typed:
    """From words to values; shows help and exits where that is asked for. `algorithm`: whose settings these are."""
    every = {one.name: one for one in settings}
    try:
        found, unknown = flags.parse_known_intermixed_args([spelled(word) for word in arguments])
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{str(error.argument_name).partition('/')[0]}: {error.message}") from None
    if strange := next((word for word in unknown if word.startswith("-")), ""):
        raise InvalidRequest(_no_such_flag(strange, every, algorithm, flags.prog))
    given = vars(found)
    words = [*given.pop(WORDS, []), *unknown]
    for name, several in given.items():  # `--hidden-sizes 64 64 CartPole-v1`: what is no number, or wrapper, is the env
        while isinstance(several, list) and len(several) > 1 and not every[name].takes(several[-1]):
            words.append(several.pop())
    read = {name: every[name].read(one) for name, one in given.items()}
    return Typed(words, read, {name: every[name].flags[0] for name in read})


def _no_such_flag(word: str, known: Mapping[str, Setting], algorithm: str, command: str) -> str:
    flag, asked = word.partition("=")[0], word.partition("=")[0].replace("--no-", "--", 1)
    if (one := next((one for one in known.values() if asked in one.flags), None)) is not None:
        off = f"; {one.flags[0]} none leaves it out" if one.takes_nothing else ""
        return f"there is no {flag}: {one.flags[0]} takes a value, {one.metavar}{off}"
    if instead := equivalent(flag.removeprefix("--").replace("-", "_")):
        return f"there is no {flag}. {instead}"
    if others := [name for name in ALGORITHMS if any(asked in one.flags for one in _own_settings_of(name))]:
        how = f" (--algorithm {others[0]}, say)" if "algorithm" in known else ""
        return f"{flag} is a setting of {', '.join(others)}; this is {algorithm}{how}"
    near = nearest(word, [flag for one in known.values() for flag in one.flags])
    if not near:
        flags = [one.flags[0] for one in known.values()]
        return (
            f"there is no {word}; nearest are {', '.join(nearest(word, flags, 3, 0.0))}; `{command} --help` shows all"
        )
    return f"there is no {word}; did you mean {near[0]}?"


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


def spelled(word: str) -> str:
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


def flag_words(name: str, value: Any) -> list[str]:
    """A setting as one types it."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, *value_words(value)]


def value_words(value: Any) -> list[str]:
    """A list is several words, settings of an env are JSON."""
    if isinstance(value, list | tuple):
        return [word for one in value for word in value_words(one)]
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, float):
        return [f"{value:g}" if float(f"{value:g}") == value else repr(value)]
    return ["none" if value is None else json.dumps(value) if isinstance(value, dict) else str(value)]


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
        found |= _words_in(sys.modules[kind.__module__].__file__).get(kind.__qualname__, {})
    return found


@functools.cache
def _words_in(source: str | None) -> dict[str, dict[str, str]]:
    """By class of a source file and by field: the text below it."""
    text = Path(source).read_text("utf-8") if source and source.endswith(".py") else ""
    return {name: dict(_words_of(node)) for name, node in _classes(ast.parse(text))}


def _classes(
    inside: ast.Module | ast.ClassDef | ast.FunctionDef, before: str = ""
) -> Iterator[tuple[str, ast.ClassDef]]:
    """Each with its qualified name."""
    for node in inside.body:
        if isinstance(node, ast.ClassDef):
            yield before + node.name, node
            yield from _classes(node, f"{before}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield from _classes(node, f"{before}{node.name}.<locals>.")


def _words_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:]):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, " ".join(words.split())


def _scalar(word: str, *kinds: Any) -> Any:
    """A word as a config file would have it; whole numbers may be written 1e6 here, and nothing as none."""
    if word.lower() == NOTHING and type(None) in kinds:
        return None
    try:
        value = parse_config(f"value: {word}")["value"]
    except InvalidConfig:
        return word
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    return value
