"""`auto`: which executor, from one throwaway env stepped for a moment in a worker, never the user's own envs.

The choice is a small cost model with one measured number, what a step of the bare env takes. Handing work to
other processes and collecting it costs the same whatever the env does; it pays as soon as the steps it takes off
the caller cost more than that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from multiverse.adapters.env_source import Recipe
from multiverse.contracts.env import Env
from multiverse.contracts.errors import MultiverseError, ReplyTimeout, WorkerDied
from multiverse.contracts.failures import OnFailure
from multiverse.contracts.plan import ExecutorName, Plan, StartMethod, Waiting
from multiverse.executors import machine, startup
from multiverse.executors.backends import BACKENDS, backend_of
from multiverse.executors.env_range import EnvRange
from multiverse.executors.process import usable_here

log = logging.getLogger("multiverse")

PROBE_S, PROBE_STEPS, WARM_UP_STEPS = 0.2, 1_000, 10
SLOW_BUILD_S = 2.0
HOPELESS_S = 10.0  # a probe that has not answered by then hangs
HAND_OVER_S = 12e-6  # ring, wake, collect: per batch
PER_WORKER_S = 2e-6  # the same for each worker more
PER_STEP_S = 1.2e-6  # what we add to a bare step, wherever it runs
BUSY_SHARE = 0.3  # waiting for a core for longer than this, a lock-step with other processes would crawl
WORTH_IT = 0.9  # hybrid must promise at least this much less time than serial


@dataclass(frozen=True, slots=True)
class Probe:
    """What one throwaway env showed."""

    step_s: float
    in_process: bool
    waited_share: float = 0.0  # of its time in which somebody else had the core


def decide(
    executor: ExecutorName,
    workers: int | None,
    start_method: StartMethod | None,
    waiting: Waiting,
    recipes: Sequence[Recipe],
    on_failure: OnFailure = "raise",
) -> Plan:
    """The plan for what the caller asked, with everything left open filled in."""

    def plan(name: ExecutorName, why: str) -> Plan:
        return _plan(name, len(recipes), workers, start_method, waiting, why)

    if executor != "auto":
        return plan(executor, "as asked")
    if on_failure == "restart" and usable_here():
        return plan("process", "auto: only worker processes can be restarted whatever happens to them")
    if len(recipes) == 1:
        return plan("serial", "auto: one env")
    if machine.usable_cores() == 1:
        return plan("serial", "auto: one usable core")
    if not usable_here():
        return plan("serial", "auto: no worker processes on this platform")
    chosen = plan(*_by_probe(recipes, plan("hybrid", "")))
    log.info("executor=%s", chosen)
    return chosen


def _by_probe(recipes: Sequence[Recipe], hybrid: Plan) -> tuple[ExecutorName, str]:
    """Which executor, and why."""
    try:
        probe = probe_env(recipes[0], hybrid.start_method)
    except MultiverseError as error:
        # Whatever is wrong shows again, in full, where the user's own envs are built.
        said = f"({type(error).__name__}: {error.headline})"
        if isinstance(error, WorkerDied | ReplyTimeout):  # guard: what-kills-the-probe-is-kept-apart
            return "process", f"auto: the probe was lost {said}, and that must not happen to the caller"
        return "serial", f"auto: the probe failed {said}"
    if probe is None:  # it may just as well hang
        return "process", f"auto: an env takes over {SLOW_BUILD_S:.0f} s to build"  # guard: a-slow-build-is-kept-apart
    if probe.in_process:
        return "serial", "auto: the env says metadata['in_process']"
    if probe.waited_share > BUSY_SHARE:
        return "serial", f"auto: others are using the cores (a probe waited {probe.waited_share:.0%} of its time)"
    alone, shared = predicted(probe.step_s, len(recipes), hybrid.workers)
    why = (
        f"auto: a step takes {probe.step_s * 1e6:.1f} µs; {len(recipes)} envs expected to take "
        f"{alone * 1e6:.0f} µs serial, {shared * 1e6:.0f} µs hybrid"
    )
    return "hybrid" if shared < WORTH_IT * alone else "serial", why


def predicted(step_s: float, num_envs: int, workers: int) -> tuple[float, float]:
    """(serial, hybrid) seconds for one step of all envs."""
    each = step_s + PER_STEP_S
    largest_share = -(-num_envs // (workers + 1))
    return num_envs * each, largest_share * each + HAND_OVER_S + workers * PER_WORKER_S


def probe_env(recipe: Recipe, start_method: StartMethod | None) -> Probe | None:
    """Build one env in a worker and step it for a moment; None if building takes too long."""
    plan = Plan("process", 1, start_method, "park", "probe")
    try:
        executor, description = startup.start(plan, [recipe], "next_step", False, None, patience_s=SLOW_BUILD_S)
    except startup.TooSlow:
        return None
    try:
        if description.metadata.get("in_process"):
            return Probe(0.0, True)
        ((step_s, waited_share),) = executor.run(_time_steps, {executor.hosts[0]: ()}, HOPELESS_S).values()
        return Probe(step_s, False, waited_share)
    finally:
        executor.close(timeout_s=0.5)


def _time_steps(envs: EnvRange) -> tuple[float, float]:
    """(seconds a step takes, resets included; share of the time in which the core was not ours). Runs in the worker."""
    begun, waited_s = time.perf_counter(), machine.waited_for_core_s() or 0.0
    env = envs.envs[0]
    env.reset(0, None, None)
    actions = _actions_of(env, envs)
    give_up = time.perf_counter() + PROBE_S

    def steps(count: int) -> tuple[int, float]:
        begun = time.perf_counter()
        for k in range(count):
            ended, _ = env.step(actions(k))
            if ended:
                env.reset(None, None, None)
            if time.perf_counter() > give_up:
                return k + 1, time.perf_counter() - begun
        return count, time.perf_counter() - begun

    warm, seconds = steps(WARM_UP_STEPS)
    if warm == WARM_UP_STEPS and time.perf_counter() < give_up:
        warm, seconds = steps(PROBE_STEPS)
    waited_share = ((machine.waited_for_core_s() or 0.0) - waited_s) / (time.perf_counter() - begun)
    return seconds / warm, waited_share


def _actions_of(env: Env, envs: EnvRange) -> Callable[[int], Any]:
    """A function step → something to do: drawn beforehand or, where masks forbid things, any that is open then."""
    drawn, masks = [], []
    for group in env.description.groups:
        group.action_space.seed(0)
        open_to = envs.action_masks_of(group)
        for position in range(len(group.agents)):
            drawn.append([group.action_space.sample() for _ in range(64)])
            masks.append(None if open_to is None else open_to[position])
    if env.description.kind == "single":
        return lambda step: drawn[0][step % 64]
    starts = [getattr(group.action_space, "start", 0) for group in env.description.groups for _ in group.agents]

    def open_action(step: int, slot: int) -> Any:
        mask, action, start = masks[slot], drawn[slot][step % 64], starts[slot]
        return action if mask is None or mask[action - start] else start + mask.argmax()

    return lambda step: [open_action(step, slot) for slot in range(len(drawn))]


def _plan(
    name: Any, num_envs: int, workers: int | None, start_method: StartMethod | None, waiting: Waiting, why: str
) -> Plan:
    backend = backend_of(name)
    if backend.own_share and backend.workers is not None and num_envs == 1:
        backend, name, why = BACKENDS["serial"], "serial", f"{why}: one env has nothing to share out"
    most = backend.most_workers(num_envs)
    count = min(workers or backend.default_workers(machine.usable_cores()), most)
    if workers is not None and workers > most > 0:
        log.warning("workers=%d for %d envs: using %d, since a worker needs at least one env", workers, num_envs, count)
    if waiting == "auto" and not backend.processes:
        waiting = "park"  # a thread that looks holds the interpreter's lock meanwhile
    # guard: forkserver-is-the-default
    return Plan(name, count, (start_method or "forkserver") if backend.processes else None, waiting, why)
