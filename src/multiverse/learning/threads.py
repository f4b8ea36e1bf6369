"""Import of torch where it is needed, and its number of threads. Small networks learn without torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multiverse.core.errors import PreflightError
from multiverse.core.wording import short_error


def torch_for(what: str) -> Any:
    """Return torch; raise if it is not installed or cannot be imported. `what`: the feature that needs it."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise PreflightError(f"{what} needs torch, not installed here: pip install 'multiverse[train]'") from error
    except Exception as error:  # for example without /dev
        raise PreflightError(f"{what} needs torch, which does not load here: {short_error(error)}") from error
    return torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads, and restore it afterwards."""
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
