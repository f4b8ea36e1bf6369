"""Torch, where it is needed, and how many threads it computes in. Small networks learn without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multiverse.core.errors import PreflightError, in_a_line


def torch_for(what: str) -> Any:
    """The module; refused in one sentence where it is not installed, or does not load."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise PreflightError(f"{what} needs torch, not installed here: pip install 'multiverse[train]'") from error
    except Exception as error:  # where there is no /dev, say
        raise PreflightError(f"{what} needs torch, which does not load here: {in_a_line(error)}") from error
    return torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """The program's own setting comes back afterwards."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
