"""Comparisons: ratios within rounds, medians over them, and a failing contender does not stop the others."""

from __future__ import annotations

from typing import Any

import pytest

import multiverse as mv
from multiverse import measure
from multiverse.cli.comparison import Comparison, Reading, Result, Round
from tests.envs import Walk
from tests.test_measure import Raises, fork_server_pids, recipe_of

SECONDS = 0.02


def comparison_of(*rounds: Round) -> Comparison:
    loops = type("Loops", (), {"cores": 2})()
    comparison = Comparison(loops, {})  # type: ignore[arg-type]
    comparison.rounds += rounds
    return comparison


def reading(rate: float, mb: float | None = None) -> Reading:
    return Reading(rate, start_up_s=0.5, processes=1, mb_per_process=mb, plan=None)


def test_ratios_are_taken_within_a_round_before_the_median() -> None:
    comparison = comparison_of(
        Round(100.0, 50.0, None, {"ours": reading(80.0, 5.0)}),
        Round(10.0, 5.0, None, {"ours": reading(8.0)}),
        Round(1000.0, 500.0, None, {"ours": reading(900.0, 7.0)}),
    )
    found = comparison.result("ours")
    assert isinstance(found, Result)
    assert (found.steps_per_s, found.of_the_limit, found.times_plain_loop) == (80.0, 0.8, 1.6)
    assert (found.mb_per_process, found.start_up_s) == (6.0, 0.5)
    assert found.steps_per_s_by_round == (80.0, 8.0, 900.0)


@pytest.mark.parametrize(("waited_share", "busy"), [(0.01, False), (0.5, True), (None, False)])
def test_busy_machine_is_noticed(waited_share: float | None, busy: bool) -> None:
    assert comparison_of(Round(200.0, 100.0, waited_share)).machine_is_busy is busy


def test_failing_contender_does_not_stop_the_others() -> None:
    reports: list[str] = []
    contenders: dict[str, Any] = {
        "bad": lambda: mv.make_vec(Raises, 2, "serial"),
        "good": lambda: mv.make_vec(Walk, 2, "process", workers=1),
    }
    before = measure.descendants()
    with measure.BareLoops(recipe_of(Walk), 1) as loops:
        comparison = Comparison(loops, contenders)
        comparison.run_round(SECONDS, reports.append)
        comparison.run_round(SECONDS, reports.append)
    good, bad = comparison.result("good"), comparison.result("bad")
    assert isinstance(bad, mv.errors.EnvFailed)
    assert isinstance(good, Result)
    assert good.processes == 1 and good.mb_per_process is not None and good.mb_per_process > 0
    assert [plan.executor for plan in good.plans] == ["process", "process"]
    assert reports == ["the machine's limit", "plain loop", "bad", "good"] * 2
    assert measure.descendants() - before <= fork_server_pids()
