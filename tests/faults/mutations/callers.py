"""Guards of results for callers and learners, of memory, network, accounts and clocks: rows B4 to B9, C, E, F."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, NEVER, Guard, before, instead, swap

DEATHS = "tests/faults/test_deaths.py"
RESTARTS = "tests/faults/test_restarts.py"
ACCOUNTS = "tests/faults/test_accounts.py"
START_UP = "tests/faults/test_start_up.py"
BOUNDS = "tests/faults/test_bounds.py"
BAD_OBSERVATIONS = "tests/vector/test_bad_observations.py"
BAD_REQUESTS = "tests/vector/test_bad_requests.py"

GUARDS = (
    # -- B4 to B9 --------------------------------------------------------------------------------------------
    Guard(
        "a-lost-step-has-no-reward",
        ("B4",),
        swap("0.0", "1.0"),
        (f"{RESTARTS}::test_env_that_raises_is_rebuilt_without_affecting_others[next_step-serial]",),
    ),
    Guard(
        "a-lost-step-is-discarded",
        ("B4", "F2"),
        GONE,
        (f"{RESTARTS}::test_killed_worker_is_replaced_and_the_others_stay_bit_equal[forkserver-next_step]",),
    ),
    Guard(
        "a-lost-row-says-so",
        ("B4",),
        swap("True", "False"),
        (f"{RESTARTS}::test_killed_worker_is_replaced_and_the_others_stay_bit_equal[forkserver-same_step]",),
    ),
    Guard(
        "a-missing-part-is-an-error",
        ("B6",),
        instead("continue"),
        (
            f"{BOUNDS}::test_missing_part_of_an_observation_is_an_error_that_names_it[serial-key]",
            f"{BOUNDS}::test_missing_part_of_an_observation_is_an_error_that_names_it[forkserver-item]",
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
        (f"{BAD_OBSERVATIONS}::test_differing_spaces_are_refused_with_env_and_difference",),
    ),
    Guard(
        "results-are-the-callers",
        ("B9",),
        instead("return single"),
        ("tests/faults/test_poison.py::test_copied_results_never_change[Walk-forkserver]",),
    ),
    Guard(
        "poison-spoils",
        ("B9",),
        GONE,
        ("tests/faults/test_poison.py::test_earlier_results_are_poisoned_at_the_next_call[forkserver]",),
    ),
    # -- C: shared memory ------------------------------------------------------------------------------------
    Guard(
        "memory-is-asked-for-first",
        ("C1", "A17"),
        NEVER,
        (f"{START_UP}::test_block_larger_than_memory_is_refused_with_both_sizes[forkserver]",),
    ),
    Guard(
        "the-block-is-really-allocated",
        ("C1",),
        instead("os.ftruncate(self.fd, size)"),
        ("tests/ipc/test_block.py::test_vector_env_that_does_not_fit_is_refused_and_leaves_nothing",),
    ),
    Guard(
        "the-block-has-no-name",
        ("C2",),
        instead('return cls(tempfile.mkstemp(prefix="multiverse-")[0])'),
        (f"{START_UP}::test_program_leaves_nothing_in_dev_shm_and_prints_no_warning",),
    ),
    Guard(
        "a-torn-row-is-not-read",
        ("C3",),
        swap("= self.last_rows.restore if", "= int if"),
        (f"{DEATHS}::test_half_written_row_of_a_dying_worker_is_never_returned[forkserver-next_step]",),
    ),
    Guard(
        "a-torn-row-is-no-final-observation",
        ("C3",),
        swap("self.last_rows.restore_as_final", "int"),
        (f"{DEATHS}::test_half_written_row_of_a_dying_worker_is_never_returned[forkserver-same_step]",),
    ),
    # -- E, F ------------------------------------------------------------------------------------------------
    Guard(
        "no-port-is-opened",
        ("E4",),
        before('self._port = socket.create_server(("127.0.0.1", 0))'),
        (f"{START_UP}::test_no_process_has_an_internet_socket[forkserver]",),
    ),
    Guard(
        "forgotten-steps-are-discarded",
        ("F2",),
        GONE,
        (f"{ACCOUNTS}::test_steps_sent_equal_used_plus_discarded_after_every_kind_of_event[serial]",),
    ),
    Guard(
        "deadlines-are-monotonic",
        ("F5",),
        swap("monotonic", "time"),
        ("tests/faults/test_clocks.py::test_engine_does_not_read_the_wall_clock",),
    ),
    Guard(
        "sleep-is-monotonic",
        ("F5",),
        swap("monotonic", "time"),
        (
            "tests/faults/test_clocks.py::test_engine_does_not_read_the_wall_clock",
            "tests/faults/test_clocks.py::test_jumping_wall_clock_causes_no_timeouts[forkserver]",
        ),
    ),
)
