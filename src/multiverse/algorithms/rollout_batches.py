"""Batches from rollouts: rows with inputs, values, advantages and returns; for recurrent networks in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.algorithms.algorithm import network_inputs
from multiverse.algorithms.central_critic import StateInputs, TeamInputs
from multiverse.core.layout import Array
from multiverse.core.policy import Leaves
from multiverse.learning.batches import TEAM, Chunks, Packing, RolloutBatch, split_into_chunks
from multiverse.learning.loss import as_numpy
from multiverse.learning.normalizers import RewardNormalizer, RunningMeanStd
from multiverse.learning.returns import Transitions, ValueEstimates, generalized_advantages, merge_turns, next_values
from multiverse.policies.features import Features, Previous
from multiverse.rollouts.rollout import Rollout


class BatchBuilder:
    """Builds the batch of a rollout, with the networks as they are before the update. It holds the statistics that
    normalise observations and rewards, and the weights of earlier policies."""

    def __init__(
        self,
        config: Any,
        features: Features,
        networks: Any,
        slots: int,
        critic_inputs: TeamInputs | StateInputs | None,
        has_ratio: bool,
        custom_loss: bool,
    ) -> None:
        """`critic_inputs`: of a critic that sees more than the policy. `has_ratio`: the loss has the probability ratio
        to the policy that acted. `custom_loss`: batches have all columns that a loss of the user may read."""
        self.config, self._features, self._networks, self._critic_inputs = config, features, networks, critic_inputs
        self._has_ratio, self._custom_loss = has_ratio, custom_loss
        self.moments = RunningMeanStd(features.size) if config.normalize_observations else None
        self.reward_normalizer = RewardNormalizer(slots, config.gamma) if config.normalize_rewards else None
        self.lag_metrics: dict[str, float] = {}
        self._earlier: dict[int, tuple[Array, tuple[Array, Array] | None]] = {}  # weights and moments by version

    def build(self, rollout: Rollout, version: int) -> RolloutBatch:
        """Return the batch of this rollout, on the device of the networks. `version`: of the present policy."""
        networks, config, batch = self._networks, self.config, self._inputs(rollout)
        recurrent = config.memory is not None and self._critic_inputs is None
        rows = self._transitions(rollout, (self._recurrent_values if recurrent else self._values)(rollout, batch))
        present, behavior = self._log_probs(rollout, batch, version)
        log_ratios = None
        if present is not None and behavior is not None and config.lag_correction == "vtrace":
            log_ratios = present - behavior
        advantages, returns = generalized_advantages(
            rows, gamma=config.gamma, gae_lambda=config.gae_lambda, log_ratios=log_ratios
        )
        if log_ratios is not None and not self._has_ratio:
            advantages = advantages * np.exp(np.minimum(log_ratios, 0))
        columns = {"values": rows.values, "advantages": advantages, "returns": returns}
        if self._custom_loss:
            columns |= {"rewards": rows.rewards, "starts": rollout.starts}
        needs_log_probs = self._has_ratio or self._custom_loss
        if behavior is not None and needs_log_probs:
            columns["log_probs"] = behavior
        batch.columns |= {name: networks.put(column.reshape(-1)) for name, column in columns.items()}
        learned = self._valid_rows(rollout, batch)
        if behavior is None and needs_log_probs:
            learned.columns["log_probs"] = networks.log_probs(learned)
        return learned

    def _transitions(self, rollout: Rollout, estimates: ValueEstimates) -> Transitions:
        """Return the rows with normalized rewards and next values. Actions whose outcome lies after the rollout become
        invalid."""
        rewards, acting, over = rollout.rewards, rollout.acting, rollout.terminated | rollout.truncated
        if acting is None or acting.all():
            acting, ended = None, over
            following = next_values(estimates, rollout.terminated, rollout.truncated)
        else:
            assert rollout.acting_next is not None
            rewards, following, ended, known = merge_turns(
                rewards, rollout.terminated, rollout.truncated, acting, rollout.acting_next, estimates
            )
            rollout.valid &= known  # guard: an-action-without-an-outcome-is-not-learned-from
        if self.reward_normalizer is not None:
            parts = [part.slots for part in rollout.parts]
            rewards = self.reward_normalizer.normalize(
                rewards, ended, rollout.valid, acting=acting, over=over, parts=parts
            )
        return Transitions(rewards, estimates.values, following, ended, rollout.valid, acting)

    # -- inputs --------------------------------------------------------------------------------------------------
    def _inputs(self, rollout: Rollout) -> RolloutBatch:
        """Return all rows [T × S] with inputs, actions and masks."""
        put, masks = self._networks.put, rollout.action_masks
        vector, images = network_inputs(
            self._features, _flat(rollout.observations), self.frozen_moments(), _previous(rollout)
        )
        return RolloutBatch(
            put(vector),
            [put(image) for image in images],
            put(rollout.actions.reshape(-1, *rollout.actions.shape[2:])),
            None if masks is None else put(masks.reshape(-1, masks.shape[-1])),
        )

    def _valid_rows(self, rollout: Rollout, batch: RolloutBatch) -> RolloutBatch:
        """Return the rows to learn from, of all rows of the rollout: valid ones, for recurrent networks in chunks."""
        valid, put = rollout.valid.reshape(-1), self._networks.put
        if self.config.memory is not None:
            rows, counts = self._chunks(rollout).drop_invalid(valid).pack()
            return batch.take_packed(put(rows), self._packing(rollout, rows, counts))
        return batch if valid.all() else batch.take(put(np.flatnonzero(valid)))

    def _chunks(self, rollout: Rollout) -> Chunks:
        ended = rollout.terminated | rollout.truncated
        return split_into_chunks(rollout.starts, ended, rollout.valid, rollout.acting, self.config.chunk_length)

    def _packing(self, rollout: Rollout, rows: Array, counts: Sequence[int]) -> Packing:
        """Return the packing of these rows, with the policy's memory before the first row of each chunk."""
        cells = rollout.memory["cells"]
        firsts = rows[: counts[0] if counts else 0]
        return Packing(counts, self._networks.put(cells.reshape(-1, *cells.shape[2:])[firsts]))

    # -- values --------------------------------------------------------------------------------------------------
    def _values(self, rollout: Rollout, batch: RolloutBatch) -> ValueEstimates:
        """Return the values of all observations of the rollout."""
        networks, frozen = self._networks, self.frozen_moments()
        steps, slots, finals = rollout.ends()
        last, last_images = network_inputs(self._features, rollout.last, frozen, _previous_after(rollout))
        final, final_images = network_inputs(self._features, finals, frozen, _previous_at_ends(rollout, steps, slots))
        vector: Any = batch.vector
        if self._critic_inputs is not None:
            own = as_numpy(batch.vector).reshape(*rollout.rewards.shape, -1)
            inputs, last, final = self._critic_inputs.build(rollout, own, last, final)
            vector = networks.put(inputs.reshape(len(batch), -1))
            batch.columns[TEAM] = vector
        values = networks.values(vector, batch.images).reshape(rollout.rewards.shape)
        last_values, final_values = networks.values(last, last_images), networks.values(final, final_images)
        return ValueEstimates(values=values, last=last_values, final_steps=steps, final_slots=slots, final=final_values)

    def _recurrent_values(self, rollout: Rollout, batch: RolloutBatch) -> ValueEstimates:
        """Return what `_values` does. The memory of a final observation is that after the last row of its episode,
        which is also the last row of its chunk."""
        networks = self._networks
        rows, counts = self._chunks(rollout).pack()
        packing, order = self._packing(rollout, rows, counts), networks.put(rows)
        packed, after = networks.recurrent_values(batch.vector[order], [one[order] for one in batch.images], packing)
        values = np.zeros(rollout.rewards.size, np.float32)  # 0 in rows in which no slot acted
        values[rows] = packed
        last = self._values_after(rollout.last, _previous_after(rollout), rollout.last_memory["cells"])
        steps, slots, finals = rollout.ends()
        memory, chunk = rollout.memory["cells"][steps, slots], np.full(values.shape, -1)
        chunk[rows[packing.last_rows()]] = np.arange(len(after))
        chunk = chunk[steps * rollout.slots + slots]
        memory[chunk >= 0] = after[chunk[chunk >= 0]]
        final = self._values_after(finals, _previous_at_ends(rollout, steps, slots), memory)
        values = values.reshape(rollout.rewards.shape)
        return ValueEstimates(values=values, last=last, final_steps=steps, final_slots=slots, final=final)

    def _values_after(self, observations: Leaves, previous: Previous | None, memory: Array) -> Array:
        """[rows] values of single observations, each with its own memory."""
        if not len(memory):
            return np.zeros(0, np.float32)
        vector, images = network_inputs(self._features, observations, self.frozen_moments(), previous)
        packing = Packing([len(memory)], self._networks.put(memory))
        return np.asarray(self._networks.recurrent_values(vector, images, packing)[0])

    # -- rollouts of earlier policies ----------------------------------------------------------------------------
    def remember_policy(self, version: int, oldest: int) -> None:
        """Keep the present weights, for rollouts of this version that come later; forget those before `oldest`."""
        self._earlier = {number: kept for number, kept in self._earlier.items() if number >= oldest}
        self._earlier[version] = self._networks.optimizer.weights(), self.frozen_moments()

    def _log_probs(self, rollout: Rollout, batch: RolloutBatch, version: int) -> tuple[Array | None, Array | None]:
        """Return the log-probabilities [T, S] of the actions under the present policy and under the policy that acted;
        None if these are the same or not needed. Both are computed by the networks: equal weights give equal bits."""
        versions = np.repeat([part.version for part in rollout.parts], [len(part.slots) for part in rollout.parts])
        self.lag_metrics = {"policy_lag": float(version - versions.mean())} if len(versions) else {}
        older = sorted({*versions.tolist()} - {version}) if self.config.lag_correction != "none" else []
        if not older:
            return None, None
        networks, numbers = self._networks, self._networks.put(np.arange(rollout.rewards.size))

        def log_probs(vector: Any) -> Array:
            rows = RolloutBatch(vector, batch.images, batch.actions, batch.masks, **batch.columns, row=numbers)
            valid, result = self._valid_rows(rollout, rows), np.zeros(rollout.rewards.size, np.float32)
            result[as_numpy(valid["row"])] = as_numpy(networks.log_probs(valid))
            return result.reshape(rollout.rewards.shape)

        present, weights = log_probs(batch.vector), networks.optimizer.weights()
        behavior = present.copy()
        try:
            for number in older:
                earlier_weights, frozen = self._earlier[number]
                networks.optimizer.load_weights(earlier_weights)
                observations = _flat(rollout.observations)
                vector, _ = network_inputs(self._features, observations, frozen, _previous(rollout))
                acted = versions == number
                behavior[:, acted] = log_probs(networks.put(vector))[:, acted]
        finally:
            networks.optimizer.load_weights(weights)
        self.lag_metrics["importance_weight"] = float(np.exp(np.minimum(present - behavior, 0))[rollout.valid].mean())
        return present, behavior

    # -- statistics ----------------------------------------------------------------------------------------------
    def frozen_moments(self) -> tuple[Array, Array] | None:
        """Return (shift, scale) that normalise observations until the next update."""
        return None if self.moments is None else self.moments.shift_and_scale()

    def update_statistics(self, rollout: Rollout) -> None:
        """Update the statistics that normalise observations and states; they stay the same within a rollout."""
        if self.moments is not None:
            vector = self._features.vector(_flat(rollout.observations), _previous(rollout))
            self.moments.update(vector[rollout.valid.reshape(-1)])
        if isinstance(self._critic_inputs, StateInputs):
            self._critic_inputs.update_statistics(rollout)

    def normalizers(self) -> dict[str, RunningMeanStd]:
        """Return the statistics of observations and states, by name, as a run saves them."""
        state_moments = None if self._critic_inputs is None else self._critic_inputs.moments
        both = {"observations": self.moments, "states": state_moments}
        return {name: moments for name, moments in both.items() if moments is not None}


# -- rows of a rollout -------------------------------------------------------------------------------------------
def _flat(leaves: Leaves) -> Leaves:
    """[T, S, …] → [T × S, …]"""
    return {path: rows.reshape(-1, *rows.shape[2:]) for path, rows in leaves.items()}


def _previous(rollout: Rollout) -> Previous | None:
    """[T × S, …] previous actions and rewards, as the policy got them."""
    if rollout.previous is None:
        return None
    actions, rewards = rollout.previous
    return rollout.starts.reshape(-1), actions.reshape(-1, *actions.shape[2:]), rewards.reshape(-1)


def _previous_after(rollout: Rollout) -> Previous | None:
    """[S, …] previous actions and rewards after the last row."""
    return rollout.last_previous and (np.zeros(rollout.slots, np.bool_), *rollout.last_previous)


def _previous_at_ends(rollout: Rollout, steps: Array, slots: Array) -> Previous | None:
    """[ends, …] previous actions and rewards of final observations."""
    if rollout.previous is None:
        return None
    actions, rewards = rollout.actions[steps, slots], rollout.rewards[steps, slots]
    if rollout.acting is not None:  # a slot that waited has acted in an earlier row
        waited = ~rollout.acting[steps, slots]
        actions[waited] = rollout.previous[0][steps, slots][waited]
        rewards[waited] += rollout.previous[1][steps, slots][waited].astype(rewards.dtype)
    return np.zeros(len(steps), np.bool_), actions, rewards
