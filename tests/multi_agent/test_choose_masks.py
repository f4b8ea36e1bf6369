"""Trials of the cost of sharing use only legal actions."""

from __future__ import annotations

from multiverse.adapters.env_source import recipes
from multiverse.core.plan import Plan
from multiverse.executors.choose import tried


class Strict:
    """Connect four in which a closed action is an error."""

    def __new__(cls) -> object:
        from pettingzoo.classic import connect_four_v3

        env = connect_four_v3.raw_env()
        step = env.step

        def strictly(action: int) -> None:
            if action is not None and not env.terminations[env.agent_selection]:
                assert env.observe(env.agent_selection)["action_mask"][action], f"closed: {action}"
            step(action)

        env.step = strictly
        return env


def test_comparison_of_executors_uses_only_open_actions() -> None:
    alone_s, shared_s = tried(recipes(Strict, 2, None, None), Plan("hybrid", 1, "forkserver", "auto", ""))
    assert alone_s > 0 and shared_s > 0
