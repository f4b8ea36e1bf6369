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
STRANGERS_NETWORK = f"{NETWORKS}::test_network_of_a_strangers_run_is_imported_only_with_trust"
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
SAME_EVALUATIONS = f"{EVALUATIONS}::test_envs_that_save_themselves_have_the_same_evaluations_after_a_resume"
GIVEN_UP = f"{EVALUATIONS}::test_an_env_that_was_given_up_is_built_anew_for_the_next_evaluation"

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
        (f"{SAVED}::test_loading_a_strangers_policy_imports_its_class_only_if_it_is_trusted", STRANGERS_NETWORK),
    ),
    Guard(
        "another-process-has-no-other-env",
        ("E7",),
        swap("self.env == config.env", "True"),
        ("tests/training/test_strangers.py::test_set_that_is_resumed_with_another_env_by_name_does_not_call_its_own",),
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
        (f"{NETWORKS}::test_what_dropout_draws_depends_on_the_seed_and_the_update_alone[ppo]",),
    ),
    Guard(
        "networks-act-in-evaluation-mode",
        ("D5",),
        GONE,
        (f"{NETWORKS}::test_what_dropout_draws_depends_on_the_seed_and_the_update_alone[ppo]",),
    ),
    Guard(
        "hooks-cannot-write-metrics",
        ("F4",),
        GONE,
        (f"{TRAINER}::test_metrics_that_a_hook_writes_are_an_error_and_not_lost",),
    ),
    Guard(
        "unscaled-bytes-stay-unscaled",
        ("D6",),
        swap("see_previous, scaled", "see_previous"),
        (
            "tests/training/test_old_runs.py"
            "::test_run_that_learned_from_unscaled_bytes_goes_on_and_acts_with_unscaled_bytes",
        ),
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
        (f"{RESUME}::test_a_signal_saves_and_ends_and_the_run_goes_on_later[2-130]",),
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
        (f"{ROWS}::test_a_hang_or_an_exception_costs_a_row_too[raises]",),
    ),
    Guard(
        "a-row-that-begins-an-episode-is-no-step",
        ("B4",),
        GONE,
        (f"{COLLECTOR}::test_row_that_begins_an_episode_is_never_learned_from",),
    ),
    Guard(
        "an-action-without-an-outcome-is-not-learned-from",
        ("B4",),
        GONE,
        (f"{TEAMS}::test_an_action_whose_outcome_is_not_known_is_not_learned_from",),
    ),
    Guard(
        "final-states-are-kept",
        ("B4",),
        GONE,
        (f"{CENTRAL}::test_the_state_of_a_step_that_was_lost_is_the_one_before",),
    ),
    Guard(
        "opponents-rows-are-not-learned-from",
        ("B4",),
        GONE,
        (f"{TEAMS}::test_what_past_versions_do_is_not_learned_from",),
    ),
    Guard(
        "nobody-looks-at-who-is-not-there",
        ("B4",),
        GONE,
        (f"{TEAMS}::test_a_team_is_shown_those_who_act",),
    ),
    Guard(
        "a-lost-worker-costs-one-row",
        ("G7",),
        GONE,
        (f"{ROWS}::test_a_worker_that_dies_in_a_row_costs_that_row[3]",),
    ),
    Guard(
        "a-row-restarts-the-deadline",
        ("G7",),
        swap("monotonic_ns()", "words[_ROW_AT]"),
        (f"{ROWS}::test_a_slow_rollout_is_no_hang",),
    ),
    Guard(
        "workers-are-told-to-stop",
        ("G7",),
        instead("pass"),
        (f"{ROWS}::test_a_stop_is_answered_within_a_row",),
    ),
    Guard(
        "rows-of-the-replaced-begin-anew",
        ("G7",),
        instead("lost[row, mine] = True"),
        (f"{ROWS}::test_what_a_worker_does_after_its_deadline_leaves_no_mark",),
    ),
    Guard(
        "a-rollout-cut-short-needs-a-reset",
        ("G7",),
        instead("pass"),
        (f"{ROWS}::test_an_interrupt_after_a_worker_was_replaced_needs_a_reset",),
    ),
    Guard(
        "a-policys-actions-are-as-it-said",
        ("G7",),
        GONE,
        (f"{ROWS}::test_a_policy_that_misbehaves_in_a_worker_is_named_and_a_reset_helps[one for all]",),
    ),
    Guard(
        "one-that-was-ended-is-not-asked",
        ("G7",),
        ALWAYS,
        (f"{ROWS}::test_an_interrupt_in_the_middle_of_a_replacement_leaves_what_can_be_closed[in workers]",),
    ),
    Guard(
        "a-message-has-a-deadline",
        ("G7",),
        instead("pass"),
        (f"{ROWS}::test_a_worker_stopped_between_its_word_and_its_message_is_no_hang[in workers]",),
    ),
    Guard(
        "restarts-outlive-their-worker",
        ("G7",),
        GONE,
        (f"{ROWS}::test_what_befell_a_worker_s_envs_before_it_died_is_accounted_for",),
    ),
    Guard(
        "a-lost-episode-is-dropped",
        ("G10",),
        instead("lost: set[int] = set()"),
        (f"{WHOLE}::test_a_worker_killed_in_an_episode_costs_its_envs_episodes_and_others_are_drawn[7-process-2]",),
    ),
    Guard(
        "a-lost-share-is-drawn-again",
        ("G10",),
        GONE,
        (f"{WHOLE}::test_a_worker_that_plays_by_itself_and_is_lost_costs_its_share_and_others_are_drawn[dies-6]",),
    ),
    Guard(
        "a-lost-step-is-no-step",
        ("G10",),
        GONE,
        (f"{WHOLE}::test_a_worker_killed_in_an_episode_costs_its_envs_episodes_and_others_are_drawn[7-process-2]",),
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
        (f"{RESUME}::test_a_killed_run_ends_as_if_nothing_had_happened[collect130-learn11]",),
    ),
    Guard(
        "noise-as-it-was-at-the-mark",
        ("D5", "A14"),
        swap("_marked_noise", "_noise.bit_generator.state"),
        (f"{RESUME}::test_a_signal_saves_and_ends_and_the_run_goes_on_later[2-130]",),
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
        (f"{MARKS}::test_a_worker_lost_while_its_envs_are_put_back_is_named_and_the_run_goes_on[restore die]",),
    ),
    Guard(
        "marked-states-are-copies",
        ("G8",),
        swap("deepcopy(self._saved_states())", "self._saved_states()"),
        (f"{MARKS}::test_a_hook_that_fails_inside_a_rollout_costs_that_rollout_only[serial]",),
    ),
    Guard(
        "a-worker-lost-in-a-save-is-replaced",
        ("G8",),
        ALWAYS,
        (f"{MARKS}::test_a_worker_lost_while_its_envs_are_saved_costs_their_episodes_only[save die]",),
    ),
    Guard(
        "a-rollout-that-cannot-be-left-is-filled",
        ("G8", "A14"),
        NEVER,
        (f"{MARKS}::test_a_stop_waits_for_the_rollout_where_they_are_not",),
    ),
    Guard(
        "no-checkpoint-of-two-moments",
        ("G8",),
        NEVER,
        (f"{MARKS}::test_where_states_take_too_long_nothing_is_saved_inside_a_rollout_and_the_loss_is_told",),
    ),
    Guard(
        "a-target-that-was-reached-stays-reached",
        ("D5",),
        GONE,
        (f"{EVALUATIONS}::test_a_run_killed_when_it_had_reached_its_target_goes_no_further",),
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
        ("tests/training/test_evaluations.py::test_few_episodes_on_many_envs_leave_every_env_with_a_state",),
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
        (f"{EVALUATIONS}::test_seeds_that_fail_every_time_are_told_and_the_others_count",),
    ),
    Guard(
        "an-episode-that-failed-does-not-count",
        ("G9",),
        NEVER,
        (f"{EVALUATIONS}::test_seeds_that_fail_every_time_are_told_and_the_others_count",),
    ),
    Guard(
        "nobody-pays-for-a-neighbour",
        ("G9",),
        NEVER,
        (f"{EVALUATION_ENVS}::test_nobody_pays_for_a_neighbour_that_has_killed_their_worker[4-1]",),
    ),
    Guard(
        "no-older-figure-after-a-failed-evaluation",
        ("G9",),
        instead("self._evaluated_at = self.clock.env_steps"),
        (f"{EVALUATIONS}::test_a_last_evaluation_that_fails_leaves_no_older_figure[given up]",),
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
        (f"{EVALUATIONS}::test_an_evaluation_has_as_many_restarts_as_the_run",),
    ),
    Guard(
        "decisions-are-replayed",
        ("D5",),
        NEVER,
        (f"{SCALING}::test_a_resumed_run_follows_what_was_written[120]",),
    ),
    Guard(
        "a-change-of-envs-counts-once-it-is-made",
        ("D5",),
        GONE,
        (f"{SCALING}::test_a_resumed_run_follows_what_was_written[360]",),
    ),
    Guard(
        "a-change-of-envs-can-be-stopped",
        ("D5",),
        GONE,
        (f"{SCALING}::test_stopped_while_envs_are_changed_it_is_saved_as_it_was_before",),
    ),
    Guard(
        "no-episode-is-played-again",
        ("D5",),
        instead("self.envs.begin_at([0] * count)"),
        (f"{SCALING}::test_an_env_that_comes_back_goes_on_with_another_episode",),
    ),
    Guard(
        "differences-are-told",
        ("D6",),
        GONE,
        (f"{TRAINER}::test_going_on_with_other_settings_is_told",),
    ),
    Guard(
        "an-edited-executor-is-used",
        ("D6",),
        swap("changed &", "given.keys() &"),
        (f"{TRAINER}::test_an_executor_that_is_edited_in_the_config_is_used_and_changes_no_bit",),
    ),
    Guard(
        "an-edited-setting-is-used",
        ("D6",),
        swap("given.keys() | edited", "given.keys()"),
        (f"{TRAINER}::test_a_setting_that_is_edited_in_the_config_is_used_where_it_was_changed_before",),
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
            f"{TRAINER}::test_networks_of_another_size_are_refused_in_words",
        ),
    ),
    Guard(
        "the-config-is-the-runs-own",
        ("E3",),
        instead(
            "from multiverse.training.opening import checkpoint_of\n"
            """return checkpoint_of(run).manifest["config"]"""
        ),
        (f"{TRAINER}::test_a_checkpoint_names_no_code",),
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
