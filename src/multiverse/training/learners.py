"""What learns in a run: what makes its algorithm, and an algorithm for each group of agents, handled as one."""

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
"""(observation space, action space, slots, seed) → an algorithm; with a `Config`, (config, …, device) → one. Where the
slots are those of several agents in each env, and it takes `agents`, their number is passed too, and likewise
`state_space`, where its settings say `critic="state"`."""
ONE, SEVERAL = ("algorithm", "policy"), ("algorithms", "policies")
"""What a checkpoint calls what was learned and what acts: of a single agent, and by group of several."""


# -- what makes one -----------------------------------------------------------------------------------------------
ASKED = "features", "steps_per_env", "action", "policy", "update", "change", "weights", "load_weights", "state", "load"
"""Of every algorithm, by the trainer."""


@dataclass(frozen=True)
class AlgorithmMaker:
    """Makes the algorithm of a run for each group of agents, once the spaces of its env are known."""

    kind: Any  # class of the algorithm, or the function that makes it
    config: TrainConfig
    device: str
    network: OwnNetwork | None
    scales_bytes: bool

    def __call__(self, group: Group, num_envs: int, seed: int, state_space: Any = None) -> Algorithm:
        """The algorithm of this group, for so many envs; an own one that lacks what is asked of every one is refused.
        `state_space`: of the envs as a whole."""
        with byte_scaling(self.scales_bytes):
            made: Algorithm = self._made(group, num_envs * len(group.agents), seed, state_space)
            if self.config.algorithm not in ALGORITHMS:
                _refuse_odd(made)
        return made

    def _made(self, group: Group, slots: int, seed: int, state_space: Any) -> Any:
        kind, agents, observed, acted = self.kind, len(group.agents), group.observation_space, group.action_space
        if 0 in (getattr(acted, "shape", None) or ()):
            raise InvalidRequest(f"there is nothing to choose in the action space {acted}: its shape has a 0")
        told = {"agents": agents if agents > 1 else None, "state_space": state_space, "network": self.network}
        team = {name: one for name, one in told.items() if one is not None and takes_argument(kind, name)}
        if getattr(kind, "Config", None) is None:
            _refuse_other_signature(kind, "observation_space, action_space, slots, seed")
            return kind(observed, acted, slots, seed, **team)
        _refuse_other_signature(kind, "config, observation_space, action_space, slots, seed, device")
        looks = self.config.device == "auto" and Features(observed, acted).images
        where = "cuda" if looks and torch_for("learning from images").cuda.is_available() else self.device
        return kind(self.config.settings, observed, acted, slots, seed, where, **team)


def algorithm_maker(
    config: TrainConfig, own: MakeAlgorithm | None = None, scale_bytes: bool = True, network: Any = None
) -> AlgorithmMaker:
    """What makes the algorithm of this config; `own` and `network` if the caller brings them. `scale_bytes`: False if
    its weights were learned from unscaled bytes."""
    device, kind = checked_device(config.device), algorithm_class(config.algorithm) if own is None else own
    return AlgorithmMaker(kind, config, device, _own_network(config, kind, network), scale_bytes)


def _own_network(config: TrainConfig, kind: Any, network: Any) -> OwnNetwork | None:
    """The network of this config, or the class that the caller brings for it."""
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


def _refuse_odd(made: Any) -> None:
    """Mistakes in an algorithm of the user that would show later, and as something else."""
    name = type(made).__name__
    if missing := [method for method in ASKED if not hasattr(made, method)]:
        raise InvalidRequest(
            f"{name} does not implement the interface of algorithms: it has no {', '.join(missing)} (see 'An algorithm "
            "of your own' in docs/training.md)"
        )
    for method, takes in (("update", "rollouts, progress"), ("load_weights", "weights"), ("load", "state")):
        if not callable(getattr(made, method)):
            raise InvalidRequest(f"{name}.{method} is {getattr(made, method)!r}: expected a method")
        _refuse_other_signature(getattr(made, method), takes, f"{name}.{method} cannot be called with")
    if not isinstance(made.steps_per_env, int) or made.steps_per_env < 1:
        raise InvalidRequest(f"{name}.steps_per_env is {made.steps_per_env!r}: expected a whole number from 1")
    try:
        shape, dtype = made.action
        np.zeros(shape, dtype)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}.action is {made.action!r}: expected (shape, dtype) of one action") from error
    policy = made.policy()
    if missing := [
        part for part in ("noise", "first_memory", "act", "for_env", "portable") if not hasattr(policy, part)
    ]:
        raise InvalidRequest(f"{name}.policy() is {type(policy).__name__}: it has no {', '.join(missing)}")
    memory, noise = policy.first_memory(3), policy.noise(np.random.default_rng(0), 2, 3)
    if not isinstance(memory, dict) or any(np.shape(kept)[:1] != (3,) for kept in memory.values()):
        raise InvalidRequest(f"{name}: first_memory(rows) is {memory!r}: expected a dict of arrays [rows, …], or {{}}")
    if np.shape(noise)[:2] != (2, 3):
        raise InvalidRequest(f"{name}: noise(rng, steps, rows) has shape {np.shape(noise)}: expected (steps, rows, …)")
    try:
        encode({"weights": made.weights(), "state": made.state()})
    except TypeError as error:
        raise InvalidRequest(
            f"{name}: weights() and state() must be something that a checkpoint holds: {error}"
        ) from error


def _refuse_other_signature(kind: Any, arguments: str, cannot: str = "") -> None:
    cannot = cannot or f"{getattr(kind, '__name__', kind)} cannot be made by"
    try:
        inspect.signature(kind).bind(*arguments.split(", "))
    except TypeError as error:
        raise InvalidRequest(f"{cannot} ({arguments}): {error}") from None
    except ValueError:  # one in C says nothing of its arguments
        pass


def checked_device(device: str) -> str:
    """`auto` is the CPU: for networks as small as the presets' it is faster than moving every batch elsewhere."""
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


# -- one for each group --------------------------------------------------------------------------------------------
def build_learners(
    config: TrainConfig, description: EnvDescription, make_algorithm: AlgorithmMaker, num_envs: int
) -> Learners:
    """The algorithm of each group of agents, for envs of this description; refused where they do not fit together."""
    single = description.kind == "single"
    if single and config.separate:
        raise InvalidRequest(f"separate: {config.env} has one agent")
    run = config.requirements(description)
    refuse_unsupported(make_algorithm.kind, run)

    def make(group: Group, seed: int) -> Algorithm:
        learner = make_algorithm(group, num_envs, seed, description.state_space)
        if group.ignores_masks:
            learner.features.mask = None  # networks do not see it in any case
        return learner

    learners = Learners(description.groups, single, make, config.seed)
    first = next(iter(learners))
    made = replace(run, network="", settings=settings_of(first, config.settings))
    if type(first) is not make_algorithm.kind:  # made by a function
        refuse_unsupported(type(first), made)
    for caution in capabilities_of(type(first)).cautions(made):
        log.warning("%s", caution)
    return learners


def check_saved_policies(config: TrainConfig, learners: Learners) -> None:
    """Report the policies of the user's own algorithm that a run cannot hold, and what loads them then."""
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
    bare = {}  # classes of a program
    if config.algorithm not in ALGORITHMS and ":" not in config.algorithm:
        bare["algorithm"] = config.algorithm
    if config.network is not None and "<" in config.network:
        bare["network"] = config.network.strip("<>")
    if bare:
        arguments = ", ".join(f"{kind}={one}" for kind, one in bare.items())
        flags = " ".join(f"--{kind} FILE.py:{one}" for kind, one in bare.items())
        log.warning(
            "the policy of %s (%s) is saved as weights, and %s cannot be imported by name: to load or evaluate this "
            "run in another program, pass %s again: mv.load(run, %s), or %s in a shell",
            *(name, reason, " and ".join(bare.values()), "it" if len(bare) == 1 else "them", arguments, flags),
        )
    elif ":" in config.algorithm:
        log.info("the policy of %s (%s) is saved as weights: loading it imports %s", name, reason, config.algorithm)


def keep_masks(learner: Algorithm, group: Group) -> None:
    """Have an algorithm that learns from replay keep the action masks that come from infos or a method."""
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
        """The algorithm, where there is one; else all of them, which can be changed together."""
        return next(iter(self)) if len(self.by_group) == 1 else self

    def policies(self) -> list[Policy]:
        return [learner.policy() for learner in self]

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Each learns from its own group's rollout; what they report has the group's name before it, if they are
        several."""
        reports = [
            (name, as_report(learner.update([rollout], progress)))
            for (name, learner), rollout in zip(self.by_group.items(), rollouts)
        ]
        if len(reports) == 1:
            return reports[0][1]
        metrics = {f"{name}/{metric}": value for name, one in reports for metric, value in one.metrics.items()}
        steps, skipped = (sum(getattr(one, what) for _, one in reports) for what in ("gradient_steps", "skipped"))
        return UpdateReport(metrics, steps, skipped)

    def change(self, **settings: Any) -> None:
        """Other settings for all of them from here on."""
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
        """(group → what `mv.load` takes, without env, algorithm and torch; group → why there is None instead)."""
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
        """Go on from there."""
        for name, saved in self._saved(state):
            self.by_group[name].load_weights(saved["weights"])
            self.by_group[name].load(saved["state"])

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Begin with what the learners of another run have learned."""
        for name, saved in self._saved(state):
            self.by_group[name].load_weights(saved["weights"])

    def _saved(self, state: Mapping[str, Any]) -> list[tuple[str, Any]]:
        learned = learned_in(state)
        if set(learned) != set(self.by_group):
            raise InvalidRequest(
                f"the run has learners for {', '.join(learned)}, and here they are for {', '.join(self.by_group)}"
            )
        return list(learned.items())


def drop_replay(state: Mapping[str, Any]) -> None:
    """Change a session's state such that learners with replay begin with an empty buffer; refused if there are none."""
    states = [saved["state"] for saved in learned_in(state).values()]
    if not any("replay" in one for one in states):
        raise InvalidRequest("without_replay: the algorithm of this run has no replay buffer; leave it out")
    for one in states:
        one |= {"replay": None}


def learned_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """group → weights and state, of a session's state."""
    return {SINGLE_AGENT: state[ONE[0]]} if ONE[0] in state else dict(state[SEVERAL[0]])


def trained_on_scaled_bytes(state: Mapping[str, Any]) -> bool:
    """Whether the weights in a session's state were learned from bytes scaled to [0, 1]."""
    return bool(state.get(SCALED_BYTES, False))


def policies_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """group → the policy that the run holds, or None; of a session's state."""
    if ONE[0] in state:
        return {SINGLE_AGENT: state[ONE[1]]}
    return dict(state[SEVERAL[1]])


def _seed_of(seed: int, number: int) -> int:
    """The first learner has the run's; others would begin with equal weights from it."""
    return seed if not number else int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def as_report(found: Any) -> UpdateReport:
    """What an update returned; a dict is taken for its metrics."""
    if isinstance(found, UpdateReport):
        return found
    if isinstance(found, Mapping) or found is None:
        return UpdateReport(dict(found or {}), 1)
    raise InvalidRequest(f"update() returned {found!r}: expected an UpdateReport, a dict of metrics, or None")
