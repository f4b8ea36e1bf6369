"""Capabilities of algorithms, as their classes declare them, and the requirements of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms import ALGORITHMS, algorithm_class
from multiverse.core.env import EnvKind
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Group
from multiverse.policies.features import Features


@dataclass(frozen=True, kw_only=True)
class RunRequirements:
    """The requirements of a run for its algorithm. `kind` and `groups` are empty until the envs are described."""

    settings: Any = None  # the algorithm's Config
    asynchronous: bool = False  # rollouts may come from an older policy
    auto_num_envs: bool = False  # num_envs="auto": the number of envs changes during the run
    network: str = ""  # name of a network of the user
    small_images: bool = False  # small images are images too, as for a network of the user
    device: str = "auto"
    env_steps: int | None = None  # budget
    env: str = "the env"
    kind: EnvKind | None = None
    groups: tuple[Group, ...] = ()  # agents that share a learner

    @property
    def has_teams(self) -> bool:
        """Whether several agents of the same env share a learner."""
        return any(len(group.agents) > 1 for group in self.groups)

    @property
    def has_images(self) -> bool:
        """Whether there are observations that are images, which networks with convolutions process."""
        features = (
            Features(group.observation_space, group.action_space, small_images=self.small_images)
            for group in self.groups
        )
        return any(each.images for each in features)


class Capabilities:
    """Capabilities of an algorithm: flags, and `supports` for everything that depends on the settings.

    The values here hold for algorithms of the user that declare nothing.
    """

    asynchronous = False
    """Learns from rollouts of an older policy. The trainer sets `max_lag`: the number of updates it may be behind."""
    auto_num_envs = False
    """Supports a number of envs that changes: `set_slots(slots)` is called before each change."""
    in_turn = True
    """Supports envs whose agents act in turn."""
    from_replay = False
    """Learns from a replay buffer, off-policy."""
    keeps_masks = False
    """Needs the action masks after a step too: `keep_masks(actions)` is called before the first rollout."""
    images = True
    """Learns from images."""
    recurrent_images = False
    """Supports images and a GPU also with a memory."""
    has_ratio = False
    """Its loss has the probability ratio of the present policy to the policy that acted (`log_probs`)."""
    actions: tuple[type[spaces.Space[Any]], ...] = (spaces.Space,)
    """Kinds of action spaces that are supported."""
    bounded_actions = False
    """Of Box action spaces, only those of floats with finite bounds are supported."""
    fixed: frozenset[str] = frozenset()
    """Names of settings that cannot change during a run, such as those of the networks."""

    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        """Return why a run is not supported, with what to do instead; None if it is supported.

        An override adds its reasons: `return super().supports(run) or ...`.
        """
        name = cls.title()
        if run.asynchronous and not cls.asynchronous:
            why = "does not correct for rollouts of an older policy"
            if cls.from_replay:
                why = "learns from replay, which is of older policies anyway"
            able = algorithms_that(lambda kind: kind.asynchronous)
            return f"asynchronous: {name} {why}: leave it out, or use {able}"
        if run.auto_num_envs and not cls.auto_num_envs:
            able = algorithms_that(lambda kind: kind.auto_num_envs)
            why = "keeps data of each env (as a replay buffer does), so that its number of envs cannot change"
            if not cls.from_replay and not hasattr(getattr(cls, "kind", cls), "set_slots"):
                why = "has no method set_slots(slots), which is called before the number of envs changes"
            return f"num_envs='auto': {name} {why}: give a number, or use {able}"
        if run.network and not cls.takes_network():
            able = algorithms_that(lambda kind: kind.takes_network())
            why = "" if name in ALGORITHMS else ", because its constructor has no argument `network`"
            return f"network={run.network}: {name} does not take a network{why}; use {able}"
        if run.kind == "turns" and not cls.in_turn:
            why = "learns from replay" if cls.from_replay else "learns from agents that act at once"
            able = algorithms_that(lambda kind: kind.in_turn)
            return f"{name} {why}, and agents of {run.env} act in turn: use {able}"
        for space in (group.action_space for group in run.groups):
            if not cls.acts_in(space):
                able = algorithms_that(lambda kind, space=space: kind.acts_in(space))  # type: ignore[misc]
                instead = f"; use {able}" if able else ""
                return f"{name}: actions must be {cls._actions_in_words()}, and these are {space}{instead}"
        if not cls.images and run.has_images:
            able = algorithms_that(lambda kind: kind.images)
            return f"{name} does not learn from images: flatten them, or use {able}"
        return None

    @classmethod
    def cautions(cls, run: RunRequirements) -> list[str]:
        """Return warnings about a run that is supported and probably not what the user wants."""
        return []

    @classmethod
    def whole_episodes(cls, settings: Any) -> bool:
        """Whether a rollout has one whole episode of every env, with these settings."""
        return False

    @classmethod
    def sees_state(cls, settings: Any) -> bool:
        """Whether it learns from the env's `state()`, with these settings."""
        return False

    @classmethod
    def boards_through(cls, settings: Any) -> str:
        """Describe how boards and small images reach the dense layers, with these settings."""
        return "flattened"

    @classmethod
    def takes_network(cls) -> bool:
        """Whether its networks can start with a network of the user: its constructor takes `network`."""
        return takes_argument(cls, "network")

    @classmethod
    def acts_in(cls, space: spaces.Space[Any]) -> bool:
        """Whether this action space is supported."""
        if cls.bounded_actions and isinstance(space, spaces.Box):
            return bool(np.issubdtype(space.dtype, np.floating)) and space.is_bounded()
        return isinstance(space, cls.actions)

    @classmethod
    def title(cls) -> str:
        """Return its name in the registry, or that of the class."""
        path = f"{cls.__module__}:{cls.__qualname__}"
        return next((name for name, registered in ALGORITHMS.items() if registered == path), cls.__name__)

    @classmethod
    def _actions_in_words(cls) -> str:
        bounds = " of floats with bounds on every side" if cls.bounded_actions else ""
        return joined(["a Box" if kind is spaces.Box else kind.__name__ for kind in cls.actions], "or") + bounds


FLAGS = tuple(
    name for name, value in vars(Capabilities).items() if name[0] != "_" and not isinstance(value, classmethod)
)
"""Names of capabilities that a class declares by a value."""
ANSWERS = ("cautions", "whole_episodes", "sees_state", "boards_through")
"""Names of capabilities that a class declares by a class method, besides `supports`."""


class _UserCapabilities(Capabilities):
    """Capabilities of an algorithm that is a function, or a class that does not derive from ours."""

    kind: Any

    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        own = getattr(cls.kind, "supports", None)
        return super().supports(run) or (None if own is None else _checked_reason(cls.kind, own, run))

    @classmethod
    def takes_network(cls) -> bool:
        return takes_argument(cls.kind, "network")


def capabilities_of(kind: Any) -> type[Capabilities]:
    """Return the capabilities that a class declares, with the defaults of `Capabilities` for the rest.

    A class of the user need not derive from ours. Few capabilities of a function that creates algorithms are known
    before it was called: ask for those of the class of an algorithm that it returned.
    """
    if isinstance(kind, type) and issubclass(kind, Capabilities):
        return kind
    is_function = not isinstance(kind, type)
    declared = {
        "asynchronous": is_function,
        "auto_num_envs": is_function or hasattr(kind, "set_slots"),
        "keeps_masks": hasattr(kind, "keep_masks"),
    }
    declared |= {name: getattr(kind, name) for name in FLAGS if hasattr(kind, name)}
    if not is_function and not hasattr(kind, "set_slots"):  # also where the class declares it
        declared["auto_num_envs"] = False
    methods = {name: getattr(kind, name) for name in ANSWERS if hasattr(kind, name)} | {"kind": kind}
    static = {name: staticmethod(value) for name, value in methods.items()}
    return type(_name_of(kind), (_UserCapabilities,), {**declared, **static})


def settings_of(algorithm: Any, default: Any = None) -> Any:
    """Return the present settings of an algorithm; `default` if it has no attribute `config`."""
    return getattr(algorithm, "config", default)


def refuse_unsupported(kind: Any, run: RunRequirements) -> None:
    """Raise `InvalidRequest` with the reason if this class or function does not support a run."""
    if reason := _checked_reason(kind, capabilities_of(kind).supports, run):
        raise InvalidRequest(reason)


def _checked_reason(kind: Any, supports: Callable[..., Any], run: RunRequirements) -> str | None:
    """Return the result of `supports`; refuse a method that is not a class method, or an invalid result."""
    try:
        inspect.signature(supports).bind(run)
    except TypeError as error:
        raise InvalidRequest(
            f"{_name_of(kind)}.supports cannot be called with (run): {error}; it is called before an algorithm is "
            "created, so declare it as a @classmethod"
        ) from None
    reason = supports(run)
    if not isinstance(reason, str | None):
        raise InvalidRequest(
            f"{_name_of(kind)}.supports returned {reason!r}: expected the reason for a refusal as text, or None"
        )
    return reason


def _name_of(kind: Any) -> str:
    return str(getattr(kind, "__name__", type(kind).__name__))


def algorithms_that(can: Callable[[type[Capabilities]], bool], last: str = "or") -> str:
    """Return the names of the registered algorithms for which this holds: "ppo, a2c or taac"."""
    return joined([name for name in ALGORITHMS if can(algorithm_class(name))], last)


def joined(words: list[str], last: str) -> str:
    """Join words to a list in a sentence: "a, b and c"."""
    return f" {last} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def takes_argument(kind: Any, name: str) -> bool:
    """Whether a class or function that creates algorithms takes an argument of this name."""
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError:  # functions in C have no signature
        return False
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
