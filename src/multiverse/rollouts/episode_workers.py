"""Whole episodes played in worker processes, acting included: nothing is handed over at every step.

Every worker has its share of the envs, and an `EpisodeCollector` over them. What comes of it is what one
`EpisodeCollector` in the caller gives, bit for bit, for policies in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.adapters.env_source import EnvSource, Recipe, Wrapper, recipes
from multiverse.core.errors import InvalidRequest, ReplyTimeout, WorkerDied
from multiverse.core.failures import FailureOptions, OnBadValue, OnFailure
from multiverse.core.layout import COMPLETED_EPISODES, COUNTS
from multiverse.core.plan import IN_CALLER, IN_PROCESSES, Timeouts, whole_number
from multiverse.core.policy import Leaves, Policy
from multiverse.core.reset_plan import ResetPlan, ResetRequest
from multiverse.core.views import Array
from multiverse.executors.machine import usable_cores
from multiverse.executors.startup import ranges
from multiverse.rollouts.rollout import Rollout
from multiverse.rollouts.whole_episodes import EpisodeCollector, Seconds, WholeEpisodes, one_that_acts
from multiverse.vector.make import make_vec


class EpisodeWorkers:
    """Collects as `EpisodeCollector` does, where the envs run. `close` it."""

    def __init__(
        self,
        env: EnvSource,
        num_envs: int,
        reset_plan: ResetPlan,
        *,
        workers: int | None = None,
        tasks: Sequence[Any] | None = None,
        env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        wrappers: Sequence[Wrapper] | None = None,
        on_failure: OnFailure = "raise",
        on_bad_value: OnBadValue = "raise",
        restarts_per_minute: int | None = None,
        reply_timeout_s: float | None = 600.0,
    ) -> None:
        """As `make_vec` and `EpisodeCollector` take them; `workers`: as many as there are cores. `reply_timeout_s` is
        for a worker's share of one call of `collect`."""
        each = recipes(env, num_envs, env_kwargs, wrappers)
        count = min(usable_cores() if workers is None else whole_number("workers", workers), len(each))
        if count < 1:
            raise InvalidRequest(f"workers={workers}: at least 1")
        failures = FailureOptions(on_failure=on_failure, restarts_per_minute=restarts_per_minute)
        inner = {"tasks": tasks, "on_failure": replace(failures, on_bad_value=on_bad_value)}
        shares = [[each[i] for i in share] for share in ranges(len(each), count)]
        self._hosts = make_vec(
            [partial(_Player, w, share, inner) for w, share in enumerate(shares)], executor=IN_PROCESSES, workers=count,
            autoreset="disabled", infos=False, on_failure=failures, timeouts=Timeouts(reply_s=reply_timeout_s),
        )  # fmt: skip
        self._plan = reset_plan
        self.num_envs, self.num_workers = len(each), count
        self.collected = 0  # episodes so far, which is the number of the next one
        self._calls, self._cut = 0, True  # that one did not come to its end: a share may be played still

    def collect(self, policy: Policy, episodes: int, explore: bool = True) -> WholeEpisodes:
        """So many more. A worker that is lost costs all episodes of its share, in whose place others are drawn; how
        many steps it had taken nobody knows. After an interrupt the next call waits for what is played still."""
        if whole_number("episodes", episodes) < 1:
            raise InvalidRequest(f"episodes={episodes}: at least 1")
        portable = one_that_acts(policy).portable()
        if portable is None:
            raise InvalidRequest("this policy acts where its algorithm is: collect with an EpisodeCollector instead")
        if self._cut:
            self._hosts.reset()
        self._cut, self._calls = True, self._calls + 1
        first, count = self.collected, self.num_workers
        shares = {w: _Share(self._plan, tuple(range(first + w, first + episodes, count))) for w in range(count)}
        shares = {w: share for w, share in shares.items() if share.numbers}
        dropped = 0
        while True:
            try:
                parts = self._hosts.call("play", portable, shares, explore, self._calls, env_ids=sorted(shares))
                break
            except (WorkerDied, ReplyTimeout):
                lost = self._hosts.awaiting_reset
                if not lost:
                    raise
                self._hosts.reset(env_ids=lost)
                for w in set(lost) & shares.keys():
                    dropped += len(shares[w].numbers)
                    shares[w] = replace(shares[w], lost=shares[w].lost + 1)  # guard: a-lost-share-is-drawn-again
        for w, share in shares.items():  # its work, relative to which its restarts are limited
            self._hosts.views[COUNTS][COMPLETED_EPISODES, w] += len(share.numbers)  # guard: collected-episodes-are-work
        self._cut, self.collected = False, self.collected + episodes
        found = _merged(parts, episodes)
        found.dropped += dropped
        return found

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes."""
        return self._hosts.worker_pids

    def close(self) -> None:
        """End every worker; twice without harm."""
        self._hosts.close()

    def __enter__(self) -> EpisodeWorkers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Share:
    """One worker's episodes: a reset plan over their positions in `numbers`."""

    plan: ResetPlan
    numbers: tuple[int, ...]
    lost: int = 0  # attempts that were lost with the worker

    def __call__(self, env_id: int, episode: int) -> ResetRequest:
        return self.plan(env_id + self.lost, self.numbers[episode])


class _Player(gymnasium.Env[Array, Array]):
    """What a worker has: its envs, and who collects from them. It is asked to `play`, never stepped."""

    observation_space, action_space = spaces.Box(0.0, 0.0, (1,)), spaces.Box(0.0, 0.0, (1,))

    def __init__(self, number: int, share: Sequence[Recipe], settings: Mapping[str, Any]) -> None:
        self._number = number
        makers = [recipe.build_foreign for recipe in share]
        self._envs = make_vec(makers, executor=IN_CALLER, autoreset="disabled", **settings)
        self._played: tuple[Any, WholeEpisodes] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def play(self, policy: Policy, shares: Mapping[int, _Share], explore: bool, call: int) -> WholeEpisodes:
        """Once in each call: asked again, because another worker was lost, it has that still."""
        mine = shares[self._number]
        if self._played is None or self._played[0] != (call, mine.lost):
            self._played = None
            found = EpisodeCollector(self._envs, mine).collect(policy, len(mine.numbers), explore)
            self._played = (call, mine.lost), found
        return self._played[1]

    def close(self) -> None:
        self._envs.close()


def _merged(parts: Sequence[WholeEpisodes], episodes: int) -> WholeEpisodes:
    """Episode k is that of part k mod parts."""
    count, longest = len(parts), max(part.rollout.steps for part in parts)

    def padded(rows: Sequence[Any]) -> Any:
        """[longest, episodes, …] of each part's [T, S, …]."""
        if rows[0] is None:
            return None
        found = np.zeros((longest, episodes, *rows[0].shape[2:]), rows[0].dtype)
        for w, one in enumerate(rows):
            found[: len(one), w::count] = one
        return found

    def leaves(name: str) -> Leaves:
        return {key: padded([getattr(p.rollout, name)[key] for p in parts]) for key in getattr(parts[0].rollout, name)}

    first = parts[0].rollout
    last = {path: rows[-1] for path, rows in leaves("observations").items()}
    columns = ("actions", "rewards", "terminated", "truncated", "valid", "starts", "action_masks")
    previous = None
    if first.previous is not None:
        previous = tuple(padded([p.rollout.previous[i] for p in parts]) for i in (0, 1))  # type: ignore[index]
    rollout = Rollout(
        observations=leaves("observations"), last=last, finals=leaves("finals"), memory=leaves("memory"),  # type: ignore[arg-type]
        **{name: padded([getattr(part.rollout, name) for part in parts]) for name in columns},
        previous=previous, group=first.group, policy_version=first.policy_version,
    )  # fmt: skip

    def dealt(of: str) -> list[Any]:
        return [getattr(parts[k % count], of)[k // count] for k in range(episodes)]

    seconds = Seconds(
        **{phase: float(np.mean([getattr(p.seconds, phase) for p in parts])) for phase in asdict(Seconds())}
    )
    found = WholeEpisodes(rollout, np.array(dealt("lengths")), dealt("began_from"), dealt("infos"), seconds)
    found.dropped, found.dropped_steps = (sum(getattr(p, name) for p in parts) for name in ("dropped", "dropped_steps"))
    return found
