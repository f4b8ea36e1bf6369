"""The envs of a session, what learns from them, and what their rollouts take; what does not fit together is refused."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from multiverse.algorithms.algorithm import Algorithm
from multiverse.contracts.env import EnvDescription
from multiverse.contracts.errors import EnvFailed, InvalidRequest
from multiverse.contracts.layout import Group
from multiverse.contracts.plan import Plan
from multiverse.contracts.reset_plan import ResetPlan
from multiverse.executors.backends import BACKENDS
from multiverse.executors.startup import MoreFields
from multiverse.experience.features import num_logits
from multiverse.experience.rollout import BEGUN, RolloutShape
from multiverse.training.algorithm_maker import MakeAlgorithm
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.learners import Learners
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.make import make_vec

log = logging.getLogger("multiverse")

OF_RAY = ("ray_address", "cpus_per_worker", "gpus_per_worker")
WHERE = ("executor", "workers", "start_method", *OF_RAY)
"""Settings that say where envs run."""


def refuse_misfits(config: TrainConfig, description: EnvDescription, learners: Learners) -> None:
    """What would train, and not as it was meant; what it is hardly meant for is told."""
    if config.asynchronous and not all(hasattr(learner, "max_lag") for learner in learners):
        raise InvalidRequest(
            f"asynchronous: {config.algorithm} does not correct for rollouts of an older policy (it has no `max_lag`): "
            "ppo, a2c and taac do"
        )
    if config.algorithm == "taac" and all(len(group.agents) == 1 for group in description.groups):
        log.warning("%s has no team: taac learns here as for a team of one; ppo is simpler", config.env)
    if description.kind == "turns" and not all(getattr(learner, "in_turn", True) for learner in learners):
        raise InvalidRequest(
            f"{config.algorithm} learns from replay, and agents of {config.env} act in turn: ppo and a2c can do that"
        )
    if config.num_envs == "auto" and not all(hasattr(learner, "set_slots") for learner in learners):
        raise InvalidRequest(
            f"num_envs='auto': {config.algorithm} keeps something for every env (as a replay buffer does), and has no "
            "set_slots(slots): give a number"
        )
    if getattr(config.settings, "critic", "own") == "central" and all(len(g.agents) == 1 for g in description.groups):
        raise InvalidRequest(
            f"critic='central': of {config.env}, no agent here has teammates that share its learner; critic='state' "
            "shows values the env's state(), if it has one"
        )


def make_learner(make: MakeAlgorithm, num_envs: int, state_space: Any, group: Group, seed: int) -> Algorithm:
    agents = len(group.agents)
    return make(group.observation_space, group.action_space, num_envs * agents, seed, agents, state_space)


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
    )


def training_envs(
    config: TrainConfig,
    env: Any,
    num_envs: int,
    reset_plan: ResetPlan,
    plan: Plan | None,
    lay_out: MoreFields,
    tasks: Mapping[str, Any],
) -> BaseVectorEnv:
    how: dict[str, Any] = {**tasks, "plan": plan}
    if plan is None:
        how = {**tasks, **_where(config, config.workers)}
        if config.asynchronous and config.executor == "auto" and config.ray_address is None:
            how["executor"] = "process"
    make = functools.partial(
        make_vec,
        env,
        num_envs,
        autoreset="same_step",
        copy=False,
        infos=False,
        env_kwargs=config.env_kwargs or None,
        reset_plan=reset_plan,
        on_failure=config.on_failure,
        restarts_per_minute=config.restarts_per_minute,
        worker_memory_limit=config.worker_memory_limit,
        on_bad_value=config.on_bad_value,
        reply_timeout_s=config.reply_timeout_s,
        fields=lay_out,
        groups="separate" if config.separate else None,
        state=getattr(config.settings, "critic", "own") == "state",
        **how,
    )
    return _in_a_window(config.env, make) if config.render else make()


def _in_a_window(name: str, make: Callable[..., BaseVectorEnv]) -> BaseVectorEnv:
    """With env 0 in a window, which an env must be able to open."""
    why, instead = "", "leave render out, and look at a video of the run: multiverse record"
    try:
        envs = make(render_mode="human")
        if envs.render_mode == "human":
            return envs
        envs.close()
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


def warn_of_no_learning(config: TrainConfig) -> None:
    """Random actions come first where replay is learned from: a run may be over by then."""
    budget, settings = config.budget.env_steps, config.settings
    first = getattr(settings, "learning_starts", None)
    if not budget or first is None:
        return
    if first >= budget:
        log.warning("learning_starts=%s and env_steps=%s: nothing is learned in this run", f"{first:,}", f"{budget:,}")
    elif settings.gradient_steps is None and (budget - first) * settings.updates_per_step < 1:
        log.warning(
            "updates_per_step=%g: no gradient step is due in the %s env steps after learning_starts=%s",
            *(settings.updates_per_step, f"{budget - first:,}", f"{first:,}"),
        )


def tell_how_ray_collects(envs: BaseVectorEnv) -> None:
    """Which of the two ways, and why."""
    if envs.plan.executor != "ray":
        return
    if BEGUN in envs.views.arrays:
        log.info("rollouts are filled in the Ray actors: weights there, rows back, once a rollout")
    else:
        log.warning(
            "every step is a round through Ray, a millisecond or more: the policy is asked here (for images, or with "
            "fewer than 8 steps_per_env); worth it for envs that take longer than that"
        )


def _where(config: TrainConfig, workers: int | None) -> dict[str, Any]:
    """As the config says. A run that has moved away from Ray keeps the settings that it had there."""
    names = [name for name in WHERE if name not in OF_RAY or config.executor in ("auto", "ray")]
    return {**{name: getattr(config, name) for name in names}, "workers": workers}


def evaluation_envs_of(
    config: TrainConfig, env: Any, plan: Plan | None, tasks: Mapping[str, Any], count: int
) -> BaseVectorEnv:
    """In workers, if those of `plan` are, or else as the config says: there a crash or a hang costs one episode. How
    many envs there are is never up to the workers."""
    workers = config.workers and min(config.workers, count)
    how = _where(config, workers)
    if plan is not None:
        apart = not BACKENDS[plan.executor].own_share and BACKENDS[plan.executor].replaceable
        # On a Ray cluster they use the training's cores, which rest meanwhile.
        ray = plan.ray and replace(plan.ray, cpus_per_worker=0.0)  # guard: evaluations-ask-for-no-cores-of-their-own
        how = {"plan": replace(plan, workers=min(plan.workers, count), ray=ray)} if apart else {}
    return make_vec(
        env[0] if isinstance(env, list | tuple) else env,
        count,
        copy=False,
        autoreset="disabled",
        infos="tasks" in tasks,  # the returns of a meta-episode's episodes are there
        **tasks,
        **(how or {"executor": "serial"}),
        env_kwargs=config.env_kwargs or None,
        groups="separate" if config.separate else None,
        on_failure=config.on_failure,
        restarts_per_minute=config.restarts_per_minute,  # guard: evaluations-have-the-runs-restarts
        worker_memory_limit=config.worker_memory_limit,
        on_bad_value=config.on_bad_value,
        reply_timeout_s=config.reply_timeout_s,
    )
