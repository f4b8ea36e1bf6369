"""The behaviour of AgileRL's vector env as a plain loop over envs in this process: the reference without AgileRL."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces


class Model:
    """Resets and steps; no states, deadlines or errors."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]]) -> None:
        self.envs = [build() for build in env_fns]
        self.num_envs, self.agents = len(self.envs), list(self.envs[0].possible_agents)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)] if not _is_list(seed) else seed
        results = [env.reset(seed=s, options=options) for env, s in zip(self.envs, seeds)]
        return self._observations([seen for seen, _ in results]), self._infos([info for _, info in results])

    def step(self, actions: dict[str, Any]) -> Any:
        each: list[dict[str, Any]] = [{} for _ in self.envs]
        for agent, batch in actions.items():
            if isinstance(batch, torch.Tensor):
                batch = [row.numpy() for row in batch]
            for i, chosen in enumerate(each):
                if not np.isnan(batch[i]).all():
                    chosen[agent] = int(batch[i]) if np.isscalar(batch[i]) else batch[i]
        return self.step_each(each)

    def step_each(self, each: Sequence[dict[str, Any]]) -> Any:
        results = [self._step(env, actions) for env, actions in zip(self.envs, each)]
        observations, rewards, terminated, truncated, infos = zip(*results)
        columns = [
            {a: np.array([one.get(a, np.nan) for one in said]) for a in self.agents}
            for said in (rewards, terminated, truncated)
        ]
        return self._observations(observations), *columns, self._infos(infos)

    def _step(self, env: Any, actions: dict[str, Any]) -> list[Any]:
        sent = {a: x if isinstance(x, int) else np.array(x).squeeze() for a, x in actions.items()}
        results = list(env.step(sent))
        if all(end or results[3][agent] for agent, end in results[2].items()):
            results[0], results[4] = env.reset()
        return results

    def _observations(self, seen: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {a: _stacked(self.envs[0].observation_space(a), [one.get(a) for one in seen]) for a in self.agents}

    def _infos(self, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, one in enumerate(said):
            self._add(infos, {a: one.get(a, {}) for a in self.agents}, i)
        return infos

    def _add(self, infos: dict[str, Any], info: dict[str, Any], i: int) -> dict[str, Any]:
        for key, value in info.items():
            infos.setdefault(f"_{key}", np.zeros(self.num_envs, bool))[i] = True
            if isinstance(value, dict):
                infos[key] = self._add(infos.get(key, {}), value, i)
            else:
                infos.setdefault(key, self._column(value))[i] = value
        return infos

    def _column(self, value: Any) -> Any:
        if value is None:
            return np.full(self.num_envs, np.nan, np.float32)
        if isinstance(value, np.ndarray):
            return np.zeros((self.num_envs, *value.shape), value.dtype)
        number = type(value) in (int, float, bool) or isinstance(value, np.number)
        return np.zeros(self.num_envs, type(value)) if number else np.full(self.num_envs, None, object)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _is_list(seed: Any) -> bool:
    return isinstance(seed, list | tuple)


def _stacked(space: spaces.Space[Any], seen: list[Any]) -> Any:
    """A batch with at least two dimensions; NaN, or its conversion, where an agent has no observation."""
    if isinstance(space, spaces.Dict):
        parts = [(k, _stacked(s, [None if o is None else o[k] for o in seen])) for k, s in space.spaces.items()]
        return OrderedDict(parts)
    if isinstance(space, spaces.Tuple):
        return tuple(_stacked(s, [None if o is None else o[i] for o in seen]) for i, s in enumerate(space.spaces))
    shape = space.shape or (1,)
    with np.errstate(invalid="ignore"):
        rows = [np.full(shape, np.nan) if o is None else np.asarray(o).reshape(shape) for o in seen]
        return np.stack([np.asarray(row, space.dtype) for row in rows])
