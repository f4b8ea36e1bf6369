"""What a run is: its env, its algorithm, its budget, and how it is watched."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from multiverse.algorithms import algorithm_class
from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.failures import RESTARTS_PER_MINUTE, OnBadValue
from multiverse.contracts.plan import ExecutorName, StartMethod
from multiverse.contracts.seeds import checked_run_seed

Device = Literal["auto", "cpu", "cuda", "mps"]
DEFAULT_ENV_STEPS = 100_000

SYNONYMS = {
    "num_envs": ("n_envs",),
    "env_steps": ("total_timesteps", "timesteps"),
    "episodes": ("num_episodes",),
    "learning_rate": ("lr",),
    "epochs": ("n_epochs", "update_epochs"),
    "steps_per_env": ("n_steps", "num_steps"),
    "batch_size": ("minibatch_size",),
    "entropy_coef": ("ent_coef",),
    "value_coef": ("vf_coef",),
    "clip_range": ("clip_coef",),
    "value_clip_range": ("clip_range_vf",),
    "normalize_advantages": ("normalize_advantage", "norm_adv"),
    "hidden_sizes": ("net_arch",),
    "workers": ("num_workers",),
    "start_method": ("parallel_start_method",),
    "evaluate_every": ("eval_every", "eval_freq"),
    "evaluation_episodes": ("n_eval_episodes",),
    "evaluation_envs": ("n_eval_envs",),
}
"""What other libraries call a setting: flags take these too."""


PARTS = ("act", "step", "learn", "evaluate", "save", "other")
"""What the time of a run is spent on."""


@dataclass(slots=True)
class Clock:
    """Counts over the whole life of a run, resumes included."""

    env_steps: int = 0
    episodes: int = 0
    updates: int = 0
    seconds: float = 0.0
    lost_steps: int = 0
    act_s: float = 0.0  # of these seconds: choosing actions, …
    step_s: float = 0.0
    learn_s: float = 0.0
    evaluate_s: float = 0.0
    save_s: float = 0.0
    other_s: float = 0.0  # … and the rest: hooks, metrics

    def __post_init__(self) -> None:
        self.other_s += self.seconds - sum(getattr(self, f"{part}_s") for part in PARTS)  # 0.1 had no parts

    def spend(self, **parts_s: float) -> None:
        """So much more time, by what it was spent on."""
        for part, part_s in parts_s.items():
            setattr(self, f"{part}_s", getattr(self, f"{part}_s") + part_s)
            self.seconds += part_s

    def shares_since(self, before: Clock) -> dict[str, float]:
        """Of each part, from 0 to 1."""
        spent = {part: getattr(self, f"{part}_s") - getattr(before, f"{part}_s") for part in PARTS}
        return {part: part_s / (self.seconds - before.seconds or 1.0) for part, part_s in spent.items()}

    def state(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Budget:
    """Whatever is spent first ends the run."""

    env_steps: int | None = None
    episodes: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise InvalidRequest("a run needs a budget: env_steps, episodes or minutes")
        for name, value in given.items():
            if not value > 0:
                raise InvalidRequest(f"{name}={value}: more than 0")

    def spent(self, clock: Clock) -> float:
        """From 0 to 1; 1 is all of it."""
        shares = [
            clock.env_steps / self.env_steps if self.env_steps else 0.0,
            clock.episodes / self.episodes if self.episodes else 0.0,
            clock.seconds / (60.0 * self.minutes) if self.minutes else 0.0,
        ]
        return min(1.0, max(shares))

    def seconds_left(self, clock: Clock) -> float:
        """As far as one can tell from the pace so far."""
        share = self.spent(clock)
        return clock.seconds * (1.0 - share) / share if share else float("inf")


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run is made of. Saved with it, and what `resume` goes by."""

    env: str = "CartPole-v1"
    """A Gymnasium id, or module:name of something that builds an env."""
    algorithm: str = "ppo"
    """Which algorithm learns: ppo, a2c, or module:Class of your own."""
    seed: int = 0
    """Of the whole run: weights, noise, and every episode of every env."""
    num_envs: int = 8
    """Envs that are stepped side by side."""
    env_steps: int | None = None
    """Budget: steps of all envs together. Where no budget is given, 100,000 of these."""
    episodes: int | None = None
    """Budget: episodes of all envs together."""
    minutes: float | None = None
    """Budget: time."""
    target_return: float | None = None
    """Stop as soon as an evaluation reaches this mean return."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the env."""
    executor: ExecutorName = "auto"
    """Where the envs run."""
    workers: int | None = None
    """Threads or processes of the executor."""
    start_method: StartMethod | None = None
    """How processes are started."""
    on_failure: Literal["restart", "raise"] = "restart"
    """An env that raises, and a worker that dies or hangs: replaced, or an error."""
    restarts_per_minute: int = RESTARTS_PER_MINUTE
    """Of each worker, and of the envs of each worker; beyond that the run ends with the first cause."""
    on_bad_value: OnBadValue = "raise"
    """NaN and infinite observations and rewards: a failure of the env, or `truncate` the episode, `clip`, `off`."""
    reply_timeout_s: float | None = 60.0
    """How long a step of a worker may take."""
    device: Device = "auto"
    """Where the networks learn. auto: the CPU, which is faster for small networks."""
    torch_threads: int = 1
    """Of the networks, on the CPU. The envs need the other cores."""
    evaluate_every: int | None = None
    """Env steps between evaluations; 0: only at the end. Default: a tenth of the budget, and (without a target_return)
    while all of them together take at most a tenth of the training's env steps."""
    evaluation_episodes: int = 10
    """Episodes of each evaluation."""
    evaluation_envs: int | None = None
    """Envs that evaluations are played on side by side; their number changes no figure. Default: 10, but 1 where
    `num_envs` is 1."""
    evaluation_seed: int = 0
    """Equal seeds give equal episodes, whatever the training."""
    checkpoint_every_s: float = 30.0
    """Time between checkpoints; one is saved at the end in any case."""
    keep_checkpoints: int = 3
    """How many of the latest are kept, beside the best."""
    settings: Any = None
    """Those of the algorithm: its own `Config`. In files they stand in a section of its name (`ppo:`)."""

    def __post_init__(self) -> None:
        if self.settings is None:
            object.__setattr__(self, "settings", algorithm_class(self.algorithm).Config())
        for name in ("num_envs", "evaluation_episodes", "evaluation_envs", "keep_checkpoints", "torch_threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidRequest(f"{name}={value}: at least 1")
        if not self.checkpoint_every_s >= 0.0:
            raise InvalidRequest(f"checkpoint_every_s={self.checkpoint_every_s}: 0 or more")
        for name in ("seed", "evaluation_seed"):
            checked_run_seed(name, getattr(self, name))
        if self.evaluate_every is not None and self.evaluate_every < 0:
            raise InvalidRequest(f"evaluate_every={self.evaluate_every}: 0 (only at the end) or more")
        if self.target_return is not None and math.isnan(self.target_return):
            raise InvalidRequest("target_return=nan: no return ever reaches that")
        _ = self.budget

    @property
    def budget(self) -> Budget:
        steps = self.env_steps
        if steps is None and self.episodes is None and self.minutes is None:
            steps = DEFAULT_ENV_STEPS
        return Budget(steps, self.episodes, self.minutes)

    @property
    def steps_between_evaluations(self) -> int:
        """0: only at the end."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        return max(1, (self.budget.env_steps or 10 * DEFAULT_ENV_STEPS) // 10)

    @property
    def num_evaluation_envs(self) -> int:
        """Of each evaluation: more than it has episodes would be idle."""
        return min(self.evaluation_envs or (10 if self.num_envs > 1 else 1), self.evaluation_episodes)
