"""Guards of what comes after a loss: rows G1 to G6."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, Guard, instead, swap

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
    # -- G2: whoever was lost is told so ------------------------------------------------------------------------
    Guard(
        "all-envs-of-a-lost-worker-are-told",
        ("G2",),
        instead("self._results.take_lost(hosts)"),
        (
            f"{LEFT}::test_envs_lost_in_the_reset_of_another_must_be_reset[env_ids-same_step]",
            f"{LEFT}::test_envs_lost_in_a_call_of_another_must_be_reset[render]",
        ),
    ),
    Guard(
        "envs-lost-undelivered-must-be-reset",
        ("G2",),
        swap(", *self._results.untold", ""),
        (f"{LEFT}::test_envs_lost_in_a_step_that_is_not_delivered_must_be_reset[step]",),
    ),
)
