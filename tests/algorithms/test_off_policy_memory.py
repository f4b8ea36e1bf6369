"""SAC, TD3, discrete SAC and DQN with a memory: their updates equal those of slow references, sequence by sequence."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Seen
from multiverse.learning.batches import NetworkInput
from multiverse.learning.loss import as_numpy
from multiverse.learning.threads import torch_threads
from multiverse.policies.numpy_policies import loaded_policy
from multiverse.rollouts.rollout import Rollout, rollout_for
from tests.algorithms.test_off_policy import HIDDEN, KINDS, OBSERVATIONS, SLOTS, Reference, made, network

SIZE, EMBEDDED = 6, {"observation_embedding": 5, "action_embedding": 3, "reward_embedding": 2}
MEMORY: dict[str, Any] = {"memory": "gru", "memory_size": SIZE, "sequences": 7, **EMBEDDED}
ARCHITECTURES = [(name, actor) for name in KINDS for actor in (False, True) if not (name == "dqn" and actor)]


def rollout_of(algorithm: Any, seed: int, space: Any = OBSERVATIONS) -> Rollout:
    """A rollout with the algorithm's recurrent policy and random observations."""
    rng, steps, policy = np.random.default_rng(seed), algorithm.steps_per_env, algorithm.policy()
    rollout = rollout_for(space, steps, SLOTS, algorithm.action)
    for leaves in (rollout.observations, rollout.last, rollout.finals):
        for rows in leaves.values():
            rows[...] = rng.normal(size=rows.shape)
    noise, memory = policy.noise(rng, steps, SLOTS), policy.first_memory(SLOTS)
    before = np.zeros_like(rollout.actions[0]), np.zeros(SLOTS)
    rollout.starts[0] = seed == 0
    for t in range(steps):
        seen = Seen({path: rows[t] for path, rows in rollout.observations.items()}, rollout.starts[t], None, *before)
        rollout.actions[t], memory = policy.act(seen, noise[t], memory)
        before = rollout.actions[t], rollout.rewards[t]
    rollout.rewards[...] = rng.normal(size=rollout.rewards.shape)
    rollout.terminated[1, 0] = rollout.truncated[2, 1] = True
    rollout.starts[2, 0] = rollout.starts[3, 1] = True
    return rollout


# -- a slow reference --------------------------------------------------------------------------------------------
def sequences(shown: Any) -> list[list[int]]:
    """The rows of each sequence, one sequence after the other."""
    firsts = np.cumsum([0, *shown.counts])
    return [[firsts[t] + k for t, n in enumerate(shown.counts) if k < n] for k in range(shown.counts[0])]


class Remembering(nn.Module):
    """A reference of plain torch modules that computes one sequence after the other."""

    def __init__(self, flat: Any, kind: str, parts: tuple[int, ...], more: int, outputs: int, copies: int) -> None:
        super().__init__()
        self.parts, self.copies = parts, copies
        units = tuple(EMBEDDED.values())
        self.embeddings = nn.ModuleList([nn.Linear(n, u) for n, u in zip(parts, units)])
        self.cell = (nn.LSTM if kind == "lstm" else nn.GRU)(sum(units), SIZE)
        self.shortcut = nn.Linear(parts[0] + more, SIZE)
        blank = [np.zeros(sum(p.numel() for p in network_of(outputs).parameters()), np.float32)] * max(1, copies)
        self.heads = nn.ModuleList([network(one, 2 * SIZE, outputs) for one in blank])
        nn.utils.vector_to_parameters(torch.as_tensor(np.array(flat)), self.parameters())

    def forward(self, shown: Any, *more: Tensor) -> Tensor:
        vector = torch.as_tensor(shown.vector)
        embedded = torch.cat(
            [layer(x).relu() for layer, x in zip(self.embeddings, vector.split(self.parts, -1))], -1
        )  # fmt: skip
        hidden: dict[int, Tensor] = {}
        for rows in sequences(shown):
            hidden |= dict(zip(rows, self.cell(embedded[rows][:, None])[0][:, 0]))
        rows = torch.arange(len(vector))[shown.rows]
        short = self.shortcut(torch.cat([vector[rows, : self.parts[0]], *more], -1)).relu()
        given = torch.cat([torch.stack([hidden[row] for row in rows.tolist()]), short], -1)
        output = [head(given) for head in self.heads]
        return torch.stack(output) if self.copies else output[0]


def network_of(outputs: int) -> nn.Sequential:
    widths = [2 * SIZE, *HIDDEN, outputs]
    return nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(widths)])


class Forgetful(nn.Module):
    """An actor without memory that receives sequences."""

    def __init__(self, flat: Any, size: int, outputs: int) -> None:
        super().__init__()
        self.size, self.layers = size, network(flat, size, outputs)

    def forward(self, shown: Any) -> Tensor:
        output: Tensor = self.layers(torch.as_tensor(shown.vector)[shown.rows, : self.size])
        return output


class SlowMemory(Reference):
    def __init__(self, name: str, algorithm: Any) -> None:
        kind, weights, parts = algorithm.config.memory, algorithm.weights(), algorithm._critic_features.parts
        continuous = name in ("sac", "td3")
        outputs = {"sac": 6, "td3": 3, "discrete_sac": 4}.get(name)
        self.config, self.steps, self.actor = algorithm.config, 0, None
        if outputs is not None and self.config.markov_actor:
            self.actor = Forgetful(weights["actor"], parts[0], outputs)  # type: ignore[assignment]
        elif outputs is not None:
            self.actor = Remembering(weights["actor"], kind, parts, 0, outputs, 0)  # type: ignore[assignment]
        flat = weights["values" if name == "dqn" else "critic"]
        of_critic = (3 if continuous else 0), (1 if continuous else 4), (1 if name == "dqn" else 2)
        self.critics = Remembering(flat, kind, parts, *of_critic)  # type: ignore[assignment]
        self.targets, self.actor_target = copy.deepcopy(self.critics), copy.deepcopy(self.actor)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        rate = self.config.learning_rate
        self.of_critics = torch.optim.Adam(self.critics.parameters(), rate)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), rate) if self.actor else None
        self.of_alpha = torch.optim.Adam([self.log_alpha], rate)

    def values(self, critics: Any, *seen: Any) -> Tensor:
        output: Tensor = critics(*seen)
        return output


def fed(algorithm: Any, reference: Any) -> None:
    """Pass every minibatch and noise that the algorithm draws to the reference too."""
    step = algorithm.gradient_step

    def stepping(batch: Any) -> Any:
        columns = [torch.as_tensor(one).clone() for one in (batch.actions, batch.rewards, batch.discounts)]
        noise = [torch.as_tensor(drawn).clone() for drawn in batch.noise]
        found = step(batch)
        reference(batch.observations, columns[0], columns[1], batch.next_observations, columns[2], noise)
        return found

    algorithm.gradient_step = stepping


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.mark.parametrize("learner", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("name", "markov_actor"), ARCHITECTURES)
def test_updates_equal_a_slow_reference(name: str, markov_actor: bool, kind: str, learner: str) -> None:
    settings = {"memory": kind, "markov_actor": markov_actor, "learner": learner, "tau": 1.0 if name == "dqn" else 0.1}
    algorithm = made(name, **{**MEMORY, **settings})
    reference = SlowMemory(name, algorithm)
    fed(algorithm, getattr(reference, name))
    taken = 0
    for number in range(4):
        if name == "dqn" and number in (1, 3):
            reference.targets.load_state_dict(reference.critics.state_dict())
        taken += algorithm.update([rollout_of(algorithm, number)], 0.1 * number).gradient_steps
    assert taken == 12
    ours, state, theirs = algorithm.weights(), algorithm.state(), reference.flat()
    critic = "values" if name == "dqn" else "critic"
    pairs = [(ours[critic], theirs["critic"]), (state["targets"][critic], theirs["target"])]
    pairs += [(ours["actor"], theirs["actor"])] if "actor" in ours else []
    for mine, his in pairs:  # Adam makes whole steps of gradients that are 0 but for their last bits: of one or two
        assert np.isclose(mine, his, rtol=1e-3, atol=5e-5).mean() > 0.997


# -- what sequences are ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [None, 3])
def test_sequences_are_packed_with_previous_actions_and_rewards(length: int | None) -> None:
    algorithm = made("sac", **MEMORY, sequence_length=length)
    for number in range(3):
        algorithm.replay.add(rollout_of(algorithm, number))
    batch = algorithm._draw()
    vector, ends = batch.observations.vector, 0
    for rows in sequences(batch.observations):
        assert len(rows) - 1 <= (length or 100)
        assert not vector[rows[0], 5:].any()  # no previous action before a sequence
        steps = [int(np.flatnonzero(batch.observations.rows == row)[0]) for row in rows[:-1]]
        np.testing.assert_array_equal(vector[rows[1:], 5:8], batch.actions[steps])
        np.testing.assert_array_equal(vector[rows[1:], 8], batch.rewards[steps])
        after = np.arange(len(vector))[batch.next_observations.rows][steps]
        np.testing.assert_array_equal(after, rows[1:])
        ends += len(steps)
    assert ends == len(batch.rewards) == len(batch.observations.rows)  # no step is padding, and none is missing


# -- acting ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("learner", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("name", KINDS)
def test_policy_acts_as_its_network_learns_along_sequences(name: str, kind: str, learner: str) -> None:
    """The actor computes the same outputs step by step as along the whole sequence."""
    algorithm = made(name, **{**MEMORY, "memory": kind, "learner": learner}, learning_starts=0)
    for number in range(3):
        algorithm.update([rollout_of(algorithm, number)], 0.1)
    batch, policy = algorithm._draw(), algorithm.policy()
    shown = batch.observations._replace(rows=slice(None))
    network = algorithm._networks[algorithm.acts]
    expected = as_numpy(network(shown) if learner == "torch" else network.output(shown))
    shown = shown._replace(vector=as_numpy(shown.vector))
    loaded = loaded_policy(policy.saved(), OBSERVATIONS, KINDS[name])
    for acting in (policy, loaded):
        for rows in sequences(shown):
            memory = acting.first_memory(1)
            for row in rows:
                output, memory = acting.output(shown.vector[row : row + 1], memory)
                np.testing.assert_allclose(output[0], expected[row], rtol=1e-4, atol=1e-5)


def test_markov_actor_has_no_memory() -> None:
    algorithm = made("sac", **MEMORY, markov_actor=True)
    assert algorithm.policy().first_memory(3) == {} and not algorithm.features.see_previous
    assert made("sac", **MEMORY).policy().first_memory(3)["cells"].shape == (3, 1, 1, SIZE)


@pytest.mark.parametrize("learner", ["numpy", "torch"])
@pytest.mark.parametrize(("name", "markov_actor"), ARCHITECTURES)
def test_algorithm_restored_from_its_state_continues_exactly(name: str, markov_actor: bool, learner: str) -> None:
    one, other = (made(name, **MEMORY, markov_actor=markov_actor, learner=learner) for _ in range(2))
    for number in range(2):
        one.update([rollout_of(one, number)], 0.1)
    state, weights = one.state(), one.weights()
    state["replay"] = {**state["replay"], **{k: Saved(state["replay"][k]) for k in ("rows", "finals")}}
    other.load_weights(weights)
    other.load(state)
    for algorithm in (one, other):
        algorithm.update([rollout_of(one if algorithm is one else other, 5)], 0.2)
    for name, mine in one.weights().items():
        np.testing.assert_array_equal(mine, other.weights()[name])


class Saved:
    """A table as it is read from a checkpoint."""

    def __init__(self, table: Any) -> None:
        self.first, self.last = table.first, table.last
        self._records = table.records(table.first, table.last).copy()

    def pieces(self, dtype: Any) -> list[Any]:
        return [self._records]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"markov_actor": True}, "needs a memory"),
        ({"memory": "gru", "sequences": 0}, "sequences=0: expected at least 1"),
        ({"memory": "gru", "sequence_length": 0}, "sequence_length=0: expected at least 1"),
        ({"memory": "gru", "reward_embedding": -1}, "reward_embedding=-1: expected at least 0"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        made("sac", **wrong)


def test_unsupported_runs_with_memory_are_refused() -> None:
    images = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    with pytest.raises(InvalidRequest, match="on the CPU and without images; use ppo or a2c for images or a GPU"):
        made("discrete_sac", images, memory="gru")
    with pytest.raises(InvalidRequest, match="dqn has no actor"):
        made("dqn", memory="gru", markov_actor=True)


def test_large_actor_with_recurrent_critics_learns_in_numpy() -> None:
    algorithm = made("sac", **MEMORY, markov_actor=True, hidden_sizes=(600,), learning_starts=0, gradient_steps=1)
    assert algorithm.update([rollout_of(algorithm, 0)], 0.0).gradient_steps == 1
    assert {network.xp for network in algorithm._networks.values()} == {np}


def test_embedding_without_units_omits_its_input() -> None:
    algorithm = made("sac", **{**MEMORY, "action_embedding": 0})
    batch = NetworkInput(np.zeros((1, 9), np.float32), (), [1], slice(None))
    moved = NetworkInput(batch.vector.copy(), (), [1], slice(None))
    moved.vector[0, 5:8] = 1.0
    actor = algorithm._networks["actor"]
    np.testing.assert_array_equal(actor.output(batch).copy(), actor.output(moved))
    moved.vector[0, 8] = 1.0
    again = NetworkInput(moved.vector.copy(), (), [1], slice(None))
    assert (actor.output(batch) != actor.output(again)).any()
