"""Today this is `mv.EpisodeCollector(envs, mv.DrawnTasks(seed, range(50)))`: rollouts under the document's names.

    from policies.learner import Learner                               # in examples/meta_rl
    with Learner.from_config("configs/ant_dir.yaml") as learner:
        learner.collect_initial_pool()                                 # random actions
        env_steps = learner.collect_rollouts_parallel(num_rollouts=12, parallel_env=learner.train_env_parallel)

A rollout is a meta-episode: k episodes of one train task. What is collected does not depend on the workers: with
`parallel_env=None` one env plays the same rollouts one after another, transition for transition.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import multiverse as mv

if "." in __package__:
    from ..envs.meta.make_env import make_env, make_parallel_env
else:  # in examples/meta_rl, where `envs` and `policies` lie side by side
    from envs.meta.make_env import make_env, make_parallel_env

TRAIN = {"num_iters", "num_init_rollouts_pool", "num_rollouts_per_iter", "buffer_size", "num_updates_per_iter",
         "batch_size", "sampled_seq_len"}  # fmt: skip
ENV = {"env_type", "env_name", "max_rollouts_per_task", "num_train_tasks", "num_eval_tasks", "num_parallel_workers",
       "oracle"}  # fmt: skip


class PolicyStorage:
    """Whole episodes, oldest first; the oldest go when there are more than `buffer_size` steps."""

    def __init__(self, buffer_size: int) -> None:
        self.buffer_size, self.episodes, self.size = int(buffer_size), [], 0

    def add_sample(self, episode: Any) -> None:
        """One rollout [steps, 1], as `WholeEpisodes.each()` gives it."""
        self.episodes.append(episode)
        self.size += episode.steps
        while self.size > self.buffer_size and len(self.episodes) > 1:
            self.size -= self.episodes.pop(0).steps


class Learner:
    """Envs, tasks, rollouts and where they go. `agent` acts: any policy on our contract, `mv.RandomPolicy` at first."""

    def __init__(
        self,
        env: Mapping[str, Any],
        train: Mapping[str, Any],
        seed: int = 0,
        eval: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        self.seed, self.policy_args, self.eval_args = seed, dict(policy or {}), dict(eval or {})
        _refuse_unknown("train", train, TRAIN)
        _refuse_unknown("env", env, ENV)
        self.num_iters, self.num_init_rollouts_pool = int(train["num_iters"]), int(train["num_init_rollouts_pool"])
        self.num_rollouts_per_iter = int(train["num_rollouts_per_iter"])
        self.init_env(**env)
        self.agent: Any = mv.RandomPolicy(self.train_env.action_space)
        self.policy_storage = PolicyStorage(int(float(train["buffer_size"])))
        self._n_env_steps_total = self._n_rollouts_total = self._n_rollouts_dropped = 0
        rollouts = self.num_init_rollouts_pool + self.num_iters * self.num_rollouts_per_iter
        self.n_env_steps_total = rollouts * self.max_trajectory_len
        self.collected: Any = None  # the last rollouts
        self._collectors: dict[mv.VectorEnv, mv.EpisodeCollector] = {}

    @classmethod
    def from_config(cls, path: str | Path, **changes: Any) -> Learner:
        """From a YAML file with the document's keys; `changes` replace keys of its sections: env={"num_…": 2}."""
        given = yaml.safe_load(Path(path).read_text())
        _refuse_unknown(str(path), given, {"seed", "env", "train", "eval", "policy"})
        for section, change in changes.items():
            given[section] = {**given[section], **change} if isinstance(change, Mapping) else change
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
        if env_type != "meta":
            raise mv.InvalidRequest(f"env_type={env_type!r}: this learner is for 'meta'; `multiverse train` for others")
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
        self.max_trajectory_len = max_rollouts_per_task * self.train_env.get_wrapper_attr("horizon")
        self._alone, self._evaluating = (
            mv.make_vec([lambda env=env: env], executor="serial", autoreset="disabled")
            for env in (self.train_env, self.eval_env)
        )

    # -- rollouts --------------------------------------------------------------------------------------------------
    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: Any = None
    ) -> int:
        """So many rollouts into `policy_storage`; returns their env steps. Without `parallel_env` one after another."""
        envs = self._alone if parallel_env is None else parallel_env.engine
        collector = self._collectors.setdefault(envs, mv.EpisodeCollector(envs, self._train_plan))
        collector.collected = self._n_rollouts_total
        policy = mv.RandomPolicy(envs.single_action_space) if random_actions else self.agent
        self.collected = collector.collect(policy, num_rollouts)
        for episode in self.collected.each():
            self.policy_storage.add_sample(episode)
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
        found = mv.EpisodeCollector(self._evaluating, plan).collect(self.agent, len(tasks), explore=random)
        return found.returns_per_episode.mean(axis=0), found.success_rates

    def time_split(self) -> str:
        """Where the time of the last rollouts went, and what the bottleneck is."""
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


def _refuse_unknown(section: str, given: Mapping[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(sorted(known))}"
            raise mv.InvalidRequest(f"{section}: there is no {key}{hint}")
