"""A rollout equals stepping the envs by hand, also with ends of episodes and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.layout import SINGLE_AGENT
from multiverse.core.policy import Seen
from multiverse.policies.features import Features
from multiverse.policies.heads import DiscreteHead
from multiverse.policies.numpy_policies import NumpyPolicy
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.episodes import ActionLog, Collected
from multiverse.rollouts.rollout import Rollout, RolloutShape
from multiverse.rollouts.rollout_arrays import rollout_fields
from tests.envs import Walk
from tests.rollouts.envs import Unlucky
from tests.vector.configurations import ALL, Configuration, make_with_fields, over

config = over([one for one in ALL if str(one) in ("serial", "forkserver", "hybrid")])
STEPS = 7


def policy_for(envs: Any, seed: int = 0) -> NumpyPolicy:
    """A policy with random weights, whose actions depend on the observations."""
    features = Features(envs.single_observation_space, envs.single_action_space)
    rng, actions = np.random.default_rng(seed), int(envs.single_action_space.n)
    layers = [(rng.normal(size=(features.size, actions)).astype(np.float32), np.zeros(actions, np.float32))]
    return NumpyPolicy(features, layers, "tanh", DiscreteHead(actions), version=3)


def shape_of(observed: Any, acted: Any, num_envs: int) -> RolloutShape:
    noise = (int(acted.n),), np.float32
    return RolloutShape(SINGLE_AGENT, observed, STEPS, num_envs, ((), np.int64), noise=noise)


def fields_for(num_envs: int) -> Any:
    """Fields for `make_with_fields`: rollouts are filled where the envs run."""

    def lay_out(described: Any) -> Any:
        (group,) = described.groups
        return rollout_fields([shape_of(group.observation_space, group.action_space, num_envs)], num_envs)

    return lay_out


def collecting(envs: Any, seed: int = 4) -> tuple[Collector, Rollout, Features]:
    features = Features(envs.single_observation_space, envs.single_action_space)
    shape = shape_of(envs.single_observation_space, envs.single_action_space, envs.num_envs)
    collector = Collector(envs, [shape], None, mv.DerivedSeeds(seed))
    envs.reset()
    collector.begin()
    return collector, collector.rollouts[0], features


def collected(collector: Collector, policy: NumpyPolicy, rng: np.random.Generator, envs: Any) -> Collected:
    found = collector.collect([policy], rng)
    assert found is not None
    return found


@pytest.mark.parametrize("where", ["in workers", "in the caller"])
def test_rollout_equals_stepping_by_hand(config: Configuration, where: str) -> None:
    fields = fields_for(config.num_envs) if where == "in workers" else None
    with config.make(Walk, env_kwargs={"length": 3}, autoreset="same_step", copy=False, infos=False,
                     reset_plan=mv.DerivedSeeds(4), fields=fields) as envs:  # fmt: skip
        collector, rollout, _ = collecting(envs)
        policy, rng = policy_for(envs), np.random.default_rng(1)
        for k in range(3):
            result = collected(collector, policy, rng, envs)
            expected = by_hand(config.num_envs, policy, k)
            for name in ("rewards", "terminated", "truncated", "actions", "starts"):
                kept = getattr(rollout, name)
                assert (kept == expected[name].astype(kept.dtype)).all(), name
            assert (rollout.observations[()] == expected["observations"].astype(np.float32)).all()
            assert (rollout.last[()] == expected["last"].astype(np.float32)).all()
            steps, slots, finals = rollout.ends()
            assert list(zip(steps.tolist(), slots.tolist())) == expected["ends"]
            assert rollout.valid.all() and rollout.policy_version == 3
            assert (finals[()] == expected["finals"].astype(np.float32)).all()
            assert [(e.env_id, e.index, e.seed, e.returned, e.length) for e in result.episodes] == expected["episodes"]


def by_hand(num_envs: int, policy: NumpyPolicy, rollout: int) -> dict[str, Any]:
    """The same with one bare env per slot; return the last of `rollout` + 1 rollouts."""
    envs, plan, rng = [Walk(length=3) for _ in range(num_envs)], mv.DerivedSeeds(4), np.random.default_rng(1)
    seen = [env.reset(seed=plan(i, 0).seed)[0] for i, env in enumerate(envs)]
    counts, returns, lengths = [0] * num_envs, [0.0] * num_envs, [0] * num_envs
    starts = [True] * num_envs
    for _ in range(rollout + 1):
        noise = policy.noise(rng, STEPS, num_envs)
        found: dict[str, Any] = {name: [] for name in ("observations", "actions", "rewards", "terminated", "truncated",
                                                       "starts", "ends", "finals", "episodes")}  # fmt: skip
        for t in range(STEPS):
            found["observations"].append(np.stack(seen))
            found["starts"].append(list(starts))
            shown = Seen({(): np.stack(seen).astype(np.float32)}, np.array(starts))
            actions, _ = policy.act(shown, noise[t], {})
            found["actions"].append(actions)
            rows: list[Any] = []
            for i, env in enumerate(envs):
                seen[i], reward, terminated, truncated, _ = env.step(actions[i])
                rows.append((reward, terminated, truncated))
                returns[i], lengths[i], starts[i] = returns[i] + reward, lengths[i] + 1, terminated or truncated
                if starts[i]:
                    found["ends"].append((t, i))
                    found["finals"].append(seen[i])
                    found["episodes"].append((i, counts[i], plan(i, counts[i]).seed, returns[i], lengths[i]))
                    counts[i], returns[i], lengths[i] = counts[i] + 1, 0.0, 0
                    seen[i] = env.reset(seed=plan(i, counts[i]).seed)[0]
            for name, column in zip(("rewards", "terminated", "truncated"), zip(*rows)):
                found[name].append(column)
        found["last"] = np.stack(seen)
    numbers = {name: np.array(value) for name, value in found.items() if name not in ("ends", "episodes")}
    return {**found, **numbers}


@pytest.mark.fault("B4")
@pytest.mark.parametrize("where", ["in workers", "in the caller"])
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_lost_step_is_never_learned_from(tmp_path: Path, executor: Any, where: str) -> None:
    makers = [Unlucky, lambda: Unlucky(str(tmp_path / "note"))]
    fields = fields_for(2) if where == "in workers" else None
    with make_with_fields(makers, executor=executor, autoreset="same_step", on_failure="restart", infos=False,
                     reset_plan=mv.DerivedSeeds(4), fields=fields) as envs:  # fmt: skip
        collector, rollout, _ = collecting(envs)
        result = collected(collector, policy_for(envs), np.random.default_rng(1), envs)
        assert rollout.valid[:, 0].all() and rollout.valid[:, 1].tolist() == [True, True, False, True, True, True, True]
        assert rollout.truncated[2, 1] and rollout.rewards[2, 1] == 0.0 and result.lost_steps == 1
        assert rollout.ends()[2][()].tolist() == [[2.0, 2.0]]  # what was delivered last
        assert rollout.observations[()][3, 1].tolist() == [0.0, 0.0] and rollout.starts[3, 1]
        assert [(e.env_id, e.lost) for e in result.episodes] == [(1, True)]
        failures = envs.failures
        assert failures.steps_sent == failures.steps_used + failures.steps_discarded == 2 * STEPS


@pytest.mark.parametrize("fields", [None, fields_for(2)], ids=["in the caller", "where the envs are"])
def test_stop_request_leaves_the_rollout_unfinished(fields: Any) -> None:
    with make_with_fields(
        Walk, 2, "serial", autoreset="same_step", reset_plan=mv.DerivedSeeds(4), fields=fields
    ) as envs:
        collector, _, _ = collecting(envs)
        policy, answers = policy_for(envs), iter([False, False, True])
        assert collector.collect([policy], np.random.default_rng(1), lambda: next(answers)) is None
        assert envs.episode_lengths.tolist() == [2, 2]


def test_log_returns_the_actions_at_the_mark() -> None:
    with mv.make_vec(Walk, 2, "serial", env_kwargs={"length": 3}, autoreset="same_step",
                     reset_plan=mv.DerivedSeeds(4)) as envs:  # fmt: skip
        collector, rollout, _ = collecting(envs)
        policy, rng = policy_for(envs), np.random.default_rng(1)
        collected(collector, policy, rng, envs)  # 7 steps of episodes of 3: one step into the third
        collector.actions.mark()
        expected = [rollout.actions[6:, i].tolist() for i in range(2)]
        collected(collector, policy, rng, envs)
        assert [known[0].tolist() for known in collector.actions.state() if known is not None] == expected


def test_episode_without_actions_at_the_mark_continues_in_the_log() -> None:
    log = ActionLog(1)
    (none,) = log.state()
    assert none is not None
    log.load(0, none)
    log.add([np.ones((3, 1, 2))], np.zeros((3, 1), bool))
    log.mark()
    (taken,) = log.state()
    assert taken is not None and taken[0].shape == (3, 2)


@pytest.mark.fault("B4")
def test_row_that_starts_an_episode_is_never_learned_from() -> None:
    """autoreset next_step: the row after an end is not a step, and the one after that is its episode's first."""
    found = {}
    for mode in ("next_step", "same_step"):
        with mv.make_vec(Walk, 2, "serial", env_kwargs={"length": 3}, autoreset=mode,
                         reset_plan=mv.DerivedSeeds(4)) as envs:  # fmt: skip
            collector, rollout, _ = collecting(envs)
            result = collected(collector, policy_for(envs), np.random.default_rng(1), envs)
            found[mode] = rollout, result.episodes
    rollout, episodes = found["next_step"]
    assert rollout.valid[:, 0].tolist() == [True, True, True, False, True, True, True]
    assert rollout.starts[:, 0].tolist() == [True, False, False, False, True, False, False]
    assert (rollout.ends()[2][()][0] == found["same_step"][0].ends()[2][()][0]).all()
    expected = [e for e in found["same_step"][1] if e.index < 2]
    assert [(e.env_id, e.index, e.seed) for e in episodes] == [(e.env_id, e.index, e.seed) for e in expected]
    assert rollout.rewards[3, 0] == 0.0
