"""Collecting whole episodes, each from a seed and a task of its own: nobody waits for the slowest.

What comes of it depends on the policy, the reset plan and the episodes' numbers alone: neither on how many envs there
are, nor on where they run, nor on who is ready first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.failures import BAD_VALUE, RESTARTED
from multiverse.contracts.infos import Infos
from multiverse.contracts.layout import REWARD, SINGLE_AGENT, TERMINATED, TRUNCATED, FieldName
from multiverse.contracts.plan import whole_number
from multiverse.contracts.policy import Policy, Seen
from multiverse.contracts.reset_plan import ResetPlan, ResetRequest
from multiverse.contracts.views import Array
from multiverse.experience.features import Features
from multiverse.experience.numpy_policies import action_of
from multiverse.experience.rollout import Rollout, RolloutShape, leaf_of, private_fields
from multiverse.experience.rows import answer_of, take
from multiverse.vector.batches import StepBatch
from multiverse.vector.single import VectorEnv

FIRST_STEPS = 64
"""Room for so many; twice as many when they are used up."""
NOISE_STEPS = 32
"""Drawn at once, for one episode."""
_NOISE = 2  # beside an episode's seed: a stream of its own, apart from the env's and the task's


@dataclass(slots=True)
class Seconds:
    """Of the caller: choosing actions, handing them out (and beginning episodes), waiting for what comes of them
    (envs in the caller step here), and putting it away."""

    act: float = 0.0
    step: float = 0.0
    receive: float = 0.0
    store: float = 0.0

    def share(self) -> dict[str, float]:
        """Each as a part of all."""
        total = sum(asdict(self).values()) or 1.0
        return {phase: seconds / total for phase, seconds in asdict(self).items()}

    def bottleneck(self) -> str:
        """The phase that took longest, and what that means."""
        phase, share = max(self.share().items(), key=lambda item: item[1])
        means = {
            "act": "the policy is the bottleneck: more workers do not help",
            "step": "handing out actions is the bottleneck: fewer workers with more envs each help",
            "receive": "the envs are the bottleneck: workers help, up to the number of cores",
            "store": "putting steps away is the bottleneck: more workers do not help",
        }
        return f"{phase} {share:.0%} of the time: {means[phase]}"


@dataclass(slots=True)
class WholeEpisodes:
    """What was collected: episode k is column k of the rollout, from row 0 to its end."""

    rollout: Rollout  # [longest, episodes]; not `valid` behind an episode's end
    lengths: Array  # [episodes] steps
    began_from: list[ResetRequest]  # seed and task of every episode
    infos: list[dict[str, Any]]  # of the last step of every episode
    seconds: Seconds
    dropped: int = 0  # episodes that were lost with an env or a worker, in whose place others were drawn
    dropped_steps: int = 0  # of those

    @property
    def env_steps(self) -> int:
        """Without those that were dropped."""
        return int(self.lengths.sum())

    @property
    def returns(self) -> Array:
        """[episodes]"""
        return np.asarray(self.rollout.rewards.sum(axis=0, dtype=np.float64))

    @property
    def returns_per_episode(self) -> Array:
        """[episodes, k] of meta-episodes: what each of their k episodes returned. Adapting shows from left to right."""
        return np.stack([info["returns_per_episode"] for info in self.infos])

    @property
    def success_rates(self) -> Array | None:
        """[k] of meta-episodes: in how many of them each of the k episodes had a success; None: the env names none."""
        found = [info["success_per_episode"] for info in self.infos if "success_per_episode" in info]
        return np.asarray(np.mean(found, axis=0)) if len(found) == len(self.infos) else None

    def each(self) -> Iterator[Rollout]:
        """Every episode by itself: [its length, 1]."""
        for k, length in enumerate(self.lengths.tolist()):
            yield _column(self.rollout, k, length)


class EpisodeCollector:
    """Has a policy play whole episodes in a vector env. Env i of n plays the i-th, (i + n)-th, … of each call; whoever
    has ended one begins its next while the others go on."""

    def __init__(
        self, envs: VectorEnv, reset_plan: ResetPlan, action: tuple[tuple[int, ...], Any] | None = None
    ) -> None:
        """`reset_plan`: what an episode begins from. It is asked for episode `number` of env `attempt`, which is 0
        unless an episode was lost and another must be drawn in its place: `DerivedSeeds`, or `DrawnTasks` where
        episodes have tasks. `action`: (shape, dtype) of one action as policies have it, if not as ours."""
        if envs.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
            raise InvalidRequest(
                "whole episodes are begun one by one: make_vec(…, autoreset='disabled'), not 'same_step'"
            )
        self._envs, self._plan, self._action = envs, reset_plan, action or action_of(envs.single_action_space)
        self.collected = 0  # episodes so far, which is the number of the next one
        self._cut = False  # a call did not come to its end: steps may be under way

    def collect(self, policy: Policy, episodes: int, explore: bool = True) -> WholeEpisodes:
        """So many more. `explore`: with the policy's noise.

        With `on_failure="restart"` an episode whose env or worker is lost is dropped, and another drawn in its place.
        """
        if whole_number("episodes", episodes) < 1:
            raise InvalidRequest(f"episodes={episodes}: at least 1")
        if self._cut:
            self._envs.reset()
        self._cut = True
        numbers = range(self.collected, self.collected + episodes)
        play = _Play(self._envs, policy, self._plan, numbers, self._action, explore)
        ready = play.begin(range(min(episodes, self._envs.num_envs)))
        while play.under_way or ready:
            if ready:
                play.act(ready)
            ready = play.receive()
        self._cut, self.collected = False, self.collected + episodes
        return play.found()


class _Play:
    """Episodes under way, and what has come of them so far: episode k is column k."""

    def __init__(
        self, envs: VectorEnv, policy: Policy, plan: ResetPlan, numbers: range, action: Any, explore: bool
    ) -> None:
        self._envs, self._policy, self._plan, self._numbers, count = envs, policy, plan, numbers, len(numbers)
        self._features = Features(envs.single_observation_space, envs.single_action_space)
        mask = self._features.mask
        masks = 0 if mask is None else int(np.prod(mask.space.shape or ()))
        self._first_memory = policy.first_memory(1)
        space, memory = envs.single_observation_space, self._first_memory
        self._shape = RolloutShape(SINGLE_AGENT, space, FIRST_STEPS, count, action, masks, memory=memory)
        self._lay_out()
        self._columns = np.full(envs.num_envs, -1)  # what each env plays; -1: nothing any more
        self._steps = np.zeros(count, np.int64)
        self._memory = policy.first_memory(count)
        self._attempts, self._began_from = [-1] * count, [ResetRequest()] * count
        self._rngs: list[Any] = [None] * count
        self._noise: Array | None = policy.noise(np.random.default_rng(0), NOISE_STEPS, count) if explore else None
        self._infos: list[dict[str, Any]] = [{}] * count
        self.under_way = 0  # envs
        self.seconds, self._dropped, self._dropped_steps, self._now = Seconds(), 0, 0, perf_counter()

    def _lay_out(self) -> None:
        before = getattr(self, "_arrays", {})
        self._arrays: dict[FieldName, Array] = private_fields(self._shape.fields())
        for name, rows in before.items():
            self._arrays[name][: len(rows)] = rows
        at = {name[2:]: rows for name, rows in self._arrays.items()}
        self._seen = {name[1:]: rows for name, rows in at.items() if name[0] == "observations"}
        self._finals = {name[1:]: rows for name, rows in at.items() if name[0] == "finals"}
        self._kept = {str(name[1]): rows for name, rows in at.items() if name[0] == "memory"}
        self._actions, self._rewards, self._ended = at[("actions",)], at[("values",)][:, REWARD], at[("ended",)]
        self._starts, self._masks = at[("starts",)], at.get(("masks",))
        self._previous = [at[(f"previous_{n}",)] for n in ("actions", "rewards") if self._kept]

    def _took(self, phase: str) -> None:
        now = perf_counter()
        setattr(self.seconds, phase, getattr(self.seconds, phase) + now - self._now)
        self._now = now

    # -- episodes ------------------------------------------------------------------------------------------------
    def begin(self, env_ids: Sequence[int], lost: Sequence[int] = ()) -> list[int]:
        """The next episode of each of these envs, and another one for those whose last was lost. Those that play."""
        for i in env_ids:
            self._assign(i, i if self._columns[i] < 0 else int(self._columns[i]) + self._envs.num_envs)
        asked, begun = [*env_ids, *lost], set()
        while asked:
            for i in lost:
                if (column := int(self._columns[i])) >= 0:
                    self._dropped, self._dropped_steps = self._dropped + 1, self._dropped_steps + self._steps[column]
                    self._assign(i, column)
            self._reset([i for i in asked if self._columns[i] >= 0 or i in lost])
            begun.update(asked)
            asked = lost = self._envs.awaiting_reset  # with a worker meanwhile, though nobody had asked them
        self._took("step")
        return sorted(i for i in begun if self._columns[i] >= 0)

    def _assign(self, i: int, column: int) -> None:
        """Env i plays this episode, if there is one of that number."""
        self._columns[i] = column if column < len(self._numbers) else -1
        if self._columns[i] >= 0:
            self._attempts[column] += 1
            self._draw(column)

    def _draw(self, column: int) -> None:
        request = self._plan(self._attempts[column], self._numbers[column])
        if request.seed is None:
            raise InvalidRequest(
                "the reset plan gave an episode no seed: noise comes from there, as DerivedSeeds has it"
            )
        self._began_from[column], self._rngs[column] = request, np.random.default_rng((request.seed, _NOISE))
        self._steps[column] = 0
        for name, first in self._first_memory.items():
            self._memory[name][column] = first[0]

    def _reset(self, ids: list[int]) -> None:
        """Those that play nothing too: lost with a worker, they cannot be stepped before."""
        if not ids:
            return
        columns = self._columns[ids]
        requests = [self._began_from[column] if column >= 0 else ResetRequest() for column in columns.tolist()]
        seeds, options, tasks = ([getattr(one, what) for one in requests] for what in ("seed", "options", "task"))
        observations, _ = self._envs.reset(env_ids=ids, seed=seeds, options=options, tasks=tasks)
        playing = columns >= 0
        for path, rows in self._seen.items():
            rows[0, columns[playing]] = leaf_of(observations, path)[playing]

    # -- steps ---------------------------------------------------------------------------------------------------
    def act(self, ids: list[int]) -> None:
        """One action for each of these envs, which are on their way then."""
        columns = self._columns[ids]
        t = self._steps[columns]
        starts = self._starts[t, columns] = t == 0
        seen = {path: rows[t, columns] for path, rows in self._seen.items()}
        masks = self._features.open_actions(seen)
        if self._masks is not None:
            self._masks[t, columns] = masks
        actions, rewards = self._actions[t - 1, columns], self._rewards[t - 1, columns]
        if starts.any():
            actions[starts], rewards[starts] = 0, 0.0
        memory = {name: kept[columns] for name, kept in self._memory.items()}
        for name, kept in memory.items():
            self._kept[name][t, columns] = kept
        for rows, before in zip(self._previous, (actions, rewards)):
            rows[t, columns] = before
        answer = self._policy.act(Seen(seen, starts, masks, actions, rewards), self._noise_of(columns, t), memory)
        chosen, after = answer_of(answer, memory)
        taken = np.empty((len(ids), *self._actions.shape[2:]), self._actions.dtype)
        take(chosen, taken)
        self._actions[t, columns] = taken
        for name, kept in after.items():
            self._memory[name][columns] = kept
        given = self._policy.for_env(taken)
        self._took("act")
        self._envs.send(given, ids)
        self.under_way += len(ids)
        self._took("step")

    def _noise_of(self, columns: Array, t: Array) -> Array | None:
        if self._noise is None:
            return None
        rows = t % NOISE_STEPS
        for column in columns[rows == 0].tolist():
            self._noise[:, column] = self._policy.noise(self._rngs[column], NOISE_STEPS, 1)[:, 0]
        return np.asarray(self._noise[rows, columns])

    def receive(self) -> list[int]:
        """What has come of the actions of some envs; returns those that can act now, ascending."""
        batch = self._envs.receive(min_envs=1)
        self.under_way -= len(batch.env_ids)
        self._took("receive")
        told, over = batch.env_ids[_lost_rows(batch.infos)], batch.terminated | batch.truncated
        lost = {*told.tolist(), *self._envs.awaiting_reset}  # guard: a-lost-episode-is-dropped
        self._store(batch)
        self._steps[self._columns[told]] -= 1  # guard: a-lost-step-is-no-step
        ended = [i for i in batch.env_ids[over].tolist() if i not in lost]
        goes_on = [i for i in batch.env_ids[~over].tolist() if i not in lost]
        self._end(batch, ended)
        self._took("store")
        return sorted({*goes_on, *self.begin(ended, sorted(lost))}) if ended or lost else goes_on

    def _store(self, batch: StepBatch) -> None:
        columns = self._columns[batch.env_ids]
        t = self._steps[columns]
        self._rewards[t, columns] = batch.rewards
        self._ended[t, TERMINATED, columns], self._ended[t, TRUNCATED, columns] = batch.terminated, batch.truncated
        for path, rows in self._seen.items():
            rows[t + 1, columns] = leaf_of(batch.observations, path)
        t += 1
        self._steps[columns] = t
        if t.max() >= self._shape.steps:
            self._shape = replace(self._shape, steps=2 * self._shape.steps)
            self._lay_out()

    def _end(self, batch: StepBatch, ended: list[int]) -> None:
        for i in ended:
            column = int(self._columns[i])
            row, last = int(np.searchsorted(batch.env_ids, i)), int(self._steps[column]) - 1
            self._infos[column] = _of_row(batch.infos, row)
            for path, rows in self._finals.items():
                rows[last, column] = self._seen[path][last + 1, column]

    # -- what has come of it -------------------------------------------------------------------------------------
    def found(self) -> WholeEpisodes:
        longest, count = int(self._steps.max()), len(self._numbers)
        shape = replace(self._shape, steps=longest)
        arrays = {one.name: self._arrays[one.name][: one.shape[0]] for one in shape.fields()}
        rollout = shape.rollout(arrays)
        rollout.policy_version = self._policy.version
        rollout.valid[...] = np.arange(longest)[:, None] < self._steps
        rollout.rewards[...] = np.where(rollout.valid, self._rewards[:longest], 0.0)
        for rows in (rollout.terminated, rollout.truncated, rollout.starts):
            rows &= rollout.valid  # behind the end lies what an episode that was dropped has left
        found = WholeEpisodes(rollout, self._steps[:count].copy(), self._began_from, self._infos, self.seconds)
        found.dropped, found.dropped_steps = self._dropped, int(self._dropped_steps)
        return found


def _lost_rows(infos: Infos) -> list[int]:
    """Of steps that were none: their env was replaced, or had given what cannot be learned from."""
    lost = [infos[f"_{key}"] for key in (RESTARTED, BAD_VALUE) if f"_{key}" in infos]
    return np.flatnonzero(np.logical_or.reduce(lost)).tolist() if lost else []


def _of_row(infos: Infos, row: int) -> dict[str, Any]:
    """One env's own."""
    keys = [key for key in infos if f"_{key}" in infos and infos[f"_{key}"][row]]
    return {key: infos[key][row] for key in keys}


def _column(rollout: Rollout, k: int, length: int) -> Rollout:
    """[length, 1]"""

    def part(rows: Any) -> Any:
        return None if rows is None else rows[:length, k : k + 1]

    after = {path: rows[length - 1, k : k + 1] for path, rows in rollout.finals.items()}
    return replace(
        rollout,
        observations={path: part(rows) for path, rows in rollout.observations.items()},
        last=after,
        finals={path: part(rows) for path, rows in rollout.finals.items()},
        **{name: part(getattr(rollout, name)) for name in _COLUMNS},
        memory={name: part(rows) for name, rows in rollout.memory.items()},
        last_memory={},
        previous=None if rollout.previous is None else tuple(part(rows) for rows in rollout.previous),
        last_previous=None,
    )


_COLUMNS = ("actions", "rewards", "terminated", "truncated", "valid", "starts", "action_masks")
