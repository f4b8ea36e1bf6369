"""Guards of starts and ends of programs and workers: rows A11 to A19."""

from __future__ import annotations

from tests.faults.mutations.guard import ALWAYS, GONE, NEVER, Guard, instead, swap

START_UP = "tests/faults/test_start_up.py"
KILLED = "tests/faults/test_killed_programs.py"
SIGNALS = "tests/faults/test_signals.py"
THREADS = "tests/faults/test_threads.py"
LEAKS = "tests/vector/test_leaks.py"
REGISTERED = "tests/vector/test_registered_ids.py"

GUARDS = (
    # -- A11 to A14: endings ---------------------------------------------------------------------------------
    Guard(
        "the-kernel-kills-with-the-parent",
        ("A11",),
        NEVER,
        tuple(
            f"{KILLED}::test_worker_dies_with_its_program_if_the_fork_server_is_killed_first[{method}]"
            for method in ("forkserver", "fork", "spawn")
        ),
    ),
    Guard(
        "the-fork-server-ends-its-workers",
        ("A11", "A12"),
        GONE,
        (f"{KILLED}::test_processes_started_by_an_env_end_with_a_killed_program[forkserver]",),
    ),
    Guard(
        "the-whole-group-is-killed",
        ("A12",),
        swap("killpg", "kill"),
        (
            f"{KILLED}::test_processes_started_by_an_env_end_with_close[forkserver]",
            "tests/vector/test_surroundings.py::test_processes_started_by_an_env_end_with_its_worker[fork]",
        ),
    ),
    Guard(
        "a-worker-leads-a-group",
        ("A12",),
        GONE,
        (f"{KILLED}::test_processes_started_by_an_env_end_with_close[forkserver]",),
    ),
    Guard(
        "del-closes",
        ("A13",),
        swap("Executor.close, executor", "int"),
        (
            f"{LEAKS}::test_deleted_vector_env_leaves_nothing_behind[forkserver]",
            f"{LEAKS}::test_deleted_vector_env_leaves_nothing_behind[thread]",
        ),
    ),
    Guard(
        "a-hung-thread-does-not-keep-the-program",
        ("A13", "A19"),
        swap("True", "False"),
        (f"{THREADS}::test_program_with_a_hanging_thread_can_exit[nothing-0]",),
    ),
    Guard(
        "ctrl-c-is-the-callers",
        ("A14",),
        swap("SIG_IGN", "SIG_DFL"),
        ("tests/vector/test_surroundings.py::test_workers_ignore_sigint_and_sigusr1[forkserver]",),
    ),
    Guard(
        "sigusr1-does-not-end-the-fork-server",
        ("A14",),
        swap("SIG_IGN", "SIG_DFL"),
        ("tests/vector/test_surroundings.py::test_workers_ignore_sigint_and_sigusr1[forkserver]",),
    ),
    Guard(
        "a-set-asks-its-runs-to-save",
        ("A14",),
        swap("@ended_on_request()", ""),
        ("tests/training/test_seed_runs.py::test_set_of_a_python_program_is_saved_at_sigterm",),
    ),
    Guard(
        "sigusr1-is-a-request",
        ("A14",),
        NEVER,
        ("tests/training/test_exact_resume.py::test_signal_saves_and_ends_the_run_which_resumes_exactly[10-138]",),
    ),
    Guard(
        "sigterm-keeps-its-handler-while-ray-starts",
        ("A14",),
        GONE,
        ("tests/executors/test_ray.py::test_sigterm_while_ray_starts_ends_the_program[True]",),
    ),
    Guard(
        "ctrl-c-does-not-reach-the-fork-server",
        ("A14",),
        swap("0", "None"),
        ("tests/executors/test_launch.py::test_ctrl_c_of_the_terminal_does_not_reach_the_fork_server",),
    ),
    Guard(
        "a-second-ctrl-c-kills",
        ("A14",),
        NEVER,
        ("tests/ipc/test_interrupts.py::test_second_interrupt_takes_effect_at_once",),
    ),
    Guard(
        "what-nobody-asks-for-is-read",
        ("A14",),
        NEVER,
        (
            "tests/vector/test_interrupts.py"
            "::test_large_answer_to_an_abandoned_call_does_not_block_later_calls[forkserver]",
        ),
    ),
    Guard(
        "commands-end-with-130",
        ("A14",),
        instead("raise"),
        (f"{SIGNALS}::test_commands_end_with_the_exit_code_of_the_signal_and_no_traceback[bench-1-2-130]",),
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
        (f"{REGISTERED}::test_only_differences_from_a_fresh_registry_are_sent",),
    ),
    Guard(
        "an-entry-that-cannot-travel-is-skipped",
        ("A16",),
        swap("Exception", "SyntaxError"),
        (f"{REGISTERED}::test_id_that_cannot_be_sent_is_skipped_and_its_error_has_the_reason",),
    ),
    Guard(
        "a-spec-travels-back-without-code",
        ("A16",),
        GONE,
        (f"{REGISTERED}::test_local_class_of_a_registered_id_is_known_in_workers",),
    ),
    Guard(
        "a-missing-id-comes-with-its-reason",
        ("A16",),
        NEVER,
        (f"{REGISTERED}::test_id_that_cannot_be_sent_is_skipped_and_its_error_has_the_reason",),
    ),
    Guard(
        "what-cannot-travel-is-refused-first",
        ("A16",),
        swap("Exception", "SyntaxError"),
        (
            f"{START_UP}::test_refusal_starts_nothing[process]",
            "tests/executors/test_preflight.py::test_unpicklable_factory_is_refused_with_alternatives[spawn]",
        ),
    ),
    Guard(
        "forkserver-is-the-default",
        ("A16",),
        swap('"forkserver"', '"fork"'),
        (f"{START_UP}::test_workers_do_not_inherit_locks_of_the_program[None]",),
    ),
    Guard(
        "what-envs-print-reaches-no-pipe-of-ours",
        ("A17",),
        GONE,
        ("tests/executors/test_start.py::test_output_of_envs_to_closed_streams_goes_to_the_null_device[1-hybrid]",),
    ),
    Guard(
        "a-soft-limit-is-raised",
        ("A17",),
        GONE,
        (f"{START_UP}::test_low_soft_limit_of_open_files_is_raised[forkserver]",),
    ),
    Guard(
        "a-hard-limit-is-refused",
        ("A17",),
        NEVER,
        (f"{START_UP}::test_low_hard_limit_is_refused_with_the_number_needed_and_nothing_is_started[forkserver]",),
    ),
    Guard(
        "a-thread-that-cannot-start-is-refused",
        ("A17",),
        instead("raise"),
        ("tests/executors/test_bare_machines.py::test_thread_that_cannot_start_is_refused_and_the_others_end[2]",),
    ),
    Guard(
        "a-death-between-word-and-pipe",
        ("A18",),
        ALWAYS,
        (
            "tests/faults/test_random_kills.py::"
            "test_random_kills_are_survived_and_every_step_is_accounted_for[forkserver-100]",
        ),
    ),
    Guard(
        "sys-exit-ends-its-thread-only",
        ("A19",),
        swap("BaseException", "Exception"),
        (f"{THREADS}::test_sys_exit_in_an_env_thread_is_an_error_and_does_not_end_the_program[step]",),
    ),
    Guard(
        "threads-cannot-be-killed-is-said",
        ("A19",),
        swap("threads cannot be killed", "it is busy"),
        (f"{THREADS}::test_hanging_thread_is_reported_and_the_others_can_be_closed",),
    ),
)
