"""TAAC: its gradient, its values, and learning of a task that needs attention to other agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

import multiverse as mv
from multiverse.algorithms.taac import TAAC, TAACConfig
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.optimizers import Adam
from multiverse.networks.attention import TeamSpec, similarity
from multiverse.networks.team_actor_critic import TeamActorCritic
from multiverse.rollouts.rollout import rollout_for
from tests.kernels.losses import algorithm_with

SMALL: dict[str, Any] = {"num_heads": 2, "embedding_size": 16, "hidden_size": 32}
SEEN, ACTIONS = spaces.Box(-1, 1, (5,), np.float32), spaces.Discrete(3)


class Swapped(ParallelEnv):  # type: ignore[misc]
    """Each agent observes its own number, and its reward is 1 for the number of the next agent. Episodes have 8
    steps."""

    metadata = {"name": "swapped"}  # noqa: RUF012

    def __init__(self, agents: int = 2) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(agents)]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2 + len(self.possible_agents),), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "_rng"):
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = self.possible_agents.copy(), 0
        return self._look(), {agent: {} for agent in self.agents}

    def _look(self) -> dict[str, Any]:
        self._numbers = self._rng.integers(2, size=len(self.possible_agents))
        one_hot = np.eye(len(self.possible_agents))
        seen = [np.array([n, 1 - n, *one_hot[i]], np.float32) for i, n in enumerate(self._numbers)]
        return dict(zip(self.possible_agents, seen))

    def step(self, actions: dict[str, Any]) -> Any:
        wanted = np.roll(self._numbers, -1).tolist()
        rewards = {agent: float(actions[agent] == wanted[i]) / 8 for i, agent in enumerate(self.possible_agents)}
        self._steps += 1
        over = self._steps == 8
        self.agents = [] if over else self.possible_agents.copy()
        no, infos = dict.fromkeys(self.possible_agents, False), {agent: {} for agent in self.possible_agents}
        return self._look(), rewards, dict.fromkeys(self.possible_agents, over), no, infos


def test_taac_learns_from_teammates_what_ppo_cannot(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "num_envs": 8, "steps_per_env": 16, "env_steps": 6_000, "seed": 1, "executor": "serial", "evaluate_every": 0,
        "evaluation_episodes": 20, "learning_rate": 3e-3, "epochs": 4, "batch_size": 64, "preset": False, "gamma": 0.5,
    }  # fmt: skip
    team = mv.train(Swapped, algorithm="taac", run_dir=tmp_path / "taac", **SMALL, **settings)
    alone = mv.train(Swapped, algorithm="ppo", run_dir=tmp_path / "ppo", **settings)
    assert team.summary["evaluation"]["mean_return"] > 0.9
    assert alone.summary["evaluation"]["mean_return"] < 0.65

    policies = mv.load(team)  # without torch, and all agents at once
    env, right = Swapped(), 0
    seen, _ = env.reset(seed=9)
    while env.agents:
        seen, rewards, *_ = env.step(policies.act(seen))
        right += sum(reward > 0 for reward in rewards.values())
    assert right >= 14
    seen, _ = env.reset(seed=3)
    assert policies.act(seen, action_masks={"agent_0": [1, 0]})["agent_0"] == 0  # for agent_1 both are open
    assert policies.act(seen, action_masks={"agent_0": [0, 1]})["agent_0"] == 1
    with pytest.raises(mv.errors.InvalidRequest, match=r"an action mask has shape \(3,\): expected \(2,\)"):
        policies.act(seen, action_masks={"agent_0": [1, 0, 1]})
    with pytest.raises(mv.errors.InvalidRequest, match="or a batch for each, not both"):
        policies.act({**seen, "agent_0": seen["agent_0"][None]})
    rows = {agent: np.stack([one, one]) for agent, one in env.reset(seed=3)[0].items()}
    both = policies.act(rows)
    assert all((both[agent] == both[agent][0]).all() for agent in rows)


def test_gradient_equals_autograd_of_the_whole_loss() -> None:
    torch.manual_seed(0)
    teams, agents = 6, 4
    config = TAACConfig(normalize_advantages=False, similarity_coef=0.3, similarity_cap=-1.0, weight_decay=0.01)
    networks = TeamActorCritic(TeamSpec(5, 3, **SMALL), Adam, 0, "cpu")
    present = torch.rand(teams, agents) < 0.7
    valid = present & (torch.rand(teams, agents) < 0.8)
    masks = torch.rand(teams, agents, 3) < 0.7
    actions = torch.randint(3, (teams, agents))
    masks.scatter_(-1, actions.unsqueeze(-1), True)
    columns = {name: torch.randn(teams, agents) for name in ("advantages", "returns", "values")}
    batch = RolloutBatch(torch.randn(teams, agents, 5), [], actions, masks, present=present, valid=valid, **columns)
    batch.columns["log_probs"] = networks.log_probs(batch) + 0.3 * torch.randn(teams, agents)
    algorithm = algorithm_with(TAAC, config)
    algorithm._networks, algorithm._loss, algorithm._updates, algorithm._gradients = networks, algorithm.loss, 0, 0
    algorithm.auxiliary, algorithm.own_network, algorithm._seed = {}, None, 0
    metrics = algorithm._gradient(batch)
    found = networks.optimizer.gradient.clone()

    logits, attended = networks.actor(batch.vector, present)
    dist = torch.distributions.Categorical(logits=logits.masked_fill(~masks, -1e9))
    ratio = (dist.log_prob(actions) - batch["log_probs"]).exp()[valid]
    advantage = columns["advantages"][valid]
    policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    values = networks.critic(batch.vector, actions, present)[valid]
    value_loss = ((values - columns["returns"][valid]) ** 2).mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * dist.entropy()[valid].mean()
    alike = similarity(attended, present, -1.0)
    parameters = [*networks.actor.parameters(), *networks.critic.parameters()]
    expected = torch.autograd.grad(loss + 0.3 * alike, parameters)
    flat = torch.cat([one.reshape(-1) for one in expected]) + 0.01 * networks.optimizer.parameters
    torch.testing.assert_close(found, flat, atol=1e-5, rtol=1e-4)
    assert float(metrics["similarity"]) == pytest.approx(float(alike.detach()), abs=1e-5)


def test_terminated_agents_are_absent_for_truncated_teammates() -> None:
    algorithm = TAAC(TAACConfig(**SMALL), SEEN, ACTIONS, 3, 0, agents=3)
    rollout, found = rollout_for(SEEN, 4, 3, algorithm.action), []

    def final_values() -> Any:
        steps, slots, _ = rollout.ends()
        return algorithm._batches._final_values(rollout, steps, slots)

    rollout.terminated[1, 2] = rollout.truncated[1, 0] = rollout.truncated[1, 1] = True
    rollout.finals[()][1] = np.random.default_rng(0).standard_normal((3, 5))
    for sees in (-1.0, 1.0):
        algorithm._batches._rng = np.random.default_rng(0)
        rollout.finals[()][1, 2] = sees
        found.append(final_values())
    np.testing.assert_array_equal(found[0][:2], found[1][:2])
    rollout.terminated[...], rollout.truncated[1] = False, True
    algorithm._batches._rng = np.random.default_rng(0)
    assert (final_values()[:2] != found[1][:2]).all()  # cut short as well, it is seen


def test_weights_of_one_team_fit_a_larger_one() -> None:
    small = TAAC(TAACConfig(**SMALL), SEEN, ACTIONS, 8, 0, agents=4)
    large = TAAC(TAACConfig(**SMALL), SEEN, ACTIONS, 16, 1, agents=8)
    large.load_weights(small.weights())
    x = np.random.default_rng(0).standard_normal((4, 5), dtype=np.float32)
    one, other = (algorithm.policy().output(x, np.zeros(4, np.int64)) for algorithm in (small, large))  # type: ignore[attr-defined]
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_learning_rate_decreases_to_its_minimum() -> None:
    algorithm = TAAC(TAACConfig(learning_rate=1e-3, min_learning_rate=1e-4, **SMALL), SEEN, ACTIONS, 2, 0, agents=2)
    rates = [algorithm.config.scheduled(progress)["learning_rate"] for progress in (0.0, 0.5, 1.0)]
    assert rates == pytest.approx([1e-3, 5.5e-4, 1e-4])
    algorithm.change(learning_rate_schedule="constant")
    assert algorithm.config.scheduled(1.0) == {}


def test_unsupported_runs_and_settings_are_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="taac: actions must be Discrete, and these are Box"):
        TAAC(TAACConfig(**SMALL), SEEN, spaces.Box(-1, 1, (2,)), 2, 0)
    with pytest.raises(mv.errors.InvalidRequest, match="images"):
        TAAC(TAACConfig(**SMALL), spaces.Box(0, 255, (64, 64, 3), np.uint8), ACTIONS, 2, 0)
    for wrong, message in (
        ({"num_heads": 3, "embedding_size": 16}, "not a multiple of num_heads=3"),
        ({"hidden_sizes": (32,)}, "taac's networks have num_heads"),
        ({"squash": True}, "taac's networks have num_heads"),
        ({"critic": "central"}, "always uses the whole team"),
        ({"value_clip_range": 0.2}, "over a baseline"),
        ({"similarity_cap": 2.0}, "a number from -1 to 1"),
        ({"weight_decay": -1.0}, "expected at least 0"),
    ):
        with pytest.raises(mv.errors.InvalidRequest, match=message):
            TAACConfig(**wrong)


def test_run_of_larger_team_starts_from_weights_of_smaller_team(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        **SMALL, "algorithm": "taac", "num_envs": 2, "steps_per_env": 20, "env_steps": 40, "executor": "serial",
        "evaluate_every": 0, "evaluation_episodes": 1, "preset": False,
    }  # fmt: skip
    two, three = ({"env_kwargs": {"num_boxes": boxes, "max_timestep": 10}} for boxes in (2, 3))
    first = mv.train("BoxJump-v0", run_dir=tmp_path / "two", seed=0, **two, **settings)
    then = mv.train(
        "BoxJump-v0", run_dir=tmp_path / "three", seed=1, init_from=first.path, learning_rate=1e-12, **three, **settings
    )
    x = np.random.default_rng(0).standard_normal((2, 11), dtype=np.float32)
    one, other = (mv.load(run)["box-1"].acting for run in (first, then))
    np.testing.assert_allclose(one.output(x, np.zeros(2, np.int64)), other.output(x, np.zeros(2, np.int64)), atol=1e-5)
    for run in (then, first):  # a team of two, too, lets a third one join
        seen = {f"box-{i}": x[i % 2] for i in (1, 2, 3)}
        together = one.output(np.stack(list(seen.values())), np.zeros(3, np.int64)).argmax(1)
        assert mv.load(run).act(seen) == dict(zip(seen, together))
