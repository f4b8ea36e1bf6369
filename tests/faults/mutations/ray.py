"""Guards of workers on Ray: rows E5 and F1."""

from __future__ import annotations

from tests.faults.mutations.guard import GONE, NEVER, Guard, instead, swap

RAY = "tests/executors/test_ray.py"
ALL_BUT_ONE = (f"{RAY}::test_run_survives_the_loss_of_all_nodes_but_one",)
LOST = (f"{RAY}::test_loss_of_the_own_cluster_ends_the_run_and_the_next_starts_another",)

GUARDS = (
    # -- E5: clusters ----------------------------------------------------------------------------------------
    Guard(
        "a-cluster-of-our-own-stays-here",
        ("E5",),
        GONE,
        (f"{RAY}::test_own_cluster_is_local_and_ends_with_the_program",),
    ),
    Guard(
        "a-cluster-that-fails-to-start-leaves-nothing",
        ("E5",),
        NEVER,
        (f"{RAY}::test_failed_cluster_start_is_reported_and_leaves_nothing",),
    ),
    Guard(
        "only-our-own-cluster-is-ended",
        ("E5",),
        swap("_ours == os.getpid() and ", ""),
        (f"{RAY}::test_cluster_started_by_the_program_is_used_and_kept",),
    ),
    Guard(
        "one-cluster-a-program",
        ("E5",),
        NEVER,
        (f"{RAY}::test_second_cluster_in_one_program_is_refused",),
    ),
    Guard(
        "an-unreachable-cluster-is-named",
        ("E5",),
        swap("OSError", "ZeroDivisionError"),
        (f"{RAY}::test_cluster_that_does_not_answer_is_named_at_once",),
    ),
    Guard(
        "no-other-cluster-is-joined",
        ("E5",),
        NEVER,
        (f"{RAY}::test_envs_after_ray_shutdown_are_lost_and_no_other_cluster_is_joined",),
    ),
    Guard(
        "what-auto-leads-to-is-looked-at",
        ("E5",),
        NEVER,
        (f"{RAY}::test_auto_address_without_a_cluster_is_refused_at_once",),
    ),
    Guard("versions-that-differ-are-named", ("E5",), NEVER, (f"{RAY}::test_mismatched_versions_are_named",)),
    # -- F1: actors and nodes --------------------------------------------------------------------------------
    Guard(
        "what-a-cluster-lacks-is-refused",
        ("F1",),
        NEVER,
        (f"{RAY}::test_more_resources_than_the_cluster_has_are_refused",),
    ),
    Guard(
        "an-actor-ends-with-its-worker",
        ("F1",),
        GONE,
        (f"{RAY}::test_env_that_exits_ends_its_actor",),
    ),
    Guard("an-actor-is-ended", ("F1",), GONE, (f"{RAY}::test_closed_actors_are_gone",)),
    Guard(
        "a-lost-actor-hangs-up",
        ("F1",),
        instead("return number, data"),
        (f"{RAY}::test_actor_that_dies_while_building_is_named",),
    ),
    Guard(
        "a-cluster-outlives-the-thread-that-asks-for-it",
        ("F1",),
        instead("start()"),
        (f"{RAY}::test_own_cluster_outlives_the_thread_that_started_it",),
    ),
    Guard("no-restart-without-a-cluster", ("F1",), NEVER, LOST),
    Guard("a-dead-cluster-of-our-own-is-started-anew", ("F1",), NEVER, LOST),
    Guard("a-lost-node-is-done-without", ("F1",), NEVER, ALL_BUT_ONE),
    Guard("evaluations-ask-for-no-cores-of-their-own", ("F1",), swap("=0.0", "=1.0"), ALL_BUT_ONE),
    Guard(
        "bits-are-compared",
        ("F1",),
        swap("_bits(mine) != _bits(known)", "mine != known"),
        ("tests/ipc/test_mirror.py::test_changes_are_found_by_comparing_bits",),
    ),
)
