"""Ctrl-C at every single line of a call: afterwards no env has stepped twice, no batch is stale, and a reset helps.

The interrupt is raised by a trace function at the k-th line that runs inside multiverse, for every k, except where
the code holds signals back (`HeldInterrupts`): there a real Ctrl-C could not strike either.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.ipc.interrupts import HeldInterrupts
from tests.envs import Counts, Walk
from tests.rollouts.test_collector import collecting, fields_for, policy_for
from tests.vector.configurations import make_with_fields

SOURCE = str(Path(mv.__file__).parent)
NUM_ENVS = 3


def held() -> bool:
    return isinstance(getattr(signal.getsignal(signal.SIGINT), "__self__", None), HeldInterrupts)


def interrupted_at_line(k: int, call: Callable[[], Any]) -> bool:
    """Make the call with Ctrl-C at its k-th line; return False if it ended before that line."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line" and not held():
            lines += 1
            if lines == k:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(previous)


def send_and_receive(envs: mv.VectorEnv, actions: Any) -> None:
    envs.send(actions)
    envs.receive()


CALLS: dict[str, Callable[[mv.VectorEnv, Any], Any]] = {
    "step": lambda envs, actions: envs.step(actions),
    "send and receive": send_and_receive,
    "call": lambda envs, _: envs.get_attr("total"),
    "reset": lambda envs, _: envs.reset(),
}
SPACES = {
    "through the block": (spaces.Discrete(2), np.zeros(NUM_ENVS, np.int64)),
    "by pipe": (spaces.Text(3), ("a",) * 3),
}
CASES = [  # a call and a reset send no actions
    (name, actions)
    for name in CALLS
    for actions in SPACES
    if actions == "through the block" or name in ("step", "send and receive")
]
EXECUTORS = {"process": {"workers": 2}, "hybrid": {"workers": 1}, "thread": {"workers": 2}, "serial": {}}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("name", "actions"), CASES)
def test_interrupt_at_any_line_leaves_a_consistent_state(executor: Any, actions: str, name: str) -> None:
    space, batch = SPACES[actions]
    with mv.make_vec(lambda: Counts(space), NUM_ENVS, executor, **EXECUTORS[executor]) as envs:
        envs.reset()
        line, before = 1, totals(envs)
        while interrupted_at_line(line, lambda: CALLS[name](envs, batch)):
            line, before = line + 1, check_and_go_on(envs, batch, before)
        assert line > 20  # the trace really was inside


@pytest.mark.parametrize("executor", EXECUTORS)
def test_interrupt_at_any_line_of_a_rollout_leaves_a_consistent_state(executor: Any) -> None:
    """Its rows are lost and counted as such; a reset helps if it is needed, and the next rollout is complete."""
    with make_with_fields(Walk, NUM_ENVS, executor, autoreset="same_step", infos=False, reset_plan=mv.DerivedSeeds(4),
                     on_failure="restart", fields=fields_for(NUM_ENVS), **EXECUTORS[executor]) as envs:  # fmt: skip
        collector, rollout, _ = collecting(envs)
        policy, rng, line = policy_for(envs), np.random.default_rng(1), 1
        while interrupted_at_line(line, lambda: collector.collect([policy], rng)):
            failures = envs.failures
            assert failures.steps_sent == failures.steps_used + failures.steps_discarded
            envs.reset()
            collector.begin()
            assert collector.collect([policy], rng) is not None and rollout.valid.all()
            assert envs.failures.steps_used == failures.steps_used + rollout.valid.size
            line += 7
        assert line > 100 and envs.failures.worker_restarts == 0


def check_and_go_on(envs: mv.VectorEnv, batch: Any, before: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many steps each env has taken then, according to its observations."""
    cut_in_two = False
    try:
        received = envs.receive(timeout_s=20)
        assert received.env_ids.tolist() == list(range(NUM_ENVS))
        assert received.observations[:, 0].tolist() == [total + 1 for total in before]
        assert received.infos["total"].tolist() == [total + 1 for total in before]
    except mv.errors.NothingPending:
        pass
    except mv.errors.RequestPending:  # the call was interrupted half-way: refused until a reset
        cut_in_two = True
        envs.reset()
    after = totals(envs)
    taken = {now - then for now, then in zip(after, before)}
    assert taken in ({0}, {1}) or (cut_in_two and taken == {0, 1})
    observations, _, _, _, infos = envs.step(batch)
    assert observations[:, 0].tolist() == [total + 1 for total in after] == infos["total"].tolist()
    assert infos["text"].tolist() == [str(total + 1) for total in after]
    return tuple(total + 1 for total in after)


def totals(envs: mv.VectorEnv) -> tuple[int, ...]:
    return envs.get_attr("total")
