"""Guards of what callers and learners see, of memory, network, accounts and clocks: rows B4 to B9, C, E, F."""

from __future__ import annotations

from tests.faults.mutations.guard import Guard

DEATHS = "tests/faults/test_deaths.py"
RESTARTS = "tests/faults/test_restarts.py"
ACCOUNTS = "tests/faults/test_accounts.py"
START_UP = "tests/faults/test_start_up.py"
BOUNDS = "tests/faults/test_bounds.py"
BAD_OBSERVATIONS = "tests/contract/test_bad_observations.py"
BAD_REQUESTS = "tests/contract/test_bad_requests.py"

GUARDS = (
    # -- B4 to B9 --------------------------------------------------------------------------------------------
    Guard(
        "a-lost-step-has-no-reward",
        ("B4",),
        "memory/own_columns.py",
        "        self.rewards[rows] = 0.0\n        self.ended[:, rows] = False\n",
        "        self.rewards[rows] = 1.0\n        self.ended[:, rows] = False\n",
        (f"{RESTARTS}::test_an_env_that_raises_is_built_anew_and_costs_nobody_else_anything[next_step-serial]",),
    ),
    Guard(
        "a-lost-step-is-discarded",
        ("B4", "F2"),
        "step_collector.py",
        "            self._discard(len(rows))\n",
        "            pass\n",
        (f"{RESTARTS}::test_a_killed_worker_is_replaced_and_the_others_stay_bit_equal[forkserver-next_step]",),
    ),
    Guard(
        "a-lost-row-says-so",
        ("B4",),
        "step_collector.py",
        "RESTARTED: True}, row, len(ids))",
        "RESTARTED: False}, row, len(ids))",
        (f"{RESTARTS}::test_a_killed_worker_is_replaced_and_the_others_stay_bit_equal[forkserver-same_step]",),
    ),
    Guard(
        "a-missing-part-is-an-error",
        ("B6",),
        "memory/space_rows.py",
        'raise BadValue(f"{called(name)} has no {key!r}: it is {_kind_of(value)}") from error',
        "continue",
        (
            f"{BOUNDS}::test_a_part_that_is_missing_is_an_error_that_names_it[serial-key]",
            f"{BOUNDS}::test_a_part_that_is_missing_is_an_error_that_names_it[forkserver-item]",
        ),
    ),
    Guard(
        "all-actions-are-checked-first",
        ("B7",),
        "memory/space_rows.py",
        "if array.shape != shape:\n            raise InvalidActions(",
        "if False:\n            raise InvalidActions(",
        (f"{BAD_REQUESTS}::test_bad_actions_are_refused_and_leave_no_trace[serial-discrete]",),
    ),
    Guard(
        "nan-actions-are-refused",
        ("B7",),
        "memory/space_rows.py",
        'if array.dtype.kind == "f" and np.isnan(np.vdot(array, array)):',
        "if False:",
        (f"{BAD_REQUESTS}::test_bad_actions_are_refused_and_leave_no_trace[forkserver-box]",),
    ),
    Guard(
        "spaces-are-compared",
        ("B8",),
        "executors/worker_loop.py",
        "if getattr(a, kind) != getattr(b, kind):",
        "if False:",
        (f"{BAD_OBSERVATIONS}::test_spaces_that_differ_are_refused_naming_the_env_and_the_difference",),
    ),
    Guard(
        "results-are-the-callers",
        ("B9",),
        "memory/space_rows.py",
        "return single.copy() if copy else single",
        "return single",
        ("tests/faults/test_poison.py::test_with_copies_nothing_that_was_returned_ever_changes[Walk-forkserver]",),
    ),
    Guard(
        "poison-spoils",
        ("B9",),
        "poison.py",
        "array[gone] = _poison(array.dtype)",
        "pass",
        (
            "tests/faults/test_poison.py::"
            "test_what_an_earlier_call_returned_is_poisoned_when_the_next_one_begins[forkserver]",
        ),
    ),
    # -- C: shared memory ------------------------------------------------------------------------------------
    Guard(
        "memory-is-asked-for-first",
        ("C1", "A17"),
        "executors/preflight.py",
        "    if size > available:\n",
        "    if False:\n",
        (
            f"{START_UP}::test_a_block_larger_than_the_memory_is_refused_with_both_numbers_and_leaves_nothing[forkserver]",
        ),
    ),
    Guard(
        "the-block-is-really-allocated",
        ("C1",),
        "memory/block.py",
        "os.posix_fallocate(self.fd, 0, size)",
        "os.ftruncate(self.fd, size)",
        ("tests/memory/test_block.py::test_a_vector_env_that_does_not_fit_is_refused_and_leaves_nothing",),
    ),
    Guard(
        "the-block-has-no-name",
        ("C2",),
        "memory/block.py",
        'return cls(os.memfd_create("multiverse"))',
        'return cls(tempfile.mkstemp(prefix="multiverse-")[0])',
        (f"{START_UP}::test_a_program_leaves_no_name_in_dev_shm_and_says_nothing_even_when_everything_is_told",),
    ),
    Guard(
        "a-torn-row-is-not-read",
        ("C3",),
        "step_collector.py",
        "show = self.last_rows.restore if",
        "show = int if",
        (f"{DEATHS}::test_a_row_that_a_dying_worker_left_half_written_is_never_seen[forkserver-next_step]",),
    ),
    Guard(
        "a-torn-row-is-no-final-observation",
        ("C3",),
        "step_collector.py",
        "else self.last_rows.restore_as_final",
        "else int",
        (f"{DEATHS}::test_a_row_that_a_dying_worker_left_half_written_is_never_seen[forkserver-same_step]",),
    ),
    # -- E, F ------------------------------------------------------------------------------------------------
    Guard(
        "no-port-is-opened",
        ("E4",),
        "executors/launch/fork_server.py",
        "        self._socket = ours\n",
        '        self._socket = ours\n        self._port = socket.create_server(("127.0.0.1", 0))\n',
        (f"{START_UP}::test_nobody_has_an_internet_socket_the_fork_server_included[forkserver]",),
    ),
    Guard(
        "forgotten-steps-are-discarded",
        ("F2",),
        "host_calls.py",
        "self._failures.steps_discarded += sum(len(ids) for ids in self._state.sent.values())",
        "pass",
        (f"{ACCOUNTS}::test_sent_is_used_plus_discarded_through_everything_that_can_happen[serial]",),
    ),
    Guard(
        "deadlines-are-monotonic",
        ("F5",),
        "executors/executor.py",
        "        deadline = None if timeout_s is None else time.monotonic() + timeout_s\n"
        "        self._sleep_until(all_answered, workers, deadline)",
        "        deadline = None if timeout_s is None else time.time() + timeout_s\n"
        "        self._sleep_until(all_answered, workers, deadline)",
        ("tests/faults/test_clocks.py::test_no_room_of_the_engine_looks_at_the_wall_clock",),
    ),
    Guard(
        "sleep-is-monotonic",
        ("F5",),
        "memory/waiting.py",
        "deadline - time.monotonic()",
        "deadline - time.time()",
        (
            "tests/faults/test_clocks.py::test_no_room_of_the_engine_looks_at_the_wall_clock",
            "tests/faults/test_clocks.py::test_a_clock_that_jumps_by_days_makes_nobody_late[forkserver]",
        ),
    ),
)
