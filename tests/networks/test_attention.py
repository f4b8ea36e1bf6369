"""Attention over teams, compared with slow implementations: one team, one agent, one action at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import multiverse as mv
from multiverse.networks.attention import (
    TeamActor,
    TeamAttention,
    TeamCritic,
    TeamSpec,
    counterfactual_baseline,
    similarity,
)

FEATURES, ACTIONS, TEAMS = 7, 4, 4
SHAPE = TeamSpec(FEATURES, ACTIONS, num_heads=2, embedding_size=12, hidden_size=16)
SIZES = pytest.mark.parametrize("agents", [1, 2, 3, 8, 16])


@pytest.fixture(autouse=True)
def exact() -> object:
    """Double precision, so that equal results agree to 1e-12."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def team(agents: int, teams: int = TEAMS) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, actions and the mask of present agents, from none to all."""
    observations = torch.randn(teams, agents, FEATURES)
    present = torch.rand(teams, agents) < 0.6
    present[0], present[1] = True, False
    return observations, torch.randint(ACTIONS, (teams, agents)), present


# -- the slow way ------------------------------------------------------------------------------------------------------
def slow_attention(attention: TeamAttention, agents: Tensor) -> Tensor:
    """[N, E] of one team whose agents are all present."""
    heads, size = attention._heads, agents.shape[1] // attention._heads
    projections = attention.queries, attention.keys, attention.values
    queries, keys, values = ([of(one).detach() for one in agents] for of in projections)
    found = []
    for i in range(len(agents)):
        parts = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = [float(queries[i][part] @ key[part]) / math.sqrt(size) for key in keys]
            total = sum(math.exp(score) for score in scores)
            parts.append(sum(math.exp(score) / total * value[part] for score, value in zip(scores, values)))
        found.append(attention.out(torch.cat(parts)))
    return torch.stack(found)


def slow_q(critic: TeamCritic, observations: Tensor, actions: Tensor) -> Tensor:
    """[N] of one team."""
    own = torch.stack([critic.embed(torch.cat([o, torch.eye(ACTIONS)[a]])) for o, a in zip(observations, actions)])
    attended = slow_attention(critic.attend, own)
    return torch.stack([critic.head(torch.cat([attended[i], own[i]])) for i in range(len(own))]).squeeze(-1)


def by_team(slow: Callable[..., Tensor], present: Tensor, *parts: Tensor, outputs: tuple[int, ...] = ()) -> Tensor:
    """The slow reference for every team, without absent agents; 0 for them."""
    found = torch.zeros(*present.shape, *outputs)
    for b, there in enumerate(present):
        if there.any():
            found[b, there] = slow(*(part[b, there] for part in parts))
    return found


# -- networks ----------------------------------------------------------------------------------------------------------
@SIZES
def test_attention_equals_a_slow_reference(agents: int) -> None:
    attention = TeamAttention(12, 2)
    x, (_, _, present) = torch.randn(TEAMS, agents, 12), team(agents)
    all_present = torch.ones_like(present)
    slow = by_team(lambda one: slow_attention(attention, one), all_present, x, outputs=(12,))
    torch.testing.assert_close(attention(x), slow)
    torch.testing.assert_close(attention(x, all_present), slow)
    some = by_team(lambda one: slow_attention(attention, one), present, x, outputs=(12,))
    torch.testing.assert_close(attention(x, present), some)


@SIZES
def test_logits_depend_on_own_embedding_and_attention(agents: int) -> None:
    actor, observations = TeamActor(SHAPE), torch.randn(TEAMS, agents, SHAPE.size)
    logits, _ = actor(observations)
    for team, found in zip(observations, logits):
        own = torch.stack([actor.embed(one) for one in team])
        seen = slow_attention(actor.attend, own)
        for i in range(agents):
            torch.testing.assert_close(found[i], actor.head(own[i] + seen[i]))


def test_initial_attention_does_not_outweigh_own_embedding() -> None:
    """The attention of all agents is similar initially, and would make their logits similar."""
    actor, (observations, _, _) = TeamActor(SHAPE), team(8)
    own, attended = actor.embed(observations), actor(observations)[1]
    assert 0 < (attended - own).norm() < 0.15 * own.norm()


@SIZES
def test_team_values_equal_a_slow_reference(agents: int) -> None:
    critic = TeamCritic(SHAPE)
    observations, actions, present = team(agents)
    slow = by_team(lambda o, a: slow_q(critic, o, a), present, observations, actions)
    torch.testing.assert_close(critic(observations, actions, present), slow)


@SIZES
def test_every_action_is_substituted_one_agent_and_one_action_at_a_time(agents: int) -> None:
    critic = TeamCritic(SHAPE)
    observations, actions, present = team(agents)

    def slow(o: Tensor, a: Tensor) -> Tensor:
        found = torch.zeros(len(a), ACTIONS)
        for i in range(len(a)):
            for instead in range(ACTIONS):
                other = a.clone()
                other[i] = instead
                found[i, instead] = critic(o.unsqueeze(0), other.unsqueeze(0))[0, i]
        return found

    expected = by_team(slow, present, observations, actions, outputs=(ACTIONS,))
    found = critic.every_action(observations, actions, present)
    torch.testing.assert_close(found, expected)
    taken = found.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(taken, critic(observations, actions, present))


@SIZES
def test_permuting_agents_permutes_their_outputs(agents: int) -> None:
    actor, critic, order = TeamActor(SHAPE), TeamCritic(SHAPE), torch.randperm(agents)
    observations, actions, present = team(agents)
    logits, attended = actor(observations, present)
    for found, before in zip(actor(observations[:, order], present[:, order]), (logits, attended)):
        torch.testing.assert_close(found, before[:, order])
    for say in (critic, critic.every_action):
        found = say(observations[:, order], actions[:, order], present[:, order])
        torch.testing.assert_close(found, say(observations, actions, present)[:, order])
    torch.testing.assert_close(similarity(attended[:, order], present[:, order], -1), similarity(attended, present, -1))


def test_absent_agents_change_nothing_and_get_no_gradient() -> None:
    actor, critic = TeamActor(SHAPE), TeamCritic(SHAPE)
    observations, actions, present = team(4)
    others = observations.clone().requires_grad_()
    changed = torch.where(present.unsqueeze(-1), others, 1e6 * torch.randn(TEAMS, 4, FEATURES))
    logits, attended = actor(changed, present)
    torch.testing.assert_close(logits, actor(observations, present)[0])
    values = critic.every_action(changed, actions, present)
    (logits.sum() + values.sum() + similarity(attended, present, -1)).backward()
    assert others.grad is not None and (others.grad[~present] == 0).all() and (others.grad[present] != 0).any()
    assert all(torch.isfinite(p.grad).all() for p in [*actor.parameters(), *critic.parameters()])


def test_outputs_for_present_agents_equal_those_of_a_smaller_team() -> None:
    """Three present agents of eight equal a team of three."""
    actor, critic = TeamActor(SHAPE), TeamCritic(SHAPE)
    observations, actions, _ = team(8)
    three = torch.zeros(TEAMS, 8, dtype=torch.bool)
    three[:, [1, 4, 6]] = True
    alone = observations[:, [1, 4, 6]], actions[:, [1, 4, 6]]
    torch.testing.assert_close(actor(observations, three)[0][:, [1, 4, 6]], actor(alone[0])[0])
    torch.testing.assert_close(critic(observations, actions, three)[:, [1, 4, 6]], critic(*alone))


@pytest.mark.parametrize("wrong", [{"num_heads": 5}, {"num_heads": 0}, {"hidden_size": 0}, {"embedding_size": 2**20}])
def test_invalid_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(
        mv.errors.InvalidRequest, match=next(iter(wrong)) if "embedding_size" not in wrong else "parameters"
    ):
        TeamSpec(**{"size": 4, "num_actions": 2, "embedding_size": 12, **wrong})


# -- losses ------------------------------------------------------------------------------------------------------------
def test_baseline_is_the_mean_over_own_actions() -> None:
    critic = TeamCritic(SHAPE)
    observations, actions, _ = team(3)
    probabilities = torch.randn(TEAMS, 3, ACTIONS).softmax(-1)
    found = counterfactual_baseline(probabilities, critic.every_action(observations, actions))
    for b in range(TEAMS):
        for i in range(3):
            expected = 0.0
            for a in range(ACTIONS):
                other = actions[b].clone()
                other[i] = a
                expected += float(probabilities[b, i, a] * slow_q(critic, observations[b], other)[i].detach())
            assert float(found[b, i]) == pytest.approx(expected)


@pytest.mark.parametrize("agents", range(1, 17))
def test_similarity_is_the_mean_cosine_of_all_pairs_and_finite(agents: int) -> None:
    attended = torch.randn(TEAMS, agents, 6, requires_grad=True)
    present = torch.rand(TEAMS, agents) < 0.7
    cosines = []
    for b in range(TEAMS):
        there = [attended[b, i] for i in range(agents) if present[b, i]]
        for i, one in enumerate(there):
            cosines += [float(torch.cosine_similarity(one, other, 0)) for j, other in enumerate(there) if i != j]
    found = similarity(attended, present, cap=-1.0)
    assert float(found) == pytest.approx(sum(cosines) / len(cosines) if cosines else 0.0, abs=1e-6)
    found.backward()
    assert attended.grad is not None and torch.isfinite(attended.grad).all()


def test_similarity_below_its_cap_has_no_gradient() -> None:
    apart = torch.tensor([[[1.0, 0.0], [-1.0, 0.1]]], requires_grad=True)
    assert float(similarity(apart, cap=-1.0)) < -0.9
    found = similarity(apart, cap=0.0)
    found.backward()
    assert float(found) == 0 and (apart.grad == 0).all()
    assert float(similarity(torch.ones(2, 3, 4), cap=0.0)) == pytest.approx(1.0)


def test_similarity_of_zero_embeddings_has_a_finite_gradient() -> None:
    nothing = torch.zeros(2, 3, 4, requires_grad=True)
    similarity(nothing, cap=-1.0).backward()
    assert nothing.grad is not None and torch.isfinite(nothing.grad).all()
