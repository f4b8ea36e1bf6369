"""Collecting whole episodes with a policy, in a vector env or in workers that act without the caller.

Strategies play the same episodes, bit for bit, for policies in numpy. Workers exchange no step with the caller: each
has its share of the envs, and plays its share of the episodes in them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, Self, TypedDict, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from multiverse.adapters.env_source import EnvSource, Recipe, Wrapper, recipes
from multiverse.core.errors import InvalidRequest, ReplyTimeout, WorkerDied
from multiverse.core.failures import FailureOptions, OnBadValue, OnFailure
from multiverse.core.layout import COMPLETED_EPISODES, COUNTS, Array
from multiverse.core.plan import IN_CALLER, IN_PROCESSES, Timeouts, whole_number
from multiverse.core.policy import Policy
from multiverse.core.reset_plan import ResetPlan, ResetRequest, warn_of_missing_tasks
from multiverse.executors.machine import usable_cores
from multiverse.executors.startup import ranges
from multiverse.executors.worker_loop import alike
from multiverse.rollouts.episode_play import Action, EpisodeRequest, play_episodes
from multiverse.rollouts.whole_episodes import WholeEpisodes
from multiverse.vector.make import make_vec
from multiverse.vector.single import VectorEnv


class EnvOptions(TypedDict, total=False):
    """Options of the envs in workers, as `make_vec` takes them. `timeouts.reply_s` (or `reply_timeout_s`) is the time
    for a worker's share of one call of `collect`, 600 s by default."""

    tasks: Sequence[Any] | None
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    wrappers: Sequence[Wrapper] | None
    on_failure: OnFailure | FailureOptions
    timeouts: Timeouts
    on_bad_value: OnBadValue
    restarts_per_minute: int | None
    reply_timeout_s: float | None


class EpisodeStrategy(Protocol):
    """Plays whole episodes."""

    envs: VectorEnv
    num_envs: int
    needs_reset: bool
    """Whether `envs` must be reset before the next call of `play`."""
    has_tasks: bool
    """Whether the envs know tasks by their numbers."""

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Observation space of one env."""

    def play(self, request: EpisodeRequest) -> WholeEpisodes:
        """Play these episodes."""

    def close(self) -> None:
        """Close the envs that the strategy has opened."""


class EpisodeCollector:
    """Plays whole episodes with a policy, and returns their transitions.

    Env i of n plays the i-th, (i + n)-th, … episode of each call; an env that has ended one begins its next while the
    others continue. The same episodes are the same, bit for bit, wherever they are played.
    """

    def __init__(
        self,
        envs: VectorEnv | EnvSource,
        reset_plan: ResetPlan,
        action: Action | None = None,
        *,
        num_envs: int | None = None,
        workers: int | None = None,
        **env_options: Unpack[EnvOptions],
    ) -> None:
        """Collect in a vector env, with one forward pass for all envs that are ready, or in workers that it starts.

        Args:
            envs: a vector env with autoreset "disabled"; or an env as `make_vec` takes it, for which the collector
                starts workers that act and step without the caller. Close it then, or use it as a context manager.
            reset_plan: where each episode begins. It is called with (attempt, number of the episode); attempts count
                from 0, and the next one replaces an episode that was lost. `DerivedSeeds`, or `DrawnTasks` where
                episodes have tasks.
            action: (shape, dtype) of one action as policies return it, if not as those of this library do.
            num_envs: number of envs in workers.
            workers: number of worker processes; by default one per core.
            env_options: `tasks`, `env_kwargs`, `wrappers`, `on_failure` and `timeouts`, as `make_vec` takes them, for
                envs in workers; also `on_bad_value`, `restarts_per_minute` and `reply_timeout_s`.
        """
        if unknown := sorted(env_options.keys() - EnvOptions.__annotations__.keys()):
            raise TypeError(f"EpisodeCollector() got an unexpected keyword argument {unknown[0]!r}")
        if not callable(reset_plan):
            raise InvalidRequest(f"reset_plan={reset_plan!r:.60}: expected a reset plan, such as mv.DerivedSeeds(1)")
        self._strategy: EpisodeStrategy
        if isinstance(envs, gymnasium.vector.VectorEnv):
            given = {"num_envs": num_envs, "workers": workers, **env_options}
            if odd := [name for name, value in given.items() if value is not None]:
                raise InvalidRequest(f"{odd[0]}= cannot be used with a vector env: pass it to make_vec")
            self._strategy = _InVectorEnv(envs)
        else:
            self._strategy = _InWorkers(envs, num_envs, workers, env_options)
        if not self._strategy.has_tasks:
            warn_of_missing_tasks(reset_plan)
        self._plan, self._action = reset_plan, action
        self.collected = 0
        """Number of episodes so far, which is the number of the next one."""

    def collect(self, policy: Policy, episodes: int, explore: bool = True) -> WholeEpisodes:
        """Play this number of episodes. `policy`: an algorithm's, or what `mv.load` returns; `explore`: with its noise.

        With `on_failure="restart"` an episode whose env or worker is lost is dropped and replaced by another. A worker
        that acts costs its whole share. After an interrupt, the next call begins the same episodes again.
        """
        if whole_number("episodes", episodes) < 1:
            raise InvalidRequest(f"episodes={episodes}: expected at least 1")
        strategy, envs = self._strategy, self._strategy.envs
        policy_space = getattr(policy, "observation_space", None)
        if policy_space is not None and not alike(policy_space, strategy.observation_space):
            raise InvalidRequest(
                f"{policy!r} takes observations of {policy_space}, and these envs return "
                f"{strategy.observation_space}: load a policy that was trained in this env"
            )
        numbers = range(self.collected, self.collected + episodes)
        request = EpisodeRequest(acting_policy(policy), self._plan, numbers, explore, self._action)
        if strategy.needs_reset:
            envs.reset()
        strategy.needs_reset = True
        found = strategy.play(request)
        strategy.needs_reset, self.collected = False, self.collected + episodes
        return found

    @property
    def num_envs(self) -> int:
        """Number of envs in which episodes are played."""
        return self._strategy.num_envs

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return len(self.worker_pids)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Ids of the worker processes."""
        return self._strategy.envs.worker_pids

    def close(self) -> None:
        """Close the workers that the collector has started; a vector env that it was given stays open."""
        self._strategy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _InVectorEnv:
    """Episode strategy: the caller acts, in a vector env."""

    needs_reset = False

    def __init__(self, envs: Any) -> None:
        if envs.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
            raise InvalidRequest(
                "autoreset='same_step' cannot be used for whole episodes, which begin at different times: pass "
                "make_vec(…, autoreset='disabled')"
            )
        self.envs, self.num_envs = envs, envs.num_envs
        self.has_tasks = not isinstance(envs, VectorEnv) or envs.known_tasks is not None
        self.observation_space = envs.single_observation_space

    def play(self, request: EpisodeRequest) -> WholeEpisodes:
        return play_episodes(self.envs, request)

    def close(self) -> None:
        pass


class _InWorkers:
    """Episode strategy: every worker plays its share of the episodes without the caller."""

    needs_reset = True

    def __init__(self, env: EnvSource, num_envs: int | None, workers: int | None, options: Mapping[str, Any]) -> None:
        each = recipes(env, num_envs, options.get("env_kwargs"), options.get("wrappers"))
        self._count = min(usable_cores() if workers is None else whole_number("workers", workers), len(each))
        if self._count < 1:
            raise InvalidRequest(f"workers={workers}: expected at least 1")
        failures = options.get("on_failure", "raise")
        if not isinstance(failures, FailureOptions):
            more = {name: options[name] for name in ("on_bad_value", "restarts_per_minute") if name in options}
            failures = FailureOptions(on_failure=failures, **more)
        timeouts = options.get("timeouts", Timeouts(reply_s=options.get("reply_timeout_s", 600.0)))
        inner = {"tasks": options.get("tasks"), "on_failure": failures}
        shares = [[each[i] for i in share] for share in ranges(len(each), self._count)]
        self.envs = make_vec(
            [partial(_Player, w, share, inner) for w, share in enumerate(shares)],
            executor=IN_PROCESSES,
            workers=self._count,
            autoreset="disabled",
            infos=False,
            on_failure=replace(failures, on_bad_value="raise"),  # of what the workers return; envs have `failures`
            timeouts=timeouts,
        )
        self.num_envs, self._calls, self.has_tasks = len(each), 0, inner["tasks"] is not None

    @cached_property
    def observation_space(self) -> spaces.Space[Any]:
        space: spaces.Space[Any] = self.envs.call("space", env_ids=[0])[0]
        return space

    def play(self, request: EpisodeRequest) -> WholeEpisodes:
        """Play these episodes. A worker that is lost costs all episodes of its share, which are replaced by others;
        the number of steps that it had taken is not known."""
        portable = request.policy.portable()
        if portable is None:
            raise InvalidRequest(
                "this policy cannot act in workers, because it needs its algorithm: collect with a vector env instead, "
                "EpisodeCollector(mv.make_vec(…), reset_plan)"
            )
        self._calls += 1
        request = request._replace(policy=portable)
        shares = {w: _Share(request.plan, tuple(request.numbers[w :: self._count])) for w in range(self._count)}
        shares = {w: share for w, share in shares.items() if share.numbers}
        dropped = 0
        while True:
            try:
                parts = self.envs.call("play", request, shares, self._calls, env_ids=sorted(shares))
                break
            except (WorkerDied, ReplyTimeout):
                lost = self.envs.awaiting_reset
                if not lost:
                    raise
                self.envs.reset(env_ids=lost)
                for w in set(lost) & shares.keys():
                    dropped += len(shares[w].numbers)
                    shares[w] = replace(shares[w], lost=shares[w].lost + 1)  # guard: a-lost-share-is-drawn-again
        for w, share in shares.items():  # completed work, to which the number of restarts is related
            self.envs.views[COUNTS][COMPLETED_EPISODES, w] += len(share.numbers)  # guard: collected-episodes-are-work
        episodes = WholeEpisodes.interleaved(parts)
        episodes.dropped += dropped
        return episodes

    def close(self) -> None:
        self.envs.close()


@dataclass(frozen=True, slots=True)
class _Share:
    """One worker's episodes: a reset plan over their positions in `numbers`."""

    plan: ResetPlan
    numbers: tuple[int, ...]
    lost: int = 0  # attempts that were lost with the worker

    def __call__(self, env_id: int, episode: int) -> ResetRequest:
        return self.plan(env_id + self.lost, self.numbers[episode])


class _Player(gymnasium.Env[Array, Array]):
    """A worker's only env, which holds its share of the envs. It plays episodes on request, and is never stepped."""

    observation_space, action_space = spaces.Box(0.0, 0.0, (1,)), spaces.Box(0.0, 0.0, (1,))

    def __init__(self, number: int, share: Sequence[Recipe], options: Mapping[str, Any]) -> None:
        self._number = number
        makers = [recipe.build_foreign for recipe in share]
        self._envs = make_vec(makers, executor=IN_CALLER, autoreset="disabled", **options)
        self._latest: tuple[Any, WholeEpisodes] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def play(self, request: EpisodeRequest, shares: Mapping[int, _Share], call: int) -> WholeEpisodes:
        """Play this worker's share once per call: a repetition, after another worker was lost, returns the same."""
        mine = shares[self._number]
        if self._latest is None or self._latest[0] != (call, mine.lost):
            self._latest = None
            episodes = play_episodes(self._envs, request._replace(plan=mine, numbers=range(len(mine.numbers))))
            self._latest = (call, mine.lost), episodes
        return self._latest[1]

    def space(self) -> spaces.Space[Any]:
        """Observation space of the envs that this worker holds."""
        return self._envs.single_observation_space

    def close(self) -> None:
        self._envs.close()


def acting_policy(policy: Any) -> Policy:
    """The policy, or the one that acts for a loaded policy; InvalidRequest if it is neither."""
    acting: Policy = getattr(policy, "acting", policy)
    if not hasattr(acting, "first_memory"):
        raise InvalidRequest(
            f"policy={policy!r} cannot play episodes: pass what mv.load(run) returns, mv.RandomPolicy(action_space), "
            "or an object with the methods of multiverse.core.policy.Policy"
        )
    return acting


class EpisodeWorkers(EpisodeCollector):
    """Old name of an `EpisodeCollector` that starts workers, for one version."""

    def __init__(
        self, env: EnvSource, num_envs: int, reset_plan: ResetPlan, *, workers: int | None = None, **options: Any
    ) -> None:
        warnings.warn(
            "EpisodeWorkers(env, num_envs, reset_plan) is now EpisodeCollector(env, reset_plan, num_envs=…)",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(env, reset_plan, num_envs=num_envs, workers=workers, **options)
