"""For every test: a guard against hanging, and a place of its own for what is kept for a user."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell, which has its programs ignore Ctrl-C; those that we start must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)

HANG_AFTER_S = 120

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # while pytest does not capture


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


@pytest.fixture(autouse=True)
def no_test_hangs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shows where every thread stands, and ends the whole run, if a test takes too long."""
    faulthandler.dump_traceback_later(HANG_AFTER_S, exit=True, file=request.config.stash[_stderr])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def ctrl_c_is_pythons() -> Iterator[None]:
    """Tests that press Ctrl-C wait for its exception: no other, nor a library in it, keeps it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "this test has taken Ctrl-C, and kept it"


@pytest.fixture(autouse=True, scope="module")
def no_cluster_stays() -> Iterator[None]:
    """A Ray cluster ends with the file that needed it: others count processes, sockets and descriptors."""
    yield
    ray_cluster = sys.modules.get("multiverse.executors.ray_cluster")
    if ray_cluster is not None:
        ray_cluster.shut_down()


@pytest.fixture(autouse=True, scope="session")
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key by which a user's own runs are known is not that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_disk_is_waited_for() -> Iterator[None]:
    """What is forced to the disk, and when, is looked at where that is the point. That it takes its time is not: only a
    loss of power would tell. Programs that tests start do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # what is no descriptor is still an error
        yield
