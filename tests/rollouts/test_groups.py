"""Rollouts of several agents: one per group, equal from workers and from the caller, and equal to stepping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.policy import Memory, Seen
from multiverse.rollouts.collector import Collector
from multiverse.rollouts.rollout import RolloutShape
from multiverse.rollouts.rollout_arrays import rollout_fields
from tests.multi_agent.envs import FARMERS, GUARDS, Circle, Village
from tests.vector.configurations import make_with_fields

STEPS, ENVS = 23, 4
KINDS = pytest.mark.parametrize("kind", [Village, Circle])


class Watching:
    """Policy that chooses an open action by its observation, and remembers its number of actions in the episode."""

    version = 0

    def __init__(self, actions: int) -> None:
        self._actions = actions

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Any:
        return rng.random((steps, rows, self._actions), np.float32)

    def first_memory(self, rows: int) -> Memory:
        return {"acted": np.zeros(rows, np.int64)}

    def act(self, seen: Seen, noise: Any, memory: Memory) -> tuple[Any, Memory]:
        total = sum(leaf.reshape(len(leaf), -1).sum(axis=1) for leaf in seen.observations.values())
        scores = noise + np.sin(total[:, None] * np.arange(1, self._actions + 1))
        if seen.masks is not None:
            scores = np.where(seen.masks, scores, -9.0)
        return scores.argmax(axis=1), {"acted": memory["acted"] + 1}

    def for_env(self, actions: Any) -> Any:
        return actions

    def portable(self) -> Watching:
        return self


def shapes_of(groups: Any) -> list[RolloutShape]:
    """Rollout shapes of groups with Discrete actions."""
    return [
        RolloutShape(
            group.name,
            group.observation_space,
            STEPS,
            ENVS * len(group.agents),
            ((), np.int64),
            group.masks,
            True,
            Watching(1).first_memory(1),
            ((group.masks,), np.float32),
        )
        for group in groups
    ]


def collected(kind: Any, executor: Any, where: str, rollouts: int = 3) -> tuple[list[Any], list[Any]]:
    fields = (lambda described: rollout_fields(shapes_of(described.groups), ENVS)) if where == "in workers" else None
    workers = None if executor == "serial" else 2
    options = {"workers": workers, "env_kwargs": {"agents": (*FARMERS, *GUARDS)}, "infos": False, "fields": fields}
    plan = mv.DerivedSeeds(7)
    with make_with_fields(kind, ENVS, executor, autoreset="same_step", reset_plan=plan, **options) as envs:
        groups = envs.views.layout.groups
        collector = Collector(envs, shapes_of(groups), None, mv.DerivedSeeds(7))
        collector.actions.enabled = False
        envs.reset()
        collector.begin()
        policies, rng, found, episodes = [Watching(group.masks) for group in groups], np.random.default_rng(5), [], []
        for _ in range(rollouts):
            result = collector.collect(policies, rng)
            assert result is not None
            episodes += result.episodes
            for rollout in collector.rollouts:
                names = ("actions", "rewards", "terminated", "truncated", "valid", "starts", "acting", "action_masks")
                arrays = {name: getattr(rollout, name).copy() for name in names}
                arrays["acted"] = rollout.memory["acted"].copy()
                arrays |= {str(path): rows.copy() for path, rows in rollout.observations.items()}
                arrays |= {f"final {path}": rows for path, rows in rollout.ends()[2].items()}
                found.append(arrays)
        return found, episodes


@KINDS
@pytest.mark.parametrize("executor", ["serial", "process", "hybrid"])
def test_rollouts_of_workers_equal_those_of_the_caller(kind: Any, executor: Any) -> None:
    here, expected_episodes = collected(kind, "serial", "in the caller")
    there, episodes = collected(kind, executor, "in workers")
    for ours, theirs in zip(there, here):
        for name, rows in ours.items():
            assert (rows == theirs[name]).all(), name
    assert episodes == expected_episodes and episodes


def test_rollouts_of_groups_equal_stepping_the_agents() -> None:
    """The same actions in a vector env that is stepped by its public methods."""
    found, episodes = collected(Village, "serial", "in workers", rollouts=1)
    with mv.make_vec(Village, ENVS, "serial", env_kwargs={"agents": (*FARMERS, *GUARDS)}, autoreset="same_step",
                     reset_plan=mv.DerivedSeeds(7)) as envs:  # fmt: skip
        envs.reset()
        names = list(envs.groups)
        returns: dict[tuple[int, int], dict[str, float]] = {}
        for t in range(STEPS):
            batch = envs.by_group().groups
            for name, rollout in zip(names, found):
                assert (rollout["acting"][t] == batch[name].alive.reshape(-1)).all()
                assert (rollout["valid"][t] == rollout["acting"][t]).all()
                open_now = batch[name].action_masks
                assert open_now is not None
                assert (rollout["action_masks"][t] == open_now.reshape(len(rollout["acting"][t]), -1)).all()
            before = envs.episode_counts
            envs.step({name: rollout["actions"][t].reshape(ENVS, -1) for name, rollout in zip(names, found)})
            batch = envs.by_group().groups
            for name, rollout in zip(names, found):
                assert np.allclose(rollout["rewards"][t], batch[name].rewards.reshape(-1))
                assert (rollout["terminated"][t] == batch[name].terminated.reshape(-1)).all()
                assert (rollout["truncated"][t] == batch[name].truncated.reshape(-1)).all()
            for env in np.flatnonzero(envs.episode_counts != before).tolist():
                returns[(env, int(before[env]))] = {a: float(r[env]) for a, r in envs.episode_returns.items()}
    assert {(e.env_id, e.index) for e in episodes} == set(returns)
    for episode in episodes:
        assert episode.by_agent == pytest.approx(returns[(episode.env_id, episode.index)])


@KINDS
def test_memory_advances_where_a_slot_acts(kind: Any) -> None:
    found, _ = collected(kind, "serial", "in workers", rollouts=1)
    for rollout in found:
        for slot in range(rollout["acting"].shape[1]):
            acted = 0
            for t in np.flatnonzero(rollout["acting"][:, slot]).tolist():
                acted = 0 if rollout["starts"][t, slot] else acted
                assert rollout["acted"][t, slot] == acted
                acted += 1
        assert not rollout["starts"][~rollout["acting"]].any() and rollout["starts"].any()
        assert (rollout["actions"][rollout["acting"]] >= 0).all() and not rollout["acting"].all()
        chosen = np.take_along_axis(rollout["action_masks"], rollout["actions"][..., None], axis=2)[..., 0]
        assert chosen[rollout["acting"]].all()  # only open actions


def test_slot_that_skips_the_last_row_receives_its_own_last_action_in_the_next_rollout() -> None:
    with mv.make_vec(Circle, ENVS, "serial", env_kwargs={"agents": (*FARMERS, *GUARDS)}, infos=False,
                     autoreset="same_step", reset_plan=mv.DerivedSeeds(7)) as envs:  # fmt: skip
        groups = envs.views.layout.groups
        collector = Collector(envs, shapes_of(groups), None, mv.DerivedSeeds(7))
        collector.actions.enabled = False
        envs.reset()
        collector.begin()
        policies, rng, waited = [Watching(group.masks) for group in groups], np.random.default_rng(5), 0
        last = [np.zeros(rollout.slots, np.int64) for rollout in collector.rollouts]
        for _ in range(4):
            assert collector.collect(policies, rng) is not None
            for rollout, before in zip(collector.rollouts, last):
                assert rollout.acting is not None and rollout.previous is not None
                for t in range(rollout.steps):
                    acts, starts = rollout.acting[t], rollout.starts[t]
                    before[starts] = 0
                    assert (rollout.previous[0][t][acts] == before[acts]).all()
                    waited += t == 0 and not acts.all()
                    before[acts] = rollout.actions[t][acts]
        assert waited
