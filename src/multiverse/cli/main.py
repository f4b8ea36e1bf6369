"""`multiverse COMMAND …`: run a command, and turn errors into one line and an exit code.

Exit codes: 0 success; 1 the command found a problem; 2 the request was refused; 130 interrupted;
138, 143 ended by a signal (SIGUSR1, SIGTERM); 141 the reader of the output has closed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import multiverse
from multiverse.core.errors import EnvFailed, InvalidRequest, MultiverseError, PreflightError, ReplyTimeout
from multiverse.core.wording import nearest, short_error, short_repr
from multiverse.ipc.interrupts import EXIT_CODES, end_on_request

COMMANDS = {
    "train": "train an algorithm on an env, in a run that can be resumed exactly",
    "resume": "continue a run from its last checkpoint, or train it for longer",
    "evaluate": "measure the return of a run's policy on unseen seeds",
    "record": "record a video of a run's policy; needs no screen",
    "replay": "play an episode of a run's evaluation again, bit for bit",
    "plot": "plot learning curves, speed and time of runs, as PNG and HTML",
    "compare": "compare the settings, returns and speed of runs",
    "report": "write one HTML file with everything about a run",
    "list": "list envs, presets, algorithms, networks and runs",
    "demo": "train on CartPole and measure its speed, in under a minute",
    "bench": "measure the steps per second of your env with each executor",
    "tune": "find the fastest way to run your env; --search: hyperparameters",
    "check-env": "find mistakes in your env, and how to fix them",
    "doctor": "check this machine; --self-test: run every executor once",
}

FAILED, REFUSED, INTERRUPTED, OUTPUT_CLOSED = 1, 2, 130, 141
CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of a write to an open file such as standard output; they name no file."""

MACHINE_READABLE = {"--json", "--quiet"}
HELP = {"-h", "--help"}
_result_streams: list[TextIO] = []  # standard output, while `sys.stdout` is another stream


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if threading.current_thread() is threading.main_thread():
        for number in EXIT_CODES:
            signal.signal(number, end_on_request)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # show ? for characters that the terminal does not have
    _add_working_directory_to_path()
    try:
        with redirected_output(arguments):
            code = _dispatch(arguments)
        sys.stdout.flush()  # here, where a closed pipe can still be handled quietly
        return code
    except SystemExit as end:  # a signal was handled
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED  # guard: commands-end-with-130
    except BrokenPipeError:
        discard_output(sys.stdout, sys.stderr)
        return OUTPUT_CLOSED
    except OSError as error:
        if error.filename is not None or error.errno not in CANNOT_WRITE:
            raise
        discard_output(sys.stdout)
        return _refused(arguments, f"the output could not be written: {error.strerror}")
    except MultiverseError as error:
        return _refused(arguments, one_line(error))
    except MemoryError as error:
        reason = f" ({one_line(error)})" if str(error) else ""
        return _refused(arguments, f"out of memory{reason}; use fewer envs or smaller networks")


def _refused(arguments: Sequence[str], reason: str) -> int:
    """Print the reason, if standard error can be written to."""
    try:
        print_wrapped(f"{' '.join(['multiverse', *arguments[:1]])}: {reason}", sys.stderr)
    except OSError:
        discard_output(sys.stderr)
    return REFUSED


def _open_missing_streams() -> None:
    """Connect standard streams that are closed (`>&-`) to the null device."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    from multiverse.executors.launch.output import hold_standard_descriptors  # not needed for help

    hold_standard_descriptors()
    for standard, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(standard, mode))


def _add_working_directory_to_path() -> None:
    """Let a console script import modules from the current folder, for `multiverse bench my_module:make_env`."""
    try:
        here = os.getcwd()
    except OSError:  # the folder was removed
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
    try:
        return int(importlib.import_module(f"multiverse.cli.commands.{command.replace('-', '_')}").run(rest))
    except SystemExit as end:
        if end.code:
            raise
        return 0  # the parser has printed the help


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        "usage: multiverse COMMAND [OPTIONS]\n\n"
        "Run many reinforcement-learning environments in parallel, and train on them.\n\n"
        f"commands:\n{commands}\n\n"
        "options:\n"
        "  -h, --help     show this help; COMMAND --help shows that of a command\n"
        "  -V, --version  show the version\n\n"
        "examples:\n"
        "  multiverse train CartPole-v1\n"
        "  multiverse bench CartPole-v1 --num-envs 8 64"
    )


def _unknown(command: str) -> str:
    is_option = command.startswith("-")
    near = nearest(command, ("--help", "--version") if is_option else COMMANDS, cutoff=0.5)
    hint = f"did you mean `multiverse {near[0]}`?" if near else "`multiverse --help` lists all commands"
    return f"there is no {'option' if is_option else 'command'} {command!r}; {hint}"


def print_wrapped(text: str, stream: TextIO | None = None) -> None:
    """Print sentences on standard output or `stream`. On a terminal, lines are broken between words, but not inside
    commands (`…`)."""
    stream = stream or sys.stdout
    if stream is not None and stream.isatty():
        text = re.sub("`[^`\n]*`", lambda command: command[0].replace(" ", "\0"), text)
        width = shutil.get_terminal_size().columns - 1
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(map(wrapper.fill, text.split("\n"))).replace("\0", " ")
    print(text, file=stream, flush=True)


def discard_output(*streams: TextIO) -> None:
    """Discard further output, so that the interpreter's flush at exit does not fail."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
    except OSError:  # no /dev
        return
    for stream in streams:
        try:
            os.dup2(null, stream.fileno())
        except (OSError, ValueError):  # the stream has no descriptor
            pass
    os.close(null)


def one_line(error: Exception) -> str:
    """Return an error as one line; if the code of an env raised it, with the file and line."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if isinstance(error, ReplyTimeout):
        return f"{error.headline}. {error.hint_outside}"
    if isinstance(error, EnvFailed):
        text += error.failures[0].place()
        text += f"{'; ' if error.hint[0].islower() else '. '}{error.hint}" if error.hint else ""
    return text


# -- standard output for results only ------------------------------------------------------------------------------
def results() -> TextIO | None:
    """Return the stream for results: standard output while `sys.stdout` is redirected, else None for `sys.stdout`."""
    return _result_streams[-1] if _result_streams else None


@contextlib.contextmanager
def redirected_output(arguments: Sequence[str]) -> Iterator[None]:
    """With --json or --quiet, redirect the output of this process and of its workers to standard error. Only
    `results()` writes to standard output, so that a program that reads it gets nothing else."""
    if not MACHINE_READABLE.intersection(arguments) or HELP.intersection(arguments) or sys.stderr is None:
        yield
        return
    with _separate_result_stream() as stream, contextlib.redirect_stdout(sys.stderr):
        _result_streams.append(stream)
        try:
            yield
        finally:
            _result_streams.pop()


@contextlib.contextmanager
def _separate_result_stream() -> Iterator[TextIO]:
    """Yield a stream to standard output, and redirect the descriptor of standard output to standard error."""
    out, original = sys.stdout, -1
    out.flush()
    with contextlib.suppress(OSError, ValueError):  # a custom stream without descriptor, or no standard error
        if out.fileno() == 1 and os.fstat(2):
            original = os.dup(1)
            os.dup2(2, 1)
    stream = out if original < 0 else os.fdopen(original, "w", encoding=out.encoding, errors="replace", buffering=1)
    try:
        yield stream
    finally:
        if original >= 0:
            with contextlib.suppress(OSError, TypeError):  # Windows has no such library
                ctypes.CDLL(None).fflush(None)  # output buffered by native code
            os.dup2(original, 1)
            with contextlib.suppress(OSError):  # the reader has closed it
                stream.close()


# -- options of commands ----------------------------------------------------------------------------------------
def parsed_kwargs(text: str, flag: str = "--env-kwargs") -> dict[str, Any]:
    """Return the keyword arguments that a flag gives as a JSON object."""
    example = "'{\"g\": 9.8}'"
    try:
        kwargs = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"{flag} {short_repr(text)} is not JSON ({short_error(error)}); example: {example}"
        ) from error
    if not isinstance(kwargs, dict):
        raise InvalidRequest(f"{flag} {short_repr(text)}: expected a JSON object, such as {example}")
    return kwargs


def require_positive(**amounts: float | None) -> None:
    """Refuse amounts that are not positive; None stands for an option that was not given."""
    for name, amount in amounts.items():
        if amount is not None and not amount > 0:
            raise InvalidRequest(f"--{name.replace('_', '-')} {amount:g}: must be greater than 0")


def require(extra: str, *modules: str, purpose: str) -> None:
    """Raise `PreflightError` if a module of an extra is not installed, or cannot be imported."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise PreflightError(
            f"{purpose} needs {' and '.join(missing)}, not installed here: pip install 'multiverse[{extra}]'"
        )
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # such as torch without /dev
            raise PreflightError(f"{purpose} needs {module}, which does not load here: {short_error(error)}") from error
