"""Rollouts with one whole episode of every env: envs that end early wait, and waiting rows do not count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.layout import SINGLE_AGENT
from multiverse.core.policy import Seen
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.rollout import RolloutShape
from multiverse.rollouts.rollout_arrays import rollout_fields
from tests.rollouts.envs import Uneven
from tests.rollouts.test_collector import config, policy_for  # noqa: F401
from tests.training.small_runs import SMALL, digest, lines_of
from tests.vector.configurations import Configuration, make_with_fields

MOST, NUM_ENVS, PLAN = 12, 4, mv.DerivedSeeds(4)


def shape_for(num_envs: int) -> RolloutShape:
    env = Uneven()
    options: dict[str, Any] = {"noise": ((2,), np.float32)}
    return RolloutShape(SINGLE_AGENT, env.observation_space, MOST, num_envs, ((), np.int64), **options)


def whole(num_envs: int) -> dict[str, Any]:
    fields = rollout_fields([shape_for(num_envs)], num_envs, whole_episodes=True)
    return {"fields": lambda _: fields, "reset_plan": PLAN, "autoreset": "same_step", "copy": False, "infos": False}


def collecting(envs: Any) -> Collector:
    collector = Collector(envs, [shape_for(envs.num_envs)], None, PLAN)
    envs.reset()
    collector.begin()
    return collector


def by_hand(env_id: int, policy: Any, noises: list[Any]) -> list[dict[str, Any]]:
    """Contents of each rollout by one bare env: an episode, or the part of it that fits."""
    env, episode, found = Uneven(), 0, []
    seen, start = env.reset(seed=PLAN(env_id, 0).seed)[0], True
    for noise in noises:
        rows: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "terminated": [], "starts": []}
        for t in range(MOST):
            (action,), _ = policy.act(Seen({(): seen[None]}, np.array([start])), noise[t, env_id : env_id + 1], {})
            before, (after, reward, over, _, _) = seen, env.step(action)
            for name, value in zip(rows, (before, action, reward, over, start)):
                rows[name].append(value)
            seen, start = after, over
            if over:
                episode += 1
                seen = env.reset(seed=PLAN(env_id, episode).seed)[0]
                break
        found.append(rows)
    return found


@pytest.mark.fault("G7")
def test_every_env_plays_one_episode_and_waits_for_the_others(config: Configuration) -> None:  # noqa: F811
    with config.make(Uneven, **whole(config.num_envs)) as envs:
        collector, policy, rng, again = collecting(envs), policy_for(envs), *map(np.random.default_rng, (1, 1))
        drawn = [policy.noise(again, MOST, envs.num_envs) for _ in range(5)]
        expected = [by_hand(i, policy, drawn) for i in range(envs.num_envs)]
        total = 0
        for k in range(5):
            result, rollout = collector.collect([policy], rng), collector.rollouts[0]
            assert result is not None
            lengths = [len(each[k]["rewards"]) for each in expected]
            for i, each in enumerate(expected):
                for name, rows in each[k].items():
                    kept = rollout.observations[()] if name == "observations" else getattr(rollout, name)
                    np.testing.assert_array_equal(kept[: lengths[i], i], np.array(rows, kept.dtype), err_msg=name)
                assert rollout.valid[:, i].tolist() == [t < lengths[i] for t in range(MOST)]
                late = slice(lengths[i], None)
                assert not rollout.rewards[late, i].any() and not rollout.starts[late, i].any()
            ended = [i for i, each in enumerate(expected) if each[k]["terminated"][-1]]
            steps, slots, _ = rollout.ends()
            assert sorted(zip(slots.tolist(), steps.tolist())) == [(i, lengths[i] - 1) for i in ended]
            assert sorted(e.env_id for e in result.episodes) == ended and {e.version for e in result.episodes} <= {3}
            total += sum(lengths)
            assert collector.env_steps == sum(lengths) and envs.failures.steps_sent == total
            assert envs.failures.steps_used == total


@pytest.mark.fault("G7")
def test_worker_that_dies_costs_one_row_of_envs_that_still_play(tmp_path: Path) -> None:
    """Envs 0 and 1 share a worker; with these seeds, env 1's first episode has ended when env 0 ends the worker."""

    class Short(Uneven):
        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            self.length = 2
            return self._seen(), {}

    makers = [lambda: Uneven(str(tmp_path / "note")), Short, Uneven, Uneven]
    with make_with_fields(makers, executor="process", workers=2, on_failure="restart", **whole(4)) as envs:
        collector, policy, rng = collecting(envs), policy_for(envs), np.random.default_rng(1)
        result, rollout = collector.collect([policy], rng), collector.rollouts[0]
        assert result is not None and result.lost_steps == 1
        assert rollout.valid[:4, :2].T.tolist() == [[True, True, False, False], [True, True, False, False]]
        by_env = {e.env_id: e for e in result.episodes}
        assert by_env[0].lost and by_env[0].length == 2 and not by_env[1].lost and by_env[1].length == 2
        assert rollout.truncated[2, 0] and not rollout.truncated[2, 1] and rollout.terminated[1, 1]
        assert envs.failures.worker_restarts == 1 and envs.failures.steps_discarded == 1
        assert envs.failures.steps_sent == envs.failures.steps_used + 1 == collector.env_steps
        again = collector.collect([policy], rng)
        assert again is not None and again.lost_steps == 0 and rollout.valid[0].all() and rollout.starts[0, :2].all()
        counts = envs.episode_counts
        assert [e.index for e in again.episodes if e.env_id == 1] == [counts[1] - 1]


# -- in a run --------------------------------------------------------------------------------------------------------
RUN = {**SMALL, "steps_per_env": MOST, "whole_episodes": True, "env_steps": 600, "checkpoint_every_s": 0.0}


@pytest.mark.fault("D5")
@pytest.mark.parametrize("memory", [{}, {"memory": "gru", "memory_size": 8, "chunk_length": 8, "see_previous": True}])
def test_whole_episode_runs_are_bit_exact_in_every_executor_and_resume(memory: dict[str, Any], tmp_path: Path) -> None:
    """For teams see `tests/training/test_teams.py`."""
    settings = {**RUN, **memory}
    alone = mv.train(Uneven, run_dir=tmp_path / "alone", **settings)
    several = mv.train(Uneven, run_dir=tmp_path / "several", **{**settings, "executor": "process", "workers": 3})
    mv.train(Uneven, run_dir=tmp_path / "longer", **{**settings, "env_steps": 200})
    longer = mv.resume(tmp_path / "longer", env=Uneven, env_steps=settings["env_steps"])
    assert digest(alone) == digest(several) == digest(longer)
    for run in (several, longer):
        assert lines_of(run.path, "episodes.jsonl") == lines_of(alone.path, "episodes.jsonl")


@pytest.mark.parametrize("whole_episodes", [True, False])
def test_every_worker_acts_with_every_new_version(whole_episodes: bool, tmp_path: Path) -> None:
    """Each of three workers has one env, whose episodes record the version of the weights."""
    settings = {**RUN, "num_envs": 3, "executor": "process", "workers": 3, "whole_episodes": whole_episodes}
    settings |= {"steps_per_env": 16}  # in which every episode ends
    run = mv.train(Uneven, run_dir=tmp_path / "run", **settings)
    episodes = [json.loads(line) for line in Path(run.path, "episodes.jsonl").read_text().splitlines()]
    updates = run.summary["updates"]
    found = {(one["env_id"], one["version"]) for one in episodes}
    assert updates > 8 and found == {(env_id, version) for env_id in range(3) for version in range(updates)}
    if whole_episodes:
        assert len(episodes) == 3 * updates and len({one["seed"] for one in episodes}) == len(episodes)


def test_policy_that_acts_in_the_caller_is_refused_for_whole_episodes(tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="whole_episodes needs a policy that acts in the workers"):
        mv.train(Uneven, run_dir=tmp_path / "run", **{**RUN, "steps_per_env": 4})
