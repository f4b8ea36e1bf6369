"""`FlattenMultiAgentWrapper`, the document's name of `multiverse.flatten_agents`."""

from __future__ import annotations

from typing import Any

import gymnasium

import multiverse as mv


class FlattenMultiAgentWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that turns a PettingZoo env into one `gymnasium.Env`, in which every agent acts in every step.

    The observation is the concatenation of all agents' observations, the action a MultiDiscrete of all agents' actions,
    and the reward the sum of all agents' rewards. `unwrapped.split_actions` returns each agent's part of an action.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(mv.flatten_agents(env))
