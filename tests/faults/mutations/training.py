"""Guards of training: rows A14, B4, B5, D5, D6, D8, E3, E7, F2, F3, F4, G2, G7, G8, G9 and G10."""

from __future__ import annotations

from tests.faults.mutations.guard import ALWAYS, GONE, NEVER, Guard, before, instead, swap

RESUME = "tests/training/test_exact_resume.py"
SAVED = "tests/training/test_saved_policies.py"
TRAINER = "tests/training/test_trainer.py"
SCHEDULES = "tests/training/test_schedules.py"
PPO = "tests/algorithms/test_ppo.py"
MODULES = "tests/algorithms/test_modules.py"
OUTPUTS = "tests/algorithms/test_outputs.py"
NETWORKS = "tests/training/test_own_networks.py"
STRANGERS_NETWORK = f"{NETWORKS}::test_network_of_a_foreign_run_is_imported_only_with_trust"
RESUMED_NETWORK = f"{NETWORKS}::test_run_resumes_exactly_with_frozen_layers_statistics_and_dropout"
COLLECTOR = "tests/rollouts/test_collector.py"
ROWS = "tests/faults/test_rows.py"
TEAMS = "tests/training/test_teams.py"
CENTRAL = "tests/training/test_central_critic.py"
WHOLE = "tests/faults/test_whole_episodes.py"
REPLAYING = "tests/rollouts/test_restoring.py"
MARKS = "tests/training/test_marks.py"
EVALUATIONS = "tests/training/test_evaluations.py"
SCALING = "tests/training/test_scaling.py"
EVALUATION_ENVS = "tests/training/test_evaluation_envs.py"
SAME_EVALUATIONS = f"{EVALUATIONS}::test_saveable_envs_have_equal_evaluations_after_a_resume"
GIVEN_UP = f"{EVALUATIONS}::test_failed_evaluation_env_is_rebuilt_for_the_next_evaluation"

REPLAY = "tests/rollouts/test_replay.py"

WAITING = "tests/rollouts/test_whole_rollouts.py"
ASYNCHRONOUS = "tests/rollouts/test_asynchronous.py"

GUARDS = (
    Guard(
        "no-other-policy-is-saved",
        ("D8",),
        NEVER,
        (f"{SAVED}::test_policy_that_would_be_loaded_as_another_one_is_not_saved",),
    ),
    Guard(
        "a-replaced-method-is-not-lost",
        ("D8",),
        NEVER,
        (f"{SAVED}::test_policy_whose_method_was_replaced_is_not_saved",),
    ),
    Guard(
        "features-and-head-are-those-of-the-run",
        ("D8",),
        NEVER,
        (f"{SAVED}::test_policy_that_would_be_loaded_as_another_one_is_not_saved",),
    ),
    Guard(
        "opponents-are-the-policies-that-played",
        ("D8",),
        NEVER,
        (f"{SAVED}::test_self_play_refuses_a_policy_whose_past_versions_cannot_be_saved",),
    ),
    Guard(
        "layers-fit-the-head",
        ("D8",),
        NEVER,
        (f"{OUTPUTS}::test_outputs_that_do_not_fit_the_head_are_refused",),
    ),
    Guard(
        "untrusted-algorithm-does-not-act",
        ("E7",),
        swap('{"algorithm": learner, NETWORK: saved.get(NETWORK)}', "{}"),
        (f"{SAVED}::test_policy_class_of_a_foreign_run_is_imported_only_with_trust", STRANGERS_NETWORK),
    ),
    Guard(
        "another-process-has-no-other-env",
        ("E7",),
        swap("self.env == config.env", "True"),
        ("tests/training/test_strangers.py::test_foreign_set_resumed_with_another_env_does_not_call_its_own",),
    ),
    Guard("untrusted-network-is-not-imported", ("E7",), swap("NETWORK, ", ""), (STRANGERS_NETWORK,)),
    Guard(
        "networks-are-part-of-the-mark",
        ("E7",),
        swap(', NETWORK, f"{NETWORK}_kwargs"', ""),
        (STRANGERS_NETWORK,),
    ),
    Guard(
        "frozen-parts-and-statistics-are-saved",
        ("D5",),
        instead("return {}"),
        (f"{RESUMED_NETWORK}[ppo]",),
    ),
    Guard(
        "targets-keep-statistics-of-their-own",
        ("D5",),
        instead("pass"),
        (f"{RESUMED_NETWORK}[dqn]",),
    ),
    Guard(
        "dropout-follows-the-seed-of-the-run",
        ("D5",),
        GONE,
        (f"{NETWORKS}::test_dropout_depends_only_on_the_seed_and_the_update[ppo]",),
    ),
    Guard(
        "networks-act-in-evaluation-mode",
        ("D5",),
        GONE,
        (f"{NETWORKS}::test_dropout_depends_only_on_the_seed_and_the_update[ppo]",),
    ),
    Guard(
        "hooks-cannot-write-metrics",
        ("F4",),
        GONE,
        (f"{TRAINER}::test_writing_metrics_in_a_hook_is_an_error",),
    ),
    Guard(
        "unscaled-bytes-stay-unscaled",
        ("D6",),
        swap("see_previous, scaled", "see_previous"),
        ("tests/training/test_old_runs.py::test_run_with_unscaled_bytes_resumes_and_acts_without_scaling",),
    ),
    Guard(
        "who-waits-is-not-learned-from",
        ("G7",),
        GONE,
        (f"{WAITING}::test_every_env_plays_one_episode_and_waits_for_the_others[serial]",),
    ),
    Guard(
        "who-waited-has-lost-nothing",
        ("G7",),
        GONE,
        (f"{WAITING}::test_worker_that_dies_costs_one_row_of_envs_that_still_play",),
    ),
    Guard(
        "who-waits-has-taken-nothing",
        ("D5",),
        GONE,
        (f"{WAITING}::test_whole_episode_runs_are_bit_exact_in_every_executor_and_resume[memory0]",),
    ),
    Guard(
        "replay-draws-no-lost-rows",
        ("B4",),
        instead("return np.asarray(known)"),
        (f"{REPLAY}::test_drawn_steps_are_all_stored_steps[3-7-100]",),
    ),
    Guard(
        "replay-bridges-no-gap",
        ("B4",),
        instead("known = flags == flags"),
        (f"{REPLAY}::test_drawn_steps_are_all_stored_steps[3-7-100]",),
    ),
    Guard(
        "signals-wait-for-a-save",
        ("A14",),
        before("self.raise_stop()"),
        (f"{RESUME}::test_signal_saves_and_ends_the_run_which_resumes_exactly[2-130]",),
    ),
    Guard(
        "lost-rows-are-not-valid",
        ("B4",),
        GONE,
        (f"{COLLECTOR}::test_lost_step_is_never_learned_from",),
    ),
    Guard(
        "chunks-end-where-memory-does",
        ("B4",),
        swap(" | (ended | ~valid)[steps, slots][:-1]", ""),
        ("tests/learning/test_batches.py::test_lost_rows_are_not_learned_from[0]",),
    ),
    Guard(
        "lost-rows-are-marked",
        ("G7",),
        GONE,
        (f"{ROWS}::test_hang_or_exception_costs_one_row[raises]",),
    ),
    Guard(
        "a-row-that-begins-an-episode-is-no-step",
        ("B4",),
        GONE,
        (f"{COLLECTOR}::test_row_that_starts_an_episode_is_never_learned_from",),
    ),
    Guard(
        "an-action-without-an-outcome-is-not-learned-from",
        ("B4",),
        GONE,
        (f"{TEAMS}::test_action_with_unknown_outcome_is_not_learned_from",),
    ),
    Guard(
        "final-states-are-kept",
        ("B4",),
        GONE,
        (f"{CENTRAL}::test_state_of_a_lost_step_is_the_one_before",),
    ),
    Guard(
        "opponents-rows-are-not-learned-from",
        ("B4",),
        GONE,
        (f"{TEAMS}::test_rows_of_past_versions_are_not_learned_from",),
    ),
    Guard(
        "nobody-looks-at-who-is-not-there",
        ("B4",),
        GONE,
        (f"{TEAMS}::test_team_policy_receives_the_acting_agents",),
    ),
    Guard(
        "a-lost-worker-costs-one-row",
        ("G7",),
        GONE,
        (f"{ROWS}::test_worker_death_in_a_row_costs_only_that_row[3]",),
    ),
    Guard(
        "a-row-restarts-the-deadline",
        ("G7",),
        swap("monotonic_ns()", "words[_ROW_AT]"),
        (f"{ROWS}::test_slow_rollout_is_no_timeout",),
    ),
    Guard(
        "workers-are-told-to-stop",
        ("G7",),
        instead("pass"),
        (f"{ROWS}::test_stop_request_is_answered_within_a_row",),
    ),
    Guard(
        "rows-of-the-replaced-begin-anew",
        ("G7",),
        instead("lost[row, mine] = True"),
        (f"{ROWS}::test_writes_of_a_worker_past_its_deadline_do_not_affect_the_rollout",),
    ),
    Guard(
        "a-rollout-cut-short-needs-a-reset",
        ("G7",),
        instead("pass"),
        (f"{ROWS}::test_interrupt_after_a_replacement_requires_a_reset",),
    ),
    Guard(
        "a-policys-actions-are-as-it-said",
        ("G7",),
        GONE,
        (f"{ROWS}::test_failing_policy_in_a_worker_is_named_and_cleared_by_reset[one for all]",),
    ),
    Guard(
        "one-that-was-ended-is-not-asked",
        ("G7",),
        ALWAYS,
        (f"{ROWS}::test_vector_env_interrupted_during_a_replacement_can_be_closed[in workers]",),
    ),
    Guard(
        "a-message-has-a-deadline",
        ("G7",),
        instead("pass"),
        (f"{ROWS}::test_worker_stopped_between_its_word_and_its_message_is_a_timeout[in workers]",),
    ),
    Guard(
        "restarts-outlive-their-worker",
        ("G7",),
        GONE,
        (f"{ROWS}::test_restarts_before_a_worker_died_are_accounted_for",),
    ),
    Guard(
        "a-lost-episode-is-dropped",
        ("G10",),
        instead("lost: set[int] = set()"),
        (f"{WHOLE}::test_worker_killed_in_an_episode_costs_its_episodes_and_others_are_drawn[7-process-2]",),
    ),
    Guard(
        "a-lost-share-is-drawn-again",
        ("G10",),
        GONE,
        (f"{WHOLE}::test_lost_acting_worker_costs_its_share_and_others_are_drawn[dies-6]",),
    ),
    Guard(
        "a-lost-step-is-no-step",
        ("G10",),
        GONE,
        (f"{WHOLE}::test_worker_killed_in_an_episode_costs_its_episodes_and_others_are_drawn[7-process-2]",),
    ),
    Guard(
        "gradients-are-finite",
        ("B5",),
        GONE,
        (f"{PPO}::test_five_skipped_gradients_in_a_row_end_the_run_with_the_last_good_weights[torch]",),
    ),
    Guard(
        "gradients-are-finite-in-numpy",
        ("B5",),
        GONE,
        (f"{PPO}::test_five_skipped_gradients_in_a_row_end_the_run_with_the_last_good_weights[numpy]",),
    ),
    Guard(
        "gradients-reach-the-optimizer",
        ("B5",),
        GONE,
        (
            f"{MODULES}::test_zero_grad_in_a_loss_is_an_error",
            f"{NETWORKS}::test_zero_grad_in_a_network_is_an_error[dqn]",
        ),
    ),
    Guard(
        "five-in-a-row-is-enough",
        ("B5",),
        NEVER,
        (f"{PPO}::test_five_skipped_gradients_in_a_row_end_the_run_with_the_last_good_weights",),
    ),
    Guard(
        "masks-are-part-of-the-mark",
        ("D5",),
        GONE,
        ("tests/training/test_action_masks.py::test_run_with_masks_resumes_exactly[DoorsSaved-ppo]",),
    ),
    Guard(
        "a-replayed-episode-goes-on-in-the-log",
        ("D5",),
        GONE,
        (f"{RESUME}::test_killed_run_resumes_exactly[collect130-learn11]",),
    ),
    Guard(
        "noise-as-it-was-at-the-mark",
        ("D5", "A14"),
        swap("_marked_noise", "_noise.bit_generator.state"),
        (f"{RESUME}::test_signal_saves_and_ends_the_run_which_resumes_exactly[2-130]",),
    ),
    Guard(
        "a-replay-is-compared",
        ("D5",),
        NEVER,
        (f"{REPLAYING}::test_replayed_observations_are_compared_without_returns",),
    ),
    Guard(
        "returns-are-compared-too",
        ("D5",),
        NEVER,
        (f"{REPLAYING}::test_env_with_other_rewards_is_reported[serial]",),
    ),
    Guard(
        "envs-lost-in-a-replay-are-reset",
        ("G2", "D5"),
        GONE,
        (f"{REPLAYING}::test_worker_lost_in_a_replay_costs_all_its_envs[kill]",),
    ),
    Guard(
        "envs-lost-while-put-back-are-told",
        ("G2", "D5"),
        ALWAYS,
        (f"{MARKS}::test_worker_lost_while_restoring_env_states_is_named_and_the_run_continues[restore die]",),
    ),
    Guard(
        "marked-states-are-copies",
        ("G8",),
        swap("deepcopy(self._saved_states())", "self._saved_states()"),
        (f"{MARKS}::test_hook_that_fails_inside_a_rollout_costs_only_that_rollout[serial]",),
    ),
    Guard(
        "a-worker-lost-in-a-save-is-replaced",
        ("G8",),
        ALWAYS,
        (f"{MARKS}::test_worker_lost_while_saving_env_states_costs_only_its_episodes[save die]",),
    ),
    Guard(
        "a-rollout-that-cannot-be-left-is-filled",
        ("G8", "A14"),
        NEVER,
        (f"{MARKS}::test_stop_waits_for_the_rollout_without_env_states",),
    ),
    Guard(
        "no-checkpoint-of-two-moments",
        ("G8",),
        NEVER,
        (f"{MARKS}::test_slow_env_states_prevent_saving_inside_a_rollout_with_a_warning",),
    ),
    Guard(
        "a-target-that-was-reached-stays-reached",
        ("D5",),
        GONE,
        (f"{EVALUATIONS}::test_run_killed_after_reaching_its_target_goes_no_further",),
    ),
    Guard(
        "evaluations-go-on-as-saved",
        ("D5",),
        GONE,
        (f"{SAME_EVALUATIONS}[after a save-serial]",),
    ),
    Guard(
        "an-env-is-reset-before-it-is-saved",
        ("D5",),
        GONE,
        ("tests/training/test_evaluations.py::test_env_states_are_saved_if_episodes_are_fewer_than_envs",),
    ),
    Guard(
        "a-failed-evaluation-env-is-replaced",
        ("G9",),
        GONE,
        (f"{GIVEN_UP}[process-die]",),
    ),
    Guard(
        "restarts-are-counted-anew-for-every-evaluation",
        ("G9",),
        GONE,
        (f"{EVALUATIONS}::test_evaluation_seeds_that_always_fail_are_reported_and_the_others_count",),
    ),
    Guard(
        "an-episode-that-failed-does-not-count",
        ("G9",),
        NEVER,
        (f"{EVALUATIONS}::test_evaluation_seeds_that_always_fail_are_reported_and_the_others_count",),
    ),
    Guard(
        "nobody-pays-for-a-neighbour",
        ("G9",),
        NEVER,
        (f"{EVALUATION_ENVS}::test_worker_killed_by_one_env_does_not_change_the_episodes_of_others[4-1]",),
    ),
    Guard(
        "no-older-figure-after-a-failed-evaluation",
        ("G9",),
        instead("self._evaluated_at = self.clock.env_steps"),
        (f"{EVALUATIONS}::test_failed_last_evaluation_reports_no_older_result[given up]",),
    ),
    Guard(
        "evaluations-failures-are-named",
        ("G9",),
        GONE,
        (f"{GIVEN_UP}[process-die]",),
    ),
    Guard(
        "evaluations-have-the-runs-restarts",
        ("G9",),
        swap("config.restarts_per_minute", "3"),
        (f"{EVALUATIONS}::test_evaluation_uses_the_restart_limit_of_the_run",),
    ),
    Guard(
        "decisions-are-replayed",
        ("D5",),
        NEVER,
        (f"{SCALING}::test_resumed_run_follows_the_written_decisions[120]",),
    ),
    Guard(
        "a-change-of-envs-counts-once-it-is-made",
        ("D5",),
        GONE,
        (f"{SCALING}::test_resumed_run_follows_the_written_decisions[360]",),
    ),
    Guard(
        "a-change-of-envs-can-be-stopped",
        ("D5",),
        GONE,
        (f"{SCALING}::test_run_stopped_while_envs_change_is_saved_as_before_the_change",),
    ),
    Guard(
        "no-episode-is-played-again",
        ("D5",),
        instead("self.envs.begin_at([0] * count)"),
        (f"{SCALING}::test_env_added_again_continues_with_another_episode",),
    ),
    Guard(
        "differences-are-told",
        ("D6",),
        GONE,
        (f"{TRAINER}::test_changed_settings_are_reported_on_resume",),
    ),
    Guard(
        "an-edited-executor-is-used",
        ("D6",),
        swap("changed &", "given.keys() &"),
        (f"{TRAINER}::test_executor_edited_in_the_config_is_used_and_changes_no_bit",),
    ),
    Guard(
        "an-edited-setting-is-used",
        ("D6",),
        swap("given.keys() | edited", "given.keys()"),
        (f"{TRAINER}::test_setting_edited_in_the_config_overrides_one_changed_by_a_hook",),
    ),
    Guard(
        "jumps-of-schedules-are-reported",
        ("D6",),
        GONE,
        (f"{SCHEDULES}::test_larger_budget_makes_linear_schedules_jump_and_one_warning_has_both_values",),
    ),
    Guard(
        "held-schedules-do-not-move",
        ("D6",),
        instead("return self.config.budget.spent(self.clock)"),
        (f"{SCHEDULES}::test_held_schedules_keep_the_last_values_and_later_resumes_are_exact",),
    ),
    Guard(
        "sizes-are-compared",
        ("D6",),
        NEVER,
        (
            f"{PPO}::test_weights_of_another_size_are_refused[torch]",
            f"{TRAINER}::test_networks_of_another_size_are_refused_with_the_reason",
        ),
    ),
    Guard(
        "the-config-is-the-runs-own",
        ("E3",),
        instead(
            "from multiverse.training.saved_runs import checkpoint_of\n"
            """return checkpoint_of(run).manifest["config"]"""
        ),
        (f"{TRAINER}::test_code_named_in_a_checkpoint_is_not_imported",),
    ),
    Guard(
        "rollouts-of-an-older-policy-are-refused",
        ("F3",),
        NEVER,
        (f"{PPO}::test_rollout_of_an_older_policy_is_refused",),
    ),
    Guard(
        "stale-rows-are-corrected",
        ("F3",),
        instead("later = row"),
        ("tests/learning/test_returns.py::test_advantages_with_ratios_equal_v_trace",),
    ),
    Guard(
        "the-lag-is-bounded",
        ("F3",),
        swap("rollout.version < version", "False"),
        (f"{ASYNCHRONOUS}::test_rollouts_beyond_the_lag_are_discarded_before_learning",),
    ),
    Guard(
        "the-version-is-that-of-who-acted",
        ("F3",),
        instead("version = self._newest[0].version"),
        (f"{ASYNCHRONOUS}::test_asynchronous_rows_are_complete_in_order_and_of_their_version[process-False]",),
    ),
    Guard(
        "the-queue-is-bounded",
        ("F2",),
        instead("pass"),
        (f"{ASYNCHRONOUS}::test_full_queue_discards_its_oldest_rollout",),
    ),
    Guard(
        "a-full-queue-is-not-filled",
        ("F2",),
        instead("rests = self._resting"),
        (f"{ASYNCHRONOUS}::test_workers_pause_while_the_queue_is_full[process]",),
    ),
    Guard(
        "rows-that-were-cut-short-are-not-learned-from",
        ("F3",),
        swap("full and ", ""),
        (f"{ASYNCHRONOUS}::test_rows_of_a_worker_stopped_halfway_are_not_delivered[process]",),
    ),
)
