"""First come, first served: every send is answered once, and no answer reaches another request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import AnySpace, Walk
from tests.equality import assert_same
from tests.fault_envs import Gate, Gated
from tests.space_catalogue import catalogue
from tests.vector.configurations import HYBRID, THREAD, UNEVEN, WITH_WORKERS, WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make
from tests.vector.runs import action, actions, lock_step, row_of

config = over(WITHOUT_SPAWN)

needs_a_worker = pytest.mark.parametrize("config", WITH_WORKERS, ids=str)


def gated(config: Configuration, gate: Gate, **where: Any) -> list[dict[str, Any]]:
    """Kwargs that add a gate to the last env, which a worker runs."""
    return [{}] * (config.num_envs - 1) + [{"gate": str(gate), **where}]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_trajectory_of_each_env_equals_lock_step(make: Make, config: Configuration, autoreset: str) -> None:
    n, steps = config.num_envs, 9
    expected = lock_step(make(Walk, autoreset=autoreset, env_kwargs={"length": 4}), steps)
    envs = make(Walk, autoreset=autoreset, env_kwargs={"length": 4})
    envs.reset(seed=7)
    found: dict[int, list[Any]] = {i: [] for i in range(n)}
    envs.send(actions(range(n), 0))
    while min(map(len, found.values())) < steps:
        batch = envs.receive(min_envs=1)
        for row, i in enumerate(batch.env_ids.tolist()):
            found[i].append(
                row_of(row, batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos)
            )
        again = [i for i in batch.env_ids.tolist() if len(found[i]) < steps]
        if again:
            envs.send(np.array([action(i, len(found[i])) for i in again]), again)
    assert_same(found, expected)


def test_every_sent_env_is_received_exactly_once(make: Make, config: Configuration) -> None:
    envs, n = make(Walk), config.num_envs
    envs.reset(seed=1)
    for k in range(3):
        envs.send(actions(range(n), k))
        seen: list[int] = []
        while len(seen) < n:
            seen += envs.receive(min_envs=1).env_ids.tolist()
        assert sorted(seen) == list(range(n))
        with pytest.raises(mv.errors.NothingPending):
            envs.receive()
    assert envs.get_attr("steps") == (3,) * n


def test_batch_has_whole_ranges_in_ascending_order(make: Make, config: Configuration) -> None:
    envs, n = make(Walk), config.num_envs
    envs.reset(seed=1)
    for wanted in range(1, n + 1):
        envs.send(actions(range(n), wanted))
        left = n
        while left:
            ids = envs.receive(min_envs=wanted).env_ids.tolist()
            assert ids == sorted(ids)
            assert len(ids) >= min(wanted, left)
            left -= len(ids)
            whole = [i for part in config.ranges for i in part if set(part) <= set(ids)]
            assert ids == whole


def test_receive_without_min_envs_waits_for_all(make: Make, config: Configuration) -> None:
    envs, n = make(Walk), config.num_envs
    envs.reset(seed=1)
    envs.send(actions(range(n), 0))
    assert envs.receive().env_ids.tolist() == list(range(n))
    envs.send(actions([n - 1, 0], 1), [n - 1, 0])
    assert envs.receive(min_envs=99).env_ids.tolist() == [0, n - 1]


def test_some_envs_of_a_worker_can_be_sent(make: Make, config: Configuration) -> None:
    expected = lock_step(make(Walk), 1)
    envs = make(Walk)
    envs.reset(seed=7)
    envs.send(actions([2, 1], 0), [2, 1])
    batch = envs.receive()
    assert batch.env_ids.tolist() == [1, 2]
    for row, i in enumerate((1, 2)):
        assert_same(batch.observations[row], expected[i][0][0])
        assert batch.rewards[row] == expected[i][0][1]
    assert envs.get_attr("steps") == tuple(int(i in (1, 2)) for i in range(config.num_envs))


@needs_a_worker
def test_some_envs_of_each_worker_can_be_sent_one_after_another(make: Make, config: Configuration) -> None:
    envs, one_each = make(Walk), [part[-1] for part in config.ranges]
    envs.reset(seed=1)
    for i in one_each:
        envs.send(actions([i], 0), [i])
    seen = []
    while len(seen) < len(one_each):
        seen += envs.receive(min_envs=1).env_ids.tolist()
    assert sorted(seen) == one_each
    assert envs.get_attr("steps") == tuple(int(i in one_each) for i in range(config.num_envs))


@needs_a_worker
def test_busy_worker_is_not_sent_more(make: Make, config: Configuration, gate: Gate) -> None:
    envs = make(Gated, env_kwargs=gated(config, gate))
    envs.reset(seed=1)
    last = config.last_range
    envs.send(actions(last, 0), last)
    gate.wait_for_arrival()
    with pytest.raises(mv.errors.RequestPending, match=str(last[-1])):
        envs.send(actions(last, 0), last)
    others = list(range(last.start))
    envs.send(actions(others, 0), others)
    assert envs.receive(min_envs=len(others)).env_ids.tolist() == others
    gate.open()
    assert envs.receive().env_ids.tolist() == list(last)
    assert envs.get_attr("steps") == (1,) * config.num_envs


def test_receive_without_send_raises_nothing_pending(make: Make) -> None:
    envs = make(Walk)
    with pytest.raises(mv.errors.NothingPending):
        envs.receive()
    envs.reset(seed=1)
    with pytest.raises(mv.errors.NothingPending):
        envs.receive(timeout_s=0)


def test_receive_of_zero_envs_is_refused(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(seed=1)
    envs.send(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.InvalidRequest, match="min_envs"):
        envs.receive(min_envs=0)
    assert len(envs.receive().env_ids) == config.num_envs


@needs_a_worker
def test_request_stays_pending_after_a_timeout_and_gets_its_own_reply(
    make: Make, config: Configuration, gate: Gate
) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 2)
    envs = make(Gated, env_kwargs=gated(config, gate))
    envs.reset(seed=7)
    envs.send(actions(range(n), 0))
    gate.wait_for_arrival()
    for _ in range(2):
        with pytest.raises(mv.errors.ReceiveTimeout, match=str(n - 1)):
            envs.receive(timeout_s=0.01)
    with pytest.raises(TimeoutError):
        envs.receive(timeout_s=0)
    gate.open()
    for k in range(2):
        if k:
            envs.send(actions(range(n), k))
        batch = envs.receive()
        assert_same(list(batch.rewards), [expected[i][k][1] for i in range(n)])
        assert_same(batch.observations[n - 1], expected[n - 1][k][0])


@needs_a_worker
def test_other_calls_are_refused_during_a_step(make: Make, config: Configuration, gate: Gate) -> None:
    envs, n = make(Gated, env_kwargs=gated(config, gate)), config.num_envs
    envs.reset(seed=1)
    envs.send(actions(range(n), 0))
    gate.wait_for_arrival()
    refused = [
        lambda: envs.step(actions(range(n), 0)),
        lambda: envs.step(actions([n - 1], 0), env_ids=[n - 1]),
        lambda: envs.reset(env_ids=[n - 1]),
        lambda: envs.call("add", 1),
        lambda: envs.get_attr("steps", env_ids=[n - 1]),
        lambda: envs.set_attr("bonus", 1.0),
    ]
    for call in refused:
        with pytest.raises(mv.errors.RequestPending):
            call()
    gate.open()
    assert len(envs.receive().env_ids) == n
    assert envs.get_attr("steps") == (1,) * n
    assert envs.get_attr("bonus") == (0.0,) * n


def test_step_is_refused_until_everything_is_received(make: Make, config: Configuration) -> None:
    envs, n = make(Walk), config.num_envs
    envs.reset(seed=1)
    envs.send(actions([1], 0), [1])
    with pytest.raises(mv.errors.RequestPending):
        envs.step(actions(range(n), 0))
    envs.receive()
    envs.step(actions(range(n), 1))
    assert envs.get_attr("steps") == tuple(1 + int(i == 1) for i in range(n))


@needs_a_worker
def test_free_workers_can_be_called_while_others_are_busy(make: Make, config: Configuration, gate: Gate) -> None:
    envs = make(Gated, env_kwargs=gated(config, gate))
    envs.reset(seed=1)
    last = config.last_range
    envs.send(actions(last, 0), last)
    gate.wait_for_arrival()
    assert envs.call("add", 5, env_ids=[0]) == (5,)
    envs.reset(env_ids=[0])
    gate.open()
    assert envs.receive().env_ids.tolist() == list(last)


@needs_a_worker
def test_full_reset_discards_pending_steps(make: Make, config: Configuration, gate: Gate) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 4, seed=20)
    envs = make(Gated, env_kwargs=gated(config, gate))
    envs.reset(seed=1)
    envs.send(actions(range(n), 0))
    gate.wait_for_arrival()
    gate.open()
    assert_same(lock_step(envs, 4, seed=20), expected)
    with pytest.raises(mv.errors.NothingPending):
        envs.receive()


@pytest.mark.parametrize("name", ["dict_mixed", "text"])
def test_objects_of_a_discarded_step_are_not_given_to_the_next(make: Make, config: Configuration, name: str) -> None:
    n = config.num_envs
    one, other = (make(lambda: AnySpace(catalogue()[name], catalogue()[name])) for _ in range(2))
    one.action_space.seed(3)
    batches = [one.action_space.sample() for _ in range(3)]
    one.reset(seed=1)
    one.send(batches[2])
    assert_same(one.reset(seed=5), other.reset(seed=5))
    for batch in batches[:2]:
        one.send(batch)
        received = one.receive()
        observations, rewards, *_ = other.step(batch)
        assert_same(received.observations, observations)
        assert_same(received.rewards, rewards)
    assert received.env_ids.tolist() == list(range(n))


@pytest.mark.parametrize("config", [THREAD, HYBRID, UNEVEN], ids=str)
def test_partial_reset_keeps_the_answers_of_other_workers(make: Make, config: Configuration, gate: Gate) -> None:
    expected = lock_step(make(Walk), 1)
    envs = make(Gated, env_kwargs=gated(config, gate))
    envs.reset(seed=7)
    last = config.last_range
    envs.send(actions(last, 0), last)
    gate.wait_for_arrival()
    envs.reset(seed=50, env_ids=[0])
    gate.open()
    batch = envs.receive()
    assert batch.env_ids.tolist() == list(last)
    assert_same(list(batch.rewards), [expected[i][0][1] for i in last])
