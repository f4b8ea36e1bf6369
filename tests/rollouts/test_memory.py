"""Memory as data: the policy's memory before every row is in the rollout, and continues in the next rollout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.layout import SINGLE_AGENT
from multiverse.core.policy import Memory, Seen
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.rollout import RolloutShape
from multiverse.rollouts.rollout_arrays import rollout_fields
from tests.envs import Walk
from tests.vector.configurations import ALL, Configuration, over

config = over([one for one in ALL if str(one) in ("serial", "forkserver", "hybrid")])
STEPS = 7


class Counting:
    """Policy that remembers its number of actions in the episode, which is its action, and the sum of the rewards."""

    version = 0

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Any:
        return np.zeros((steps, rows), np.float32)

    def first_memory(self, rows: int) -> Memory:
        return {"acted": np.full(rows, 10, np.int64), "earned": np.zeros(rows), "did": np.full(rows, -1, np.int64)}

    def act(self, seen: Seen, noise: Any, memory: Memory) -> tuple[Any, Memory]:
        assert seen.previous_rewards is not None and seen.previous_actions is not None
        earned, did = memory["earned"] + seen.previous_rewards, seen.previous_actions
        return memory["acted"] % 3, {"acted": memory["acted"] + 1, "earned": earned, "did": np.array(did)}

    def for_env(self, actions: Any) -> Any:
        return actions

    def portable(self) -> Counting:
        return self


def shape(observation_space: Any, num_envs: int) -> RolloutShape:
    memory = Counting().first_memory(1)
    return RolloutShape(SINGLE_AGENT, observation_space, STEPS, num_envs, ((), np.int64), memory=memory)


@pytest.mark.parametrize("where", ["in workers", "in the caller"])
def test_memory_before_every_row_is_in_the_rollout(config: Configuration, where: str) -> None:
    count = config.num_envs

    def lay_out(described: Any) -> Any:
        return rollout_fields([shape(described.groups[0].observation_space, count)], count)

    fields = lay_out if where == "in workers" else None
    with config.make(Walk, env_kwargs={"length": 5}, autoreset="same_step", copy=False, infos=False,
                     reset_plan=mv.DerivedSeeds(4), fields=fields) as envs:  # fmt: skip
        collector = Collector(envs, [shape(envs.single_observation_space, count)], None, mv.DerivedSeeds(4))
        envs.reset()
        collector.begin()
        acted, earned, did = np.full(count, 10), np.zeros(count), np.full(count, -1)
        before = np.zeros(count), np.zeros(count, np.int64)  # reward and action
        for _ in range(3):
            assert collector.collect([Counting()], np.random.default_rng(1)) is not None
            rollout = collector.rollouts[0]
            for t in range(STEPS):
                starts = rollout.starts[t]
                acted[starts], earned[starts], did[starts] = 10, 0.0, -1
                assert (rollout.memory["acted"][t] == acted).all()
                assert np.allclose(rollout.memory["earned"][t], earned) and (rollout.memory["did"][t] == did).all()
                assert (rollout.actions[t] == acted % 3).all()
                earned = earned + np.where(starts, 0.0, before[0])
                acted, did = acted + 1, np.where(starts, 0, before[1])
                before = rollout.rewards[t].astype(np.float64), rollout.actions[t].copy()
            assert (rollout.last_memory["acted"] == acted).all() and (rollout.last_memory["did"] == did).all()
        assert rollout.starts.any() and not rollout.starts.all()


def test_memory_is_restored() -> None:
    """Another collector with the memory of the first continues equally, as in a resumed run."""
    found = []
    for restored in (False, True):
        with mv.make_vec(Walk, 2, "serial", env_kwargs={"length": 50}, autoreset="same_step",
                         reset_plan=mv.DerivedSeeds(4)) as envs:  # fmt: skip
            collector = Collector(envs, [shape(envs.single_observation_space, 2)], None, mv.DerivedSeeds(4))
            envs.reset()
            collector.begin()
            collector.collect([Counting()], np.random.default_rng(1))
            if restored:
                known = collector.memory()
                collector = Collector(envs, [shape(envs.single_observation_space, 2)], None, mv.DerivedSeeds(4))
                collector.begin()
                collector.load_memory(known)
            collector.collect([Counting()], np.random.default_rng(1))
            rollout = collector.rollouts[0]
            found.append([rollout.actions, *rollout.memory.values(), *rollout.last_memory.values()])
    assert all((one == other).all() for one, other in zip(*found))
    assert found[0][1][0].tolist() == [17, 17]  # ten, and seven steps of the first rollout
