"""Guards of training: rows A14, B4, B5, D5, D6, E3 and F3."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, NEVER, Guard, before, instead, swap

RESUME = "tests/training/test_exact_resume.py"
TRAINER = "tests/training/test_trainer.py"
PPO = "tests/algorithms/test_ppo.py"
COLLECTOR = "tests/experience/test_collector.py"

GUARDS = (
    Guard(
        "signals-wait-for-a-save",
        ("A14",),
        before("self.raise_it()"),
        (f"{RESUME}::test_a_signal_saves_and_ends_and_the_run_goes_on_later[2-130]",),
    ),
    Guard(
        "lost-rows-are-not-valid",
        ("B4",),
        GONE,
        (f"{COLLECTOR}::test_a_lost_step_is_never_learned_from",),
    ),
    Guard(
        "gradients-are-finite",
        ("B5",),
        GONE,
        (f"{PPO}::test_five_in_a_row_end_the_run_with_the_last_good_weights[torch]",),
    ),
    Guard(
        "gradients-are-finite-in-numpy",
        ("B5",),
        GONE,
        (f"{PPO}::test_five_in_a_row_end_the_run_with_the_last_good_weights[numpy]",),
    ),
    Guard(
        "five-in-a-row-is-enough",
        ("B5",),
        NEVER,
        (f"{PPO}::test_five_in_a_row_end_the_run_with_the_last_good_weights",),
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
        GONE,
        (f"{RESUME}::test_an_env_that_cannot_be_replayed_is_named_and_its_episode_ends",),
    ),
    Guard(
        "differences-are-told",
        ("D6",),
        GONE,
        (f"{TRAINER}::test_going_on_with_other_settings_is_told",),
    ),
    Guard(
        "sizes-are-compared",
        ("D6",),
        NEVER,
        (f"{PPO}::test_weights_of_another_size_are_refused[torch]",),
    ),
    Guard(
        "sizes-are-compared-in-numpy",
        ("D6",),
        NEVER,
        (f"{TRAINER}::test_networks_of_another_size_are_refused_in_words",),
    ),
    Guard(
        "the-config-is-the-runs-own",
        ("E3",),
        instead("""found = checkpoint_of(run, which)
return saved_config(found.manifest["config"], "", algorithm), found"""),
        (f"{TRAINER}::test_a_checkpoint_names_no_code",),
    ),
    Guard(
        "rollouts-of-an-older-policy-are-refused",
        ("F3",),
        NEVER,
        (f"{PPO}::test_what_an_older_policy_did_is_refused",),
    ),
)
