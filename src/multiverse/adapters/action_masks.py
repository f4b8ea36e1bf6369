"""Action masks: sources of a single-agent env's masks, and the check that every mask passes on its way to the batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.core.env import ACTION_MASK, MaskSource, observed_mask
from multiverse.core.errors import BadValue
from multiverse.core.layout import Array

METHOD = "action_masks"
"""Name of the method of an env that returns its action mask, as in sb3-contrib."""

WriteMask = Callable[[Any, bool], None]
"""Function (mask or None, whether an action follows). With None every action is open."""


def mask_source(env: gymnasium.Env[Any, Any], info: Any) -> MaskSource | None:
    """Return the source of an env's masks, given the info of its reset; None without masks."""
    if not isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete):
        return None
    if observed_mask(env.observation_space, env.action_space) is not None:
        return "observation"
    if env.has_wrapper_attr(METHOD) and callable(env.get_wrapper_attr(METHOD)):
        return "method"
    return "info" if isinstance(info, dict) and ACTION_MASK in info else None


def mask_reader(env: gymnasium.Env[Any, Any], source: MaskSource) -> Callable[[Any, Any], Any]:
    """Return a function (observation, info) → mask or None."""
    if source == "method":
        masks_now = env.get_wrapper_attr(METHOD)
        return lambda observation, info: masks_now()
    if source == "info":
        return lambda observation, info: info.get(ACTION_MASK) if isinstance(info, dict) else None
    leaf = observed_mask(env.observation_space, env.action_space)
    assert leaf is not None

    def observed(observation: Any, info: Any) -> Any:
        for key in leaf.path:
            observation = observation[key]
        return observation

    return observed


def mask_writer(target: Array, action_space: spaces.Space[Any], agent: str = "") -> WriteMask:
    """Return a function that validates a mask and writes it to `target` [actions], int8. `agent`: name for messages.

    A closure that compares bytes, because it runs for every agent at every step.
    """
    shape, everything_open, name = target.shape, False, f"the {ACTION_MASK}{f' of {agent}' * bool(agent)}"
    ends = np.cumsum(action_space.nvec).tolist() if isinstance(action_space, spaces.MultiDiscrete) else list(shape)
    parts = [slice(start, stop) for start, stop in pairwise([0, *ends])]
    whole = parts == [slice(0, *shape)]

    def write(given: Any, acts: bool) -> None:
        nonlocal everything_open
        if given is None:
            if not everything_open:
                target[...], everything_open = 1, True
            return
        everything_open = False
        mask = given if given.__class__ is np.ndarray else _as_array(given, name)
        if mask.shape != shape:
            raise BadValue(f"{name} has shape {mask.shape}: expected {shape}, one number for each action")
        if mask.dtype.itemsize > 1 and not ((mask == 0) | (mask == 1)).all():
            raise BadValue(f"{name} is {mask.tolist()!r:.80}: expected 0 (closed) or 1 (open) for each action")
        target[...] = mask
        written = target.tobytes()
        if written.translate(None, b"\0\1"):  # guard: masks-are-zeros-and-ones
            raise BadValue(f"{name} is {mask.tolist()!r:.80}: expected 0 (closed) or 1 (open) for each action")
        # guard: a-mask-leaves-an-action-open
        if acts and not (b"\1" in written if whole else all(b"\1" in written[part] for part in parts)):
            closed = "no action open" if whole else "no choice open for one of the actions"
            raise BadValue(f"{name} leaves {closed}, but an action is required: {mask.tolist()!r:.80}")

    return write


def _as_array(given: Any, name: str) -> Array:
    try:
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise BadValue(f"{name} is {given!r:.80}, which is not an array of 0 and 1 ({error})") from error
