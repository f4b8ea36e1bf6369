"""`FlattenMultiAgentWrapper`: what is `multiverse.flatten_agents` in the library, under the document's name."""

from __future__ import annotations

from typing import Any

import gymnasium

import multiverse as mv


class FlattenMultiAgentWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A PettingZoo env as one `gymnasium.Env`, in which every agent acts in every step.

    One row holds all agents' observations, one MultiDiscrete action all agents' actions; the reward is their sum.
    `unwrapped.split_actions` shows each agent's part of an action.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(mv.flatten_agents(env))
