"""Playing whole episodes in a vector env, each with its own seed and task: no env waits for the slowest.

The episodes depend on the policy, the reset plan and the episodes' numbers alone: not on the number of envs, nor on
where they run, nor on the order in which they are ready.

Not built on the rows of `host_rows`, whose rollouts have a fixed number of steps: there an env that ends early waits
for the longest episode, whose length is not known in advance. Here an env begins its next episode at once, episodes
have any length, and the infos of their last steps are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.infos import Infos, row_info
from multiverse.core.layout import SINGLE_AGENT, Array, FieldName
from multiverse.core.policy import Policy, Seen
from multiverse.core.reset_plan import ResetPlan, ResetRequest
from multiverse.executors.backends import BACKENDS
from multiverse.policies.features import Features, dtype_of, leaf_of, shape_of
from multiverse.policies.heads import action_of
from multiverse.rollouts.collector import lost_rows
from multiverse.rollouts.rollout import Rollout, RolloutShape, private_fields
from multiverse.rollouts.rows import checked_answer, write_actions
from multiverse.rollouts.whole_episodes import Seconds, WholeEpisodes
from multiverse.vector.batches import StepBatch
from multiverse.vector.single import VectorEnv

NOISE_STEPS = 32
"""Number of steps for which an episode's noise is drawn at once."""
_NOISE = 2  # second part of the noise's seed: a stream apart from the env's and the task's

Action = tuple[tuple[int, ...], Any]
"""(shape, dtype) of one action as policies return it."""


class EpisodeRequest(NamedTuple):
    """Episodes to play: their policy and numbers, and the reset plan, which is asked for (attempt, number)."""

    policy: Policy
    plan: ResetPlan
    numbers: range
    explore: bool
    action: Action | None = None  # None: that of policies of this library


def play_episodes(envs: VectorEnv, request: EpisodeRequest) -> WholeEpisodes:
    """Play these episodes. Env i of n plays the i-th, (i + n)-th, … of them."""
    play = _Play(envs, request)
    ready = play.begin(range(min(len(request.numbers), envs.num_envs)))
    while play.pending or ready:
        if ready:
            play.act(ready)
        ready = play.receive()
    return play.episodes()


class _Batch(NamedTuple):
    """The parts of a `StepBatch` that are used."""

    env_ids: Array
    observations: Any
    rewards: Array
    terminated: Array
    truncated: Array
    infos: Infos


class _Note(NamedTuple):
    """Rows of several episodes, by their names in a rollout."""

    columns: Array  # episode of each row; -1: dropped
    steps: Array  # step of each row
    rows: Mapping[FieldName, Any]


class _Play:
    """Running episodes: episode k is column k. Results are noted batch by batch and put in their places at the end:
    writing a few rows into large arrays at every step would cost more."""

    def __init__(self, envs: VectorEnv, request: EpisodeRequest) -> None:
        self._envs, self._policy, self._plan, self._numbers = envs, request.policy, request.plan, request.numbers
        self._action, count = request.action or action_of(envs.single_action_space), len(self._numbers)
        self._features = Features(envs.single_observation_space, envs.single_action_space)
        self._columns = np.full(envs.num_envs, -1)  # episode of each env; -1: none is left for it
        self._first_memory = self._policy.first_memory(1)
        # latest observation, action, reward and memory of each episode
        self._observations = {
            leaf.path: np.zeros((count, *shape_of(leaf)), dtype_of(leaf)) for leaf in self._features.all_leaves
        }
        shape, dtype = self._action
        self._actions, self._rewards = np.zeros((count, *shape), dtype), np.zeros(count)
        self._memory, self._steps = self._policy.first_memory(count), np.zeros(count, np.int64)
        self._noise: Array | None = None
        if request.explore:
            self._noise = self._policy.noise(np.random.default_rng(0), NOISE_STEPS, count)
        self._attempts, self._began_from = [-1] * count, [ResetRequest()] * count
        self._rngs: list[Any] = [None] * count
        self._infos: list[dict[str, Any]] = [{}] * count
        self._notes: dict[str, list[_Note]] = {"acted": [], "received": [], "finals": [], "observations": []}
        self.pending = 0  # envs that step
        # Where the caller steps some envs, a batch is complete when those have stepped: no other is ready sooner.
        self._steps_together, self._next_actions = BACKENDS[envs.plan.executor].own_share, None
        self.seconds, self._dropped, self._dropped_steps, self._now = Seconds(), 0, 0, perf_counter()

    def _clock(self, phase: str) -> None:
        now = perf_counter()
        setattr(self.seconds, phase, getattr(self.seconds, phase) + now - self._now)
        self._now = now

    # -- episodes ------------------------------------------------------------------------------------------------
    def begin(self, env_ids: Sequence[int], lost: Sequence[int] = ()) -> list[int]:
        """Begin the next episode of each of these envs, and a replacement for each lost one. Return the envs that
        play."""
        for i in env_ids:
            self._assign(i, i if self._columns[i] < 0 else int(self._columns[i]) + self._envs.num_envs)
        requested, begun = [*env_ids, *lost], set()
        while requested:
            for i in lost:
                if (column := int(self._columns[i])) >= 0:
                    self._drop(column)
                    self._assign(i, column)
            self._reset([i for i in requested if self._columns[i] >= 0 or i in lost])
            begun.update(requested)
            requested = lost = self._envs.awaiting_reset  # lost with a worker during the reset
        self._clock("step")
        return sorted(i for i in begun if self._columns[i] >= 0)

    def _assign(self, i: int, column: int) -> None:
        """Give env i this episode, if there is an episode of this number."""
        self._columns[i] = column if column < len(self._numbers) else -1
        if self._columns[i] >= 0:
            self._attempts[column] += 1
            self._draw(column)

    def _drop(self, column: int) -> None:
        self._dropped, self._dropped_steps = self._dropped + 1, self._dropped_steps + int(self._steps[column])
        for note in (note for notes in self._notes.values() for note in notes):
            note.columns[note.columns == column] = -1

    def _draw(self, column: int) -> None:
        request = self._plan(self._attempts[column], self._numbers[column])
        if request.seed is None:
            raise InvalidRequest(
                f"the reset plan returned no seed for episode {self._numbers[column]}: the noise of whole episodes is "
                "derived from it. Use a plan with seeds, such as DerivedSeeds"
            )
        self._began_from[column], self._rngs[column] = request, np.random.default_rng((request.seed, _NOISE))
        self._steps[column], self._actions[column], self._rewards[column] = 0, 0, 0.0
        for name, first in self._first_memory.items():
            self._memory[name][column] = first[0]

    def _reset(self, ids: list[int]) -> None:
        """Reset these envs, also those without an episode: they were lost with a worker, and must be reset first."""
        if not ids:
            return
        columns = self._columns[ids]
        requests = [self._began_from[column] if column >= 0 else ResetRequest() for column in columns.tolist()]
        observations, _ = self._envs.reset(
            env_ids=ids,
            seed=[request.seed for request in requests],
            options=[request.options for request in requests],
            tasks=[request.task for request in requests],
        )
        playing = columns >= 0
        for path, rows in self._observations.items():
            rows[columns[playing]] = leaf_of(observations, path)[playing]

    # -- steps ---------------------------------------------------------------------------------------------------
    def act(self, ids: list[int]) -> None:
        """Choose an action for each of these envs, and send it."""
        columns = self._columns[ids]
        t, observations = self._steps[columns], {path: rows[columns] for path, rows in self._observations.items()}
        memory = {name: kept[columns] for name, kept in self._memory.items()}
        masks = self._features.open_actions(observations)
        seen = Seen(observations, t == 0, masks, self._actions[columns], self._rewards[columns])
        rows: dict[FieldName, Any] = {("observations", *path): leaf for path, leaf in observations.items()}
        rows |= {("memory", name): kept.copy() for name, kept in memory.items()}  # act() may change them
        chosen, after = checked_answer(self._policy.act(seen, self._noise_of(columns, t), memory), memory)
        actions = np.empty((len(ids), *self._actions.shape[1:]), self._actions.dtype)
        write_actions(chosen, actions)
        self._actions[columns] = actions
        for name, kept in after.items():
            self._memory[name][columns] = kept
        rows |= {("starts",): seen.starts, ("masks",): masks, ("actions",): actions}
        rows |= {("previous_actions",): seen.previous_actions, ("previous_rewards",): seen.previous_rewards}
        self._notes["acted"].append(_Note(columns, t, rows))
        env_actions = self._policy.for_env(actions)
        self._clock("act")
        if self._steps_together and len(ids) == self._envs.num_envs:
            self._next_actions = env_actions
        else:
            self._envs.send(env_actions, ids)
        self.pending += len(ids)
        self._clock("step")

    def _noise_of(self, columns: Array, t: Array) -> Array | None:
        if self._noise is None:
            return None
        rows = t % NOISE_STEPS
        for column in columns[rows == 0].tolist():
            self._noise[:, column] = self._policy.noise(self._rngs[column], NOISE_STEPS, 1)[:, 0]
        return np.asarray(self._noise[rows, columns])

    def receive(self) -> list[int]:
        """Receive the results of a batch of envs; return the envs that can act now, ascending."""
        batch = self._envs.receive(min_envs=1) if self._next_actions is None else self._step_all()
        self.pending -= len(batch.env_ids)
        self._clock("receive")
        reported, over = batch.env_ids[lost_rows(batch.infos)], batch.terminated | batch.truncated
        lost = {*reported.tolist(), *self._envs.awaiting_reset}  # guard: a-lost-episode-is-dropped
        self._store(batch)
        self._steps[self._columns[reported]] -= 1  # guard: a-lost-step-is-no-step
        ended = [i for i in batch.env_ids[over].tolist() if i not in lost]
        continuing = [i for i in batch.env_ids[~over].tolist() if i not in lost]
        self._end(batch, ended)
        self._clock("store")
        return sorted({*continuing, *self.begin(ended, sorted(lost))}) if ended or lost else continuing

    def _step_all(self) -> _Batch:
        """Step all envs at once, which is faster than sending and receiving."""
        actions, self._next_actions = self._next_actions, None
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        return _Batch(np.arange(self._envs.num_envs), observations, rewards, terminated, truncated, infos)

    def _store(self, batch: StepBatch | _Batch) -> None:
        columns = self._columns[batch.env_ids]
        t = self._steps[columns]
        self._rewards[columns], self._steps[columns] = batch.rewards, t + 1
        for path, rows in self._observations.items():
            rows[columns] = leaf_of(batch.observations, path)
        received: dict[FieldName, Any] = {("rewards",): batch.rewards}
        received |= {("terminated",): batch.terminated, ("truncated",): batch.truncated}
        self._notes["received"].append(_Note(columns, t, received))

    def _end(self, batch: StepBatch | _Batch, ended: list[int]) -> None:
        """Keep the last infos of episodes, and note their final observations."""
        for i in ended:
            row = int(np.searchsorted(batch.env_ids, i))
            self._infos[int(self._columns[i])] = row_info(batch.infos, row)
        if ended:
            columns = self._columns[ended]
            t = self._steps[columns]
            for name, step in (("finals", t - 1), ("observations", t)):
                rows: dict[FieldName, Any] = {(name, *path): leaf[columns] for path, leaf in self._observations.items()}
                self._notes[name].append(_Note(columns.copy(), step, rows))

    # -- results -------------------------------------------------------------------------------------------------
    def episodes(self) -> WholeEpisodes:
        """The played episodes."""
        rollout = self._rollout(int(self._steps.max()))
        rollout.policy_version = self._policy.version
        episodes = WholeEpisodes(rollout, self._steps.copy(), self._began_from, self._infos, self.seconds)
        episodes.dropped, episodes.dropped_steps = self._dropped, self._dropped_steps
        self._clock("store")
        return episodes

    def _rollout(self, longest: int) -> Rollout:
        """A rollout with every noted row in its place."""
        mask = self._features.mask
        shape = RolloutShape(
            group=SINGLE_AGENT,
            observation_space=self._envs.single_observation_space,
            steps=longest,
            slots=len(self._numbers),
            action=self._action,
            masks=0 if mask is None else int(np.prod(mask.space.shape or ())),
            memory=self._first_memory,
        )
        arrays = private_fields(shape.fields())
        rollout = shape.rollout(arrays)
        places = {name[2:]: rows for name, rows in arrays.items()}
        places |= {(name,): getattr(rollout, name) for name in ("rewards", "terminated", "truncated")}
        for notes in self._notes.values():
            columns = np.concatenate([note.columns for note in notes])
            steps, kept = np.concatenate([note.steps for note in notes]), columns >= 0
            for name in notes[0].rows.keys() & places.keys():  # without memory or masks there are no places for those
                rows = np.concatenate([note.rows[name] for note in notes])
                places[name][steps[kept], columns[kept]] = rows[kept]
        rollout.valid[...] = np.arange(longest)[:, None] < self._steps
        return rollout
