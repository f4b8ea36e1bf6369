"""One env in each worker process, with the document's names.

In multiverse: `mv.make_vec(env_fns, executor="process")`.

    manager = ParallelEnvManager([make_env] * 4)                   # in examples/meta_rl
    manager.remotes[2].send(("reset", {"task": task}))             # manager.engine.reset(env_ids=[2], tasks=[task])
    observation, info = manager.remotes[2].recv()
    for remote, action in zip(manager.remotes, actions):
        remote.send(("step", action))                              # manager.engine.send(actions): returns at once
    results = [remote.recv() for remote in manager.remotes]        # manager.engine.receive()
    manager.close()                                                # or del manager: stops all processes

A `send` without a `recv`, or a `recv` without a `send`, raises an error. A worker that dies is replaced, and the lost
step is marked in the info ("restarted").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.vector.utils import iterate

import multiverse as mv


class ParallelEnvManager:
    """Environments in worker processes: `remotes` has one connection per env, `engine` is the `mv.VectorEnv`."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], start_method: Any = None) -> None:
        self.engine = mv.make_vec(
            list(env_fns),
            executor="process",
            workers=mv.WorkerOptions(count=len(env_fns), start_method=start_method),
            autoreset="disabled",
            on_failure="restart",
        )
        self._answers: dict[int, Any] = {}  # by env id: results that recv() has not returned yet
        self._resets: dict[int, Any] = {}  # by env id: tasks of resets that were sent and not yet received
        self.remotes = [Remote(self.engine, i, self._answers, self._resets) for i in range(len(env_fns))]
        self.train_tasks: Sequence[Any] = ()
        self.eval_tasks: Sequence[Any] = ()

    @property
    def num_workers(self) -> int:
        return self.engine.num_envs

    def reset(self, **options: Any) -> Any:
        """Reset all environments."""
        self._answers.clear()
        self._resets.clear()
        return self.engine.reset(**options)

    def close(self) -> None:
        """Stop all workers. Calling this method again has no effect."""
        self.engine.close()


class Remote:
    """Connection to one env."""

    def __init__(self, engine: mv.VectorEnv, env_id: int, answers: dict[int, Any], resets: dict[int, Any]) -> None:
        self._engine, self._env_id, self._answers, self._resets = engine, env_id, answers, resets
        self._steps = False  # whether a step is pending

    def send(self, command: tuple[str, Any]) -> None:
        """Send ("reset", {"task": task}) or ("step", action) and return at once.

        All resets that were sent run in parallel, starting with the first recv() of one of them.
        """
        env_id, engine = self._env_id, self._engine
        if not isinstance(command, tuple) or len(command) != 2:
            raise mv.errors.InvalidRequest(
                f"send({command!r}): expected ('reset', {{'task': task}}) or ('step', action)"
            )
        name, data = command
        if env_id in self._answers:
            raise mv.errors.RequestPending(
                f"env {env_id} has a result that was not received: call recv() before the next send()"
            )
        if env_id in self._resets:
            raise mv.errors.RequestPending(
                f"the reset of env {env_id} is still pending: call recv() before the next send()"
            )
        if name == "step":
            engine.send([data], env_ids=[env_id])
            self._steps = True
        elif name == "reset":
            options = {} if data is None else data
            if not isinstance(options, dict) or options.keys() - {"task"}:
                raise mv.errors.InvalidRequest(f"('reset', {options!r}): expected {{'task': task}}, or None")
            if self._steps:
                raise mv.errors.RequestPending(
                    f"the step of env {env_id} is still pending: call recv() before the next send()"
                )
            self._resets[env_id] = options.get("task")
        else:
            raise mv.errors.InvalidRequest(
                f"unknown command {name!r}: expected 'reset' or 'step' (for others: manager.engine.call({name!r}))"
            )

    def _run_resets(self) -> None:
        """Run all resets that were sent, in parallel. If one fails, it is dropped and the others stay pending."""
        ids, tasks = list(self._resets), list(self._resets.values())
        try:
            observations, infos = self._engine.reset(env_ids=ids, tasks=tasks)
        except mv.errors.EnvFailed as error:
            for env_id in error.env_ids or ids:
                self._resets.pop(env_id, None)
            raise
        for row, (env_id, observation) in enumerate(zip(ids, iterate(self._engine.observation_space, observations))):
            self._answers[env_id] = observation, _infos_of_row(infos, row)
        self._resets.clear()

    def recv(self) -> Any:
        """Return (observation, info) of a reset or the five results of a step. `NothingPending`: nothing was sent."""
        env_id = self._env_id
        if env_id in self._resets:
            self._run_resets()
        if env_id not in self._answers and not self._steps:
            raise mv.errors.NothingPending(f"nothing was sent to env {env_id}: call send() first")
        while env_id not in self._answers:
            batch = self._engine.receive(min_envs=1)
            observations = iterate(self._engine.observation_space, batch.observations)
            rows = zip(batch.env_ids.tolist(), observations, batch.rewards, batch.terminated, batch.truncated)
            for row, (other_id, observation, reward, terminated, truncated) in enumerate(rows):
                info = _infos_of_row(batch.infos, row)
                self._answers[other_id] = observation, float(reward), bool(terminated), bool(truncated), info
        self._steps = False
        return self._answers.pop(env_id)


def _infos_of_row(infos: dict[str, Any], row: int) -> dict[str, Any]:
    return {key: value[row] for key, value in infos.items() if f"_{key}" in infos and infos[f"_{key}"][row]}
