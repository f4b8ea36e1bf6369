"""Fixtures of every test: a guard against hanging, the default Ctrl-C handler and a separate state directory."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes its background programs ignore Ctrl-C; the programs that tests start must not inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

HANG_AFTER_S = 120

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # while pytest does not capture


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


@pytest.fixture(autouse=True)
def hang_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the stack of every thread and end the run if a test takes too long."""
    faulthandler.dump_traceback_later(HANG_AFTER_S, exit=True, file=request.config.stash[_stderr])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def default_ctrl_c_handler() -> Iterator[None]:
    """Install Python's handler of Ctrl-C before each test, and fail a test that leaves another one installed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, (
        "this test has not restored the Ctrl-C handler"
    )


@pytest.fixture(autouse=True, scope="module")
def ray_cluster_ends_with_the_module() -> Iterator[None]:
    """End the Ray cluster after the module that started it: other modules count processes, sockets and descriptors."""
    yield
    ray_cluster = sys.modules.get("multiverse.executors.ray_cluster")
    if ray_cluster is not None:
        ray_cluster.shut_down()


@pytest.fixture(autouse=True, scope="session")
def own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key that marks a user's own runs in a temporary directory instead of the home of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def disabled_fsync() -> Iterator[None]:
    """Do not wait for the disk: only a power failure would show a difference. Tests of what is synced replace
    `os.fsync` themselves; programs that tests start do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # an invalid descriptor is still an error
        yield
