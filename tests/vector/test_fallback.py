"""The contract without features that only Linux has: an unlinked file, pipes as doorbells, no guard by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multiverse.ipc import platform

ROOT = Path(__file__).parents[2]
CORE = ["test_send_receive.py", "test_worker_death.py", "test_leaks.py", "test_orphans.py"]
WITH_PIPES_AND_FILES = "forkserver or (fork and leaks) or (thread and leaks) or idle"


@pytest.mark.skipif(platform.fallback_forced(), reason="this is that run")
def test_core_contract_tests_pass_on_the_portable_fallback() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--no-header"]
    chosen = ["-k", WITH_PIPES_AND_FILES, *(f"tests/vector/{name}" for name in CORE)]
    done = subprocess.run(
        [*command, *chosen],
        cwd=ROOT,
        env={**os.environ, "MULTIVERSE_FALLBACK": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_fallback_switch_disables_linux_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIVERSE_FALLBACK", "1")
    assert not (platform.has_memfd() or platform.has_eventfd() or platform.has_pidfd())
    monkeypatch.setenv("MULTIVERSE_FALLBACK", "0")
    assert not platform.fallback_forced()
