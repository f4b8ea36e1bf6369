"""What a step and a reset take, and which executor that suggests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any

from multiverse.core.plan import IN_CALLER
from multiverse.env_checker.catalogue import found
from multiverse.env_checker.laboratory import STEP, Where
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import EnvRaised, Stopwatch, Subject
from multiverse.env_checker.team_env import TeamEnv
from multiverse.executors import machine
from multiverse.executors.choose import BUSY_SHARE, Others, faster, predicted

MEASURED_S = 0.3
FEWEST = 5
RESET_IS_MANY_STEPS = 100
SLOW_RESET_S = 1e-3


def check_cost(subject: Subject) -> Iterator[Finding]:
    env = subject.build()
    env.reset(seed=subject.settings.seed)
    others, metadata = Others(), getattr(env.env, "metadata", None) or {}
    try:
        steps, resets, each_s = _measured(env.env, cycle(subject.actions(env, 64)))
    except Exception as error:
        raise EnvRaised(Where(STEP), error) from error
    step_s, reset_s = statistics.median(steps), statistics.median(resets)
    took = f"step {_time(step_s)}, reset {_time(reset_s)} (medians of {len(steps)} and {len(resets)})"
    yield found("cost", f"{took}; {suggestion(each_s, metadata, others.share())}")
    if reset_s > RESET_IS_MANY_STEPS * step_s and reset_s > SLOW_RESET_S:
        yield found("reset-dominates", f"a reset takes as long as {reset_s / step_s:.0f} steps")


def _measured(env: Any, actions: Iterator[Any]) -> tuple[list[float], list[float], float]:
    """Seconds of each step and each reset, the bare calls, nothing of ours in between; and of a step with its share of
    resets, in the mean."""
    clock, step, reset, alone = time.perf_counter, env.step, env.reset, not isinstance(env, TeamEnv)
    steps: list[float] = []
    resets: list[float] = []
    watch = Stopwatch(MEASURED_S)
    while len(steps) < FEWEST or not watch.over:
        action = next(actions)
        begun = clock()
        _, _, terminated, truncated, _ = step(action)
        steps.append(clock() - begun)
        if terminated or truncated if alone else env.over:
            begun = clock()
            reset()
            resets.append(clock() - begun)
    each_s = (sum(steps) + sum(resets)) / len(steps)
    watch = Stopwatch(MEASURED_S / 2)
    while len(resets) < FEWEST and not (resets and watch.over):
        begun = clock()
        reset()
        resets.append(clock() - begun)
    return steps, resets, each_s


def suggestion(each_s: float, metadata: Mapping[str, Any], busy_share: float) -> str:
    """The executor that `auto` would take, for a few envs and for many: by its own rules."""
    cores = machine.usable_cores()
    if cores == 1:
        return f"one usable core: executor={IN_CALLER!r}"
    if metadata.get("in_process"):
        return f"its metadata says in_process: executor={IN_CALLER!r}"
    words = []
    for num_envs in (8, 64):
        alone, shared = predicted(each_s, num_envs, min(cores, num_envs) - 1)
        words.append(f"{num_envs} envs {faster(alone, shared)}")
    if busy_share > BUSY_SHARE:
        words.append(f"but others have {100 * busy_share:.0f} % of them now, and only trying tells")
    return f"on these {cores} cores that suggests {', '.join(words)}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
