"""Stable-Baselines3's `SubprocVecEnv` and `DummyVecEnv` on our engine: only the import changes.

    from multiverse.interop.stable_baselines3 import SubprocVecEnv

Only base classes and pure functions come from Stable-Baselines3. Differences: docs/drop_in_stable_baselines3.md.
"""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from operator import attrgetter
from typing import Any, cast

import numpy as np
import psutil
from gymnasium import Env, Wrapper, spaces
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import obs_space_info

from multiverse.core.errors import EnvFailed, InEnv, InvalidActions
from multiverse.core.infos import Infos
from multiverse.core.layout import leaves
from multiverse.core.plan import IN_CALLER, IN_PROCESSES, WorkerOptions
from multiverse.interop.drop_in import ErrorTranslator, recipes_of, start, start_method_of
from multiverse.interop.stable_baselines3.engine import Stepped, VecEnvEngine
from multiverse.interop.stable_baselines3.env_side import VecEnvMember, VecEnvRecipe, of_each, patched

log = logging.getLogger("multiverse")

CLOSE_S = 15.0
"""Time that `close` waits for busy envs; the original waits forever."""

_PLAIN = frozenset({bool, int, float, str, type(None), np.float32, np.float64, np.int64})
"""Types of values that cannot be changed."""

TRUNCATED, LAST = "TimeLimit.truncated", "terminal_observation"

EnvFunctions = Sequence[Callable[[], Env[Any, Any]]]


class EngineVecEnv(ErrorTranslator, VecEnv):
    """Common part of both drop-ins. `engine` is the `multiverse.VectorEnv` that does the work."""

    engine: VecEnvEngine
    """Our vector env: `engine.plan` has the executor, `engine.failures` the counts of failures."""

    _shared = False  # whether the envs see the caller's own objects, or copies

    def _take_over(self, engine: VecEnvEngine) -> None:
        """Set the attributes of the original from those of the engine."""
        self.engine, self.closed = engine, False
        try:
            super().__init__(engine.num_envs, engine.single_observation_space, engine.single_action_space)
        except BaseException:
            engine.close()
            raise

    # -- steps and resets --------------------------------------------------------------------------------------
    def _infos(self, stepped: Stepped) -> list[Infos]:
        """Return the info of each env, with the keys that Stable-Baselines3 adds."""
        _, _, terminated, truncated, step_infos = stepped
        if step_infos is None:
            return [{TRUNCATED: False} for _ in range(self.num_envs)]
        infos = [self._detached(info) for info in step_infos.infos]
        for info in infos:
            info[TRUNCATED] = False
        for env_id, (end, cut) in enumerate(zip(terminated.tolist(), truncated.tolist())):
            if end or cut:
                # The info of the step is that of the reset; the original returns the last one of the ended episode.
                self._begun(env_id, step_infos.infos[env_id])
                infos[env_id] = last = self._detached(step_infos.final_infos.get(env_id, {}))
                last[TRUNCATED], last[LAST] = not end, self.engine.final_observation(env_id)
        return infos

    def _detached(self, info: Infos) -> Infos:
        """Return a dict that the caller may keep and change."""
        raise NotImplementedError

    def _begun(self, env_id: int, info: Infos) -> None:
        """Note that an env has begun a new episode within a step."""
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

    # -- attributes and methods --------------------------------------------------------------------------------
    def get_images(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """Return a frame of each env."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self._ask(None, VecEnvMember.render)

    def has_attr(self, attr_name: str) -> bool:
        """Return whether every env has the attribute."""
        return all(self._ask(None, VecEnvMember.has, attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of each env."""
        return self._ask(indices, VecEnvMember.attribute, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of each env, on its outermost wrapper."""
        self._ask(indices, VecEnvMember.set_attr, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each env."""
        return self._ask(indices, VecEnvMember.method, method_name, method_args, method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether each env is inside such a wrapper."""
        return self._ask(indices, VecEnvMember.is_wrapped, wrapper_class)

    def _ask(self, indices: VecEnvIndices, ask: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ask(env, *arguments) of each env, called where it runs."""
        all_ids = range(self.engine.num_envs)
        env_ids = [all_ids[i] for i in self._get_indices(indices)]
        try:
            return self.engine.ask_each(env_ids, of_each, ask, self._shared, *arguments)
        except EnvFailed as error:
            self._raise(error)

    def _get_indices(self, indices: VecEnvIndices) -> Any:
        return range(self.engine.num_envs) if indices is None else super()._get_indices(indices)


class SubprocVecEnv(EngineVecEnv):
    """Envs in worker processes, stepped in parallel.

    :param env_fns: functions that build one env each; closures and lambdas are fine
    :param start_method: "forkserver" (the default), "fork" or "spawn"; no `if __name__ == "__main__":` is needed
    :param workers: number of processes, each of which hosts many envs. Default: as in `make_vec`
    """

    def __init__(self, env_fns: EnvFunctions, start_method: str | None = None, *, workers: int | None = None) -> None:
        self.waiting = False
        try:
            running = start(
                recipes_of(env_fns, VecEnvRecipe),
                IN_PROCESSES,
                "same_step",
                workers=WorkerOptions(
                    count=workers,
                    start_method=start_method_of("forkserver" if start_method is None else start_method),
                    waiting="auto",  # a parked worker wakes up later than a cheap env steps
                ),
                bounds_may_differ=True,
            )
        except EnvFailed as error:
            self._raise(error)
        engine = VecEnvEngine(running)
        self._stack = any(not leaf.numeric for leaf in leaves(engine.single_observation_space))
        self._take_over(engine)

    def step_async(self, actions: np.ndarray[Any, Any]) -> None:
        """Start a step of every env."""
        self.engine.start_step(actions)
        self.waiting = True

    def step_wait(self) -> VecEnvStepReturn:
        """Return the results of the step; raise at once if a worker has died."""
        try:
            stepped = self.engine.finish_step()
        except EnvFailed as error:
            self.waiting = False
            self._raise(error)
        self.waiting = False
        observations, rewards, terminated, truncated, _ = stepped
        infos = tuple(self._infos(stepped))
        return self._stacked(observations), rewards, terminated | truncated, infos  # type: ignore[return-value]

    def _detached(self, info: Infos) -> Infos:
        return dict(info)  # it belongs to the caller already

    def _begun(self, env_id: int, info: Infos) -> None:
        infos = self.reset_infos
        self.reset_infos = (*infos[:env_id], info, *infos[env_id + 1 :])  # type: ignore[assignment]

    def reset(self) -> VecEnvObs:
        """Begin an episode in every env; a step under way is dropped."""
        self._begin_episodes()
        self.reset_infos = tuple(self.reset_infos)  # type: ignore[assignment]
        self.waiting = False
        return self._stacked(self.engine.observations())

    def close(self) -> None:
        """End every worker, even a busy one. Closing again has no effect."""
        if self.closed:
            return
        try:
            self.engine.close(timeout_s=CLOSE_S)
        except EnvFailed as error:  # all workers have ended, and the original ignores it too
            log.warning("%s", error)
        self.closed = True

    @property
    def processes(self) -> list[psutil.Process]:
        """The worker process of each env; envs may share one."""
        return [psutil.Process(pid) for pid in self.engine.pid_of_each]

    def _stacked(self, observations: Any) -> VecEnvObs:
        """Stack values that no array of the block can hold, if that is possible."""
        if not self._stack:
            return cast(VecEnvObs, observations)
        if isinstance(observations, dict):
            return {key: np.stack(value) for key, value in observations.items()}
        if isinstance(self.observation_space, spaces.Tuple):
            return tuple(np.stack(value) for value in observations)
        return np.stack(observations)


class DummyVecEnv(EngineVecEnv):
    """Envs in the calling process, stepped one after the other.

    :param env_fns: functions that build one env each
    :raises ValueError: if two of them return the same env
    """

    actions: np.ndarray[Any, Any]
    _shared = True

    def __init__(self, env_fns: EnvFunctions) -> None:
        self.envs = [patched(build()) for build in env_fns]
        if len({id(env.unwrapped) for env in self.envs}) != len(self.envs):
            raise ValueError(
                "You tried to create multiple environments, but the function to create them returned the same instance "
                "instead of creating different objects: each call must build a new env, e.g. with gymnasium.make()."
            )
        keys, _, _ = obs_space_info(self.envs[0].observation_space)
        each = recipes_of([_handing_out(env) for env in self.envs], VecEnvRecipe)
        self._take_over(VecEnvEngine(start(each, IN_CALLER, "same_step", bounds_may_differ=True)))
        self.keys, self.metadata = keys, self.envs[0].metadata

    def step_async(self, actions: np.ndarray[Any, Any]) -> None:
        """Remember the actions for `step_wait`."""
        self.actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step every env."""
        try:
            self.engine.start_step(self._rows())
            stepped = self.engine.finish_step()
        except EnvFailed as error:
            self.engine.go_on_after_failures()
            self._raise(error)
        except BaseException:
            self.engine.forget_step()  # Ctrl-C: the next step is a new one
            raise
        observations, rewards, terminated, truncated, _ = stepped
        infos = self._infos(stepped)
        return self._as_is(observations), rewards.astype(np.float32), terminated | truncated, infos

    def _detached(self, info: Infos) -> Infos:
        """Copy the info, which the env may keep and change later."""
        return {key: value if type(value) in _PLAIN else deepcopy(value) for key, value in info.items()}

    def _begun(self, env_id: int, info: Infos) -> None:
        self.reset_infos[env_id] = info

    def _rows(self) -> Any:
        """Return the actions; any beyond the number of envs are ignored."""
        count = len(self.actions)
        if count < self.num_envs:
            raise _TooFewActions(f"{count} actions for {self.num_envs} envs: one for each; no env was stepped")
        return self.actions if count == self.num_envs else self.actions[: self.num_envs]

    def reset(self) -> VecEnvObs:
        """Begin an episode in every env."""
        self._begin_episodes()
        return self._as_is(self.engine.observations())

    def close(self) -> None:
        """Close every env."""
        if self.closed:
            return
        self.closed = True
        try:
            self.engine.close()
        except EnvFailed as error:
            self._raise(error)

    def _as_is(self, observations: Any) -> VecEnvObs:
        return OrderedDict(observations) if isinstance(observations, dict) else observations

    def _translated(self, error: EnvFailed) -> Exception:  # type: ignore[override]  # nothing else comes here
        """Return the exception itself, whatever its type, since the envs run in this process."""
        called: Any = error.__cause__
        if isinstance(called, InEnv):
            return called.cause
        env_id = error.failures[0].env_id
        if env_id is None or self.closed:
            return super()._translated(error)
        (raised,) = self.engine.ask_each([env_id], of_each, attrgetter("raised"), True)
        return raised or super()._translated(error)


class _TooFewActions(InvalidActions, IndexError):
    """The original raises an IndexError when it runs out of actions, after the first envs have been stepped."""


def _handing_out(env: Env[Any, Any]) -> Callable[[], Env[Any, Any]]:
    return lambda: env
