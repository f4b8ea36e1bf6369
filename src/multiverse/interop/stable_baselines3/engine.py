"""Vector env for the Stable-Baselines3 drop-ins: steps in two halves, and a separate info for each env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.errors import EnvFailed, InvalidActions, NothingPending, WorkerDied
from multiverse.core.infos import Infos
from multiverse.core.layout import Array
from multiverse.interop.engine import ActionsAsGiven, Engine
from multiverse.vector.base import Running
from multiverse.vector.requests import reset_requests


class StepInfos(NamedTuple):
    """Infos of a step: of each env (of the new episode, where one ended), and the last ones of ended episodes."""

    infos: list[Infos]
    final_infos: dict[int, Infos]


Stepped = tuple[Any, Array, Array, Array, StepInfos | None]
"""Observations, rewards, terminated, truncated, infos; None if all infos are empty and no episode ended."""


class VecEnvEngine(Engine):
    """Starts a step now and finishes it later; after Ctrl-C it can still be finished, or dropped."""

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self._actions = ActionRows(self.single_action_space, self.action_space, self._executor, self._calls)
        self._before = -1  # while a step is under way: the number of the request before it

    # -- steps -------------------------------------------------------------------------------------------------
    def start_step(self, actions: Any) -> None:
        """Start a step of every env; a wrong number of actions is refused before anything is sent."""
        self.admit_step()
        if self._state.refusal is not None:
            self._state.refuse_step()
        self._actions.write_all(actions)
        executor = self._executor
        self._before = before = executor.number
        try:
            executor.start_step_all()
        except BaseException:
            if not executor.complete_step(before):
                self._before = -1
            raise
        finally:
            if self._before >= 0:
                self._failures.steps_sent += self.num_envs

    def finish_step(self) -> Stepped:
        """Return the results of the step that is under way."""
        executor, before = self._executor, self._before
        if before < 0:
            self._state.refuse_step()
            raise NothingPending("no step is under way: call step_async() first")
        try:
            flags = executor.finish_step_all()
            step_infos = None
            if flags:
                infos, final_infos = self._results.collect_each(executor.hosts, flags)
                step_infos = StepInfos(infos, final_infos)
            observations, rewards, terminated, truncated, _ = self._step_result({})
            executor.settle(executor.hosts)
            self._before = -1
        except BaseException as error:
            self._before = before
            self._cut(error)
            raise
        if self._state.sent:  # there was another request meanwhile, or Ctrl-C
            self._state.settle(executor.hosts)
        self._failures.steps_used += self.num_envs
        return observations, rewards, terminated, truncated, step_infos

    def _cut(self, error: BaseException) -> None:
        """Handle a step that failed, or was interrupted by Ctrl-C: then it stays under way."""
        executor = self._executor
        if not isinstance(error, EnvFailed | WorkerDied):
            executor.complete_step(self._before)
            return
        self._before = -1
        self._failures.steps_discarded += self.num_envs
        executor.settle(executor.hosts)
        self._state.settle(executor.hosts)
        if isinstance(error, EnvFailed):
            self._state.require_reset(error.env_ids)
        else:
            self._state.give_up(error)

    def admit_step(self) -> None:
        """Register the step under way, so that other requests are refused."""
        if self._before >= 0 and not self._state.sent:
            self._state.send({host: np.array(host.env_ids) for host in self._executor.hosts})

    def forget_step(self) -> None:
        """Wait for the step under way, if there is one, and drop its results."""
        if self._before >= 0:
            self._make_way()

    def _make_way(self) -> None:
        self.admit_step()
        self._calls.make_way_for_reset(self._all_ids)
        self._state.refresh()
        self._before = -1

    def final_observation(self, env_id: int) -> Any:
        """Return the last observation of the episode that the last step of this env ended."""
        return self._results.final_observation(env_id)

    # -- everything else ---------------------------------------------------------------------------------------
    def reset_each(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]) -> list[Infos]:
        """Begin an episode in every env, whatever was under way; return the info of each env."""
        self._state.refuse_unusable()
        requests = reset_requests(self._all_ids, seeds, options, None, self.num_envs)
        self._make_way()
        infos = self._calls.reset_each(self._all_ids, requests)
        return [infos.get(env_id) or {} for env_id in range(self.num_envs)]

    def ask_each(self, env_ids: Sequence[int], function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return function(env_range, env ids, *arguments), which gives one answer for each of `env_ids`."""
        self._state.refuse_unusable()
        self.admit_step()
        return list(self._calls.on_each(np.array(env_ids), function, *arguments)) if env_ids else []

    def close_extras(self, timeout_s: float | None = None, **kwargs: Any) -> None:
        self.admit_step()
        super().close_extras(timeout_s, **kwargs)


class ActionRows(ActionsAsGiven):
    """Sends each env its row of the batch, exactly as it is: through the block if that holds it, else by pipe."""

    def _written(self, actions: Any) -> bool:
        nested = bool(self._leaves[0].path)  # then the batch is by env, and the block by part
        return not nested and super()._written(actions)

    def _each(self, actions: Any) -> list[Any]:
        each = list(actions)
        if len(each) != self._rows:
            raise InvalidActions(f"{len(each)} actions for {self._rows} envs: one for each; nothing was sent")
        return each
