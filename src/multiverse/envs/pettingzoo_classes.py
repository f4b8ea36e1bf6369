"""What the built-in multi-agent envs start from: PettingZoo's base classes, or one sentence about how to get them, and
the check of what agents are to do."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from multiverse.core.errors import InvalidActions

try:
    from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(
        "this env is a PettingZoo env, and PettingZoo is not installed: pip install 'multiverse[pettingzoo]'"
    ) from error

__all__ = ["AECEnv", "ParallelEnv", "checked_action", "refuse_other_agents"]


def checked_action(agent: str, action: Any, num_actions: int) -> int:
    """The action as a plain int, or a refusal that leaves the world as it is."""
    try:
        number = operator.index(action)
    except TypeError:
        number = -1
    if not 0 <= number < num_actions:
        raise InvalidActions(f"action {action!r} for {agent!r}: expected a whole number from 0 to {num_actions - 1}")
    return number


def refuse_other_agents(actions: Mapping[str, Any], agents: Sequence[str]) -> None:
    """In a parallel step everybody acts, and nobody else."""
    if actions.keys() != set(agents):
        missing = [agent for agent in agents if agent not in actions]
        unknown = [agent for agent in actions if agent not in agents]
        raise InvalidActions(
            f"actions for {list(actions)}, and the agents are {list(agents)}: missing {missing}, too many {unknown}"
        )
