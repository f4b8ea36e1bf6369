"""Team attention actor-critic (arXiv 2507.22782): a team that acts and learns together, by PPO.

The agents of a group look at each other, in acting and in learning. The critic says what an agent's action is worth
given what the others did, and the advantage is over what that agent would have been worth on average.

Sections, as in every algorithm: config, the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.capabilities import RunRequirements
from multiverse.algorithms.inputs import inputs
from multiverse.algorithms.on_policy import OnPolicy, explained_variance
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.algorithms.settings import OnPolicyConfig
from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Leaves, Policy
from multiverse.core.views import Array
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.loss import Loss, Outputs, as_numpy
from multiverse.learning.threads import torch_for
from multiverse.policies.heads import DiscreteHead, gumbel, head_for
from multiverse.policies.team_policy import TeamPolicy
from multiverse.rollouts.rollout import Rollout

NOT_HERE = (
    "hidden_sizes", "activation", "memory", "memory_size", "chunk_length", "see_previous", "share_features",
    "ortho_init", "log_std_init", "squash", "filters", "kernel_size",
)  # fmt: skip
"""Settings of other networks, and of Box actions."""


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TAACConfig(PPOConfig):
    """Settings of TAAC."""

    entropy_coef: float = 0.01
    """Weight of the entropy bonus, which keeps a policy exploring."""
    epochs: int = 10
    """Passes over a rollout in one update."""
    batch_size: int = 64
    """Number of rows of a minibatch, one for each agent: batch_size ÷ agents whole teams."""
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    """`linear`: decreases to min_learning_rate at the end of the budget."""
    min_learning_rate: float = 1e-6
    """Learning rate at the end of the budget, with a linear schedule."""
    num_heads: int = 4
    """Number of attention heads; embedding_size must be a multiple of it."""
    embedding_size: int = 256
    """Size of the embedding of each agent."""
    hidden_size: int = 526
    """Number of units of the hidden layer of actor and critic."""
    similarity_coef: float = 0.01
    """Weight of the loss on the cosine similarity of the agents' embeddings."""
    similarity_cap: float = 0.0
    """Similarities below this cosine add nothing to that loss."""
    weight_decay: float = 1e-5
    """Weight decay of all parameters, added to the gradient."""

    def scheduled(self, progress: float) -> dict[str, float]:
        values = super().scheduled(progress)
        if "learning_rate" in values:
            first, last = self.learning_rate, self.min_learning_rate
            values["learning_rate"] = float(first + (min(first, last) - first) * progress)
        return values

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("at least 1", lambda value: value >= 1, "num_heads", "embedding_size", "hidden_size")
        self._check("0 or more", lambda value: value >= 0.0, "min_learning_rate", "similarity_coef", "weight_decay")
        self._check("from -1 to 1", lambda value: -1.0 <= value <= 1.0, "similarity_cap")
        if self.embedding_size % self.num_heads:
            raise InvalidRequest(f"embedding_size={self.embedding_size}: a multiple of num_heads={self.num_heads}")
        usual = {field.name: field.default for field in fields(OnPolicyConfig)}
        if self.critic != usual["critic"]:
            raise InvalidRequest(f"critic={self.critic}: taac's critic sees the whole team as it is; leave it out")
        if self.value_clip_range is not None:
            raise InvalidRequest(
                f"value_clip_range={self.value_clip_range}: taac's critic values what was done, and its advantages are "
                "over another number, a baseline: there is no earlier value to stay near; leave it out"
            )
        for name in NOT_HERE:
            if getattr(self, name) != usual[name]:
                raise InvalidRequest(
                    f"{name}={getattr(self, name)}: taac's networks have num_heads, embedding_size and hidden_size"
                )


# -- the update --------------------------------------------------------------------------------------------------
class TAAC(PPO):
    """PPO for a whole team: attention over the agents, advantages over a counterfactual baseline."""

    Config = TAACConfig
    actions, images, recurrent_images = (spaces.Discrete,), False, False
    fixed = OnPolicy.fixed | {"num_heads", "embedding_size", "hidden_size"}

    def __init__(
        self,
        config: TAACConfig,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        slots: int,
        seed: int,
        device: str = "cpu",
        agents: int = 1,
    ) -> None:
        super().__init__(config, observation_space, action_space, slots, seed, device, agents)

    @classmethod
    def cautions(cls, run: RunRequirements) -> list[str]:
        simpler = f"{run.env} has no team: {cls.title()} learns here as for a team of one; {PPO.title()} is simpler"
        return [*super().cautions(run), *([] if run.has_teams else [simpler])]

    def _new_networks(self, seed: int, device: str) -> Any:
        if type(self).outputs is not OnPolicy.outputs or type(self).values_from is not OnPolicy.values_from:
            raise InvalidRequest("taac's critic has one output: outputs() and values_from() cannot be overridden")
        torch_for(self.title())
        self._loss = self.loss
        from multiverse.networks.attention import TeamSpec
        from multiverse.networks.team_actor_critic import TeamActorCritic

        sizes = {name: getattr(self.config, name) for name in ("num_heads", "embedding_size", "hidden_size")}
        shape = TeamSpec(self.features.size, int(self.action_space.n), **sizes)  # type: ignore[attr-defined]
        return TeamActorCritic(shape, self.optimizer, seed, device, self._auxiliary_parameters)

    def _new_policy(self) -> Policy:
        head, frozen = head_for(self.action_space), self._frozen_moments()
        assert isinstance(head, DiscreteHead)
        layers, heads = self._networks.layers(), self.config.num_heads
        return TeamPolicy(self.features, layers, heads, self._agents, head, self._updates, frozen)

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        """PPO's loss, and how similar the embeddings of a team's agents are: they are to differ."""
        from multiverse.networks.attention import similarity

        loss, alike = (
            super().loss(out, batch),
            similarity(out["embeddings"], out["present"], self.config.similarity_cap),
        )
        return Loss(loss.total + self.config.similarity_coef * alike, **loss.metrics, similarity=alike)

    def _gradient(self, batch: RolloutBatch, with_metrics: bool = True) -> Mapping[str, Any]:
        metrics, optimizer = super()._gradient(batch, with_metrics), self._networks.optimizer
        optimizer.gradient.add_(optimizer.parameters, alpha=self.config.weight_decay)  # as torch's Adam has it
        return metrics

    def _minibatch_rows(self) -> int:
        return max(1, int(self.config.batch_size) // self._agents)

    def _learned_from(self, rollout: Rollout, batch: RolloutBatch) -> RolloutBatch:
        """One row for each team and step of which somebody is: [rows, agents, …]."""
        teams, valid = self._in_teams(rollout, batch), self._by_team(rollout.valid.reshape(-1))
        if valid.all():
            return teams
        teams.columns["valid"] = self._networks.put(valid)
        return teams.take(self._networks.put(np.flatnonzero(valid.any(axis=1))))

    def _in_teams(self, rollout: Rollout, batch: RolloutBatch) -> RolloutBatch:
        """[T × envs, agents, …] of all rows [T × slots, …]."""
        columns = {name: self._by_team(column) for name, column in batch.columns.items()}
        if rollout.acting is not None and not rollout.acting.all():
            columns["present"] = self._networks.put(self._by_team(rollout.acting.reshape(-1)))
        masks = None if batch.masks is None else self._by_team(batch.masks)
        teams = RolloutBatch(self._by_team(batch.vector), [], self._by_team(batch.actions), masks, **columns)
        teams.layout = batch.layout
        return teams

    def _explained(self, batch: RolloutBatch) -> float:
        values, returns = as_numpy(batch["values"]), as_numpy(batch["returns"])
        valid = as_numpy(batch["valid"]) if "valid" in batch.columns else np.ones(values.shape, np.bool_)
        return explained_variance(values[valid], returns[valid])

    def _values(self, rollout: Rollout, batch: RolloutBatch) -> tuple[Array, Array, tuple[Array, Array, Array]]:
        """Counterfactual baselines. Where nobody has acted yet, the others' actions are drawn from the policy."""
        values = self._networks.baselines(self._in_teams(rollout, batch)).reshape(rollout.rewards.shape)
        there = np.ones(rollout.slots, np.bool_) if rollout.acting_next is None else rollout.acting_next
        last_values = self._unacted(rollout.last, self._by_team(there)).reshape(-1)
        return values, last_values, self._final_values(rollout)

    def _final_values(self, rollout: Rollout) -> tuple[Array, Array, Array]:
        """Of agents whose episode was cut short, among those of their team whose episode was cut with it: who
        terminated is seen by nobody, and has no value."""
        steps, slots, _ = rollout.ends()
        if not len(steps):
            return steps, slots, np.zeros(0, np.float32)
        envs = rollout.slots // self._agents
        teams, place = np.unique(steps * envs + slots // self._agents, return_inverse=True)
        mine = (teams[:, None] * self._agents + np.arange(self._agents)).reshape(-1)  # rows of [T × slots]
        finals = {path: rows.reshape(-1, *rows.shape[2:])[mine] for path, rows in rollout.finals.items()}
        cut = self._by_team((rollout.truncated & ~rollout.terminated).reshape(-1)[mine])
        return steps, slots, self._unacted(finals, cut)[place, slots % self._agents]

    def _unacted(self, observations: Leaves, present: Array) -> Array:
        """[teams, agents] values of teams [teams × agents, …] that have not acted."""
        vector, _ = inputs(self.features, observations, self._frozen_moments())
        vector = np.where(present.reshape(-1, 1), vector, np.float32(0))  # what lies there of the others, nobody knows
        put, shape = self._networks.put, present.shape
        masks = self.features.open_actions(observations)
        teams, who = put(vector.reshape(*shape, -1)), put(present)
        open_now = None if masks is None else put(masks.reshape(*shape, -1))
        noise = put(gumbel(self._rng, (*shape, int(self.action_space.n))))  # type: ignore[attr-defined]
        actions = self._networks.drawn(teams, open_now, who, noise)
        found: Array = self._networks.baselines(RolloutBatch(teams, [], actions, open_now, present=who))
        return found

    def _by_team(self, rows: Any) -> Any:
        """[T × slots, …] as [teams, agents, …]."""
        return rows.reshape(-1, self._agents, *rows.shape[1:])
