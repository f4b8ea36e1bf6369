"""Row B9: `copy="poison"` finds a program that keeps arrays which the next step overwrites with `copy=False`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.faults.value_envs import Nested
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
CALLS = {
    "step": lambda envs: envs.step(actions(range(envs.num_envs), 1)),
    "reset": lambda envs: envs.reset(seed=1),
    "send": lambda envs: (envs.send(actions(range(envs.num_envs), 1)), envs.receive()),
}


@pytest.mark.fault("B9")
@everywhere
@pytest.mark.parametrize("env", [Walk, Nested])
def test_copied_results_never_change(make: Make, config: Configuration, env: Any) -> None:
    """Observations that differ from step to step, as one array and as several."""
    envs = make(env, autoreset="same_step")
    returned = [envs.reset(seed=0)]
    as_they_were = [copy.deepcopy(returned[0])]
    for k in range(7):
        returned.append(envs.step(actions(range(config.num_envs), k)))
        as_they_were.append(copy.deepcopy(returned[-1]))
    envs.reset(seed=1)
    assert_same(returned, as_they_were)


@pytest.mark.fault("B9")
@everywhere
def test_earlier_results_are_poisoned_at_the_next_call(make: Make, config: Configuration) -> None:
    envs = make(Nested, copy="poison")
    kept, _ = envs.reset(seed=0)
    assert np.isfinite(kept["body"][1]).all()
    envs.step(actions(range(config.num_envs), 0))
    assert np.isnan(kept["body"][1]).all()
    for integers in (kept["mode"], kept["body"][0]):
        limits = np.iinfo(integers.dtype)
        assert set(integers.tolist()) <= {limits.min, limits.max}


@pytest.mark.fault("B9")
@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_every_kind_of_call_poisons_earlier_results(make: Make, config: Configuration, call: str) -> None:
    envs = make(Walk, copy="poison")
    envs.reset(seed=0)
    kept, *_ = envs.step(actions(range(config.num_envs), 0))
    CALLS[call](envs)
    assert np.isnan(kept).all()


@pytest.mark.fault("B9")
@everywhere
def test_poisoned_mode_returns_the_same_values_as_copies(make: Make, config: Configuration) -> None:
    envs = make(Nested, copy="poison", autoreset="same_step")
    with SERIAL.make(Nested, config.num_envs, autoreset="same_step") as oracle:
        assert_same(envs.reset(seed=3), oracle.reset(seed=3))
        for k in range(8):
            batch = actions(range(config.num_envs), k)
            assert_same(envs.step(batch), oracle.step(batch))


@pytest.mark.fault("B9")
@pytest.mark.parametrize("word", [None, "poisson", 2])
def test_unknown_copy_mode_is_refused(word: Any) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="copy="):
        mv.make_vec(Walk, 2, "serial", copy=word)
