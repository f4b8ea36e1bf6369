"""Guards of values that envs return: rows B1 to B3."""

from __future__ import annotations

from tests.faults.mutations.guard import ALWAYS, GONE, NEVER, Guard, instead, swap

VALUES = "tests/faults/test_bad_values.py"
BOUNDS = "tests/faults/test_bounds.py"
MASKS = "tests/training/test_action_masks.py"
BAD_OBSERVATIONS = "tests/vector/test_bad_observations.py"
RAISES = f"{VALUES}::test_raise_mode_names_env_path_value_and_reproduction"
TRUNCATES = f"{VALUES}::test_truncate_mode_ends_the_episode_without_the_bad_step"
PICTURES = f"{VALUES}::test_small_and_large_observations_are_checked_alike"
TRAINER, LOADING = "tests/training/test_trainer.py", "tests/training/test_loading.py"
CLIPS = f"{VALUES}::test_clip_mode_uses_the_nearest_valid_value"

GUARDS = (
    # -- B1 to B3: bad values --------------------------------------------------------------------------------
    Guard(
        "every-step-is-looked-at",
        ("B1", "B2"),
        NEVER,
        (f"{RAISES}[serial-nan_observation-next_step]", f"{RAISES}[forkserver-inf_reward-same_step]"),
    ),
    Guard(
        "observations-are-looked-at",
        ("B1",),
        instead("return True"),
        (f"{RAISES}[serial-huge_observation-next_step]", f"{RAISES}[forkserver-nan_observation-disabled]"),
    ),
    Guard(
        "a-single-number-is-looked-at",
        ("B1",),
        instead("return lambda: True"),
        ("tests/executors/test_value_guard.py::test_non_finite_scalar_observation_is_found_at_episode_end",),
    ),
    Guard(
        "large-observations-are-looked-at",
        ("B1",),
        swap("scratch.tobytes() == values.tobytes() and dot(zeros) == 0", "True"),
        (f"{PICTURES}[serial-100-nan_observation]", f"{PICTURES}[forkserver-100-inf_observation]"),
    ),
    Guard(
        "last-observations-are-looked-at",
        ("B1",),
        GONE,
        (
            f"{VALUES}::test_final_observation_is_checked_before_the_next_reset_overwrites_it[forkserver]",
            f"{VALUES}::test_final_observation_is_clipped[serial]",
        ),
    ),
    Guard(
        "masks-are-zeros-and-ones",
        ("B1",),
        NEVER,
        (f"{MASKS}::test_wrong_mask_of_one_agent_is_an_error_that_names_env_and_step[2-Doors-large bytes]",),
    ),
    Guard(
        "a-mask-leaves-an-action-open",
        ("B1",),
        NEVER,
        (
            f"{MASKS}::test_wrong_mask_of_one_agent_is_an_error_that_names_env_and_step[2-DoorsAsked-nothing open]",
            f"{MASKS}::test_mask_of_an_acting_agent_with_nothing_open_is_an_error_that_names_it[TeamDoors-info]",
        ),
    ),
    Guard(
        "a-closed-end-is-valued",
        ("B1",),
        instead("return masks"),
        (f"{MASKS}::test_mask_of_an_episodes_last_row_may_have_nothing_open[info-truncated-dqn]",),
    ),
    Guard(
        "an-info-is-a-dict",
        ("B1",),
        NEVER,
        ("tests/faults/test_lost_again.py::test_info_that_is_not_a_dict_is_named[True-step-None-serial]",),
    ),
    Guard(
        "first-observations-are-looked-at",
        ("B1",),
        GONE,
        (
            f"{VALUES}::test_observation_of_a_reset_is_checked[forkserver]",
            "tests/faults/test_lost_again.py::"
            "test_bad_first_observation_after_a_truncated_episode_is_not_delivered[forkserver]",
        ),
    ),
    Guard(
        "no-broadcasting",
        ("B1",),
        NEVER,
        (f"{BAD_OBSERVATIONS}::test_observation_of_wrong_shape_or_kind_names_its_env",),
    ),
    Guard(
        "no-casts-of-another-kind",
        ("B1",),
        swap('"same_kind"', '"unsafe"'),
        (f"{BAD_OBSERVATIONS}::test_values_that_an_integer_space_cannot_hold_are_named",),
    ),
    Guard(
        "a-truncated-row-shows-what-was-before",
        ("B1",),
        GONE,
        (f"{TRUNCATES}[serial-nan_observation-next_step]", f"{TRUNCATES}[forkserver-inf_observation-disabled]"),
    ),
    Guard(
        "a-clipped-value-is-inside",
        ("B1", "B3"),
        GONE,
        (
            f"{CLIPS}[serial-huge_observation-next_step]",
            f"{BOUNDS}::test_clip_mode_uses_the_nearest_bound[forkserver]",
        ),
    ),
    Guard(
        "rewards-are-looked-at",
        ("B2",),
        swap("not sum(map(abs, rewards)) <= most", "False"),
        (f"{RAISES}[serial-nan_reward-next_step]", f"{TRUNCATES}[forkserver-inf_reward-same_step]"),
    ),
    Guard(
        "rewards-beside-one-array-are-looked-at",
        ("B2",),
        swap("not sum(map(abs, rewards)) <= most or ", ""),
        (f"{PICTURES}[serial-1-nan_reward]", f"{PICTURES}[forkserver-100-nan_reward]"),
    ),
    Guard(
        "what-overflows-float32-is-not-learned-from",
        ("B1", "B2"),
        swap("np.abs(values) <= self._most", "np.isfinite(values)"),
        ("tests/executors/test_value_guard.py::test_float64_beyond_float32_is_bad_only_for_float32_learners[2]",),
    ),
    Guard(
        "evaluations-refuse-what-overflows-float32",
        ("B1", "B2"),
        swap("float32=True", "float32=False"),
        (f"{TRAINER}::test_float64_value_beyond_float32_fails_an_evaluation_and_names_its_env",),
    ),
    Guard(
        "statistics-stay-finite",
        ("B5",),
        NEVER,
        ("tests/learning/test_normalizers.py::test_statistics_refuse_non_finite_values_and_do_not_change[nan]",),
    ),
    Guard(
        "a-diverged-state-is-not-saved",
        ("B5",),
        NEVER,
        (f"{TRAINER}::test_non_finite_learned_values_end_the_run_and_are_in_no_checkpoint",),
    ),
    Guard(
        "a-diverged-checkpoint-is-passed-over",
        ("B5", "D3"),
        NEVER,
        (f"{TRAINER}::test_diverged_checkpoint_of_an_earlier_version_is_skipped_by_name",),
    ),
    Guard(
        "a-diverged-best-is-set-aside",
        ("B5", "D3"),
        NEVER,
        (f"{TRAINER}::test_diverged_checkpoint_of_an_earlier_version_is_skipped_by_name",),
    ),
    Guard(
        "act-refuses-what-is-not-finite",
        ("B1",),
        ALWAYS,
        (f"{LOADING}::test_non_finite_values_are_refused_before_they_reach_the_memory",),
    ),
    Guard(
        "no-agent-acts-before-all-are-checked",
        ("B1",),
        GONE,
        (f"{LOADING}::test_non_finite_observation_of_one_agent_changes_no_memory",),
    ),
    Guard(
        "a-clipped-reward-is-nothing",
        ("B2",),
        GONE,
        (f"{CLIPS}[serial-nan_reward-next_step]", f"{CLIPS}[forkserver-inf_reward-disabled]"),
    ),
    Guard(
        "outside-is-told",
        ("B3",),
        GONE,
        (f"{BOUNDS}::test_out_of_bounds_leaf_is_named_by_its_path[forkserver]",),
    ),
    Guard(
        "outside-is-told-once",
        ("B3",),
        ALWAYS,
        (f"{BOUNDS}::test_out_of_bounds_observation_is_reported_once_per_env_and_counted_each_step[serial-raise]",),
    ),
)
