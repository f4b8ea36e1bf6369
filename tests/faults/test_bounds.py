"""Rows B3 and B6: an observation outside its Box is reported once per env and counted; a missing part is an error."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import multiverse as mv
from tests.faults.conftest import LoggedWarnings
from tests.faults.value_envs import LeavesItsBox, Nested, OmitsPart
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

EVERYWHERE = [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID]
everywhere = pytest.mark.parametrize("config", EVERYWHERE, ids=str)
STEPS = 4


@pytest.mark.fault("B3")
@pytest.mark.parametrize(
    ("config", "mode"), [*((config, "raise") for config in EVERYWHERE), (FORKSERVER, "truncate")], ids=str
)
def test_out_of_bounds_observation_is_reported_once_per_env_and_counted_each_step(
    make: Make, config: Configuration, mode: Any, logged_warnings: LoggedWarnings
) -> None:
    envs = make(LeavesItsBox, env_kwargs={"high": 2}, on_failure=mv.FailureOptions(on_bad_value=mode))
    envs.reset(seed=0)
    for k in range(STEPS):
        observations, _, _, truncated, _ = envs.step(actions(range(config.num_envs), k))
        assert not truncated.any()
    assert observations[:, 1].tolist() == [STEPS] * config.num_envs
    assert envs.failures.out_of_bounds == (STEPS - 2) * config.num_envs
    assert envs.failures.bad_values == 0
    assert sorted(message.split(":")[0] for message in logged_warnings()) == [
        f"env {i}" for i in range(config.num_envs)
    ]
    for part in ("the observation is 3.0 at index 1", "0.0 to 2.0", "out_of_bounds"):
        assert all(part in message for message in logged_warnings())


@pytest.mark.fault("B3")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_out_of_bounds_leaf_is_named_by_its_path(
    make: Make, config: Configuration, logged_warnings: LoggedWarnings
) -> None:
    kwargs = [{"box": (-8, 9)}] * (config.num_envs - 1) + [{"box": (-8, 9), "what": "outside_observation"}]
    envs = make(Nested, env_kwargs=kwargs)
    envs.reset(seed=0)
    envs.step(actions(range(config.num_envs), 0))
    (message,) = logged_warnings()
    assert f"env {config.num_envs - 1}: the observation['body'][1] is 1000000.0 at index 1" in message
    assert envs.failures.out_of_bounds == 1


@pytest.mark.fault("B3")
@everywhere
def test_clip_mode_uses_the_nearest_bound(make: Make, config: Configuration) -> None:
    envs = make(LeavesItsBox, env_kwargs={"high": 2}, on_failure=mv.FailureOptions(on_bad_value="clip"))
    envs.reset(seed=0)
    shown = [envs.step(actions(range(config.num_envs), k))[0][:, 1].tolist() for k in range(STEPS)]
    assert shown == [[min(k + 1, 2)] * config.num_envs for k in range(STEPS)]


@pytest.mark.fault("B3")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_off_mode_neither_counts_nor_reports(
    make: Make, config: Configuration, logged_warnings: LoggedWarnings
) -> None:
    envs = make(LeavesItsBox, env_kwargs={"high": 2}, on_failure=mv.FailureOptions(on_bad_value="off"))
    envs.reset(seed=0)
    for k in range(STEPS):
        envs.step(actions(range(config.num_envs), k))
    assert (envs.failures.out_of_bounds, logged_warnings()) == (0, [])


@pytest.mark.fault("B3")
def test_replaced_worker_does_not_repeat_warnings(logged_warnings: LoggedWarnings) -> None:
    """The counts outlive a worker, and so does the record of warnings."""
    with FORKSERVER.make(LeavesItsBox, env_kwargs={"high": 1}, on_failure="restart") as envs:
        envs.reset(seed=0)
        for k in range(2):
            envs.step(actions(range(4), k))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        for k in range(4):
            envs.step(actions(range(4), k))
        counted = envs.failures.out_of_bounds
    assert counted > 4
    assert sum("out_of_bounds" in message for message in logged_warnings()) == 4


@pytest.mark.fault("B6")
@pytest.mark.parametrize(
    ("config", "forgets"), [*((config, "key") for config in EVERYWHERE), (FORKSERVER, "item")], ids=str
)
def test_missing_part_of_an_observation_is_an_error_that_names_it(
    make: Make, config: Configuration, forgets: str
) -> None:
    last = config.num_envs - 1
    said = {"key": r"the observation has no 'camera'", "item": r"observation\['joints'\] has no 1"}[forgets]
    envs = make(OmitsPart, env_kwargs=[{}] * last + [{"forgets": forgets}])
    envs.reset(seed=0)
    envs.step(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.EnvFailed, match=said) as caught:
        envs.step(actions(range(config.num_envs), 1))
    assert (caught.value.env_ids, caught.value.failures[0].type_name) == ((last,), "BadValue")
    envs.reset(seed=1)
    envs.step(actions(range(config.num_envs), 0))


@pytest.mark.fault("B6")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
@pytest.mark.parametrize("mode", ["clip", "off", "truncate"])
def test_missing_part_of_an_observation_is_never_filled_in(make: Make, config: Configuration, mode: Any) -> None:
    """No mode fills in a number; "truncate" repeats the observation before."""
    last = config.num_envs - 1
    envs = make(
        OmitsPart, env_kwargs=[{}] * last + [{"forgets": "key"}], on_failure=mv.FailureOptions(on_bad_value=mode)
    )
    envs.reset(seed=0)
    before, *_ = envs.step(actions(range(config.num_envs), 0))
    if mode == "truncate":
        observations, _, _, truncated, _ = envs.step(actions(range(config.num_envs), 1))
        assert truncated[last] and observations["camera"][last] == before["camera"][last]
    else:
        with pytest.raises(mv.errors.EnvFailed, match="has no 'camera'"):
            envs.step(actions(range(config.num_envs), 1))
