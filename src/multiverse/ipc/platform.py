"""Features of the operating system, with one switch that selects the portable fallbacks.

MULTIVERSE_FALLBACK=1, which the tests use, runs as on macOS: with an unlinked file, and pipes as doorbells.
"""

from __future__ import annotations

import os


def fallback_forced() -> bool:
    return os.environ.get("MULTIVERSE_FALLBACK", "") not in ("", "0")


def has_memfd() -> bool:
    return hasattr(os, "memfd_create") and hasattr(os, "posix_fallocate") and not fallback_forced()


def has_eventfd() -> bool:
    return hasattr(os, "eventfd") and not fallback_forced()


def has_pidfd() -> bool:
    return hasattr(os, "pidfd_open") and not fallback_forced()
