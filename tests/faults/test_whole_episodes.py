"""Episodes that are lost with an env or a worker are dropped, others are sampled in their place, and counts add up."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.rollouts.episode_collector import EpisodeCollector
from multiverse.rollouts.whole_episodes import WholeEpisodes
from tests.faults.episode_envs import meta
from tests.rollouts.test_whole_episodes import TASKS, arrays, network

EPISODES = 12


def made(workers: int = 2, executor: Any = "process", **fault: Any) -> mv.VectorEnv:
    """Envs 0 and 1 in the first worker, 2 and 3 in the second (with hybrid, the only one): env 2 fails."""
    makers = [meta, meta, partial(meta, **fault), meta]
    return mv.make_vec(
        makers,
        executor=executor,
        workers=workers,
        tasks=TASKS,
        autoreset="disabled",
        on_failure=mv.FailureOptions(on_failure="restart", on_bad_value="truncate"),
        timeouts=mv.Timeouts(reply_s=1.0 if fault.get("deed") == "hangs" else 60.0),
    )


def plan(attempt: int, number: int) -> mv.ResetRequest:
    return mv.DrawnTasks(8, range(4))(attempt, number)


def undisturbed(numbers: dict[int, int]) -> WholeEpisodes:
    """The episodes of these numbers, each at its attempt, as played by one env alone."""

    def of(attempt: int, number: int) -> mv.ResetRequest:
        assert attempt == 0
        return plan(numbers[number], number)

    with mv.make_vec(meta, 1, "serial", tasks=TASKS, autoreset="disabled") as envs:
        return EpisodeCollector(envs, of).collect(network(envs), len(numbers))


def check(found: WholeEpisodes, failures: mv.VectorEnv, dropped: int) -> None:
    """Check the number of complete and correct episodes, the replacement of dropped ones, and the accounts."""
    attempts = {}
    for number, began in enumerate(found.began_from):
        attempts[number] = next(a for a in range(5) if plan(a, number) == began)
    assert sum(attempts.values()) == found.dropped == dropped and len(attempts) == EPISODES
    for ours, theirs in zip(found.each(), undisturbed(attempts).each(), strict=True):
        expected = arrays(theirs)
        for name, rows in arrays(ours).items():
            assert rows.tobytes() == expected[name].tobytes(), name
        assert (ours.terminated | ours.truncated)[:, 0].tolist() == [False] * (ours.steps - 1) + [True]
    counts: Any = failures.failures
    assert counts.steps_sent == counts.steps_used + counts.steps_discarded
    assert counts.steps_used == found.env_steps + found.dropped_steps


@pytest.mark.fault("G10")
@pytest.mark.parametrize(("executor", "workers"), [("process", 2), ("hybrid", 1)])
@pytest.mark.parametrize("at", [1, 7, 30, 45])
def test_worker_killed_in_an_episode_costs_its_episodes_and_others_are_drawn(
    at: int, executor: str, workers: int, tmp_path: Path
) -> None:
    with made(workers, executor, note=str(tmp_path / "note"), at=at, deed="dies") as envs:
        found = EpisodeCollector(envs, plan).collect(network(envs), EPISODES)
        assert (tmp_path / "note").exists() and envs.failures.worker_restarts == 1
        check(found, envs, dropped=2)


@pytest.mark.fault("G10")
@pytest.mark.parametrize(("deed", "dropped"), [("raises", 1), ("hangs", 2), ("nan", 1)])
def test_failing_env_or_bad_value_costs_episodes_and_others_are_drawn(deed: str, dropped: int, tmp_path: Path) -> None:
    with made(note=str(tmp_path / "note"), at=11, deed=deed) as envs:
        found = EpisodeCollector(envs, plan).collect(network(envs), EPISODES)
        assert (tmp_path / "note").exists()
        check(found, envs, dropped)


@pytest.mark.fault("G10")
@pytest.mark.parametrize(("at", "dropped"), [(1, 0), (3, 0), (5, 1)])
def test_worker_killed_during_a_reset_costs_the_episodes_of_its_other_envs(
    at: int, dropped: int, tmp_path: Path
) -> None:
    """The reset itself is requested again; the first and third time the neighbour begins an episode too."""
    with made(note=str(tmp_path / "note"), at=at, deed="dies", phase="reset") as envs:
        found = EpisodeCollector(envs, plan).collect(network(envs), EPISODES)
        assert (tmp_path / "note").exists() and envs.failures.worker_restarts == 1
        check(found, envs, dropped)


@pytest.mark.fault("G10")
def test_envs_without_an_episode_that_are_lost_with_their_worker_cost_nothing(tmp_path: Path) -> None:
    fault = partial(meta, note=str(tmp_path / "note"), at=5, deed="dies")
    options: dict[str, Any] = {"tasks": TASKS, "autoreset": "disabled", "on_failure": "restart"}
    with mv.make_vec([fault, meta, meta, meta], executor="process", workers=1, **options) as envs:
        collector = EpisodeCollector(envs, plan)
        found = collector.collect(network(envs), 2)  # envs 2 and 3 have none
        assert found.dropped == 2 and len(found.lengths) == 2 and envs.awaiting_reset == []
        assert len(collector.collect(network(envs), 4).lengths) == 4


@pytest.mark.fault("G10")
def test_failure_without_restarts_is_an_error_that_names_the_envs(tmp_path: Path) -> None:
    fault = partial(meta, note=str(tmp_path / "note"), at=5, deed="dies")
    options: dict[str, Any] = {"executor": "process", "workers": 2, "tasks": TASKS, "autoreset": "disabled"}
    with (
        mv.make_vec([meta, meta, meta, fault], **options) as envs,
        pytest.raises(mv.errors.WorkerDied, match="envs 2-3"),
    ):
        EpisodeCollector(envs, plan).collect(network(envs), EPISODES)


@pytest.mark.fault("G10")
@pytest.mark.parametrize(("deed", "dropped"), [("dies", 6), ("raises", 1), ("nan", 1)])
def test_lost_acting_worker_costs_its_share_and_others_are_drawn(deed: str, dropped: int, tmp_path: Path) -> None:
    """Two envs in each of two workers; env 2 fails. Exceptions are handled where the env runs."""
    makers = [meta, meta, partial(meta, note=str(tmp_path / "note"), at=7, deed=deed), meta]
    settings: dict[str, Any] = {"on_failure": "restart", "on_bad_value": "truncate", "tasks": TASKS, "workers": 2}
    with EpisodeCollector(makers, plan, num_envs=4, **settings) as workers, mv.make_vec(meta, 1, "serial") as alone:
        found = workers.collect(network(alone), EPISODES)
        assert (tmp_path / "note").exists() and len(workers.collect(network(alone), 3).lengths) == 3
    attempts = {n: next(a for a in range(5) if plan(a, n) == began) for n, began in enumerate(found.began_from)}
    assert sum(attempts.values()) == found.dropped == dropped and len(found.lengths) == EPISODES
    for ours, theirs in zip(found.each(), undisturbed(attempts).each(), strict=True):
        expected = arrays(theirs)
        assert all(rows.tobytes() == expected[name].tobytes() for name, rows in arrays(ours).items())
