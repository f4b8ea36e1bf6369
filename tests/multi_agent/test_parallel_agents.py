"""Row B6: agents leave in unusual ways, keys are missing, unknown agents appear, and envs without `possible_agents`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.equality import assert_same
from tests.multi_agent.envs import Lingering, Pair, Silent, Village
from tests.vector.configurations import DISTINCT, SERIAL, Configuration, over
from tests.vector.conftest import Make

config = over(DISTINCT)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step"])


def noughts(config: Configuration) -> dict[str, Any]:
    return {"left": np.zeros(config.num_envs, int), "right": np.zeros(config.num_envs, int)}


# -- an error of the env ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("unlisted", r"the env has agents \['unlisted'\], which are not among its possible agents"),
        ("no_observation", "no observation for left"),
        ("no_reward", "no reward, terminated or truncated for left"),
        ("no_end", "no reward, terminated or truncated for left"),
        ("text_reward", "the reward of left is 'much', which is not a number"),
        ("shape", r"the observation has shape \(3,\)"),
        ("no_info", "the info of left is a NoneType, not a dict"),
        ("list_info", "the info of left is a list, not a dict"),
        ("no_infos", "what the env returned as infos is a NoneType, not a dict"),
        ("mask_shape", r"the action_mask of left has shape \(2,\): expected \(3,\)"),
    ],
)
@pytest.mark.fault("B6")
def test_invalid_agents_or_values_are_reported_in_one_sentence(
    make: Make, config: Configuration, fault: str, said: str
) -> None:
    kwargs = [{"fault": fault if i == 2 else "nothing"} for i in range(config.num_envs)]
    envs = make(Pair, env_kwargs=kwargs)
    envs.reset(seed=1)
    for _ in range(2):
        envs.step(noughts(config))
    with pytest.raises(mv.errors.EnvFailed, match=said) as caught:
        envs.step(noughts(config))
    (failure,) = caught.value.failures
    assert (failure.type_name, failure.env_id, failure.step, failure.seed) == ("BadValue", 2, 3, 3)
    assert envs.failures.bad_values == 1
    envs.reset(env_ids=[2])
    envs.step(noughts(config))


# -- agents that go in other ways than PettingZoo's ------------------------------------------------------------
@pytest.mark.fault("B6")
@modes
@pytest.mark.parametrize("fault", ["vanish", "slip_away", "unseen_end", "lingering_end"])
def test_end_of_an_agent_is_reported_once_however_it_leaves(
    make: Make, config: Configuration, fault: str, autoreset: str
) -> None:
    envs = make(partial(Pair, fault=fault, length=6), autoreset=autoreset)
    envs.reset(seed=1)
    results = [envs.step(noughts(config)) for _ in range(5)]
    ends = [(step[2]["left"], step[3]["left"]) for step in results]
    truncated = fault == "unseen_end"
    assert [bool(terminated.all()) for terminated, _ in ends] == [False, False, not truncated, False, False]
    assert [bool(cut.all()) for _, cut in ends] == [False, False, truncated, False, False]
    assert not envs.alive["left"].any() or fault == "lingering_end"
    seen = results[2][0]["left"]
    if fault in ("vanish", "unseen_end"):  # no observation came with the end: the one before stays
        assert_same(seen, results[1][0]["left"])
    if fault == "unseen_end":
        assert (results[2][1]["left"] == 7.0).all()
    if autoreset == "same_step":
        assert_same(results[2][4]["final_obs"][1], {"left": seen[1]})
    if fault != "lingering_end":
        assert not results[3][0]["left"].any() and not results[3][1]["left"].any()


@modes
def test_agents_still_reported_after_their_end_are_absent(make: Make, config: Configuration, autoreset: str) -> None:
    """Many envs keep reporting ended agents and never empty `agents`: an end is reported once, and the episode ends."""
    envs = make(Lingering, autoreset=autoreset)
    envs.reset(seed=1)
    results = [envs.step(noughts(config)) for _ in range(4)]
    assert [bool(t["left"].all()) for _, _, t, _, _ in results] == [False, True, False, False]
    assert [bool(t["right"].all()) for _, _, t, _, _ in results] == [False, False, False, True]
    assert [float(rewards["left"][0]) for _, rewards, *_ in results] == [1.0, 1.0, 0.0, 0.0]
    assert (envs.episode_counts == (1 if autoreset == "same_step" else 0)).all()
    if autoreset == "next_step":
        envs.step({})
        assert (envs.episode_counts == 1).all() and envs.alive["left"].all()


# -- who there can be ------------------------------------------------------------------------------------------
def test_env_without_possible_agents_is_refused() -> None:
    with pytest.raises(mv.errors.EnvFailed, match=r"Silent has no possible_agents.*possible_agents=\[...\]"):
        mv.make_vec(Silent, 2, "serial")


def test_possible_agents_can_be_given_by_the_caller(make: Make, config: Configuration) -> None:
    envs = make(Silent, agents=mv.AgentOptions(possible_agents=["right", "left"]))
    assert envs.agents == ("right", "left")
    envs.reset(seed=1)
    envs.step(noughts(config))


def test_possible_agents_can_name_agents_that_join_later() -> None:
    with SERIAL.make(
        partial(Pair, fault="unlisted"), 2, agents=mv.AgentOptions(possible_agents=["left", "right", "unlisted"])
    ) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            assert not envs.alive["unlisted"].any()
            envs.step({agent: np.zeros(2, int) for agent in envs.agents})
        assert envs.alive["unlisted"].all()


def test_duplicate_possible_agents_are_refused() -> None:
    with pytest.raises(mv.errors.EnvFailed, match=r"possible_agents: \['left'\] appear twice"):
        mv.make_vec(Pair, 2, "serial", agents=mv.AgentOptions(possible_agents=["left", "right", "left"]))


def test_envs_with_different_agents_are_refused(make: Make, config: Configuration) -> None:
    with pytest.raises(mv.errors.SpacesDiffer, match="env 1 has"):
        make([Village, partial(Village, agents=("bard",)), Village])
