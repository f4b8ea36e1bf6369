"""Checks of spaces, and of the values of a step against them: what is wrong, with the key, the index and the value."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Leaf, Path, leaves
from multiverse.env_checker.catalogue import found
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject


class Misfit(NamedTuple):
    """Something about a value that its space does not allow."""

    code: str
    path: Path
    words: str


def misfits(space: spaces.Space[Any], value: Any, path: Path = ()) -> Iterator[Misfit]:
    """Everything wrong with an observation, leaf by leaf."""
    if isinstance(space, spaces.Dict):
        yield from _in_dict(space, value, path)
    elif isinstance(space, spaces.Tuple):
        yield from _in_tuple(space, value, path)
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield from _in_array(space, value, path)
    elif not _contains(space, value):
        yield Misfit(
            "observation-not-in-space", path, f"{called(path)} is {_short(value)}, which {space} does not hold"
        )


def _in_dict(space: spaces.Dict, value: Any, path: Path) -> Iterator[Misfit]:
    if not isinstance(value, dict):
        words = f"{called(path)} is {type(value).__name__}, its space is a Dict with {_names(space.spaces)}"
        yield Misfit("observation-keys", path, words)
        return
    for key, child in space.spaces.items():
        if key in value:
            yield from misfits(child, value[key], (*path, key))
        else:
            yield Misfit("observation-keys", (*path, key), f"{called(path)} has no key {key!r}; it has {_names(value)}")
    extra = [key for key in value if key not in space.spaces]
    if extra:
        words = f"{called(path)} has {_names(extra)}, which its space does not name"
        yield Misfit("observation-keys-extra", path, words)


def _in_tuple(space: spaces.Tuple[Any], value: Any, path: Path) -> Iterator[Misfit]:
    if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        words = f"{called(path)} is a {type(value).__name__}{size}, its space is a Tuple of {len(space.spaces)}"
        yield Misfit("observation-keys", path, words)
        return
    for position, child in enumerate(space.spaces):
        yield from misfits(child, value[position], (*path, position))


def _in_array(space: Any, value: Any, path: Path) -> Iterator[Misfit]:
    """Shape first, then dtype, then values: what comes later means nothing where the former does not fit."""
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists of unequal lengths
        array = np.asarray(None)
    name = called(path)
    if array.dtype.kind not in "fiub":
        kind = f"{type(space).__name__} {space.dtype}{list(space.shape)}"
        yield Misfit("observation-dtype", path, f"{name} is {_short(value)}, its space is {kind}")
        return
    if array.shape != space.shape:
        yield Misfit("observation-shape", path, f"{name} has shape {array.shape}, its space says {space.shape}")
        return
    if not isinstance(value, np.ndarray) and space.shape != ():
        yield Misfit("observation-type", path, f"{name} is a {type(value).__name__}, not a numpy array")
    elif array.dtype != space.dtype and isinstance(value, np.ndarray | np.generic):
        yield from _dtype(space, array, path)
    yield from _contents(space, array, path)


def _dtype(space: Any, array: Any, path: Path) -> Iterator[Misfit]:
    words = f"{called(path)} is {array.dtype}, its space says {space.dtype}"
    if np.can_cast(array.dtype, space.dtype, casting="safe") or (array.dtype.kind in "iu" and space.dtype.kind in "iu"):
        return  # no value can be lost, or those that would be are out of bounds
    castable = np.can_cast(array.dtype, space.dtype, casting="same_kind")
    yield Misfit("observation-dtype-cast" if castable else "observation-dtype", path, words)


def _contents(space: Any, array: Any, path: Path) -> Iterator[Misfit]:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            finite = np.isfinite(array.astype(space.dtype) if space.dtype.kind == "f" else array)
        if not finite.all():
            yield Misfit("observation-not-finite", path, f"{called(path)}{_at(array, ~finite)}")
            return
    if isinstance(space, spaces.Box):
        outside = (array < space.low) | (array > space.high)
        if outside.any():
            index = np.unravel_index(int(np.argmax(outside)), outside.shape)
            bounds = f"[{space.low[index]}, {space.high[index]}]"
            yield Misfit("observation-out-of-bounds", path, f"{called(path)}{_at(array, outside)}, outside {bounds}")
    elif not _contains(space, array.astype(space.dtype) if space.shape else array[()].astype(space.dtype)):
        yield Misfit(
            "observation-not-in-space", path, f"{called(path)} is {_short(array.tolist())}, its space is {space}"
        )


def _at(array: Any, wrong: Any) -> str:
    """The first wrong value, with its index."""
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    more = f" ({int(wrong.sum())} of {array.size} values)" if array.size > 1 else ""
    return f"{list(index) if index else ''} is {array[index]}{more}"


def _contains(space: spaces.Space[Any], value: Any) -> bool:
    try:
        return bool(space.contains(value))
    except Exception:  # a space that cannot even look at the value does not hold it
        return False


def called(path: Path, what: str = "the observation") -> str:
    """'the observation['camera'][0]' for the leaf at that path."""
    return what + "".join(f"[{key!r}]" for key in path)


def _names(keys: Any) -> str:
    return ", ".join(repr(key) for key in keys) or "no keys"


def _short(value: Any) -> str:
    text = f"{value!r}".replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."


def reward_misfits(reward: Any, of: Path = ()) -> Iterator[Misfit]:
    """What keeps a reward from being learned from; `of`: whose it is."""
    name = called(of, "the reward")
    try:
        number = float(np.asarray(reward).item() if isinstance(reward, np.ndarray) else reward)
    except (TypeError, ValueError):
        yield Misfit("reward-not-number", of, f"{name} is {type(reward).__name__}: {reward!r:.60}")
        return
    if isinstance(reward, str):
        yield Misfit("reward-not-number", of, f"{name} is the text {reward!r}")
    elif getattr(reward, "shape", ()) != ():
        yield Misfit("reward-array", of, f"{name} is an array of shape {reward.shape}: {reward!r:.60}")
    if not math.isfinite(number):
        yield Misfit("reward-not-finite", of, f"{name} is {number}")


def end_misfits(terminated: Any, truncated: Any, of: Path = ()) -> Iterator[Misfit]:
    """What is wrong with the ends of a step; `of`: whose they are."""
    for name, end in (("terminated", terminated), ("truncated", truncated)):
        if isinstance(end, bool | np.bool_):
            continue
        number = isinstance(end, int | float | np.generic) or (isinstance(end, np.ndarray) and end.size == 1)
        code = "end-not-bool-like" if number else "end-not-bool"
        yield Misfit(code, (name, *of), f"{called(of, name)} is {type(end).__name__}: {end!r:.60}")


class Tally:
    """Misfits of many observations: each kind once, with its first occurrence and how often it came."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, Path], str] = {}
        self._count: dict[tuple[str, Path], int] = {}

    def add(self, misfit: Misfit, when: str) -> None:
        key = (misfit.code, misfit.path)
        self._first.setdefault(key, f"{misfit.words}, {when}")
        self._count[key] = self._count.get(key, 0) + 1

    def findings(self, observations: int) -> Iterator[Finding]:
        for (code, path), first in self._first.items():
            times = self._count[(code, path)]
            often = f" ({times} of {observations} observations)" if times > 1 else ""
            yield found(code, first + often)


# -- spaces ----------------------------------------------------------------------------------------------------
NAMES = ("observation_space", "action_space")
SAMPLES = 20
CHANNELS = (1, 3, 4)
SMALLEST_IMAGE = 16
"""Shorter sides than this are some other table of numbers."""


def check_spaces(subject: Subject) -> Iterator[Finding]:
    env = subject.build().env
    missing = [name for name in NAMES if not isinstance(getattr(env, name, None), spaces.Space)]
    for name in missing:
        yield found("space-missing", f"{name} is {getattr(env, name, None)!r}")
    if missing:
        return
    for name in NAMES:
        for leaf in leaves(getattr(env, name)):
            yield from _leaf(name, leaf)
    yield from _samples(env.action_space)
    if subject.settings.from_factory:
        another = subject.build().env
        for name in NAMES:
            one, other = getattr(env, name), getattr(another, name)
            if one != other:
                yield found("spaces-differ", f"{name} is {one}, and {other} in a second env of the same factory")


def _leaf(name: str, leaf: Leaf) -> Iterator[Finding]:
    called = name + "".join(f"[{key!r}]" for key in leaf.path)
    if not leaf.numeric:
        yield found("space-of-objects", f"{called} is {type(leaf.space).__name__}")
    if isinstance(leaf.space, spaces.Box):
        yield from _bounds(called, leaf.space)
        if name == "action_space":
            yield from _unbounded(called, leaf.space)
        else:
            yield from _image(called, leaf.space)
            if leaf.space.dtype == np.float64:
                yield found("space-float64", f"{called} is float64{list(leaf.space.shape)}")


def _bounds(called: str, box: spaces.Box) -> Iterator[Finding]:
    wrong = ~(box.low <= box.high)  # also where one is NaN
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        yield found("space-bounds", f"{called}{list(index)}: low is {box.low[index]}, high is {box.high[index]}")


def _unbounded(called: str, box: spaces.Box) -> Iterator[Finding]:
    open_ended = ~(box.bounded_below & box.bounded_above)
    if open_ended.any():
        index = tuple(int(i) for i in np.argwhere(open_ended)[0])
        yield found("action-unbounded", f"{called}{list(index)} goes from {box.low[index]} to {box.high[index]}")


def _image(called: str, box: spaces.Box) -> Iterator[Finding]:
    if not _looks_like_image(box.shape):
        return
    if box.dtype != np.uint8:
        yield found("image-space", f"{called} looks like an image {box.shape} and is {box.dtype}")
    elif (box.low != 0).any() or (box.high != 255).any():
        bounds = f"{box.low.min()} to {box.high.max()}"
        yield found("image-space", f"{called} looks like an image {box.shape} and goes from {bounds}, not 0 to 255")


def _looks_like_image(shape: tuple[int, ...]) -> bool:
    """Height, width and channels, in this order or with the channels first."""
    if len(shape) != 3:
        return False
    return (shape[2] in CHANNELS and min(shape[:2]) >= SMALLEST_IMAGE) or (
        shape[0] in CHANNELS and min(shape[1:]) >= SMALLEST_IMAGE
    )


def _samples(space: spaces.Space[Any]) -> Iterator[Finding]:
    try:
        space = copy.deepcopy(space)
        space.seed(0)
        for _ in range(SAMPLES):
            action = space.sample()
            if not space.contains(action):
                yield found("action-space-sample", f"its sample {action!r} is not in {space}")
                return
    except Exception as error:  # a space of the user's own
        yield found("action-space-sample", f"seed() or sample() raised {type(error).__name__}: {error}")
