"""Guards of what comes after a loss: rows G1 to G6."""

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
        swap(", *self._results.unreported", ""),
        (f"{LEFT}::test_envs_lost_in_a_step_that_is_not_delivered_must_be_reset[step]",),
    ),
    # -- G3: what fails again ------------------------------------------------------------------------------------
    Guard(
        "an-env-that-cannot-be-built-is-tried-again",
        ("G3",),
        instead("break"),
        (f"{AGAIN}::test_an_env_that_fails_again_when_it_is_replaced_is_replaced_again[constructor-next_step-serial]",),
    ),
    Guard(
        "an-env-that-cannot-be-reset-is-replaced",
        ("G3",),
        ALWAYS,
        (
            f"{AGAIN}::test_an_env_that_fails_again_when_it_is_replaced_is_replaced_again[reset-same_step-serial]",
            f"{AGAIN}::test_an_env_that_fails_again_when_the_caller_resets_it_is_replaced_again[serial]",
        ),
    ),
    Guard(
        "a-given-up-env-says-so",
        ("G3", "A7"),
        swap("first.because_of(why)", "first"),
        (
            f"{AGAIN}::test_an_env_is_given_up_past_the_limit_with_the_first_the_last_and_the_next_move"
            "[constructor-serial]",
        ),
    ),
    Guard(
        "a-given-up-worker-says-so",
        ("G3", "A7"),
        instead("raise first"),
        (f"{AGAIN}::test_a_worker_is_given_up_past_the_limit_with_the_first_the_last_and_the_next_move[forkserver]",),
    ),
    # -- G4: hangs ------------------------------------------------------------------------------------------------
    Guard(
        "hangs-in-a-row-are-a-crash-loop",
        ("G4",),
        NEVER,
        (
            f"{HANGS}::test_three_timeouts_in_a_row_are_a_crash_loop_whatever_the_minute_says[forkserver]",
            f"{HANGS}::test_a_death_between_two_hangs_does_not_make_them_harmless",
        ),
    ),
    Guard(
        "the-hung-line-is-named",
        ("G4",),
        instead("return []"),
        (f"{HANGS}::test_a_restart_after_a_hang_names_the_env_the_step_and_the_line[step-forkserver]",),
    ),
    Guard(
        "silence-is-told",
        ("G4",),
        GONE,
        (f"{HANGS}::test_after_a_while_of_silence_one_line_says_who_is_waited_for[step-forkserver]",),
    ),
    Guard(
        "a-stop-does-not-wait-for-a-hang",
        ("G4", "A14"),
        GONE,
        (f"{HANGS}::test_nor_for_a_replacement_that_hangs_while_it_is_built",),
    ),
    Guard(
        "closing-counts-from-the-signal",
        ("G4", "A14"),
        instead("return now + close_s"),
        (f"{HANGS}::test_closing_after_that_counts_from_the_signal",),
    ),
    # -- G5: starts that fail ------------------------------------------------------------------------------------
    Guard(
        "one-failed-fork-is-one-error",
        ("G5",),
        swap("OSError", "ZeroDivisionError"),
        (f"{STARTS}::test_a_fork_that_fails_is_one_error_and_harms_nobody_else[forkserver]",),
    ),
    Guard(
        "nobody-need-listen-to-the-fork-server",
        ("G5",),
        swap("OSError", "ZeroDivisionError"),
        (f"{STARTS}::test_a_start_that_nobody_waits_for_any_more_does_not_end_the_fork_server",),
    ),
    Guard(
        "a-start-that-fails-is-typed",
        ("G5",),
        swap("(OSError, PreflightError)", "ZeroDivisionError"),
        (f"{STARTS}::test_a_process_that_the_caller_cannot_start_is_one_error[fork]",),
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
            f"{STARTS}::test_a_working_directory_that_was_removed_is_named[forkserver]",
            f"{STARTS}::test_a_working_directory_that_was_removed_is_named_in_a_restart_too",
        ),
    ),
    # -- G6: what lost the probe ---------------------------------------------------------------------------------
    Guard(
        "what-kills-the-probe-is-kept-apart",
        ("G6",),
        NEVER,
        (f"{CHOOSE}::test_what_has_killed_the_probe_is_never_run_in_the_caller[exit]",),
    ),
    Guard(
        "a-slow-build-is-kept-apart",
        ("G6",),
        swap('"process"', '"hybrid"'),
        (f"{CHOOSE}::test_a_constructor_that_hangs_the_probe_does_not_hang_the_caller",),
    ),
)
