"""What PettingZoo's two kinds of envs have in common: agents in groups, each with a row of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from multiverse.adapters.agent_row import AgentRow
from multiverse.adapters.agents import AgentOptions, agents_of, groups_of
from multiverse.contracts.env import EnvDescription, EnvKind, SlotRow
from multiverse.contracts.errors import BadValue


class PettingZooEnv:
    """Everything but how it resets and steps."""

    kind: ClassVar[EnvKind]

    def __init__(self, env: Any, options: AgentOptions) -> None:
        self._env = env
        self._agents = agents_of(env, options)
        self._groups = groups_of(env, self._agents, options)
        self.description = EnvDescription(
            groups=self._groups,
            kind=self.kind,
            metadata=dict(getattr(env, "metadata", {})),
            render_mode=getattr(env, "render_mode", None),
        )

    def bind(self, rows: Sequence[SlotRow]) -> None:
        owners = [(agent, group) for group in self._groups for agent in group.agents]
        self._rows = [AgentRow(agent, group, row) for (agent, group), row in zip(owners, rows)]

    def _check_known(self, agents: Iterable[str]) -> None:
        unknown = [agent for agent in agents if agent not in self._agents]
        if unknown:
            raise BadValue(
                f"the env has agents {unknown}, which are not among its possible agents {list(self._agents)}: pass "
                "make_vec(..., possible_agents=[...]) with all of them"
            )

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = getattr(self._env, name)
        return found(*args, **kwargs) if callable(found) else found

    def set_attr(self, name: str, value: Any) -> None:
        setattr(self._env, name, value)

    def classes(self) -> list[type]:
        found, env = [type(self._env)], self._env
        while (env := getattr(env, "env", None)) is not None:
            found.append(type(env))
        return found

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def spoken(infos: Any) -> dict[str, Any]:
    """The infos of the agents that have something to say."""
    return {agent: info for agent, info in infos.items() if info}
