"""Checks of spaces, and of values against their spaces; findings name the key, the index and the value."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Leaf, Path, leaves
from multiverse.env_checker.catalogue import make_finding
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject
from multiverse.env_checker.trajectory import shortened

NAMES = ("observation_space", "action_space")
SAMPLES = 20
CHANNELS = (1, 3, 4)
SMALLEST_IMAGE = 16
"""Shortest side of an image; arrays with shorter sides are not taken for images."""


# -- spaces ----------------------------------------------------------------------------------------------------
def check_spaces(subject: Subject) -> Iterator[Finding]:
    """Check that the spaces exist, can be batched and fit the assumptions of learners."""
    env = subject.build().env
    missing = [name for name in NAMES if not isinstance(getattr(env, name, None), spaces.Space)]
    for name in missing:
        yield make_finding("space-missing", f"{name} is {getattr(env, name, None)!r}")
    if missing:
        return
    for name in NAMES:
        for leaf in leaves(getattr(env, name)):
            yield from _leaf_findings(leaf, name_of(leaf.path, name), acting=name == "action_space")
    yield from _sample_findings(env.action_space)
    if subject.settings.from_factory:
        second = subject.build().env
        for name in NAMES:
            space, other = getattr(env, name), getattr(second, name)
            if space != other:
                evidence = f"{name} is {space}, and {other} in a second env of the same factory"
                yield make_finding("spaces-differ", evidence)


def _leaf_findings(leaf: Leaf, name: str, acting: bool) -> Iterator[Finding]:
    if not leaf.numeric:
        yield make_finding("space-of-objects", f"{name} is {type(leaf.space).__name__}")
    box = leaf.space
    if not isinstance(box, spaces.Box):
        return
    for index in _indices(~(box.low <= box.high)):  # also where one is NaN
        yield make_finding("space-bounds", f"{name}{list(index)}: low is {box.low[index]}, high is {box.high[index]}")
    if acting:
        for index in _indices(~(box.bounded_below & box.bounded_above)):
            bounds = f"from {box.low[index]} to {box.high[index]}"
            yield make_finding("action-unbounded", f"{name}{list(index)} is {bounds}")
        return
    if _looks_like_image(box.shape):
        image, low, high = f"{name} looks like an image {box.shape}", box.low, box.high
        if box.dtype != np.uint8:
            yield make_finding("image-space", f"{image} and is {box.dtype}")
        elif (low != 0).any() or (high != 255).any():
            yield make_finding("image-space", f"{image} with values from {low.min()} to {high.max()}, not 0 to 255")
    if box.dtype == np.float64:
        yield make_finding("space-float64", f"{name} is float64{list(box.shape)}")


def _indices(wrong: Any) -> Iterator[tuple[int, ...]]:
    """Yield the index of the first wrong value, if there is one."""
    if wrong.any():
        yield tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))


def _looks_like_image(shape: tuple[int, ...]) -> bool:
    """Return whether this is the shape of an image, with the channels last or first."""
    layouts = [(shape[2], shape[:2]), (shape[0], shape[1:])] if len(shape) == 3 else []
    return any(channels in CHANNELS and min(sides) >= SMALLEST_IMAGE for channels, sides in layouts)


def _sample_findings(space: spaces.Space[Any]) -> Iterator[Finding]:
    try:
        space = copy.deepcopy(space)
        space.seed(0)
        for _ in range(SAMPLES):
            action = space.sample()
            if not space.contains(action):
                yield make_finding("action-space-sample", f"its sample {action!r} is not in {space}")
                return
    except Exception as error:  # a space of the user's own
        yield make_finding("action-space-sample", f"seed() or sample() raised {type(error).__name__}: {error}")


# -- values ----------------------------------------------------------------------------------------------------
class Misfit(NamedTuple):
    """A property of a value that its space does not allow."""

    code: str
    path: Path
    words: str


def misfits(space: spaces.Space[Any], value: Any, path: Path = ()) -> Iterator[Misfit]:
    """Yield all misfits of an observation, leaf by leaf."""
    if isinstance(space, spaces.Dict):
        yield from _dict_misfits(space, value, path)
    elif isinstance(space, spaces.Tuple):
        yield from _tuple_misfits(space, value, path)
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield from _array_misfits(space, value, path)
    elif not _contains(space, value):
        words = f"{name_of(path)} is {shortened(value)}, which {space} does not contain"
        yield Misfit("observation-not-in-space", path, words)


def _dict_misfits(space: spaces.Dict, value: Any, path: Path) -> Iterator[Misfit]:
    if not isinstance(value, dict):
        words = f"{name_of(path)} is {type(value).__name__}, its space is a Dict with {_keys(space.spaces)}"
        yield Misfit("observation-keys", path, words)
        return
    for key, child in space.spaces.items():
        if key in value:
            yield from misfits(child, value[key], (*path, key))
        else:
            words = f"{name_of(path)} has no key {key!r}; it has {_keys(value)}"
            yield Misfit("observation-keys", (*path, key), words)
    extra = [key for key in value if key not in space.spaces]
    if extra:
        words = f"{name_of(path)} has {_keys(extra)}, which its space does not have"
        yield Misfit("observation-keys-extra", path, words)


def _tuple_misfits(space: spaces.Tuple[Any], value: Any, path: Path) -> Iterator[Misfit]:
    if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        words = f"{name_of(path)} is a {type(value).__name__}{size}, its space is a Tuple of {len(space.spaces)}"
        yield Misfit("observation-keys", path, words)
        return
    for position, child in enumerate(space.spaces):
        yield from misfits(child, value[position], (*path, position))


def _array_misfits(space: Any, value: Any, path: Path) -> Iterator[Misfit]:
    """Compare the shape, then the dtype, then the values, each only if the former fits."""
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists of unequal lengths
        array = np.asarray(None)
    name = name_of(path)
    if array.dtype.kind not in "fiub":
        kind = f"{type(space).__name__} {space.dtype}{list(space.shape)}"
        yield Misfit("observation-dtype", path, f"{name} is {shortened(value)}, its space is {kind}")
        return
    if array.shape != space.shape:
        yield Misfit("observation-shape", path, f"{name} has shape {array.shape}, its space says {space.shape}")
        return
    if not isinstance(value, np.ndarray) and space.shape != ():
        yield Misfit("observation-type", path, f"{name} is a {type(value).__name__}, not a numpy array")
    elif isinstance(value, np.ndarray | np.generic) and _loses_values(array.dtype, space.dtype):
        castable = np.can_cast(array.dtype, space.dtype, casting="same_kind")
        code = "observation-dtype-cast" if castable else "observation-dtype"
        yield Misfit(code, path, f"{name} is {array.dtype}, its space says {space.dtype}")
    yield from _content_misfits(space, array, path)


def _loses_values(dtype: Any, declared: Any) -> bool:
    """Return whether a cast may change values. Integers that change are out of bounds, which is another finding."""
    return not np.can_cast(dtype, declared, casting="safe") and not (dtype.kind in "iu" and declared.kind in "iu")


def _content_misfits(space: Any, array: Any, path: Path) -> Iterator[Misfit]:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            finite = np.isfinite(array.astype(space.dtype) if space.dtype.kind == "f" else array)
        if not finite.all():
            yield Misfit("observation-not-finite", path, f"{name_of(path)}{_first(array, ~finite)}")
            return
    if isinstance(space, spaces.Box):
        outside = (array < space.low) | (array > space.high)
        for index in _indices(outside):
            words = f"{name_of(path)}{_first(array, outside)}, outside [{space.low[index]}, {space.high[index]}]"
            yield Misfit("observation-out-of-bounds", path, words)
    elif not _contains(space, array.astype(space.dtype) if space.shape else array[()].astype(space.dtype)):
        words = f"{name_of(path)} is {shortened(array.tolist())}, its space is {space}"
        yield Misfit("observation-not-in-space", path, words)


def _first(array: Any, wrong: Any) -> str:
    """Describe the first wrong value, with its index."""
    (index,) = _indices(wrong)
    more = f" ({int(wrong.sum())} of {array.size} values)" if array.size > 1 else ""
    return f"{list(index) if index else ''} is {array[index]}{more}"


def _contains(space: spaces.Space[Any], value: Any) -> bool:
    try:
        return bool(space.contains(value))
    except Exception:  # a space that cannot examine the value does not contain it
        return False


def name_of(path: Path, whole: str = "the observation") -> str:
    """Return a name for the leaf at this path: "the observation['camera'][0]"."""
    return whole + "".join(f"[{key!r}]" for key in path)


def _keys(keys: Any) -> str:
    return ", ".join(repr(key) for key in keys) or "no keys"


def reward_misfits(reward: Any, agent: Path = ()) -> Iterator[Misfit]:
    """Yield misfits of a reward; `agent`: path of its agent, if there are several."""
    name = name_of(agent, "the reward")
    try:
        number = float(np.asarray(reward).item() if isinstance(reward, np.ndarray) else reward)
    except (TypeError, ValueError):
        yield Misfit("reward-not-number", agent, f"{name} is {type(reward).__name__}: {reward!r:.60}")
        return
    if isinstance(reward, str):
        yield Misfit("reward-not-number", agent, f"{name} is the text {reward!r}")
    elif getattr(reward, "shape", ()) != ():
        yield Misfit("reward-array", agent, f"{name} is an array of shape {reward.shape}: {reward!r:.60}")
    if not math.isfinite(number):
        yield Misfit("reward-not-finite", agent, f"{name} is {number}")


def end_misfits(terminated: Any, truncated: Any, agent: Path = ()) -> Iterator[Misfit]:
    """Yield misfits of `terminated` and `truncated`; `agent`: path of their agent, if there are several."""
    for name, end in (("terminated", terminated), ("truncated", truncated)):
        if isinstance(end, bool | np.bool_):
            continue
        number = isinstance(end, int | float | np.generic) or (isinstance(end, np.ndarray) and end.size == 1)
        code = "end-not-bool-like" if number else "end-not-bool"
        yield Misfit(code, (name, *agent), f"{name_of(agent, name)} is {type(end).__name__}: {end!r:.60}")


class Tally:
    """Counts misfits over many observations: each kind with its first occurrence."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Path], tuple[str, int]] = {}  # → (first occurrence, count)

    def add(self, misfit: Misfit, when: str) -> None:
        first, count = self._counts.get((misfit.code, misfit.path), (f"{misfit.words}, {when}", 0))
        self._counts[misfit.code, misfit.path] = first, count + 1

    def findings(self, observations: int) -> Iterator[Finding]:
        for (code, _), (first, count) in self._counts.items():
            yield make_finding(code, first + (f" ({count} of {observations} observations)" if count > 1 else ""))
