"""Envs, algorithm and collector of a run, and the exact state of all three between two rollouts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from multiverse.algorithms.capabilities import Capabilities, capabilities_of, settings_of
from multiverse.core.env import MaskSource
from multiverse.core.errors import InvalidRequest
from multiverse.core.failures import Failures
from multiverse.core.plan import IN_PROCESSES, Plan, WorkerOptions
from multiverse.executors.backends import BACKENDS
from multiverse.executors.choose import plan_for
from multiverse.executors.machine import usable_cores
from multiverse.rollouts.asynchronous import Account, AsynchronousCollection
from multiverse.rollouts.collector import Collector, LockStep, NewStrategy
from multiverse.rollouts.episodes import Collected, RecentEpisodes
from multiverse.rollouts.rollout import Rollout
from multiverse.rollouts.rollout_arrays import collected_in_workers, rollout_fields
from multiverse.rollouts.self_play import Pool
from multiverse.training.config.build import build
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.env_states import BEGIN_AT, EnvMarks, EvaluationEnvs
from multiverse.training.learners import (
    AlgorithmMaker,
    build_learners,
    check_saved_policies,
    keep_masks,
    observation_lines,
)
from multiverse.training.loading import opponents_for
from multiverse.training.scaling import FIRST_NUM_ENVS
from multiverse.training.session_envs import (
    NEW_ENVS,
    ResumedEnvs,
    RunEnvs,
    evaluation_tasks,
    log_ray_collection,
    rollout_shape,
    training_plan,
)
from multiverse.vector.opening import OpenedEnvs
from multiverse.vector.single import VectorEnv

log = logging.getLogger("multiverse")


class Session:
    """Running envs, the algorithms that learn from them, and the collector between them. Must be closed."""

    def __init__(
        self,
        config: TrainConfig,
        env: Any,
        make_algorithm: AlgorithmMaker,
        resumed: ResumedEnvs = NEW_ENVS,
        opponent: Any = None,
    ) -> None:
        """`resumed`: what the envs of a resumed run keep. `opponent`: of evaluations, if not named in the config."""
        self._config = config
        sees_state = capabilities_of(make_algorithm.kind).sees_state(config.settings)
        self._run_envs = RunEnvs(config, env, resumed.masks, sees_state)
        self._asynchronous: AsynchronousCollection | None = None
        self._past_account: Account | None = None
        self.evaluation_tasks = evaluation_tasks(config)
        count = config.num_envs if isinstance(config.num_envs, int) else resumed.num_envs or FIRST_NUM_ENVS

        with self._opened(count, resumed.plan) as opened:
            self.learners = build_learners(config, opened.description, make_algorithm, count)
            check_saved_policies(config, self.learners)
            self.start_lines = [f"Observations: {line}" for line in observation_lines(config, self.learners)]
            self._bind(opened, count)
        for line in self.start_lines:
            log.info("%s", line)
        try:
            groups = self.envs.views.layout.groups
            self._pool = None
            if config.opponents:
                size, share, every = config.opponents, config.opponent_share, config.opponent_every
                self._pool = Pool(groups, size, share, every, config.opponent_choice, config.seed)
            self._make_collector()
            can_be_saved = isinstance(self.envs, VectorEnv) and self.envs.can_be_saved()
            self._marks = EnvMarks(can_be_saved and not config.asynchronous)  # asynchronous envs never rest
            opponent = config.evaluation_opponent if opponent is None else opponent
            self.opponents = None if opponent is None else opponents_for(opponent, groups)
            self.evaluation_envs = EvaluationEnvs(
                lambda count: self._run_envs.open_evaluation(count, self.envs.plan),
                config.num_evaluation_envs,
                config.restarts_per_minute,
            )
        except BaseException:
            self.envs.close()
            raise
        self._noise = np.random.default_rng((config.seed, 2))
        self.recent = RecentEpisodes()
        self._past_mark = False  # whether the envs have stepped since the mark
        self._warned_of_cut_episodes = False
        self._next_episodes: list[int] = []  # next episode of each env that there was when their number changed last
        self._failures_before = Failures()  # of former envs, and before a resume
        self._before_change: dict[str, Any] | None = None  # the state, while the number of envs changes

    def _opened(self, count: int, plan: Plan | None) -> OpenedEnvs:
        return self._run_envs.open_training(count, plan)

    def _bind(self, opened: OpenedEnvs, count: int) -> None:
        """Bind the envs, with memory for the rollouts of the learners."""
        description, config = opened.description, self._config
        self._single = description.kind == "single"
        if self._single or self._run_envs.masks == "info":
            for learner, group in zip(self.learners, description.groups):
                keep_masks(learner, group)
        self._shapes = [
            rollout_shape(learner, group, count, description)
            for learner, group in zip(self.learners, description.groups)
        ]
        everywhere = all(collected_in_workers(one.policy(), one.steps_per_env) for one in self.learners)
        whole = self._whole_episodes
        if (whole or config.asynchronous) and not everywhere:
            raise InvalidRequest(
                f"{'whole_episodes' if whole else 'asynchronous'} needs a policy that acts in the workers. This one "
                "acts in the calling process, because it sees images, has a user-defined network (network), or has "
                "fewer than 8 steps_per_env; change that, or leave the setting out"
            )
        if config.asynchronous and BACKENDS[opened.plan.executor].own_share:
            raise InvalidRequest(
                "asynchronous: these envs run in the calling process, which cannot step them while it learns "
                f"({opened.plan.why}); use executor={IN_PROCESSES!r}"
            )
        self.envs = opened.bind(rollout_fields(self._shapes, count, config.opponents > 0, whole) if everywhere else ())
        log_ray_collection(self.envs)

    def _reopen(self, count: int, plan: Plan) -> None:
        """Replace the envs by new ones."""
        failures = self.failures
        self.envs.close()
        with self._opened(count, plan) as opened:
            self._bind(opened, count)
        self._failures_before = failures
        self._make_collector()

    def _make_collector(self) -> None:
        mask = next(iter(self.learners)).features.mask if self._single else None
        path = None if mask is None else mask.path
        config, reset_plan = self._config, training_plan(self._config)
        strategy: NewStrategy = LockStep
        if config.asynchronous:
            discards = config.full_queue == "discard"
            if config.full_queue == "auto":
                discards = self.envs.plan.workers < usable_cores()
            strategy = partial(
                AsynchronousCollection, queue_size=config.queue_size, max_lag=config.max_lag, discards=discards
            )
            for learner in self.learners:
                learner.max_lag = config.max_lag  # type: ignore[attr-defined]
        self._collector = Collector(
            self.envs, self._shapes, path, reset_plan, self_play=self._pool is not None, strategy=strategy
        )
        if isinstance(self._collector.strategy, AsynchronousCollection):
            self._asynchronous = self._collector.strategy

    _collector: Collector
    _pool: Pool | None

    @property
    def _capabilities(self) -> list[type[Capabilities]]:
        return [capabilities_of(type(learner)) for learner in self.learners]

    @property
    def _whole_episodes(self) -> bool:
        settings = settings_of(next(iter(self.learners)), self._config.settings)
        return any(one.whole_episodes(settings) for one in self._capabilities)

    def change_num_envs(self, count: int) -> None:
        """Continue with this number of envs after the present rollout. All of them begin a new episode."""
        self._before_change = self.state()  # guard: a-change-of-envs-can-be-stopped
        plan, begun = self.envs.plan, self.envs.episode_counts.tolist()
        self._next_episodes[: len(begun)] = [episode + 1 for episode in begun]
        workers = self._config.workers and min(self._config.workers, count)
        why = plan.why.partition(";")[0]
        options = WorkerOptions(count=workers or None, start_method=plan.start_method, waiting=plan.waiting)
        self._reopen(count, plan_for(plan.executor, count, why=why, workers=options, ray=plan.ray))
        self._set_slots()
        new = [0] * max(0, count - len(self._next_episodes))
        self.envs.begin_at([*self._next_episodes, *new][:count])  # guard: no-episode-is-played-again
        self._collector.begin()
        self._mark_from_here()
        self._before_change = None

    def _find_masks(self) -> None:
        """Find the source of action masks after the first reset. Envs with masks in infos are started again."""
        self._run_envs.masks = source = self.envs.mask_source() if self._config.action_masks else None
        self._report_masks(source)
        if source != "info" or not (self._single or any(one.keeps_masks for one in self._capabilities)):
            return
        self._reopen(self.envs.num_envs, self.envs.plan)
        self.evaluation_envs.replace()
        self.envs.reset()

    def _report_masks_of_resumed_run(self) -> None:
        source = self.envs.mask_source() if self._config.action_masks else None
        if self._single and source in ("method", "info") and source != self._run_envs.masks:
            log.warning(
                "the env has action masks (%s), which this run does not use because it began without them; start a new "
                "run to use them",
                source,
            )
        else:
            self._report_masks(source)

    def _report_masks(self, source: MaskSource | None) -> None:
        if source is not None:
            where = "the method action_masks()" if source == "method" else f"{source}['action_mask']"
            line = f"Action masks: from {where}; only open actions are taken (--no-action-masks turns this off)"
            self.start_lines.append(line)
            log.info("%s", line)

    @property
    def failures(self) -> Failures:
        """Failures of all envs of the run, former ones and those before a resume included."""
        return self._failures_before + self.envs.failures

    def load_failures(self, counts: Mapping[str, Any]) -> None:
        """Load the failures before a resume, a dict made by `asdict`; later ones are added to them."""
        self._failures_before = build(Failures, counts, "its failures")

    @property
    def algorithm(self) -> Any:
        """The algorithm; with several groups of agents, all of them (`Learners`)."""
        return self.learners.only

    @property
    def rollouts(self) -> list[Rollout]:
        """The last rollout of each group."""
        return list(self._collector.rollouts)

    @property
    def env_steps(self) -> int:
        """Number of env steps in one rollout."""
        return self._collector.env_steps

    def begin(self) -> None:
        """Begin the first episode of every env."""
        self.envs.reset()
        self._find_masks()
        self._collector.begin()
        self._mark_from_here()

    def _mark_from_here(self) -> None:
        self._marks.follow(self.envs, self._collector)
        self.evaluation_envs.saves = self._marks.can_be_saved
        self._mark()

    def collect(self, should_stop: Callable[[], bool]) -> Collected | None:
        """Collect a rollout with the policies of the learners; None if `should_stop` returned True first. `state` does
        not change.

        If envs save themselves and have not done so at the mark, they can be saved between rollouts only; then the
        rollout is always completed.
        """
        if self._marks.requires_whole_rollout:  # guard: a-rollout-that-cannot-be-left-is-filled
            should_stop = _never
        self._past_mark = True
        opponents = None if self._pool is None else self._pool.opponents()
        collected = self._collector.collect(self.learners.policies(), self._noise, should_stop, opponents)
        self._warn_of_cut_episodes(collected)
        return collected

    def _warn_of_cut_episodes(self, collected: Collected | None) -> None:
        """Warn once if rollouts are too short for one whole episode of every env, with `whole_episodes`."""
        if collected is None or not self._whole_episodes or self._warned_of_cut_episodes:
            return
        if (cut := self.envs.num_envs - len(collected.episodes)) > 0 and not collected.lost_steps:
            self._warned_of_cut_episodes = True
            steps = next(iter(self.learners)).steps_per_env
            log.warning(
                f"whole_episodes: {cut} of {self.envs.num_envs} episodes had not ended after steps_per_env={steps}; "
                "they continue in the next rollout, with its policy. Increase steps_per_env to have whole episodes"
            )

    def learned(self, collected: Collected) -> None:
        """Mark the present state after an update with this rollout: `state` returns it from now on."""
        self.recent.add(collected.episodes)
        if self._pool is not None:
            policies = self.learners.policies()
            self._pool.updated(policies[0].version, policies, self._collector.playing)
        self._mark(collected.act_s + collected.step_s)

    def rest(self) -> None:
        """Pause asynchronous collection for an evaluation: workers finish their rows, then wait for `collect`."""
        if self._asynchronous is not None:
            self._asynchronous.rest()

    def stop_collecting(self) -> None:
        """End asynchronous collection."""
        if self._asynchronous is not None:
            self._asynchronous.stop()

    @property
    def account(self) -> Account | None:
        """Env steps of asynchronous collection by their use, also before a resume; None without it."""
        return self._past_account if self._asynchronous is None else self._asynchronous.account

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.evaluation_envs.close)
            closing.callback(self.envs.close)
            self.stop_collecting()

    # -- its state -----------------------------------------------------------------------------------------------
    def _mark(self, rollout_s: float | None = None) -> None:
        """Mark the state of envs and noise. Steps after it count only when they have been learned from."""
        if self._asynchronous is not None:
            self._marks.mark_beginnings(self._asynchronous.next_episodes())
            version = self.learners.policies()[0].version  # a resumed run draws other noise
            self._marked_noise = np.random.default_rng((self._config.seed, 2, version)).bit_generator.state
            return
        self._marks.mark(rollout_s)
        self._marked_noise = self._noise.bit_generator.state
        self._past_mark = False

    @property
    def has_state(self) -> bool:
        """Whether `state` can be called: not during a rollout of envs that did not save themselves before it."""
        changing = self._before_change is not None
        return changing or not (self._past_mark and self._marks.requires_whole_rollout)

    def state(self) -> dict[str, Any]:
        """Return the state after the last update, if `has_state`."""
        if self._before_change is not None:
            return self._before_change
        return {
            **self.learners.state(),
            **({} if self._pool is None else {"opponents": self._pool.state()}),
            "noise": self._marked_noise,  # guard: noise-as-it-was-at-the-mark
            "recent": self.recent.state(),
            "envs": self._marks.state(),
            **({} if self.account is None else {"account": asdict(self.account)}),
            **({"action_masks": masks} if (masks := self._run_envs.masks) in ("method", "info") else {}),
            **({"next_episodes": list(self._next_episodes)} if self._next_episodes else {}),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore weights, noise and every env in the middle of its episode."""
        self.learners.load(state)
        if self._pool is not None:
            self._pool.load(state["opponents"])
        self._noise.bit_generator.state = state["noise"]
        self.recent.load(state["recent"])
        saved, self._next_episodes = state["envs"], [int(episode) for episode in state.get("next_episodes", [])]
        if "account" in state:
            self._past_account = Account.saved(state["account"])
            if self._asynchronous is not None:
                self._asynchronous.load_account(self._past_account)
        if BEGIN_AT in saved:
            self.envs.begin_at(np.asarray(saved[BEGIN_AT]).tolist())
            self._set_slots()
        else:
            self._marks.restore(self.envs, self._collector, saved)
        self._report_masks_of_resumed_run()
        self._collector.begin()
        self._mark_from_here()

    def _set_slots(self) -> None:
        """Make algorithms discard what they keep of slots, because all envs begin a new episode."""
        for learner, group in zip(self.learners, self.envs.views.layout.groups):
            if capabilities_of(type(learner)).auto_num_envs:
                learner.set_slots(self.envs.num_envs * len(group.agents))  # type: ignore[attr-defined]


def _never() -> bool:
    return False
