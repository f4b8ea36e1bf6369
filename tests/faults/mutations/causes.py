"""Guards of reports and restarts: rows A7 to A10."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, NEVER, Guard, instead, swap

RESTARTS = "tests/faults/test_restarts.py"
LIMITS = "tests/faults/test_restart_limits.py"
MEMORY = "tests/faults/test_memory.py"
CAUSES = "tests/faults/test_causes.py"
ENV_FAILURES = "tests/vector/test_env_failures.py"
LEAKS = "tests/vector/test_leaks.py"

GUARDS = (
    # -- A7 to A10: restarts and causes ----------------------------------------------------------------------
    Guard(
        "not-for-ever",
        ("A7",),
        instead("return True"),
        (
            f"{RESTARTS}::test_first_of_several_causes_is_raised_after_three_restarts[serial-raise]",
            f"{RESTARTS}::test_first_of_several_causes_is_raised_after_three_restarts[forkserver-exit]",
        ),
    ),
    Guard(
        "the-first-cause",
        ("A7",),
        swap("0", "-1"),
        (
            f"{RESTARTS}::test_first_of_several_causes_is_raised_after_three_restarts[thread-raise]",
            f"{RESTARTS}::test_first_of_several_causes_is_raised_after_three_restarts[fork-exit]",
        ),
    ),
    Guard(
        "failing-without-work-is-a-crash-loop",
        ("A7",),
        instead("too_many = False"),
        (
            f"{LIMITS}::test_failures_are_allowed_relative_to_the_work_between_them[0-0-5]",
            f"{LIMITS}::test_worker_that_dies_in_its_first_reset_each_time_is_given_up[forkserver]",
        ),
    ),
    Guard(
        "failing-in-most-episodes-is-a-crash-loop",
        ("A7",),
        instead("return True"),
        (f"{LIMITS}::test_env_that_raises_in_half_of_its_episodes_is_given_up[same_step-serial]",),
    ),
    Guard(
        "hangs-with-work-between-are-not-in-a-row",
        ("A7", "G4"),
        swap(" and steps - self._steps < STEPS_PER_FAILURE", ""),
        (f"{LIMITS}::test_timeouts_with_many_steps_between_them_are_not_in_a_row[500-1]",),
    ),
    Guard(
        "collected-episodes-are-work",
        ("A7",),
        GONE,
        (f"{LIMITS}::test_occasionally_dying_workers_of_whole_episodes_are_always_replaced",),
    ),
    Guard(
        "out-of-memory-ends-the-process",
        ("A15",),
        GONE,
        (
            f"{MEMORY}::test_memory_error_of_an_env_replaces_its_worker[step-forkserver]",
            f"{MEMORY}::test_memory_error_while_whole_episodes_are_collected_replaces_the_worker",
        ),
    ),
    Guard(
        "a-worker-above-its-limit-is-replaced",
        ("A15",),
        GONE,
        (f"{MEMORY}::test_worker_above_its_memory_limit_is_replaced_before_the_next_request[step-forkserver]",),
    ),
    Guard(
        "a-busy-worker-is-checked-when-it-is-free",
        ("A15",),
        NEVER,
        (f"{MEMORY}::test_worker_that_was_busy_at_the_last_look_is_checked_before_its_own_next_request",),
    ),
    Guard(
        "what-never-worked-is-not-tried-again",
        ("A7",),
        NEVER,
        (f"{RESTARTS}::test_failure_before_the_first_successful_reset_is_not_retried[serial]",),
    ),
    Guard(
        "nothing-half-built",
        ("A8",),
        GONE,
        (
            f"{ENV_FAILURES}::test_exception_in_a_constructor_names_the_env_and_leaves_nothing_half_built"
            "[forkserver-raise-0]",
            f"{LEAKS}::test_failed_start_leaves_nothing_behind[fork]",
        ),
    ),
    Guard(
        "a-failing-import-comes-with-a-hint",
        ("A8",),
        NEVER,
        (f"{ENV_FAILURES}::test_import_error_in_a_worker_has_a_hint[forkserver]",),
    ),
    Guard(
        "a-failure-tells-its-past",
        ("A9",),
        GONE,
        (f"{CAUSES}::test_failed_episode_can_be_reproduced_from_its_error[serial]",),
    ),
    Guard(
        "every-failure-is-told",
        ("A9",),
        swap(" for failure in extras.failures", "[:1] for failure in extras.failures[:1]"),
        (f"{ENV_FAILURES}::test_every_failing_env_of_a_batch_is_listed[forkserver]",),
    ),
    Guard(
        "one-env-costs-one-env",
        ("A9", "B4"),
        instead("envs.envs = [build() for build in self._build]\nenvs.bind(envs.views)"),
        (
            f"{RESTARTS}::test_env_that_raises_is_rebuilt_without_affecting_others[next_step-serial]",
            f"{RESTARTS}::test_env_that_raises_is_rebuilt_without_affecting_others[same_step-forkserver]",
        ),
    ),
    Guard(
        "infos-go-in-words",
        ("A10",),
        GONE,
        (
            f"{CAUSES}::test_unpicklable_info_arrives_as_its_repr_with_one_warning[forkserver]",
            f"{CAUSES}::test_unpicklable_task_does_not_hide_the_failure[fork]",
        ),
    ),
    Guard(
        "told-once",
        ("A10",),
        GONE,
        (f"{CAUSES}::test_unpicklable_info_arrives_as_its_repr_with_one_warning[forkserver]",),
    ),
    Guard(
        "exceptions-cross-as-text",
        ("A10",),
        instead("return cls(error, message, trace, env_id)"),
        (f"{ENV_FAILURES}::test_exception_in_step_names_the_env_and_the_raising_line[forkserver-raise_unpicklable]",),
    ),
)
