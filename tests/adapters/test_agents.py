"""Assignment of agents to groups."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from gymnasium import spaces

from multiverse.adapters.agents import DEFAULT_AGENTS, groups_of


class Agents:
    """Agents whose observation spaces all differ."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._sizes = {name: size for size, name in enumerate(names, start=1)}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 1.0, (self._sizes[agent],))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)


@pytest.mark.parametrize(
    "names",
    itertools.permutations(["red_0", "red_1", "red 2", "red_3", "red 1"]),
    ids=", ".join,
)
@pytest.mark.fault("B6")
def test_groups_with_colliding_names_keep_every_agent(names: tuple[str, ...]) -> None:
    groups = groups_of(Agents(names), names, DEFAULT_AGENTS)
    assert [group.agents for group in groups] == [(name,) for name in names]
    assert len({group.name for group in groups}) == len(names)
    for group in groups:
        assert group.name not in names or group.agents == (group.name,)
