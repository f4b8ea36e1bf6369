"""Guards against workers that die, hang or answer late: rows A1 to A6."""

from __future__ import annotations

from tests.faults.mutations.guard import Guard

DEATHS = "tests/faults/test_deaths.py"
TIMEOUTS = "tests/faults/test_timeouts.py"
LOST_AGAIN = "tests/faults/test_lost_again.py"
ACCOUNTS = "tests/faults/test_accounts.py"

GUARDS = (
    # -- A1 to A3: deaths ------------------------------------------------------------------------------------
    Guard(
        "a-death-is-seen",
        ("A1",),
        "executors/executor.py",
        "self._bedroom.add_sentinel(worker.life.sentinel, functools.partial(self._dead.append, worker))",
        "functools.partial(self._dead.append, worker)",
        (f"{DEATHS}::test_the_error_says_who_died_how_in_what_and_how_large_it_was[forkserver-segv-step]",),
    ),
    Guard(
        "a-death-tells-the-command",
        ("A1",),
        "executors/hosts.py",
        "cause, death.hint, command, death.peak_rss_bytes)",
        'cause, death.hint, "", death.peak_rss_bytes)',
        (f"{DEATHS}::test_the_error_says_who_died_how_in_what_and_how_large_it_was[forkserver-kill-reset]",),
    ),
    Guard(
        "after-a-death-only-close",
        ("A1",),
        "request_state.py",
        "        self.fatal = error\n",
        "        pass\n",
        ("tests/contract/test_worker_death.py::test_after_a_death_everything_but_close_refuses[forkserver]",),
    ),
    Guard(
        "peak-memory-forkserver",
        ("A1", "A2"),
        "executors/launch/server_loop.py",
        "STATUS.pack(code) + STATUS.pack(peak)",
        "STATUS.pack(code) + STATUS.pack(0)",
        (f"{DEATHS}::test_a_worker_that_was_killed_is_possibly_out_of_memory_and_its_peak_is_told[forkserver]",),
    ),
    Guard(
        "peak-memory-fork",
        ("A2",),
        "executors/launch/start_methods.py",
        "self.peak_rss_bytes = orphan_guard.peak_rss_bytes(used)",
        "self.peak_rss_bytes = None",
        (f"{DEATHS}::test_a_worker_that_was_killed_is_possibly_out_of_memory_and_its_peak_is_told[fork]",),
    ),
    Guard(
        "possibly-out-of-memory",
        ("A2",),
        "executors/process.py",
        "if -code == signal.SIGKILL:",
        "if False:",
        (f"{DEATHS}::test_a_worker_that_was_killed_is_possibly_out_of_memory_and_its_peak_is_told[forkserver]",),
    ),
    Guard(
        "restarts-wait-longer",
        ("A2",),
        "executors/supervisor.py",
        "FIRST_BACKOFF_S * 2 ** (intensity.recent - 1)",
        "FIRST_BACKOFF_S",
        (f"{DEATHS}::test_a_restart_after_being_out_of_memory_says_so_and_waits_longer_each_time[forkserver]",),
    ),
    Guard(
        "kill-and-not-only-ask",
        ("A3",),
        "executors/process.py",
        "self.process.kill()  # also when it is stopped: SIGTERM would stay pending there",
        "os.kill(self.pid, signal.SIGTERM)",
        (
            f"{TIMEOUTS}::test_close_ends_a_worker_whatever_it_is_doing[forkserver-stop]",
            f"{TIMEOUTS}::test_close_ends_a_worker_whatever_it_is_doing[fork-deaf]",
        ),
    ),
    Guard(
        "stopped-is-called-stopped",
        ("A3",),
        "executors/process.py",
        "if status == psutil.STATUS_STOPPED:",
        "if False:",
        (f"{TIMEOUTS}::test_a_stopped_worker_is_called_stopped_and_close_is_bounded[forkserver]",),
    ),
    # -- A4 to A6: hangs -------------------------------------------------------------------------------------
    Guard(
        "a-step-has-a-deadline",
        ("A4", "A19"),
        "executors/executor.py",
        "self._sleep_for([worker], self.timeouts.reply_s)",
        "self._sleep_for([worker], None)",
        (f"{TIMEOUTS}::test_a_step_that_hangs_is_an_error_that_shows_the_hung_stack[thread]",),
    ),
    Guard(
        "a-reset-has-its-own-deadline",
        ("A4",),
        "executors/executor.py",
        "        self._sleep_for(workers, timeout_s)\n        for worker in workers:",
        "        self._sleep_for(workers, None)\n        for worker in workers:",
        (f"{TIMEOUTS}::test_a_reset_that_hangs_has_its_own_deadline[forkserver]",),
    ),
    Guard(
        "the-hung-stack-is-shown",
        ("A4",),
        "executors/process.py",
        "self._black_box.stack_of(self.pid)",
        '""',
        (f"{TIMEOUTS}::test_a_step_that_hangs_is_an_error_that_shows_the_hung_stack[forkserver]",),
    ),
    Guard(
        "stacks-are-written-in-c",
        ("A5",),
        "executors/launch/black_box.py",
        "faulthandler.register(SIGNAL, file=self.fd, all_threads=True)",
        "signal.signal(SIGNAL, lambda *_: faulthandler.dump_traceback(self.fd))",
        (f"{TIMEOUTS}::test_a_hang_in_c_that_holds_the_gil_shows_its_stack_too[forkserver]",),
    ),
    Guard(
        "a-hung-worker-is-replaced",
        ("A4", "A5"),
        "executors/executor.py",
        "        begin = worker.was_stepping and",
        "        if isinstance(cause, TimeoutError):\n            raise cause\n        begin = worker.was_stepping and",
        (
            f"{TIMEOUTS}::test_with_restart_whatever_hangs_is_killed_from_outside_and_the_others_go_on"
            "[forkserver-hold_the_gil]",
        ),
    ),
    Guard(
        "time-runs-from-when-it-was-asked",
        ("A4",),
        "executors/executor.py",
        "                host.asked_at = now\n                host.post_step(number, only_some)\n",
        "                host.asked_at = now + 1e6\n                host.post_step(number, only_some)\n",
        (f"{LOST_AGAIN}::test_a_worker_that_hangs_is_noticed_while_others_are_received[restart-forkserver]",),
    ),
    Guard(
        "a-replacement-may-fail-too",
        ("A1", "A7"),
        "executors/executor.py",
        "                except (WorkerDied, EnvFailed, ReplyTimeout) as again:",
        "                except ZeroDivisionError as again:",
        (
            f"{LOST_AGAIN}::test_a_replacement_that_fails_in_its_turn_is_replaced_too"
            "[constructor raise-next_step-forkserver]",
        ),
    ),
    Guard(
        "envs-lost-unasked-must-be-reset",
        ("A1", "B4"),
        "env_batch.py",
        "            self._state.require_reset(self._collector.lost_unsent)\n",
        "            pass\n",
        (f"{LOST_AGAIN}::test_envs_lost_in_a_step_that_was_not_theirs_must_be_reset[next_step]",),
    ),
    Guard(
        "replies-have-numbers",
        ("A6",),
        "memory/mailbox.py",
        "if self._words[_REPLY] >> FLAG_BITS != self.sequence:",
        "if not self._words[_REPLY]:",
        (
            "tests/memory/test_mailbox.py::test_an_old_reply_does_not_answer_a_new_request",
            f"{ACCOUNTS}::test_a_late_reply_that_a_reset_forgets_is_counted_and_its_steps_are_discarded[forkserver]",
        ),
    ),
    Guard(
        "messages-have-numbers",
        ("A6",),
        "executors/hosts.py",
        "            if found == number:\n                return message",
        "            if found >= 0:\n                return message",
        (f"{ACCOUNTS}::test_a_late_reply_to_a_call_is_given_to_no_other_call[forkserver]",),
    ),
    Guard(
        "late-replies-are-counted",
        ("A6",),
        "executors/executor.py",
        "self.failures.late_replies += len(came)",
        "pass",
        (
            f"{ACCOUNTS}::test_a_late_reply_that_is_received_is_counted_and_its_steps_are_used[forkserver]",
            f"{ACCOUNTS}::test_a_late_reply_that_a_reset_forgets_is_counted_and_its_steps_are_discarded[thread]",
        ),
    ),
)
