"""Networks that learn from replay, whatever policy collected it: what SAC, TD3, discrete SAC and DQN have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.algorithm import Learner, Settings, UpdateReport
from multiverse.algorithms.on_policy import inputs
from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.policy import Policy
from multiverse.contracts.views import Array
from multiverse.experience.features import Features
from multiverse.experience.heads import Head, UniformHead, action_of
from multiverse.experience.numpy_policies import NumpyPolicy
from multiverse.experience.replay import NothingToDraw, Replay, Rows
from multiverse.experience.rollout import Rollout
from multiverse.learning.loss import Shape, as_numpy
from multiverse.learning.normalizers import like
from multiverse.learning.numpy_network import NumpyNetwork
from multiverse.learning.optimizers import Optimizer
from multiverse.learning.threads import torch_for

LARGEST_IN_NUMPY = 512
"""Units of a hidden layer: up to that numpy was faster than torch here, also for TD3's customary 400 and 300."""


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class OffPolicyConfig(Settings):
    """Settings that SAC, TD3, discrete SAC and DQN have in common."""

    steps_per_env: int = 1
    """Steps of every env between two updates."""
    buffer_size: int = 1_000_000
    """Steps that replay holds, of all envs together; the oldest go first."""
    learning_starts: int = 100
    """Env steps of random actions before it learns."""
    batch_size: int = 256
    """Steps drawn from replay for one gradient step."""
    updates_per_step: float = 1.0
    """Gradient steps per env step (the update-to-data ratio)."""
    gradient_steps: int | None = None
    """Gradient steps per update, instead; -1: as many as it has env steps."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """How far target networks go towards the others each time they follow them; 1: all the way."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "relu"
    """Between the layers."""

    def __post_init__(self) -> None:
        self._check("at least 1", lambda value: value >= 1, "steps_per_env", "buffer_size", "batch_size")
        self._check("0 or more", lambda value: value >= 0, "learning_starts")
        self._check("above 0", lambda value: value > 0, "learning_rate", "updates_per_step", "tau")
        self._check("between 0 and 1", lambda value: 0.0 <= value <= 1.0, "gamma", "tau")
        self._check("a finite number", math.isfinite, *(k for k, v in vars(self).items() if isinstance(v, float)))
        self._check("at least 1, or -1 for as many as env steps", lambda value: value >= 1 or value == -1,
                    "gradient_steps")  # fmt: skip
        if any(size < 1 for size in self.hidden_sizes):
            raise InvalidRequest(f"hidden_sizes={self.hidden_sizes}: each at least 1")


class Minibatch(NamedTuple):
    """Steps to learn from, where the networks are.  N of them."""

    seen: tuple[Any, list[Any]]  # features [N, size] and images, as networks take them
    actions: Any  # [N, …]
    rewards: Any  # [N]
    after: tuple[Any, list[Any]]  # what the steps led to
    discounts: Any  # [N] γ, or 0 where the task ended
    masks: Any  # [N, actions] what was open, or None; before …
    masks_after: Any  # … and after the step


# -- what learns -------------------------------------------------------------------------------------------------
class OffPolicy(Learner):
    """Replay, networks and their targets, random warm-up, and how many gradient steps are due. A subclass makes the
    networks, says how to act, and takes a gradient step."""

    in_turn = False  # what a step led to is the next row's observation, which is not so where agents act in turn
    fixed = frozenset({"steps_per_env", "buffer_size", "hidden_sizes", "activation"})
    metrics: tuple[str, ...]
    """Names of what `_gradient_step` tells."""

    def __init__(
        self,
        config: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        slots: int,
        seed: int,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        self.config, self.steps_per_env, self._action_space = config, config.steps_per_env, action_space
        self.features, self.action = Features(observation_space, action_space), action_of(action_space)
        self._seed, self._device = seed, device
        self._networks: dict[str, Any] = {}  # by name, and
        self._targets: dict[str, Any] = {}  # what follows some of them
        self._rng = np.random.default_rng((seed, 1))
        self._env_steps, self._updates, self._steps, self._owed = 0, 0, 0, 0.0
        self._progress = 0.0
        self._policy: Policy | None = None
        self._layers: list[tuple[Array, Array]] | None = None
        self._make_networks()
        _ = self.policy()  # what cannot act is refused before anything is collected
        self.replay = Replay(observation_space, self.action, slots, config.buffer_size)

    # -- of a subclass -------------------------------------------------------------------------------------------
    acts: str = "actor"
    """The network that acts."""

    def _make_networks(self) -> None:
        raise NotImplementedError

    def _head(self) -> Head:
        """How the policy acts with what its network says."""
        raise NotImplementedError

    def _gradient_step(self, batch: Minibatch) -> tuple[Any, Any]:
        """(whether it was taken, [metrics])."""
        raise NotImplementedError

    def _before_learning(self) -> None:
        """Once per update that learns."""

    # -- networks ------------------------------------------------------------------------------------------------
    def _network(self, name: str, outputs: int, copies: int = 0, more: int = 0, follows: bool = True) -> Any:
        """A network that sees observations and `more` numbers; in numpy where a few small dense layers on the CPU are
        all there is, which is faster. `follows`: a target follows it."""
        config, images = self.config, [tuple(leaf.space.shape or ()) for leaf in self.features.images]
        size, hidden = self.features.size + more, config.hidden_sizes
        shape = Shape(size, images, self._action_space, hidden, config.activation, ortho_init=False)
        seed = (self._seed, 3, len(self._networks))
        network: Any
        if not images and self._device == "cpu" and max(hidden, default=0) <= LARGEST_IN_NUMPY:
            network = NumpyNetwork(shape, outputs, copies, seed)
        else:
            torch_for("learning from images" if images else "learning on a GPU, or with layers of more than 512 units,")
            from multiverse.learning.torch_network import TorchNetwork

            network = TorchNetwork(shape, outputs, copies, seed, self._device)
        self._networks[name] = network
        if follows:
            self._targets[name] = network.target()
        return network

    @property
    def _optimizers(self) -> dict[str, Optimizer]:
        """All that learn, by name."""
        return {name: network.optimizer for name, network in self._networks.items()}

    # -- acting --------------------------------------------------------------------------------------------------
    def policy(self) -> Policy:
        """Random until learning starts; then what the algorithm explores with. Without noise it is what was learned."""
        if self._policy is None:
            self._policy = self._new_policy()
        return self._policy

    @property
    def _warming_up(self) -> bool:
        return bool(self._env_steps < self.config.learning_starts)

    def _new_policy(self) -> Policy:
        head, network = self._head(), self._networks[self.acts]
        if self._warming_up:
            head = UniformHead(head)
        if self.features.images:
            from multiverse.algorithms.torch_policy import TorchPolicy

            return TorchPolicy(self.features, network.networks[0], head, self._updates, network.device)
        if self._layers is None:
            self._layers = network.layers()
        return NumpyPolicy(self.features, self._layers, self.config.activation, head, self._updates)

    # -- learning ------------------------------------------------------------------------------------------------
    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Keep the rollout, and take the gradient steps that are due, each on steps drawn from replay."""
        (rollout,) = rollouts
        self.replay.add(rollout)
        count = rollout.steps * rollout.slots
        self._env_steps, self._updates, self._progress = self._env_steps + count, self._updates + 1, progress
        self._policy = None
        if self._env_steps <= self.config.learning_starts:
            return UpdateReport()
        self._before_learning()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # noticed where the gradient is
            found = [self._gradient_step(batch) for batch in self._minibatches(self._due(count))]
        if not found:
            return UpdateReport()
        self._layers = None
        xp = self._networks[self.acts].xp
        taken = as_numpy(xp.stack([took for took, _ in found])).tolist()
        self._refuse_many_bad(taken)
        told = [metrics for (_, metrics), took in zip(found, taken) if took]
        report = dict(zip(self.metrics, as_numpy(xp.stack(told)).mean(axis=0).tolist())) if told else {}
        return UpdateReport(report, sum(taken), len(taken) - sum(taken))

    def _due(self, env_steps: int) -> int:
        """Gradient steps, after so many env steps more."""
        given = self.config.gradient_steps
        if given is not None:
            return env_steps if given == -1 else int(given)
        self._owed += env_steps * self.config.updates_per_step
        due = int(self._owed)
        self._owed -= due
        return due

    def _minibatches(self, count: int) -> Iterator[Minibatch]:
        for _ in range(count):
            try:
                rows = self.replay.rows(self._rng, self.config.batch_size)
            except NothingToDraw:  # all steps so far were lost
                return
            yield self._minibatch(rows)

    def _minibatch(self, rows: Rows) -> Minibatch:
        put, features = self._put, self.features
        seen, after = (inputs(features, leaves, None) for leaves in (rows.observations, rows.next_observations))
        masks, masks_after = (features.open_actions(leaves) for leaves in (rows.observations, rows.next_observations))
        return Minibatch(
            (put(seen[0]), [put(image) for image in seen[1]]),
            put(rows.actions),
            put(rows.rewards),
            (put(after[0]), [put(image) for image in after[1]]),
            put(np.float32(self.config.gamma) * ~rows.terminated),
            None if masks is None else put(masks),
            None if masks_after is None else put(masks_after),
        )

    def _put(self, array: Array) -> Any:
        return self._networks[self.acts].put(array)

    def _normal(self, *shape: int) -> Any:
        """Gaussian noise, where the networks are."""
        return self._put(self._rng.standard_normal(shape, dtype=np.float32))

    # -- saving --------------------------------------------------------------------------------------------------
    def weights(self) -> dict[str, Any]:
        return {name: optimizer.weights() for name, optimizer in self._optimizers.items()}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.load_weights(weights[name])
        for target in self._targets.values():
            target.follow(1.0)
        self._policy = self._layers = None

    def state(self) -> dict[str, Any]:
        return {
            "optimizers": {name: optimizer.state() for name, optimizer in self._optimizers.items()},
            "targets": {name: as_numpy(target.parameters) for name, target in self._targets.items()},
            "rng": self._rng.bit_generator.state,
            "env_steps": self._env_steps,
            "updates": self._updates,
            "steps": self._steps,
            "owed": self._owed,
            "progress": self._progress,
            "changed": dict(self._changed),
            "replay": self.replay.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.load(state["optimizers"][name])
        for name, target in self._targets.items():
            target.parameters[...] = self._put(like(state["targets"][name], as_numpy(target.parameters)))
        self._rng.bit_generator.state = state["rng"]
        self._env_steps, self._updates, self._steps = (int(state[name]) for name in ("env_steps", "updates", "steps"))
        self._owed, self._progress = float(state["owed"]), float(state["progress"])
        self.change(**state["changed"])
        self.replay.load(state["replay"])
        self._policy = self._layers = None
