"""Parallel envs: equal seeds and actions give exactly the results of stepping the PettingZoo envs one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.envs import Directions
from tests.multi_agent.envs import Alone, Numbered, OddSpaces, Pair, Village
from tests.multi_agent.oracle import assert_same_run
from tests.space_catalogue import SPACES, catalogue
from tests.vector.configurations import ALL, DISTINCT, SERIAL, THREAD, WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make

config = over(WITHOUT_SPAWN)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
AGENTS = {"all": None, "one kind": ("guard_0", "guard_1"), "one agent": ("bard",)}


def mpe(name: str) -> Callable[[], Any]:
    """An env of mpe2 with short episodes."""
    return partial(pytest.importorskip(f"mpe2.{name}").parallel_env, max_cycles=5)


@pytest.mark.fault("B6")
@modes
@pytest.mark.parametrize("config", ALL, ids=str)
def test_agents_that_die_return_and_join_late_equal_pettingzoo(
    make: Make, config: Configuration, autoreset: str
) -> None:
    makers = [partial(Village, length=3 + 2 * i) for i in range(config.num_envs)]
    assert_same_run(make(makers, autoreset=autoreset), makers, autoreset, steps=40)


@modes
@pytest.mark.parametrize("which", [name for name in AGENTS if name != "all"])
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_subsets_of_agents_equal_pettingzoo(make: Make, config: Configuration, which: str, autoreset: str) -> None:
    makers = [partial(Village, agents=AGENTS[which], restless=0.3)] * config.num_envs
    assert_same_run(make(makers, autoreset=autoreset), makers, autoreset, steps=25)


@modes
@pytest.mark.parametrize("config", DISTINCT, ids=str)
@pytest.mark.parametrize("env", [Alone, Numbered])
def test_single_and_numbered_agents_equal_pettingzoo(
    make: Make, config: Configuration, env: Any, autoreset: str
) -> None:
    makers = [partial(env, length=2 + i) for i in range(config.num_envs)]
    assert_same_run(make(makers, autoreset=autoreset), makers, autoreset, steps=12)


@modes
@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_push_v3"])
def test_mpe_envs_equal_pettingzoo(make: Make, config: Configuration, name: str, autoreset: str) -> None:
    makers = [mpe(name)] * config.num_envs
    envs = make(makers, autoreset=autoreset)
    assert len(envs.groups) == (1 if name == "simple_spread_v3" else 2)
    assert_same_run(envs, makers, autoreset, steps=13)


@modes
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("config", [SERIAL], ids=str)
def test_every_space_in_every_mode_equals_pettingzoo(
    make: Make, config: Configuration, name: str, autoreset: str
) -> None:
    makers = [lambda: OddSpaces(catalogue()[name])] * 3
    assert_same_run(make(makers, autoreset=autoreset), makers, autoreset, steps=9)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("config", [c for c in DISTINCT if c not in (SERIAL, THREAD)], ids=str)
def test_every_space_in_worker_processes_equals_pettingzoo(make: Make, config: Configuration, name: str) -> None:
    makers = [lambda: OddSpaces(catalogue()[name])] * 3
    assert_same_run(make(makers, autoreset="same_step"), makers, "same_step", steps=9)


@pytest.mark.parametrize("config", DISTINCT, ids=str)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Text(3), spaces.Tuple((Directions(), spaces.Box(-1, 1, (2,)))))),
        spaces.Dict(a=spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True), b=spaces.Tuple((spaces.Discrete(3),))),
        spaces.Sequence(spaces.Discrete(3)),
    ],
    ids=["nested tuples with objects", "arrays that are one object", "tuples that are one object"],
)
def test_objects_in_nested_spaces_equal_pettingzoo(make: Make, config: Configuration, space: Any) -> None:
    makers = [lambda: OddSpaces(space)] * 3
    assert_same_run(make(makers, autoreset="same_step"), makers, "same_step", steps=9)


@pytest.mark.parametrize("config", WITHOUT_SPAWN, ids=str)
def test_every_executor_gives_equal_bits(make: Make, config: Configuration) -> None:
    trajectories = []
    for envs in (make(Village, 5), SERIAL.make(Village, 5)):
        with envs:
            rows = [envs.reset(seed=3)[0]]
            for k in range(20):
                actions = {}
                for agent in envs.agents:
                    space = envs.action_space(agent)
                    space.seed(k)
                    actions[agent] = space.sample()
                rows.append(envs.step(actions)[:4])
            trajectories.append(rows)
    assert repr(trajectories[0]) == repr(trajectories[1])


def test_integer_agent_ids_form_a_group(make: Make, config: Configuration) -> None:
    envs = make(Numbered)
    assert envs.groups == {"agents": (0, 1)}
    envs.reset(seed=1)
    _, rewards, *_ = envs.step({0: np.zeros(config.num_envs, int), 1: np.ones(config.num_envs, int)})
    assert (rewards[1] >= 1).all() and (rewards[0] < 1).all()


def test_disabled_infos_leave_only_final_observations(make: Make, config: Configuration) -> None:
    envs = make(partial(Pair, length=2), infos=False, autoreset="same_step")
    envs.reset(seed=1)
    for _ in range(2):
        *_, infos = envs.step({agent: np.zeros(config.num_envs, int) for agent in envs.agents})
    assert set(infos) == {"final_obs", "_final_obs"}
    assert set(infos["final_obs"][0]) == {"left", "right"}
