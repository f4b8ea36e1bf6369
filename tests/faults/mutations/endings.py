"""Guards of how programs and workers end and start: rows A11 to A19."""

from __future__ import annotations

from tests.faults.mutations.guard import Guard

START_UP = "tests/faults/test_start_up.py"
KILLED = "tests/faults/test_killed_programs.py"
SIGNALS = "tests/faults/test_signals.py"
THREADS = "tests/faults/test_threads.py"
LEAKS = "tests/contract/test_leaks.py"

GUARDS = (
    # -- A11 to A14: endings ---------------------------------------------------------------------------------
    Guard(
        "the-kernel-kills-with-the-parent",
        ("A11",),
        "executors/launch/orphan_guard.py",
        "if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:",
        "if False:",
        tuple(
            f"{KILLED}::test_a_worker_dies_with_its_program_also_if_the_fork_server_is_killed_first[{method}]"
            for method in ("forkserver", "fork", "spawn")
        ),
    ),
    Guard(
        "the-fork-server-ends-its-workers",
        ("A11", "A12"),
        "executors/launch/server_loop.py",
        "        for pid in (*status_pipes, *guarded):\n            orphan_guard.kill_group(pid)\n",
        "        pass\n",
        (f"{KILLED}::test_what_an_env_has_started_ends_with_a_killed_program[forkserver]",),
    ),
    Guard(
        "the-whole-group-is-killed",
        ("A12",),
        "executors/launch/orphan_guard.py",
        "        os.killpg(pid, signal.SIGKILL)\n",
        "        os.kill(pid, signal.SIGKILL)\n",
        (
            f"{KILLED}::test_what_an_env_has_started_and_not_ended_ends_with_close[forkserver]",
            "tests/contract/test_surroundings.py::test_what_an_env_has_started_ends_with_its_worker[fork]",
        ),
    ),
    Guard(
        "a-worker-leads-a-group",
        ("A12",),
        "executors/launch/orphan_guard.py",
        "        os.setpgid(0, 0)\n",
        "        pass\n",
        (f"{KILLED}::test_what_an_env_has_started_and_not_ended_ends_with_close[forkserver]",),
    ),
    Guard(
        "del-closes",
        ("A13",),
        "env_batch.py",
        "self._close_executor = weakref.finalize(self, Executor.close, executor)",
        "self._close_executor = weakref.finalize(self, int)",
        (f"{LEAKS}::test_after_del_nothing_is_left[forkserver]", f"{LEAKS}::test_after_del_nothing_is_left[thread]"),
    ),
    Guard(
        "a-hung-thread-does-not-keep-the-program",
        ("A13", "A19"),
        "executors/thread.py",
        "daemon=True",
        "daemon=False",
        (f"{THREADS}::test_a_program_with_a_hung_thread_can_still_end[nothing-0]",),
    ),
    Guard(
        "ctrl-c-is-the-callers",
        ("A14",),
        "executors/launch/first_steps.py",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.signal(signal.SIGINT, signal.SIG_DFL)",
        ("tests/contract/test_surroundings.py::test_ctrl_c_is_the_callers_alone[forkserver]",),
    ),
    Guard(
        "ctrl-c-does-not-reach-the-fork-server",
        ("A14",),
        "executors/launch/fork_server.py",
        "process_group=0,",
        "process_group=None,",
        ("tests/executors/test_launch.py::test_the_terminals_ctrl_c_does_not_reach_the_fork_server",),
    ),
    Guard(
        "a-second-ctrl-c-kills",
        ("A14",),
        "memory/interrupts.py",
        "if self._held and self._handler is not None:",
        "if False:",
        ("tests/memory/test_interrupts.py::test_a_second_one_comes_through_at_once",),
    ),
    Guard(
        "commands-end-with-130",
        ("A14",),
        "cli/main.py",
        "    except KeyboardInterrupt:\n        return INTERRUPTED\n",
        "    except KeyboardInterrupt:\n        raise\n",
        (f"{SIGNALS}::test_our_own_commands_end_with_the_signals_code_and_no_traceback[bench-1-2-130]",),
    ),
    # -- A16 to A19: starting, locks, threads ----------------------------------------------------------------
    Guard(
        "no-fork-after-cuda",
        ("A16",),
        "executors/preflight.py",
        'if cuda is not None and getattr(cuda, "is_initialized", bool)():',
        "if False:",
        ("tests/executors/test_preflight.py::test_fork_is_refused_once_cuda_is_in_use",),
    ),
    Guard(
        "what-cannot-travel-is-refused-first",
        ("A16",),
        "executors/process.py",
        "        return [cloudpickle.dumps(a) for a in assignments]\n    except Exception as error:",
        "        return [cloudpickle.dumps(a) for a in assignments]\n    except SyntaxError as error:",
        (
            f"{START_UP}::test_a_refusal_starts_nothing[process]",
            "tests/executors/test_preflight.py::test_a_factory_that_cannot_travel_is_refused_with_what_to_do[spawn]",
        ),
    ),
    Guard(
        "forkserver-is-the-default",
        ("A16",),
        "executors/choose.py",
        'start_method or "forkserver"',
        'start_method or "fork"',
        (f"{START_UP}::test_workers_know_nothing_of_the_locks_that_the_programs_threads_hold[None]",),
    ),
    Guard(
        "a-soft-limit-is-raised",
        ("A17",),
        "executors/preflight.py",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))",
        "pass",
        (f"{START_UP}::test_a_real_soft_limit_of_open_files_that_is_too_low_is_raised[forkserver]",),
    ),
    Guard(
        "a-hard-limit-is-refused",
        ("A17",),
        "executors/preflight.py",
        "if hard != unlimited and needed > hard:",
        "if False:",
        (f"{START_UP}::test_a_real_hard_limit_is_refused_with_the_number_needed_and_nothing_is_started[forkserver]",),
    ),
    Guard(
        "a-death-between-word-and-pipe",
        ("A18",),
        "executors/executor.py",
        "                    if self.supervisor is None or not isinstance(host, WorkerHost):\n",
        "                    if True:\n",
        (
            "tests/faults/test_random_kills.py::"
            "test_kills_at_random_moments_are_survived_and_every_step_is_accounted_for[forkserver-100]",
        ),
    ),
    Guard(
        "sys-exit-ends-its-thread-only",
        ("A19",),
        "executors/thread.py",
        "except BaseException as error:  # SystemExit too: an env that calls sys.exit() ends its thread only",
        "except Exception as error:",
        (f"{THREADS}::test_sys_exit_in_an_envs_thread_ends_neither_the_program_nor_in_silence[step]",),
    ),
    Guard(
        "threads-cannot-be-killed-is-said",
        ("A19",),
        "executors/thread.py",
        'State("it is a thread, and threads cannot be killed", stack)',
        'State("it is busy", stack)',
        (f"{THREADS}::test_a_hung_thread_is_told_as_one_and_the_others_can_be_closed",),
    ),
)
