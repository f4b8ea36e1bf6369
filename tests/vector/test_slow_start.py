"""An env whose construction hangs is an error after a time limit, with the hanging line; nothing is left."""

from __future__ import annotations

import threading

import pytest

import multiverse as mv
from tests.fault_envs import Gate, Gated
from tests.vector.configurations import FORK, FORKSERVER, THREAD, Configuration
from tests.vector.conftest import Make


@pytest.mark.fault("A4")
@pytest.mark.parametrize("config", [FORKSERVER, FORK, THREAD], ids=str)
def test_hanging_constructor_is_an_error_that_shows_where(make: Make, config: Configuration, gate: Gate) -> None:
    last = config.num_envs - 1
    kwargs = [{"gate": str(gate), "phase": "constructor"} if i == last else {} for i in range(config.num_envs)]
    with pytest.raises(mv.errors.ReplyTimeout, match="has not answered for 4 s in start") as caught:
        make(Gated, env_kwargs=kwargs, timeouts=mv.Timeouts(reset_s=4.0, close_s=0.2))
    assert "wait_at" in caught.value.stack
    assert last in caught.value.env_ids
    if config is THREAD:  # it cannot be killed; let it continue
        gate.wait_for_arrival()
        gate.open()
        for thread in threading.enumerate():
            if thread.name.startswith("multiverse-worker"):
                thread.join(10)
