"""The waiting rule, counted in checks instead of time, and the wait set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from multiverse.ipc import waiting
from multiverse.ipc.doorbell import new_doorbell
from multiverse.ipc.waiting import LOOKS_BEFORE_YIELD, PARKED_WAITS, Waiting, WaitSet


class Looks:
    """An event that happens at a given check; counts the checks."""

    def __init__(self, at: int | None = None) -> None:
        self.count, self.at = 0, at

    def __call__(self) -> bool:
        self.count += 1
        return self.at is not None and self.count >= self.at


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One round of checks takes all the time; every yield of the core is recorded."""
    given: list[None] = []
    monkeypatch.setattr(waiting, "SPIN_NS", -1)
    monkeypatch.setattr(waiting, "_yield_core", lambda: given.append(None))
    return given


def looks_of(rule: Waiting, at: int | None = None) -> int:
    looks = Looks(at)
    assert rule.look(looks) == (at is not None and at <= looks.count)
    return looks.count


A_MISS = 1 + LOOKS_BEFORE_YIELD


def test_event_that_has_happened_is_seen_at_the_first_look(yields: list[None]) -> None:
    for kind in ("auto", "spin", "park"):
        assert looks_of(Waiting(kind), at=1) == 1
    assert yields == []


def test_park_mode_looks_once(yields: list[None]) -> None:
    assert looks_of(Waiting("park")) == 1
    assert yields == []


def test_unsuccessful_waiting_yields_the_core_between_looks(yields: list[None]) -> None:
    assert looks_of(Waiting("auto")) == A_MISS
    assert len(yields) == 1


def test_two_misses_in_a_row_park_the_waiter_for_a_while(yields: list[None]) -> None:
    rule = Waiting("auto")
    assert [looks_of(rule) for _ in range(2)] == [A_MISS] * 2
    assert [looks_of(rule) for _ in range(PARKED_WAITS)] == [1] * PARKED_WAITS
    assert looks_of(rule) == A_MISS


def test_hit_between_two_misses_keeps_it_looking(yields: list[None]) -> None:
    rule = Waiting("auto")
    for _ in range(5):
        assert looks_of(rule) == A_MISS
        assert looks_of(rule, at=3) == 3
    assert looks_of(rule) == A_MISS


def test_parked_waiter_sees_what_is_ready(yields: list[None]) -> None:
    rule = Waiting("auto")
    for _ in range(2):
        looks_of(rule)
    assert looks_of(rule, at=1) == 1


def test_spin_mode_never_stops_looking(yields: list[None]) -> None:
    rule = Waiting("spin")
    assert [looks_of(rule) for _ in range(5)] == [A_MISS] * 5


def never() -> bool:
    return False


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_SLEEP_S", None)


def test_ready_event_causes_no_sleep() -> None:
    assert WaitSet().sleep_until(lambda: True, None)


def test_deadline_ends_the_sleep() -> None:
    assert not WaitSet().sleep_until(never, time.monotonic() + 0.001)
    assert not WaitSet().sleep_until(never, time.monotonic() - 1)


def rings_itself(wait_set: WaitSet) -> tuple[Callable[[], bool], list[bool], Callable[[], None]]:
    """A doorbell that is rung when its owner has set that it sleeps, as the other side would do."""
    bell, said, happened = new_doorbell(), [], []

    def say_asleep(asleep: bool) -> None:
        said.append(asleep)
        if asleep:
            bell.ring()

    def drain() -> None:
        bell.drain()
        happened.append(True)

    wait_set.add_doorbell(bell.wait_fd, drain, say_asleep)
    return lambda: bool(happened), said, bell.close


@pytest.mark.usefixtures("no_naps")
def test_ring_wakes_the_sleeper() -> None:
    wait_set = WaitSet()
    ready, said, close = rings_itself(wait_set)
    assert wait_set.sleep_until(ready, time.monotonic() + 20)
    assert said == [True, False]
    close()


def test_lost_ring_is_covered_by_one_short_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(WaitSet, "_sleep_briefly", lambda _, seconds: bool(slept.append(seconds)))
    assert WaitSet().sleep_until(Looks(at=4), None)  # without a ring
    assert slept == [waiting.FIRST_SLEEP_S, math.inf, math.inf]


@pytest.mark.usefixtures("no_naps")
def test_end_of_a_process_is_reported_once() -> None:
    wait_set, bell, ends = WaitSet(), new_doorbell(), []
    wait_set.add_sentinel(bell.wait_fd, lambda: ends.append(1))
    bell.ring()
    assert wait_set.sleep_until(lambda: bool(ends), None)
    assert not wait_set.sleep_until(never, time.monotonic() + 0.001)
    assert ends == [1]
    bell.close()


@pytest.mark.usefixtures("no_naps")
def test_error_while_looking_passes_through_and_ends_the_sleep() -> None:
    wait_set = WaitSet()
    _, said, close = rings_itself(wait_set)

    def complain() -> bool:
        raise LookupError("a worker died")

    with pytest.raises(LookupError):
        wait_set.sleep_until(complain, None)
    assert said == [True, False]
    close()


def test_worker_with_a_spare_core_looks_longer(yields: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    """It still spins when other workers sleep already: SPIN_NS passes at once here."""
    monkeypatch.setattr(waiting, "LONG_LOOK_NS", 10**12)
    assert looks_of(Waiting("auto", spare_core=True), at=5 * A_MISS) == 5 * A_MISS
    monkeypatch.setattr(waiting, "LONG_LOOK_NS", -1)
    assert looks_of(Waiting("auto", spare_core=True)) == A_MISS
