"""Trajectories: what an env returned, kept so that nothing in it changes later, and where two of them part."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.env_checker.subject import Stopwatch, WatchedEnv

MISSING = "nothing"


@dataclass(frozen=True, slots=True)
class Frame:
    """What one call returned. A reset has neither action nor reward nor ends."""

    observation: Any
    reward: Any = None
    terminated: Any = None
    truncated: Any = None
    info: Any = None
    action: Any = None  # as the step left it
    over: bool | None = None  # of several agents: nobody is left

    @property
    def ended(self) -> bool:
        return bool(self.terminated or self.truncated) if self.over is None else self.over

    def frozen(self) -> Frame:
        seen, reward, info = frozen(self.observation), frozen(self.reward), frozen(self.info)
        return Frame(seen, reward, frozen(self.terminated), frozen(self.truncated), info, over=self.over)


Trajectory = list[Frame]
Actions = Sequence[Any]


# -- taking them -----------------------------------------------------------------------------------------------
def calls(env: WatchedEnv, actions: Actions, seconds: float = math.inf, *, seed: int | None = None) -> Iterator[Frame]:
    """One reset (with the seed), then a step for each action, with a reset after each end, as a vector env does it.

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
    """All `calls`, kept."""
    return [frame.frozen() for frame in calls(env, actions, seconds, seed=seed)]


def episode(env: WatchedEnv, actions: Actions, seconds: float = math.inf, *, seed: int | None = None) -> Trajectory:
    """Those of them up to the first end."""
    frames = []
    for frame in calls(env, actions, seconds, seed=seed):
        frames.append(frame.frozen())
        if frame.ended:
            break
    return frames


def begin(env: WatchedEnv, seed: int | None = None) -> Frame:
    observation, info = env.reset() if seed is None else env.reset(seed=seed)
    return Frame(observation, info=info)


def advance(env: WatchedEnv, action: Any) -> Frame:
    """One step with a copy of the action: an env may do with it what it likes."""
    given = copy.deepcopy(action)
    observation, reward, terminated, truncated, info = env.step(given)
    return Frame(observation, reward, terminated, truncated, info, given, getattr(env.env, "over", None))


def steps_in(trajectory: Trajectory) -> int:
    return sum(frame.reward is not None for frame in trajectory)


def frozen(value: Any) -> Any:
    """A copy that nothing changes any more; of what is neither number, text, array nor a collection, its type."""
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


# -- comparing them --------------------------------------------------------------------------------------------
def apart(one: Trajectory, other: Trajectory) -> str:
    """Where what an agent sees parts for the first time, in words; '' if nowhere."""
    names = ("observation", "reward", "terminated", "truncated")
    return _apart(one, other, lambda frame: {name: getattr(frame, name) for name in names})


def infos_apart(one: Trajectory, other: Trajectory) -> str:
    """The same of the infos."""
    return _apart(one, other, lambda frame: {"info": _without_clock(frame.info)})


def _apart(one: Trajectory, other: Trajectory, values: Callable[[Frame], dict[str, Any]]) -> str:
    step = 0
    for a, b in zip(one, other):
        step += a.reward is not None
        theirs = values(b)
        for name, value in values(a).items():
            for words in parts(value, theirs[name], name):
                return f"at step {step}: {words}" if step else f"after reset: {words}"
    return ""


def _without_clock(info: Any) -> Any:
    """Without info["episode"]["t"], where Gymnasium's RecordEpisodeStatistics tells the seconds since it was made."""
    if isinstance(info, dict) and isinstance(info.get("episode"), dict) and "t" in info["episode"]:
        return {**info, "episode": {key: value for key, value in info["episode"].items() if key != "t"}}
    return info


def parts(one: Any, other: Any, name: str) -> Iterator[str]:
    """Where two values are not the same bits, in words."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from parts(one.get(key, MISSING), other.get(key, MISSING), f"{name}[{key!r}]")
    elif isinstance(one, tuple) and isinstance(other, tuple):
        if len(one) != len(other):
            yield f"{name} has {len(one)} items, then {len(other)}"
        for index, (a, b) in enumerate(zip(one, other)):
            yield from parts(a, b, f"{name}[{index}]")
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        yield from _arrays(one, other, name)
    elif isinstance(one, np.generic | np.ndarray | numbers.Number) or isinstance(other, np.ndarray):
        if not _same_bits(np.asarray(one), np.asarray(other)):
            yield f"{name} is {_short(one)}, then {_short(other)}"
    elif one != other:
        yield f"{name} is {_short(one)}, then {_short(other)}"


def _arrays(one: Any, other: Any, name: str) -> Iterator[str]:
    if _same_bits(one, other):
        return
    if one.shape != other.shape or one.dtype != other.dtype:
        yield f"{name} is {one.dtype}{list(one.shape)}, then {other.dtype}{list(other.shape)}"
        return
    unequal = np.argwhere(one != other) if one.size else np.empty((0, 0))
    if not len(unequal):  # 0.0 and -0.0, or other kinds of NaN
        yield f"{name} differs in its bits"
        return
    index = tuple(int(i) for i in unequal[0])
    at = f"{list(index)}" if index else ""
    yield f"{name}{at} is {one[index]!s}, then {other[index]!s} ({len(unequal)} of {one.size} values differ)"


def _same_bits(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
