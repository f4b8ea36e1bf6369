"""Guards of how programs and workers end and start: rows A11 to A19."""

from __future__ import annotations

from tests.faults.mutations.guard import ALWAYS, GONE, NEVER, Guard, instead, swap

START_UP = "tests/faults/test_start_up.py"
KILLED = "tests/faults/test_killed_programs.py"
SIGNALS = "tests/faults/test_signals.py"
THREADS = "tests/faults/test_threads.py"
LEAKS = "tests/contract/test_leaks.py"
REGISTERED = "tests/contract/test_registered_ids.py"

GUARDS = (
    # -- A11 to A14: endings ---------------------------------------------------------------------------------
    Guard(
        "the-kernel-kills-with-the-parent",
        ("A11",),
        NEVER,
        tuple(
            f"{KILLED}::test_a_worker_dies_with_its_program_also_if_the_fork_server_is_killed_first[{method}]"
            for method in ("forkserver", "fork", "spawn")
        ),
    ),
    Guard(
        "the-fork-server-ends-its-workers",
        ("A11", "A12"),
        GONE,
        (f"{KILLED}::test_what_an_env_has_started_ends_with_a_killed_program[forkserver]",),
    ),
    Guard(
        "the-whole-group-is-killed",
        ("A12",),
        swap("killpg", "kill"),
        (
            f"{KILLED}::test_what_an_env_has_started_and_not_ended_ends_with_close[forkserver]",
            "tests/contract/test_surroundings.py::test_what_an_env_has_started_ends_with_its_worker[fork]",
        ),
    ),
    Guard(
        "a-worker-leads-a-group",
        ("A12",),
        GONE,
        (f"{KILLED}::test_what_an_env_has_started_and_not_ended_ends_with_close[forkserver]",),
    ),
    Guard(
        "del-closes",
        ("A13",),
        swap("Executor.close, executor", "int"),
        (f"{LEAKS}::test_after_del_nothing_is_left[forkserver]", f"{LEAKS}::test_after_del_nothing_is_left[thread]"),
    ),
    Guard(
        "a-hung-thread-does-not-keep-the-program",
        ("A13", "A19"),
        swap("True", "False"),
        (f"{THREADS}::test_a_program_with_a_hung_thread_can_still_end[nothing-0]",),
    ),
    Guard(
        "ctrl-c-is-the-callers",
        ("A14",),
        swap("SIG_IGN", "SIG_DFL"),
        ("tests/contract/test_surroundings.py::test_ctrl_c_is_the_callers_alone[forkserver]",),
    ),
    Guard(
        "sigusr1-does-not-end-the-fork-server",
        ("A14",),
        swap("SIG_IGN", "SIG_DFL"),
        ("tests/contract/test_surroundings.py::test_ctrl_c_is_the_callers_alone[forkserver]",),
    ),
    Guard(
        "a-set-asks-its-runs-to-save",
        ("A14",),
        swap("@ended_on_request()", ""),
        ("tests/training/test_seed_runs.py::test_a_set_of_a_python_program_is_saved_at_sigterm",),
    ),
    Guard(
        "sigusr1-is-a-request",
        ("A14",),
        NEVER,
        ("tests/training/test_exact_resume.py::test_a_signal_saves_and_ends_and_the_run_goes_on_later[10-138]",),
    ),
    Guard(
        "sigterm-keeps-its-handler-while-ray-starts",
        ("A14",),
        GONE,
        ("tests/executors/test_ray.py::test_sigterm_while_ray_starts_ends_the_program_as_at_any_other_time[True]",),
    ),
    Guard(
        "ctrl-c-does-not-reach-the-fork-server",
        ("A14",),
        swap("0", "None"),
        ("tests/executors/test_launch.py::test_the_terminals_ctrl_c_does_not_reach_the_fork_server",),
    ),
    Guard(
        "a-second-ctrl-c-kills",
        ("A14",),
        NEVER,
        ("tests/ipc/test_interrupts.py::test_a_second_one_comes_through_at_once",),
    ),
    Guard(
        "what-nobody-asks-for-is-read",
        ("A14",),
        NEVER,
        (
            "tests/contract/test_interrupts.py"
            "::test_a_large_answer_that_nobody_waits_for_any_more_holds_nobody_up[forkserver]",
        ),
    ),
    Guard(
        "commands-end-with-130",
        ("A14",),
        instead("raise"),
        (f"{SIGNALS}::test_our_own_commands_end_with_the_signals_code_and_no_traceback[bench-1-2-130]",),
    ),
    # -- A16 to A19: starting, locks, threads ----------------------------------------------------------------
    Guard(
        "no-fork-after-cuda",
        ("A16",),
        NEVER,
        ("tests/executors/test_preflight.py::test_fork_is_refused_once_cuda_is_in_use",),
    ),
    Guard(
        "registered-ids-travel",
        ("A16",),
        GONE,
        (f"{REGISTERED}::test_registered_ids_are_known_in_workers_of_every_start_method",),
    ),
    Guard(
        "only-additions-to-the-registry-travel",
        ("A16",),
        NEVER,
        (f"{REGISTERED}::test_only_what_differs_from_a_fresh_registry_is_sent",),
    ),
    Guard(
        "an-entry-that-cannot-travel-is-skipped",
        ("A16",),
        swap("Exception", "SyntaxError"),
        (f"{REGISTERED}::test_an_id_that_cannot_be_sent_is_skipped_and_its_error_says_why",),
    ),
    Guard(
        "a-spec-travels-back-without-code",
        ("A16",),
        GONE,
        (f"{REGISTERED}::test_class_that_no_name_leads_to_is_known_in_workers",),
    ),
    Guard(
        "a-missing-id-comes-with-its-reason",
        ("A16",),
        NEVER,
        (f"{REGISTERED}::test_an_id_that_cannot_be_sent_is_skipped_and_its_error_says_why",),
    ),
    Guard(
        "what-cannot-travel-is-refused-first",
        ("A16",),
        swap("Exception", "SyntaxError"),
        (
            f"{START_UP}::test_a_refusal_starts_nothing[process]",
            "tests/executors/test_preflight.py::test_a_factory_that_cannot_travel_is_refused_with_what_to_do[spawn]",
        ),
    ),
    Guard(
        "forkserver-is-the-default",
        ("A16",),
        swap('"forkserver"', '"fork"'),
        (f"{START_UP}::test_workers_know_nothing_of_the_locks_that_the_programs_threads_hold[None]",),
    ),
    Guard(
        "what-envs-print-reaches-no-pipe-of-ours",
        ("A17",),
        GONE,
        (
            "tests/executors/test_start.py::test_what_envs_write_to_closed_standard_streams_goes_to_the_null_device[1-hybrid]",
        ),
    ),
    Guard(
        "a-soft-limit-is-raised",
        ("A17",),
        GONE,
        (f"{START_UP}::test_a_real_soft_limit_of_open_files_that_is_too_low_is_raised[forkserver]",),
    ),
    Guard(
        "a-hard-limit-is-refused",
        ("A17",),
        NEVER,
        (f"{START_UP}::test_a_real_hard_limit_is_refused_with_the_number_needed_and_nothing_is_started[forkserver]",),
    ),
    Guard(
        "a-thread-that-cannot-start-is-refused",
        ("A17",),
        instead("raise"),
        (
            "tests/executors/test_bare_machines.py::"
            "test_a_thread_that_cannot_be_started_is_refused_and_the_others_end[2]",
        ),
    ),
    Guard(
        "a-death-between-word-and-pipe",
        ("A18",),
        ALWAYS,
        (
            "tests/faults/test_random_kills.py::"
            "test_kills_at_random_moments_are_survived_and_every_step_is_accounted_for[forkserver-100]",
        ),
    ),
    Guard(
        "sys-exit-ends-its-thread-only",
        ("A19",),
        swap("BaseException", "Exception"),
        (f"{THREADS}::test_sys_exit_in_an_envs_thread_ends_neither_the_program_nor_in_silence[step]",),
    ),
    Guard(
        "threads-cannot-be-killed-is-said",
        ("A19",),
        swap("threads cannot be killed", "it is busy"),
        (f"{THREADS}::test_a_hung_thread_is_told_as_one_and_the_others_can_be_closed",),
    ),
)
