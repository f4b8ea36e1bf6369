"""`executor="auto"`: chooses the executor by stepping one throwaway env in a worker for a moment.

The choice is a small cost model with one measured number, the duration of a step of the bare env. Handing work to
other processes and collecting the results costs the same for every env; it pays off as soon as the steps that it
takes off the caller cost more. Threads are never chosen: even if a step releases the GIL, the rest of it in Python
runs for one env at a time, and threads sleep while they wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from multiverse.adapters.env_source import Recipe
from multiverse.core.env import Env
from multiverse.core.errors import EnvFailed, MultiverseError, ReplyTimeout, WorkerDied
from multiverse.core.failures import OnFailure
from multiverse.core.layout import ACTION_MASKS, ACTIONS, Views
from multiverse.core.plan import (
    DEFAULT_WORKERS,
    ExecutorName,
    Plan,
    PlannedExecutor,
    RayOptions,
    StartMethod,
    Timeouts,
    WorkerOptions,
)
from multiverse.core.reset_plan import ResetRequest
from multiverse.executors import machine, startup
from multiverse.executors.backends import BACKENDS, backend_of
from multiverse.executors.env_range import EnvRange
from multiverse.executors.executor import Executor
from multiverse.executors.process import usable_here
from multiverse.executors.step_reply import EXTRAS
from multiverse.ipc.space_rows import row_writer

log = logging.getLogger("multiverse")

PROBE_S, PROBE_STEPS, WARM_UP_STEPS = 0.2, 1_000, 10
SLOW_BUILD_S = 2.0
HOPELESS_S = 10.0  # a probe that has not answered after this time counts as hung
HAND_OVER_S = 12e-6  # ring, wake and collect, per batch
PER_WORKER_S = 2e-6  # the same for each further worker
PER_STEP_S = 1.2e-6  # our overhead per step, in every executor
BUSY_SHARE = 0.1  # if other programs use more of the cores' time, the model is not reliable, and both are tried
TRY_S, BURST_S = 0.3, 1e-2
WORTH_IT = 0.9  # hybrid is chosen if its expected time is below this share of serial's


@dataclass(frozen=True, slots=True)
class Probe:
    """Measurements of one throwaway env."""

    step_s: float
    in_process: bool
    busy_share: float = 0.0  # share of the usable cores' time that other programs or a hypervisor had


def decide(
    executor: ExecutorName,
    recipes: Sequence[Recipe],
    workers: WorkerOptions = DEFAULT_WORKERS,
    on_failure: OnFailure = "raise",
    ray: RayOptions | None = None,
) -> Plan:
    """The plan for the caller's request, with all open choices made."""

    def plan(name: ExecutorName, why: str) -> Plan:
        return plan_for(name, len(recipes), why=why, workers=workers, ray=ray)

    if executor != "auto":
        return plan(executor, "as requested")
    if ray is not None and ray.address is not None:
        return plan("ray", "auto: the address of a Ray cluster was given")
    if on_failure == "restart" and usable_here():
        return plan("process", "auto: only worker processes can be restarted after any failure")
    if len(recipes) == 1:
        return plan("serial", "auto: one env")
    if machine.usable_cores() == 1:
        return plan("serial", "auto: one usable core")
    if not usable_here():
        return plan("serial", "auto: no worker processes on this platform")
    name, why = _by_probe(recipes, plan("hybrid", ""))
    chosen = plan(name, why)
    log.info("executor=%s", chosen)
    return chosen


def _by_probe(recipes: Sequence[Recipe], hybrid: Plan) -> tuple[ExecutorName, str]:
    """The executor, and the reason."""
    try:
        return _measured(recipes, hybrid)
    except MultiverseError as error:
        # The full error will be raised when the user's own envs are built.
        reason = f"({type(error).__name__}: {error.headline})"
        if isinstance(error, WorkerDied | ReplyTimeout):  # guard: what-kills-the-probe-is-kept-apart
            return "process", f"auto: the probe was lost {reason}, and that must not happen to the caller"
        return "serial", f"auto: the probe failed {reason}"


def _measured(recipes: Sequence[Recipe], hybrid: Plan) -> tuple[ExecutorName, str]:
    probe = probe_env(recipes[0], hybrid.start_method)
    if probe is None:  # it may even hang
        return "process", f"auto: an env takes over {SLOW_BUILD_S:.0f} s to build"  # guard: a-slow-build-is-kept-apart
    if probe.in_process:
        return "serial", "auto: the env has metadata['in_process']"
    alone, shared = predicted(probe.step_s, len(recipes), hybrid.workers)
    basis = "expected to take"
    if shared < WORTH_IT * alone and probe.busy_share > BUSY_SHARE:
        others = f"other programs used {probe.busy_share:.0%} of the cores"
        try:
            alone, shared = tried(recipes, hybrid)
        except (startup.TooSlow, EnvFailed) as error:
            return "serial", f"auto: {others}, and hybrid could not be tried ({error.headline})"
        basis = f"measured, because {others}:"
    why = (
        f"auto: a step takes {probe.step_s * 1e6:.1f} µs; "
        f"{len(recipes)} envs {basis} {alone * 1e6:.0f} µs serial, {shared * 1e6:.0f} µs hybrid"
    )
    return faster(alone, shared), why


def faster(alone: float, shared: float) -> PlannedExecutor:
    """The faster executor, from the seconds of a step of all envs in the caller, and shared with workers."""
    return "hybrid" if shared < WORTH_IT * alone else "serial"


def predicted(step_s: float, num_envs: int, workers: int) -> tuple[float, float]:
    """(serial, shared between the caller and workers) seconds for one step of all envs."""
    each = step_s + PER_STEP_S
    largest_share = -(-num_envs // (workers + 1))
    return num_envs * each, largest_share * each + HAND_OVER_S + workers * PER_WORKER_S


def probe_env(recipe: Recipe, start_method: StartMethod | None) -> Probe | None:
    """Build one env in a worker and step it for `PROBE_S`; None if building takes too long."""
    plan = Plan("process", 1, start_method, "park", "probe")
    try:
        opened = startup.start_hosts(plan, [recipe], patience_s=SLOW_BUILD_S)
    except startup.TooSlow:
        return None
    if opened.description.metadata.get("in_process"):
        opened.close()
        return Probe(0.0, True)
    executor = opened.bind()
    try:
        ((step_s, busy_share),) = executor.run(_time_steps, {executor.hosts[0]: ()}, HOPELESS_S).values()
        return Probe(step_s, False, busy_share)
    finally:
        executor.close(timeout_s=0.5)


def tried(recipes: Sequence[Recipe], hybrid: Plan) -> tuple[float, float]:
    """The same as `predicted`, measured: alternately in one worker and in lock-step, with as many throwaway envs, all
    in workers. No model predicts a lock-step on cores that other programs use too."""
    plan = Plan("process", hybrid.workers + 1, hybrid.start_method, hybrid.waiting, "probe")
    patient = Timeouts(reply_s=HOPELESS_S, reset_s=HOPELESS_S)
    opened = startup.start_hosts(plan, recipes, timeouts=patient, patience_s=SLOW_BUILD_S)
    executor = opened.bind()
    try:
        hosts, give_up, rounds = executor.hosts, time.perf_counter() + TRY_S, 0
        alone_s = shared_s = 0.0
        while time.perf_counter() < give_up or rounds < 2:
            alone_s += sum(executor.run(_step_alone, {hosts[rounds % len(hosts)]: (BURST_S,)}, HOPELESS_S).values())
            executor.run(_begin, dict.fromkeys(hosts, ()), HOPELESS_S)
            _put_actions(executor.views)
            shared_s += _lock_step(executor, BURST_S)
            rounds += 1
        return len(recipes) * (alone_s / rounds + PER_STEP_S), shared_s / rounds
    finally:
        executor.close(timeout_s=0.5)


def _put_allowed_actions(views: Views) -> None:
    """Write allowed actions for groups with masks: envs may raise or warn about others."""
    for group in views.layout.groups:
        if group.masks and isinstance(group.action_space, spaces.Discrete):
            first = views[(group.name, ACTION_MASKS)].argmax(axis=1)
            views[(group.name, ACTIONS)][...] = first + getattr(group.action_space, "start", 0)


def _lock_step(executor: Executor, seconds: float) -> float:
    """Seconds per step of all envs."""
    begun, count = time.perf_counter(), 0
    while not count or time.perf_counter() < begun + seconds:
        _put_allowed_actions(executor.views)
        if executor.step_all() & EXTRAS:
            failures = [failure for _, extras in executor.extras_of(executor.hosts) for failure in extras.failures]
            if failures:
                raise EnvFailed("raised in step", None, failures)
        executor.settle(executor.hosts)
        count += 1
    return (time.perf_counter() - begun) / count


def _begin(envs: EnvRange) -> None:
    """Begin an episode in each env. Runs in the worker."""
    envs.reset(dict.fromkeys(envs.config.env_ids, ResetRequest(seed=0)))


def _put_actions(views: Views) -> None:
    """Write an action for every slot; groups without masks keep it for all steps."""
    for group in views.layout.groups:
        for slot in range(views.layout.slots(group)):
            row_writer(group.action_space, views, (group.name, ACTIONS), slot)(group.action_space.sample())


def _step_alone(envs: EnvRange, seconds: float) -> float:
    """Seconds per step while no other worker steps. Runs in the worker."""
    env = envs.envs[0]
    env.reset(0, None, None)
    actions = _actions_of(env, envs)
    begun, count = time.perf_counter(), 0
    while not count or time.perf_counter() < begun + seconds:
        if env.step(actions(count))[0]:
            env.reset(None, None, None)
        count += 1
    return (time.perf_counter() - begun) / count


def _time_steps(envs: EnvRange) -> tuple[float, float]:
    """(seconds per step, including resets; share of the cores' time that others had). Runs in the worker."""
    others = Others()
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
    return seconds / warm, others.share()


class Others:
    """Share of the machine that other programs use, from now on."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        busy_s, waited_s = machine.busy_s(), machine.waited_for_core_s()
        return time.perf_counter(), (busy_s or 0.0) - time.process_time(), waited_s or 0.0

    def share(self) -> float:
        """Share of the usable cores' time, or of our own time spent waiting for a core, whichever is larger."""
        took_s, others_s, waited_s = (now - before for now, before in zip(self._now(), self._before))
        return max(others_s / machine.affinity_cores(), waited_s) / took_s


def _actions_of(env: Env, envs: EnvRange) -> Callable[[int], Any]:
    """A function step → action: drawn beforehand, and replaced by an allowed one if a mask forbids it."""
    drawn, masks = [], []
    for group in env.description.groups:
        group.action_space.seed(0)
        group_masks = envs.action_masks_of(group)
        for position in range(len(group.agents)):
            drawn.append([group.action_space.sample() for _ in range(64)])
            masks.append(None if group_masks is None else group_masks[position])
    if env.description.kind == "single":
        return lambda step: drawn[0][step % 64]
    starts = [getattr(group.action_space, "start", 0) for group in env.description.groups for _ in group.agents]

    def allowed_action(step: int, slot: int) -> Any:
        mask, action, start = masks[slot], drawn[slot][step % 64], starts[slot]
        return action if mask is None or mask[action - start] else start + mask.argmax()

    return lambda step: [allowed_action(step, slot) for slot in range(len(drawn))]


def plan_for(
    name: Any, num_envs: int, *, why: str, workers: WorkerOptions = DEFAULT_WORKERS, ray: RayOptions | None = None
) -> Plan:
    """The plan for an executor that has been chosen, and this number of envs."""
    backend, given, waiting = backend_of(name), workers.count, workers.waiting
    if backend.own_share and backend.workers is not None and num_envs == 1:
        backend, name, why = BACKENDS["serial"], "serial", f"{why}: one env cannot be shared"
    options = ray or RayOptions()
    most, cores = backend.most_workers(num_envs), machine.usable_cores() if given else backend.cores(options)
    count = min(given or backend.default_workers(cores, num_envs), most)
    if given is None and backend.frees_a_core(cores, num_envs):
        why = f"{why}; one of the {cores} cores is the caller's"
    if given is not None and given > most > 0:
        log.warning("workers=%d for %d envs: using %d, since a worker needs at least one env", given, num_envs, count)
    if waiting == "auto" and not backend.processes:
        waiting = "park"  # a spinning thread would hold the interpreter's lock
    # guard: forkserver-is-the-default
    method: StartMethod | None = (workers.start_method or "forkserver") if backend.processes else None
    return Plan(name, count, method, waiting, why, options if backend.remote else None)
