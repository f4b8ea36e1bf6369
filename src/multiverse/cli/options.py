"""Options of a command: a frozen dataclass with a field for each option, which is read by argparse.

The flags of commands that take every setting of a run are in `cli/flags.py`. Imports no numpy and no gymnasium, so that
the help of a command is shown at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from multiverse.core.errors import InvalidRequest
from multiverse.core.wording import nearest

Options = TypeVar("Options")

ENV_HELP = "Gymnasium id, or module:name of a function or class that builds an env (Gymnasium or PettingZoo)."
ENV_KWARGS_HELP = "Keyword arguments of the env, as a JSON object."
TRUST_HELP = "Trust a run or config that you did not write here: call the code and join the cluster that it names."
RUN_HELP = "Directory of a run, a checkpoint in it, or a parent directory (the most recent run is used)."
MOVED_HELP = "Your {}, if it was defined in a program or has moved."
OUT_HELP = "Default: the folder RUN; for several runs, the current folder."
QUIET_HELP = "Print only the run's directory, at the end."
JSON_HELP = "Print one JSON object per line: start, metrics (every 3 s), evaluation, and end or error."
RUNS_HELP = "Directories of runs, or directories that contain runs."
WIDTH = 80
METAVARS = {int: "INT", float: "FLOAT"}


def option(default: Any, help: str, *, metavar: str = "", aliases: Sequence[str] = ()) -> Any:
    """A field that is given by a flag of its name; `aliases`: other spellings of the flag."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, "aliases": aliases})


def argument(metavar: str, help: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that is given without a flag; a tuple takes one or more words."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, "aliases": None})


def parse(options: type[Options], command: str, description: str, arguments: Sequence[str]) -> Options:
    """Return the options that these words give. `--help` prints the help and exits; anything that is not understood
    raises `InvalidRequest`."""
    parser, kinds = CommandParser(command, description), get_type_hints(options)
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        parser.add(field, kinds[field.name])
    try:
        given, unknown = parser.parse_known_intermixed_args([spelled(word) for word in arguments])
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{str(error.argument_name).partition('/')[0]}: {error.message}") from None
    if unknown:
        raise InvalidRequest(parser.unknown(unknown[0].partition("=")[0]))
    return options(**{name: tuple(value) if isinstance(value, list) else value for name, value in vars(given).items()})


class CommandParser(argparse.ArgumentParser):
    """Parser of all commands: mistakes raise `InvalidRequest`, and the help has 80 columns."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"multiverse {command}",
            usage=f"multiverse {command} [OPTIONS]",
            description=description,
            formatter_class=lambda prog: _Formatter(prog, max_help_position=8, width=WIDTH),
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            exit_on_error=False,
        )

    def add(self, field: dataclasses.Field[Any], kind: Any) -> None:
        """Add the flag, or the positional argument, of a field."""
        about: Any = field.metadata
        default: Any = field.default
        kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
        several = get_origin(kinds[0]) is tuple
        value = get_args(kinds[0])[0] if several else kinds[0]
        choices = get_args(value) if get_origin(value) is Literal else ()
        metavar = about["metavar"] or (f"{{{','.join(choices)}}}" if choices else METAVARS.get(value, "STR"))
        help, converter = about["help"].replace("%", "%%"), _converter(value, choices, type(None) in kinds)
        if about["aliases"] is None:
            nargs = "+" if several else None if default is dataclasses.MISSING else "?"
            self.usage = f"{self.usage} {metavar + ' …' * several if nargs != '?' else f'[{metavar}]'}"
            self.add_argument(field.name, metavar=metavar, nargs=nargs, default=default, type=converter, help=help)
            return
        flag = field.name.replace("_", "-")
        if kind is bool:
            action, flag = ("store_false", f"no-{flag}") if default else ("store_true", flag)
            self.add_argument(f"--{flag}", dest=field.name, action=action, help=help)
            return
        shown = " ".join(map(str, default)) if several else f"{default:g}" if value is float and default else default
        notes = [f"default: {shown}"] if shown not in (None, "", "{}") else []
        notes += [f"also {', '.join(about['aliases'])}"] if about["aliases"] else []
        help = f"{help} ({'; '.join(notes)})" if notes else help
        flags, nargs = (f"--{flag}", *about["aliases"]), "+" if several else None
        self.add_argument(*flags, dest=field.name, metavar=metavar, nargs=nargs, type=converter, help=help)

    def unknown(self, word: str) -> str:
        """Return the error about a flag that does not exist, or a word too many."""
        if not word.startswith("-"):
            return f"unexpected argument {word!r}; `{self.prog} --help` lists the options"
        near = nearest(word, self._option_string_actions)
        return (
            f"there is no {word}; {f'did you mean {near[0]}?' if near else f'`{self.prog} --help` lists the options'}"
        )

    def error(self, message: str) -> NoReturn:
        """Report a missing argument, with the first example of the description."""
        example = str(self.description).partition("examples:\n")[2].partition("\n")[0].strip()
        raise InvalidRequest(f"{message.rpartition(': ')[2]} is missing; for example: `{example}`")

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse would ignore errors such as a closed pipe


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show the first spelling of a flag; its help names the others."""
        if not action.option_strings or action.option_strings[0] == "-h":
            return super()._format_action_invocation(action)
        flag, values = action.option_strings[0], f" {action.metavar}{' …' if action.nargs == '+' else ''}"
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"{flag}, --no-{flag.removeprefix('--')}"
        return flag if action.nargs == 0 else flag + values


def _converter(kind: Any, choices: Sequence[str], optional: bool) -> Callable[[str], Any]:
    """Return the function that converts a word to a value of this kind."""

    def convert(word: str) -> Any:
        if optional and kind is not str and word.lower() == "none":
            return None
        if choices and word not in choices:
            hint = "".join(f". Did you mean {near}?" for near in nearest(word, choices))
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(choices)}, found {word!r}{hint}")
        try:
            return kind(word) if kind in METAVARS else word
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {expected}, found {word!r}") from None

    return convert


def spelled(word: str) -> str:
    """Return a flag in its usual spelling: with hyphens, and in small letters."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-").lower() + equals + value
