"""Collecting rollouts: filled where the envs run or, with one batched forward pass per step, in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from multiverse.contracts.failures import BAD_VALUE, RESTARTED
from multiverse.contracts.layout import (
    ENDED,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    OBSERVATIONS,
    REWARD,
    SINGLE_AGENT,
    TERMINATED,
    TRUNCATED,
    VALUES,
    Field,
    FieldName,
)
from multiverse.contracts.policy import Policy
from multiverse.contracts.reset_plan import ResetPlan
from multiverse.contracts.views import Array
from multiverse.experience.episodes import ActionLog, Episode
from multiverse.experience.features import Features
from multiverse.experience.rollout import (
    BEGUN,
    LOST,
    ROLLOUT,
    SECONDS,
    SEEDS,
    RolloutShape,
    env_fields,
    private_fields,
)
from multiverse.experience.rows import Rows, fill, fill_rows
from multiverse.vector.single import VectorEnv

SHORTEST_IN_WORKERS = 8
"""Steps of a rollout: to send the weights out for fewer does not pay."""


def collected_in_workers(policy: Policy, steps: int) -> bool:
    """Whether workers fill its rollouts by themselves."""
    return steps >= SHORTEST_IN_WORKERS and policy.portable() is not None


def rollout_fields(shape: RolloutShape, num_envs: int) -> list[Field]:
    """What workers share with the caller for that (`make_vec(fields=…)`)."""
    return [*shape.fields(), *env_fields(shape.steps, num_envs)]


@dataclass(slots=True)
class Collected:
    """What one rollout brought beside its rows."""

    episodes: list[Episode] = field(default_factory=list)
    lost_steps: int = 0
    act_s: float = 0.0
    step_s: float = 0.0


class Collector:
    """Steps a vector env with a policy, rollout after rollout, episodes running on between.

    In workers if `rollout_fields` were laid out there; else here, also for envs with autoreset `next_step`.
    """

    def __init__(self, envs: VectorEnv, shape: RolloutShape, features: Features, reset_plan: ResetPlan) -> None:
        self._envs, self._features, self._plan = envs, features, reset_plan
        own: Mapping[FieldName, Array] = envs.views.arrays
        self._in_workers = BEGUN in own
        if not self._in_workers:
            own = {**own, **private_fields(rollout_fields(shape, envs.num_envs))}
        self._arrays, self.rollout = own, shape.rollout(own)
        self._noise, self._values = own[(shape.group, ROLLOUT, "noise")], own[(shape.group, ROLLOUT, "values")]
        self.actions = ActionLog(envs.num_envs)
        self.keeps_actions = True  # for envs that are brought back by playing them again
        self._current: list[tuple[int, int | None]] = []  # the episode that each env is in, and its seed

    # -- between rollouts ----------------------------------------------------------------------------------------
    def begin(self) -> None:
        """The envs have been reset, or brought back."""
        self._current = [self._begun(env_id) for env_id in range(self._envs.num_envs)]
        self.actions.mark()

    def begin_again(self, env_ids: Sequence[int]) -> None:
        """These envs have begun another episode between two rollouts."""
        for env_id in env_ids:
            self._current[env_id] = self._begun(env_id)
            self.actions.begin(env_id)

    def _begun(self, env_id: int) -> tuple[int, int | None]:
        episode = int(self._envs.episode_counts[env_id])
        return episode, self._plan(env_id, episode).seed

    @property
    def starts(self) -> Array:
        """[envs] bool: whose next step is the first of an episode."""
        ended = self._envs.views[(SINGLE_AGENT, ENDED)]
        return np.asarray((self._envs.episode_lengths == 0) | ended[TERMINATED] | ended[TRUNCATED])

    def remembered(self) -> dict[str, Any]:
        """What the policy goes on with in the next rollout: its memory, and its last actions and rewards."""
        rollout = self.rollout
        memory = {name: kept.copy() for name, kept in rollout.last_memory.items()}
        return {"memory": memory, "actions": rollout.actions[-1].copy(), "rewards": self._values[-1, REWARD].copy()}

    def remember(self, known: Mapping[str, Any]) -> None:
        """Go on with that."""
        self.rollout.actions[-1], self._values[-1, REWARD] = known["actions"], known["rewards"]
        for name, kept in self.rollout.last_memory.items():
            kept[...] = known["memory"][name]

    # -- a rollout -----------------------------------------------------------------------------------------------
    def collect(
        self, policy: Policy, rng: np.random.Generator, should_stop: Callable[[], bool] = lambda: False
    ) -> Collected | None:
        """Fill the rollout. None if it was asked to stop before the rollout was full: then nothing of it counts."""
        rollout, arrays = self.rollout, self._arrays
        self._noise[...] = policy.noise(rng, rollout.steps, rollout.slots)
        rollout.policy_version, rollout.valid[...], arrays[LOST][...] = policy.version, True, False
        self._show(0, slice(None))
        began_at = perf_counter()
        arrays[SECONDS][...] = 0.0
        if not (
            self._filled_in_workers(policy, should_stop) if self._in_workers else self._filled(policy, should_stop)
        ):
            return None
        rollout.rewards[...] = self._values[:, REWARD]
        rollout.valid &= ~arrays[LOST]  # guard: lost-rows-are-not-valid
        self._log_actions(policy)
        act_s, step_s = arrays[SECONDS].sum(axis=0).tolist()
        share = act_s / (act_s + step_s) if act_s else 0.0  # of several workers, side by side
        took_s = perf_counter() - began_at
        return Collected(self._episodes(), int(arrays[LOST].sum()), took_s * share, took_s * (1 - share))

    def _filled_in_workers(self, policy: Policy, should_stop: Callable[[], bool]) -> bool:
        mask, views = self._features.mask, self._envs.views
        self._before, self._first = views[(self.rollout.group, VALUES)].copy(), self.starts
        arguments = policy.portable(), None if mask is None else mask.path
        lost = self._arrays[LOST]
        return self._envs.run_rows(fill_rows, arguments, lost, should_stop, self._lost_with_worker)

    def _show(self, row: int, slots: slice) -> None:
        """What the envs show now is what is seen in this row."""
        group, arrays = self.rollout.group, self._arrays
        for path in self.rollout.observations:
            shown = arrays[(group, OBSERVATIONS, *path)]
            arrays[(group, ROLLOUT, "observations", *path)][row, slots] = shown[slots]

    def _lost_with_worker(self, env_ids: range, row: int) -> None:
        """A worker was lost in this row and replaced: as if its envs' episodes had ended there, without that step."""
        rollout, arrays, mine = self.rollout, self._arrays, slice(env_ids.start, env_ids.stop)
        values = self._values[:, :, mine]
        values[row] = values[row - 1] if row else self._before[:, mine]
        over = rollout.terminated[row - 1, mine] | rollout.truncated[row - 1, mine] if row else self._first[mine]
        rollout.starts[row, mine] = over
        values[row][:, over] = 0.0  # a new episode, without any step
        values[row, REWARD] = 0.0
        rollout.terminated[row, mine], rollout.truncated[row, mine] = False, True
        for path, rows in rollout.observations.items():
            rollout.finals[path][row, mine] = rows[row, mine]
        for env_id in env_ids:
            episode, seed = self._begun(env_id)
            arrays[BEGUN][row, env_id], arrays[SEEDS][row, env_id] = episode, -1 if seed is None else seed
        self._show(row + 1, mine)

    def _filled(self, policy: Policy, should_stop: Callable[[], bool]) -> bool:
        mask, envs = self._features.mask, self._envs
        next_step = envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        everyone, path = range(envs.num_envs), None if mask is None else mask.path
        rows = Rows(self._arrays, envs.views.layout, everyone, path, next_step)
        steps = _CallerSteps(envs, self._plan, next_step)
        return fill(rows, self._arrays, everyone, policy, 0, lambda _: not should_stop(), steps)

    # -- what became of it ---------------------------------------------------------------------------------------
    def _episodes(self) -> list[Episode]:
        """Those that ended, in order."""
        rollout, arrays, found = self.rollout, self._arrays, []
        rows, envs = np.nonzero(rollout.terminated | rollout.truncated)
        columns = (
            self._values[rows, EPISODE_RETURN, envs],
            self._values[rows, EPISODE_LENGTH, envs],
            arrays[LOST][rows, envs],
            arrays[BEGUN][rows, envs],
            arrays[SEEDS][rows, envs],
        )
        for env_id, returned, length, lost, begun, seed in zip(envs.tolist(), *(column.tolist() for column in columns)):
            index, its_seed = self._current[env_id]
            found.append(Episode(env_id, index, its_seed, returned, int(length), lost))
            self._current[env_id] = begun, None if seed < 0 else seed
        return found

    def _log_actions(self, policy: Policy) -> None:
        if self.keeps_actions:
            actions = self.rollout.actions
            taken = np.asarray(policy.for_env(actions.reshape(-1, *actions.shape[2:])))
            ended = self.rollout.terminated | self.rollout.truncated
            self.actions.add(taken.reshape(*actions.shape[:2], *taken.shape[1:]), ended)


class _CallerSteps:
    """The caller steps all envs at once."""

    def __init__(self, envs: VectorEnv, plan: ResetPlan, next_step: bool) -> None:
        self._envs, self._plan, self._ahead = envs, plan, int(next_step)

    def step(self) -> Iterable[int]:
        infos = self._envs.step_as_written()
        lost = [infos[f"_{key}"] for key in (RESTARTED, BAD_VALUE) if f"_{key}" in infos]
        return np.flatnonzero(np.logical_or.reduce(lost)).tolist() if lost else ()

    def failed(self) -> bool:
        return False  # it would have been raised

    def seed_of(self, i: int) -> int | None:
        return self._plan(i, int(self._envs.episode_counts[i]) + self._ahead).seed
