"""Guards of what envs return: rows B1 to B3."""

from __future__ import annotations

from tests.faults.mutations.guard import Guard

VALUES = "tests/faults/test_bad_values.py"
BOUNDS = "tests/faults/test_bounds.py"
BAD_OBSERVATIONS = "tests/contract/test_bad_observations.py"
RAISES = f"{VALUES}::test_raise_names_the_env_the_place_the_value_and_what_reproduces_it"
TRUNCATES = f"{VALUES}::test_truncate_ends_the_episode_without_the_bad_step"
PICTURES = f"{VALUES}::test_small_and_large_observations_that_are_one_array_are_looked_at_alike"
CLIPS = f"{VALUES}::test_clip_puts_it_at_the_nearest_number_that_is_one"

GUARDS = (
    # -- B1 to B3: bad values --------------------------------------------------------------------------------
    Guard(
        "every-step-is-looked-at",
        ("B1", "B2"),
        "executors/env_range.py",
        "if self._guard is not None and self._guard.look():",
        "if False:",
        (f"{RAISES}[serial-nan_observation-next_step]", f"{RAISES}[forkserver-inf_reward-same_step]"),
    ),
    Guard(
        "observations-are-looked-at",
        ("B1",),
        "executors/value_guard.py",
        "                return found == expected\n",
        "                return True\n",
        (f"{RAISES}[serial-huge_observation-next_step]", f"{RAISES}[forkserver-nan_observation-disabled]"),
    ),
    Guard(
        "large-observations-are-looked-at",
        ("B1",),
        "executors/value_guard.py",
        "scratch.tobytes() == values.tobytes() and dot(zeros) == 0",
        "True",
        (f"{PICTURES}[serial-100-nan_observation]", f"{PICTURES}[forkserver-100-inf_observation]"),
    ),
    Guard(
        "last-observations-are-looked-at",
        ("B1",),
        "executors/env_range.py",
        "            self._guard.check_end(i)\n",
        "            pass\n",
        (
            f"{VALUES}::test_an_episodes_last_observation_is_looked_at_before_the_next_one_takes_its_row[forkserver]",
            f"{VALUES}::test_an_episodes_last_observation_is_clipped_too[serial]",
        ),
    ),
    Guard(
        "first-observations-are-looked-at",
        ("B1",),
        "executors/env_range.py",
        "            self._guard.check_start(i)\n        return info\n",
        "            pass\n        return info\n",
        (f"{VALUES}::test_the_observation_of_a_reset_is_looked_at_too[forkserver]",),
    ),
    Guard(
        "the-observation-after-a-cut-is-looked-at",
        ("B1",),
        "executors/env_range.py",
        "                    self._guard.check_start(i)\n",
        "                    pass\n",
        (
            "tests/faults/test_lost_again.py::"
            "test_a_bad_first_observation_after_a_truncated_episode_is_not_delivered[forkserver]",
        ),
    ),
    Guard(
        "no-broadcasting",
        ("B1",),
        "memory/space_rows.py",
        "        if array.shape != shape:\n            raise BadValue(",
        "        if False:\n            raise BadValue(",
        (f"{BAD_OBSERVATIONS}::test_an_observation_of_the_wrong_shape_or_kind_names_its_env",),
    ),
    Guard(
        "no-casts-of-another-kind",
        ("B1",),
        "memory/space_rows.py",
        'copy(target, array, casting="same_kind")',
        'copy(target, array, casting="unsafe")',
        (f"{BAD_OBSERVATIONS}::test_numbers_that_an_integer_space_cannot_hold_are_named",),
    ),
    Guard(
        "a-truncated-row-shows-what-was-before",
        ("B1",),
        "executors/env_range.py",
        "        self._last_rows.restore(env_id)\n        self._cut_episode(i, BAD_VALUE)",
        "        self._cut_episode(i, BAD_VALUE)",
        (f"{TRUNCATES}[serial-nan_observation-next_step]", f"{TRUNCATES}[forkserver-inf_observation-disabled]"),
    ),
    Guard(
        "a-clipped-value-is-inside",
        ("B1", "B3"),
        "executors/value_guard.py",
        "np.clip(row, self.low[i : i + 1], self.high[i : i + 1], out=row)",
        "pass",
        (
            f"{CLIPS}[serial-huge_observation-next_step]",
            f"{BOUNDS}::test_clip_brings_it_back_to_the_nearest_bound[forkserver]",
        ),
    ),
    Guard(
        "rewards-are-looked-at",
        ("B2",),
        "executors/value_guard.py",
        "return total - total != 0.0 or not all(",
        "return not all(",
        (f"{RAISES}[serial-nan_reward-next_step]", f"{TRUNCATES}[forkserver-inf_reward-same_step]"),
    ),
    Guard(
        "rewards-beside-one-array-are-looked-at",
        ("B2",),
        "executors/value_guard.py",
        "return total - total != 0.0 or not clean()",
        "return not clean()",
        (f"{PICTURES}[serial-1-nan_reward]", f"{PICTURES}[forkserver-100-nan_reward]"),
    ),
    Guard(
        "a-clipped-reward-is-nothing",
        ("B2",),
        "executors/value_guard.py",
        "        rewards[~np.isfinite(rewards)] = 0.0\n",
        "        pass\n",
        (f"{CLIPS}[serial-nan_reward-next_step]", f"{CLIPS}[forkserver-inf_reward-disabled]"),
    ),
    Guard(
        "outside-is-told",
        ("B3",),
        "executors/value_guard.py",
        "                self.warnings.append(",
        "                (lambda _: None)(",
        (f"{BOUNDS}::test_a_part_outside_its_box_is_named_by_its_place[forkserver]",),
    ),
    Guard(
        "outside-is-told-once",
        ("B3",),
        "executors/value_guard.py",
        "            if not self._out_of_bounds[i]:\n",
        "            if True:\n",
        (f"{BOUNDS}::test_leaving_the_box_is_told_once_per_env_and_counted_at_every_step[serial-raise]",),
    ),
)
