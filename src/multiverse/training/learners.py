"""Learners of a run: the maker of its algorithm, and one algorithm for each group of agents, handled as one."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from multiverse.algorithms import ALGORITHMS, algorithm_class
from multiverse.algorithms.algorithm import Algorithm, OwnNetwork, UpdateReport
from multiverse.algorithms.capabilities import (
    RunRequirements,
    capabilities_of,
    refuse_unsupported,
    settings_of,
    takes_argument,
)
from multiverse.core.env import EnvDescription
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import SINGLE_AGENT, Group
from multiverse.core.policy import Policy
from multiverse.learning.threads import torch_for
from multiverse.networks import checked_network, network_class
from multiverse.policies.features import SCALED_BYTES, Features, byte_scaling
from multiverse.policies.numpy_policies import saved_policy
from multiverse.rollouts.rollout import Rollout
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.runs.origin import redacted, redacted_fields
from multiverse.training.runs.state_codec import encode

log = logging.getLogger("multiverse")

MakeAlgorithm = Callable[..., Algorithm]
"""(observation space, action space, slots, seed) → an algorithm; if it has a `Config`: (config, …, device) → algorithm.
The number of agents in each env is passed as `agents` if it takes that, and likewise `state_space`, if its settings
have `critic="state"`."""
ONE, SEVERAL = ("algorithm", "policy"), ("algorithms", "policies")
"""Keys of a checkpoint for learned state and policies: of a single agent, and by group of several."""


# -- the maker of an algorithm -------------------------------------------------------------------------------------
INTERFACE = (
    "features", "steps_per_env", "action", "policy", "update", "change", "weights", "load_weights", "state", "load",
)  # fmt: skip
"""Attributes of an algorithm that the trainer uses."""
POLICY_INTERFACE = "noise", "first_memory", "act", "for_env", "portable"


@dataclass(frozen=True)
class AlgorithmMaker:
    """Makes the algorithm of a run for each group of agents, when the spaces of its env are known."""

    kind: Any  # class of the algorithm, or the function that makes it
    config: TrainConfig
    device: str
    network: OwnNetwork | None
    scales_bytes: bool

    def __call__(self, group: Group, num_envs: int, seed: int, state_space: Any = None) -> Algorithm:
        """Return the algorithm of this group for this number of envs; refuse a user-defined one that does not implement
        the interface. `state_space`: space of the env's `state()`."""
        with byte_scaling(self.scales_bytes):
            algorithm: Algorithm = self._make(group, num_envs * len(group.agents), seed, state_space)
            if self.config.algorithm not in ALGORITHMS:
                _check_interface(algorithm)
        return algorithm

    def _make(self, group: Group, slots: int, seed: int, state_space: Any) -> Any:
        kind, agents, observed, acted = self.kind, len(group.agents), group.observation_space, group.action_space
        if 0 in (getattr(acted, "shape", None) or ()):
            raise InvalidRequest(f"there is nothing to choose in the action space {acted}: its shape has a 0")
        optional = {"agents": agents if agents > 1 else None, "state_space": state_space, "network": self.network}
        more = {name: value for name, value in optional.items() if value is not None and takes_argument(kind, name)}
        if getattr(kind, "Config", None) is None:
            _check_signature(kind, "observation_space, action_space, slots, seed")
            return kind(observed, acted, slots, seed, **more)
        _check_signature(kind, "config, observation_space, action_space, slots, seed, device")
        prefers_gpu = self.config.device == "auto" and Features(observed, acted).images
        device = "cuda" if prefers_gpu and torch_for("learning from images").cuda.is_available() else self.device
        return kind(self.config.settings, observed, acted, slots, seed, device, **more)


def algorithm_maker(
    config: TrainConfig, own: MakeAlgorithm | None = None, scale_bytes: bool = True, network: Any = None
) -> AlgorithmMaker:
    """Return the maker of this config's algorithm. `own`, `network`: objects that the caller brings. `scale_bytes`:
    False if its weights were learned from unscaled bytes."""
    device, kind = checked_device(config.device), algorithm_class(config.algorithm) if own is None else own
    return AlgorithmMaker(kind, config, device, _own_network(config, kind, network), scale_bytes)


def _own_network(config: TrainConfig, kind: Any, network: Any) -> OwnNetwork | None:
    """The user-defined network of this config, or the class that the caller brings for it."""
    if config.network is None:
        return None
    name = config.network.rpartition(":")[2].strip("<>")
    refuse_unsupported(kind, RunRequirements(settings=config.settings, network=name))
    if hidden := redacted_fields(redacted(config.network_kwargs), "network_kwargs"):
        raise InvalidRequest(
            f"{hidden[0]}: a value of this name is hidden in files as a secret, and could not be read again: "
            f"rename the argument, or pass it inside the network, network=functools.partial({name}, …)"
        )
    torch_for(f"network={name}")
    made_by = network_class(config.network) if network is None else checked_network(network)
    return name, functools.partial(made_by, **config.network_kwargs)


def _check_interface(algorithm: Any) -> None:
    """Refuse mistakes in a user-defined algorithm that would otherwise show later, as errors of something else."""
    name = type(algorithm).__name__
    if missing := [attribute for attribute in INTERFACE if not hasattr(algorithm, attribute)]:
        raise InvalidRequest(
            f"{name} does not implement the interface of algorithms: it has no {', '.join(missing)} (see 'An algorithm "
            "of your own' in docs/training.md)"
        )
    for method, takes in (("update", "rollouts, progress"), ("load_weights", "weights"), ("load", "state")):
        if not callable(getattr(algorithm, method)):
            raise InvalidRequest(f"{name}.{method} is {getattr(algorithm, method)!r}: expected a method")
        _check_signature(getattr(algorithm, method), takes, f"{name}.{method} cannot be called with")
    if not isinstance(algorithm.steps_per_env, int) or algorithm.steps_per_env < 1:
        raise InvalidRequest(f"{name}.steps_per_env is {algorithm.steps_per_env!r}: expected a whole number from 1")
    try:
        shape, dtype = algorithm.action
        np.zeros(shape, dtype)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}.action is {algorithm.action!r}: expected (shape, dtype) of one action") from error
    policy = algorithm.policy()
    if missing := [attribute for attribute in POLICY_INTERFACE if not hasattr(policy, attribute)]:
        raise InvalidRequest(f"{name}.policy() is {type(policy).__name__}: it has no {', '.join(missing)}")
    memory, noise = policy.first_memory(3), policy.noise(np.random.default_rng(0), 2, 3)
    if not isinstance(memory, dict) or any(np.shape(array)[:1] != (3,) for array in memory.values()):
        raise InvalidRequest(f"{name}: first_memory(rows) is {memory!r}: expected a dict of arrays [rows, …], or {{}}")
    if np.shape(noise)[:2] != (2, 3):
        raise InvalidRequest(f"{name}: noise(rng, steps, rows) has shape {np.shape(noise)}: expected (steps, rows, …)")
    try:
        encode({"weights": algorithm.weights(), "state": algorithm.state()})
    except TypeError as error:
        raise InvalidRequest(
            f"{name}: weights() and state() must return what a checkpoint can hold: {error}"
        ) from error


def _check_signature(function: Any, arguments: str, problem: str = "") -> None:
    """Refuse a function that cannot be called with these arguments, named as in "config, slots"."""
    problem = problem or f"{getattr(function, '__name__', function)} cannot be created with"
    try:
        inspect.signature(function).bind(*arguments.split(", "))
    except TypeError as error:
        raise InvalidRequest(f"{problem} ({arguments}): {error}") from None
    except ValueError:  # functions in C have no signature
        pass


def checked_device(device: str) -> str:
    """Return the device to use; refuse one that is not available. `auto` is the CPU: for networks as small as those of
    the presets it is faster than moving every batch to a GPU."""
    if device == "auto":
        return "cpu"
    if device == "cuda" and not torch_for("device='cuda'").cuda.is_available():
        torch = torch_for("device='cuda'")
        built = f"the installed torch {torch.__version__} was built without CUDA"
        why = built if torch.version.cuda is None else "torch finds no CUDA device"
        raise InvalidRequest(f"device='cuda': {why}; device='cpu' works everywhere")
    if device == "mps" and not torch_for("device='mps'").backends.mps.is_available():
        raise InvalidRequest("device='mps': this machine has no Apple GPU that torch can use; device='cpu' works")
    return device


# -- one algorithm for each group ------------------------------------------------------------------------------------
def build_learners(
    config: TrainConfig, description: EnvDescription, make_algorithm: AlgorithmMaker, num_envs: int
) -> Learners:
    """Return the algorithm of each group of agents, for envs of this description; refuse what it does not support."""
    single = description.kind == "single"
    if single and config.separate:
        raise InvalidRequest(f"separate needs an env with several agents, and {config.env} has one: leave it out")
    run = config.requirements(description)
    refuse_unsupported(make_algorithm.kind, run)

    def make(group: Group, seed: int) -> Algorithm:
        learner = make_algorithm(group, num_envs, seed, description.state_space)
        if group.ignores_masks:
            learner.features.mask = None  # networks do not see it in any case
        return learner

    learners = Learners(description.groups, single, make, config.seed)
    first = next(iter(learners))
    run = replace(run, network="", settings=settings_of(first, config.settings))
    if type(first) is not make_algorithm.kind:  # a function made it
        refuse_unsupported(type(first), run)
    for caution in capabilities_of(type(first)).cautions(run):
        log.warning("%s", caution)
    return learners


def check_saved_policies(config: TrainConfig, learners: Learners) -> None:
    """Report policies that a run can save only as weights, and what loading them needs."""
    reasons = learners.saved_policies()[1]
    if not reasons:
        return
    name, reason = config.algorithm.rpartition(":")[2], next(iter(reasons.values()))
    if config.network is not None:
        name, reason = f"network={config.network.rpartition(':')[2].strip('<>')}", "it acts in torch, not in workers"
    if config.opponents:  # guard: opponents-are-the-policies-that-played
        raise InvalidRequest(
            f"opponents={config.opponents}: past versions of the policy are saved with the run, and the policy of "
            f"{name} cannot be ({reason}): leave opponents out"
        )
    bare = {}  # classes that cannot be imported by name
    if config.algorithm not in ALGORITHMS and ":" not in config.algorithm:
        bare["algorithm"] = config.algorithm
    if config.network is not None and "<" in config.network:
        bare["network"] = config.network.strip("<>")
    if bare:
        arguments = ", ".join(f"{setting}={kind}" for setting, kind in bare.items())
        flags = " ".join(f"--{setting} FILE.py:{kind}" for setting, kind in bare.items())
        log.warning(
            "the policy of %s (%s) is saved as weights, and %s cannot be imported by name: to load or evaluate this "
            "run in another program, pass %s again: mv.load(run, %s), or %s in a shell",
            *(name, reason, " and ".join(bare.values()), "it" if len(bare) == 1 else "them", arguments, flags),
        )
    elif ":" in config.algorithm:
        log.info("the policy of %s (%s) is saved as weights: loading it imports %s", name, reason, config.algorithm)


def keep_masks(learner: Algorithm, group: Group) -> None:
    """Make an algorithm that learns from replay store the action masks that come from infos or a method."""
    if group.masks and learner.features.mask is None and capabilities_of(type(learner)).keeps_masks:
        learner.keep_masks(group.masks)  # type: ignore[attr-defined]


def observation_lines(config: TrainConfig, learners: Learners) -> list[str]:
    """Describe the networks' inputs, one line per group of agents whose observations hold images, bytes or arrays."""
    lines = []
    for name, learner in learners.by_group.items():
        own = getattr(learner, "own_network", None)
        boards = capabilities_of(type(learner)).boards_through(settings_of(learner, config.settings))
        text = f"{own.layout.space} to {own.name}" if own is not None else ""
        if own is None and isinstance(learner.features, Features):
            text = learner.features.description(boards)
        if text:
            lines.append(text if len(learners.by_group) == 1 else f"{name}: {text}")
    return lines


class Learners:
    """The algorithms of a run, by group."""

    def __init__(self, groups: Sequence[Group], single: bool, make: Callable[..., Algorithm], seed: int) -> None:
        """`make`: (group, seed) → its algorithm."""
        self._single, self._groups = single, {group.name: group for group in groups}
        self.by_group = {group.name: make(group, _seed_of(seed, k)) for k, group in enumerate(groups)}

    def __iter__(self) -> Iterator[Algorithm]:
        return iter(self.by_group.values())

    @property
    def only(self) -> Any:
        """The algorithm if there is one; else all of them, whose settings can be changed together."""
        return next(iter(self)) if len(self.by_group) == 1 else self

    def policies(self) -> list[Policy]:
        return [learner.policy() for learner in self]

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Let each algorithm learn from its group's rollout. With several groups, metrics are named `group/metric`."""
        reports = {
            name: as_report(learner.update([rollout], progress))
            for (name, learner), rollout in zip(self.by_group.items(), rollouts)
        }
        if len(reports) == 1:
            return next(iter(reports.values()))
        metrics = {f"{name}/{metric}": value for name, one in reports.items() for metric, value in one.metrics.items()}
        gradient_steps = sum(report.gradient_steps for report in reports.values())
        return UpdateReport(metrics, gradient_steps, sum(report.skipped for report in reports.values()))

    def change(self, **settings: Any) -> None:
        """Change settings of all algorithms from now on."""
        for learner in self:
            learner.change(**settings)

    # -- in a checkpoint -----------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        learned = {name: {"weights": one.weights(), "state": one.state()} for name, one in self.by_group.items()}
        acting, _ = self.saved_policies()
        scaled = any(getattr(one.features, "scales_bytes", False) for one in self)
        about = {SCALED_BYTES: True} if scaled else {}
        if self._single:
            return {ONE[0]: learned[SINGLE_AGENT], ONE[1]: acting[SINGLE_AGENT], **about}
        return {SEVERAL[0]: learned, SEVERAL[1]: acting, **about}

    def saved_policies(self) -> tuple[dict[str, Any], dict[str, str]]:
        """(group → saved policy, which `mv.load` loads without env, algorithm and torch; group → why there is none)."""
        saved: dict[str, Any] = {}
        reasons = {}
        for name, learner in self.by_group.items():
            group, saved[name] = self._groups[name], None
            try:
                saved[name] = saved_policy(learner.policy(), group.observation_space, group.action_space)
            except ValueError as error:
                reasons[name] = str(error)
        return saved, reasons

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore weights and state of all algorithms."""
        for name, saved in self._saved(state):
            self.by_group[name].load_weights(saved["weights"])
            self.by_group[name].load(saved["state"])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Load only the weights, those of another run."""
        for name, saved in self._saved(state):
            self.by_group[name].load_weights(saved["weights"])

    def _saved(self, state: Mapping[str, Any]) -> list[tuple[str, Any]]:
        learned = learned_in(state)
        if set(learned) != set(self.by_group):
            raise InvalidRequest(
                f"the saved run has learners for {', '.join(learned)}, and this env needs learners for "
                f"{', '.join(self.by_group)}"
            )
        return list(learned.items())


def drop_replay(state: Mapping[str, Any]) -> None:
    """Change a session's state so that learners with replay begin with an empty buffer; refused if none has replay."""
    states = [saved["state"] for saved in learned_in(state).values()]
    if not any("replay" in one for one in states):
        raise InvalidRequest("without_replay: the algorithm of this run has no replay buffer; leave it out")
    for one in states:
        one |= {"replay": None}


def learned_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return group → weights and state, from the state of a session."""
    return {SINGLE_AGENT: state[ONE[0]]} if ONE[0] in state else dict(state[SEVERAL[0]])


def trained_on_scaled_bytes(state: Mapping[str, Any]) -> bool:
    """Whether the weights in a session's state were learned from bytes scaled to [0, 1]."""
    return bool(state.get(SCALED_BYTES, False))


def policies_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return group → saved policy, or None, from the state of a session."""
    if ONE[0] in state:
        return {SINGLE_AGENT: state[ONE[1]]}
    return dict(state[SEVERAL[1]])


def _seed_of(seed: int, number: int) -> int:
    """Seed of a learner: the run's for the first one, others for the rest, whose initial weights would be equal."""
    return seed if not number else int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def as_report(result: Any) -> UpdateReport:
    """Return the result of an update as a report; a dict is taken for its metrics."""
    if isinstance(result, UpdateReport):
        return result
    if isinstance(result, Mapping) or result is None:
        return UpdateReport(dict(result or {}), 1)
    raise InvalidRequest(f"update() returned {result!r}: expected an UpdateReport, a dict of metrics, or None")
