"""Row B7 for several agents: wrong actions are refused before anything is sent, and the vector env stays usable."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.equality import assert_same
from tests.multi_agent.envs import Pair, Village
from tests.vector.configurations import DISTINCT, FORKSERVER, SERIAL, Configuration, over
from tests.vector.conftest import Make

config = over(DISTINCT)
N = 4
GOOD = np.zeros(N, int)


@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (GOOD, "expected a dict agent"),
        ({"left": GOOD}, "no actions for right, which is alive"),
        ({}, "no actions for left"),
        ({"left": GOOD, "right": GOOD, "up": GOOD}, r"actions for unknown agents or groups \['up'\]; there are agents"),
        ({"left": GOOD, "right": GOOD[1:]}, r"actions of right have shape \(3,\)"),
        ({"left": GOOD, "right": GOOD[:, None]}, r"actions of right have shape \(4, 1\)"),
        ({"left": GOOD, "right": GOOD + 0.5}, "actions of right are float64"),
        ({"left": GOOD, "right": ["a"] * N}, "actions of right are <U1"),
        ({"left": GOOD, "right": None}, "actions of right"),
        ({"agents": np.zeros((N, 2), int), "left": GOOD}, r"for group 'agents' and for its agents \['left'\]"),
        ({"agents": np.zeros((N, 3), int)}, r"group 'agents' have shape \(4, 3\), expected \(4, 2, …\)"),
        ({"agents": np.zeros((N, 2, 1), int)}, "have shape"),
        ({"agents": [[0, 1], [0]]}, "group 'agents'"),
        ({"agents": 3}, "group 'agents'"),
    ],
)
def test_invalid_actions_are_refused_and_leave_no_trace(
    make: Make, config: Configuration, actions: Any, said: str
) -> None:
    envs, untouched = make(Pair, N), make(Pair, N)
    envs.reset(seed=1), untouched.reset(seed=1)
    good = {"left": GOOD + 1, "right": GOOD + 2}
    assert_same(envs.step(good), untouched.step(good))
    with pytest.raises(mv.errors.InvalidActions, match=said):
        envs.step(actions)
    with pytest.raises(mv.errors.InvalidActions, match=said):
        envs.send(actions)
    assert envs.failures.steps_sent == N
    assert_same(envs.step(good), untouched.step(good))


def test_refused_batch_changes_the_actions_of_no_agent(make: Make, config: Configuration) -> None:
    """The first agent's actions are valid and must not be written if the second's are not."""
    envs, untouched = make(Pair, N), make(Pair, N)
    envs.reset(seed=1), untouched.reset(seed=1)
    good = {"left": GOOD, "right": GOOD}
    envs.step(good), untouched.step(good)
    with pytest.raises(mv.errors.InvalidActions):
        envs.step({"left": GOOD + 2, "right": GOOD[1:]})
    ids = {"env_ids": [0]}
    some = {agent: batch[:1] for agent, batch in good.items()}
    assert_same(envs.step(some, **ids), untouched.step(some, **ids))
    assert_same(envs.step(good), untouched.step(good))


def test_agents_absent_in_every_env_need_no_actions(make: Make, config: Configuration) -> None:
    envs = make(partial(Pair, second_leaves_at=1), N, autoreset="next_step")
    envs.reset(seed=1)
    envs.step({"left": GOOD, "right": GOOD})
    assert not envs.alive["right"].any()
    _, rewards, *_ = envs.step({"left": GOOD + 1})
    assert (rewards["left"] >= 1).all() and not rewards["right"].any()


def test_nested_actions_are_passed_per_agent(make: Make, config: Configuration) -> None:
    envs = make(Village, N)
    envs.reset(seed=1)
    actions = {agent: envs.action_space(agent).sample() for agent in envs.agents}
    envs.step(actions)
    del actions["bard"]["word"]
    with pytest.raises(mv.errors.InvalidActions, match="word"):
        envs.step(actions)


def test_unknown_agents_are_refused(make: Make, config: Configuration) -> None:
    envs = make(Pair, N)
    for ask in (envs.action_space, envs.single_action_space, envs.observation_space, envs.single_observation_space):
        with pytest.raises(mv.errors.InvalidRequest, match="unknown agent 'up'"):
            ask("up")


def test_ended_episodes_must_be_reset_without_autoreset(make: Make, config: Configuration) -> None:
    envs = make([partial(Pair, length=2 + i) for i in range(N)], autoreset="disabled")
    with pytest.raises(mv.errors.InvalidRequest, match="reset"):
        envs.step({"left": GOOD, "right": GOOD})
    envs.reset(seed=1)
    for _ in range(2):
        envs.step({"left": GOOD, "right": GOOD})
    with pytest.raises(mv.errors.InvalidRequest, match=r"the episodes of envs \[0\] are over"):
        envs.step({"left": GOOD, "right": GOOD})
    envs.reset(env_ids=[0])
    envs.step({"left": GOOD, "right": GOOD})
