"""SAC, TD3, discrete SAC and DQN: their updates are those of slow references by autograd, in numpy and in torch."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from multiverse.algorithms import algorithm_class
from multiverse.core.errors import InvalidRequest, TrainingDiverged
from multiverse.core.policy import Seen
from multiverse.learning.batches import NetworkInput
from multiverse.rollouts.rollout import Rollout, rollout_for

OBSERVATIONS = spaces.Box(-9, 9, (5,), np.float32)
BOX, DISCRETE = spaces.Box(-2, 2, (3,), np.float32), spaces.Discrete(4, start=2)
SLOTS, HIDDEN = 2, (16, 12)
KINDS = {"sac": BOX, "td3": BOX, "discrete_sac": DISCRETE, "dqn": DISCRETE}
SETTINGS: dict[str, Any] = {
    "learning_starts": 9, "batch_size": 32, "hidden_sizes": HIDDEN, "steps_per_env": 5, "gradient_steps": 3,
    "learning_rate": 1e-2, "tau": 0.1, "buffer_size": 1000,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {"dqn": {"target_update_interval": 20}}


def made(name: str, observations: Any = OBSERVATIONS, actions: Any = None, **settings: Any) -> Any:
    kind = algorithm_class(name)
    config = kind.Config(**{**SETTINGS, **MORE.get(name, {}), **settings})
    return kind(config, observations, KINDS[name] if actions is None else actions, SLOTS, 3)


def rollout_of(algorithm: Any, seed: int, space: Any = OBSERVATIONS) -> Rollout:
    """A rollout with the algorithm's policy and random observations."""
    rng, steps = np.random.default_rng(seed), algorithm.steps_per_env
    rollout, policy = rollout_for(space, steps, SLOTS, algorithm.action), algorithm.policy()
    for leaves in (rollout.observations, rollout.last, rollout.finals):
        for rows in leaves.values():
            rows[...] = rng.normal(size=rows.shape)
    noise = policy.noise(rng, steps, SLOTS)
    for t in range(steps):
        seen = Seen({path: rows[t] for path, rows in rollout.observations.items()}, np.zeros(SLOTS, bool))
        rollout.actions[t], _ = policy.act(seen, noise[t], {})
    rollout.rewards[...] = rng.normal(size=rollout.rewards.shape)
    rollout.terminated[1, 0] = rollout.truncated[2, 1] = True
    rollout.starts[2, 0] = rollout.starts[3, 1] = True
    return rollout


# -- slow references ---------------------------------------------------------------------------------------------
def network(flat: Any, size: int, outputs: int) -> nn.Sequential:
    widths = [size, *HIDDEN, outputs]
    layers: list[nn.Module] = []
    for inward, outward in itertools.pairwise(widths):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
    found = nn.Sequential(*layers[:-1])
    nn.utils.vector_to_parameters(torch.as_tensor(np.array(flat)), found.parameters())
    return found


class Reference:
    """Plain modules and torch's own Adam with the weights of an algorithm; it uses the same minibatches and noise."""

    def __init__(self, name: str, algorithm: Any) -> None:
        self.config, weights = algorithm.config, algorithm.weights()
        size = OBSERVATIONS.shape[0]
        of_actor = {"sac": 6, "td3": 3, "discrete_sac": 4}.get(name, 0)
        critic, of_critic = (size + 3, 1) if name in ("sac", "td3") else (size, 4)
        self.actor = network(weights["actor"], size, of_actor) if of_actor else None
        flat = weights["values" if name == "dqn" else "critic"]
        parts = np.split(flat, 1 if name == "dqn" else 2)
        self.critics = nn.ModuleList([network(part, critic, of_critic) for part in parts])
        self.targets, self.actor_target = copy.deepcopy(self.critics), copy.deepcopy(self.actor)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        rate = self.config.learning_rate
        self.of_critics = torch.optim.Adam(self.critics.parameters(), rate)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), rate) if self.actor else None
        self.of_alpha = torch.optim.Adam([self.log_alpha], rate)
        self.steps = 0

    def take(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def follow(self, target: Any, source: Any) -> None:
        with torch.no_grad():
            for theirs, ours in zip(target.parameters(), source.parameters()):
                theirs.lerp_(ours, self.config.tau)

    def values(self, critics: Any, *seen: Tensor) -> Tensor:
        return torch.stack([critic(torch.cat(seen, -1)) for critic in critics])

    def drawn(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        assert self.actor is not None
        mean, log_std = self.actor(seen).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        before = mean + normal.stddev * noise
        squash = torch.log(1 - torch.tanh(before) ** 2)
        return torch.tanh(before), (normal.log_prob(before) - squash).sum(-1)

    def sac(self, seen: Tensor, actions: Tensor, rewards: Tensor, after: Tensor, discounts: Tensor, noise: Any) -> None:
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            following, log_probs = self.drawn(after, noise[0])
            value = self.values(self.targets, after, following).min(0)[0][:, 0] - alpha * log_probs
            target = rewards + discounts * value
        mine, log_probs = self.drawn(seen, noise[1])
        smaller = self.values(self.critics, seen, mine).min(0)[0][:, 0]
        self.take(self.of_actor, (alpha * log_probs - smaller).mean())
        errors = self.values(self.critics, seen, actions)[..., 0] - target
        self.take(self.of_critics, 0.5 * (errors**2).mean(-1).sum())
        self.take(self.of_alpha, (-self.log_alpha * (log_probs.detach() - 3.0)).mean())
        self.follow(self.targets, self.critics)

    def td3(self, seen: Tensor, actions: Tensor, rewards: Tensor, after: Tensor, discounts: Tensor, noise: Any) -> None:
        assert self.actor is not None and self.actor_target is not None
        with torch.no_grad():
            moved = (noise[0] * 0.2).clamp(-0.5, 0.5)
            following = (self.actor_target(after).tanh() + moved).clamp(-1, 1)
            target = rewards + discounts * self.values(self.targets, after, following).min(0)[0][:, 0]
        self.steps += 1
        if self.steps % 2 == 0:
            self.take(self.of_actor, -self.values(self.critics, seen, self.actor(seen).tanh())[0].mean())
        errors = self.values(self.critics, seen, actions)[..., 0] - target
        self.take(self.of_critics, (errors**2).mean(-1).sum())
        if self.steps % 2 == 0:
            self.follow(self.targets, self.critics)
            self.follow(self.actor_target, self.actor)

    def discrete_sac(
        self, seen: Tensor, actions: Tensor, rewards: Tensor, after: Tensor, discounts: Tensor, noise: Any
    ) -> None:
        assert self.actor is not None
        alpha, chosen = self.log_alpha.exp().detach(), actions[None, :, None].expand(2, -1, 1)
        with torch.no_grad():
            logs = self.actor(after).log_softmax(-1)
            values = self.values(self.targets, after).min(0)[0]
            target = rewards + discounts * (logs.exp() * (values - alpha * logs)).sum(-1)
        logs, values = self.actor(seen).log_softmax(-1), self.values(self.critics, seen).min(0)[0].detach()
        self.take(self.of_actor, (logs.exp() * (alpha * logs - values)).sum(-1).mean())
        errors = self.values(self.critics, seen).gather(-1, chosen)[..., 0] - target
        self.take(self.of_critics, 0.5 * (errors**2).mean(-1).sum())
        entropy = -(logs.exp() * logs).sum(-1).mean().detach()
        self.take(self.of_alpha, (self.log_alpha * (entropy - 0.7 * np.log(4))).sum())
        self.follow(self.targets, self.critics)

    def dqn(self, seen: Tensor, actions: Tensor, rewards: Tensor, after: Tensor, discounts: Tensor, noise: Any) -> None:
        with torch.no_grad():
            target = rewards + discounts * self.values(self.targets, after)[0].max(-1)[0]
        values = self.values(self.critics, seen)[0].gather(-1, actions[:, None])[:, 0]
        self.of_critics.zero_grad()
        nn.functional.smooth_l1_loss(values, target).backward()
        nn.utils.clip_grad_norm_(self.critics.parameters(), 10.0)
        self.of_critics.step()

    def flat(self) -> dict[str, Any]:
        found = {"critic": self.critics, "actor": self.actor, "target": self.targets}
        return {
            name: nn.utils.parameters_to_vector(one.parameters()).detach().numpy()
            for name, one in found.items()
            if one is not None
        }


def fed(algorithm: Any, reference: Callable[..., None]) -> None:
    """Pass every minibatch and noise that the algorithm draws to the reference too."""
    step = algorithm.gradient_step

    def stepping(batch: Any) -> Any:
        columns = [batch.observations.vector, batch.actions, batch.rewards, batch.next_observations.vector]
        rows = [torch.as_tensor(column).clone() for column in [*columns, batch.discounts]]
        noise = [torch.as_tensor(drawn).clone() for drawn in batch.noise]
        found = step(batch)
        reference(*rows, noise)
        return found

    algorithm.gradient_step = stepping


@pytest.mark.parametrize("learner", ["numpy", "torch"])
@pytest.mark.parametrize("name", KINDS)
def test_updates_equal_a_slow_reference(name: str, learner: str) -> None:
    algorithm = made(name, learner=learner)
    reference = Reference(name, algorithm)
    fed(algorithm, getattr(reference, name))
    taken = 0
    for number in range(5):
        if name == "dqn" and number in (1, 3):  # 20 env steps each, before learning from them
            reference.targets.load_state_dict(
                {k: v.lerp(reference.critics.state_dict()[k], 0.1) for k, v in reference.targets.state_dict().items()}
            )
        taken += algorithm.update([rollout_of(algorithm, number)], 0.1 * number).gradient_steps
    assert taken == 15
    ours, state, theirs = algorithm.weights(), algorithm.state(), reference.flat()
    critic = "values" if name == "dqn" else "critic"
    pairs = [(ours[critic], theirs["critic"]), (state["targets"][critic], theirs["target"])]
    pairs += [(ours["actor"], theirs["actor"])] if "actor" in ours else []
    for mine, his in pairs:
        np.testing.assert_allclose(mine, his, rtol=2e-4, atol=2e-5)
    if "temperature" in ours:
        np.testing.assert_allclose(ours["temperature"], reference.log_alpha.detach(), rtol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_input_gradient_equals_autograd(name: str) -> None:
    """The gradient of twin networks with respect to some input columns, from which an actor learns."""
    algorithm, in_torch = made(name), made(name, learner="torch")
    for one in (algorithm, in_torch):
        one.outputs = lambda: {"twins": 2}
    twins, torchs = (one.new_network("twins", copies=2) for one in (algorithm, in_torch))
    torchs.optimizer.load_weights(twins.optimizer.weights())
    rng = np.random.default_rng(0)
    given, grad_output = (rng.normal(size=shape).astype(np.float32) for shape in ((7, 5), (2, 7, 2)))
    vector = torch.as_tensor(given).requires_grad_()
    modules = [network(part, 5, 2) for part in np.split(twins.optimizer.weights(), 2)]
    answer = torch.stack([one(vector) for one in modules])
    answer.backward(torch.as_tensor(grad_output))
    assert vector.grad is not None
    np.testing.assert_allclose(torchs(NetworkInput(vector)).detach(), answer.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(torchs.first()(NetworkInput(vector)).detach(), answer[0].detach(), rtol=1e-5, atol=1e-6)
    found = twins.forward(NetworkInput(given))
    np.testing.assert_allclose(found, answer.detach(), rtol=1e-5, atol=1e-6)
    columns = twins.vector_grad(grad_output, slice(-3, None))
    np.testing.assert_allclose(columns, vector.grad[:, -3:], rtol=1e-5, atol=1e-6)
    twins.forward(NetworkInput(given))
    twins.backward(grad_output)
    expected = torch.cat([parameter.grad.reshape(-1) for one in modules for parameter in one.parameters()])  # type: ignore[union-attr]
    np.testing.assert_allclose(twins.optimizer.gradient, expected, rtol=1e-5, atol=1e-6)
    alone = twins.first()
    np.testing.assert_allclose(alone.forward(NetworkInput(given)), answer[0].detach(), rtol=1e-5, atol=1e-6)


# -- acting ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize("learning_starts", [0, 25])
def test_noise_is_constant_for_noise_steps(name: str, learning_starts: int) -> None:
    drawn = [
        made(name, learning_starts=learning_starts, noise_steps=held).policy().noise(np.random.default_rng(3), 5, 4)
        for held in (1, 2, 5)
    ]
    single, pairs, whole = drawn
    np.testing.assert_array_equal(pairs, single[[0, 0, 1, 1, 2]])  # the same draws, each as long as it lasts
    np.testing.assert_array_equal(whole, single[[0] * 5])
    assert len(np.unique(single)) == single.size


@pytest.mark.parametrize("name", KINDS)
def test_warm_up_actions_are_uniform(name: str) -> None:
    algorithm = made(name, learning_starts=25)
    algorithm._networks[algorithm.acts].optimizer.parameters[-4:] = 50.0  # always the same action after learning
    seen, rng = Seen({(): np.zeros((4000, 5), np.float32)}, np.zeros(4000, bool)), np.random.default_rng(0)
    for number in range(3):
        policy = algorithm.policy()
        actions, _ = policy.act(seen, policy.noise(rng, 1, 4000)[0], {})
        greedy, _ = policy.act(seen, None, {})
        assert (greedy == greedy[0]).all()
        if name in ("sac", "td3"):
            assert abs(actions.mean(0)).max() < 0.05 and abs(actions.std(0) - 1 / np.sqrt(3)).max() < 0.02
            assert actions.min() < -0.99 and actions.max() > 0.99
            assert BOX.contains(policy.for_env(actions)[0]) and abs(policy.for_env(actions)).max() > 1.98
        else:
            assert abs(np.bincount(actions, minlength=4) - 1000).max() < 150
            assert set(policy.for_env(actions)) == {2, 3, 4, 5}
        report = algorithm.update([rollout_of(algorithm, number)], 0.1 * number)
        assert (report.gradient_steps == 3) == (number == 2)
    policy = algorithm.policy()
    actions, _ = policy.act(seen, policy.noise(rng, 1, 4000)[0], {})
    if name in ("sac", "td3"):
        assert abs(actions.mean(0)).max() > 0.5


def test_share_of_random_actions_decreases() -> None:
    algorithm = made("dqn", learning_starts=0, exploration_fraction=0.5, exploration_final_eps=0.1)
    assert algorithm.epsilon == 1.0
    algorithm.update([rollout_of(algorithm, 0)], 0.25)
    assert algorithm.epsilon == pytest.approx(0.55)
    seen, rng = Seen({(): np.zeros((4000, 5), np.float32)}, np.zeros(4000, bool)), np.random.default_rng(0)
    policy = algorithm.policy()
    actions, _ = policy.act(seen, policy.noise(rng, 1, 4000)[0], {})
    assert np.bincount(actions).max() / 4000 == pytest.approx(1 - 0.55 * 3 / 4, abs=0.03)
    algorithm.update([rollout_of(algorithm, 0)], 0.75)
    assert algorithm.epsilon == pytest.approx(0.1)


MASKED = spaces.Dict({"observation": OBSERVATIONS, "action_mask": spaces.MultiBinary(4)})


@pytest.mark.parametrize("name", ["discrete_sac", "dqn"])
def test_closed_actions_are_neither_taken_nor_in_targets(name: str) -> None:
    algorithm = made(name, MASKED, learning_starts=0)
    rollout = rollout_of(algorithm, 0, MASKED)
    path = ("action_mask",)
    masks = np.zeros((4000, 4), bool)
    masks[:, 1] = masks[:, 3] = True
    seen = {("observation",): np.zeros((4000, 5), np.float32), path: masks.astype(np.int8)}
    policy = algorithm.policy()
    actions, _ = policy.act(
        Seen(seen, np.zeros(4000, bool), masks), policy.noise(np.random.default_rng(0), 1, 4000)[0], {}
    )
    assert set(actions) == {1, 3}
    for leaves in (rollout.observations, rollout.last, rollout.finals):
        leaves[path][...] = [0, 1, 0, 1]
    rollout.actions[...] = 1
    rollout.rewards[...] = 0.0
    network = algorithm.targets["values" if name == "dqn" else "critic"]
    network.parameters[...] = 0.0
    outputs = network.parameters.reshape(
        -1 if name == "dqn" else 2, network.parameters.size // (1 if name == "dqn" else 2)
    )
    outputs[:, -4:] = [1e6, 0.0, 1e6, 0.0]  # closed actions would have large values
    assert algorithm.update([rollout], 0.0).metrics["loss" if name == "dqn" else "critic_loss"] < 10.0


@pytest.mark.parametrize("device", ["numpy", "torch"])
def test_target_entropy_is_a_share_of_the_entropy_of_open_actions(device: str) -> None:
    """With 2 of 4 actions open, 0.7 · log 4 would be out of reach, and the temperature would grow without limit."""
    wide = {} if device == "numpy" else {"hidden_sizes": (600,)}
    algorithm = made("discrete_sac", MASKED, learning_starts=0, gradient_steps=1, learning_rate=1e-4, **wide)
    rollout = rollout_of(algorithm, 0, MASKED)
    for leaves in (rollout.observations, rollout.last, rollout.finals):
        leaves[("action_mask",)][...] = [0, 1, 0, 1]
    rollout.actions[...] = 1
    found = [algorithm.update([rollout], 0.0).metrics for _ in range(5)]
    assert all(one["entropy"] > 0.75 * math.log(2) for one in found), "it still does either"
    temperatures = [one["entropy_coef"] for one in found]
    assert temperatures == sorted(temperatures, reverse=True) and temperatures[-1] < temperatures[0]


# -- how much, and what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"updates_per_step": 1.0, "gradient_steps": None}, [10, 10, 10, 10]),
        ({"updates_per_step": 0.25, "gradient_steps": None}, [2, 3, 2, 3]),
        ({"gradient_steps": 2}, [2, 2, 2, 2]),
        ({"gradient_steps": -1}, [10, 10, 10, 10]),
        ({"learning_starts": 20, "gradient_steps": 2}, [0, 0, 2, 2]),
    ],
)
def test_number_of_gradient_steps_follows_the_settings(settings: dict[str, Any], expected: list[int]) -> None:
    algorithm = made("td3", **settings)
    assert [algorithm.update([rollout_of(algorithm, k)], 0.0).gradient_steps for k in range(4)] == expected


@pytest.mark.parametrize(
    ("name", "actions", "words"),
    [
        ("sac", DISCRETE, "sac: actions must be a Box of floats with bounds on every side.*discrete_sac or dqn"),
        ("td3", spaces.Box(-np.inf, np.inf, (1,)), "td3: actions must be a Box of floats with bounds on every side"),
        ("dqn", BOX, "dqn: actions must be Discrete.*sac or td3"),
        ("discrete_sac", BOX, "discrete_sac: actions must be Discrete"),
    ],
)
def test_unsupported_actions_are_refused_with_alternatives(name: str, actions: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        made(name, actions=actions)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sac", {"tau": 0.0}),
        ("sac", {"gradient_steps": 0}),
        ("sac", {"entropy_coef": -1.0}),
        ("sac", {"entropy_coef": "auto_0"}),
        ("discrete_sac", {"entropy_coef": "auto_much"}),
        ("discrete_sac", {"entropy_coef": "0.1"}),
        ("sac", {"buffer_size": 1}),
        ("td3", {"policy_delay": 0}),
        ("td3", {"noise_steps": 0}),
        ("sac", {"noise_steps": 0}),
        ("sac", {"noise_steps": 2, "steps_per_env": 1}),
        ("td3", {"noise_steps": 2, "steps_per_env": 1}),
        ("dqn", {"exploration_final_eps": 1.5}),
        ("sac", {"buffer_size": 10**13}),
    ],
)
def test_invalid_settings_are_named(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"{next(iter(settings))}="):
        made(name, **settings)


@pytest.mark.parametrize("name", ["sac", "discrete_sac"])
@pytest.mark.parametrize(("given", "first"), [("auto", 1.0), ("auto_0.1", 0.1), (0.1, 0.1)])
def test_temperature_has_its_initial_value_and_is_learned_if_auto(name: str, given: Any, first: float) -> None:
    algorithm = made(name, learning_starts=0, gradient_steps=1, entropy_coef=given)
    assert float(algorithm.entropy_coef) == pytest.approx(first)
    algorithm.update([rollout_of(algorithm, 0)], 0.0)
    assert (float(algorithm.entropy_coef) != pytest.approx(first, rel=1e-6)) == (given != 0.1)


def test_temperature_fixed_at_0_can_be_learned_after_a_change() -> None:
    algorithm = made("sac", learning_starts=0, gradient_steps=1, entropy_coef=0.0)
    algorithm.change(entropy_coef="auto")
    assert float(algorithm.entropy_coef) == 1.0


def test_sequence_length_beyond_episodes_equals_whole_episodes() -> None:
    whole, longer = (made("dqn", memory="gru", sequence_length=one).weights() for one in (None, 10**6))
    np.testing.assert_array_equal(*(np.concatenate([np.ravel(w[k]) for k in sorted(w)]) for w in (whole, longer)))


def test_non_finite_gradients_change_nothing_and_end_the_run() -> None:
    algorithm = made("sac", learning_starts=0, gradient_steps=1)
    rollout = rollout_of(algorithm, 0)
    rollout.rewards[...] = np.inf
    before = algorithm.weights()["critic"]
    for _ in range(4):
        assert algorithm.update([rollout], 0.0).skipped == 1
    assert (algorithm.weights()["critic"] == before).all()
    with pytest.raises(TrainingDiverged):
        algorithm.update([rollout], 0.0)


def test_replay_with_only_lost_steps_gives_no_update() -> None:
    algorithm = made("sac", learning_starts=0)
    rollout = rollout_of(algorithm, 0)
    rollout.valid[...] = False
    assert algorithm.update([rollout], 0.0).gradient_steps == 0
    assert algorithm.update([rollout_of(algorithm, 1)], 0.0).gradient_steps == 3
