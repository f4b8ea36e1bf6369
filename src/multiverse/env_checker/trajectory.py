"""Trajectories: copies of the results of an env, and the first difference between two of them."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.env_checker.subject import Stopwatch, WatchedEnv

MISSING = "nothing"


@dataclass(frozen=True, slots=True)
class Frame:
    """Result of one call. A reset has neither action nor reward nor ends."""

    observation: Any
    reward: Any = None
    terminated: Any = None
    truncated: Any = None
    info: Any = None
    action: Any = None  # as the step left it
    over: bool | None = None  # with several agents: none is left

    @property
    def ended(self) -> bool:
        return bool(self.terminated or self.truncated) if self.over is None else self.over

    def frozen(self) -> Frame:
        """Return a copy of the results, without the action."""
        returned = (self.observation, self.reward, self.terminated, self.truncated, self.info)
        observation, reward, terminated, truncated, info = map(frozen, returned)
        return Frame(observation, reward, terminated, truncated, info, over=self.over)


Trajectory = list[Frame]
Actions = Sequence[Any]


# -- recording -------------------------------------------------------------------------------------------------
def calls(env: WatchedEnv, actions: Actions, seconds: float = math.inf, *, seed: int | None = None) -> Iterator[Frame]:
    """Yield one reset (with the seed), then a step for each action, with a reset after each end, as in a vector env.

    Each frame holds the very objects that the env returned.
    """
    watch = Stopwatch(seconds)
    yield begin(env, seed)
    for action in actions:
        frame = advance(env, action)
        yield frame
        if frame.ended:
            yield begin(env)
        if watch.over:
            return


def rollout(env: WatchedEnv, actions: Actions, seconds: float = math.inf, *, seed: int | None = None) -> Trajectory:
    """Return copies of all `calls`."""
    return [frame.frozen() for frame in calls(env, actions, seconds, seed=seed)]


def episode(env: WatchedEnv, actions: Actions, seconds: float = math.inf, *, seed: int | None = None) -> Trajectory:
    """Return copies of the `calls` up to the first end."""
    frames = []
    for frame in calls(env, actions, seconds, seed=seed):
        frames.append(frame.frozen())
        if frame.ended:
            break
    return frames


def begin(env: WatchedEnv, seed: int | None = None) -> Frame:
    """Reset the env."""
    observation, info = env.reset() if seed is None else env.reset(seed=seed)
    return Frame(observation, info=info)


def advance(env: WatchedEnv, action: Any) -> Frame:
    """Step with a copy of the action, which the env may change."""
    given = copy.deepcopy(action)
    observation, reward, terminated, truncated, info = env.step(given)
    return Frame(observation, reward, terminated, truncated, info, given, getattr(env.env, "over", None))


def steps_in(trajectory: Trajectory) -> int:
    """Return the number of steps."""
    return sum(frame.reward is not None for frame in trajectory)


def frozen(value: Any) -> Any:
    """Return a deep copy; objects other than numbers, texts, arrays and collections are replaced by their type."""
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(frozen(item) for item in value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    if value is None or isinstance(value, str | bytes | numbers.Number | np.generic):
        return value
    if hasattr(value, "__array__") and not isinstance(value, np.ndarray):  # a tensor
        return np.array(value)
    return type(value)


# -- comparing -------------------------------------------------------------------------------------------------
def difference(one: Trajectory, other: Trajectory, of_infos: bool = False) -> str:
    """Describe the first difference in the results of steps (`of_infos`: in the infos); '' if there is none."""
    names = ("info",) if of_infos else ("observation", "reward", "terminated", "truncated")
    step = 0
    for a, b in zip(one, other):
        step += a.reward is not None
        for name in names:
            values = [getattr(frame, name) for frame in (a, b)]
            first, second = map(_without_clock, values) if of_infos else values
            for words in differences(first, second, name):
                return f"at step {step}: {words}" if step else f"after reset: {words}"
    return ""


def _without_clock(info: Any) -> Any:
    """Remove info["episode"]["t"], the seconds that Gymnasium's RecordEpisodeStatistics adds."""
    if isinstance(info, dict) and isinstance(info.get("episode"), dict):
        return {**info, "episode": {key: value for key, value in info["episode"].items() if key != "t"}}
    return info


def differences(one: Any, other: Any, name: str) -> Iterator[str]:
    """Yield descriptions of where two values are not equal bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from differences(one.get(key, MISSING), other.get(key, MISSING), f"{name}[{key!r}]")
    elif isinstance(one, tuple) and isinstance(other, tuple):
        if len(one) != len(other):
            yield f"{name} has {len(one)} items, then {len(other)}"
        for index, (a, b) in enumerate(zip(one, other)):
            yield from differences(a, b, f"{name}[{index}]")
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if not _same_bits(one, other):
            yield f"{name}{_array_difference(one, other)}"
    elif isinstance(one, np.generic | np.ndarray | numbers.Number) or isinstance(other, np.ndarray):
        if not _same_bits(np.asarray(one), np.asarray(other)):
            yield f"{name} is {shortened(one)}, then {shortened(other)}"
    elif one != other:
        yield f"{name} is {shortened(one)}, then {shortened(other)}"


def _array_difference(one: Any, other: Any) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f" is {one.dtype}{list(one.shape)}, then {other.dtype}{list(other.shape)}"
    unequal = np.argwhere(one != other) if one.size else np.empty((0, 0))
    if not len(unequal):  # 0.0 and -0.0, or other kinds of NaN
        return " differs in its bits"
    index = tuple(int(i) for i in unequal[0])
    at = f"{list(index)}" if index else ""
    return f"{at} is {one[index]!s}, then {other[index]!s} ({len(unequal)} of {one.size} values differ)"


def _same_bits(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def shortened(value: Any) -> str:
    """Return the value as text of one line and at most 60 characters."""
    text = repr(value.item() if isinstance(value, np.generic) else value).replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."
