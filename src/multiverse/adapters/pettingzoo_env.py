"""What PettingZoo's two kinds of envs have in common: agents in groups, each with a row of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from multiverse.adapters.agent_row import AgentRow
from multiverse.adapters.agents import AgentOptions, agents_of, groups_of, masks_are_observed, state_space_of
from multiverse.core.env import ACTION_MASK, EnvDescription, EnvKind, MaskSource, SlotRow
from multiverse.core.errors import BadValue
from multiverse.core.infos import refuse_no_dict


class PettingZooEnv:
    """Everything but how it resets and steps."""

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
        said = nonempty_infos(infos)
        self._masks_in_infos = any(ACTION_MASK in info for info in said.values())
        return said

    def _refuse_unknown(self, *agents: Iterable[str]) -> None:
        if not all(map(self._known.issuperset, agents)):
            unknown = sorted({str(agent) for some in agents for agent in some if agent not in self._known})
            raise BadValue(
                f"the env has agents {unknown}, which are not among its possible agents {list(self._agents)}: pass "
                "make_vec(..., agents=AgentOptions(possible_agents=[...])) with all of them"
            )

    @property
    def foreign(self) -> Any:
        """The env itself."""
        return self._env

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = getattr(owner_of(self._env, name), name)
        return found(*args, **kwargs) if callable(found) else found

    def set_attr(self, name: str, value: Any) -> None:
        setattr(owner_of(self._env, name), name, value)

    def classes(self) -> list[type]:
        return [type(env) for env in layers(self._env)]

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def layers(env: Any) -> Iterator[Any]:
    """The env's outermost wrapper first, the env itself last."""
    while env is not None:
        yield env
        inside = getattr(env, "__dict__", {})  # asking a wrapper would ask the env inside it too
        env = inside.get("env", inside.get("aec_env"))


def owner_of(env: Any, name: str) -> Any:
    """The outermost layer that has an attribute of its own; the env itself where none has."""
    innermost = env
    for layer in layers(env):
        if name in getattr(layer, "__dict__", ()) or hasattr(type(layer), name):
            return layer
        innermost = layer
    return innermost


def nonempty_infos(infos: Any) -> dict[str, Any]:
    """The infos of the agents that have something to say."""
    said: dict[str, Any] = {}
    for agent, info in infos.items():
        if info.__class__ is not dict:
            refuse_no_dict(f"the info of {agent}", info)
        if info:
            said[agent] = info
    return said
