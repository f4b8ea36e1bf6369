"""The same seeds and actions give the same bits for every executor and number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import AnySpace, RichInfos, Walk
from tests.equality import assert_same
from tests.space_catalogue import catalogue
from tests.vector.runs import action, actions

NUM_ENVS = 5
WAYS: list[dict[str, Any]] = [
    *({"executor": "thread", "workers": w} for w in range(1, NUM_ENVS + 1)),
    *({"executor": "process", "workers": w} for w in range(1, NUM_ENVS + 1)),
    *({"executor": "hybrid", "workers": w} for w in range(1, NUM_ENVS)),
    {"executor": "process", "workers": mv.WorkerOptions(count=2, start_method="fork")},
    {"executor": "process", "workers": mv.WorkerOptions(count=2, start_method="spawn")},
    {"executor": "process", "workers": mv.WorkerOptions(count=2, waiting="park")},
    {"executor": "hybrid", "workers": mv.WorkerOptions(count=1, waiting="spin")},
    {"executor": "thread", "workers": mv.WorkerOptions(count=2, waiting="spin")},
]
SERIAL: dict[str, Any] = {"executor": "serial"}


def count_of(way: dict[str, Any]) -> int:
    """Number of workers."""
    workers = way.get("workers", 0)
    return workers.count if isinstance(workers, mv.WorkerOptions) else workers


def name_of(way: dict[str, Any]) -> str:
    workers = way["workers"]
    options = (workers.start_method, workers.waiting) if isinstance(workers, mv.WorkerOptions) else ()
    return "-".join(map(str, (way["executor"], count_of(way), *options)))


def whole_run(way: dict[str, Any], **options: Any) -> list[Any]:
    """Everything that a caller receives in a run with resets, partial calls, statistics and derived seeds."""
    seen: list[Any] = []
    kwargs = [{"length": 2 + i} for i in range(NUM_ENVS)]
    with mv.make_vec(Walk, NUM_ENVS, env_kwargs=kwargs, **way, **options) as envs:
        seen.append(envs.reset(seed=3))
        for k in range(12):
            seen.append(envs.step(actions(range(NUM_ENVS), k)))
            if k % 4 == 2:
                seen.append(envs.reset(env_ids=[3, 1], seed=k if k % 8 == 2 else None))
            if k % 5 == 3:
                seen.append(envs.step(actions([4, 0, 2], k), env_ids=[4, 0, 2]))
            seen.append((envs.episode_returns, envs.episode_lengths, envs.episode_counts))
        seen.append(envs.get_attr("resets"))
    return seen


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Any]]:
    return {mode: whole_run(SERIAL, autoreset=mode) for mode in ("next_step", "same_step")}


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_every_executor_and_worker_count_gives_equal_bits(way: dict[str, Any], expected: Any) -> None:
    mode = "same_step" if count_of(way) % 2 else "next_step"
    assert_same(whole_run(way, autoreset=mode), expected[mode])


@pytest.mark.parametrize("way", [w for w in WAYS if count_of(w) == 2], ids=name_of)
def test_derived_seeds_are_equal_for_every_executor(way: dict[str, Any]) -> None:
    plan = mv.DerivedSeeds(5)
    assert_same(
        whole_run(way, autoreset="same_step", reset_plan=plan),
        whole_run(SERIAL, autoreset="same_step", reset_plan=plan),
    )


@pytest.mark.parametrize("way", [w for w in WAYS if count_of(w) == 3], ids=name_of)
def test_infos_and_objects_are_equal_for_every_executor(way: dict[str, Any]) -> None:
    def run(options: dict[str, Any]) -> list[Any]:
        factories = [lambda i=i: RichInfos(index=i) for i in range(NUM_ENVS)]
        with mv.make_vec(factories, autoreset="same_step", **options) as envs:
            seen: list[Any] = [envs.reset(seed=1), *(envs.step(np.zeros(NUM_ENVS, np.int64)) for _ in range(9))]
        space = "dict_mixed"
        with mv.make_vec(lambda: AnySpace(catalogue()[space], catalogue()[space]), NUM_ENVS, **options) as envs:
            envs.action_space.seed(1)
            return [*seen, envs.reset(seed=1), *(envs.step(envs.action_space.sample()) for _ in range(9))]

    assert_same(run(way), run(SERIAL))


def test_first_come_first_served_equals_lock_step() -> None:
    with mv.make_vec(Walk, NUM_ENVS, "serial") as envs:
        envs.reset(seed=3)
        expected = np.array([envs.step(actions(range(NUM_ENVS), k))[1] for k in range(10)])
    with mv.make_vec(Walk, NUM_ENVS, "process", workers=3) as envs:
        envs.reset(seed=3)
        found, taken = np.zeros((10, NUM_ENVS)), [0] * NUM_ENVS
        envs.send(actions(range(NUM_ENVS), 0))
        while min(taken) < 10:
            batch = envs.receive(min_envs=1)
            for row, i in enumerate(batch.env_ids.tolist()):
                found[taken[i], i] = batch.rewards[row]
                taken[i] += 1
            again = [i for i in batch.env_ids.tolist() if taken[i] < 10]
            if again:
                envs.send(np.array([action(i, taken[i]) for i in again]), again)
    assert_same(found, expected)


@pytest.mark.parametrize("way", [w for w in WAYS if count_of(w) == 2], ids=name_of)
def test_step_discarded_by_a_reset_leaves_equal_state_in_every_executor(way: dict[str, Any]) -> None:
    """Otherwise the random generators, which an unseeded reset does not change, would differ."""

    def run(options: dict[str, Any]) -> list[Any]:
        with mv.make_vec(Walk, NUM_ENVS, **options) as envs:
            envs.reset(seed=3)
            envs.send(actions(range(NUM_ENVS), 0))
            return [envs.reset()[0], *(envs.step(actions(range(NUM_ENVS), k))[1] for k in range(3))]

    assert_same(run(way), run(SERIAL))


def test_plan_reproduces_the_same_hosts() -> None:
    with mv.make_vec(Walk, 4, "hybrid", workers=mv.WorkerOptions(count=2, start_method="fork", waiting="park")) as envs:
        plan = envs.plan
    with mv.make_vec(Walk, 4, plan=plan) as again:
        assert again.plan == plan
        assert [len(h.env_ids) for h in again._executor.hosts] == [1, 1, 2]
