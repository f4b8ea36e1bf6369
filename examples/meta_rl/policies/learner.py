"""Meta-RL learner with the document's names.

In multiverse: `mv.EpisodeCollector(envs, mv.DrawnTasks(seed, range(50)))` and an off-policy algorithm.

    from policies.learner import Learner                               # in examples/meta_rl
    with Learner.from_config("configs/ant_dir.yaml") as learner:
        learner.train()                                                # or, step by step:
        learner.collect_initial_pool()                                 # random actions
        env_steps = learner.collect_rollouts_parallel(num_rollouts=12, parallel_env=learner.train_env_parallel)
        learner.log_train_stats(learner.update(100))

A rollout is a meta-episode: k episodes of one training task. The collected data does not depend on the workers: with
`parallel_env=None`, one env plays the same rollouts one after another, transition for transition.

`multiverse train --config configs/ant_dir.yaml` trains in the same way, with checkpoints, exact resume and plots, but
counts env steps: one iteration has the env steps of `num_rollouts_per_iter` rollouts of full length. If episodes end
early (AntDir), such an iteration has more, shorter rollouts. Here an iteration has exactly `num_rollouts_per_iter`
rollouts, and more iterations are needed for the same number of env steps. In both, an integer `num_updates_per_iter` is
a number of updates per iteration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import multiverse as mv
from multiverse import algorithms

if "." in __package__:
    from ..envs.meta.make_env import make_env, make_parallel_env
else:  # in examples/meta_rl, `envs` and `policies` are top-level packages
    from envs.meta.make_env import make_env, make_parallel_env


class PolicyStorage:
    """Replay buffer of the algorithm, with the document's name. When it is full, the oldest steps are removed."""

    def __init__(self, algorithm: Any) -> None:
        self.replay, self._algorithm = algorithm.replay, algorithm

    def add_sample(self, episode: Any, progress: float) -> None:
        """Add one rollout [steps, 1] of `WholeEpisodes.each()`.

        `progress`, from 0 to 1, is the finished share of the run, which determines exploration.
        """
        self._algorithm.keep(episode, progress)

    @property
    def size(self) -> int:
        """Number of stored env steps."""
        return len(self.replay)


class Agent(mv.LoadedPolicy):
    """Policy with the document's interface: `agent.act(obs)` for one observation or a batch with one row per worker.

    A policy with memory keeps its state between calls: pass the batch of all workers, not one worker after another, and
    call `reset()` when episodes start. `acting` is the policy itself.
    """

    def act(self, observation: Any, deterministic: bool = False, **more: Any) -> Any:
        """Sample an action, as in the collection of rollouts, or return the most likely one if `deterministic`."""
        return super().act(observation, deterministic, **more)


class Learner:
    """Environments, tasks, rollouts, and the algorithm that learns from them. `agent` is an `Agent` or any policy."""

    def __init__(
        self,
        env: Mapping[str, Any],
        train: Mapping[str, Any],
        seed: int = 0,
        eval: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        sections = {"seed": seed, "env": env, "train": train, "eval": eval or {}, "policy": policy or {}}
        settings = _settings(sections)
        self.seed = seed
        iteration = settings["steps_per_env"] * settings["num_envs"]
        self.num_iters = (settings["env_steps"] - settings["learning_starts"]) // iteration
        self.num_init_rollouts_pool = int(train.get("num_init_rollouts_pool", 0))
        self.num_rollouts_per_iter = int(train["num_rollouts_per_iter"])
        self.updates = settings["gradient_steps"] or settings["updates_per_step"]
        self.log_interval = int((eval or {}).get("log_interval", 10))
        checked = {"max_rollouts_per_task": settings["episodes_per_task"], "num_train_tasks": settings["tasks"]}
        checked |= {"num_eval_tasks": settings["held_out_tasks"], "num_parallel_workers": settings["num_envs"]}
        self.init_env(**{**env, **checked})
        self.algorithm = self._make_algorithm(settings)
        self.agent: Any = self._make_agent()
        self.policy_storage = PolicyStorage(self.algorithm)
        self._n_env_steps_total = self._n_rollouts_total = self._n_rollouts_dropped = 0
        rollouts = self.num_init_rollouts_pool + self.num_iters * self.num_rollouts_per_iter
        self.n_env_steps_total = rollouts * self.max_trajectory_len
        self.collected: Any = None  # the most recent rollouts
        self._collectors: dict[mv.VectorEnv, mv.EpisodeCollector] = {}

    def _make_algorithm(self, settings: Mapping[str, Any]) -> Any:
        """Return the algorithm of `multiverse train`, without its random actions, which this class requests itself."""
        kind, env = algorithms.algorithm_class(settings["algorithm"]), self.train_env
        own = {field.name: settings[field.name] for field in fields(kind.Config) if field.name in settings}
        layers = {"hidden_sizes": tuple(own["hidden_sizes"])} if "hidden_sizes" in own else {}
        config = kind.Config(**{**own, **layers, "learning_starts": 0})
        return kind(config, env.observation_space, env.action_space, 1, self.seed)

    def _make_agent(self) -> Agent:
        return Agent(self.algorithm.policy(), self.train_env.observation_space, self.train_env.action_space)

    @classmethod
    def from_config(cls, path: str | Path, **changes: Any) -> Learner:
        """Create a learner from a YAML file with the document's keys. `changes` override keys: env={"num_…": 2}."""
        given = mv.read_config(path)
        if unknown := [name for name in changes if name not in given]:
            raise mv.errors.InvalidRequest(
                f"{path} has no section {', '.join(unknown)}; its sections are {', '.join(given)}"
            )
        for section, change in changes.items():
            changed = {**given[section], **change} if isinstance(change, Mapping) else change
            given = {**given, section: changed}  # not a value of the file, hence without a line number
        _settings(given)  # raises an error for unknown keys
        return cls(**given)

    def init_env(
        self,
        env_type: str,
        env_name: str,
        max_rollouts_per_task: int,
        num_train_tasks: int,
        num_eval_tasks: int,
        num_parallel_workers: int = 4,
        **kwargs: Any,
    ) -> None:
        """Create `train_env`, `eval_env` and, for several workers, `train_env_parallel` (else None).

        All of them share the tasks that are drawn once from the seed of the run.
        """
        counts = {"num_train_tasks": num_train_tasks, "num_eval_tasks": num_eval_tasks}
        self.train_env = make_env(env_name, max_rollouts_per_task, seed=self.seed, **counts, **kwargs)
        shared = {"tasks": (self.train_env.train_tasks, self.train_env.eval_tasks), **kwargs}
        self.eval_env = make_env(env_name, max_rollouts_per_task, seed=self.seed + 1, **shared)
        self.train_env_parallel = None
        if num_parallel_workers > 1:
            self.train_env_parallel = make_parallel_env(
                env_name, max_rollouts_per_task, num_workers=num_parallel_workers, seed=self.seed, **shared
            )
        self.train_tasks, self.eval_tasks = self.train_env.train_tasks, self.train_env.eval_tasks
        env, spec = self.train_env, self.train_env.spec
        known = env.get_wrapper_attr("horizon") if env.has_wrapper_attr("horizon") else None
        self.max_trajectory_len = max_rollouts_per_task * (known or spec.max_episode_steps)
        self._alone, self._evaluating = (
            mv.make_vec([lambda env=env: env], executor="serial", autoreset="disabled")
            for env in (self.train_env, self.eval_env)
        )

    @property
    def _policy(self) -> Any:
        return getattr(self.agent, "acting", self.agent)

    # -- rollouts --------------------------------------------------------------------------------------------------
    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: Any = None
    ) -> int:
        """Collect rollouts, sequentially without `parallel_env`, into `policy_storage`; return their env steps."""
        envs = self._alone if parallel_env is None else parallel_env.engine
        collector = self._collectors.setdefault(envs, mv.EpisodeCollector(envs, self._train_plan))
        collector.collected = self._n_rollouts_total
        policy = mv.RandomPolicy(envs.single_action_space) if random_actions else self._policy
        self.collected = collector.collect(policy, num_rollouts)
        progress = min(1.0, self._n_env_steps_total / self.n_env_steps_total)
        for episode in self.collected.each():
            self.policy_storage.add_sample(episode, progress)
        self._n_rollouts_total = collector.collected
        self._n_rollouts_dropped += self.collected.dropped
        self._n_env_steps_total += self.collected.env_steps
        return self.collected.env_steps

    def collect_initial_pool(self) -> None:
        """Collect as many env steps with random actions as `num_init_rollouts_pool` rollouts of full length have."""
        if self.num_init_rollouts_pool > 0:
            print("Collecting initial pool of data..")
        while self._n_env_steps_total < self.num_init_rollouts_pool * self.max_trajectory_len:
            missing = self.num_init_rollouts_pool - self._n_env_steps_total // self.max_trajectory_len
            self.collect_rollouts_parallel(missing, random_actions=True, parallel_env=self.train_env_parallel)

    # -- learning --------------------------------------------------------------------------------------------------
    def train(self) -> None:
        """Run the whole training: the initial pool, then rollouts and updates in alternation."""
        self._start_training()
        self.collect_initial_pool()
        while self._n_env_steps_total < self.n_env_steps_total:
            env_steps = self.collect_rollouts_parallel(
                num_rollouts=self.num_rollouts_per_iter, parallel_env=self.train_env_parallel
            )
            per_step = isinstance(self.updates, float)  # a float is a number of updates per env step
            self.log_train_stats(self.update(math.ceil(self.updates * env_steps) if per_step else self.updates))

    def _start_training(self) -> None:
        self._n_iters = 0

    def update(self, num_updates: int) -> dict[str, float]:
        """Take gradient steps on samples of `policy_storage`; return their mean metrics."""
        report = self.algorithm.learn(num_updates)
        self.agent = self._make_agent()
        return dict(report.metrics)

    def log_train_stats(self, train_stats: Mapping[str, float]) -> None:
        """Print a progress line; every `log_interval` iterations also evaluate on the held-out tasks."""
        if self.collected is None:
            raise mv.errors.InvalidRequest("no rollouts have been collected: call collect_rollouts_parallel() first")
        self._n_iters = getattr(self, "_n_iters", 0) + 1
        metrics = ", ".join(f"{name} {value:.3g}" for name, value in train_stats.items())
        when = f"{self._n_env_steps_total:,} env steps"
        train_returns = _format_episodes(self.collected.returns_per_episode.mean(axis=0), ".1f")
        print(f"{when} | train tasks {train_returns} | {metrics}")
        if self._n_iters % self.log_interval == 0:
            returns, success = self.evaluate()
            rates = "" if success is None else f", success {_format_episodes(success, '.0%')}"
            print(f"{when} | held-out tasks {_format_episodes(returns, '.1f')}{rates}")

    def _train_plan(self, attempt: int, number: int) -> mv.ResetRequest:
        """Reset plan of training: a uniformly drawn training task for every rollout."""
        drawn = mv.DrawnTasks(self.seed, range(len(self.train_tasks)))(attempt, number)
        return replace(drawn, task=self.train_tasks[drawn.task])

    # -- evaluation and timing ---------------------------------------------------------------------------------------
    def evaluate(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Evaluate once on every held-out task, or training task if there are none, without exploration noise.

        Returns ([k] mean returns, [k] success rates or None), one value for each of the k episodes.
        """
        tasks = self.eval_tasks if len(self.eval_tasks) else self.train_tasks

        def plan(attempt: int, number: int) -> mv.ResetRequest:
            drawn = mv.EachTask(self.seed, range(len(tasks)))(attempt, number)
            return replace(drawn, task=tasks[drawn.task])

        random = isinstance(self.agent, mv.RandomPolicy)
        collected = mv.EpisodeCollector(self._evaluating, plan).collect(self._policy, len(tasks), explore=random)
        return collected.returns_per_episode.mean(axis=0), collected.success_rates

    def time_split(self) -> str:
        """Return the shares of time of the most recent rollouts, and the bottleneck."""
        if self.collected is None:
            raise mv.errors.InvalidRequest("no rollouts have been collected: call collect_rollouts_parallel() first")
        shares = self.collected.seconds.share()
        split = ", ".join(f"{phase} {share:.0%}" for phase, share in shares.items())
        return f"{split}; {self.collected.seconds.bottleneck()}"

    def close(self) -> None:
        """Stop all workers. Calling this method again has no effect."""
        for envs in (self._alone, self._evaluating, self.train_env_parallel):
            if envs is not None:
                envs.close()

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    kind = (sections.get("env") or {}).get("env_type")
    if kind != "meta":
        raise mv.errors.InvalidRequest(
            f"env_type={kind!r} is not supported: expected 'meta'; use `multiverse train` for others"
        )
    return mv.rollout_settings(sections)


def _format_episodes(numbers: Any, spec: str) -> str:
    """Format the values of the first episode of a task, the second, …"""
    return " → ".join(format(float(number), spec) for number in numbers)
