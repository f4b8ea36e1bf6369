"""A common interface of the libraries, each with its best documented settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

TIMEOUT_S = 1.0
"""Timeout of a worker's reply, for libraries that have one."""

Makers = Sequence[Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One env's part of the result of a step."""

    observation: list[float]
    reward: float
    ended: bool
    marked: bool  # whether the library marks the row: its env was lost, or returned a bad value


class Contender(Protocol):
    """A running vector env with one worker process per env."""

    worker_pids: Sequence[int]

    def reset(self, seed: int) -> Any: ...

    def step(self, actions: np.ndarray) -> list[Row]: ...

    def finish(self) -> list[Row] | None:
        """Return the result of a step that timed out or was interrupted, if the library can provide it."""

    def close(self) -> None: ...


class Gymnasium:
    """AsyncVectorEnv with shared memory; with a timeout, that of `step_wait` and `reset_wait`, and a forced `close`."""

    def __init__(self, makers: Makers, timeout_s: float | None) -> None:
        from gymnasium.vector import AsyncVectorEnv
        from gymnasium.vector.async_vector_env import AsyncState

        self._envs, self._timeout_s = AsyncVectorEnv(makers), timeout_s
        self._waiting_step = AsyncState.WAITING_STEP
        self.worker_pids: Sequence[int] = [p.pid or 0 for p in self._envs.processes]

    def reset(self, seed: int) -> None:
        self._envs.reset_async(seed=seed)
        self._envs.reset_wait(timeout=self._timeout_s)

    def step(self, actions: np.ndarray) -> list[Row]:
        self._envs.step_async(actions)
        return _rows(self._envs.step_wait(timeout=self._timeout_s))

    def finish(self) -> list[Row] | None:
        if self._envs._state is not self._waiting_step:  # after a timeout it no longer waits; only the state shows this
            return None
        return _rows(self._envs.step_wait(timeout=self._timeout_s))

    def close(self) -> None:
        self._envs.close(timeout=self._timeout_s, terminate=self._timeout_s is not None)


class StableBaselines3:
    """SubprocVecEnv, which has no timeouts and cannot return the result of an interrupted step."""

    def __init__(self, makers: Makers) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self._envs = SubprocVecEnv(list(makers))
        self.worker_pids: Sequence[int] = [p.pid or 0 for p in self._envs.processes]

    def reset(self, seed: int) -> None:
        self._envs.seed(seed)
        self._envs.reset()

    def step(self, actions: np.ndarray) -> list[Row]:
        observations, rewards, dones, _ = self._envs.step(actions)
        return _rows((observations, rewards, dones, dones, {}))

    def finish(self) -> list[Row] | None:
        return None

    def close(self) -> None:
        self._envs.close()


class Multiverse:
    """make_vec with the process executor."""

    def __init__(self, makers: Makers, on_failure: str) -> None:
        import multiverse as mv

        self._envs = mv.make_vec(
            list(makers),
            executor="process",
            workers=len(makers),
            on_failure=on_failure,  # type: ignore[arg-type]
            timeouts=mv.Timeouts(reply_s=TIMEOUT_S, close_s=TIMEOUT_S),
        )
        self.worker_pids: Sequence[int] = self._envs.worker_pids

    def reset(self, seed: int) -> None:
        self._envs.reset(seed=seed)

    def step(self, actions: np.ndarray) -> list[Row]:
        return _rows(self._envs.step(actions))

    def finish(self) -> list[Row] | None:
        batch = self._envs.receive()
        return _rows((batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos))

    def close(self) -> None:
        self._envs.close()


def _rows(result: tuple[Any, ...]) -> list[Row]:
    observations, rewards, terminated, truncated, infos = result
    none = [False] * len(rewards)
    lost, bad = infos.get("_restarted", none), infos.get("_bad_value", none)
    return [
        Row(
            np.asarray(observations[i]).tolist(),
            float(rewards[i]),
            bool(terminated[i] or truncated[i]),
            bool(lost[i] or bad[i]),
        )
        for i in range(len(rewards))
    ]


CONTENDERS: dict[str, Callable[[Makers], Contender]] = {
    "gymnasium": functools.partial(Gymnasium, timeout_s=None),
    "gymnasium_timeout": functools.partial(Gymnasium, timeout_s=TIMEOUT_S),
    "sb3": StableBaselines3,
    "multiverse_raise": functools.partial(Multiverse, on_failure="raise"),
    "multiverse_restart": functools.partial(Multiverse, on_failure="restart"),
}

TITLES = {
    "gymnasium": "Gymnasium AsyncVectorEnv",
    "gymnasium_timeout": f"Gymnasium, timeout={TIMEOUT_S:g}, terminate=True",
    "sb3": "SB3 SubprocVecEnv",
    "multiverse_raise": 'multiverse, on_failure="raise"',
    "multiverse_restart": 'multiverse, on_failure="restart"',
}
