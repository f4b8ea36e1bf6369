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

    settings: Any = None  # of the algorithm: its Config
    asynchronous: bool = False  # rollouts may be of an older policy
    auto_num_envs: bool = False  # num_envs="auto": the number of envs changes during the run
    network: str = ""  # name of a network of the user
    small_images: bool = False  # which such a network sees as images too
    device: str = "auto"
    env_steps: int | None = None  # budget
    env: str = "the env"
    kind: EnvKind | None = None
    groups: tuple[Group, ...] = ()  # agents that share a learner

    @property
    def has_teams(self) -> bool:
        """Whether some learner has several agents of the same env."""
        return any(len(group.agents) > 1 for group in self.groups)

    @property
    def has_images(self) -> bool:
        """Whether some observations are images, which networks see through convolutions."""
        spaces_of = [(group.observation_space, group.action_space) for group in self.groups]
        return any(Features(*both, small_images=self.small_images).images for both in spaces_of)


class Capabilities:
    """Capabilities of an algorithm: flags, and `supports` for everything that depends on the settings.

    The values here hold for algorithms of the user that declare nothing.
    """

    asynchronous = False
    """Learns from rollouts of an older policy. The trainer sets `max_lag`: the updates that it may be behind."""
    auto_num_envs = False
    """Learns while the number of envs changes: `set_slots(slots)` is called before each change."""
    in_turn = True
    """Learns where agents act in turn."""
    from_replay = False
    """Learns from steps that it keeps, whatever policy took them."""
    keeps_masks = False
    """Needs the action masks after a step too: `keep_masks(actions)` is called before the first rollout."""
    images = True
    """Learns from images."""
    recurrent_images = False
    """Learns from images, and on a GPU, with a memory too."""
    has_ratio = False
    """Its loss has the ratio of what is likely now to what was likely to the policy that acted, `log_probs`."""
    actions: tuple[type[spaces.Space[Any]], ...] = (spaces.Space,)
    """Kinds of action spaces that it acts in."""
    bounded_actions = False
    """Acts in a Box only if that has floats with bounds on every side."""
    fixed: frozenset[str] = frozenset()
    """Settings that make up the networks and cannot change while they learn."""

    @classmethod
    def supports(cls, run: RunRequirements) -> str | None:
        """Return the reason why it cannot do what a run asks of it, with what to do instead; None if it can.

        An override adds its reasons: `return super().supports(run) or ...`.
        """
        name = cls.title()
        if run.asynchronous and not cls.asynchronous:
            why = "does not correct for rollouts of an older policy"
            if cls.from_replay:
                why = "learns from replay, which is of older policies anyway"
            able = algorithms_that(lambda one: one.asynchronous)
            return f"asynchronous: {name} {why}: leave it out, or use {able}"
        if run.auto_num_envs and not cls.auto_num_envs:
            able = algorithms_that(lambda one: one.auto_num_envs)
            return (
                f"num_envs='auto': {name} keeps something for every env (as a replay buffer does), and its number of "
                f"envs cannot change: give a number, or use {able}"
            )
        if run.network and not cls.takes_network():
            able = algorithms_that(lambda one: one.takes_network())
            why = "" if name in ALGORITHMS else ", because its constructor has no argument `network`"
            return f"network={run.network}: {name} does not take a network{why}; use {able}"
        if run.kind == "turns" and not cls.in_turn:
            why = "learns from replay" if cls.from_replay else "learns from agents that act at once"
            able = algorithms_that(lambda one: one.in_turn)
            return f"{name} {why}, and agents of {run.env} act in turn: use {able}"
        for space in (group.action_space for group in run.groups):
            if not cls.acts_in(space):
                able = algorithms_that(lambda one, space=space: one.acts_in(space))  # type: ignore[misc]
                instead = f"; use {able}" if able else ""
                return f"{name}: actions must be {cls._actions_in_words()}, and these are {space}{instead}"
        if not cls.images and run.has_images:
            able = algorithms_that(lambda one: one.images)
            return f"{name} does not learn from images: flatten them, or use {able}"
        return None

    @classmethod
    def cautions(cls, run: RunRequirements) -> list[str]:
        """Return warnings about a run that is supported and yet hardly what the user meant."""
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
        """Whether its networks may begin with one of the user: its constructor takes `network`."""
        return takes_argument(cls, "network")

    @classmethod
    def acts_in(cls, space: spaces.Space[Any]) -> bool:
        """Whether it can act in this space."""
        if cls.bounded_actions and isinstance(space, spaces.Box):
            return bool(np.issubdtype(space.dtype, np.floating)) and space.is_bounded()
        return isinstance(space, cls.actions)

    @classmethod
    def title(cls) -> str:
        """Its name: the one in the registry, or that of the class."""
        path = f"{cls.__module__}:{cls.__qualname__}"
        return next((name for name, registered in ALGORITHMS.items() if registered == path), cls.__name__)

    @classmethod
    def _actions_in_words(cls) -> str:
        bounds = " of floats with bounds on every side" if cls.bounded_actions else ""
        return joined(["a Box" if kind is spaces.Box else kind.__name__ for kind in cls.actions], "or") + bounds


FLAGS = tuple(
    name for name, value in vars(Capabilities).items() if name[0] != "_" and not isinstance(value, classmethod)
)
"""Names of what a class declares by a value."""
ANSWERS = ("cautions", "whole_episodes", "sees_state", "boards_through")
"""Names of what a class declares by a class method, beside `supports`."""


class _OfTheUser(Capabilities):
    """A class that does not derive from ours, or a function, as an algorithm."""

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

    A class of the user need not derive from ours. Little is known of a function that makes algorithms: ask the class of
    an algorithm that it has made.
    """
    if isinstance(kind, type) and issubclass(kind, Capabilities):
        return kind
    made_later = not isinstance(kind, type)
    declared = {
        "asynchronous": made_later,
        "auto_num_envs": made_later or hasattr(kind, "set_slots"),
        "keeps_masks": hasattr(kind, "keep_masks"),
    }
    declared |= {name: getattr(kind, name) for name in FLAGS if hasattr(kind, name)}
    answers = {name: getattr(kind, name) for name in ANSWERS if hasattr(kind, name)} | {"kind": kind}
    static = {name: staticmethod(value) for name, value in answers.items()}
    return type(_name_of(kind), (_OfTheUser,), {**declared, **static})


def settings_of(algorithm: Any, default: Any = None) -> Any:
    """The settings that an algorithm has now; `default` if it does not hold them as `config`."""
    return getattr(algorithm, "config", default)


def refuse_unsupported(kind: Any, run: RunRequirements) -> None:
    """Raise `InvalidRequest` with the reason if this class or function does not support a run."""
    if reason := _checked_reason(kind, capabilities_of(kind).supports, run):
        raise InvalidRequest(reason)


def _checked_reason(kind: Any, supports: Callable[..., Any], run: RunRequirements) -> str | None:
    """Return the reason that `supports` gives; a method that is not a class method, or another result, is an error."""
    try:
        inspect.signature(supports).bind(run)
    except TypeError as error:
        raise InvalidRequest(
            f"{_name_of(kind)}.supports cannot be called with (run): {error}; it is asked before an algorithm is made, "
            "so declare it as a @classmethod"
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
    """The registered algorithms for which this holds, as words: "ppo, a2c or taac"."""
    return joined([name for name in ALGORITHMS if can(algorithm_class(name))], last)


def joined(words: list[str], last: str) -> str:
    """Words as a list in a sentence: "a, b and c"."""
    return f" {last} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def takes_argument(kind: Any, name: str) -> bool:
    """Whether what makes an algorithm takes an argument of this name."""
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError:  # one in C does not say
        return False
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
