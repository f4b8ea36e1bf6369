"""`auto`: which executor, from one throwaway env stepped for a moment in a worker, never the user's own envs.

The choice is a small cost model with one measured number, what a step of the bare env takes. Handing work to
other processes and collecting it costs the same whatever the env does; it pays as soon as the steps it takes off
the caller cost more than that. Threads are for whoever asks for them: also where a step releases the GIL, what is left
of it in Python is done one env at a time, and threads sleep while they wait.
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
from multiverse.core.layout import ACTION_MASKS, ACTIONS
from multiverse.core.plan import (
    DEFAULT_WORKERS,
    ExecutorName,
    Plan,
    PlannedExecutor,
    RayOptions,
    StartMethod,
    Timeouts,
    Waiting,
    WorkerOptions,
)
from multiverse.core.reset_plan import ResetRequest
from multiverse.core.views import Views
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
HOPELESS_S = 10.0  # a probe that has not answered by then hangs
HAND_OVER_S = 12e-6  # ring, wake, collect: per batch
PER_WORKER_S = 2e-6  # the same for each worker more
PER_STEP_S = 1.2e-6  # what we add to a bare step, wherever it runs
BUSY_SHARE = 0.1  # of the cores' time that others had: from here on the model knows too little, and both are tried
TRY_S, BURST_S = 0.3, 1e-2
WORTH_IT = 0.9  # hybrid must promise at least this much less time than serial


@dataclass(frozen=True, slots=True)
class Probe:
    """What one throwaway env showed."""

    step_s: float
    in_process: bool
    busy_share: float = 0.0  # of the usable cores' time that somebody else had, a hypervisor included


def decide(
    executor: ExecutorName,
    recipes: Sequence[Recipe],
    workers: WorkerOptions = DEFAULT_WORKERS,
    on_failure: OnFailure = "raise",
    ray: RayOptions | None = None,
) -> Plan:
    """The plan for what the caller asked, with everything left open filled in."""

    def plan(name: ExecutorName, why: str) -> Plan:
        return plan_for(name, len(recipes), workers.count, workers.start_method, workers.waiting, why, ray)

    if executor != "auto":
        return plan(executor, "as asked")
    if ray is not None and ray.address is not None:
        return plan("ray", "auto: a Ray cluster was named")
    if on_failure == "restart" and usable_here():
        return plan("process", "auto: only worker processes can be restarted whatever happens to them")
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
    """Which executor, and why."""
    try:
        return _measured(recipes, hybrid)
    except MultiverseError as error:
        # Whatever is wrong shows again, in full, where the user's own envs are built.
        said = f"({type(error).__name__}: {error.headline})"
        if isinstance(error, WorkerDied | ReplyTimeout):  # guard: what-kills-the-probe-is-kept-apart
            return "process", f"auto: the probe was lost {said}, and that must not happen to the caller"
        return "serial", f"auto: the probe failed {said}"


def _measured(recipes: Sequence[Recipe], hybrid: Plan) -> tuple[ExecutorName, str]:
    probe = probe_env(recipes[0], hybrid.start_method)
    if probe is None:  # it may just as well hang
        return "process", f"auto: an env takes over {SLOW_BUILD_S:.0f} s to build"  # guard: a-slow-build-is-kept-apart
    if probe.in_process:
        return "serial", "auto: the env says metadata['in_process']"
    alone, shared = predicted(probe.step_s, len(recipes), hybrid.workers)
    took = "expected to take"
    if shared < WORTH_IT * alone and probe.busy_share > BUSY_SHARE:
        others = f"others had {probe.busy_share:.0%} of the cores"
        try:
            alone, shared = tried(recipes, hybrid)
        except (startup.TooSlow, EnvFailed) as error:
            return "serial", f"auto: {others}, and sharing them could not be tried ({error.headline})"
        took = f"tried for a moment, since {others}:"
    why = (
        f"auto: a step takes {probe.step_s * 1e6:.1f} µs; "
        f"{len(recipes)} envs {took} {alone * 1e6:.0f} µs serial, {shared * 1e6:.0f} µs hybrid"
    )
    return faster(alone, shared), why


def faster(alone: float, shared: float) -> PlannedExecutor:
    """The executor to take, from the seconds of a step of all envs in the caller, and shared with workers."""
    return "hybrid" if shared < WORTH_IT * alone else "serial"


def predicted(step_s: float, num_envs: int, workers: int) -> tuple[float, float]:
    """(serial, shared between the caller and workers) seconds for one step of all envs."""
    each = step_s + PER_STEP_S
    largest_share = -(-num_envs // (workers + 1))
    return num_envs * each, largest_share * each + HAND_OVER_S + workers * PER_WORKER_S


def probe_env(recipe: Recipe, start_method: StartMethod | None) -> Probe | None:
    """Build one env in a worker and step it for a moment; None if building takes too long."""
    plan = Plan("process", 1, start_method, "park", "probe")
    try:
        opened = startup.open_envs(plan, [recipe], patience_s=SLOW_BUILD_S)
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
    """The same as `predicted`, tried out in turns with as many throwaway envs, all of them in workers: what a lock-step
    costs whose cores are taken away now and then, no model knows."""
    plan = Plan("process", hybrid.workers + 1, hybrid.start_method, hybrid.waiting, "probe")
    patient = Timeouts(reply_s=HOPELESS_S, reset_s=HOPELESS_S)
    opened = startup.open_envs(plan, recipes, timeouts=patient, patience_s=SLOW_BUILD_S)
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


def _put_open_actions(views: Views) -> None:
    """Where masks forbid things, what is open now: an env may refuse the rest, or say aloud what it thinks of it."""
    for group in views.layout.groups:
        if group.masks and isinstance(group.action_space, spaces.Discrete):
            first = views[(group.name, ACTION_MASKS)].argmax(axis=1)
            views[(group.name, ACTIONS)][...] = first + getattr(group.action_space, "start", 0)


def _lock_step(executor: Executor, seconds: float) -> float:
    """Seconds that a step of all takes."""
    begun, count = time.perf_counter(), 0
    while not count or time.perf_counter() < begun + seconds:
        _put_open_actions(executor.views)
        if executor.step_all() & EXTRAS:
            failures = [failure for _, extras in executor.extras_of(executor.hosts) for failure in extras.failures]
            if failures:
                raise EnvFailed("raised in step", None, failures)
        executor.settle(executor.hosts)
        count += 1
    return (time.perf_counter() - begun) / count


def _begin(envs: EnvRange) -> None:
    """An episode in each env. Runs in the worker."""
    envs.reset(dict.fromkeys(envs.config.env_ids, ResetRequest(seed=0)))


def _put_actions(views: Views) -> None:
    """Something to do for everybody, at every step the same where no mask forbids it."""
    for group in views.layout.groups:
        for slot in range(views.layout.slots(group)):
            row_writer(group.action_space, views, (group.name, ACTIONS), slot)(group.action_space.sample())


def _step_alone(envs: EnvRange, seconds: float) -> float:
    """Seconds that a step takes, while nobody else of us steps. Runs in the worker."""
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
    """(seconds a step takes, resets included; share of the cores' time that others had). Runs in the worker."""
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
    """What others have of the machine from now on."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        busy_s, waited_s = machine.busy_s(), machine.waited_for_core_s()
        return time.perf_counter(), (busy_s or 0.0) - time.process_time(), waited_s or 0.0

    def share(self) -> float:
        """Of the time of the usable cores, or of our own in which we waited for one; whichever is more."""
        took_s, others_s, waited_s = (now - before for now, before in zip(self._now(), self._before))
        return max(others_s / machine.affinity_cores(), waited_s) / took_s


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


def plan_for(
    name: Any,
    num_envs: int,
    workers: int | None,
    start_method: StartMethod | None,
    waiting: Waiting,
    why: str,
    ray: RayOptions | None = None,
) -> Plan:
    """The plan of so many envs for an executor that has been chosen."""
    backend = backend_of(name)
    if backend.own_share and backend.workers is not None and num_envs == 1:
        backend, name, why = BACKENDS["serial"], "serial", f"{why}: one env has nothing to share out"
    options = ray or RayOptions()
    most, cores = backend.most_workers(num_envs), machine.usable_cores() if workers else backend.cores(options)
    count = min(workers or backend.default_workers(cores, num_envs), most)
    if workers is None and backend.frees_a_core(cores, num_envs):
        why = f"{why}; one of the {cores} cores is the caller's"
    if workers is not None and workers > most > 0:
        log.warning("workers=%d for %d envs: using %d, since a worker needs at least one env", workers, num_envs, count)
    if waiting == "auto" and not backend.processes:
        waiting = "park"  # a thread that looks holds the interpreter's lock meanwhile
    # guard: forkserver-is-the-default
    method: StartMethod | None = (start_method or "forkserver") if backend.processes else None
    return Plan(name, count, method, waiting, why, options if backend.remote else None)
