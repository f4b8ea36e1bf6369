"""Learning from rollouts of older policies: their log-probabilities are computed exactly and corrected for; without lag
an update is bit-equal to the synchronous one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.algorithms.a2c import A2C, A2CConfig
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.rollouts.rollout import Rollout
from tests.algorithms.test_memory import Odd, collected
from tests.algorithms.test_ppo import SLOTS, SMALL, STEPS, VECTOR, filled, in_both, made

ACTIONS: dict[str, spaces.Space[Any]] = {"discrete": spaces.Discrete(3), "box": spaces.Box(-2, 2, (2,), np.float32)}
NORMALIZED = replace(SMALL, normalize_observations=True, normalize_rewards=True)


def in_halves(first: Rollout, second: Rollout) -> Rollout:
    """The first slots of one rollout and the others of another."""
    return Rollout.joined([first.copy_of(slice(0, SLOTS // 2)), second.copy_of(slice(SLOTS // 2, SLOTS))])


def weights(algorithm: Any) -> Any:
    return algorithm.weights()["parameters"]


@in_both
@pytest.mark.parametrize("config", [SMALL, NORMALIZED], ids=["plain", "normalized"])
def test_update_without_lag_equals_the_synchronous_update(make: Any, config: PPOConfig) -> None:
    one, other = (make(VECTOR, ACTIONS["discrete"], config) for _ in range(2))
    other.max_lag = 3
    for seed in range(3):
        rollout = filled(one, VECTOR, seed=seed)
        metrics = one.update([rollout], 0.0).metrics
        again = other.update([in_halves(rollout, rollout)], 0.0).metrics
        assert (weights(one) == weights(other)).all() and again == {**metrics, "policy_lag": 0.0}


@in_both
@pytest.mark.parametrize("kind", list(ACTIONS))
def test_behavior_log_probs_equal_those_of_the_policy_that_acted(make: Any, kind: str) -> None:
    algorithm = make(VECTOR, ACTIONS[kind], NORMALIZED)
    algorithm.max_lag = 2
    known = {}
    for seed in range(3):
        known[seed] = filled(algorithm, VECTOR, seed=seed)
        now, then = log_probs(algorithm, known[seed])
        assert now is None and then is None, "nothing is older"
        likely = algorithm._networks.log_probs(algorithm._batch(replace(known[seed])))
        known[seed] = known[seed], np.asarray(likely).reshape(STEPS, SLOTS)
        algorithm.update([known[seed][0]], 0.0)
    present = filled(algorithm, VECTOR, seed=9)
    (older, likely), before = known[1], weights(algorithm)
    now, then = log_probs(algorithm, in_halves(older, present))
    half = SLOTS // 2
    assert then[:, :half] == pytest.approx(likely[:, :half], abs=1e-6), "two updates ago"
    assert (now[:, half:] == then[:, half:]).all() and (now[:, :half] != then[:, :half]).any()
    assert (weights(algorithm) == before).all(), "the present weights are in their place again"


def log_probs(algorithm: PPO, rollout: Rollout) -> Any:
    """Log-probabilities of all rows under the present policy and the policy that acted, without an update."""
    batches, version = algorithm._batches, algorithm._updates
    return batches._log_probs(rollout, batches._inputs(rollout), version)


def test_behavior_log_probs_use_the_memory_of_the_older_policy() -> None:
    config = PPOConfig(
        steps_per_env=20, epochs=1, batch_size=16, hidden_sizes=(8,), memory="lstm", memory_size=6, chunk_length=4
    )
    algorithm = PPO(config, Odd().observation_space, Odd().action_space, 3, seed=1)
    algorithm.max_lag = 1
    with collected(algorithm, Odd) as rollout:
        whole = rollout.copy_of(slice(0, 3))
        likely = np.zeros(whole.rewards.size)
        batch = algorithm._batch(replace(whole, parts=()))
        rows, _ = algorithm._batches._chunks(whole).drop_invalid(whole.valid.reshape(-1)).pack()
        likely[rows] = algorithm._networks.log_probs(batch)
        algorithm.update([whole], 0.0)
    now, then = log_probs(algorithm, whole)
    assert now is not None and then is not None
    assert then.reshape(-1)[rows] == pytest.approx(likely[rows], abs=1e-6)
    assert (now != then).any()


@pytest.mark.fault("F3")
@pytest.mark.parametrize("correction", ["vtrace", "ratio", "none"])
def test_rollouts_beyond_max_lag_are_refused_and_others_learned_from(correction: Any) -> None:
    algorithm = made(VECTOR, ACTIONS["discrete"], replace(SMALL, lag_correction=correction))
    algorithm.max_lag = 2
    oldest = filled(algorithm, VECTOR)
    for seed in range(2):
        algorithm.update([filled(algorithm, VECTOR, seed=seed)], 0.0)
    report = algorithm.update([in_halves(oldest, filled(algorithm, VECTOR))], 0.0)
    assert report.metrics["policy_lag"] == 1.0, "2 of one half, 0 of the other"
    assert ("importance_weight" in report.metrics) == (correction != "none")
    assert len(algorithm._batches._earlier) <= 3
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"version 0 of the policy, and this is version 3: .* 2 updates older"
    ):
        algorithm.update([oldest.copy_of(slice(0, SLOTS))], 0.0)


@pytest.mark.fault("F3")
def test_lag_corrections_give_different_weights_for_stale_rows() -> None:
    """The ratio by what PPO's is to, V-trace by the advantages too; none as if they were fresh."""
    found = {}
    for correction in ("vtrace", "ratio", "none"):
        algorithm = made(VECTOR, ACTIONS["discrete"], replace(SMALL, lag_correction=correction, learning_rate=0.03))
        algorithm.max_lag = 1
        stale = filled(algorithm, VECTOR)
        algorithm.update([stale], 0.0)
        algorithm.update([stale.copy_of(slice(0, SLOTS))], 0.0)
        found[correction] = weights(algorithm)
    assert not any(
        (found[a] == found[b]).all() for a, b in [("vtrace", "ratio"), ("ratio", "none"), ("vtrace", "none")]
    )


def test_a2c_weights_stale_advantages_and_refuses_ratio_correction() -> None:
    algorithm = A2C(A2CConfig(steps_per_env=STEPS, learning_rate=0.05), VECTOR, ACTIONS["discrete"], SLOTS, 1)
    algorithm.max_lag = 1
    stale = filled(algorithm, VECTOR)  # type: ignore[arg-type]
    algorithm.update([stale], 0.0)
    report = algorithm.update([stale.copy_of(slice(0, SLOTS))], 0.0)
    assert report.metrics["policy_lag"] == 1.0 and 0.0 < report.metrics["importance_weight"] < 1.0
    with pytest.raises(mv.errors.InvalidRequest, match="lag_correction='ratio': needs a loss with a clipped ratio"):
        A2CConfig(lag_correction="ratio")


def test_rewards_are_scaled_by_returns_of_their_own_slots() -> None:
    """A part that occurs twice is two consecutive rollouts of the same slots."""
    config = replace(SMALL, normalize_rewards=True)
    one, other = (made(VECTOR, ACTIONS["discrete"], config) for _ in range(2))
    first, second = filled(one, VECTOR), filled(one, VECTOR, seed=1)
    half = slice(SLOTS // 2, SLOTS)
    joined = Rollout.joined([first.copy_of(half), second.copy_of(half)])
    assert one._batches.reward_normalizer is not None and other._batches.reward_normalizer is not None
    parts = [part.slots for part in joined.parts]
    never = np.zeros(joined.rewards.shape, bool)
    together = one._batches.reward_normalizer.normalize(joined.rewards, never, ~never, parts=parts)
    in_turn = np.concatenate([first.rewards[:, half], second.rewards[:, half]])
    apart = np.zeros((2 * STEPS, SLOTS), np.float32)
    apart[:, half] = in_turn
    valid = np.zeros(apart.shape, bool)
    valid[:, half] = True
    expected = other._batches.reward_normalizer.normalize(apart, ~valid & False, valid)[:, half]
    assert np.concatenate([together[:, : SLOTS // 2], together[:, SLOTS // 2 :]]) == pytest.approx(expected, rel=1e-5)
    assert one._batches.reward_normalizer.state()["returns"] == pytest.approx(
        other._batches.reward_normalizer.state()["returns"]
    )
