"""From a command's arguments to its options, one frozen dataclass per command; and what must hold for them."""

from __future__ import annotations

import importlib
import importlib.util
import textwrap
from collections.abc import Sequence
from typing import TypeVar

from multiverse.contracts.errors import InvalidRequest, PreflightError, in_a_line

Options = TypeVar("Options")


def parse(options: type[Options], command: str, description: str, arguments: Sequence[str]) -> Options:
    """The options given; shows help, or what was not understood, and exits where that is called for."""
    import tyro  # which takes its time

    return tyro.cli(
        options,
        prog=f"multiverse {command}",
        description=_indented(description),
        args=list(arguments),
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _indented(description: str) -> str:
    """Tyro would join lines that begin with a letter; headings ("examples:") stay where they are."""
    return textwrap.indent(description, "  ", lambda line: not line.endswith(":\n"))


def require_positive(**amounts: float | None) -> None:
    """Every amount given must be more than nothing; None leaves it open."""
    for name, amount in amounts.items():
        if amount is not None and not amount > 0:
            raise InvalidRequest(f"--{name.replace('_', '-')} {amount:g}: must be more than 0")


def require(extra: str, *modules: str, purpose: str) -> None:
    """Refuse, in one sentence, what cannot be done without these."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise PreflightError(
            f"{purpose} needs {' and '.join(missing)}, not installed here: pip install 'multiverse[{extra}]'"
        )
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # torch, say, where there is no /dev
            raise PreflightError(f"{purpose} needs {module}, which does not load here: {in_a_line(error)}") from error
