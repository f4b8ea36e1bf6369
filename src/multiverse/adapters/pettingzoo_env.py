"""Base of the adapters for PettingZoo's two kinds of envs: agents in groups, each with its own row of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from multiverse.adapters.action_masks import mask_writer
from multiverse.adapters.agents import (
    AgentOptions,
    absent_observation,
    agents_of,
    groups_of,
    masks_are_observed,
    state_space_of,
)
from multiverse.core.env import ACTION_MASK, EnvDescription, EnvKind, MaskSource, SlotRow
from multiverse.core.errors import BadValue
from multiverse.core.infos import require_dict
from multiverse.core.layout import Group


class PettingZooEnv:
    """Adapter without `reset` and `step`."""

    kind: ClassVar[EnvKind]

    def __init__(self, env: Any, options: AgentOptions) -> None:
        self._env = env
        self._agents = agents_of(env, options)
        self._known = frozenset(self._agents)
        self._groups = groups_of(env, self._agents, options)
        self._masks_in_infos = False
        self.description = EnvDescription(
            groups=self._groups,
            kind=self.kind,
            state_space=state_space_of(env) if options.state else None,
            metadata=dict(getattr(env, "metadata", {})),
            render_mode=getattr(env, "render_mode", None),
        )

    def bind(self, rows: Sequence[SlotRow]) -> None:
        owners = [(agent, group) for group in self._groups for agent in group.agents]
        self._rows = [AgentRow(agent, group, row) for (agent, group), row in zip(owners, rows)]

    @property
    def mask_source(self) -> MaskSource | None:
        """Source of the agents' action masks; for infos, the last reset decides."""
        masked = [group for group in self._groups if group.masks]
        if any(masks_are_observed(group.observation_space) for group in masked):
            return "observation"
        return "info" if masked and self._masks_in_infos else None

    def _infos_of_reset(self, infos: Any) -> dict[str, Any]:
        nonempty = nonempty_infos(infos)
        self._masks_in_infos = any(ACTION_MASK in info for info in nonempty.values())
        return nonempty

    def _reset_env(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> Any:
        """Reset the env; to a task by its `reset_task` method, or as `options["task"]` if it has none."""
        if task is not None:
            hook = getattr(self._env, "reset_task", None) or getattr(self._env.unwrapped, "reset_task", None)
            if hook is not None:
                hook(task)
            else:
                options = {**(options or {}), "task": task}
        return self._env.reset(seed=seed, options=options)

    def _refuse_unknown(self, *agents: Iterable[str]) -> None:
        if not all(map(self._known.issuperset, agents)):
            unknown = sorted({str(agent) for names in agents for agent in names if agent not in self._known})
            raise BadValue(
                f"the env has agents {unknown}, which are not among its possible agents {list(self._agents)}: pass "
                "make_vec(..., agents=AgentOptions(possible_agents=[...])) with all of them"
            )

    @property
    def foreign(self) -> Any:
        """The PettingZoo env."""
        return self._env

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attribute = getattr(owner_of(self._env, name), name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def set_attr(self, name: str, value: Any) -> None:
        setattr(owner_of(self._env, name), name, value)

    def classes(self) -> list[type]:
        return [type(env) for env in layers(self._env)]

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


class AgentRow:
    """One agent's row of the batch, written at every step: observation, reward, ends, presence and action mask.

    The action mask of an absent agent is all 1, so that sampling an action for every row works.
    """

    def __init__(self, agent: str, group: Group, row: SlotRow) -> None:
        self.agent, self._mask = agent, row.action_mask
        self._absent = absent_observation(group.observation_space)
        self._write, self.rewards, self._acting = row.write_observation, cast(Any, row.rewards), row.acting
        self._terminated, self._truncated = row.terminated, row.truncated
        self.slot, self.alive_column = row.slot, row.alive
        self.observe = _observer(agent, group, row)

    @property
    def alive(self) -> bool:
        return self.alive_column[self.slot]  # type: ignore[return-value]  # a memoryview of bools holds bools

    observe: Callable[[Any, Any, bool], None]
    """Function (observation, info, whether it acts next) that writes its observation and action mask."""

    def write_reward(self, reward: Any) -> None:
        try:
            self.rewards[self.slot] = reward
        except (TypeError, ValueError) as error:
            raise BadValue(f"the reward of {self.agent} is {reward!r}, which is not a number") from error

    def end(self, terminated: bool, truncated: bool) -> None:
        self._terminated[self.slot], self._truncated[self.slot] = terminated, truncated

    def write_presence(self, alive: bool, acting: bool) -> None:
        self.alive_column[self.slot], self._acting[self.slot] = alive, acting

    def write_absent(self) -> None:
        """Write the row of an absent agent, except for its reward and ends."""
        self._write(self._absent)
        if self._mask is not None:
            self._mask[...] = 1
        self.write_presence(False, False)


def _observer(agent: str, group: Group, row: SlotRow) -> Callable[[Any, Any, bool], None]:
    """Return `AgentRow.observe`. A closure, not a method: it runs for every agent at every step."""
    write, target, mask = row.write_observation, row.plain_target, row.action_mask
    shape, dtype = (target.shape, target.dtype) if target is not None else (None, None)
    array, in_observation = np.ndarray, masks_are_observed(group.observation_space)
    write_mask = None if mask is None else mask_writer(mask, group.action_space, agent)

    def observe(observation: Any, info: Any, acts: bool) -> None:
        if type(observation) is array and observation.dtype is dtype and observation.shape == shape:
            target[...] = observation
        else:
            write(observation)
        if write_mask is not None:
            write_mask(observation[ACTION_MASK] if in_observation else info.get(ACTION_MASK) if info else None, acts)

    return observe


# -- the env's wrappers and infos ----------------------------------------------------------------------------------
def layers(env: Any) -> Iterator[Any]:
    """Yield the env's wrappers, outermost first, and the env itself last."""
    while env is not None:
        yield env
        inside = getattr(env, "__dict__", {})  # getattr of a wrapper would look in the env inside it too
        env = inside.get("env", inside.get("aec_env"))


def owner_of(env: Any, name: str) -> Any:
    """Return the outermost layer that has this attribute itself; the env if none has."""
    innermost = env
    for layer in layers(env):
        if name in getattr(layer, "__dict__", ()) or hasattr(type(layer), name):
            return layer
        innermost = layer
    return innermost


def nonempty_infos(infos: Any) -> dict[str, Any]:
    """Return the infos that are not empty."""
    nonempty: dict[str, Any] = {}
    for agent, info in infos.items():
        if info.__class__ is not dict:
            require_dict(f"the info of {agent}", info)
        if info:
            nonempty[agent] = info
    return nonempty
