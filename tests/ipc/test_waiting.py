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
    monkeypatch.setattr(waiting, "LOOK_NS", -1)
    monkeypatch.setattr(waiting, "_yield_core", lambda: given.append(None))
    return given


def looks_of(rule: Waiting, at: int | None = None) -> int:
    looks = Looks(at)
    assert rule.look(looks) == (at is not None and at <= looks.count)
    return looks.count


A_MISS = 1 + LOOKS_BEFORE_YIELD


def test_what_has_happened_already_is_seen_at_the_first_look(yields: list[None]) -> None:
    for kind in ("auto", "spin", "park"):
        assert looks_of(Waiting(kind), at=1) == 1
    assert yields == []


def test_one_that_is_told_to_park_looks_once(yields: list[None]) -> None:
    assert looks_of(Waiting("park")) == 1
    assert yields == []


def test_a_miss_gives_the_core_away_between_looks(yields: list[None]) -> None:
    assert looks_of(Waiting("auto")) == A_MISS
    assert len(yields) == 1


def test_after_two_misses_in_a_row_it_goes_to_sleep_at_once_for_a_while(yields: list[None]) -> None:
    rule = Waiting("auto")
    assert [looks_of(rule) for _ in range(2)] == [A_MISS] * 2
    assert [looks_of(rule) for _ in range(PARKED_WAITS)] == [1] * PARKED_WAITS
    assert looks_of(rule) == A_MISS


def test_a_hit_between_two_misses_keeps_it_looking(yields: list[None]) -> None:
    rule = Waiting("auto")
    for _ in range(5):
        assert looks_of(rule) == A_MISS
        assert looks_of(rule, at=3) == 3
    assert looks_of(rule) == A_MISS


def test_while_parked_what_is_ready_is_still_seen(yields: list[None]) -> None:
    rule = Waiting("auto")
    for _ in range(2):
        looks_of(rule)
    assert looks_of(rule, at=1) == 1


def test_one_that_is_told_to_spin_never_gives_up_looking(yields: list[None]) -> None:
    rule = Waiting("spin")
    assert [looks_of(rule) for _ in range(5)] == [A_MISS] * 5


def never() -> bool:
    return False


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_NAP_S", None)


def test_nobody_sleeps_for_what_is_there() -> None:
    assert WaitSet().sleep_until(lambda: True, None)


def test_a_deadline_ends_the_sleep() -> None:
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
def test_a_ring_wakes_the_sleeper_who_says_when_it_sleeps() -> None:
    wait_set = WaitSet()
    ready, said, close = rings_itself(wait_set)
    assert wait_set.sleep_until(ready, time.monotonic() + 20)
    assert said == [True, False]
    close()


def test_a_lost_ring_is_made_up_for_by_one_nap_before_the_long_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(WaitSet, "_doze", lambda _, seconds: bool(slept.append(seconds)))
    assert WaitSet().sleep_until(Looks(at=4), None)  # without a ring
    assert slept == [waiting.FIRST_NAP_S, math.inf, math.inf]


@pytest.mark.usefixtures("no_naps")
def test_an_end_is_reported_once() -> None:
    wait_set, bell, ends = WaitSet(), new_doorbell(), []
    wait_set.add_sentinel(bell.wait_fd, lambda: ends.append(1))
    bell.ring()
    assert wait_set.sleep_until(lambda: bool(ends), None)
    assert not wait_set.sleep_until(never, time.monotonic() + 0.001)
    assert ends == [1]
    bell.close()


@pytest.mark.usefixtures("no_naps")
def test_an_error_in_looking_passes_through_and_the_sleeper_is_awake_again() -> None:
    wait_set = WaitSet()
    _, said, close = rings_itself(wait_set)

    def complain() -> bool:
        raise LookupError("somebody died")

    with pytest.raises(LookupError):
        wait_set.sleep_until(complain, None)
    assert said == [True, False]
    close()


def test_with_a_core_to_spare_a_worker_looks_for_longer(yields: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    """It still spins when other workers sleep already: LOOK_NS passes at once here."""
    monkeypatch.setattr(waiting, "LONG_LOOK_NS", 10**12)
    assert looks_of(Waiting("auto", spare_core=True), at=5 * A_MISS) == 5 * A_MISS
    monkeypatch.setattr(waiting, "LONG_LOOK_NS", -1)
    assert looks_of(Waiting("auto", spare_core=True)) == A_MISS
