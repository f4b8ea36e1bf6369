"""Options of a command: a frozen dataclass with a field for each option, which is read by argparse.

Used by all commands except those that take every setting of a run (`cli/flags.py`). Imports no numpy and no gymnasium,
so that the help of a command is shown at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from multiverse.core.errors import InvalidRequest
from multiverse.core.names import nearest

Options = TypeVar("Options")

WIDTH = 80
ENV_HELP = "Gymnasium id, or module:name of a function or class that builds an env (Gymnasium or PettingZoo)."
ENV_KWARGS_HELP = "Keyword arguments of the env, as a JSON object."
TRUST_HELP = "Allow a run that you did not write here to call the code and join the Ray cluster that it names."
QUIET_HELP = "Print only the run's directory, at the end."
JSON_HELP = "Print one JSON object per line: start, metrics (every 3 s), evaluation, and end or error."
RUNS_HELP = "Directories of runs, or directories that contain runs."
_WORDS = "words"
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}


def option(default: Any, help: str, *, metavar: str = "", aliases: Sequence[str] = ()) -> Any:
    """A field that is given by a flag of its name; `aliases`: other spellings of the flag."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, "aliases": aliases})


def argument(metavar: str, help: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that is given without a flag. A command has at most one; a tuple takes one or more words."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, "positional": True})


def parse(options: type[Options], command: str, description: str, arguments: Sequence[str]) -> Options:
    """Return the options that these words give. `--help` prints the help and exits; anything that is not understood
    raises `InvalidRequest`."""
    kinds = get_type_hints(options)
    every = {one.name: _Option(one, kinds[one.name]) for one in dataclasses.fields(options)}  # type: ignore[arg-type]
    flags = {flag: one for one in every.values() for flag in one.flags}
    parser = _parser(command, description, [*every.values()])
    try:
        given, unknown = parser.parse_known_intermixed_args([spelled(word) for word in arguments])
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{error.argument_name}: {error.message}") from None
    for word in unknown:
        if word.startswith("-"):
            raise InvalidRequest(_unknown_flag(word, flags, command))
    texts: dict[str, Any] = vars(given)
    words = [*texts.pop(_WORDS, []), *unknown]
    for name, values in texts.items():  # `--num-envs 8 64 CartPole-v1`: what is no number is the env
        while isinstance(values, list) and len(values) > 1 and not every[name].accepts(values[-1]):
            words.append(values.pop())
    values = {name: every[name].read(text) for name, text in texts.items()}
    positional = next((one for one in every.values() if one.is_positional), None)
    if positional is None and words:
        raise InvalidRequest(f"unexpected argument {words[0]!r}; `multiverse {command} --help` lists the options")
    if positional is not None and (words or positional.default is dataclasses.MISSING):
        values[positional.name] = positional.read_words(words, _example(description))
    return options(**values)


class _Option:
    """One field of a command's options."""

    def __init__(self, field: dataclasses.Field[Any], kind: Any) -> None:
        self.name, self.default, self.about = field.name, field.default, field.metadata
        alternatives = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
        self.is_optional = type(None) in alternatives
        (value_kind,) = (one for one in alternatives if one is not type(None))
        self.is_list = get_origin(value_kind) is tuple
        self.kind = get_args(value_kind)[0] if self.is_list else value_kind
        self.choices: tuple[str, ...] = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        self.is_positional = bool(self.about.get("positional"))

    @property
    def flags(self) -> list[str]:
        """Spellings of its flag; a switch that is on by default is turned off by --no-NAME."""
        if self.is_positional:
            return []
        name = self.name.replace("_", "-")
        return [f"--no-{name}" if self.default is True else f"--{name}", *self.about["aliases"]]

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        choices = "{" + ",".join(self.choices) + "}" if self.choices and not self.is_list else ""
        return str(self.about["metavar"] or choices or {int: "INT", float: "FLOAT"}.get(self.kind, "STR"))

    @property
    def usage(self) -> str:
        """How it is typed without a flag."""
        return self.metavar + " …" * self.is_list if self.default is dataclasses.MISSING else f"[{self.metavar}]"

    @property
    def help(self) -> str:
        """Its help with its default and its other spellings."""
        default: Any = self.default
        default = " ".join(map(str, default)) if isinstance(default, tuple) else default
        default = f"{default:g}" if isinstance(default, float) else default
        shown = not self.is_positional and default not in (None, "", "{}") and self.kind is not bool
        notes = [f"default: {default}"] if shown else []
        notes += [f"also {', '.join(self.flags[1:])}"] if self.flags[1:] else []
        return f"{self.about['help']} ({'; '.join(notes)})" if notes else str(self.about["help"])

    def accepts(self, text: str) -> bool:
        try:
            self._value(text)
        except InvalidRequest:
            return False
        return True

    def read(self, given: Any) -> Any:
        """Return the value of the text, or texts, that were given."""
        if isinstance(given, list):
            return tuple(self._value(text) for word in given for text in word.split(",") if text)
        return given if isinstance(given, bool) else self._value(given)

    def read_words(self, words: Sequence[str], example: str) -> Any:
        """Return the value of the words that were given without a flag."""
        if not words:
            raise InvalidRequest(f"{self.metavar} is missing; for example: `{example}`")
        if len(words) > 1 and not self.is_list:
            raise InvalidRequest(f"expected one {self.metavar}, got {len(words)}: {', '.join(words)}")
        return tuple(map(self._value, words)) if self.is_list else self._value(words[0])

    def _value(self, text: str) -> Any:
        if self.is_optional and self.kind is not str and text.lower() == "none":
            return None
        if self.choices and text not in self.choices:
            near = nearest(text, self.choices)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(self.choices)}"
            raise InvalidRequest(f"{self.flags[0] if self.flags else self.metavar} {text}: {hint}")
        try:
            if self.kind is int and re.fullmatch(r"[0-9.]+[eE]\+?[0-9]+", text) and float(text).is_integer():
                return int(float(text))
            return self.kind(text) if self.kind in _KINDS else text
        except ValueError:
            raise InvalidRequest(f"{self.flags[0]}: expected {_KINDS[self.kind]}, found {text!r}") from None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        keywords: dict[str, Any] = {"dest": self.name, "help": self.help.replace("%", "%%")}
        if self.kind is bool:
            keywords["action"] = "store_false" if self.default is True else "store_true"
        else:
            keywords |= {"metavar": self.metavar, "nargs": "+" if self.is_list else None}
        parser.add_argument(*self.flags, **keywords)


def _parser(command: str, description: str, options: Sequence[_Option]) -> argparse.ArgumentParser:
    words = " ".join(one.usage for one in options if one.is_positional)
    parser = _Parser(
        prog=f"multiverse {command}",
        usage=f"multiverse {command} [OPTIONS] {words}".rstrip(),
        description=description,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=8, width=WIDTH),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        exit_on_error=False,
    )
    for one in options:
        if one.is_positional:
            parser.add_argument(_WORDS, nargs="*", metavar=one.metavar, help=one.help.replace("%", "%%"))
        else:
            one.add_to(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(message)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse would ignore errors such as a closed pipe


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show the first spelling of a flag only; its help has the others."""
        if not action.option_strings or action.option_strings[0] == "-h":
            return super()._format_action_invocation(action)
        several = " …" if action.nargs == "+" else ""
        return action.option_strings[0] + ("" if action.nargs == 0 else f" {action.metavar}{several}")

    def _get_default_metavar_for_positional(self, action: argparse.Action) -> str:
        return str(action.metavar)


def _unknown_flag(word: str, known: Mapping[str, Any], command: str) -> str:
    flag = word.partition("=")[0]
    if near := nearest(flag, known):
        return f"there is no {flag}; did you mean {near[0]}?"
    return f"there is no {flag}; `multiverse {command} --help` lists the options"


def _example(description: str) -> str:
    """Return the first command of the examples in a description."""
    lines = description.partition("examples:\n")[2].splitlines()
    return lines[0].strip() if lines else ""


def spelled(word: str) -> str:
    """Return a flag in its usual spelling: with hyphens, and in small letters."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-").lower() + equals + value
