"""Today this is `mv.make_vec(env_fns, executor="process")`: one env in each worker process, under the document's name.

    manager = ParallelEnvManager([make_env] * 4)                   # in examples/meta_rl
    manager.remotes[2].send(("reset", {"task": task}))             # manager.engine.reset(env_ids=[2], tasks=[task])
    observation, info = manager.remotes[2].recv()
    for remote, action in zip(manager.remotes, actions):
        remote.send(("step", action))                              # manager.engine.send(actions): returns at once
    results = [remote.recv() for remote in manager.remotes]        # manager.engine.receive()
    manager.close()                                                # or del manager: no process is left

A send without its recv, and a recv without its send, is an error that says so; a worker that dies is replaced, and what
was lost with it is in the info ("restarted").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.vector.utils import iterate

import multiverse as mv


class ParallelEnvManager:
    """Envs in worker processes: `remotes` talks to each, `engine` (a `mv.VectorEnv`) to all of them."""

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

    def reset(self, **how: Any) -> Any:
        """All envs."""
        self._answers.clear()
        self._resets.clear()
        return self.engine.reset(**how)

    def close(self) -> None:
        """End every worker; twice without harm."""
        self.engine.close()


class Remote:
    """One env's end of the line."""

    def __init__(self, engine: mv.VectorEnv, env_id: int, answers: dict[int, Any], resets: dict[int, Any]) -> None:
        self._engine, self._env_id, self._answers, self._resets = engine, env_id, answers, resets
        self._steps = False  # its step is under way

    def send(self, command: tuple[str, Any]) -> None:
        """Send ("reset", {"task": task}) or ("step", action) and return at once.

        All resets that were sent run in parallel, from the first recv() of one of them on.
        """
        me, engine = self._env_id, self._engine
        if not isinstance(command, tuple) or len(command) != 2:
            raise mv.errors.InvalidRequest(
                f"send({command!r}): expected ('reset', {{'task': task}}) or ('step', action)"
            )
        name, data = command
        if me in self._answers:
            raise mv.errors.RequestPending(
                f"env {me} has answered, and nobody has heard it: recv() before the next send()"
            )
        if me in self._resets:
            raise mv.errors.RequestPending(f"env {me} is still under way: recv() its reset before the next send()")
        if name == "step":
            engine.send([data], env_ids=[me])
            self._steps = True
        elif name == "reset":
            options = {} if data is None else data
            if not isinstance(options, dict) or options.keys() - {"task"}:
                raise mv.errors.InvalidRequest(f"('reset', {options!r}): expected {{'task': task}}, or None")
            if self._steps:
                raise mv.errors.RequestPending(f"env {me} is still under way: recv() its step before the next send()")
            self._resets[me] = options.get("task")
        else:
            raise mv.errors.InvalidRequest(
                f"{name!r}: a remote knows 'reset' and 'step'; manager.engine.call({name!r}) more"
            )

    def _reset_all_sent(self) -> None:
        """Run every reset that was sent, side by side; one that fails is dropped, the others stay pending."""
        ids, tasks = list(self._resets), list(self._resets.values())
        try:
            observations, infos = self._engine.reset(env_ids=ids, tasks=tasks)
        except mv.errors.EnvFailed as error:
            for env_id in error.env_ids or ids:
                self._resets.pop(env_id, None)
            raise
        for row, (env_id, observation) in enumerate(zip(ids, iterate(self._engine.observation_space, observations))):
            self._answers[env_id] = observation, _of_row(infos, row)
        self._resets.clear()

    def recv(self) -> Any:
        """(observation, info) of a reset; five results of a step. `mv.errors.NothingPending` if nothing was sent."""
        me = self._env_id
        if me in self._resets:
            self._reset_all_sent()
        if me not in self._answers and not self._steps:
            raise mv.errors.NothingPending(f"nothing was sent to env {me}: send() first")
        while me not in self._answers:
            batch = self._engine.receive(min_envs=1)
            observations = iterate(self._engine.observation_space, batch.observations)
            rows = zip(batch.env_ids.tolist(), observations, batch.rewards, batch.terminated, batch.truncated)
            for row, (who, observation, reward, terminated, truncated) in enumerate(rows):
                info = _of_row(batch.infos, row)
                self._answers[who] = observation, float(reward), bool(terminated), bool(truncated), info
        self._steps = False
        return self._answers.pop(me)


def _of_row(infos: dict[str, Any], row: int) -> dict[str, Any]:
    return {key: value[row] for key, value in infos.items() if f"_{key}" in infos and infos[f"_{key}"][row]}
