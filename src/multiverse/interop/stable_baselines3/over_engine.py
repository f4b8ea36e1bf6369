"""What the two drop-ins for Stable-Baselines3 do alike: infos, resets, attributes, errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Wrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices

from multiverse.contracts.errors import EnvFailed
from multiverse.contracts.infos import Infos
from multiverse.executors.env_range import EnvRange
from multiverse.interop.drop_in import InTheirWords
from multiverse.interop.stable_baselines3 import env_side
from multiverse.interop.stable_baselines3.engine import Stepped, VecEnvEngine

TRUNCATED, LAST = "TimeLimit.truncated", "terminal_observation"


class OverEngine(InTheirWords, VecEnv):
    """What both drop-ins do alike. `engine` is the `multiverse.VectorEnv` that does the work."""

    engine: VecEnvEngine
    """Ours underneath: `engine.plan` says how it runs, `engine.failures` what went wrong so far."""

    _shared = False  # whether the envs see the caller's own objects, or copies

    def _take_over(self, engine: VecEnvEngine) -> None:
        """Show what the original shows of the envs that the engine runs."""
        self.engine, self.closed = engine, False
        try:
            super().__init__(engine.num_envs, engine.single_observation_space, engine.single_action_space)
        except BaseException:
            engine.close()
            raise

    # -- steps and resets --------------------------------------------------------------------------------------
    def _infos(self, stepped: Stepped) -> list[Infos]:
        """Each env's info of a step, with what Stable-Baselines3 adds to it."""
        _, _, terminated, truncated, step_infos = stepped
        if step_infos is None:
            return [{TRUNCATED: False} for _ in range(self.num_envs)]
        infos = [self._detached(info) for info in step_infos.infos]
        for info in infos:
            info[TRUNCATED] = False
        for env_id, (end, cut) in enumerate(zip(terminated.tolist(), truncated.tolist())):
            if end or cut:
                # What the env said last is the reset's; what is asked for is the last word of the episode that ended.
                self._begun(env_id, step_infos.infos[env_id])
                infos[env_id] = last = self._detached(step_infos.final_infos.get(env_id, {}))
                last[TRUNCATED], last[LAST] = not end, self.engine.final_observation(env_id)
        return infos

    def _detached(self, info: Infos) -> Infos:
        """A dict that the caller may keep and change."""
        raise NotImplementedError

    def _begun(self, env_id: int, info: Infos) -> None:
        """An env has begun a new episode within a step."""
        raise NotImplementedError

    def _begin_episodes(self) -> None:
        """Reset every env with the seeds and options that were set, which are used only once."""
        options = [deepcopy(given) or None for given in self._options]
        try:
            reset_infos = self.engine.reset_each(self._seeds, options)
        except EnvFailed as error:
            self._raise(error)
        self.reset_infos = reset_infos
        self._reset_seeds()
        self._reset_options()

    # -- whatever else can be asked of envs --------------------------------------------------------------------
    def get_images(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """A frame of each env."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self._ask(None, EnvRange.render)

    def has_attr(self, attr_name: str) -> bool:
        """Whether every env has the attribute."""
        return all(self._ask(None, env_side.have_attribute, attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of each env."""
        return self._ask(indices, env_side.attributes, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of each env, on its outermost wrapper."""
        self._ask(indices, env_side.set_attributes, attr_name, value, self._shared)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each env."""
        return self._ask(indices, env_side.methods, method_name, method_args, method_kwargs, self._shared)

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each env is inside such a wrapper."""
        return self._ask(indices, env_side.are_wrapped, wrapper_class)

    def _ask(self, indices: VecEnvIndices, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        everyone = range(self.engine.num_envs)
        env_ids = [everyone[i] for i in self._get_indices(indices)]
        try:
            return self.engine.ask_each(env_ids, function, *arguments)
        except EnvFailed as error:
            self._raise(error)

    def _get_indices(self, indices: VecEnvIndices) -> Any:
        return range(self.engine.num_envs) if indices is None else super()._get_indices(indices)
