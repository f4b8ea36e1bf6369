"""Guards of what callers and learners see, of memory, network, accounts and clocks: rows B4 to B9, C, E, F."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, NEVER, Guard, before, instead, swap

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
        swap("0.0", "1.0"),
        (f"{RESTARTS}::test_an_env_that_raises_is_built_anew_and_costs_nobody_else_anything[next_step-serial]",),
    ),
    Guard(
        "a-lost-step-is-discarded",
        ("B4", "F2"),
        GONE,
        (f"{RESTARTS}::test_a_killed_worker_is_replaced_and_the_others_stay_bit_equal[forkserver-next_step]",),
    ),
    Guard(
        "a-lost-row-says-so",
        ("B4",),
        swap("True", "False"),
        (f"{RESTARTS}::test_a_killed_worker_is_replaced_and_the_others_stay_bit_equal[forkserver-same_step]",),
    ),
    Guard(
        "a-missing-part-is-an-error",
        ("B6",),
        instead("continue"),
        (
            f"{BOUNDS}::test_a_part_that_is_missing_is_an_error_that_names_it[serial-key]",
            f"{BOUNDS}::test_a_part_that_is_missing_is_an_error_that_names_it[forkserver-item]",
        ),
    ),
    Guard(
        "all-actions-are-checked-first",
        ("B7",),
        NEVER,
        (f"{BAD_REQUESTS}::test_bad_actions_are_refused_and_leave_no_trace[serial-discrete]",),
    ),
    Guard(
        "nan-actions-are-refused",
        ("B7",),
        NEVER,
        (f"{BAD_REQUESTS}::test_bad_actions_are_refused_and_leave_no_trace[forkserver-box]",),
    ),
    Guard(
        "nan-actions-go-the-careful-way",
        ("B7",),
        swap("_holds_nan(actions)", "False"),
        (f"{BAD_REQUESTS}::test_bad_actions_are_refused_and_leave_no_trace[serial-box]",),
    ),
    Guard(
        "spaces-are-compared",
        ("B8",),
        NEVER,
        (f"{BAD_OBSERVATIONS}::test_spaces_that_differ_are_refused_naming_the_env_and_the_difference",),
    ),
    Guard(
        "results-are-the-callers",
        ("B9",),
        instead("return single"),
        ("tests/faults/test_poison.py::test_with_copies_nothing_that_was_returned_ever_changes[Walk-forkserver]",),
    ),
    Guard(
        "poison-spoils",
        ("B9",),
        GONE,
        (
            "tests/faults/test_poison.py::"
            "test_what_an_earlier_call_returned_is_poisoned_when_the_next_one_begins[forkserver]",
        ),
    ),
    # -- C: shared memory ------------------------------------------------------------------------------------
    Guard(
        "memory-is-asked-for-first",
        ("C1", "A17"),
        NEVER,
        (
            f"{START_UP}::test_a_block_larger_than_the_memory_is_refused_with_both_numbers_and_leaves_nothing[forkserver]",
        ),
    ),
    Guard(
        "the-block-is-really-allocated",
        ("C1",),
        instead("os.ftruncate(self.fd, size)"),
        ("tests/ipc/test_block.py::test_a_vector_env_that_does_not_fit_is_refused_and_leaves_nothing",),
    ),
    Guard(
        "the-block-has-no-name",
        ("C2",),
        instead('return cls(tempfile.mkstemp(prefix="multiverse-")[0])'),
        (f"{START_UP}::test_a_program_leaves_no_name_in_dev_shm_and_says_nothing_even_when_everything_is_told",),
    ),
    Guard(
        "a-torn-row-is-not-read",
        ("C3",),
        swap("= self.last_rows.restore if", "= int if"),
        (f"{DEATHS}::test_a_row_that_a_dying_worker_left_half_written_is_never_seen[forkserver-next_step]",),
    ),
    Guard(
        "a-torn-row-is-no-final-observation",
        ("C3",),
        swap("self.last_rows.restore_as_final", "int"),
        (f"{DEATHS}::test_a_row_that_a_dying_worker_left_half_written_is_never_seen[forkserver-same_step]",),
    ),
    # -- E, F ------------------------------------------------------------------------------------------------
    Guard(
        "no-port-is-opened",
        ("E4",),
        before('self._port = socket.create_server(("127.0.0.1", 0))'),
        (f"{START_UP}::test_nobody_has_an_internet_socket_the_fork_server_included[forkserver]",),
    ),
    Guard(
        "forgotten-steps-are-discarded",
        ("F2",),
        GONE,
        (f"{ACCOUNTS}::test_sent_is_used_plus_discarded_through_everything_that_can_happen[serial]",),
    ),
    Guard(
        "deadlines-are-monotonic",
        ("F5",),
        swap("monotonic", "time"),
        ("tests/faults/test_clocks.py::test_no_room_of_the_engine_looks_at_the_wall_clock",),
    ),
    Guard(
        "sleep-is-monotonic",
        ("F5",),
        swap("monotonic", "time"),
        (
            "tests/faults/test_clocks.py::test_no_room_of_the_engine_looks_at_the_wall_clock",
            "tests/faults/test_clocks.py::test_a_clock_that_jumps_by_days_makes_nobody_late[forkserver]",
        ),
    ),
)
