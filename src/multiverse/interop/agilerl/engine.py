"""Our multi-agent vector env as the AgileRL drop-in drives it: AgileRL's batches, infos and observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from multiverse.core.infos import Infos, empty_column
from multiverse.core.layout import ENDED, OBSERVATIONS, VALUES, Group, Leaf
from multiverse.core.views import Array, Views
from multiverse.interop.agilerl.actions import AgentActions, Spaces
from multiverse.interop.agilerl.env_side import Said
from multiverse.interop.agilerl.peer import ObservationsBase
from multiverse.interop.agilerl.rows import EVERYBODY, MISSING, ODD, ODDITIES, as_it_was, dtype_of, nested
from multiverse.interop.engine import AsyncCalls, ByPipe
from multiverse.vector.base import Running
from multiverse.vector.parallel import MultiAgentVectorEnv

AgentsStep = tuple[Any, dict[str, Array], dict[str, Array], dict[str, Array], Infos]


class Observations(ObservationsBase):  # type: ignore[misc]
    """agent → batch, always of the present, which is what `copy=False` returns: read out of the block, and copied, when
    it is asked for."""

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
    """What the agent sees in all envs; of what no array can hold, a tuple."""
    rows = slice(group.agents.index(agent), None, len(group.agents))

    def of_leaf(leaf: Leaf) -> Callable[[], Any]:
        name = (group.name, OBSERVATIONS, *leaf.path)
        if name in views.arrays:
            return views.arrays[name][rows].copy
        return lambda: tuple(views.objects[name][rows])

    return nested(group.observation_space, of_leaf, Leaf((), group.observation_space))


class AgentsEngine(AsyncCalls, MultiAgentVectorEnv):
    """Parallel envs; every agent has a row in every batch, and what was not said of it is NaN there."""

    def __init__(self, action_spaces: Spaces, running: Running) -> None:
        """`action_spaces` say in which order agents come, and what they really can do."""
        executor, groups = running.executor, running.description.groups[:-1]  # the last one is about everybody
        super().__init__(replace(running, description=replace(running.description, groups=groups)))
        views, agents = executor.views, [(agent, self._group(agent)) for agent in action_spaces]
        self._order, self._by_pipe = list(action_spaces), ByPipe(executor, self._calls)
        self.seen, self._columns = Observations(views, agents), Columns(views, agents)
        self._acts = AgentActions(views, groups, action_spaces, self._by_pipe)

    def start_reset(self, seed: Any, options: Any) -> None:
        """The options are for every env, whatever is in them."""
        super().start_reset(seed, [options] * self.num_envs)

    def finish_reset(self, timeout_s: float | None) -> tuple[Any, Infos]:
        observations, infos = super().finish_reset(timeout_s)
        return observations, by_agent(infos, self._order, self.num_envs)

    # -- how its batches look ----------------------------------------------------------------------------------
    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        """A dict agent → batch or, for a step in two halves, a list of dicts: always for all envs."""
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
        """agent → batch; with `copy=False` a view that always shows the present."""
        return self.seen.copied() if self.copy else self.seen


class Columns:
    """Rewards and ends, as numpy would have made them of what the envs said."""

    def __init__(self, views: Views, agents: Sequence[tuple[str, Group]]) -> None:
        self._rows = [(agent, _columns_of(views, agent, group)) for agent, group in agents]
        self._codes = views[(EVERYBODY, OBSERVATIONS)]
        self._known = b""  # the codes for which the takers below were made
        self._takers: list[list[tuple[str, Callable[[], Array]]]] = [[], [], []]
        self._odd: Any = None  # of the step that is being read: an object per env

    def read(self, odd: Any) -> list[dict[str, Array]]:
        """Rewards, terminated, truncated: agent → [num_envs]."""
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
                    self._odd[i].info[agent, which] if code == ODD else as_it_was(value, code)
                    for i, (value, code) in enumerate(zip(row.tolist(), codes.tolist()))
                ]
            )
        dtype, missing = dtype_of(codes), codes == MISSING
        if not missing.any():
            return row.copy if dtype == row.dtype else lambda: row.astype(dtype)

        def with_nan() -> Array:
            found = row.astype(dtype)
            found[missing] = np.nan
            return found

        return with_nan


def _columns_of(views: Views, agent: str, group: Group) -> tuple[Array, Array, Array]:
    """An agent's rewards, and its two ends."""
    rows = slice(group.agents.index(agent), None, len(group.agents))
    terminated, truncated = views[(group.name, ENDED)][:, rows]
    return views[(group.name, VALUES)][0, rows], terminated, truncated


# -- infos -----------------------------------------------------------------------------------------------------
def by_agent(said: Infos, agents: Sequence[str], rows: int) -> Infos:
    """One batch of what the envs said: agent → its infos, `_agent` → all True, for AgileRL leaves nobody out; beside
    every key its mask."""
    infos: Infos = {}
    for agent in agents:
        if agent not in said:
            infos[agent], infos[f"_{agent}"] = {}, np.ones(rows, np.bool_)
            continue
        for row, what in enumerate(said[agent].tolist()):
            add_info(infos, {agent: {} if what is None else what.info if isinstance(what, Said) else what}, row, rows)
    return infos


def add_info(infos: Infos, info: Infos, row: int, rows: int) -> Infos:
    """Put one env's info into row `row` of a batch of `rows`. None is a NaN; values that do not fit each other become
    objects, where AgileRL raises what numpy raises."""
    for key, value in info.items():
        found = infos.get(key)
        if isinstance(value, dict) and (found is None or isinstance(found, dict)):
            infos[key] = add_info(found or {}, value, row, rows)
        elif isinstance(found, dict):
            found[row] = value
        else:
            if found is None:
                found = np.full(rows, np.nan, np.float32) if value is None else empty_column(value, rows)
            infos[key] = _with_value(found, row, value)
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
    for i, one in enumerate(column):
        objects[i] = one
    objects[row] = value
    return objects
