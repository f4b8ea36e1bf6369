"""Multi-agent vector env for the AgileRL drop-in, with AgileRL's batches, infos and actions.

Actions are sent through the block if it holds them exactly, otherwise by pipe. If AgileRL is installed, two base
classes and an enum come from it, for `isinstance` and `==`: AgileRL's training loops check `isinstance(env,
PettingZooVecEnv)`. Importing it loads torch, but only in the caller. No code of AgileRL is called.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.async_vector_env import AsyncState as GymnasiumState

from multiverse.core.errors import InvalidActions
from multiverse.core.infos import Infos, empty_column
from multiverse.core.layout import ACTIONS, ENDED, OBSERVATIONS, VALUES, Array, Group, Leaf, Views
from multiverse.interop.agilerl.env_side import (
    ALL_AGENTS,
    MISSING,
    ODD,
    ODDITIES,
    WholeInfo,
    dtype_of,
    is_array,
    nested,
    restored_number,
)
from multiverse.interop.engine import AsyncCalls, ByPipe
from multiverse.vector.base import Running
from multiverse.vector.parallel import MultiAgentVectorEnv

log = logging.getLogger("multiverse")


def _peer() -> Any:
    """Return AgileRL's module, or None if it or one of its dependencies is not installed."""
    try:
        return importlib.import_module("agilerl.vector.pz_async_vec_env")
    except ImportError as error:
        if error.name != "agilerl":
            log.warning("agilerl cannot be imported (%s): isinstance(env, PettingZooVecEnv) will be false", error)
        return None


_module = _peer()
VecEnvBase: Any = getattr(_module, "PettingZooVecEnv", object)
ObservationsBase: Any = getattr(_module, "Observations", Mapping)  # AgileRL's is a Mapping too
AsyncState: Any = getattr(_module, "AsyncState", GymnasiumState)  # equal by name and value
"""Pending request: DEFAULT (none), WAITING_RESET, WAITING_STEP or WAITING_CALL."""


# -- actions ---------------------------------------------------------------------------------------------------
Spaces = Mapping[str, spaces.Space[Any]]


class AgentActions:
    """Writes dicts agent → batch, or one dict for each env. An agent whose action is NaN gets none."""

    def __init__(self, views: Views, groups: Sequence[Group], action_spaces: Spaces, by_pipe: ByPipe) -> None:
        self._spaces, self._by_pipe = action_spaces, by_pipe
        self._agents, self._num_envs = list(action_spaces), views.layout.num_envs
        self._given = views[(ALL_AGENTS, ACTIONS)]
        self._all_given = False  # whether `_given` is 1 for all
        rows = {a: views[(g.name, ACTIONS)][i :: len(g.agents)] for g in groups for i, a in enumerate(g.agents)}
        self._rows = {agent: rows[agent] for agent, space in action_spaces.items() if is_array(space)}

    def write(self, actions: Mapping[str, Any]) -> None:
        """Write a batch for each agent."""
        if self._by_pipe.unused or not self._written(actions):
            self.write_each(self._taken_apart(actions))

    def write_each(self, actions: Sequence[Mapping[str, Any]]) -> None:
        """Write one dict for each env; further ones are ignored."""
        if len(actions) < self._num_envs:
            raise InvalidActions(f"actions for {len(actions)} of {self._num_envs} envs: pass one action per env")
        each = [{a: self._as_sent(a, action) for a, action in one.items()} for one in actions[: self._num_envs]]
        self._show(each)
        self._by_pipe.give(each)

    # -- through the block ---------------------------------------------------------------------------------------
    def _written(self, actions: Mapping[str, Any]) -> bool:
        """Write into the block if that preserves all actions, their types and their order; return whether it does."""
        if list(actions) != self._agents or len(self._rows) != len(self._agents):
            return False
        fitting = []
        for agent, row in self._rows.items():
            if (batch_and_absent := _fitting(actions[agent], row)) is None:
                return False
            fitting.append((row, *batch_and_absent))
        for row, batch, _ in fitting:
            row[...] = batch
        self._write_given([absent for *_, absent in fitting])
        return True

    def _write_given(self, absent: list[Array | None]) -> None:
        """Write which agents have an action, in the order of the agents."""
        all_given = not any(rows is not None for rows in absent)
        if not (all_given and self._all_given):
            self._given[...] = 1
            for i, rows in enumerate(absent):
                if rows is not None:
                    self._given[:, i] = ~rows
        self._all_given = all_given

    def _show(self, each: Sequence[Mapping[str, Any]]) -> None:
        """Write actions that the block can hold there too, so that reports of failures show them."""
        self._all_given = False
        for i, actions in enumerate(each):
            for agent, row in self._rows.items():
                try:
                    row[i] = actions.get(agent, 0)
                except (TypeError, ValueError, OverflowError):
                    row[i] = 0

    # -- by pipe -------------------------------------------------------------------------------------------------
    def _taken_apart(self, actions: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a dict for each env. Numbers of a tensor are arrays without dimensions."""
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
        """Return the action of one env. Numbers for agents with Discrete actions become ints, unless they are NaN."""
        if isinstance(self._spaces.get(agent), spaces.Dict | spaces.Tuple):
            return _row_of(batch, i)
        action = batch[i]
        number = np.isscalar(action) and not isinstance(self._spaces.get(agent), spaces.Box)
        return int(action) if number and not np.isnan(action) else action

    def _as_sent(self, agent: str, action: Any) -> Any:
        nested = isinstance(self._spaces.get(agent), spaces.Dict | spaces.Tuple)
        return action if nested or isinstance(action, int) else np.array(action).squeeze()


def _fitting(batch: Any, row: Array) -> tuple[Array, Array | None] | None:
    """Return (batch to write, rows without an action) if a column of the block holds the batch, otherwise None."""
    if type(batch) is not np.ndarray or batch.shape != row.shape:
        return None
    if batch.dtype.kind != "f":
        # A number is converted to an int for the env, so that its own type does not matter.
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
    """Return whether a column of integers holds these numbers, without their fractions."""
    if row.dtype.kind not in "iu" or numbers.dtype.kind not in "iuf":
        return False
    limits = np.iinfo(row.dtype)
    return bool((numbers >= limits.min).all() and (numbers < limits.max).all())


def _length(batch: Any) -> int:
    """Return the length of a batch of actions, nested or not."""
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


# -- batches ---------------------------------------------------------------------------------------------------
AgentsStep = tuple[Any, dict[str, Array], dict[str, Array], dict[str, Array], Infos]


class Observations(ObservationsBase):  # type: ignore[misc]
    """agent → batch of the current observations, returned with `copy=False`: read from the block and copied at each
    access."""

    def __init__(self, views: Views, agents: Sequence[tuple[str, Group]]) -> None:
        self._take = {agent: _reader(views, agent, group) for agent, group in agents}

    def copied(self) -> dict[str, Any]:
        return {agent: take() for agent, take in self._take.items()}

    def __getitem__(self, agent: str) -> Any:
        return self._take[agent]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._take)

    def __len__(self) -> int:
        return len(self._take)

    def __repr__(self) -> str:
        return repr(self.copied())

    __str__ = __repr__


def _reader(views: Views, agent: str, group: Group) -> Callable[[], Any]:
    """Return a function that reads the observations of an agent in all envs; objects as a tuple."""
    rows = slice(group.agents.index(agent), None, len(group.agents))

    def of_leaf(leaf: Leaf) -> Callable[[], Any]:
        name = (group.name, OBSERVATIONS, *leaf.path)
        if name in views.arrays:
            return views.arrays[name][rows].copy
        return lambda: tuple(views.objects[name][rows])

    return nested(group.observation_space, of_leaf, Leaf((), group.observation_space))


class AgentsEngine(AsyncCalls, MultiAgentVectorEnv):
    """Parallel envs; every agent has a row in every batch, in which missing values are NaN."""

    def __init__(self, action_spaces: Spaces, running: Running) -> None:
        """`action_spaces`: the original spaces, in the order of the agents."""
        executor, groups = running.executor, running.description.groups[:-1]  # the last one is about all agents
        super().__init__(replace(running, description=replace(running.description, groups=groups)))
        views, agents = executor.views, [(agent, self._group(agent)) for agent in action_spaces]
        self._order, self._by_pipe = list(action_spaces), ByPipe(executor, self._calls)
        self.current, self._columns = Observations(views, agents), Columns(views, agents)
        self._acts = AgentActions(views, groups, action_spaces, self._by_pipe)

    def start_reset(self, seed: Any, options: Any) -> None:
        """Pass the options to every env unchanged."""
        super().start_reset(seed, [options] * self.num_envs)

    def finish_reset(self, timeout_s: float | None) -> tuple[Any, Infos]:
        observations, infos = super().finish_reset(timeout_s)
        return observations, by_agent(infos, self._order, self.num_envs)

    # -- batches -----------------------------------------------------------------------------------------------
    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        """Write a dict agent → batch or, for a step in two halves, a list of dicts; always for all envs."""
        if isinstance(actions, Mapping):
            self._acts.write(actions)
        else:
            self._acts.write_each(actions)

    def _step_result(self, infos: Infos) -> AgentsStep:
        columns = self._columns.read(infos.get(ODDITIES))
        return (self.observations(), *columns, by_agent(infos, self._order, self.num_envs))

    def _batch(self, ids: Array, infos: Infos) -> AgentsStep:  # type: ignore[override]
        return self._step_result(infos)

    def observations(self) -> Any:
        """Return agent → batch; with `copy=False` a view of the current observations."""
        return self.current.copied() if self.copy else self.current


class Columns:
    """Rewards and ends, with the dtypes that numpy gives the original values."""

    def __init__(self, views: Views, agents: Sequence[tuple[str, Group]]) -> None:
        self._rows = [(agent, _columns_of(views, agent, group)) for agent, group in agents]
        self._codes = views[(ALL_AGENTS, OBSERVATIONS)]
        self._known = b""  # the codes for which the takers below were made
        self._takers: list[list[tuple[str, Callable[[], Array]]]] = [[], [], []]
        self._odd: Any = None  # of the current step: an object per env

    def read(self, odd: Any) -> list[dict[str, Array]]:
        """Return rewards, terminated and truncated: agent → [num_envs]."""
        self._odd = odd
        codes = self._codes.tobytes()
        if codes != self._known:
            self._prepare()
            self._known = codes
        return [{agent: take() for agent, take in takers} for takers in self._takers]

    def _prepare(self) -> None:
        codes = self._codes.copy()
        for which, takers in enumerate(self._takers):
            takers[:] = [
                (agent, self._taker(agent, which, rows[which], codes[:, i, which]))
                for i, (agent, rows) in enumerate(self._rows)
            ]

    def _taker(self, agent: str, which: int, row: Array, codes: Array) -> Callable[[], Array]:
        if (codes == ODD).any():
            return lambda: np.array(
                [
                    self._odd[i].info[agent, which] if code == ODD else restored_number(value, code)
                    for i, (value, code) in enumerate(zip(row.tolist(), codes.tolist()))
                ]
            )
        dtype, missing = dtype_of(codes), codes == MISSING
        if not missing.any():
            return row.copy if dtype == row.dtype else lambda: row.astype(dtype)

        def with_nan() -> Array:
            column = row.astype(dtype)
            column[missing] = np.nan
            return column

        return with_nan


def _columns_of(views: Views, agent: str, group: Group) -> tuple[Array, Array, Array]:
    """Return the rewards of an agent, and its two ends."""
    rows = slice(group.agents.index(agent), None, len(group.agents))
    terminated, truncated = views[(group.name, ENDED)][:, rows]
    return views[(group.name, VALUES)][0, rows], terminated, truncated


# -- infos -----------------------------------------------------------------------------------------------------
def by_agent(objects: Infos, agents: Sequence[str], rows: int) -> Infos:
    """Return the infos of all envs as one batch: agent → its infos, each key with its mask; `_agent` is all True, since
    AgileRL omits no env."""
    infos: Infos = {}
    for agent in agents:
        if agent not in objects:
            infos[agent], infos[f"_{agent}"] = {}, np.ones(rows, np.bool_)
            continue
        for row, sent in enumerate(objects[agent].tolist()):
            info = sent.info if isinstance(sent, WholeInfo) else {} if sent is None else sent
            add_info(infos, {agent: info}, row, rows)
    return infos


def add_info(infos: Infos, info: Infos, row: int, rows: int) -> Infos:
    """Write the info of one env into row `row` of a batch of `rows`. None becomes NaN; values that do not fit together
    become objects, where AgileRL raises an error of numpy."""
    for key, value in info.items():
        column = infos.get(key)
        if isinstance(value, dict) and (column is None or isinstance(column, dict)):
            infos[key] = add_info(column or {}, value, row, rows)
        elif isinstance(column, dict):
            column[row] = value
        else:
            if column is None:
                column = np.full(rows, np.nan, np.float32) if value is None else empty_column(value, rows)
            infos[key] = _with_value(column, row, value)
        infos.setdefault(f"_{key}", np.zeros(rows, np.bool_))[row] = True
    return infos


def _with_value(column: Any, row: int, value: Any) -> Any:
    try:
        if column.dtype == object or np.shape(value) == column.shape[1:]:
            column[row] = value
            return column
    except (TypeError, ValueError, OverflowError):
        pass
    objects = np.full(len(column), None, object)
    for i, item in enumerate(column):
        objects[i] = item
    objects[row] = value
    return objects
