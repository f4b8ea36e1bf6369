"""Team attention actor-critic (arXiv 2507.22782): a team that acts and learns together, by PPO.

The agents of a group attend to each other, in the policy and in the critic. The critic estimates the value of an
agent's action given the actions of the others; the advantage is over the mean value of that agent's own actions.

Sections, as in every algorithm: config, the loss and the update, batches of teams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.algorithm import network_inputs
from multiverse.algorithms.capabilities import RunRequirements
from multiverse.algorithms.on_policy import OnPolicy
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.algorithms.rollout_batches import BatchBuilder
from multiverse.algorithms.settings import OnPolicyConfig
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.policy import Leaves, Policy
from multiverse.core.settings import setting
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.loss import Loss, Outputs, as_numpy
from multiverse.learning.returns import ValueEstimates, explained_variance
from multiverse.learning.threads import torch_for
from multiverse.policies.heads import DiscreteHead, gumbel, head_for
from multiverse.policies.team_policy import TeamPolicy
from multiverse.rollouts.rollout import Rollout

UNUSED_SETTINGS = (
    "hidden_sizes", "activation", "memory", "memory_size", "chunk_length", "see_previous", "share_features",
    "ortho_init", "log_std_init", "squash", "filters", "kernel_size",
)  # fmt: skip
"""Settings of `OnPolicyConfig` that TAAC does not use: those of other networks and of Box actions."""


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TAACConfig(PPOConfig):
    """Settings of TAAC."""

    entropy_coef: float = setting(0.01, "Weight of the entropy bonus, which keeps a policy exploring.")
    epochs: int = setting(10, "Passes over a rollout in one update.")
    batch_size: int = setting(64, "Number of rows of a minibatch, one for each agent: batch_size ÷ agents whole teams.")
    learning_rate_schedule: Literal["constant", "linear"] = setting(
        "linear", "`linear`: decreases to min_learning_rate at the end of the budget."
    )
    min_learning_rate: float = setting(
        1e-6, "Learning rate at the end of the budget, with a linear schedule.", at_least=0
    )
    num_heads: int = setting(4, "Number of attention heads; embedding_size must be a multiple of it.", at_least=1)
    embedding_size: int = setting(256, "Size of the embedding of each agent.", at_least=1)
    hidden_size: int = setting(526, "Number of units of the hidden layer of actor and critic.", at_least=1)
    similarity_coef: float = setting(
        0.01, "Weight of the loss on the cosine similarity of the agents' embeddings.", at_least=0
    )
    similarity_cap: float = setting(
        0.0, "Similarities below this cosine add nothing to that loss.", at_least=-1, at_most=1
    )
    weight_decay: float = setting(1e-5, "Weight decay of all parameters, added to the gradient.", at_least=0)

    def scheduled(self, progress: float) -> dict[str, float]:
        values = super().scheduled(progress)
        if "learning_rate" in values:
            first, last = self.learning_rate, self.min_learning_rate
            values["learning_rate"] = float(first + (min(first, last) - first) * progress)
        return values

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_size % self.num_heads:
            raise InvalidRequest(
                f"embedding_size={self.embedding_size} is not a multiple of num_heads={self.num_heads}"
            )
        usual = {field.name: field.default for field in fields(OnPolicyConfig)}
        if self.critic != usual["critic"]:
            raise InvalidRequest(f"critic={self.critic}: the critic of taac always uses the whole team; leave it out")
        if self.value_clip_range is not None:
            raise InvalidRequest(
                f"value_clip_range={self.value_clip_range}: cannot be used with taac, whose advantages are over a "
                "baseline and not over the critic's values; leave it out"
            )
        for name in UNUSED_SETTINGS:
            if getattr(self, name) != usual[name]:
                raise InvalidRequest(
                    f"{name}={getattr(self, name)}: taac's networks have num_heads, embedding_size and hidden_size"
                )


# -- the loss and the update -------------------------------------------------------------------------------------
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
        simpler = f"{run.env} has no team: {cls.title()} trains a team of one agent; {PPO.title()} is simpler"
        return [*super().cautions(run), *([] if run.has_teams else [simpler])]

    def _new_networks(self, seed: int, device: str) -> Any:
        if type(self).outputs is not OnPolicy.outputs or type(self).values_from is not OnPolicy.values_from:
            raise InvalidRequest("the critic of taac has one output: outputs() and values_from() cannot be overridden")
        torch_for(self.title())
        self._loss = self.loss
        from multiverse.networks.attention import TeamSpec
        from multiverse.networks.team_actor_critic import TeamActorCritic

        sizes = {name: getattr(self.config, name) for name in ("num_heads", "embedding_size", "hidden_size")}
        spec = TeamSpec(self.features.size, int(self.action_space.n), **sizes)  # type: ignore[attr-defined]
        return TeamActorCritic(spec, self.optimizer, seed=seed, device=device, auxiliary=self._auxiliary_parameters)

    def _new_policy(self) -> Policy:
        head, frozen = head_for(self.action_space), self._batches.frozen_moments()
        assert isinstance(head, DiscreteHead)
        layers, heads = self._networks.layers(), self.config.num_heads
        return TeamPolicy(self.features, layers, heads, self._agents, head, self._updates, frozen)

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        """PPO's loss, plus a penalty on the similarity of the embeddings of a team's agents."""
        from multiverse.networks.attention import similarity

        loss = super().loss(out, batch)
        cosine = similarity(out["embeddings"], out["present"], self.config.similarity_cap)
        return Loss(loss.total + self.config.similarity_coef * cosine, **loss.metrics, similarity=cosine)

    def _gradient(self, batch: RolloutBatch, with_metrics: bool = True) -> Mapping[str, Any]:
        metrics, optimizer = super()._gradient(batch, with_metrics), self._networks.optimizer
        optimizer.gradient.add_(optimizer.parameters, alpha=self.config.weight_decay)  # as in torch's Adam
        return metrics

    def _minibatch_rows(self) -> int:
        return max(1, int(self.config.batch_size) // self._agents)

    def _explained(self, batch: RolloutBatch) -> float:
        values, returns = as_numpy(batch["values"]), as_numpy(batch["returns"])
        valid = as_numpy(batch["valid"]) if "valid" in batch.columns else np.ones(values.shape, np.bool_)
        return explained_variance(values=values[valid], returns=returns[valid])

    def _new_batches(self, slots: int) -> BatchBuilder:
        return TeamBatchBuilder(self._agents, self._rng, **self._batch_options(slots))


# -- batches of teams --------------------------------------------------------------------------------------------
class TeamBatchBuilder(BatchBuilder):
    """Builds batches whose rows are teams: [teams, agents, …]."""

    def __init__(self, agents: int, rng: np.random.Generator, **options: Any) -> None:
        super().__init__(**options)
        self._agents, self._rng = agents, rng

    def _valid_rows(self, rollout: Rollout, batch: RolloutBatch) -> RolloutBatch:
        """Return one row for each team and step with a valid row of an agent."""
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
        return RolloutBatch(self._by_team(batch.vector), [], self._by_team(batch.actions), masks, **columns)

    def _values(self, rollout: Rollout, batch: RolloutBatch) -> ValueEstimates:
        """Return counterfactual baselines. For observations after which no agent has acted, the actions
        of the others are drawn from the policy."""
        values = self._networks.baselines(self._in_teams(rollout, batch)).reshape(rollout.rewards.shape)
        present = np.ones(rollout.slots, np.bool_) if rollout.acting_next is None else rollout.acting_next
        last = self._drawn_baselines(rollout.last, self._by_team(present)).reshape(-1)
        steps, slots, _ = rollout.ends()
        final = self._final_values(rollout, steps, slots)
        return ValueEstimates(values=values, last=last, final_steps=steps, final_slots=slots, final=final)

    def _final_values(self, rollout: Rollout, steps: Array, slots: Array) -> Array:
        """[ends] values of final observations of truncated episodes, among the teammates that were truncated in the
        same row. Terminated agents are absent and have no value."""
        if not len(steps):
            return np.zeros(0, np.float32)
        envs = rollout.slots // self._agents
        teams, place = np.unique(steps * envs + slots // self._agents, return_inverse=True)
        rows = (teams[:, None] * self._agents + np.arange(self._agents)).reshape(-1)  # of [T × slots]
        finals = {path: leaf.reshape(-1, *leaf.shape[2:])[rows] for path, leaf in rollout.finals.items()}
        cut = self._by_team((rollout.truncated & ~rollout.terminated).reshape(-1)[rows])
        baselines = self._drawn_baselines(finals, cut)
        return np.asarray(baselines[place, slots % self._agents])

    def _drawn_baselines(self, observations: Leaves, present: Array) -> Array:
        """[teams, agents] values for observations [teams × agents, …], with actions drawn from the policy."""
        vector, _ = network_inputs(self._features, observations, self.frozen_moments())
        vector = np.where(present.reshape(-1, 1), vector, np.float32(0))  # rows of absent agents are undefined
        put, shape = self._networks.put, present.shape
        masks = self._features.open_actions(observations)
        teams, present = put(vector.reshape(*shape, -1)), put(present)
        masks = None if masks is None else put(masks.reshape(*shape, -1))
        noise = put(gumbel(self._rng, (*shape, self._networks.distribution.outputs)))
        actions = self._networks.sample(teams, masks, present, noise)
        baselines: Array = self._networks.baselines(RolloutBatch(teams, [], actions, masks, present=present))
        return baselines

    def _by_team(self, rows: Any) -> Any:
        """[T × slots, …] as [teams, agents, …]."""
        return rows.reshape(-1, self._agents, *rows.shape[1:])
