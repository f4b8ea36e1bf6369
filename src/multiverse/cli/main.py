"""`multiverse COMMAND …`: find the command, read its options (one frozen dataclass per command), and turn errors into
one line and an exit code.

Exit codes: 0 success; 1 the command found a problem; 2 the request was refused; 130 interrupted;
138, 143 ended by a signal (SIGUSR1, SIGTERM); 141 the reader of the output has closed it.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import json
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any, TextIO, TypeVar

import multiverse
from multiverse.cli.results import for_results_alone
from multiverse.core.errors import EnvFailed, InvalidRequest, MultiverseError, PreflightError, ReplyTimeout
from multiverse.core.wording import in_a_line, in_words, nearest
from multiverse.ipc.interrupts import EXIT_CODES, end_on_request

Options = TypeVar("Options")

COMMANDS = {
    "train": "train an algorithm: a preset or your own settings, in a run that can be resumed exactly",
    "resume": "go on with a run where its last checkpoint is, or make it longer",
    "evaluate": "how good a run's policy is, on unseen seeds",
    "record": "a video of a run's policy, without a screen",
    "replay": "an episode of a run's last evaluation once more, bit for bit, with a video if wanted",
    "plot": "learning curves over seeds, speed and time of runs: a PNG, and one HTML page",
    "compare": "runs side by side: settings that differ, returns, speed",
    "report": "everything about a run in one HTML file: curves, video, failures, settings, machine",
    "list": "envs, presets, algorithms, networks and runs",
    "demo": "see it work: 8 CartPoles learn to balance, and how fast they step, in under a minute",
    "bench": "steps per second of your env: every executor beside the plain loop and the machine's limit",
    "tune": "how to run your env on this machine, in a file for train --plan; --search: hyper-parameters",
    "check-env": "check your env: what is wrong with it, why that matters, and what to change",
    "doctor": "check this machine: cores, memory, limits, start methods, extras; --self-test after installing",
}

FAILED, REFUSED, INTERRUPTED, NOBODY_READS = 1, 2, 130, 141
CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of a write to an open file, as standard output is: the error names no file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if threading.current_thread() is threading.main_thread():
        for number in EXIT_CODES:
            signal.signal(number, end_on_request)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a × shows a ? instead
    _add_working_directory_to_path()
    try:
        with for_results_alone(arguments):
            code = _dispatch(arguments)
        sys.stdout.flush()  # here, where a closed pipe can still be handled quietly
        return code
    except SystemExit as end:  # of the parser: help was shown (0), or an option was refused (2)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED  # guard: commands-end-with-130
    except BrokenPipeError:
        send_nowhere(sys.stdout, sys.stderr)
        return NOBODY_READS
    except OSError as error:
        if error.filename is not None or error.errno not in CANNOT_WRITE:
            raise
        send_nowhere(sys.stdout)
        return _refused(arguments, f"the output could not be written: {error.strerror}")
    except MultiverseError as error:
        return _refused(arguments, one_line(error))
    except MemoryError as error:
        why = one_line(error) if str(error) else "this needs more than there is"
        return _refused(arguments, f"out of memory: {why}; try fewer envs, or smaller networks")


def _refused(arguments: Sequence[str], why: str) -> int:
    """Print the reason, if standard error can be written to."""
    try:
        print(f"{' '.join(['multiverse', *arguments[:1]])}: {why}", file=sys.stderr)
    except OSError:
        send_nowhere(sys.stderr)
    return REFUSED


def _open_missing_streams() -> None:
    """Standard streams that are closed (`>&-`) read from and write to the null device."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    from multiverse.executors.launch.output import hold_standard_descriptors  # not needed for help

    hold_standard_descriptors()
    for standard, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(standard, mode))


def _add_working_directory_to_path() -> None:
    """Let a console script find modules in the current folder, for `multiverse bench my_module:make_env`."""
    try:
        here = os.getcwd()
    except OSError:  # it was removed meanwhile
        return
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    command, *rest = arguments
    if command in ("-V", "--version"):
        print(f"multiverse {multiverse.__version__}")
        return 0
    if command not in COMMANDS:
        return _refused((), _unknown(command))
    code: int = importlib.import_module(f"multiverse.cli.commands.{command.replace('-', '_')}").run(rest)
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        "usage: multiverse COMMAND [OPTIONS]\n\n"
        "Many reinforcement-learning environments in parallel, at the machine's speed.\n\n"
        f"commands:\n{commands}\n\n"
        "options:\n"
        "  -h, --help     show this help; `multiverse COMMAND --help` shows a command's\n"
        "  -V, --version  show the version\n\n"
        "examples:\n"
        "  multiverse train CartPole-v1\n"
        "  multiverse bench CartPole-v1 --num-envs 8 64"
    )


def _unknown(command: str) -> str:
    near = nearest(command.lstrip("-"), COMMANDS, cutoff=0.5)
    hint = f"did you mean `multiverse {near[0]}`?" if near else f"there are {', '.join(COMMANDS)}"
    kind = "option" if command.startswith("-") else "command"
    return f"no {kind} {command!r}; {hint} (`multiverse --help` shows all)"


def send_nowhere(*streams: TextIO) -> None:
    """Discard further output, so that the flush of the interpreter at exit does not fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
    except OSError:  # no /dev
        return
    for stream in streams:
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # no descriptor behind it
            pass
    os.close(nowhere)


def one_line(error: Exception) -> str:
    """Return the error and, if the code of an env raised it, the file and line."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if isinstance(error, ReplyTimeout):
        return f"{error.headline}. {error.hint_outside}"
    if isinstance(error, EnvFailed):
        text += error.failures[0].place()
        text += f"{'; ' if error.hint[0].islower() else '. '}{error.hint}" if error.hint else ""
    return text


# -- options of commands ----------------------------------------------------------------------------------------
def parse(options: type[Options], command: str, description: str, arguments: Sequence[str]) -> Options:
    """Return the options; show help, or refuse what is not understood, and exit."""
    import tyro  # slow to import

    return tyro.cli(
        options,
        prog=f"multiverse {command}",
        description=_indented(description),
        args=list(arguments),
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _indented(description: str) -> str:
    """Indent lines, which tyro would join otherwise; headings ("examples:") stay where they are."""
    return textwrap.indent(description, "  ", lambda line: not line.endswith(":\n"))


def parsed_kwargs(text: str, flag: str = "--env-kwargs") -> dict[str, Any]:
    """Return the arguments that a flag gives as a JSON object."""
    example = "'{\"g\": 9.8}'"
    try:
        kwargs = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{flag} {in_words(text)} is not JSON ({in_a_line(error)}); example: {example}") from error
    if not isinstance(kwargs, dict):
        raise InvalidRequest(f"{flag} {in_words(text)}: expected a JSON object; example: {example}")
    return kwargs


def require_positive(**amounts: float | None) -> None:
    """Refuse amounts that are not positive; None is not given."""
    for name, amount in amounts.items():
        if amount is not None and not amount > 0:
            raise InvalidRequest(f"--{name.replace('_', '-')} {amount:g}: must be more than 0")


def require(extra: str, *modules: str, purpose: str) -> None:
    """Refuse what needs modules that are not installed, or do not load."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise PreflightError(
            f"{purpose} needs {' and '.join(missing)}, not installed here: pip install 'multiverse[{extra}]'"
        )
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # such as torch without /dev
            raise PreflightError(f"{purpose} needs {module}, which does not load here: {in_a_line(error)}") from error
