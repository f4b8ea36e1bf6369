"""The benchmark of whole rollouts: its tables, and equal rollouts for every way to run the envs."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("mujoco")

from benchmarks.meta import POLICIES, Cell, Speed, advice_rows, advice_table, bar_table, bar_ways, speeds


def speed(number: int, way: str, envs: int, rate: float, act: float = 0.5) -> Speed:
    return Speed(number, "AntDir-v0", "small", 8, envs, way, rate, {"act": act, "receive": 1 - act})


def test_ratios_are_taken_within_a_round() -> None:
    found = [
        speed(k, way, 8, 100 * (k + 1) * times) for k in range(3) for way, times in (("serial", 1), ("process 2", 2))
    ]
    table, best = bar_table(found)
    assert best == 2.0 and "| process 2 | 400 | 2.00 | 50% | 50% |" in table


def test_advice_names_the_slowest_phase() -> None:
    row = [speed(0, "serial", 1, 100), speed(0, "serial", 8, 150), speed(0, "process 2", 8, 250, act=0.8)]
    row.append(speed(0, "acting workers 2", 8, 300))
    assert "| AntDir-v0 | small | 8 | 100 | 1.50× | 2.50× | 3.00× | act 80% |" in advice_table([row])


def test_every_way_of_running_envs_is_measured() -> None:
    env, ways = "PointRobotSparse-v0", bar_ways(2)
    cells = [functools.partial(Cell, env, "small", 3, 4, way) for way in ways]
    found = speeds([functools.partial(Cell, env, "small", 3, 1, ways[0]), *cells], 1, "test")
    assert [each.way for each in found] == [
        "serial",
        "serial",
        "process 2",
        "process 1",
        "hybrid 1",
        "acting workers 2",
    ]
    assert all(each.env_steps_per_s > 0 for each in found)


def test_table_has_every_documented_case() -> None:
    rows = advice_rows(["PointRobotSparse-v0", "AntDir-v0"])
    assert len(rows) == 2 * len(POLICIES) * 2 and {rollouts for _, _, rollouts in rows} == {1, 8}
