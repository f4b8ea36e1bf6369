"""The envs of a run, for training and for evaluations: how they are opened, their tasks, and their rollouts' shape."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np

from multiverse.adapters.agents import AgentOptions
from multiverse.adapters.env_source import Wrapper, recipes
from multiverse.algorithms.algorithm import Algorithm
from multiverse.core.env import EnvDescription, MaskSource
from multiverse.core.errors import EnvFailed, InvalidRequest, MultiverseError, RemoteError
from multiverse.core.failures import FailureOptions
from multiverse.core.layout import Group
from multiverse.core.plan import DEFAULT_RAY, IN_CALLER, IN_PROCESSES, Plan, RayOptions, Timeouts, WorkerOptions
from multiverse.core.reset_plan import DerivedSeeds, DrawnTasks
from multiverse.executors.backends import BACKENDS
from multiverse.policies.features import num_logits
from multiverse.rollouts.rollout import BEGUN, BESIDE, RolloutShape
from multiverse.training.config.train_config import TrainConfig
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.opening import OpenedEnvs, VectorOptions, open_envs
from multiverse.wrappers.meta_episode import HOOKS, MetaEpisode, draw_tasks

log = logging.getLogger("multiverse")

OF_RAY = ("ray_address", "cpus_per_worker", "gpus_per_worker")
WHERE = ("executor", "workers", "start_method", *OF_RAY)
"""Settings that determine where envs run."""


def saved_masks(state: Mapping[str, Any]) -> MaskSource | None:
    """Source of the action masks of a saved run, "method" or "info", from the state of its session. None for other
    runs, and for those of versions that ignored such masks."""
    source = state.get("action_masks")
    return source if source in ("method", "info") else None


def rollout_shape(algorithm: Algorithm, group: Group, num_envs: int, described: EnvDescription) -> RolloutShape:
    """Shape of the rollouts from which this algorithm learns about this group of agents."""
    policy, masks, own_mask = algorithm.policy(), group.masks, algorithm.features.mask
    if described.kind == "single" and own_mask is not None:
        masks = num_logits(group.action_space)  # type: ignore[arg-type]
    noise = policy.noise(np.random.default_rng(0), 1, 1)
    return RolloutShape(
        group=group.name,
        observation_space=group.observation_space,
        steps=algorithm.steps_per_env,
        slots=num_envs * len(group.agents),
        action=algorithm.action,
        masks=masks,
        comes_and_goes=group.may_be_absent,
        memory=policy.first_memory(1),
        noise=(noise.shape[2:], noise.dtype),
        agents=len(group.agents),
        state_space=described.state_space,
        keeps_masks=own_mask is not None and own_mask.path == BESIDE,
    )


@dataclass(frozen=True)
class ResumedEnvs:
    """Choices for the envs of a run that a resumed run keeps, without measuring again; defaults for a new run."""

    plan: Plan | None = None
    num_envs: int | None = None
    masks: MaskSource | None = "method"  # source of the action masks


NEW_ENVS = ResumedEnvs()


@dataclass
class RunEnvs:
    """Opens the envs of a run, with the same arguments, tasks and masks for training and evaluations."""

    config: TrainConfig
    env: Any
    masks: MaskSource | None = "method"  # known after the first reset
    sees_state: bool = False  # whether the algorithm learns from the env's `state()`
    outside: Sequence[Wrapper] = ()  # outermost wrappers

    def __post_init__(self) -> None:
        self._tasks = with_tasks(self.config, self.env, self.outside)

    def open_training(self, num_envs: int, plan: Plan | None) -> OpenedEnvs:
        """Open the envs for training. Build the learners from their description, then bind the envs."""
        config = self.config
        where: dict[str, Any] = {"plan": plan} if plan is not None else _where(config, config.workers)
        if plan is None and config.asynchronous and config.executor == "auto" and config.ray_address is None:
            where["executor"] = IN_PROCESSES
        options = VectorOptions(
            autoreset="same_step",
            infos=False,
            reset_plan=training_plan(config),
            failures=_failures(config, config.restarts_per_minute, float32=True),
            agents=replace(self._agents(), state=self.sees_state),
            **self._common_options(),
            **where,
        )
        if config.render:
            return _open_with_window(config.env, self.env, num_envs, options)
        return open_envs(self.env, num_envs, options)

    def open_evaluation(self, count: int, plan: Plan | None) -> BaseVectorEnv:
        """Open envs for evaluations: in workers if the plan of the training has workers, where a crash or a hang costs
        one episode; without a plan as the config says. Their number never depends on that of the workers."""
        config = self.config
        where = _where(config, config.workers and min(config.workers, count))
        if plan is not None:
            apart = not BACKENDS[plan.executor].own_share and BACKENDS[plan.executor].replaceable
            # On a Ray cluster they use the cores of the training, which is paused meanwhile.
            # guard: evaluations-ask-for-no-cores-of-their-own
            ray = plan.ray and replace(plan.ray, cpus_per_worker=0.0)
            where = {"executor": IN_CALLER}
            if apart:
                where = {"plan": replace(plan, workers=min(plan.workers, count), ray=ray)}
        rate = config.restarts_per_minute  # guard: evaluations-have-the-runs-restarts
        options = VectorOptions(
            autoreset="disabled",
            infos="tasks" in self._tasks,  # infos hold the returns of a meta-episode's episodes
            failures=_failures(config, rate, float32=True),  # guard: evaluations-refuse-what-overflows-float32
            agents=self._agents(),
            **self._common_options(),
            **where,
        )
        env = self.env[0] if isinstance(self.env, list | tuple) else self.env
        return open_envs(env, count, options).bind()

    def _common_options(self) -> dict[str, Any]:
        """Options of both training and evaluation envs."""
        timeouts = Timeouts(reply_s=self.config.reply_timeout_s)
        return {"copy": False, "env_kwargs": self.config.env_kwargs or None, "timeouts": timeouts, **self._tasks}

    def _agents(self) -> AgentOptions:
        groups: Literal["separate"] | None = "separate" if self.config.separate else None
        masks: MaskSource | Literal["off"] = self.masks or "observation"
        return AgentOptions(groups=groups, masks=masks if self.config.action_masks else "off")


def _failures(config: TrainConfig, restarts_per_minute: int | None, float32: bool) -> FailureOptions:
    return FailureOptions(
        on_failure=config.on_failure,
        on_bad_value=config.on_bad_value,
        restarts_per_minute=restarts_per_minute,
        worker_memory_limit=config.worker_memory_limit,
        float32=float32,
    )


def _open_with_window(name: str, env: Any, num_envs: int, options: VectorOptions) -> OpenedEnvs:
    """Open envs of which the first one shows a window; refuse an env that cannot show one."""
    why, instead = "", "leave render out, and record a video of the run instead: multiverse record"
    try:
        opened = open_envs(env, num_envs, replace(options, render_mode="human"))
        if opened.description.render_mode == "human":
            return opened
        opened.close()
    except EnvFailed as error:
        why = f": made with render_mode='human' it raises {error.failures[0]}"
    raise InvalidRequest(f"{name} cannot show a window{why}; {instead}")


def warn_of_long_rollout(config: TrainConfig, num_envs: int, steps_per_env: int) -> None:
    """Warn if one rollout has more env steps than the budget: it is completed in any case."""
    budget, rollout = config.budget.env_steps, num_envs * steps_per_env
    if budget and rollout > budget and not config.asynchronous:  # there a rollout is of one worker's envs
        log.warning(
            "one update takes num_envs=%d × steps_per_env=%d = %s env steps, and env_steps=%s: lower num_envs or "
            "steps_per_env, or this run takes %s",
            *(num_envs, steps_per_env, f"{rollout:,}", f"{budget:,}", f"{rollout:,}"),
        )


def log_ray_collection(envs: BaseVectorEnv) -> None:
    """Log whether rollouts are collected in Ray actors or in this process, and why."""
    if not BACKENDS[envs.plan.executor].remote:
        return
    if BEGUN in envs.views.arrays:
        log.info("rollouts are collected in the Ray actors: weights are sent and rows returned once per rollout")
    else:
        log.warning(
            "every step is sent through Ray, which takes a millisecond or more, because the policy acts in this "
            "process (for images, with a user-defined network, or with fewer than 8 steps_per_env). Use Ray only for "
            "envs whose steps take longer than that"
        )


def _where(config: TrainConfig, workers: int | None) -> dict[str, Any]:
    """Options of `make_vec` from the config; those of Ray only with Ray: a run that moved elsewhere keeps them."""
    ray = DEFAULT_RAY
    if config.executor == "auto" or BACKENDS[config.executor].remote:
        ray = RayOptions(
            address=config.ray_address,
            cpus_per_worker=config.cpus_per_worker,
            gpus_per_worker=config.gpus_per_worker,
        )
    options = WorkerOptions(count=workers, start_method=config.start_method)
    return {"executor": config.executor, "workers": options, "ray": ray}


# -- tasks (meta-RL): drawn once from the run's seed, some for training and others for evaluation --------------------
def with_tasks(config: TrainConfig, env: Any, outside: Sequence[Wrapper] = ()) -> dict[str, Any]:
    """Arguments of `make_vec` for a run's envs: their tasks, and the wrapper that joins several episodes to a
    meta-episode. `outside`: wrappers around that."""
    if config.tasks is None:
        return {"wrappers": list(outside)} if outside else {}
    wrap: Wrapper = partial(MetaEpisode, episodes_per_task=config.episodes_per_task, oracle=config.oracle)
    return {"wrappers": [wrap, *outside], "tasks": _draw_tasks(config, env)}


def training_plan(config: TrainConfig) -> DerivedSeeds | DrawnTasks:
    """Reset plan of the training envs."""
    return DerivedSeeds(config.seed) if config.tasks is None else DrawnTasks(config.seed, range(config.tasks))


def evaluation_tasks(config: TrainConfig) -> Sequence[int]:
    """Tasks of evaluations, in order: those that are held out or, if none are, those of the training."""
    first = config.tasks or 0
    return range(first, first + config.held_out_tasks) if config.held_out_tasks else range(first)


def _draw_tasks(config: TrainConfig, env: Any) -> list[Any]:
    """The tasks of a run, those of the training first."""
    source = env[0] if isinstance(env, list | tuple) else env
    try:
        built = recipes(source, 1, config.env_kwargs or None, None)[0].build_foreign()
    except MultiverseError:
        raise
    except Exception as error:  # the env may raise anything
        raise EnvFailed("could not be built", None, [RemoteError.of(error, 0)]) from error
    try:
        if not isinstance(built, gymnasium.Env) or not all(map(built.has_wrapper_attr, HOOKS)):
            raise InvalidRequest(
                f"tasks={config.tasks}: {config.env} has no tasks; an env with tasks has the methods {', '.join(HOOKS)}"
            )
        _refuse_wrapped_already(built)
        train, held_out = draw_tasks(built, config.tasks or 1, config.held_out_tasks, config.seed)
    finally:
        built.close()
    return [*train, *held_out]


def _refuse_wrapped_already(env: gymnasium.Env[Any, Any]) -> None:
    """Refuse an env in a `MetaEpisode`: a run with tasks adds that wrapper."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, MetaEpisode):
            raise InvalidRequest(
                "the env is already wrapped in MetaEpisode, and a run with tasks adds that wrapper: pass the env "
                "without it, and pass episodes_per_task and oracle to the run"
            )
        env = env.env
