"""The AgileRL drop-in's actions: through the block where that holds them exactly as they are, else by pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidActions
from multiverse.core.layout import ACTIONS, Group
from multiverse.core.views import Array, Views
from multiverse.interop.agilerl.rows import EVERYBODY, is_array
from multiverse.interop.engine import ByPipe

Spaces = Mapping[str, spaces.Space[Any]]


class AgentActions:
    """Writes dicts agent → batch, or one dict for each env. An agent whose action is NaN is given none."""

    def __init__(self, views: Views, groups: Sequence[Group], action_spaces: Spaces, by_pipe: ByPipe) -> None:
        self._spaces, self._by_pipe = action_spaces, by_pipe
        self._agents, self._num_envs = list(action_spaces), views.layout.num_envs
        self._given = views[(EVERYBODY, ACTIONS)]
        self._everybody = False  # whether it says that all were given one
        rows = {a: views[(g.name, ACTIONS)][i :: len(g.agents)] for g in groups for i, a in enumerate(g.agents)}
        self._rows = {agent: rows[agent] for agent, space in action_spaces.items() if is_array(space)}

    def write(self, actions: Mapping[str, Any]) -> None:
        """A batch for each agent."""
        if self._by_pipe.unused or not self._written(actions):
            self.write_each(self._taken_apart(actions))

    def write_each(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """One dict for each env; what is beyond their number goes unused."""
        if len(actions) < self._num_envs:
            raise InvalidActions(f"actions for {len(actions)} of {self._num_envs} envs: nothing was sent")
        each = [{a: self._as_sent(a, action) for a, action in one.items()} for one in actions[: self._num_envs]]
        self._show(each)
        self._by_pipe.give(each)

    # -- through the block ---------------------------------------------------------------------------------------
    def _written(self, actions: Mapping[str, Any]) -> bool:
        """Put into the block, if it gives every env the same actions, of the same type and in the same order."""
        if list(actions) != self._agents or len(self._rows) != len(self._agents):
            return False
        fitting = []
        for agent, row in self._rows.items():
            if (found := _fitting(actions[agent], row)) is None:
                return False
            fitting.append((row, *found))
        for row, batch, _ in fitting:
            row[...] = batch
        self._say_who([absent for *_, absent in fitting])
        return True

    def _say_who(self, absent: list[Array | None]) -> None:
        """Who was given an action, in the order of the agents."""
        everybody = not any(one is not None for one in absent)
        if not (everybody and self._everybody):
            self._given[...] = 1
            for i, one in enumerate(absent):
                if one is not None:
                    self._given[:, i] = ~one
        self._everybody = everybody

    def _show(self, each: Sequence[Mapping[str, Any]]) -> None:
        """Also into the block what it can hold, so that a failure's report shows what was done."""
        self._everybody = False
        for i, one in enumerate(each):
            for agent, row in self._rows.items():
                try:
                    row[i] = one.get(agent, 0)
                except (TypeError, ValueError, OverflowError):
                    row[i] = 0

    # -- by pipe -------------------------------------------------------------------------------------------------
    def _taken_apart(self, actions: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A batch for each agent → a dict for each env. A tensor's numbers are arrays without dimensions."""
        actions = {
            agent: [np.array(row) for row in np.asarray(batch)] if _is_tensor(batch) else batch
            for agent, batch in actions.items()
        }
        count = max([_length(batch) for batch in actions.values()][:1], default=0)
        assert count == self._num_envs, (
            "Number of actions passed to the step function must be equal to the number of vectorized environments"
        )
        return [
            {agent: action for agent, batch in actions.items() if not _is_nan(action := self._action(agent, batch, i))}
            for i in range(count)
        ]

    def _action(self, agent: str, batch: Any, i: int) -> Any:
        """One env's action. Numbers are whole ones, for agents with Discrete actions, unless they are NaN."""
        if isinstance(self._spaces.get(agent), spaces.Dict | spaces.Tuple):
            return _row_of(batch, i)
        action = batch[i]
        number = np.isscalar(action) and not isinstance(self._spaces.get(agent), spaces.Box)
        return int(action) if number and not np.isnan(action) else action

    def _as_sent(self, agent: str, action: Any) -> Any:
        nested = isinstance(self._spaces.get(agent), spaces.Dict | spaces.Tuple)
        return action if nested or isinstance(action, int) else np.array(action).squeeze()


def _fitting(batch: Any, row: Array) -> tuple[Array, Array | None] | None:
    """(what to write, who has no action) if a column of the block holds the batch; None if it does not."""
    if type(batch) is not np.ndarray or batch.shape != row.shape:
        return None
    if batch.dtype.kind != "f":
        # A number becomes an int on its way to the env, so that its own type does not matter.
        return (batch, None) if batch.dtype == row.dtype or (batch.ndim == 1 and _whole(batch, row)) else None
    absent = np.isnan(batch)
    if batch.dtype != row.dtype and not (batch.ndim == 1 and _whole(batch[~absent], row)):
        return None
    if not absent.any():
        return batch, None
    whole_rows: Array = np.logical_and.reduce(absent.reshape(len(batch), -1), axis=1)
    kept = batch.copy()
    kept[whole_rows] = 0
    return kept, whole_rows


def _whole(numbers: Array, row: Array) -> bool:
    """Whether a column of integers holds these numbers, which lose what comes after the point."""
    if row.dtype.kind not in "iu" or numbers.dtype.kind not in "iuf":
        return False
    limits = np.iinfo(row.dtype)
    return bool((numbers >= limits.min).all() and (numbers < limits.max).all())


def _length(batch: Any) -> int:
    """Of a batch of actions, nested or not."""
    while isinstance(batch, Mapping | tuple):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def _is_tensor(batch: Any) -> bool:
    return hasattr(batch, "__array__") and not isinstance(batch, np.ndarray)


def _row_of(batch: Any, i: int) -> Any:
    if isinstance(batch, Mapping):
        return {key: _row_of(part, i) for key, part in batch.items()}
    return tuple(_row_of(part, i) for part in batch) if isinstance(batch, tuple) else batch[i]


def _is_nan(action: Any) -> bool:
    return not isinstance(action, dict | tuple) and bool(np.isnan(action).all())
