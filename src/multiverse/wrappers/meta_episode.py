"""Meta-episodes for meta-RL: several episodes of one task as one, a Bayes-adaptive MDP (BAMDP)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.layout import Array
from multiverse.core.plan import whole_number
from multiverse.core.seeds import checked_run_seed
from multiverse.core.wording import short_error, short_repr

HOOKS = ("sample_tasks", "reset_task", "get_task")


class MetaEpisode(gymnasium.Wrapper[Array, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Plays k episodes of one task as one meta-episode. When an episode ends, the env is reset to the same task.

    Observations are [observation, task if `oracle`, done flag if k > 1]. The flag is set in the last observation of
    each episode; the observation of the reset that follows is dropped. The meta-episode ends with its last episode, and
    is terminated or truncated as that one was. Box actions are in [-1, 1] and rescaled to the bounds of the env.

    The last step has `info["returns_per_episode"]` [k] and, for envs whose infos have "success",
    `info["success_per_episode"]` [k]: whether there was a success in each episode.

    The env needs the hooks `sample_tasks(count)`, `reset_task(task)` and `get_task()`. A task set by `reset_task` holds
    until the next one is set; if none is set, every meta-episode draws its own.
    """

    saves_if_env_does = True
    """The class forwards `save_state`; whether it can be saved depends on the env inside."""

    def __init__(self, env: gymnasium.Env[Any, Any], episodes_per_task: int, oracle: bool = False) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, episodes_per_task=episodes_per_task, oracle=oracle)
        super().__init__(env)
        self.episodes_per_task = whole_number("episodes_per_task", episodes_per_task)
        if self.episodes_per_task < 1:
            raise InvalidRequest(f"episodes_per_task={episodes_per_task}: expected at least 1")
        missing = [hook for hook in HOOKS if not env.has_wrapper_attr(hook)]
        if missing:
            raise InvalidRequest(
                f"{env} has no {', '.join(missing)}: a MetaEpisode needs these methods, as the envs in envs.meta have"
            )
        self.sample_tasks, self._set_task, self.get_task = (env.get_wrapper_attr(hook) for hook in HOOKS)
        self.oracle, self._flagged = bool(oracle), self.episodes_per_task > 1
        self._parts = self._checked_parts(env)
        self.observation_space = _joined(self._parts)
        if isinstance(env.action_space, spaces.Box):
            self._low, self._high = _bounds(env.action_space)
            self.action_space = spaces.Box(-1.0, 1.0, env.action_space.shape, np.float32)
        self._given: Any = None
        self._task: Any = None
        self._shown_task: list[Array] = []
        self._returns: list[float] = []  # of the episodes so far, with the current one; empty between meta-episodes
        self._success: list[bool | None] = []

    def _checked_parts(self, env: gymnasium.Env[Any, Any]) -> list[spaces.Box]:
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise InvalidRequest(f"observation_space={space}: expected a flat Box; use FlattenObservation for others")
        parts = [space]
        if self.oracle:
            parts.append(self._task_space(env))
        if self._flagged:
            parts.append(spaces.Box(0.0, 1.0, (1,), np.float32))
        return parts

    def _task_space(self, env: gymnasium.Env[Any, Any]) -> spaces.Box:
        if env.has_wrapper_attr("task_space"):
            return cast(spaces.Box, env.get_wrapper_attr("task_space"))
        env.reset()
        try:
            numbers = np.asarray(self.get_task(), np.float64)
        except (TypeError, ValueError):
            raise InvalidRequest(
                f"oracle=True needs tasks of numbers; the task is {short_repr(self.get_task())}: leave oracle out"
            ) from None
        return spaces.Box(-np.inf, np.inf, (numbers.size,), np.float64)

    # -- tasks ---------------------------------------------------------------------------------------------------
    def reset_task(self, task: Any) -> None:
        """Set the task of meta-episodes from the next `reset` on; None: each draws its own."""
        if task is not None:
            self._set_task(task)
        self._given = task

    # -- episodes ------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._task = self._given
        if self._given is not None:
            self._set_task(self._given)
        observation, info = self.env.reset(seed=seed, options=options)
        if self._given is None:  # drawn from the generator that was just seeded
            self._task = self.sample_tasks(1)[0]
            self._set_task(self._task)
            observation, info = self.env.reset(options=options)
        self._returns, self._success = [0.0], [None]
        self._shown_task = [np.reshape(self.get_task(), -1)] if self.oracle else []
        return self._augmented(observation, False), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if not self._returns:
            raise InvalidRequest("step() without a meta-episode: call reset() first")
        if isinstance(self.action_space, spaces.Box):
            share = np.clip(np.asarray(action, np.float32), -1.0, 1.0) * np.float32(0.5) + np.float32(0.5)
            rescaled = self._low + share * (self._high - self._low)
            action = np.minimum(rescaled, self._high)  # rounding may exceed the bound
        observation, reward, terminated, truncated, info = self.env.step(action)
        if math.isfinite(reward):  # other rewards are handled outside (`on_bad_value`)
            self._returns[-1] += float(reward)
        if "success" in info:
            self._success[-1] = bool(self._success[-1] or info["success"])
        if not (terminated or truncated):
            return self._augmented(observation, False), float(reward), False, False, info
        augmented = self._augmented(observation, True)
        if len(self._returns) < self.episodes_per_task:
            self._returns, self._success = [*self._returns, 0.0], [*self._success, None]
            self._set_task(self._task)
            self.env.reset()
            return augmented, float(reward), False, False, info
        info = {**info, "returns_per_episode": np.array(self._returns)}
        if None not in self._success:
            info["success_per_episode"] = np.array(self._success, np.bool_)
        self._returns = []
        return augmented, float(reward), terminated, truncated, info

    def _augmented(self, observation: Any, done: bool) -> Array:
        """Return the observation with the task and the done flag."""
        if len(self._parts) == 1:
            return np.asarray(observation)
        flag = [np.array([done])] if self._flagged else []
        parts = [observation, *self._shown_task, *flag]
        return np.concatenate(parts, dtype=self.observation_space.dtype, casting="unsafe")

    # -- saving --------------------------------------------------------------------------------------------------
    def save_state(self) -> dict[str, Any]:
        """Return the state for `restore_state`; the env must have `save_state`, too."""
        own = {"task": self._task, "given": self._given, "returns": list(self._returns), "success": list(self._success)}
        return {"env": self.env.get_wrapper_attr("save_state")(), **own}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `save_state`."""
        self.env.get_wrapper_attr("restore_state")(state["env"])
        self._task, self._given = state["task"], state["given"]
        self._shown_task = [np.reshape(self.get_task(), -1)] if self.oracle and self._task is not None else []
        self._returns, self._success = list(state["returns"]), list(state["success"])


def draw_tasks(env: gymnasium.Env[Any, Any], num_train: int, num_eval: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Return disjoint (train tasks, eval tasks), drawn by `env.sample_tasks`: always the same for one seed, also in a
    `MetaEpisode`, and the same as in a run with this seed.

    For several envs, draw once and pass the list to all of them: `make_vec(…, tasks=[*train, *evaluation])`.
    """
    counts = whole_number("num_train", num_train), whole_number("num_eval", num_eval)
    for name, count, least in (("num_train", counts[0], 1), ("num_eval", counts[1], 0)):
        if count < least:
            raise InvalidRequest(f"{name}={count}: expected at least {least}")
    if isinstance(env, MetaEpisode):  # its reset would draw a task before these
        env = env.env
    checked_run_seed("seed", seed)
    if not env.has_wrapper_attr("sample_tasks"):
        raise InvalidRequest(f"{env} has no tasks; an env with tasks has {', '.join(HOOKS)}")
    asked = f"sample_tasks({sum(counts)}) of {env}"
    drawn, again = (_sampled(env, sum(counts), seed, asked) for _ in range(2))
    if not all(map(_same, drawn, again)):
        raise InvalidRequest(
            f"{asked} returned different tasks for the same seed, {seed}, so runs could not be resumed or evaluated: "
            "draw them from the env's own generator, self.np_random"
        )
    train, held_out = drawn[: counts[0]], drawn[counts[0] :]
    common = [task for task in held_out if any(_same(task, other) for other in train)]
    if common:
        raise InvalidRequest(
            f"{asked} returned {common[0]!r} as a train task and as an eval task: if there are too few, ask for fewer"
        )
    return train, held_out


def _sampled(env: gymnasium.Env[Any, Any], count: int, seed: int, asked: str) -> list[Any]:
    env.reset(seed=seed)
    try:
        drawn = list(env.get_wrapper_attr("sample_tasks")(count))
    except MultiverseError:
        raise
    except Exception as error:  # the env may raise anything
        raise InvalidRequest(
            f"{asked} failed: {short_error(error)}; if there are too few tasks, ask for fewer"
        ) from error
    if len(drawn) < count:
        raise InvalidRequest(
            f"{asked} returned {len(drawn)} tasks: ask for at most as many train and eval tasks together"
        )
    return drawn


def _same(task: Any, other: Any) -> bool:
    """Return whether two tasks are equal: numbers, arrays, texts, and dicts and lists of these."""
    if isinstance(task, Mapping) and isinstance(other, Mapping):
        return task.keys() == other.keys() and all(_same(task[key], other[key]) for key in task)
    if isinstance(task, Sequence) and isinstance(other, Sequence) and not isinstance(task, str):
        return len(task) == len(other) and all(map(_same, task, other))
    return np.array_equal(task, other)


def _joined(parts: list[spaces.Box]) -> spaces.Box:
    if len(parts) == 1:
        return parts[0]
    dtype: Any = parts[0].dtype if np.issubdtype(parts[0].dtype, np.floating) else np.float32
    low, high = (np.concatenate([getattr(part, side) for part in parts]).astype(dtype) for side in ("low", "high"))
    return spaces.Box(low, high, dtype=dtype)


def _bounds(space: spaces.Box) -> tuple[Array, Array]:
    if not np.issubdtype(space.dtype, np.floating):
        raise InvalidRequest(
            f"actions are rescaled from [-1, 1] to fractions, but {space} has whole numbers: wrap the env so that its "
            "actions are a bounded Box of floats"
        )
    if not space.is_bounded():
        raise InvalidRequest(
            f"actions are rescaled from [-1, 1] to the bounds of the space, but {space} is not bounded: wrap the env "
            "so that its actions are a bounded Box of floats"
        )
    return space.low, space.high
