"""Pairs of Stable-Baselines3's originals and our drop-ins over the same envs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv as TheirDummy
from stable_baselines3.common.vec_env import SubprocVecEnv as TheirSubproc

from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv
from tests.equality import assert_same

THEIRS: dict[str, Callable[..., Any]] = {
    "subproc": functools.partial(TheirSubproc, start_method="fork"),
    "dummy": TheirDummy,
}
OURS: dict[str, Callable[..., Any]] = {
    "subproc": functools.partial(SubprocVecEnv, workers=2),  # of three envs, so that some share a worker
    "dummy": DummyVecEnv,
}
KINDS = sorted(OURS)


@contextmanager
def both(kind: str, env_fns: Sequence[Callable[[], Any]]) -> Iterator[tuple[Any, Any]]:
    """(theirs, ours), closed afterwards."""
    theirs = THEIRS[kind](list(env_fns))
    try:
        ours = OURS[kind](list(env_fns))
        try:
            yield theirs, ours
        finally:
            ours.close()
    finally:
        theirs.close()


def random_actions(space: Any, num_envs: int, steps: int) -> Iterator[Any]:
    """Batches of actions as learners send them."""
    space.seed(1)
    for _ in range(steps):
        yield np.array([space.sample() for _ in range(num_envs)])


def assert_same_steps(theirs: Any, ours: Any, steps: int, seed: int = 7) -> int:
    """Compare both with the same seeds and actions; return the number of ended episodes."""
    theirs.seed(seed)
    ours.seed(seed)
    assert_same(ours.reset(), theirs.reset(), "reset")
    assert_same(ours.reset_infos, theirs.reset_infos, "reset_infos")
    ends = 0
    for t, actions in enumerate(random_actions(theirs.action_space, theirs.num_envs, steps)):
        found, expected = ours.step(actions), theirs.step(actions)
        assert_same(found, expected, f"step {t}")
        assert_same(ours.reset_infos, theirs.reset_infos, f"reset_infos after step {t}")
        ends += int(expected[2].sum())
    return ends
