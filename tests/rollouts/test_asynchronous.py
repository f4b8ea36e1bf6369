"""Asynchronous collection: workers' rollouts are complete, in order and of known versions, and every env step is
accounted for, whatever happens meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.layout import SINGLE_AGENT
from multiverse.ipc import interrupts
from multiverse.rollouts.asynchronous import Account, AsynchronousCollection, RolloutQueue, WorkerRollout
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.rollout import Rollout, RolloutShape
from multiverse.rollouts.rollout_arrays import rollout_fields
from tests.envs import Walk
from tests.rollouts.envs import Once, Versioned
from tests.vector.configurations import make_with_fields
from tests.vector.conftest import nothing_left_behind  # noqa: F401

STEPS, NUM_ENVS, PLAN = 9, 4, mv.DerivedSeeds(4)
ENOUGH_S = 30.0


# -- the queue ---------------------------------------------------------------------------------------------------
def rollout(version: int, envs: int = 2, lost: int = 0) -> Any:
    return WorkerRollout([SimpleNamespace(steps=10)], version, envs, lost, (0.0, 0.0))  # type: ignore[list-item]


def adds_up(account: Account) -> bool:
    return account.sent == account.used + account.discarded + account.lost + account.waiting


def taken(queue: RolloutQueue, envs: int, version: int) -> list[int] | None:
    """The versions of the rollouts that it returns."""
    found = queue.take(envs, version, lambda: True)
    return None if found is None else [one.version for one in found]


@pytest.mark.fault("F2")
def test_full_queue_discards_its_oldest_rollout() -> None:
    queue = RolloutQueue(4, max_lag=9)
    for version in range(5):
        queue.put(rollout(version))
    assert (len(queue), queue.full) == (2, True) and taken(queue, 4, 4) == [3, 4]
    assert queue.account == Account(sent=100, used=40, discarded_full=60, largest_lag=1)


@pytest.mark.fault("F2")
def test_queue_without_discards_keeps_all_rollouts() -> None:
    queue = RolloutQueue(4, max_lag=9, discards=False)
    for version in range(3):
        queue.put(rollout(version))
    assert queue.full and taken(queue, 4, 3) == [0, 1] and not queue.full
    assert queue.account == Account(sent=60, used=40, waiting=20, largest_lag=3)


@pytest.mark.fault("F3")
def test_rollouts_beyond_the_lag_are_discarded_before_learning() -> None:
    queue = RolloutQueue(8, max_lag=2)
    for version in (0, 1, 2, 3):
        queue.put(rollout(version))
    assert taken(queue, 4, 4) == [2, 3], "0 and 1 are more than two updates old"
    assert queue.account == Account(sent=80, used=40, discarded_old=40, largest_lag=2)


@pytest.mark.fault("F3")
def test_lag_of_0_accepts_only_rollouts_of_the_current_policy() -> None:
    queue = RolloutQueue(8, max_lag=0)
    for version in (4, 5, 4, 5):
        queue.put(rollout(version))
    assert taken(queue, 4, 5) == [5, 5] and queue.account.largest_lag == 0


def test_queue_needs_no_slow_worker_with_unequal_shares() -> None:
    """8 envs as 3, 3 and 2: with only two workers, a queue that was cut to 8 would never have more than 6."""
    queue = RolloutQueue(8, max_lag=9)
    for version in range(6):
        queue.put(rollout(version, envs=3))
    assert taken(queue, 8, 5) == [3, 4, 5]


def test_waiting_steps_of_a_saved_account_count_as_discarded() -> None:
    saved = Account(sent=60, used=30, discarded_unfinished=5, lost=5, waiting=20)
    again = Account.saved(asdict(saved))
    assert again == Account(sent=60, used=30, discarded_unfinished=25, lost=5) and adds_up(again)


@pytest.mark.fault("F2")
def test_every_step_in_the_queue_is_accounted_for() -> None:
    rng = np.random.default_rng(0)
    for discards in (True, False):
        queue, version = RolloutQueue(6, max_lag=2, discards=discards), 0
        for _ in range(500):
            if rng.random() < 0.7:
                behind, envs = int(rng.integers(0, 4)), int(rng.integers(1, 4))
                queue.put(rollout(max(0, version - behind), envs, lost=int(rng.integers(0, 3))))
            elif (found := queue.take(4, version, lambda: True)) is not None:
                assert all(version - one.version <= 2 for one in found) and sum(one.envs for one in found) >= 4
                version += 1
            assert adds_up(queue.account)
            assert not discards or queue.envs < 6 + 3
        queue.clear()
        queue.count_unfinished(7)
        assert queue.account.waiting == 0 and adds_up(queue.account) and queue.account.used > 0


def test_error_of_the_collecting_thread_is_raised_to_the_learner() -> None:
    queue = RolloutQueue(4, max_lag=9)
    queue.fail(RuntimeError("that is why"))
    with pytest.raises(RuntimeError, match="that is why"):
        queue.take(4, 0, lambda: False)
    assert RolloutQueue(4, 9).take(4, 0, lambda: True) is None, "to stop before anything came"


# -- with envs ---------------------------------------------------------------------------------------------------


Collecting = Callable[..., Collector]


@pytest.fixture(params=["process", "thread"])
def collecting(request: pytest.FixtureRequest) -> Any:
    made: list[Any] = []

    def make(
        env: Any = Once, queue_size: int = 100, max_lag: int = 10**6, discards: bool = True, **options: Any
    ) -> Any:
        described = env(**options.get("env_kwargs", {}))
        space, dtype = described.observation_space, ((), np.int64)
        shape = RolloutShape(SINGLE_AGENT, space, STEPS, NUM_ENVS, dtype, noise=((), np.float32))
        fields = rollout_fields([shape], NUM_ENVS)
        options = {"on_failure": "restart", "workers": 2, **options}
        envs = make_with_fields(
            env, NUM_ENVS, request.param, fields=lambda _: fields, reset_plan=PLAN, autoreset="same_step", copy=False,
            infos=False, **options,
        )  # fmt: skip
        strategy = partial(AsynchronousCollection, queue_size=queue_size, max_lag=max_lag, discards=discards)
        collector = Collector(envs, [shape], None, PLAN, strategy=strategy)
        made.append((collector, envs))
        envs.reset()
        collector.begin()
        return collector

    yield make
    for collector, envs in made:
        asynchronous(collector).stop()
        envs.close()


def asynchronous(collector: Collector) -> AsynchronousCollection:
    assert isinstance(collector.strategy, AsynchronousCollection)
    return collector.strategy


def columns_of(rollouts: list[Rollout], env_id: int) -> list[tuple[Rollout, int]]:
    """Columns of an env, rollout after rollout."""
    found = []
    for one in rollouts:
        slots = [slot for part in one.parts for slot in part.slots]
        found += [(one, column) for column, slot in enumerate(slots) if slot == env_id]
    return found


def several(
    collector: Collector, updates: int, all_envs: bool = False, slow: bool = False
) -> tuple[list[Rollout], list[Any]]:
    """Collect several rollouts for a learner that needs some time for each update; with `all_envs`, until every env
    has delivered. `slow`: each update but the first begins when the queue is full."""
    strategy = asynchronous(collector)
    rng, rollouts, episodes, delivered = np.random.default_rng(0), [], [], set()
    while len(rollouts) < updates or (all_envs and len(delivered) < NUM_ENVS):
        assert not slow or strategy.thread is None or eventually(lambda: strategy.queue.full)
        collected = collector.collect([Versioned(len(rollouts))], rng)
        assert collected is not None
        (one,) = collector.rollouts
        assert collector.env_steps == one.rewards.size
        rollouts.append(one)
        delivered.update(slot for part in one.parts for slot in part.slots)
        episodes += collected.episodes
        time.sleep(0.002)
    return rollouts, episodes


@pytest.mark.fault("F3")
@pytest.mark.parametrize("slow", [False, True])
def test_asynchronous_rows_are_complete_in_order_and_of_their_version(collecting: Collecting, slow: bool) -> None:
    """Walk's observations show every missing or additional step, and a discarded rollout likewise: so workers pause
    when the queue is full, however slow the learner is."""
    collector = collecting(queue_size=3, discards=False)
    put, whole = asynchronous(collector).queue.put, []
    asynchronous(collector).queue.put = lambda one: (whole.append(one.env_steps), put(one))  # type: ignore[method-assign, func-returns-value, assign]
    rollouts, _ = several(collector, 12, all_envs=True, slow=slow)
    asynchronous(collector).stop()
    assert sum(whole) <= asynchronous(collector)._envs.failures.steps_sent, "none is handed out that was cut short"
    versions = set()
    for env_id in range(NUM_ENVS):
        env, episode, last = Walk(), 0, -1
        seen, _ = env.reset(seed=PLAN(env_id, 0).seed)
        columns = columns_of(rollouts, env_id)
        assert columns
        for one, column in columns:
            slots = [(part.version, slot) for part in one.parts for slot in part.slots]
            version = slots[column][0]
            assert version >= last and version >= one.policy_version
            last = version
            versions.add(version)
            for t in range(STEPS):
                assert (one.observations[()][t, column] == seen.astype(np.float32)).all()
                assert one.actions[t, column] == version % 3, "the recorded version acted"
                seen, reward, over, cut, _ = env.step(version % 3)
                assert one.rewards[t, column] == np.float32(reward)
                assert (one.terminated[t, column], one.truncated[t, column]) == (over, cut) and one.valid[t, column]
                if over or cut:
                    assert (one.finals[()][t, column] == seen.astype(np.float32)).all()
                    episode += 1
                    seen, _ = env.reset(seed=PLAN(env_id, episode).seed)
            assert (one.last[()][column] == seen.astype(np.float32)).all()
    assert len(versions) > 1
    account = asynchronous(collector).account
    assert adds_up(account) and account.waiting == 0 and account.used == sum(one.rewards.size for one in rollouts)
    assert account.discarded_full == account.discarded_old == account.lost == 0
    assert account.sent == asynchronous(collector)._envs.failures.steps_sent and max(versions) < len(rollouts)


@pytest.mark.fault("F2", "F3")
def test_lag_and_queue_are_bounded(collecting: Collecting) -> None:
    collector = collecting(queue_size=1, max_lag=1)
    rollouts, _ = several(collector, 15)
    assert all(version - part.version <= 1 for version, one in enumerate(rollouts) for part in one.parts)
    assert asynchronous(collector).account.largest_lag <= 1
    assert eventually(lambda: asynchronous(collector).account.discarded_full > 0), "no rollout was discarded"
    assert asynchronous(collector).queue.envs < 2 * NUM_ENVS
    asynchronous(collector).stop()
    assert adds_up(asynchronous(collector).account)


@pytest.mark.fault("F2")
def test_workers_pause_while_the_queue_is_full(collecting: Collecting) -> None:
    collector = collecting(queue_size=2, discards=False)
    several(collector, 3)
    queue = asynchronous(collector).queue
    assert eventually(lambda: queue.full) and settled(collector) and queue.envs < 3 * NUM_ENVS
    several(collector, 8)
    asynchronous(collector).stop()
    account = asynchronous(collector).account
    assert account.discarded_full == 0 and account.used == 11 * STEPS * NUM_ENVS and adds_up(account)


def eventually(holds: Callable[[], bool]) -> bool:
    first = time.monotonic()
    while not holds() and time.monotonic() < first + ENOUGH_S:
        time.sleep(0.01)
    return holds()


def settled(collector: Collector) -> bool:
    """Whether all workers stop stepping within a time limit."""
    first, seen, since = time.monotonic(), -1, 0.0
    while time.monotonic() < first + ENOUGH_S:
        now = asynchronous(collector)._envs.failures.steps_sent
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() > since + 0.3:
            return True
        time.sleep(0.01)
    return False


def test_pause_discards_no_steps(collecting: Collecting) -> None:
    """Rows in progress are completed, and waiting rollouts remain."""
    collector = collecting(queue_size=3)
    several(collector, 2)
    asynchronous(collector).rest()
    assert eventually(lambda: asynchronous(collector).account.waiting > 0) and settled(collector)
    before = asdict(asynchronous(collector).account)
    several(collector, 4)
    asynchronous(collector).stop()
    after = asynchronous(collector).account
    assert before["waiting"] > 0 and after.discarded_old == 0 and after.used == 6 * STEPS * NUM_ENVS and adds_up(after)


@pytest.mark.fault("G7", "F2")
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("collecting", ["process"], indirect=True)
def test_worker_that_dies_costs_one_row_of_its_rollout(collecting: Collecting, tmp_path: Path, slow: bool) -> None:
    """Workers pause when the queue is full, because the lost row might be in discarded rows."""
    kwargs = {"mark": str(tmp_path / "died"), "at": 14, "deed": "dies"}
    collector = collecting(queue_size=3, discards=False, env_kwargs=kwargs)
    rollouts, episodes, first = [], [], time.monotonic()
    while not any((~one.valid).any() for one in rollouts) and time.monotonic() < first + ENOUGH_S:
        more, ended = several(collector, 1, slow=slow)
        rollouts, episodes = rollouts + more, episodes + ended
    asynchronous(collector).stop()
    assert asynchronous(collector)._envs.failures.worker_restarts == 1
    lost = [(one, t, s) for one in rollouts for t, s in zip(*np.nonzero(~one.valid))]
    assert len(lost) == 2 == asynchronous(collector).account.lost, "of both envs of that worker, and of no other"
    assert all(one.truncated[t, s] and one.rewards[t, s] == 0.0 for one, t, s in lost)
    assert len([one for one in episodes if one.lost]) == 2
    account = asynchronous(collector).account
    assert adds_up(account) and account.sent == asynchronous(collector)._envs.failures.steps_sent
    assert account.used == sum(one.valid.sum() for one in rollouts)


@pytest.mark.fault("F3")
def test_rows_of_a_worker_stopped_halfway_are_not_delivered(collecting: Collecting, tmp_path: Path) -> None:
    """One worker is in its fourth of nine steps when the stop is requested."""
    waits = tmp_path / "waits"
    collector = collecting(env_kwargs={"mark": str(waits), "at": 4, "deed": "waits"})
    put, handed_out = asynchronous(collector).queue.put, set[int]()

    def note(one: WorkerRollout) -> None:
        handed_out.update(slot for rollout in one.rollouts for part in rollout.parts for slot in part.slots)
        put(one)

    asynchronous(collector).queue.put = note  # type: ignore[method-assign]
    collector.collect([Versioned(0)], np.random.default_rng(0), waits.exists)
    assert eventually(waits.exists) and eventually(lambda: bool(handed_out))
    asynchronous(collector).stop_requests.ask()
    assert settled(collector)
    Path(f"{waits}.go").touch()
    asynchronous(collector).stop()
    assert len(handed_out) == NUM_ENVS // 2, "rows of the worker that was not stopped halfway"
    assert adds_up(asynchronous(collector).account) and asynchronous(collector).account.discarded_unfinished > 0


@pytest.mark.fault("A9")
def test_exception_of_an_env_ends_collection_with_that_error(collecting: Collecting, tmp_path: Path) -> None:
    kwargs = {"mark": str(tmp_path / "raised"), "at": 30, "deed": "raises"}
    collector = collecting(env_kwargs=kwargs, on_failure="raise", queue_size=1)
    with pytest.raises(mv.errors.EnvFailed, match="it raised"):
        several(collector, 1000)
    asynchronous(collector).stop()
    assert adds_up(asynchronous(collector).account)


@pytest.mark.fault("A14", "G4")
@pytest.mark.parametrize("collecting", ["process"], indirect=True)
def test_stop_does_not_wait_for_a_worker_that_hangs(
    collecting: Collecting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.2)
    kwargs = {"mark": str(tmp_path / "hung"), "at": 14, "deed": "hangs"}
    collector = collecting(env_kwargs=kwargs, timeouts=mv.Timeouts(reply_s=None, close_s=0.2))
    several(collector, 4)
    assert eventually((tmp_path / "hung").exists)
    thread = asynchronous(collector).thread
    asynchronous(collector).stop()
    assert thread is not None and not thread.is_alive() and adds_up(asynchronous(collector).account)


def test_stop_request_before_the_first_rollout_returns_none(collecting: Collecting) -> None:
    collector = collecting(max_lag=-1)  # rows before the request are too old
    assert collector.collect([Versioned(0)], np.random.default_rng(0), lambda: True) is None
    asynchronous(collector).stop()
    assert adds_up(asynchronous(collector).account) and asynchronous(collector).account.used == 0
