"""Collecting whole episodes, each from a seed and a task of its own: nobody waits for the slowest.

What comes of it depends on the policy, the reset plan and the episodes' numbers alone: neither on how many envs there
are, nor on where they run, nor on who is ready first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from multiverse.core.errors import InvalidRequest
from multiverse.core.failures import BAD_VALUE, RESTARTED
from multiverse.core.infos import Infos, of_row
from multiverse.core.layout import SINGLE_AGENT, FieldName
from multiverse.core.plan import whole_number
from multiverse.core.policy import Policy, Seen
from multiverse.core.reset_plan import ResetPlan, ResetRequest
from multiverse.core.views import Array
from multiverse.executors.backends import BACKENDS
from multiverse.executors.worker_loop import alike
from multiverse.policies.features import Features
from multiverse.policies.heads import action_of
from multiverse.policies.leaves import dtype_of, leaf_of, shape_of
from multiverse.rollouts.rollout import Rollout, RolloutShape, private_fields
from multiverse.rollouts.rows import checked_answer, write_actions
from multiverse.vector.batches import StepBatch
from multiverse.vector.single import VectorEnv

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
        if any("returns_per_episode" not in info for info in self.infos):
            raise InvalidRequest("these are no meta-episodes: returns per episode are those of a MetaEpisode")
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
        """So many more. `policy`: an algorithm's, or what `mv.load` returns; `explore`: with its noise.

        With `on_failure="restart"` an episode whose env or worker is lost is dropped, and another drawn in its place.
        """
        if whole_number("episodes", episodes) < 1:
            raise InvalidRequest(f"episodes={episodes}: at least 1")
        seen, shown = getattr(policy, "observation_space", None), self._envs.single_observation_space
        if seen is not None and not alike(seen, shown):
            raise InvalidRequest(f"{policy!r} sees {seen}, and these envs show {shown}: another env's policy?")
        policy = one_that_acts(policy)
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


def one_that_acts(policy: Any) -> Policy:
    """A policy, or what a loaded one acts with."""
    found = getattr(policy, "acting", policy)
    if not hasattr(found, "first_memory"):
        raise InvalidRequest(
            f"policy={policy!r} cannot play episodes: give what mv.load(run) returns, mv.RandomPolicy(action_space), "
            "or one with the methods of multiverse.core.policy.Policy"
        )
    acting: Policy = found
    return acting


class _Batch(NamedTuple):
    """What is looked at of a `StepBatch`."""

    env_ids: Array
    observations: Any
    rewards: Array
    terminated: Array
    truncated: Array
    infos: Infos


class _Note(NamedTuple):
    """Rows of some episodes, by the names that they have in a rollout."""

    columns: Array  # whose; -1: of one that was dropped
    steps: Array  # of which step
    rows: Mapping[FieldName, Any]


class _Play:
    """Episodes under way: episode k is column k. What has come of them is noted batch by batch, and put in its place at
    the end: to write some rows into large arrays at every step would cost more."""

    def __init__(
        self, envs: VectorEnv, policy: Policy, plan: ResetPlan, numbers: range, action: Any, explore: bool
    ) -> None:
        self._envs, self._policy, self._plan, self._numbers, count = envs, policy, plan, numbers, len(numbers)
        self._features = Features(envs.single_observation_space, envs.single_action_space)
        self._columns = np.full(envs.num_envs, -1)  # what each env plays; -1: nothing any more
        self._action, self._first_memory = action, policy.first_memory(1)
        # what each episode shows, did and got last, and what is remembered of it
        self._seen = {
            leaf.path: np.zeros((count, *shape_of(leaf)), dtype_of(leaf)) for leaf in self._features.all_leaves
        }
        self._did, self._got = np.zeros((count, *action[0]), action[1]), np.zeros(count)
        self._memory, self._steps = policy.first_memory(count), np.zeros(count, np.int64)
        self._noise: Array | None = policy.noise(np.random.default_rng(0), NOISE_STEPS, count) if explore else None
        self._attempts, self._began_from = [-1] * count, [ResetRequest()] * count
        self._rngs: list[Any] = [None] * count
        self._infos: list[dict[str, Any]] = [{}] * count
        self._notes: dict[str, list[_Note]] = {"acted": [], "became": [], "finals": [], "observations": []}
        self.under_way = 0  # envs
        # Where the caller has envs of its own, a batch is there when those have stepped: nobody is ready sooner.
        self._in_step, self._given = BACKENDS[envs.plan.executor].own_share, None
        self.seconds, self._dropped, self._dropped_steps, self._now = Seconds(), 0, 0, perf_counter()

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
                    self._drop(column)
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

    def _drop(self, column: int) -> None:
        self._dropped, self._dropped_steps = self._dropped + 1, self._dropped_steps + int(self._steps[column])
        for note in (one for notes in self._notes.values() for one in notes):
            note.columns[note.columns == column] = -1

    def _draw(self, column: int) -> None:
        request = self._plan(self._attempts[column], self._numbers[column])
        if request.seed is None:
            raise InvalidRequest(
                "the reset plan gave an episode no seed: noise comes from there, as DerivedSeeds has it"
            )
        self._began_from[column], self._rngs[column] = request, np.random.default_rng((request.seed, _NOISE))
        self._steps[column], self._did[column], self._got[column] = 0, 0, 0.0
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
            rows[columns[playing]] = leaf_of(observations, path)[playing]

    # -- steps ---------------------------------------------------------------------------------------------------
    def act(self, ids: list[int]) -> None:
        """One action for each of these envs, which are on their way then."""
        columns = self._columns[ids]
        t, seen = self._steps[columns], {path: rows[columns] for path, rows in self._seen.items()}
        memory = {name: kept[columns] for name, kept in self._memory.items()}
        shown = Seen(seen, t == 0, self._features.open_actions(seen), self._did[columns], self._got[columns])
        rows: dict[FieldName, Any] = {("observations", *path): one for path, one in seen.items()}
        rows |= {("memory", name): kept.copy() for name, kept in memory.items()}  # act() may change them
        chosen, after = checked_answer(self._policy.act(shown, self._noise_of(columns, t), memory), memory)
        taken = np.empty((len(ids), *self._did.shape[1:]), self._did.dtype)
        write_actions(chosen, taken)
        self._did[columns] = taken
        for name, kept in after.items():
            self._memory[name][columns] = kept
        rows |= {("starts",): shown.starts, ("masks",): shown.masks, ("actions",): taken}
        rows |= {("previous_actions",): shown.previous_actions, ("previous_rewards",): shown.previous_rewards}
        self._notes["acted"].append(_Note(columns, t, rows))
        given = self._policy.for_env(taken)
        self._took("act")
        if self._in_step and len(ids) == self._envs.num_envs:
            self._given = given
        else:
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
        batch = self._envs.receive(min_envs=1) if self._given is None else self._stepped()
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

    def _stepped(self) -> _Batch:
        """All envs at once, which is quicker than to send and receive them."""
        given, self._given = self._given, None
        return _Batch(np.arange(self._envs.num_envs), *self._envs.step(given))

    def _store(self, batch: StepBatch | _Batch) -> None:
        columns = self._columns[batch.env_ids]
        t = self._steps[columns]
        self._got[columns], self._steps[columns] = batch.rewards, t + 1
        for path, seen in self._seen.items():
            seen[columns] = leaf_of(batch.observations, path)
        came: dict[FieldName, Any] = {("rewards",): batch.rewards}
        came |= {("terminated",): batch.terminated, ("truncated",): batch.truncated}
        self._notes["became"].append(_Note(columns, t, came))

    def _end(self, batch: StepBatch | _Batch, ended: list[int]) -> None:
        """What such an episode showed last is noted as if it had been seen once more."""
        for i in ended:
            row = int(np.searchsorted(batch.env_ids, i))
            self._infos[int(self._columns[i])] = of_row(batch.infos, row)
        if ended:
            columns = self._columns[ended]
            t = self._steps[columns]
            for name, when in (("finals", t - 1), ("observations", t)):
                rows: dict[FieldName, Any] = {(name, *path): seen[columns] for path, seen in self._seen.items()}
                self._notes[name].append(_Note(columns.copy(), when, rows))

    # -- what has come of it -------------------------------------------------------------------------------------
    def found(self) -> WholeEpisodes:
        rollout = self._laid_out(int(self._steps.max()))
        rollout.policy_version = self._policy.version
        found = WholeEpisodes(rollout, self._steps.copy(), self._began_from, self._infos, self.seconds)
        found.dropped, found.dropped_steps = self._dropped, self._dropped_steps
        self._took("store")
        return found

    def _laid_out(self, longest: int) -> Rollout:
        """Every row in its place."""
        masked, space = self._features.mask, self._envs.single_observation_space
        masks = 0 if masked is None else int(np.prod(masked.space.shape or ()))
        memory, count = self._first_memory, len(self._numbers)
        shape = RolloutShape(SINGLE_AGENT, space, longest, count, self._action, masks, memory=memory)
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


def _lost_rows(infos: Infos) -> list[int]:
    """Of steps that were none: their env was replaced, or had given what cannot be learned from."""
    lost = [infos[f"_{key}"] for key in (RESTARTED, BAD_VALUE) if f"_{key}" in infos]
    return np.flatnonzero(np.logical_or.reduce(lost)).tolist() if lost else []


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
