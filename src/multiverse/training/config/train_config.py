"""Config of a run: `TrainConfig`, with the help and bounds of every setting."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class, known_name
from multiverse.algorithms.capabilities import RunRequirements
from multiverse.core.env import EnvDescription
from multiverse.core.errors import InvalidRequest
from multiverse.core.failures import OnBadValue
from multiverse.core.plan import IN_PROCESSES, ExecutorName, StartMethod
from multiverse.core.seeds import checked_run_seed
from multiverse.core.settings import check_bounds, setting
from multiverse.rollouts.self_play import Choice
from multiverse.training.config.budget import Budget
from multiverse.training.config.build import build

Device = Literal["auto", "cpu", "cuda", "mps"]
DEFAULT_ENV_STEPS = 100_000
BUDGETS = ("env_steps", "episodes", "minutes")


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run. It is saved in the run's directory, from where `resume` reads it."""

    env: str = setting(
        "CartPole-v1", "Gymnasium id, or module:name of a class or function that creates the environment."
    )
    algorithm: str = setting(DEFAULT_ALGORITHM, f"Algorithm: {', '.join(ALGORITHMS)}, or module:Class of your own.")
    network: str | None = setting(
        None,
        "Network between the observations and the dense layers or the memory: mlp, nature_cnn, small_cnn, or "
        "module:Class or file.py:Class of your own. Default: no network, and convolutions for images.",
    )
    network_kwargs: dict[str, Any] = setting({}, "Arguments of the network.")
    seed: int = setting(
        0, "Seed of the whole run: initial weights, exploration noise and every episode of every environment."
    )
    num_envs: int | Literal["auto"] = setting(
        8,
        "Number of environments stepped in parallel. auto: begins with 8 and doubles or halves the number between "
        "rollouts while that makes the run faster and memory allows it.",
        at_least=1,
    )
    env_steps: int | None = setting(
        None, "Budget in steps of all environments together. Default: 100,000 if no other budget is given."
    )
    episodes: int | None = setting(None, "Budget in episodes of all environments together.")
    minutes: float | None = setting(None, "Budget in minutes of training.")
    schedule_progress: float | None = setting(
        None,
        "Hold scheduled values (learning rate, clip range, exploration) at this share of the budget, from 0 to 1. "
        "Default: they follow the budget. `resume --hold-schedules` sets this to the present share.",
        at_least=0,
        at_most=1,
    )
    target_return: float | None = setting(None, "Stop as soon as an evaluation reaches this mean return.")
    env_kwargs: dict[str, Any] = setting({}, "Arguments of the environment.")
    wrappers: tuple[str, ...] = setting(
        (),
        "Wrappers of each environment, the innermost first: module:name of a class or function that takes an "
        "environment and returns one.",
    )
    tasks: int | None = setting(
        None,
        "Meta-RL, for an environment with tasks: number of training tasks, drawn from the seed. Every episode has one "
        "of them.",
        at_least=1,
    )
    held_out_tasks: int = setting(
        0,
        "With `tasks`: number of further tasks that training never uses and evaluations go through. 0: evaluations "
        "use the training tasks.",
        at_least=0,
    )
    episodes_per_task: int = setting(
        1,
        "With `tasks`: number of consecutive episodes of a task that form one episode (`mv.MetaEpisode`), during "
        "which the memory is kept.",
        at_least=1,
    )
    oracle: bool = setting(
        False, "With `tasks`: the task is part of the observation, to measure what knowing it is worth."
    )
    separate: bool = setting(
        False, "With several agents: each agent has its own learner, even if their spaces are equal."
    )
    opponents: int = setting(
        0,
        "Self-play: number of past versions of the policy that are kept as opponents. 0: the policy plays only "
        "against its present version.",
        at_least=0,
    )
    opponent_share: float = setting(
        0.5, "Self-play: share of the episodes in which a past version plays the other side.", at_least=0, at_most=1
    )
    opponent_every: int = setting(10, "Self-play: number of updates between two versions that are kept.", at_least=1)
    opponent_choice: Choice = setting(
        "uniform",
        "Self-play: how the past version of an episode is chosen: each with the same probability, or recent ones more "
        "often.",
    )
    executor: ExecutorName = setting("auto", "Where the environments run.")
    workers: int | None = setting(None, "Number of threads, processes or Ray actors of the executor.")
    start_method: StartMethod | None = setting(None, "How worker processes are started.")
    ray_address: str | None = setting(
        None,
        "With `--executor ray`: address of the cluster, host:port or auto. Default: a cluster of its own on this "
        "machine.",
    )
    cpus_per_worker: float = setting(1.0, "With `--executor ray`: number of CPUs that each worker reserves.")
    gpus_per_worker: float = setting(0.0, "With `--executor ray`: number of GPUs that each worker reserves.")
    action_masks: bool = setting(
        True,
        "Take only actions that the environment's action masks allow: `action_mask` in observations or infos, or the "
        "result of a method `action_masks()`.",
    )
    render: bool = setting(
        False,
        'Show environment 0 in a window while it trains (`render_mode="human"`): in one process, at the window\'s '
        "speed.",
    )
    asynchronous: bool = setting(
        False,
        "Workers collect while the algorithm learns. Rollouts may then come from a policy that is some updates old "
        "(`lag_correction`), and results are not reproducible bit for bit.",
    )
    max_lag: int = setting(
        4,
        "With `asynchronous`: largest number of updates by which the policy of a rollout may be behind; older "
        "rollouts are discarded.",
        at_least=0,
    )
    queue_size: int = setting(
        1,
        "With `asynchronous`: largest number of rollouts of all environments that wait for the algorithm.",
        at_least=1,
    )
    full_queue: Literal["auto", "discard", "rest"] = setting(
        "auto",
        "With `asynchronous`: when the queue is full, `discard` its oldest rollouts, so that workers never wait, or "
        "let workers `rest` until there is room. auto: `rest` if the machine has fewer cores than the workers and the "
        "algorithm need.",
    )
    on_failure: Literal["restart", "raise"] = setting(
        "restart",
        "What happens when an environment raises, or a worker ends or hangs: `restart` it, or `raise` an error.",
    )
    restarts_per_minute: int | None = setting(
        None,
        "Limit of restarts of each worker, and of the environments of each worker; beyond it the run ends with the "
        "first cause. Default: a limit relative to the work done, which ends crash loops but never a run with one "
        "failure in thousands of steps.",
    )
    worker_memory_limit: int | str | None = setting(
        None,
        "With `on_failure` restart: a worker process that uses more memory is replaced, which costs its environments "
        "their present episodes. Memory is read every 5 s. A number of bytes, or text such as 2GiB.",
    )
    on_bad_value: OnBadValue = setting(
        "raise",
        "What happens with NaN or infinite observations and rewards: `raise` a failure of the environment, `truncate` "
        "the episode, `clip` the values, or `off` (no check).",
    )
    reply_timeout_s: float | Literal["auto"] | None = setting(
        "auto",
        "Time limit in seconds for a step of a worker. auto: 60 s; after a worker has hung once, 10 times its longest "
        "step, but at least 5 s.",
    )
    device: Device = setting(
        "auto",
        "Device of the networks during learning. auto: a GPU for images, else the CPU, which is faster for small "
        "networks.",
    )
    torch_threads: int = setting(
        1, "Number of torch's threads on the CPU. The environments need the other cores.", at_least=1
    )
    log_every: int | None = setting(
        None,
        "Number of env steps between two lines of metrics, which are means over the updates in between. Default: a "
        "line for every update; every 1,000 env steps if rollouts have fewer than 8 steps.",
        at_least=1,
    )
    evaluate_every: int | None = setting(
        None,
        "Number of env steps between two evaluations; 0: evaluate only at the end. Default: a tenth of the budget "
        "(100,000 if the budget is not in env steps). By default, and without `target_return`, evaluations before the "
        "last one have as many episodes as take at most a tenth of the training's env steps together, but at least "
        "one.",
        at_least=0,
    )
    evaluation_episodes: int | None = setting(
        None,
        "Number of episodes of each evaluation; evaluations before the last one may have fewer (`evaluate_every`). "
        "Default: 10; with held-out tasks, one for each.",
        at_least=1,
    )
    evaluation_envs: int | None = setting(
        None,
        "Number of environments that evaluations run in parallel; it changes no result. Default: 10, but 1 if "
        "`num_envs` is 1.",
        at_least=1,
    )
    evaluation_opponent: str | None = setting(
        None,
        "Opponent in evaluations: `random`, a run, or module:function. Default: `self`, the policy itself; where one "
        "agent wins what another loses, the mean return and the best checkpoint then say nothing.",
    )
    evaluation_deterministic: bool = setting(
        True,
        "Evaluations take the most likely actions. No: they are sampled, as in training, which is the right measure "
        "if agents with equal observations must act differently, or if a predictable policy loses.",
    )
    evaluation_seed: int = setting(0, "Seed of evaluations: equal seeds give equal episodes, whatever the training.")
    checkpoint_every_s: float = setting(
        30.0, "Seconds between two checkpoints. A checkpoint is saved at the end in any case.", at_least=0
    )
    keep_checkpoints: int = setting(
        3, "Number of most recent checkpoints that are kept, besides the best one.", at_least=1
    )
    settings: Any = setting(
        None, "Settings of the algorithm: its own `Config`. In files they are in a section with the algorithm's name."
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", known_name(self.algorithm))
        if self.settings is None:
            object.__setattr__(self, "settings", algorithm_class(self.algorithm).Config())
        check_bounds(self)
        if self.tasks is None and (self.held_out_tasks, self.episodes_per_task, self.oracle) != (0, 1, False):
            raise InvalidRequest("held_out_tasks, episodes_per_task and oracle need tasks, for example tasks=80")
        self._check_asynchronous()
        if self.network_kwargs and self.network is None:
            raise InvalidRequest(
                f"network_kwargs={self.network_kwargs}: these are arguments of a network; pass network too"
            )
        for name in ("seed", "evaluation_seed"):
            checked_run_seed(name, getattr(self, name))
        if self.target_return is not None and math.isnan(self.target_return):
            raise InvalidRequest("target_return=nan: expected a number")
        _ = self.budget

    def _check_asynchronous(self) -> None:
        """Refuse settings that cannot be used with `asynchronous`."""
        if not self.asynchronous:
            return
        if self.render:
            raise InvalidRequest("asynchronous cannot be used with render: the window needs everything in one process")
        from multiverse.executors.backends import BACKENDS  # help is shown without them

        if self.executor != "auto" and BACKENDS[self.executor].own_share:
            raise InvalidRequest(
                f"asynchronous cannot be used with executor={self.executor!r}, where the process that learns also "
                f"steps environments; use executor={IN_PROCESSES!r}"
            )
        if self.num_envs == "auto" or self.opponents:
            wrong = "num_envs='auto'" if self.num_envs == "auto" else f"opponents={self.opponents}"
            raise InvalidRequest(f"asynchronous cannot be used with {wrong}; leave one of them out")

    def requirements(self, description: EnvDescription | None = None) -> RunRequirements:
        """Return what this run needs of its algorithm; without a description, as far as the config says."""
        network = "" if self.network is None else self.network.rpartition(":")[2].strip("<>")
        return RunRequirements(
            settings=self.settings,
            asynchronous=self.asynchronous,
            auto_num_envs=self.num_envs == "auto",
            network=network,
            small_images=bool(network),
            device=self.device,
            env_steps=self.budget.env_steps,
            env=self.env,
            kind=None if description is None else description.kind,
            groups=() if description is None else description.groups,
        )

    @functools.cached_property
    def budget(self) -> Budget:
        return budget_of(vars(self))

    @property
    def steps_between_evaluations(self) -> int:
        """Number of env steps between two evaluations; 0: only at the end."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        return max(1, (self.budget.env_steps or 10 * DEFAULT_ENV_STEPS) // 10)

    @property
    def num_evaluation_envs(self) -> int:
        """Number of environments of an evaluation, at most one for each of its episodes."""
        return min(self.evaluation_envs or (1 if self.num_envs == 1 else 10), self.episodes_per_evaluation)

    @property
    def episodes_per_evaluation(self) -> int:
        """Number of episodes of an evaluation: as set, else one for each held-out task, else 10."""
        return self.evaluation_episodes or self.held_out_tasks or 10


def budget_of(settings: Mapping[str, Any]) -> Budget:
    """Return the budget of a run with these settings."""
    given = {name: settings.get(name) for name in BUDGETS}
    if all(value is None for value in given.values()):
        given["env_steps"] = DEFAULT_ENV_STEPS
    return build(Budget, given)


RUN_SETTINGS = frozenset(field.name for field in dataclasses.fields(TrainConfig)) - {"settings"}


def __getattr__(name: str) -> Any:
    """Old place of `config_for`, for one version."""
    if name != "config_for":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from multiverse.training.config import resolve

    warnings.warn(f"{name} is now in {resolve.__name__}", DeprecationWarning, stacklevel=2)
    return resolve.config_for
