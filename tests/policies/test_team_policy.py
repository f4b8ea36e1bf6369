"""Team policies in numpy: they equal torch's, with equal bits in any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multiverse.core.policy import Seen
from multiverse.learning.optimizers import Adam
from multiverse.networks.attention import TeamSpec
from multiverse.networks.team_actor_critic import TeamActorCritic
from multiverse.policies.features import Features
from multiverse.policies.heads import head_for
from multiverse.policies.numpy_policies import loaded_policy
from multiverse.policies.team_policy import TeamPolicy

SEEN, ACTIONS = spaces.Box(-1, 1, (7,), np.float32), spaces.Discrete(4)


def made(agents: int = 3, frozen: Any = None) -> tuple[TeamActorCritic, TeamPolicy]:
    networks = TeamActorCritic(TeamSpec(7, 4, num_heads=2, embedding_size=16, hidden_size=10), Adam, 3, "cpu")
    networks.actor.head[2].weight.data *= 100  # so that differences are visible
    head: Any = head_for(ACTIONS)
    return networks, TeamPolicy(Features(SEEN, ACTIONS), networks.layers(), 2, agents, head, 5, frozen)


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 7), dtype=np.float32)


@pytest.mark.parametrize("agents", range(1, 17))
def test_logits_equal_those_of_torch_for_any_present_agents(agents: int) -> None:
    networks, policy = made(agents)
    x, teams = rows(3 * agents), np.repeat([0, 1, 2], agents)
    teams[np.random.default_rng(agents).random(3 * agents) < 0.3] = -1
    present = torch.as_tensor((teams >= 0).reshape(3, agents))
    with torch.no_grad():
        expected = networks.actor(torch.as_tensor(x).reshape(3, agents, 7), present)[0].reshape(-1, 4).numpy()
    np.testing.assert_allclose(policy.output(x, teams), expected, atol=2e-4)


def test_row_order_does_not_matter_and_no_teams_means_single_agents() -> None:
    _, policy = made(3)
    x, teams, order = rows(12), np.repeat(np.arange(4), 3), np.random.default_rng(1).permutation(12)
    np.testing.assert_allclose(policy.output(x[order], teams[order]), policy.output(x, teams)[order], atol=1e-5)
    np.testing.assert_array_equal(policy.output(x, None), policy.output(x, np.arange(12)))
    assert not np.allclose(policy.output(x, None), policy.output(x, teams))


@pytest.mark.parametrize("agents", [1, 3, 8])
def test_team_has_the_same_bits_in_every_batch(agents: int) -> None:
    _, policy = made(agents)
    x, teams = rows(9 * agents), np.repeat(np.arange(9), agents)
    teams[1::5] = -1
    whole = policy.output(x, teams)
    for count in range(1, 10):
        for first in range(10 - count):
            some = slice(first * agents, (first + count) * agents)
            assert policy.output(x[some], teams[some]).tobytes() == whole[some].tobytes()
    there = teams >= 0  # as evaluations have it: only those who act
    assert policy.output(x[there], teams[there]).tobytes() == whole[there].tobytes()


def test_batch_without_agents_is_valid() -> None:
    _, policy = made()
    assert (policy.output(rows(3), np.full(3, -1)) == 0).all()


def test_policy_of_a_run_equals_the_saved_one() -> None:
    frozen = np.full(7, 0.1, np.float32), np.full(7, 2.0, np.float32)
    _, policy = made(3, frozen)
    again = loaded_policy(policy.saved(), SEEN, ACTIONS)
    seen = Seen({(): rows(6)}, np.zeros(6, np.bool_), teams=np.repeat([0, 1], 3))
    noise = policy.noise(np.random.default_rng(0), 1, 6)[0]
    assert again.version == 5
    np.testing.assert_array_equal(again.act(seen, noise, {})[0], policy.act(seen, noise, {})[0])
    for spoilt in (
        {"num_heads": 3},
        {"agents": 0},
        {"agents": 10**9},
        {"shift": np.zeros(6, np.float32)},
        {"weights": {**policy.saved()["weights"], "out": np.zeros((16, 15), np.float32)}},
    ):
        with pytest.raises(ValueError, match=r"fit|sense"):
            loaded_policy({**policy.saved(), **spoilt}, SEEN, ACTIONS)
    with pytest.raises(ValueError, match="fit"):
        loaded_policy(policy.saved(), SEEN, spaces.Discrete(3))
