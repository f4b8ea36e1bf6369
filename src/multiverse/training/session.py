"""What is being trained: envs, algorithm and collector, and the exact state of all three between two rollouts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from time import perf_counter
from typing import Any

import numpy as np

from multiverse.algorithms.algorithm import Algorithm
from multiverse.contracts.env import EnvDescription
from multiverse.contracts.errors import InvalidRequest, ReplyTimeout, WorkerDied
from multiverse.contracts.layout import Field, Group
from multiverse.contracts.plan import Plan
from multiverse.contracts.reset_plan import DerivedSeeds
from multiverse.executors.backends import BACKENDS
from multiverse.executors.startup import MoreFields
from multiverse.experience.collector import Collected, Collector, collected_in_workers, rollout_fields
from multiverse.experience.episodes import RecentEpisodes
from multiverse.experience.features import num_logits
from multiverse.experience.numpy_policies import NumpyPolicy
from multiverse.experience.restoring import Lost, put_back, restore_by_replay, saved_states
from multiverse.experience.rollout import RolloutShape, leaf_of
from multiverse.training.algorithm_maker import MakeAlgorithm
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.evaluation import EvaluationEnvs
from multiverse.training.storage.state_codec import encode
from multiverse.vector.make import make_vec
from multiverse.vector.single import VectorEnv

log = logging.getLogger("multiverse")

MOST_OF_A_ROLLOUT = 0.01
"""Envs that save themselves are saved at every mark where that takes a smaller share of the time of a rollout."""


class Session:
    """Envs under way, an algorithm, and the rollout between them. `close` it."""

    def __init__(self, config: TrainConfig, env: Any, make_algorithm: MakeAlgorithm, plan: Plan | None = None) -> None:
        reset_plan = DerivedSeeds(config.seed)

        def lay_out(description: EnvDescription) -> list[Field]:
            """With the envs' spaces known the algorithm is made, and with it what its rollouts take."""
            group = _only_group(description, config)
            self.algorithm = make_algorithm(group.observation_space, group.action_space, config.num_envs, config.seed)
            self._shape = rollout_shape(self.algorithm, group, config.num_envs)
            in_workers = collected_in_workers(self.algorithm.policy(), self._shape.steps)
            return rollout_fields([self._shape], config.num_envs) if in_workers else []

        self.envs = _training_envs(config, env, reset_plan, plan, lay_out)
        try:
            mask = self.algorithm.features.mask
            self._collector = Collector(self.envs, [self._shape], None if mask is None else mask.path, reset_plan)
            (self.rollout,) = self._collector.rollouts
            self._can_be_saved = self.envs.can_be_saved()
            make = functools.partial(_evaluation_envs, config, env, self.envs.plan)
            self.evaluation_envs = EvaluationEnvs(make, config.num_evaluation_envs, config.restarts_per_minute)
        except BaseException:
            self.envs.close()
            raise
        self._noise = np.random.default_rng((config.seed, 2))
        self.recent = RecentEpisodes()
        self._saves_at_marks: bool | None = None  # None: it is not known yet what a rollout takes
        self._mark_s = float("inf")  # the shortest mark, while that is so
        self._marked_envs: dict[str, Any] = {}
        self._under_way = False  # the envs are further than the mark

    def begin(self) -> None:
        """The first episode of every env."""
        self.envs.reset()
        self._collector.begin()
        self._try_saving()
        self._mark()

    def _try_saving(self) -> None:
        """Better now than at the first checkpoint: what envs save must be something that a file can hold."""
        if self._can_be_saved:
            try:
                encode({"states": self._saved_states()})
            except TypeError as error:
                self._can_be_saved = False
                log.warning("save_state() of the env is not used: %s; its episodes are played again instead", error)
        self._collector.keeps_actions = not self._can_be_saved
        self.evaluation_envs.saves = self._can_be_saved

    def collect(self, should_stop: Callable[[], bool]) -> Collected | None:
        """A rollout of the algorithm's policy; None if it was to stop before that. The state stays what it was.

        Envs that save themselves and have not done so at the mark can only be saved between rollouts: theirs is always
        filled.
        """
        if self._can_be_saved and "states" not in self._marked_envs:  # guard: a-rollout-that-cannot-be-left-is-filled
            should_stop = _never
        self._under_way = True
        return self._collector.collect([self.algorithm.policy()], self._noise, should_stop)

    def learned(self, collected: Collected) -> None:
        """The rollout has been learned from: this is the state to come back to."""
        self.recent.add(collected.episodes)
        self._mark(collected.act_s + collected.step_s)

    def close(self) -> None:
        try:
            self.envs.close()
        finally:
            self.evaluation_envs.close()

    # -- its state -----------------------------------------------------------------------------------------------
    def _mark(self, rollout_s: float | None = None) -> None:
        """Remember where the envs and the noise are; what is under way later does not count until it is learned.

        After the first rollout it is known what share of one it takes to have envs save themselves: that decides, once,
        whether they do so at every mark or only for a checkpoint.
        """
        began_at = perf_counter()
        self._mark_envs(with_states=self._can_be_saved and self._saves_at_marks is not False)
        self._mark_s = min(self._mark_s, perf_counter() - began_at)
        if rollout_s is not None and self._saves_at_marks is None:
            self._saves_at_marks = self._mark_s < MOST_OF_A_ROLLOUT * rollout_s
        self._collector.actions.mark()
        self._marked_noise = self._noise.bit_generator.state
        self._under_way = False

    def _mark_envs(self, with_states: bool) -> None:
        # The states come first: an env that is lost while it is asked begins another episode.
        states = {"states": deepcopy(self._saved_states())} if with_states else {}  # guard: marked-states-are-copies
        going_on = ~self._collector.starts  # an env whose episode has just ended still shows what that one had
        shown = self.envs.observations()
        rows = [np.array(leaf_of(shown, path)) for path in self.rollout.last]
        self._marked_envs = {
            "episodes": self.envs.episode_counts,
            "observations": {str(k): row for k, row in enumerate(rows)},
            "returns": np.where(going_on, self.envs.episode_returns, 0.0),
            "lengths": np.where(going_on, self.envs.episode_lengths, 0),
            "remembered": self._collector.remembered(),
            **states,
        }

    def _saved_states(self) -> list[Any]:
        """The envs' states as they are now; an env that is lost with its worker meanwhile begins another episode."""
        while True:
            try:
                return saved_states(self.envs)
            except (WorkerDied, ReplyTimeout) as error:
                lost = self.envs.awaiting_reset
                if not lost:  # guard: a-worker-lost-in-a-save-is-replaced
                    raise
                log.warning("envs %s begin another episode: %s", lost, str(error).partition("\n")[0])
                self.envs.reset(env_ids=lost)
                self._collector.begin_again(lost)

    @property
    def at_hand(self) -> bool:
        """Whether there is a `state`: not in the middle of a rollout of envs that were not saved at its beginning."""
        return not (self._can_be_saved and self._under_way and "states" not in self._marked_envs)

    def state(self) -> dict[str, Any]:
        """As it was after the last update, if that is `at_hand`."""
        if self._can_be_saved and "states" not in self._marked_envs:
            self._mark_envs(with_states=True)  # the envs are still where they were then
        return {
            "algorithm": {"weights": self.algorithm.weights(), "state": self.algorithm.state()},
            "policy": self._saved_policy(),
            "noise": self._marked_noise,  # guard: noise-as-it-was-at-the-mark
            "recent": self.recent.state(),
            "envs": {**self._marked_envs, **({} if self._can_be_saved else self._played_so_far())},
        }

    def _saved_policy(self) -> dict[str, Any] | None:
        """What `mv.load` takes, without env, algorithm and torch; None of a policy that cannot do without."""
        policy = self.algorithm.policy().portable()
        return policy.saved() if isinstance(policy, NumpyPolicy) else None

    def _played_so_far(self) -> dict[str, Any]:
        """What brings envs back that cannot be saved: the actions of their episodes."""
        actions = self._collector.actions.state()
        return {"actions": {str(i): known for i, known in enumerate(actions) if known is not None}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there: the same weights, the same noise, and every env in the middle of its episode."""
        self.algorithm.load_weights(state["algorithm"]["weights"])
        self.algorithm.load(state["algorithm"]["state"])
        self._noise.bit_generator.state = state["noise"]
        self.recent.load(state["recent"])
        saved = state["envs"]
        rows = dict(zip(self.rollout.last, saved["observations"].values()))
        episodes = np.asarray(saved["episodes"]).tolist()
        sums = saved.get("returns"), saved.get("lengths")  # replayed envs had none of these in 0.1
        if "states" in saved:
            lost = put_back(self.envs, episodes, saved["states"], rows, *sums)
        else:
            actions = [saved["actions"].get(str(i)) for i in range(self.envs.num_envs)]
            lost = restore_by_replay(self.envs, episodes, actions, rows, *sums)
            for env_id, known in enumerate(actions):
                if known is not None and env_id not in lost:
                    self._collector.actions.load(env_id, known)  # guard: a-replayed-episode-goes-on-in-the-log
        if lost:
            log.warning(
                "envs %s could not be brought back: %s. Those episodes end here, and this run is not exactly the one "
                "that was interrupted (`multiverse check-env` says whether an env can be replayed)",
                list(lost),
                _in_words(lost),
            )
        if "remembered" in saved:  # not in 0.1
            self._collector.remember(saved["remembered"])
        self._collector.begin()
        self._try_saving()
        self._mark()


def _in_words(lost: Lost) -> str:
    """Every reason, with its envs if there are several."""
    reasons = {why: [i for i, one in lost.items() if one == why] for why in lost.values()}
    return "; ".join(f"{why} (envs {ids})" if len(reasons) > 1 else why for why, ids in reasons.items())


def _never() -> bool:
    return False


def rollout_shape(algorithm: Algorithm, group: Group, num_envs: int) -> RolloutShape:
    """What a rollout of this algorithm must have room for."""
    policy, features = algorithm.policy(), algorithm.features
    masks = num_logits(group.action_space) if features.mask is not None else 0  # type: ignore[arg-type]
    noise = policy.noise(np.random.default_rng(0), 1, 1)
    return RolloutShape(
        group.name,
        group.observation_space,
        algorithm.steps_per_env,
        num_envs,
        algorithm.action,
        masks,
        group.may_be_absent,
        policy.first_memory(1),
        (noise.shape[2:], noise.dtype),
    )


def _only_group(description: EnvDescription, config: TrainConfig) -> Group:
    if description.kind != "single":
        raise InvalidRequest(
            f"{config.env} has several agents, and {config.algorithm} learns from one: `mv.flatten_agents(env)` makes "
            "one of them"
        )
    return description.groups[0]


def _training_envs(
    config: TrainConfig, env: Any, reset_plan: DerivedSeeds, plan: Plan | None, lay_out: MoreFields
) -> VectorEnv:
    how: dict[str, Any] = {"plan": plan}
    if plan is None:
        how = {"executor": config.executor, "workers": config.workers, "start_method": config.start_method}
    return make_vec(
        env,
        config.num_envs,
        autoreset="same_step",
        copy=False,
        infos=False,
        env_kwargs=config.env_kwargs or None,
        reset_plan=reset_plan,
        on_failure=config.on_failure,
        restarts_per_minute=config.restarts_per_minute,
        on_bad_value=config.on_bad_value,
        reply_timeout_s=config.reply_timeout_s,
        fields=lay_out,
        **how,
    )


def _evaluation_envs(config: TrainConfig, env: Any, plan: Plan, count: int) -> VectorEnv:
    """In workers, if the training's are: there a crash or a hang costs one episode. How many envs there are is never up
    to the workers."""
    apart = not BACKENDS[plan.executor].own_share and BACKENDS[plan.executor].processes
    return make_vec(
        env[0] if isinstance(env, list | tuple) else env,
        count,
        plan.executor if apart else "serial",
        workers=min(plan.workers, count) if apart else None,
        start_method=plan.start_method if apart else None,
        copy=False,
        autoreset="disabled",
        infos=False,
        env_kwargs=config.env_kwargs or None,
        on_failure=config.on_failure,
        restarts_per_minute=config.restarts_per_minute,  # guard: evaluations-have-the-runs-restarts
        on_bad_value=config.on_bad_value,
        reply_timeout_s=config.reply_timeout_s,
    )
