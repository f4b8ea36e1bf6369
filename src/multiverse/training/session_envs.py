"""The envs of a session, what learns from them, and what their rollouts take; what does not fit together is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from multiverse.adapters.agents import AgentOptions
from multiverse.algorithms import ALGORITHMS
from multiverse.algorithms.algorithm import Algorithm
from multiverse.algorithms.capabilities import capabilities_of, refuse_unsupported, settings_of
from multiverse.core.env import EnvDescription, MaskSource
from multiverse.core.errors import EnvFailed, InvalidRequest
from multiverse.core.failures import FailureOptions
from multiverse.core.layout import Group
from multiverse.core.plan import (
    DEFAULT_RAY,
    IN_CALLER,
    IN_PROCESSES,
    Plan,
    RayOptions,
    Timeouts,
    WorkerOptions,
)
from multiverse.core.reset_plan import ResetPlan
from multiverse.executors.backends import BACKENDS
from multiverse.policies.features import Features, num_logits
from multiverse.rollouts.rollout import BEGUN, BESIDE, RolloutShape
from multiverse.training.algorithm_maker import AlgorithmMaker
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.learners import Learners
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.opening import OpenedEnvs, VectorOptions, open_envs

log = logging.getLogger("multiverse")

OF_RAY = ("ray_address", "cpus_per_worker", "gpus_per_worker")
WHERE = ("executor", "workers", "start_method", *OF_RAY)
"""Settings that say where envs run."""


def build_learners(
    config: TrainConfig, description: EnvDescription, make_algorithm: AlgorithmMaker, num_envs: int
) -> Learners:
    """The algorithm of each group of agents, for envs of this description; refused where they do not fit together."""
    single = description.kind == "single"
    if single and config.separate:
        raise InvalidRequest(f"separate: {config.env} has one agent")
    run = config.requirements(description)
    refuse_unsupported(make_algorithm.kind, run)

    def make(group: Group, seed: int) -> Algorithm:
        agents, slots = len(group.agents), num_envs * len(group.agents)
        space, actions = group.observation_space, group.action_space
        learner = make_algorithm(space, actions, slots, seed, agents, description.state_space)
        if group.ignores_masks:
            learner.features.mask = None  # networks do not see it in any case
        return learner

    learners = Learners(description.groups, single, make, config.seed)
    first = next(iter(learners))
    made = replace(run, network="", settings=settings_of(first, config.settings))
    if type(first) is not make_algorithm.kind:  # made by a function
        refuse_unsupported(type(first), made)
    for caution in capabilities_of(type(first)).cautions(made):
        log.warning("%s", caution)
    return learners


def check_saved_policies(config: TrainConfig, learners: Learners) -> None:
    """Report the policies of the user's own algorithm that a run cannot hold, and what loads them then."""
    reasons = learners.saved_policies()[1]
    if not reasons:
        return
    name, reason = config.algorithm.rpartition(":")[2], next(iter(reasons.values()))
    if config.network is not None:
        name, reason = f"network={config.network.rpartition(':')[2].strip('<>')}", "it acts in torch, not in workers"
    if config.opponents:  # guard: opponents-are-the-policies-that-played
        raise InvalidRequest(
            f"opponents={config.opponents}: past versions of the policy are saved with the run, and the policy of "
            f"{name} cannot be ({reason}): leave opponents out"
        )
    bare = {}  # classes of a program
    if config.algorithm not in ALGORITHMS and ":" not in config.algorithm:
        bare["algorithm"] = config.algorithm
    if config.network is not None and "<" in config.network:
        bare["network"] = config.network.strip("<>")
    if bare:
        arguments = ", ".join(f"{kind}={one}" for kind, one in bare.items())
        flags = " ".join(f"--{kind} FILE.py:{one}" for kind, one in bare.items())
        log.warning(
            "the policy of %s (%s) is saved as weights, and %s cannot be imported by name: to load or evaluate this "
            "run in another program, pass %s again: mv.load(run, %s), or %s in a shell",
            *(name, reason, " and ".join(bare.values()), "it" if len(bare) == 1 else "them", arguments, flags),
        )
    elif ":" in config.algorithm:
        log.info("the policy of %s (%s) is saved as weights: loading it imports %s", name, reason, config.algorithm)


def keep_masks(learner: Algorithm, group: Group) -> None:
    """Have an algorithm that learns from replay keep the action masks that come from infos or a method."""
    if group.masks and learner.features.mask is None and capabilities_of(type(learner)).keeps_masks:
        learner.keep_masks(group.masks)  # type: ignore[attr-defined]


def saved_masks(state: Mapping[str, Any]) -> MaskSource | None:
    """Source of the action masks of a saved run, "method" or "info", from the state of its session. None for other
    runs, and for those of versions that ignored such masks."""
    found = state.get("action_masks")
    return found if found in ("method", "info") else None


def rollout_shape(
    algorithm: Algorithm, group: Group, num_envs: int, single: bool = True, state_space: Any = None
) -> RolloutShape:
    """What a rollout of this algorithm must have room for."""
    policy, masks = algorithm.policy(), group.masks
    if single and algorithm.features.mask is not None:
        masks = num_logits(group.action_space)  # type: ignore[arg-type]
    noise = policy.noise(np.random.default_rng(0), 1, 1)
    return RolloutShape(
        group.name,
        group.observation_space,
        algorithm.steps_per_env,
        num_envs * len(group.agents),
        algorithm.action,
        masks,
        group.may_be_absent,
        policy.first_memory(1),
        (noise.shape[2:], noise.dtype),
        len(group.agents),
        state_space,
        algorithm.features.mask is not None and algorithm.features.mask.path == BESIDE,
    )


def mask_option(config: TrainConfig, source: MaskSource | None) -> MaskSource | Literal["off"]:
    """`AgentOptions.masks` of the envs of a run with this source of masks."""
    return (source or "observation") if config.action_masks else "off"


def mask_lines(source: MaskSource | None) -> list[str]:
    """Describe where action masks come from, in one line; none without masks."""
    if source is None:
        return []
    where = "the method action_masks()" if source == "method" else f"{source}['action_mask']"
    return [f"Action masks: from {where}; only open actions are taken (--no-action-masks turns this off)"]


def open_training_envs(
    config: TrainConfig,
    env: Any,
    num_envs: int,
    reset_plan: ResetPlan,
    plan: Plan | None,
    tasks: Mapping[str, Any],
    masks: MaskSource | None = None,
    with_state: bool = False,
) -> OpenedEnvs:
    """The envs of a training, built and described; `with_state`: also their `state()`. Build what learns from them,
    then bind them."""
    where: dict[str, Any] = {"plan": plan} if plan is not None else _where(config, config.workers)
    if plan is None and config.asynchronous and config.executor == "auto" and config.ray_address is None:
        where["executor"] = IN_PROCESSES
    agents = _agents(config, masks)
    options = VectorOptions(
        autoreset="same_step",
        infos=False,
        reset_plan=reset_plan,
        failures=_failures(config, config.restarts_per_minute, float32=True),
        agents=replace(agents, state=with_state),
        **_of_both(config, tasks),
        **where,
    )
    if config.render:
        return _opened_in_a_window(config.env, env, num_envs, options)
    return open_envs(env, num_envs, options)


def _of_both(config: TrainConfig, tasks: Mapping[str, Any]) -> dict[str, Any]:
    """Options of training and evaluation envs alike."""
    timeouts = Timeouts(reply_s=config.reply_timeout_s)
    return {"copy": False, "env_kwargs": config.env_kwargs or None, "timeouts": timeouts, **tasks}


def _failures(config: TrainConfig, restarts_per_minute: int | None, float32: bool) -> FailureOptions:
    return FailureOptions(
        on_failure=config.on_failure,
        on_bad_value=config.on_bad_value,
        restarts_per_minute=restarts_per_minute,
        worker_memory_limit=config.worker_memory_limit,
        float32=float32,
    )


def _agents(config: TrainConfig, masks: MaskSource | None) -> AgentOptions:
    return AgentOptions(groups="separate" if config.separate else None, masks=mask_option(config, masks))


def _opened_in_a_window(name: str, env: Any, num_envs: int, options: VectorOptions) -> OpenedEnvs:
    """With env 0 in a window, which an env must be able to open."""
    why, instead = "", "leave render out, and look at a video of the run: multiverse record"
    try:
        opened = open_envs(env, num_envs, replace(options, render_mode="human"))
        if opened.description.render_mode == "human":
            return opened
        opened.close()
    except EnvFailed as error:
        why = f": made with render_mode='human' it raises {error.failures[0]}"
    raise InvalidRequest(f"{name} shows no window{why}; {instead}")


def warn_of_a_long_rollout(config: TrainConfig, num_envs: int, steps_per_env: int) -> None:
    """A rollout is always filled: one that is longer than the run is more than was asked for."""
    budget, rollout = config.budget.env_steps, num_envs * steps_per_env
    if budget and rollout > budget and not config.asynchronous:  # there a rollout is of one worker's envs
        log.warning(
            "one update takes num_envs=%d × steps_per_env=%d = %s env steps, and env_steps=%s: lower num_envs or "
            "steps_per_env, or this run goes on for %s",
            *(num_envs, steps_per_env, f"{rollout:,}", f"{budget:,}", f"{rollout:,}"),
        )


def observation_lines(config: TrainConfig, learners: Learners) -> list[str]:
    """Describe the networks' inputs, one line per group of agents whose observations hold images, bytes or arrays."""
    lines = []
    for name, learner in learners.by_group.items():
        own = getattr(learner, "own_network", None)
        boards = capabilities_of(type(learner)).boards_through(settings_of(learner, config.settings))
        text = f"{own.layout.space} to {own.name}" if own is not None else ""
        if own is None and isinstance(learner.features, Features):
            text = learner.features.description(boards)
        if text:
            lines.append(text if len(learners.by_group) == 1 else f"{name}: {text}")
    return lines


def tell_how_ray_collects(envs: BaseVectorEnv) -> None:
    """Which of the two ways, and why."""
    if not BACKENDS[envs.plan.executor].remote:
        return
    if BEGUN in envs.views.arrays:
        log.info("rollouts are filled in the Ray actors: weights there, rows back, once a rollout")
    else:
        log.warning(
            "every step is a round through Ray, a millisecond or more: the policy is asked here (for images, with a "
            "network of your own, or with fewer than 8 steps_per_env); worth it for envs that take longer than that"
        )


def _where(config: TrainConfig, workers: int | None) -> dict[str, Any]:
    """As the config says. A run that has moved away from Ray keeps the settings that it had there."""
    ray = DEFAULT_RAY
    if config.executor == "auto" or BACKENDS[config.executor].remote:
        ray = RayOptions(
            address=config.ray_address,
            cpus_per_worker=config.cpus_per_worker,
            gpus_per_worker=config.gpus_per_worker,
        )
    options = WorkerOptions(count=workers, start_method=config.start_method)
    return {"executor": config.executor, "workers": options, "ray": ray}


def evaluation_envs_of(
    config: TrainConfig,
    env: Any,
    plan: Plan | None,
    tasks: Mapping[str, Any],
    count: int,
    masks: MaskSource | None = None,
) -> BaseVectorEnv:
    """In workers, if those of `plan` are, or else as the config says: there a crash or a hang costs one episode. How
    many envs there are is never up to the workers."""
    where = _where(config, config.workers and min(config.workers, count))
    if plan is not None:
        apart = not BACKENDS[plan.executor].own_share and BACKENDS[plan.executor].replaceable
        # On a Ray cluster they use the training's cores, which rest meanwhile.
        ray = plan.ray and replace(plan.ray, cpus_per_worker=0.0)  # guard: evaluations-ask-for-no-cores-of-their-own
        where = {"executor": IN_CALLER}
        if apart:
            where = {"plan": replace(plan, workers=min(plan.workers, count), ray=ray)}
    rate = config.restarts_per_minute  # guard: evaluations-have-the-runs-restarts
    options = VectorOptions(
        autoreset="disabled",
        infos="tasks" in tasks,  # the returns of a meta-episode's episodes are there
        failures=_failures(config, rate, float32=True),  # guard: evaluations-refuse-what-overflows-float32
        agents=_agents(config, masks),
        **_of_both(config, tasks),
        **where,
    )
    return open_envs(env[0] if isinstance(env, list | tuple) else env, count, options).bind()
