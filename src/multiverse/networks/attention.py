"""An actor and a critic with self-attention over the agents of a team, in torch.

Letters: B teams, N agents of each, F features, A actions, E embedding. Nothing here depends on N or on the order of the
agents: weights fit teams of any size, and permuting a team permutes the outputs. `present` [B, N] is a mask: absent
agents are not attended to, and their outputs are 0. None: all agents are present.
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

NORM_EPSILON = 1e-8
"""Added to squared norms, so that the direction of a zero vector is defined and has a gradient."""
ATTENTION_GAIN = 0.1
"""Gain of the initial weights of the last layer of the actor's attention, which is added to the embedding."""


@dataclass(frozen=True)
class TeamSpec:
    """Inputs, outputs and sizes of the networks of a team."""

    size: int  # features of one agent
    num_actions: int
    num_heads: int = 4
    embedding_size: int = 256
    hidden_size: int = 526

    def __post_init__(self) -> None:
        for name in ("size", "num_actions", "num_heads", "embedding_size", "hidden_size"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}: expected at least 1")
        if self.embedding_size % self.num_heads:
            raise InvalidRequest(
                f"embedding_size={self.embedding_size} is not a multiple of num_heads={self.num_heads}"
            )
        widths = self.size + self.num_actions, self.embedding_size, 3 * self.embedding_size
        _ = count_parameters(widths), count_parameters((2 * self.embedding_size, self.hidden_size, self.num_actions))


# -- networks ----------------------------------------------------------------------------------------------------
class TeamActor(nn.Module):
    """Observations [B, N, F] → logits [B, N, A] and embeddings with attention [B, N, E].

    The result of the attention is added to the agent's own embedding, as in transformers: initially attention is
    uniform, so that without the sum all agents would get nearly the same mean. The initial gain is small, so that this
    mean does not outweigh the agent's own embedding."""

    def __init__(self, spec: TeamSpec) -> None:
        super().__init__()
        self.embed = _embedding(spec.size, spec.embedding_size)
        self.attend = TeamAttention(spec.embedding_size, spec.num_heads, ATTENTION_GAIN)
        self.head = _head(spec.embedding_size, spec.hidden_size, spec.num_actions, 0.01)

    def forward(self, observations: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        own = self.embed(observations)
        attended = own + self.attend(own, present)
        return _zero_absent(self.head(attended), present), attended


class TeamCritic(nn.Module):
    """Q_i(o, a) of every agent, from the observations and actions of all agents."""

    def __init__(self, spec: TeamSpec) -> None:
        super().__init__()
        self._num_actions = spec.num_actions
        self.embed = _embedding(spec.size + spec.num_actions, spec.embedding_size)
        self.attend = TeamAttention(spec.embedding_size, spec.num_heads)
        self.head = _head(2 * spec.embedding_size, spec.hidden_size, 1, 1.0)

    def forward(self, observations: Tensor, actions: Tensor, present: Tensor | None = None) -> Tensor:
        """Return Q_i [B, N] of the actions taken, [B, N] integers."""
        taken = functional.one_hot(actions, self._num_actions).to(observations.dtype)
        own = self.embed(torch.cat([observations, taken], dim=-1))
        values = self.head(torch.cat([self.attend(own, present), own], dim=-1))
        return _zero_absent(values, present).squeeze(-1)

    def every_action(self, observations: Tensor, actions: Tensor, present: Tensor | None = None) -> Tensor:
        """Return Q_i [B, N, A] of each action of agent i, with the actions that the others took."""
        taken = functional.one_hot(actions, self._num_actions).to(observations.dtype)
        own = self.embed(torch.cat([observations, taken], dim=-1))
        each = torch.eye(self._num_actions, dtype=observations.dtype, device=observations.device)
        each = each.expand(*observations.shape[:2], -1, -1)  # [B, N, A, A]
        repeated = observations.unsqueeze(2).expand(-1, -1, self._num_actions, -1)
        replaced = self.embed(torch.cat([repeated, each], dim=-1))  # [B, N, A, E]
        values = self.head(torch.cat([self.attend.replace_own(own, replaced, present), replaced], dim=-1))
        return _zero_absent(values.squeeze(-1), present)


class TeamAttention(nn.Module):
    """Multi-head self-attention over the agents of a team: [B, N, E] → [B, N, E]."""

    def __init__(self, size: int, num_heads: int, last_gain: float = 1.0) -> None:
        super().__init__()
        self._heads = num_heads
        gains = 1.0, 1.0, 1.0, last_gain
        self.queries, self.keys, self.values, self.out = (orthogonal(nn.Linear(size, size), gain) for gain in gains)

    def forward(self, agents: Tensor, present: Tensor | None = None) -> Tensor:
        queries, keys, values = (self._split(layer(agents)) for layer in (self.queries, self.keys, self.values))
        mask = None if present is None else _attention_mask(present).unsqueeze(1)
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return _zero_absent(self.out(attended.transpose(1, 2).flatten(2)), present)  # from [B, heads, N, E/heads]

    def replace_own(self, agents: Tensor, replaced: Tensor, present: Tensor | None = None) -> Tensor:
        """Return the attention [B, N, A, E] of agent i with its own embedding replaced by `replaced[:, i, a]`.

        Only its own query, key and value change; those of the other agents are computed once for all replacements.
        """
        keys, values = self._split(self.keys(agents)), self._split(self.values(agents))  # [B, heads, N, E/heads]
        layers = self.queries, self.keys, self.values
        queries, own_keys, own_values = (self._split_each(layer(replaced)) for layer in layers)  # [B, heads, N, A, …]
        scores = torch.einsum("bhiad,bhjd->bhiaj", queries, keys)
        itself = torch.eye(agents.shape[1], dtype=torch.bool, device=agents.device)[:, None, :]  # [N, 1, N]
        scores = torch.where(itself, (queries * own_keys).sum(-1, keepdim=True), scores) / math.sqrt(keys.shape[-1])
        if present is not None:
            scores = scores.masked_fill(~_attention_mask(present)[:, None, :, None, :], -torch.inf)
        weights = scores.softmax(-1)
        of_others = torch.einsum("bhiaj,bhjd->bhiad", weights.masked_fill(itself, 0.0), values)
        of_itself = (weights * itself).sum(-1, keepdim=True) * own_values
        attended = (of_others + of_itself).permute(0, 2, 3, 1, 4).flatten(3)
        return _zero_absent(self.out(attended), present)

    def _split(self, agents: Tensor) -> Tensor:
        return agents.unflatten(-1, (self._heads, -1)).transpose(1, 2)

    def _split_each(self, agents: Tensor) -> Tensor:
        return agents.unflatten(-1, (self._heads, -1)).permute(0, 3, 1, 2, 4)


def _embedding(inward: int, outward: int) -> nn.Module:
    return nn.Sequential(orthogonal(nn.Linear(inward, outward), math.sqrt(2)), nn.LeakyReLU())


def _head(inward: int, hidden: int, outward: int, last_gain: float) -> nn.Module:
    first, last = nn.Linear(inward, hidden), nn.Linear(hidden, outward)
    return nn.Sequential(orthogonal(first, math.sqrt(2)), nn.LeakyReLU(), orthogonal(last, last_gain))


def _attention_mask(present: Tensor) -> Tensor:
    """[B, N, N] whether agent i attends to j: to present agents and to itself, so that no row is empty."""
    itself = torch.eye(present.shape[1], dtype=torch.bool, device=present.device)
    return present.unsqueeze(1) | itself


def _zero_absent(outputs: Tensor, present: Tensor | None) -> Tensor:
    """[B, N, …] with 0 for absent agents."""
    if present is None:
        return outputs
    return outputs.masked_fill(~present.reshape(*present.shape, *[1] * (outputs.dim() - 2)), 0.0)


# -- losses ------------------------------------------------------------------------------------------------------
def counterfactual_baseline(probabilities: Tensor, every_action: Tensor) -> Tensor:
    """b_i = Σ_a π_i(a) Q_i(a, a_others): the mean value of agent i's actions.  [B, N, A] twice → [B, N]."""
    return (probabilities * every_action).sum(-1)


def similarity(attended: Tensor, present: Tensor | None = None, cap: float = 0.0) -> Tensor:
    """max(cap, mean cosine between two agents of one team), over all pairs of all teams; without pairs it is 0.

    [B, N, E] → a scalar, with a gradient that is finite for teams of every size. The sum of the cosines of all pairs of
    unit vectors u_i is |Σ u_i|² - Σ |u_i|².
    """
    units = _zero_absent(attended * torch.rsqrt((attended**2).sum(-1, keepdim=True) + NORM_EPSILON), present)
    cosines = (units.sum(1) ** 2).sum() - (units**2).sum()
    teams, agents = attended.shape[:2]
    counts = torch.full((teams,), agents, device=attended.device) if present is None else present.sum(1)
    pairs = (counts * (counts - 1)).sum()
    return (cosines / pairs.clamp(min=1)).clamp(min=cap)
