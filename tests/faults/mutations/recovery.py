"""Guards of what comes after a loss: rows G1 to G6."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, Guard

LEFT = "tests/faults/test_left_by_the_dead.py"

GUARDS = (
    # -- G1: what a dead worker left --------------------------------------------------------------------------
    Guard(
        "nobody-speaks-for-the-dead",
        ("G1",),
        GONE,
        (f"{LEFT}::test_what_a_dead_workers_envs_said_is_not_said_by_their_successors[step-next_step]",),
    ),
    Guard(
        "a-lost-step-is-not-counted",
        ("G1",),
        GONE,
        (f"{LEFT}::test_a_lost_step_that_was_counted_already_is_none_of_its_episodes[next_step-forkserver]",),
    ),
    Guard(
        "the-dead-forbid-nothing",
        ("G1",),
        GONE,
        (f"{LEFT}::test_what_a_lost_env_forbade_is_not_forbidden_to_agents_that_are_not_there[worker]",),
    ),
)
