"""Trajectories: what an env returned, kept so that nothing in it changes later, and where two of them part."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.env_checks.subject import Stopwatch, WatchedEnv

MISSING = "nothing"


@dataclass(frozen=True, slots=True)
class Frame:
    """What one call returned. A reset has neither reward nor ends."""

    observation: Any
    reward: Any = None
    terminated: Any = None
    truncated: Any = None
    info: Any = None

    @property
    def ended(self) -> bool:
        return bool(self.terminated or self.truncated)


Trajectory = list[Frame]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two trajectories part for the first time, in words."""

    words: str
    in_info_only: bool = False

    def __str__(self) -> str:
        return self.words


# -- taking them -----------------------------------------------------------------------------------------------
def rollout(
    env: WatchedEnv, actions: Sequence[Any], seconds: float | None = None, *, seed: int | None = None
) -> Trajectory:
    """One reset (with the seed), then a step for each action, with a reset after each end, as a vector env does it."""
    watch = None if seconds is None else Stopwatch(seconds)
    frames = [begin(env, seed)]
    for action in actions:
        frames.append(advance(env, action))
        if frames[-1].ended:
            frames.append(begin(env, None))
        if watch is not None and watch.over:
            break
    return frames


def episode(env: WatchedEnv, actions: Sequence[Any], seed: int | None = None) -> Trajectory:
    """One reset, then steps up to the first end or the last action."""
    frames = [begin(env, seed)]
    for action in actions:
        frames.append(advance(env, action))
        if frames[-1].ended:
            break
    return frames


def begin(env: WatchedEnv, seed: int | None) -> Frame:
    observation, info = env.reset() if seed is None else env.reset(seed=seed)
    return Frame(frozen(observation), info=frozen(info))


def advance(env: WatchedEnv, action: Any) -> Frame:
    """One step with a copy of the action: an env may do with it what it likes."""
    observation, reward, terminated, truncated, info = env.step(copy.deepcopy(action))
    return Frame(frozen(observation), frozen(reward), frozen(terminated), frozen(truncated), frozen(info))


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
def difference(one: Trajectory, other: Trajectory) -> Difference | None:
    """Where two trajectories part: in what an agent sees first of all, else in the infos; None if nowhere."""
    in_info: Difference | None = None
    step = 0
    for a, b in zip(one, other):
        step += a.reward is not None
        when = f"at step {step}" if step else "after reset"
        for name in ("observation", "reward", "terminated", "truncated"):
            for words in parts(getattr(a, name), getattr(b, name), name):
                return Difference(f"{when}: {words}")
        if in_info is None:
            infos = parts(_without_clock(a.info), _without_clock(b.info), "info")
            in_info = next((Difference(f"{when}: {words}", True) for words in infos), None)
    return in_info


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
