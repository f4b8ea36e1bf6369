"""Guards of files of runs: rows D1 to D4, D7, E1, E2, E6, E7 and F4."""

from __future__ import annotations

from tests.faults.mutations.guard import ALWAYS, GONE, NEVER, Guard, instead, swap

FAULTS = "tests/training/runs/test_checkpoint_faults.py"
BROKEN = "tests/training/runs/test_checkpoint_broken.py"
LOCK = "tests/training/runs/test_run_lock.py"
CONFIG = "tests/training/config/test_files.py"
SINKS = "tests/training/runs/test_metric_sinks.py"
REDACTION = "tests/training/runs/test_redaction.py"
STRANGERS = "tests/training/test_strangers.py"
TWISTED = "tests/training/test_twisted_states.py"
FOREIGN = "tests/training/test_foreign_things.py"
SPACES = "tests/training/test_space_description.py"
REPLAY = "tests/training/test_off_policy_runs.py"
JOURNAL = "tests/cli/test_search_journal.py"
STRUCK = f"{FAULTS}::test_crash_at_any_call_of_a_save_leaves_the_old_or_the_new_checkpoint"

TABLES = "tests/training/runs/test_tables.py"

GUARDS = (
    # -- D: tables beside the checkpoints --------------------------------------------------------------------
    Guard(
        "records-are-on-the-disk-before-they-are-named",
        ("D4",),
        GONE,
        (f"{TABLES}::test_crash_at_any_call_leaves_every_checkpoint_with_its_table[False-power]",),
    ),
    Guard(
        "named-tables-stay",
        ("D1",),
        swap("named | mine", "mine"),
        (f"{TABLES}::test_table_files_without_a_checkpoint_are_removed",),
    ),
    Guard(
        "every-record-is-verified",
        ("D3",),
        NEVER,
        (f"{TABLES}::test_checkpoint_with_a_damaged_table_is_skipped_for_the_one_before",),
    ),
    Guard(
        "an-empty-replay-fills-up-first",
        ("D3",),
        swap("self.replay.added * rollout.slots", "self._env_steps"),
        (f"{REPLAY}::test_learning_after_a_resume_without_replay_waits_for_enough_steps",),
    ),
    Guard(
        "new-records-do-not-follow-dropped-ones",
        ("D3",),
        swap(" and continue_tables", ""),
        (f"{REPLAY}::test_records_after_a_resume_without_replay_do_not_continue_dropped_ones",),
    ),
    Guard(
        "no-file-name-is-too-long",
        ("D2",),
        ALWAYS,
        (f"{TABLES}::test_table_whose_name_is_too_long_for_a_file_is_saved[220]",),
    ),
    Guard(
        "no-table-is-read-from-elsewhere",
        ("E7",),
        NEVER,
        (f"{TABLES}::test_table_files_elsewhere_are_not_read",),
    ),
    # -- D: the study of a search -----------------------------------------------------------------------------
    Guard(
        "a-torn-record-is-cut-off",
        ("D3",),
        NEVER,
        (f"{JOURNAL}::test_torn_last_line_is_cut_off_and_a_copy_is_kept",),
    ),
    Guard(
        "records-that-do-not-fit-are-located",
        ("D3",),
        instead("raise", statements=2),
        (f"{JOURNAL}::test_other_damage_is_an_error_with_file_and_line_and_changes_nothing[no_trial_id]",),
    ),
    Guard(
        "a-lost-journal-is-no-new-search",
        ("D3",),
        NEVER,
        (f"{JOURNAL}::test_other_damage_is_an_error_with_file_and_line_and_changes_nothing[only_a_torn_line]",),
    ),
    Guard(
        "lost-records-are-no-new-trials",
        ("D3",),
        NEVER,
        (f"{JOURNAL}::test_other_damage_is_an_error_with_file_and_line_and_changes_nothing[lines_lost]",),
    ),
    Guard(
        "a-lock-that-was-left-is-removed",
        ("D7",),
        GONE,
        (f"{JOURNAL}::test_journal_lock_of_a_killed_process_is_removed",),
    ),
    Guard("no-trial-is-a-link", ("E7",), GONE, (f"{JOURNAL}::test_trial_that_is_a_symbolic_link_is_refused",)),
    Guard(
        "no-device-is-replaced",
        ("D2",),
        NEVER,
        ("tests/cli/test_tune.py::test_output_that_is_no_plain_file_is_refused_and_kept",),
    ),
    Guard(
        "no-file-of-a-search-is-a-link",
        ("E7",),
        GONE,
        (f"{JOURNAL}::test_search_file_that_is_a_symbolic_link_is_refused",),
    ),
    Guard("no-seed-is-a-link", ("E7",), GONE, (f"{FOREIGN}::test_seed_directory_that_is_a_symbolic_link_is_refused",)),
    # -- D: checkpoints --------------------------------------------------------------------------------------
    Guard(
        "a-save-is-written-aside",
        ("D1",),
        instead("shutil.rmtree(folder / name, ignore_errors=True)\nwrite_files(folder / name, packed)", statements=2),
        (f"{STRUCK}[the_same_again-kill]",),
    ),
    Guard(
        "one-that-stepped-aside-counts",
        ("D1",),
        NEVER,
        (f"{STRUCK}[the_same_again-kill]",),
    ),
    Guard(
        "removed-under-another-name",
        ("D1",),
        instead("shutil.rmtree(path, ignore_errors=True)", statements=2),
        (f"{STRUCK}[one_more-kill]",),
    ),
    Guard(
        "a-failed-save-leaves-nothing",
        ("D2",),
        GONE,
        (f"{FAULTS}::test_full_disk_at_any_call_costs_only_this_save[one_more-once]",),
    ),
    Guard(
        "a-final-save-raises",
        ("D2",),
        GONE,
        (f"{FAULTS}::test_failed_save_is_logged_and_a_failed_final_save_raises[28]",),
    ),
    Guard(
        "every-byte-is-verified",
        ("D3",),
        NEVER,
        (f"{BROKEN}::test_flipped_bit_anywhere_is_noticed[arrays.safetensors]",),
    ),
    Guard(
        "the-manifest-is-verified-too",
        ("D3",),
        NEVER,
        (f"{BROKEN}::test_flipped_bit_anywhere_is_noticed[manifest.json]",),
    ),
    Guard(
        "all-broken-is-no-fresh-start",
        ("D3",),
        NEVER,
        (f"{BROKEN}::test_only_broken_checkpoints_are_an_error_and_no_fresh_start",),
    ),
    Guard(
        "lost-checkpoints-are-no-fresh-start",
        ("D3",),
        NEVER,
        (f"{FOREIGN}::test_run_that_lost_its_checkpoints_is_an_error_and_no_fresh_start",),
    ),
    Guard(
        "bytes-are-on-the-disk-before-their-name",
        ("D4",),
        GONE,
        (f"{STRUCK}[one_more-power]",),
    ),
    Guard(
        "names-are-on-the-disk-before-old-ones-go",
        ("D4",),
        GONE,
        (f"{STRUCK}[the_same_again-power, names lost]",),
    ),
    Guard(
        "an-old-name-is-off-the-disk-before-its-files-are",
        ("D4",),
        GONE,
        (f"{STRUCK}[one_more-power, names lost]",),
    ),
    Guard(
        "the-kernel-holds-the-lock",
        ("D7",),
        NEVER,
        (f"{LOCK}::test_refused_attempt_does_not_release_the_holders_lock",),
    ),
    Guard(
        "a-pid-alone-is-nobody",
        ("D7",),
        instead("return started(self.pid) is not None"),
        (
            f"{LOCK}::test_stale_lock_is_distinguished_from_a_living_holder[pid used again]",
            f"{LOCK}::test_stale_lock_is_distinguished_from_a_living_holder[another boot]",
        ),
    ),
    Guard(
        "a-zombie-holds-no-lock",
        ("D7",),
        instead("ended = False"),
        (f"{LOCK}::test_lock_of_a_zombie_is_taken_over[kernel's locks]",),
    ),
    # -- E: security -----------------------------------------------------------------------------------------
    Guard(
        "a-pickle-is-called-one",
        ("E1",),
        NEVER,
        (f"{BROKEN}::test_pickle_is_refused_in_one_line_and_never_opened[4]",),
    ),
    Guard(
        "sizes-are-bounded",
        ("E1",),
        NEVER,
        (f"{BROKEN}::test_file_larger_than_the_limit_is_not_read[state.json]",),
    ),
    Guard(
        "memory-is-asked-for-before-reading",
        ("E1",),
        NEVER,
        (f"{TWISTED}::test_checkpoint_larger_than_memory_is_not_read",),
    ),
    Guard(
        "no-array-is-named-twice",
        ("E1",),
        swap('arrays.pop(value["$array"])', 'arrays[value["$array"]]'),
        (f"{TWISTED}::test_array_named_twice_is_refused",),
    ),
    Guard(
        "twisted-states-are-refused",
        ("E1",),
        instead("raise", statements=1),
        (f"{TWISTED}::test_invalid_initial_weights_are_refused",),
    ),
    Guard(
        "a-page-shows-a-runs-words-as-text",
        ("E7",),
        swap("html.escape(str(value))", "str(value)"),
        ("tests/cli/test_pictures.py::test_markup_in_a_foreign_run_is_escaped_in_pages",),
    ),
    Guard(
        "a-strangers-algorithm-is-not-imported-for-its-flags",
        ("E7",),
        NEVER,
        ("tests/training/test_strangers.py::test_algorithm_of_a_foreign_config_is_not_imported[help]",),
    ),
    Guard(
        "a-strangers-algorithm-has-no-flags",
        ("E7",),
        GONE,
        (f"{STRANGERS}::test_algorithm_of_a_foreign_run_is_not_imported_for_flags_of_resume",),
    ),
    Guard(
        "networks-are-bounded",
        ("E1",),
        NEVER,
        (f"{TWISTED}::test_networks_larger_than_memory_are_refused",),
    ),
    Guard(
        "no-key-twice",
        ("E2",),
        NEVER,
        (f"{CONFIG}::test_invalid_file_is_refused_with_its_line",),
    ),
    Guard(
        "aliases-are-bounded",
        ("E2",),
        NEVER,
        (f"{CONFIG}::test_exponential_aliases_are_refused",),
    ),
    Guard(
        "secrets-are-redacted",
        ("E6",),
        instead("return False"),
        (f"{REDACTION}::test_no_file_of_a_run_has_a_secret_or_an_environment_variable",),
    ),
    Guard(
        "addresses-are-redacted",
        ("E6",),
        instead("return value"),
        (f"{REDACTION}::test_no_file_of_a_run_has_a_secret_or_an_environment_variable",),
    ),
    Guard(
        "no-difference-tells-a-secret",
        ("E6",),
        swap("redacted(plain_config(config))", "plain_config(config)"),
        ("tests/training/test_trainer.py::test_secret_passed_again_is_not_logged",),
    ),
    Guard(
        "a-strangers-code-is-not-called",
        ("E7",),
        NEVER,
        (f"{STRANGERS}::test_calls_of_a_foreign_run_are_named_and_need_trust[evaluate]",),
    ),
    Guard(
        "links-in-a-run-are-not-followed",
        ("E7",),
        GONE,
        (f"{FOREIGN}::test_symbolic_link_in_a_run_is_refused[resumed-checkpoints]",),
    ),
    Guard(
        "only-plain-files-are-read",
        ("E2",),
        ALWAYS,
        ("tests/cli/test_tune.py::test_pipes_and_devices_as_input_files_are_refused[--plan]",),
    ),
    Guard(
        "no-link-is-opened",
        ("E7",),
        instead("descriptor = os.open(path, flags, 0o666)"),
        (f"{FOREIGN}::test_symbolic_link_created_later_is_refused",),
    ),
    Guard(
        "a-strangers-cluster-is-not-joined",
        ("E7",),
        NEVER,
        (f"{STRANGERS}::test_cluster_of_a_foreign_run_is_joined_only_with_trust",),
    ),
    Guard(
        "a-plan-file-names-no-cluster",
        ("E7",),
        NEVER,
        (f"{STRANGERS}::test_cluster_in_a_plan_file_is_refused",),
    ),
    Guard(
        "a-checkpoint-names-no-cluster",
        ("E7",),
        instead("address = plan.ray.address"),
        (f"{STRANGERS}::test_cluster_in_a_checkpoint_is_never_joined",),
    ),
    Guard(
        "only-our-own-names-count",
        ("E7",),
        instead("return True"),
        (f"{FOREIGN}::test_foreign_files_beside_checkpoints_are_neither_read_nor_removed",),
    ),
    Guard(
        "only-what-we-wrote-is-removed",
        ("E7",),
        instead("strangers = shutil.rmtree(path, ignore_errors=True)"),
        (f"{FOREIGN}::test_foreign_files_inside_a_checkpoint_are_kept",),
    ),
    Guard(
        "spaces-are-bounded",
        ("E7",),
        NEVER,
        (f"{SPACES}::test_invalid_space_description_is_refused_in_one_line",),
    ),
    # -- F: sinks --------------------------------------------------------------------------------------------
    Guard(
        "a-sink-may-fail",
        ("F4",),
        instead("raise"),
        (f"{SINKS}::test_failing_sink_is_reported_once_and_disabled_while_others_continue[OSError]",),
    ),
)
