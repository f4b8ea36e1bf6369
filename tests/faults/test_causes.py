"""Rows A9 and A10: a failure can be reproduced from the error; values that cannot be pickled are sent as text."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

import multiverse as mv
from tests.fault_envs import OddInfo
from tests.faults.conftest import LoggedWarnings
from tests.faults.value_envs import FailsReproducibly
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

EVERYWHERE = [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID]
with_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
SEED = 40


@pytest.mark.fault("A9")
@pytest.mark.parametrize("config", EVERYWHERE, ids=str)
def test_failed_episode_can_be_reproduced_from_its_error(make: Make, config: Configuration) -> None:
    """`FailsReproducibly` fails by its seed, its task and its actions together; none of its other episodes does."""
    n, broken = config.num_envs, config.num_envs - 1
    envs = make(FailsReproducibly, env_kwargs={"breaks_at": None})
    envs.set_attr("breaks_at", [None] * broken + [3])
    seeds = [SEED + 10 * i for i in range(n)]
    envs.reset(seed=seeds, tasks=[f"task {i}" for i in range(n)])
    with pytest.raises(mv.errors.EnvFailed) as caught:
        for k in range(9):
            envs.step(actions(range(n), k))
    (failure,) = caught.value.failures
    assert (failure.env_id, failure.seed, failure.task) == (broken, seeds[broken], f"task {broken}")
    assert (failure.episode, failure.step) == (0, 3)
    assert int(failure.action) == int(actions([broken], 2)[0])
    for reported in ("step 3 of episode 0", f"seed {seeds[broken]}", f"task 'task {broken}'", "action"):
        assert reported in str(caught.value)

    again = FailsReproducibly(breaks_at=3)
    again.reset(seed=failure.seed, options={"task": failure.task})
    for k in range(failure.step - 1):
        again.step(actions([broken], k)[0])
    with pytest.raises(ZeroDivisionError) as same:
        again.step(failure.action)
    assert failure.message == str(same.value)


@pytest.mark.fault("A9")
@pytest.mark.parametrize("config", EVERYWHERE, ids=str)
def test_failure_in_a_later_episode_names_the_last_seed_and_its_age(make: Make, config: Configuration) -> None:
    n = config.num_envs
    envs = make(FailsReproducibly, env_kwargs={"length": 2, "breaks_at": None})
    envs.reset(seed=SEED)
    for k in range(4):  # two steps, the reset, one more: the second episode
        envs.step(actions(range(n), k))
    envs.set_attr("breaks_at", 2)
    with pytest.raises(mv.errors.EnvFailed, match=r"step 2 of episode 1, seed 40, 1 episode before") as caught:
        envs.step(actions(range(n), 4))
    assert [(f.env_id, f.seed, f.episode, f.step) for f in caught.value.failures] == [
        (i, SEED + i, 1, 2) for i in range(n)
    ]


@pytest.mark.fault("A9")
@pytest.mark.parametrize("config", EVERYWHERE, ids=str)
def test_failing_reset_reports_its_seed_and_episode(make: Make, config: Configuration) -> None:
    envs = make(FailsReproducibly, env_kwargs={"breaks_at": 0})
    with pytest.raises(mv.errors.EnvFailed, match="episode 0, seed 40") as caught:
        envs.reset(seed=[SEED] + [None] * (config.num_envs - 1))
    first, second, *_ = caught.value.failures
    assert (first.env_id, first.seed, first.episode, first.step, first.action) == (0, SEED, 0, None, None)
    assert (second.env_id, second.seed) == (1, None)


@pytest.mark.fault("A10")
@with_processes
def test_unpicklable_info_arrives_as_its_repr_with_one_warning(
    make: Make, config: Configuration, logged_warnings: LoggedWarnings
) -> None:
    n, last = config.num_envs, config.num_envs - 1
    envs = make(OddInfo, env_kwargs=[{"what": "lock" if i == last else "fine", "length": 2} for i in range(n)])
    envs.reset(seed=0)
    odd = []
    for k in range(7):
        _, rewards, *_, infos = envs.step(actions(range(n), k))
        if "odd" in infos:
            odd.append(infos["odd"][last])
            assert infos["odd"][last - 1] == ""  # infos of the others are unchanged
            np.testing.assert_array_equal(infos["value"], rewards)
    assert len(odd) == 3
    assert all(isinstance(text, str) and text.startswith("<unlocked _thread.lock") for text in odd)
    (message,) = logged_warnings()
    assert f"env {last}" in message and "infos['odd']" in message and "repr" in message


@pytest.mark.fault("A10")
@with_processes
def test_unpicklable_task_does_not_hide_the_failure(make: Make, config: Configuration) -> None:
    """The task is made where the env runs, by a reset plan, so that it was never pickled before."""
    n, last = config.num_envs, config.num_envs - 1
    plan = partial(lock_for, last)
    envs = make(FailsReproducibly, env_kwargs=[{}] * last + [{"breaks_at": 1}], reset_plan=plan)
    envs.reset(seed=SEED)
    with pytest.raises(mv.errors.EnvFailed, match="broken") as caught:
        envs.step(actions(range(n), 0))
    (failure,) = caught.value.failures
    assert (failure.env_id, failure.seed) == (last, SEED + last)
    assert failure.task.startswith("<unlocked _thread.lock")


def lock_for(chosen: int, env_id: int, episode: int) -> mv.ResetRequest:
    return mv.ResetRequest(task=threading.Lock() if env_id == chosen else None)
