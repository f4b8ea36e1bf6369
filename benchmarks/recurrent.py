"""Speed of gradient steps of SAC, TD3 and discrete SAC with memory, compared with torch modules on padded batches.

    python benchmarks/recurrent.py                            about two minutes on one core
    python benchmarks/recurrent.py --rows cart-pole --rounds 3

The rows are settings of pomdp-baselines (cell, embeddings, layers, batch). Both learn from the same sequences: whole
episodes, or parts of 64 steps. The reference uses `nn.LSTM` or `nn.GRU` along [longest + 1, batch] for every loss,
masks after the end of a sequence, and no unused gradients. Its actor learns from the updated critics, ours from the
previous ones, so that each sequence is processed once. Episode lengths are those of the env (CartPole: 10 to 200
steps). Both are measured in turn, with one thread, in CPU time; the ratio is the median over the rounds. The bar is
1.5. If all sequences have the same length, there is no padding to avoid.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from benchmarks.provenance import provenance, write_results
from multiverse.algorithms import algorithm_class
from multiverse.rollouts.replay import Sequences
from multiverse.rollouts.rollout import rollout_for

BAR = 1.5
EPISODES = 200


@dataclass(frozen=True)
class Row:
    """Settings of pomdp-baselines; `longest` and `shortest` are the lengths of episodes."""

    algorithm: str
    memory: str
    size: int
    embeddings: tuple[int, int, int]  # observation, action, reward
    hidden: tuple[int, ...]
    sequences: int
    length: int | None
    longest: int
    shortest: int
    observations: int
    actions: int


ROWS = {
    "semi-circle": Row("sac", "gru", 128, (32, 0, 8), (128, 128), 32, None, 120, 120, 3, 2),
    "wind": Row("sac", "gru", 64, (32, 8, 0), (128, 128), 64, None, 75, 75, 2, 2),
    "half-cheetah-vel": Row("sac", "gru", 128, (32, 16, 16), (128, 128, 128), 32, None, 400, 400, 21, 6),
    "pendulum": Row("td3", "lstm", 128, (32, 8, 8), (128, 128), 32, 64, 200, 200, 1, 1),
    "cart-pole": Row("discrete_sac", "lstm", 128, (32, 8, 8), (128, 128), 32, None, 200, 10, 2, 2),
}


def ours(row: Row) -> Any:
    """Return our algorithm, with a replay buffer of random episodes."""
    kind = algorithm_class(row.algorithm)
    config = kind.Config(
        memory=row.memory, memory_size=row.size, hidden_sizes=row.hidden, sequences=row.sequences,
        sequence_length=row.length, buffer_size=100_000,
        **dict(zip(("observation_embedding", "action_embedding", "reward_embedding"), row.embeddings)),
    )  # fmt: skip
    observation_space = spaces.Box(-1, 1, (row.observations,), np.float32)
    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (row.actions,), np.float32)
    if row.algorithm == "discrete_sac":
        action_space = spaces.Discrete(row.actions)
    algorithm, rng = kind(config, observation_space, action_space, 1, 0), np.random.default_rng(0)
    for _ in range(EPISODES):
        rollout = rollout_for(observation_space, int(rng.integers(row.shortest, row.longest + 1)), 1, algorithm.action)
        rollout.observations[()][...] = rng.normal(size=rollout.observations[()].shape)
        rollout.rewards[...] = rng.normal(size=rollout.rewards.shape)
        rollout.starts[0] = rollout.truncated[-1] = True
        algorithm.replay.add(rollout)
    return algorithm


# -- reference ---------------------------------------------------------------------------------------------------
class Recurrent(nn.Module):
    """Network of embeddings, a recurrent cell, a shortcut, and one or two heads."""

    def __init__(self, row: Row, more: int, outputs: int, heads: int, acts: int) -> None:
        super().__init__()
        self.widths = row.observations, acts, 1
        self.embeddings = nn.ModuleList(
            [nn.Linear(n, u) if u else nn.Identity() for n, u in zip(self.widths, row.embeddings)]
        )
        self.used = [u > 0 for u in row.embeddings]
        self.cell = (nn.LSTM if row.memory == "lstm" else nn.GRU)(sum(row.embeddings), row.size)
        self.shortcut = nn.Linear(row.observations + more, row.size)
        self.heads = nn.ModuleList()
        for _ in range(heads):
            layers: list[nn.Module] = []
            for inward, outward in itertools.pairwise((2 * row.size, *row.hidden, outputs)):
                layers += [nn.Linear(inward, outward), nn.ReLU()]
            self.heads.append(nn.Sequential(*layers[:-1]))

    def hidden(self, *inputs: Tensor) -> Tensor:
        """Return hidden states [T + 1, B, size] from observations, previous actions and previous rewards."""
        parts = [layer(x).relu() for layer, x, used in zip(self.embeddings, inputs, self.used) if used]
        found: Tensor = self.cell(torch.cat(parts, -1))[0]
        return found

    def forward(self, hidden: Tensor, *current: Tensor) -> list[Tensor]:
        given = torch.cat((hidden, self.shortcut(torch.cat(current, -1)).relu()), -1)
        return [head(given) for head in self.heads]


class Theirs:
    def __init__(self, row: Row) -> None:
        self.row, continuous = row, row.algorithm != "discrete_sac"
        outputs = 2 * row.actions if row.algorithm == "sac" else row.actions
        self.actor = Recurrent(row, 0, outputs, 1, row.actions)
        self.critic = Recurrent(row, row.actions if continuous else 0, 1 if continuous else row.actions, 2, row.actions)
        self.targets = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.of_actor, self.of_critic = (torch.optim.Adam(one.parameters(), 3e-4) for one in (self.actor, self.critic))
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.of_alpha, self.steps = torch.optim.Adam([self.log_alpha], 3e-4), 0

    def acted(self, actor: Recurrent, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return actions (probabilities, if discrete) and log probabilities [T + 1, B, …]."""
        (output,) = actor(actor.hidden(*inputs), inputs[0])
        if self.row.algorithm == "td3":
            return output.tanh(), output
        if self.row.algorithm == "discrete_sac":
            return output.softmax(-1), output.log_softmax(-1)
        mean, log_std = output.chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        before = normal.rsample()
        squash = 2 * (np.log(2.0) - before - nn.functional.softplus(-2 * before))
        return before.tanh(), (normal.log_prob(before) - squash).sum(-1, keepdim=True)

    def value(self, critic: Recurrent, hidden: Tensor, seen: Tensor, actions: Tensor) -> list[Tensor]:
        """Return values [T, B, 1] of each head: of an action, or the expectation over all actions."""
        if self.row.algorithm == "discrete_sac":
            return [(actions * values).sum(-1, keepdim=True) for values in critic(hidden, seen)]
        found: list[Tensor] = critic(hidden, seen, actions)
        return found

    def gradient_step(self, sequences: Sequences) -> None:
        observations = torch.as_tensor(sequences.observations[()])
        actions, rewards = torch.as_tensor(sequences.actions), torch.as_tensor(sequences.rewards)[..., None]
        mask, terminated = (torch.as_tensor(one)[..., None].float() for one in (sequences.mask, sequences.terminated))
        if self.row.algorithm == "discrete_sac":
            actions = nn.functional.one_hot(actions.long(), self.row.actions).float()
        inputs = [observations, torch.cat((0 * actions[:1], actions)), torch.cat((0 * rewards[:1], rewards))]
        alpha, count = self.log_alpha.exp().detach(), mask.sum()
        actor_target, critic_target = self.targets
        with torch.no_grad():
            next_actions, log_probs = self.acted(actor_target if self.row.algorithm == "td3" else self.actor, inputs)
            if self.row.algorithm == "td3":
                next_actions = (next_actions + (0.2 * torch.randn_like(next_actions)).clamp(-0.5, 0.5)).clamp(-1, 1)
            value = torch.min(*self.value(critic_target, critic_target.hidden(*inputs), observations, next_actions))
            value = value - alpha * self.entropy(next_actions, log_probs)
            target = rewards + 0.9 * (1 - terminated) * value[1:]
        values = self.value(self.critic, self.critic.hidden(*inputs)[:-1], observations[:-1], actions)
        self.take(self.of_critic, sum((((one - target) * mask) ** 2).sum() / count for one in values))
        self.steps += 1
        if self.row.algorithm != "td3" or self.steps % 2 == 0:
            self.critic.requires_grad_(False)  # its gradients are not used
            actions_now, log_probs = self.acted(self.actor, inputs)
            action_values = self.value(
                self.critic, self.critic.hidden(*inputs)[:-1], observations[:-1], actions_now[:-1]
            )
            objective = action_values[0] if self.row.algorithm == "td3" else torch.min(*action_values)
            loss = alpha * self.entropy(actions_now, log_probs)[:-1] - objective
            self.take(self.of_actor, (loss * mask).sum() / count)
            self.critic.requires_grad_(True)
            if self.row.algorithm != "td3":
                entropy = self.entropy(actions_now, log_probs).detach()[:-1].mean()
                self.take(self.of_alpha, -(self.log_alpha * (entropy - self.row.actions)).sum())
            for followed, target in zip((self.actor, self.critic), self.targets):
                for ours, theirs in zip(followed.parameters(), target.parameters()):
                    theirs.data.lerp_(ours.data, 0.005)

    def entropy(self, actions: Tensor, log_probs: Tensor) -> Tensor:
        """Return log probabilities [T, B, 1] of the actions; 0 for TD3."""
        if self.row.algorithm == "td3":
            return 0 * actions[..., :1]
        return (actions * log_probs).sum(-1, keepdim=True) if self.row.algorithm == "discrete_sac" else log_probs

    def take(self, optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# -- measuring ---------------------------------------------------------------------------------------------------
def took_ms(step: Callable[[], Any], steps: int) -> float:
    began_at = time.process_time()
    for _ in range(steps):
        step()
    return 1e3 * (time.process_time() - began_at) / steps


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    row, rng = ROWS[name], np.random.default_rng(1)
    algorithm, reference = ours(row), Theirs(row)
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("ours", lambda: algorithm.gradient_step(next(algorithm._minibatches(1)))),
        ("theirs", lambda: reference.gradient_step(algorithm.replay.sequences(rng, row.sequences, row.length))),
    ]
    for _, step in steps:  # warm
        took_ms(step, 2)
    rounds = [{who: took_ms(step, options.steps) for who, step in steps} for _ in range(options.rounds)]
    ratio = statistics.median(one["theirs"] / one["ours"] for one in rounds)
    figures = "  ".join(f"{who} {statistics.median(one[who] for one in rounds):7.1f} ms" for who, _ in steps)
    print(f"{name:18s}{figures}   × {ratio:.2f}   bar {BAR:g}: {'met' if ratio >= BAR else 'MISSED'}", flush=True)
    return {"row": name, **asdict(row), "ratio": ratio, "bar": BAR, "rounds": rounds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="gradient steps per contender and round")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    options = parser.parse_args()
    origin = provenance()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        results = [compare(name, options) for name in options.rows]
    if options.json:
        write_results(options.json, origin, {"rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
