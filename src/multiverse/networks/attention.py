"""Teams that look at each other: an actor and a critic with self-attention over the agents, in torch.

Letters: B teams, N agents of each, F features, A actions, E embedding. Nothing here depends on N or on the agents'
order: weights fit teams of any size, and permuting a team permutes what is said of it. `present` [B, N] says who is
there: the others are seen by nobody, and what is said of them is 0. None: everybody is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from multiverse.core.errors import InvalidRequest
from multiverse.learning.network_spec import count_parameters
from multiverse.networks.extractors import orthogonal

SMALLEST = 1e-8
"""Added to squared lengths, so that a vector of nothing has a direction, too, and a gradient."""
ATTENDED_GAIN = 0.1
"""Of the first weights through which the actor adds what an agent attends to to its own embedding."""


@dataclass(frozen=True)
class TeamSpec:
    """What the networks see of an agent, say of it, and look like."""

    size: int  # features of one agent
    num_actions: int
    num_heads: int = 4
    embedding_size: int = 256
    hidden_size: int = 526

    def __post_init__(self) -> None:
        for name in ("size", "num_actions", "num_heads", "embedding_size", "hidden_size"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}: at least 1")
        if self.embedding_size % self.num_heads:
            raise InvalidRequest(
                f"embedding_size={self.embedding_size} cannot be shared by num_heads={self.num_heads}: a multiple of it"
            )
        widths = self.size + self.num_actions, self.embedding_size, 3 * self.embedding_size
        _ = count_parameters(widths), count_parameters((2 * self.embedding_size, self.hidden_size, self.num_actions))


# -- networks ----------------------------------------------------------------------------------------------------
class TeamActor(nn.Module):
    """Observations [B, N, F] → logits [B, N, A], and what the agents are to each other [B, N, E].

    What an agent attends to is added to its own embedding, as in every transformer: without that, an agent that does
    not know yet whom to look at hears of itself only as one of N, and all do the same. At first it is little, so that
    what all hear alike does not drown what each sees itself."""

    def __init__(self, spec: TeamSpec) -> None:
        super().__init__()
        self.embed = _embedding(spec.size, spec.embedding_size)
        self.attend = TeamAttention(spec.embedding_size, spec.num_heads, ATTENDED_GAIN)
        self.head = _head(spec.embedding_size, spec.hidden_size, spec.num_actions, 0.01)

    def forward(self, observations: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        own = self.embed(observations)
        attended = own + self.attend(own, present)
        return _only(self.head(attended), present), attended


class TeamCritic(nn.Module):
    """Q_i(o, a) of every agent, from everybody's observations and actions."""

    def __init__(self, spec: TeamSpec) -> None:
        super().__init__()
        self._num_actions = spec.num_actions
        self.embed = _embedding(spec.size + spec.num_actions, spec.embedding_size)
        self.attend = TeamAttention(spec.embedding_size, spec.num_heads)
        self.head = _head(2 * spec.embedding_size, spec.hidden_size, 1, 1.0)

    def forward(self, observations: Tensor, actions: Tensor, present: Tensor | None = None) -> Tensor:
        """[B, N] Q_i of the actions taken, [B, N] integers."""
        taken = functional.one_hot(actions, self._num_actions).to(observations.dtype)
        own = self.embed(torch.cat([observations, taken], dim=-1))
        values = self.head(torch.cat([self.attend(own, present), own], dim=-1))
        return _only(values, present).squeeze(-1)

    def every_action(self, observations: Tensor, actions: Tensor, present: Tensor | None = None) -> Tensor:
        """[B, N, A] Q_i where agent i takes each of its actions, and the others what they took."""
        taken = functional.one_hot(actions, self._num_actions).to(observations.dtype)
        own = self.embed(torch.cat([observations, taken], dim=-1))
        each = torch.eye(self._num_actions, dtype=observations.dtype, device=observations.device)
        each = each.expand(*observations.shape[:2], -1, -1)  # [B, N, A, A]
        seen = observations.unsqueeze(2).expand(-1, -1, self._num_actions, -1)
        instead = self.embed(torch.cat([seen, each], dim=-1))  # [B, N, A, E]
        values = self.head(torch.cat([self.attend.instead(own, instead, present), instead], dim=-1))
        return _only(values.squeeze(-1), present)


class TeamAttention(nn.Module):
    """Multi-head self-attention over the agents of a team: [B, N, E] → [B, N, E]."""

    def __init__(self, size: int, num_heads: int, last_gain: float = 1.0) -> None:
        super().__init__()
        self._heads = num_heads
        gains = 1.0, 1.0, 1.0, last_gain
        self.queries, self.keys, self.values, self.out = (orthogonal(nn.Linear(size, size), gain) for gain in gains)

    def forward(self, agents: Tensor, present: Tensor | None = None) -> Tensor:
        queries, keys, values = (self._split(of(agents)) for of in (self.queries, self.keys, self.values))
        seen = None if present is None else _seen(present).unsqueeze(1)
        found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)  # [B, heads, N, E/heads]
        return _only(self.out(found.transpose(1, 2).flatten(2)), present)

    def instead(self, agents: Tensor, instead: Tensor, present: Tensor | None = None) -> Tensor:
        """[B, N, A, E] what agent i makes of the team where it is `instead[:, i, a]`, and the others as they are.

        Only its own query, key and value change: what the others are to it is looked up once, not for every change.
        """
        keys, values = self._split(self.keys(agents)), self._split(self.values(agents))  # [B, heads, N, E/heads]
        own = [self._split_each(of(instead)) for of in (self.queries, self.keys, self.values)]  # [B, heads, N, A, …]
        queries, own_keys, own_values = own
        scores = torch.einsum("bhiad,bhjd->bhiaj", queries, keys)
        itself = torch.eye(agents.shape[1], dtype=torch.bool, device=agents.device)[:, None, :]  # [N, 1, N]
        scores = torch.where(itself, (queries * own_keys).sum(-1, keepdim=True), scores) / math.sqrt(keys.shape[-1])
        if present is not None:
            scores = scores.masked_fill(~_seen(present)[:, None, :, None, :], -torch.inf)
        weights = scores.softmax(-1)
        of_others = torch.einsum("bhiaj,bhjd->bhiad", weights.masked_fill(itself, 0.0), values)
        of_itself = (weights * itself).sum(-1, keepdim=True) * own_values
        found = (of_others + of_itself).permute(0, 2, 3, 1, 4).flatten(3)
        return _only(self.out(found), present)

    def _split(self, agents: Tensor) -> Tensor:
        return agents.unflatten(-1, (self._heads, -1)).transpose(1, 2)

    def _split_each(self, agents: Tensor) -> Tensor:
        return agents.unflatten(-1, (self._heads, -1)).permute(0, 3, 1, 2, 4)


def _embedding(inward: int, outward: int) -> nn.Module:
    return nn.Sequential(orthogonal(nn.Linear(inward, outward), math.sqrt(2)), nn.LeakyReLU())


def _head(inward: int, hidden: int, outward: int, last_gain: float) -> nn.Module:
    first, last = nn.Linear(inward, hidden), nn.Linear(hidden, outward)
    return nn.Sequential(orthogonal(first, math.sqrt(2)), nn.LeakyReLU(), orthogonal(last, last_gain))


def _seen(present: Tensor) -> Tensor:
    """[B, N, N] whether agent i looks at j: at whoever is there, and at itself, so that nobody looks at nothing."""
    itself = torch.eye(present.shape[1], dtype=torch.bool, device=present.device)
    return present.unsqueeze(1) | itself


def _only(said: Tensor, present: Tensor | None) -> Tensor:
    """[B, N, …] with 0 for those who are not there."""
    if present is None:
        return said
    return said.masked_fill(~present.reshape(*present.shape, *[1] * (said.dim() - 2)), 0.0)


# -- what is learned from ----------------------------------------------------------------------------------------
def counterfactual_baseline(probabilities: Tensor, every_action: Tensor) -> Tensor:
    """b_i = Σ_a π_i(a) Q_i(a, a_others): what agent i would have been worth on average.  [B, N, A] twice → [B, N]."""
    return (probabilities * every_action).sum(-1)


def similarity(attended: Tensor, present: Tensor | None = None, cap: float = 0.0) -> Tensor:
    """max(cap, mean cosine between two agents of one team), over all pairs of all teams; 0 pairs count as cosine 0.

    [B, N, E] → a scalar, with a gradient that is finite for teams of every size. Of unit vectors u_i the cosines of all
    pairs are |Σ u_i|² - Σ |u_i|².
    """
    units = _only(attended * torch.rsqrt((attended**2).sum(-1, keepdim=True) + SMALLEST), present)
    cosines = (units.sum(1) ** 2).sum() - (units**2).sum()
    teams, agents = attended.shape[:2]
    counts = torch.full((teams,), agents, device=attended.device) if present is None else present.sum(1)
    pairs = (counts * (counts - 1)).sum()
    return (cosines / pairs.clamp(min=1)).clamp(min=cap)
