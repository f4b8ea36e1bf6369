"""A finding: what one check of `multiverse doctor` found, how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "blocking"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    status: Status
    found: str
    advice: str = ""


Check = Callable[[], Finding]
