"""The spaces: that they are there, can be batched, and mean what a learner takes them to mean."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Leaf, leaves
from multiverse.env_checker.catalogue import found
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Subject

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
