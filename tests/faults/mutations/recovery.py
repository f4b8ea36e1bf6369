"""Guards of recovery after a loss: rows G1 to G6."""

from __future__ import annotations

from tests.faults.mutations.guard import ALWAYS, GONE, NEVER, Guard, instead, swap

LEFT = "tests/faults/test_left_by_the_dead.py"
CHOOSE = "tests/executors/test_choose.py"
STARTS = "tests/faults/test_failing_starts.py"
HANGS = "tests/faults/test_hangs.py"
AGAIN = "tests/faults/test_failing_again.py"

GUARDS = (
    # -- G1: what a dead worker left --------------------------------------------------------------------------
    Guard(
        "nobody-speaks-for-the-dead",
        ("G1",),
        GONE,
        (f"{LEFT}::test_infos_of_a_dead_worker_are_not_attributed_to_its_successor[step-next_step]",),
    ),
    Guard(
        "a-lost-step-is-not-counted",
        ("G1",),
        GONE,
        (f"{LEFT}::test_lost_step_is_not_counted_in_its_episode[next_step-forkserver]",),
    ),
    Guard(
        "the-dead-forbid-nothing",
        ("G1",),
        GONE,
        (f"{LEFT}::test_action_mask_of_a_lost_env_does_not_apply_to_absent_agents[worker]",),
    ),
    # -- G2: lost envs are reported ---------------------------------------------------------------------------
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
        swap(", *self._results.unreported", ""),
        (f"{LEFT}::test_envs_lost_in_an_undelivered_step_must_be_reset[step]",),
    ),
    # -- G3: what fails again ------------------------------------------------------------------------------------
    Guard(
        "an-env-that-cannot-be-built-is-tried-again",
        ("G3",),
        instead("break"),
        (f"{AGAIN}::test_env_that_fails_again_while_replaced_is_replaced_again[constructor-next_step-serial]",),
    ),
    Guard(
        "an-env-that-cannot-be-reset-is-replaced",
        ("G3",),
        ALWAYS,
        (
            f"{AGAIN}::test_env_that_fails_again_while_replaced_is_replaced_again[reset-same_step-serial]",
            f"{AGAIN}::test_env_that_fails_again_in_the_callers_reset_is_replaced_again[serial]",
        ),
    ),
    Guard(
        "a-given-up-env-says-so",
        ("G3", "A7"),
        swap("first.because_of(why)", "first"),
        (f"{AGAIN}::test_env_beyond_the_restart_limit_is_an_error_with_both_failures_and_advice[constructor-serial]",),
    ),
    Guard(
        "a-given-up-worker-says-so",
        ("G3", "A7"),
        instead("raise first"),
        (f"{AGAIN}::test_worker_beyond_the_restart_limit_is_an_error_with_both_failures_and_advice[forkserver]",),
    ),
    # -- G4: hangs ------------------------------------------------------------------------------------------------
    Guard(
        "hangs-in-a-row-are-a-crash-loop",
        ("G4",),
        NEVER,
        (
            f"{HANGS}::test_three_timeouts_in_a_row_end_the_run_whatever_the_rate_limit[forkserver]",
            f"{HANGS}::test_death_between_hangs_does_not_reset_their_count",
        ),
    ),
    Guard(
        "the-hung-line-is-named",
        ("G4",),
        instead("return []"),
        (f"{HANGS}::test_restart_after_a_hang_names_env_step_and_line[step-forkserver]",),
    ),
    Guard(
        "silence-is-told",
        ("G4",),
        GONE,
        (f"{HANGS}::test_silent_worker_is_reported_in_one_line[step-forkserver]",),
    ),
    Guard(
        "a-stop-does-not-wait-for-a-hang",
        ("G4", "A14"),
        GONE,
        (f"{HANGS}::test_stop_request_does_not_wait_for_a_replacement_that_hangs_while_built",),
    ),
    Guard(
        "closing-counts-from-the-signal",
        ("G4", "A14"),
        instead("return now + close_s"),
        (f"{HANGS}::test_close_deadline_after_a_stop_request_starts_at_the_signal",),
    ),
    # -- G5: starts that fail ------------------------------------------------------------------------------------
    Guard(
        "one-failed-fork-is-one-error",
        ("G5",),
        swap("OSError", "ZeroDivisionError"),
        (f"{STARTS}::test_failed_fork_is_one_error_and_other_vector_envs_continue[forkserver]",),
    ),
    Guard(
        "nobody-need-listen-to-the-fork-server",
        ("G5",),
        swap("OSError", "ZeroDivisionError"),
        (f"{STARTS}::test_abandoned_start_does_not_end_the_fork_server",),
    ),
    Guard(
        "a-start-that-fails-is-typed",
        ("G5",),
        swap("(OSError, PreflightError)", "ZeroDivisionError"),
        (f"{STARTS}::test_process_that_cannot_be_started_is_one_error[fork]",),
    ),
    Guard(
        "not-every-kill-is-out-of-memory",
        ("G5",),
        GONE,
        (f"{STARTS}::test_workers_that_end_with_their_fork_server_are_not_called_out_of_memory[raise]",),
    ),
    Guard(
        "a-removed-directory-is-named",
        ("G5",),
        swap("FileNotFoundError", "ZeroDivisionError"),
        (
            f"{STARTS}::test_removed_working_directory_is_named[forkserver]",
            f"{STARTS}::test_removed_working_directory_is_named_in_a_restart",
        ),
    ),
    # -- G6: what lost the probe ---------------------------------------------------------------------------------
    Guard(
        "what-kills-the-probe-is-kept-apart",
        ("G6",),
        NEVER,
        (f"{CHOOSE}::test_env_that_kills_the_probe_runs_in_processes[exit]",),
    ),
    Guard(
        "a-slow-build-is-kept-apart",
        ("G6",),
        swap('"process"', '"hybrid"'),
        (f"{CHOOSE}::test_hanging_constructor_in_the_probe_is_a_timeout",),
    ),
)
