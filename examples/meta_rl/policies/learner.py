"""Today this is `mv.EpisodeCollector(envs, mv.DrawnTasks(seed, range(50)))`, and an algorithm that learns from replay.

    from policies.learner import Learner                               # in examples/meta_rl
    with Learner.from_config("configs/ant_dir.yaml") as learner:
        learner.train()                                                # or, step by step:
        learner.collect_initial_pool()                                 # random actions
        env_steps = learner.collect_rollouts_parallel(num_rollouts=12, parallel_env=learner.train_env_parallel)
        learner.log_train_stats(learner.update(100))

A rollout is a meta-episode: k episodes of one train task. What is collected does not depend on the workers: with
`parallel_env=None` one env plays the same rollouts one after another, transition for transition.

`multiverse train --config configs/ant_dir.yaml` learns in the same way, with checkpoints, exact resume and figures, but
counts env steps: an iteration there has as many as `num_rollouts_per_iter` rollouts of full length have. Where episodes
end early (AntDir) these are more and shorter rollouts; here they are exactly so many, and there are more iterations
until the same env steps are spent. An int of `num_updates_per_iter` is per iteration in both.
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
else:  # in examples/meta_rl, where `envs` and `policies` lie side by side
    from envs.meta.make_env import make_env, make_parallel_env


class PolicyStorage:
    """The replay of what learns, under the document's name; the oldest steps go when there are more than it holds."""

    def __init__(self, algorithm: Any) -> None:
        self.replay, self._algorithm = algorithm.replay, algorithm

    def add_sample(self, episode: Any, progress: float) -> None:
        """One rollout [steps, 1], as `WholeEpisodes.each()` gives it; `progress`, from 0 to 1: how much of the run was
        over before it, which exploration goes by."""
        self._algorithm.keep(episode, progress)

    @property
    def size(self) -> int:
        """Env steps."""
        return len(self.replay)


class Agent(mv.LoadedPolicy):
    """The policy as the document calls it: `agent.act(obs)` for one observation, or for a batch with a row per worker.

    A policy with memory remembers what it saw in the call before: give it the batch of all workers, not one
    worker after another, and call `reset()` where episodes begin. `acting` is the policy itself.
    """

    def act(self, observation: Any, deterministic: bool = False, **more: Any) -> Any:
        """Draw an action, as in the collection of rollouts; deterministic: the most likely one."""
        return super().act(observation, deterministic, **more)


class Learner:
    """Envs, tasks, rollouts, and an algorithm that learns from them. `agent` acts: an `Agent`, or any policy."""

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
        self.algorithm = self._made(settings)
        self.agent: Any = self._agent()
        self.policy_storage = PolicyStorage(self.algorithm)
        self._n_env_steps_total = self._n_rollouts_total = self._n_rollouts_dropped = 0
        rollouts = self.num_init_rollouts_pool + self.num_iters * self.num_rollouts_per_iter
        self.n_env_steps_total = rollouts * self.max_trajectory_len
        self.collected: Any = None  # the last rollouts
        self._collectors: dict[mv.VectorEnv, mv.EpisodeCollector] = {}

    def _made(self, settings: Mapping[str, Any]) -> Any:
        """What `multiverse train` makes of the same config, but for the random actions: those are asked for here."""
        kind, env = algorithms.algorithm_class(settings["algorithm"]), self.train_env
        own = {field.name: settings[field.name] for field in fields(kind.Config) if field.name in settings}
        layers = {"hidden_sizes": tuple(own["hidden_sizes"])} if "hidden_sizes" in own else {}
        config = kind.Config(**{**own, **layers, "learning_starts": 0})
        return kind(config, env.observation_space, env.action_space, 1, self.seed)

    def _agent(self) -> Agent:
        return Agent(self.algorithm.policy(), self.train_env.observation_space, self.train_env.action_space)

    @classmethod
    def from_config(cls, path: str | Path, **changes: Any) -> Learner:
        """From a YAML file with the document's keys; `changes` replace keys of its sections: env={"num_…": 2}."""
        given = mv.read_config(path)
        if unknown := [name for name in changes if name not in given]:
            raise mv.errors.InvalidRequest(f"{path} has no {', '.join(unknown)} to change: it has {', '.join(given)}")
        for section, change in changes.items():
            changed = {**given[section], **change} if isinstance(change, Mapping) else change
            given = {**given, section: changed}  # of which no line of the file says anything
        _settings(given)  # refuses what it does not know
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
        """`train_env`, `eval_env` and, for several workers, `train_env_parallel` (else None): all with the tasks that
        the run's seed draws, once."""
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
        """So many rollouts into `policy_storage`; returns their env steps. Without `parallel_env` one after another."""
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
        """Random actions, until there is as much as so many whole rollouts have."""
        if self.num_init_rollouts_pool > 0:
            print("Collecting initial pool of data..")
        while self._n_env_steps_total < self.num_init_rollouts_pool * self.max_trajectory_len:
            missing = self.num_init_rollouts_pool - self._n_env_steps_total // self.max_trajectory_len
            self.collect_rollouts_parallel(missing, random_actions=True, parallel_env=self.train_env_parallel)

    # -- learning --------------------------------------------------------------------------------------------------
    def train(self) -> None:
        """The whole run: the initial pool, then rollouts and updates in turn."""
        self._start_training()
        self.collect_initial_pool()
        while self._n_env_steps_total < self.n_env_steps_total:
            env_steps = self.collect_rollouts_parallel(
                num_rollouts=self.num_rollouts_per_iter, parallel_env=self.train_env_parallel
            )
            per_step = isinstance(self.updates, float)  # a fraction: of the env steps
            self.log_train_stats(self.update(math.ceil(self.updates * env_steps) if per_step else self.updates))

    def _start_training(self) -> None:
        self._n_iters = 0

    def update(self, num_updates: int) -> dict[str, float]:
        """So many gradient steps from `policy_storage`; returns what they tell, in the mean."""
        report = self.algorithm.learn(num_updates)
        self.agent = self._agent()
        return dict(report.metrics)

    def log_train_stats(self, train_stats: Mapping[str, float]) -> None:
        """A line; every `log_interval` iterations also what the held-out tasks say."""
        if self.collected is None:
            raise mv.errors.InvalidRequest("no rollouts have been collected yet: collect_rollouts_parallel() first")
        self._n_iters = getattr(self, "_n_iters", 0) + 1
        told = ", ".join(f"{name} {value:.3g}" for name, value in train_stats.items())
        when = f"{self._n_env_steps_total:,} env steps"
        print(f"{when} | train tasks {_each(self.collected.returns_per_episode.mean(axis=0), '.1f')} | {told}")
        if self._n_iters % self.log_interval == 0:
            found, success = self.evaluate()
            rates = "" if success is None else f", success {_each(success, '.0%')}"
            print(f"{when} | held-out tasks {_each(found, '.1f')}{rates}")

    def _train_plan(self, attempt: int, number: int) -> mv.ResetRequest:
        """Every rollout has a train task, each as likely."""
        drawn = mv.DrawnTasks(self.seed, range(len(self.train_tasks)))(attempt, number)
        return replace(drawn, task=self.train_tasks[drawn.task])

    # -- what they say -----------------------------------------------------------------------------------------------
    def evaluate(self) -> tuple[np.ndarray, np.ndarray | None]:
        """([k] mean return, [k] success rate or None) of each of the k episodes, on every held-out task once, without
        noise. Without held-out tasks: on the train tasks."""
        tasks = self.eval_tasks if len(self.eval_tasks) else self.train_tasks

        def plan(attempt: int, number: int) -> mv.ResetRequest:
            drawn = mv.EachTask(self.seed, range(len(tasks)))(attempt, number)
            return replace(drawn, task=tasks[drawn.task])

        random = isinstance(self.agent, mv.RandomPolicy)
        found = mv.EpisodeCollector(self._evaluating, plan).collect(self._policy, len(tasks), explore=random)
        return found.returns_per_episode.mean(axis=0), found.success_rates

    def time_split(self) -> str:
        """Where the time of the last rollouts went, and what the bottleneck is."""
        if self.collected is None:
            raise mv.errors.InvalidRequest("no rollouts have been collected yet: collect_rollouts_parallel() first")
        shares = self.collected.seconds.share()
        split = ", ".join(f"{phase} {share:.0%}" for phase, share in shares.items())
        return f"{split}; {self.collected.seconds.bottleneck()}"

    def close(self) -> None:
        """End every worker; twice without harm."""
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
        raise mv.errors.InvalidRequest(f"env_type={kind!r}: this learner is for 'meta'; `multiverse train` for others")
    return mv.rollout_settings(sections)


def _each(numbers: Any, how: str) -> str:
    """Of the first episode of a task, of the second, …"""
    return " → ".join(format(float(one), how) for one in numbers)
