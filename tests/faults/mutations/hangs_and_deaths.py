"""Guards against workers that die, hang or answer late: rows A1 to A6."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, NEVER, Guard, before, instead, swap

DEATHS = "tests/faults/test_deaths.py"
HANGS = "tests/faults/test_hangs.py"
TIMEOUTS = "tests/faults/test_timeouts.py"
LOST_AGAIN = "tests/faults/test_lost_again.py"
ACCOUNTS = "tests/faults/test_accounts.py"

GUARDS = (
    # -- A1 to A3: deaths ------------------------------------------------------------------------------------
    Guard(
        "a-death-is-seen",
        ("A1",),
        GONE,
        (f"{DEATHS}::test_death_error_names_worker_cause_command_and_memory[forkserver-segv-step]",),
    ),
    Guard(
        "a-death-tells-the-command",
        ("A1",),
        swap("command", '""'),
        (f"{DEATHS}::test_death_error_names_worker_cause_command_and_memory[forkserver-kill-reset]",),
    ),
    Guard(
        "after-a-death-only-close",
        ("A1",),
        GONE,
        ("tests/vector/test_worker_death.py::test_calls_after_a_death_other_than_close_are_refused[forkserver]",),
    ),
    Guard(
        "peak-memory-forkserver",
        ("A1", "A2"),
        swap("peak", "0"),
        (f"{DEATHS}::test_killed_worker_is_possibly_out_of_memory_and_its_peak_is_reported[forkserver]",),
    ),
    Guard(
        "peak-memory-fork",
        ("A2",),
        instead("self.peak_rss_bytes = None"),
        (f"{DEATHS}::test_killed_worker_is_possibly_out_of_memory_and_its_peak_is_reported[fork]",),
    ),
    Guard(
        "possibly-out-of-memory",
        ("A2",),
        NEVER,
        (f"{DEATHS}::test_killed_worker_is_possibly_out_of_memory_and_its_peak_is_reported[forkserver]",),
    ),
    Guard(
        "restarts-wait-longer",
        ("A2",),
        swap(" * 2 ** (limit.recent - 1)", ""),
        (f"{DEATHS}::test_restarts_after_out_of_memory_are_logged_and_wait_longer_each_time[forkserver]",),
    ),
    Guard(
        "kill-and-not-only-ask",
        ("A3",),
        instead("os.kill(self.pid, signal.SIGTERM)"),
        (
            f"{TIMEOUTS}::test_close_ends_a_worker_whatever_it_is_doing[forkserver-stop]",
            f"{TIMEOUTS}::test_close_ends_a_worker_whatever_it_is_doing[fork-deaf]",
        ),
    ),
    Guard(
        "stopped-is-called-stopped",
        ("A3",),
        NEVER,
        (f"{TIMEOUTS}::test_stopped_worker_is_reported_as_stopped_and_close_is_bounded[forkserver]",),
    ),
    # -- A4 to A6: hangs -------------------------------------------------------------------------------------
    Guard(
        "a-step-has-a-deadline",
        ("A4", "A19"),
        swap("self.patience.limit_s(worker)", "None"),
        (f"{TIMEOUTS}::test_hanging_step_is_an_error_with_the_stack[thread]",),
    ),
    Guard(
        "the-second-hang-is-noticed-sooner",
        ("A4",),
        GONE,
        (f"{HANGS}::test_second_hang_of_a_worker_is_noticed_sooner[step-forkserver]",),
    ),
    Guard(
        "a-reset-is-no-slow-step",
        ("A4",),
        before("return False"),
        (f"{HANGS}::test_reset_after_a_hang_has_the_deadline_of_a_reset[forkserver]",),
    ),
    Guard(
        "resets-are-timed-apart",
        ("A4",),
        GONE,
        (f"{HANGS}::test_steps_are_timed_without_resets_and_without_building[ends]",),
    ),
    Guard(
        "a-reset-has-its-own-deadline",
        ("A4",),
        swap("timeout_s", "None"),
        (f"{TIMEOUTS}::test_hanging_reset_has_its_own_deadline[forkserver]",),
    ),
    Guard(
        "the-hung-stack-is-shown",
        ("A4",),
        swap("self._black_box.stack_of(self.pid)", '""'),
        (f"{TIMEOUTS}::test_hanging_step_is_an_error_with_the_stack[forkserver]",),
    ),
    Guard(
        "stacks-are-written-in-c",
        ("A5",),
        instead("signal.signal(SIGNAL, lambda *_: faulthandler.dump_traceback(self.fd))"),
        (f"{TIMEOUTS}::test_hang_in_c_that_holds_the_gil_has_a_stack[forkserver]",),
    ),
    Guard(
        "a-hung-worker-is-replaced",
        ("A4", "A5"),
        before("if isinstance(cause, TimeoutError):\n    raise cause"),
        (f"{TIMEOUTS}::test_hanging_worker_is_killed_and_others_continue_with_restart[forkserver-hold_the_gil]",),
    ),
    Guard(
        "time-runs-from-when-it-was-asked",
        ("A4",),
        swap("now", "now + 1e6"),
        (f"{LOST_AGAIN}::test_hanging_worker_is_noticed_while_others_are_received[restart-forkserver]",),
    ),
    Guard(
        "a-replacement-may-fail-too",
        ("A1", "A7"),
        swap("MultiverseError", "ZeroDivisionError"),
        (f"{LOST_AGAIN}::test_replacement_that_fails_is_replaced[constructor raise-next_step-forkserver]",),
    ),
    Guard(
        "envs-lost-unasked-must-be-reset",
        ("A1", "B4"),
        GONE,
        (f"{LOST_AGAIN}::test_envs_lost_in_a_step_of_others_must_be_reset[next_step]",),
    ),
    Guard(
        "replies-have-numbers",
        ("A6",),
        swap(" >> FLAG_BITS != self.sequence", " == 0"),
        (
            "tests/ipc/test_mailbox.py::test_old_reply_does_not_answer_a_new_request",
            f"{ACCOUNTS}::test_late_reply_discarded_by_a_reset_is_counted_with_its_steps[forkserver]",
        ),
    ),
    Guard(
        "messages-have-numbers",
        ("A6",),
        swap("== number", ">= 0"),
        ("tests/executors/test_hosts.py::test_message_of_an_older_request_is_dropped",),
    ),
    Guard(
        "late-replies-are-counted",
        ("A6",),
        GONE,
        (
            f"{ACCOUNTS}::test_received_late_reply_is_counted_and_its_steps_are_used[forkserver]",
            f"{ACCOUNTS}::test_late_reply_discarded_by_a_reset_is_counted_with_its_steps[thread]",
        ),
    ),
)
