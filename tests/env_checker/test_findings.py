"""Every finding: an env with this error has the finding, with its evidence; a healthy env has none."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from multiverse.adapters.env_source import recipes
from multiverse.env_checker.catalogue import CATALOGUE
from multiverse.env_checker.examine import CHECKS, perform
from multiverse.env_checker.laboratory import Laboratory
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import Settings
from tests.env_checker import broken_envs as broken
from tests.env_checker import broken_teams as teams

SETTINGS = Settings(seed=3, steps=300, compared_steps=120)
BUILDING, SPACES, RESET, STEPS, ORDER, OWNERSHIP, SEEDS, SHARING, SERIALIZATION, LEAKS, MEMORY, COST = CHECKS
Env = functools.partial


def findings_of(check: str, factory: Any) -> list[Finding]:
    (recipe,) = recipes(factory, 1, None, None)
    with Laboratory(recipe) as laboratory:
        findings: list[Finding] = laboratory.run(perform, check, SETTINGS, timeout_s=60)
    return findings


def with_space(space: Any, observation: Any) -> Any:
    return Env(broken.WithSpace, space, observation)


BOX = spaces.Box(-1, 1, (3,), np.float32)
PAIR = spaces.Dict({"eye": BOX, "ear": spaces.Discrete(3)})
FINE = np.zeros(3, np.float32)
UNLIMITED = spaces.Box(-np.inf, np.inf, (2,), np.float32)

CASES: list[tuple[str, str, Any, str]] = [
    # -- building and closing
    ("build-failed", BUILDING, broken.CannotBeBuilt, r"OSError: no licence \(.*broken_envs.py, line \d+\)"),
    ("build-again-failed", BUILDING, broken.OnePerProcess, "address already in use"),
    ("same-env-again", BUILDING, broken.SameAgain(), "the same Healthy"),
    ("not-an-env", BUILDING, broken.not_an_env, "builtins.object"),
    ("not-an-env", BUILDING, Env(gym.make_vec, "CartPole-v1", 2), "which is a vector env"),
    ("close-raises", BUILDING, broken.CannotBeClosed, "the window is gone"),
    ("close-twice", BUILDING, broken.ClosesOnce, "closed already"),
    # -- spaces
    ("space-missing", SPACES, broken.NoSpace, "observation_space is None"),
    ("space-bounds", SPACES, broken.CrossedBounds, r"observation_space\[1\]: low is 2.0, high is 1.0"),
    ("spaces-differ", SPACES, broken.GrowingSpace, r"Discrete\(1\), and Discrete\(2\)"),
    ("action-space-sample", SPACES, Env(broken.WithActions, broken.Unsure(3)), "is not in"),
    ("action-unbounded", SPACES, Env(broken.WithActions, UNLIMITED), "from -inf to inf"),
    ("image-space", SPACES, with_space(spaces.Box(0, 1, (32, 32, 3), np.float32), None), "is float32"),
    ("image-space", SPACES, with_space(spaces.Box(0, 1, (3, 32, 32), np.uint8), None), "0 to 1, not 0 to 255"),
    ("space-float64", SPACES, with_space(spaces.Box(-1, 1, (3,), np.float64), None), r"float64\[3\]"),
    ("space-of-objects", SPACES, with_space(spaces.Dict({"words": spaces.Text(5)}), None), r"\['words'\] is Text"),
    # -- reset
    ("reset-raises", RESET, broken.ResetRaises, r"reset\(\) raised ZeroDivisionError: no level"),
    ("reset-raises", RESET, broken.ResetNeedsOptions, r"reset\(options={}\) raised KeyError"),
    ("reset-signature", RESET, broken.ResetTakesNothing, r"reset\(seed=3\)"),
    ("reset-signature", RESET, broken.ResetTakesNoOptions, r"reset\(seed=3, options=None\)"),
    ("reset-return", RESET, broken.OldReset, "returned ndarray"),
    ("reset-return", RESET, broken.LongReset, "a tuple of 3"),
    ("info-not-dict", RESET, broken.ListInfo, "reset's info is list"),
    ("space-replaced", RESET, broken.ReplacesSpace, r"was Box\(-1.* and is Box\(-2"),
    # -- steps
    ("step-raises", STEPS, broken.StepRaises, r"between two walls \(.*\), in step \d+ after reset\(seed=3\)"),
    ("step-raises", STEPS, broken.StepExits, "SystemExit: 3"),
    ("step-return", STEPS, broken.OldStep, "a tuple of 4"),
    ("step-return", STEPS, broken.StepReturnsList, "returned list"),
    ("info-not-dict", STEPS, broken.StepListInfo, "step's info is NoneType"),
    ("reward-not-number", STEPS, Env(broken.OddReward, None), "NoneType"),
    ("reward-not-number", STEPS, Env(broken.OddReward, np.zeros(2)), "ndarray"),
    ("reward-not-number", STEPS, Env(broken.OddReward, "1.0"), "the text '1.0'"),
    ("reward-array", STEPS, Env(broken.OddReward, np.ones(1)), r"shape \(1,\)"),
    ("reward-not-finite", STEPS, Env(broken.OddReward, float("nan")), r"nan, in step \d+ after reset\(seed=3\)"),
    ("end-not-bool", STEPS, Env(broken.OddEnd, None), "truncated is NoneType"),
    ("end-not-bool-like", STEPS, Env(broken.OddEnd, 0), "truncated is int: 0, in step 1 .* observations"),
    ("never-ends", STEPS, broken.NeverEnds, "in 300 steps"),
    ("time-limit-as-terminated", STEPS, broken.ClockTerminates, "30 episodes ended after exactly 10 steps"),
    ("step-before-reset", ORDER, broken.NeedsNoReset, "before the first"),
    ("step-after-end", ORDER, broken.GoesOnAfterEnd, "after an end"),
    # -- observations
    ("observation-keys", RESET, with_space(PAIR, {"eye": FINE}), "has no key 'ear'; it has 'eye'"),
    ("observation-keys", RESET, with_space(PAIR, FINE), "is ndarray, its space is a Dict with 'ear', 'eye'"),
    ("observation-keys", RESET, with_space(spaces.Tuple([BOX, BOX]), (FINE,)), "tuple of 1, its space is a Tuple of 2"),
    ("observation-keys-extra", RESET, with_space(PAIR, {"eye": FINE, "ear": 1, "nose": 0}), "has 'nose'"),
    ("observation-type", STEPS, Env(broken.OddObservation, [0.0, 0.0, 0.0]), "is a list"),
    (
        "observation-shape",
        STEPS,
        Env(broken.OddObservation, np.zeros((1,), np.float32)),
        r"\(1,\), its space says \(3,",
    ),
    ("observation-shape", RESET, with_space(PAIR, {"eye": np.zeros(2), "ear": 1}), r"the observation\['eye'\] has"),
    ("observation-dtype", RESET, with_space(spaces.Box(0, 9, (3,), np.int8), FINE), "float32, its space says int8"),
    ("observation-dtype", RESET, with_space(BOX, np.array(["a", "b", "c"])), "its space is Box float32"),
    ("observation-dtype-cast", STEPS, Env(broken.OddObservation, np.zeros(3)), "is float64, its space says float32"),
    (
        "observation-not-finite",
        STEPS,
        Env(broken.OddObservation, np.array([0, np.nan, 0], np.float32)),
        r"the observation\[1\] is nan \(1 of 3 values\), in step 4",
    ),
    ("observation-not-finite", RESET, with_space(BOX, np.array([1e300, 0, 0])), r"\[0\] is 1e\+300"),
    ("observation-out-of-bounds", STEPS, Env(broken.OddObservation, FINE + 2), r"is 2.0 .*outside \[-1.0, 1.0\]"),
    (
        "observation-not-in-space",
        RESET,
        with_space(spaces.Discrete(3), 7),
        r"is 7, its space is Discrete\(3\)",
    ),
    ("observation-not-in-space", RESET, with_space(spaces.Text(3), 7), "is 7, which"),
    # -- several agents
    ("possible-agents", BUILDING, teams.Nameless, "Nameless has no possible_agents"),
    ("agent-unknown", RESET, teams.Guest, r"the env has agent 'fly', .*\['ant', 'bee'\], after reset\(\)"),
    ("agent-missing", RESET, teams.Blind, "no observation of bee, which is in agents"),
    ("agent-missing", STEPS, teams.Unpaid, "bee has an observation and is not in rewards, in step 1 after"),
    ("agent-space-new", RESET, teams.NewSpaces, r"action_space\('ant'\) returns a new object"),
    ("ended-agent-stays", STEPS, teams.Undead, r"ant has ended and is still in agents, in step \d+ after reset"),
    ("action-mask", RESET, Env(teams.Masked, [1, 1]), r"mask\['ant'\] has shape \(2,\), and there are 3 actions"),
    ("action-mask", STEPS, Env(teams.Masked, [0, 0, 0]), r"leaves no action open.*in reset\(seed=3\)"),
    ("action-mask", STEPS, Env(teams.Masked, [0, 2, 0]), r"other values than 0 and 1: \[0, 2, 0\]"),
    ("agents-change", STEPS, teams.Fleeting, r"bee leaves before .*; bee joins during an episode \(\d+ times"),
    ("rewards-cancel", STEPS, teams.ZeroSum, "have the same sum in all 300 steps"),
    ("rewards-cancel", STEPS, teams.Game, "have the same sum"),
    ("not-checked", ORDER, teams.Team, "not open"),
    ("reward-not-finite", STEPS, teams.NaNForTheBee, r"the reward\['bee'\] is nan, in step 1"),
    ("step-return", STEPS, teams.OneRewardForAll, "step returned float as rewards, not a dict by agent"),
    ("step-raises", STEPS, teams.Unburied, "has ended and stays in agents"),
    ("observation-out-of-bounds", STEPS, teams.LateObservation, r"the observation\['bee'\]\[0\] is 3.0"),
    (
        "seed-ignored",
        SEEDS,
        teams.UnseededTeam,
        r"both with reset\(seed=3\) .* differ after reset: observation\['ant'\]",
    ),
    ("instances-share-state", SHARING, teams.SharedTeam, "two envs stepped in turn differ"),
    # -- ownership of arrays
    ("observation-reused", OWNERSHIP, broken.ReusesObservation, r"returned in reset\(seed=3\) and changed in step 1"),
    ("observation-is-state", OWNERSHIP, broken.ShowsState, "at step 1: observation"),
    ("info-reused", OWNERSHIP, broken.ReusesInfo, "the same object"),
    ("info-reused", OWNERSHIP, broken.ReusesInfoArray, r"info\['path'\]"),
    ("action-changed", OWNERSHIP, broken.ClipsInPlace, r"the action\["),
    ("action-kept", OWNERSHIP, broken.KeepsAction, "at step 2"),
    # -- seeds
    (
        "seed-ignored",
        SEEDS,
        broken.IgnoresSeed,
        r"both with reset\(seed=3\) and the same actions, differ at step 1: obs",
    ),
    ("global-rng", SEEDS, broken.GlobalNumpy, r"after np.random.seed\(\) and random.seed\(\) they are equal"),
    ("global-rng", SEEDS, broken.GlobalPython, "reward is"),
    ("state-leaks", SEEDS, broken.RemembersVelocity, "that was not finished"),
    ("state-leaks", SEEDS, broken.RemembersEnds, "that had ended"),
    ("infos-differ", SEEDS, broken.TellsTheTime, r"info\['now'\]"),
    ("seeds-alike", SEEDS, broken.OneSeedForAll, "seeds 3 to 8"),
    ("episodes-repeat", SEEDS, broken.KeepsSeed, "equal to it bit for bit"),
    ("seed-default", RESET, broken.SeedByDefault, r"reset\(seed=42\)"),
    ("no-randomness", SEEDS, broken.Clockwork, "all equal"),
    ("nondeterministic", SEEDS, "tests.env_checker.broken_envs:tests/Dice-v0", "two envs with seed 3"),
    # -- several in one process
    ("global-rng", SHARING, broken.SeedsGlobalNumpy, "they advanced np.random"),
    ("global-rng-touched", SHARING, broken.TouchesGlobal, "np.random"),
    ("instances-share-state", SHARING, broken.SharesBoard, r"\(env 0\) at step 1"),
    ("environment-changed", SHARING, broken.SetsVariable, "variable ENV_UNDER_TEST_LEVEL"),
    ("environment-changed", SHARING, broken.ChangesFolder, "→ /"),
    ("process-settings-changed", SHARING, broken.ChangesSettings, r"np.seterr .*\(SIGINT\)"),
    # -- sending to workers
    ("info-cannot-travel", SERIALIZATION, broken.InfoWithLock, r"info\['inner'\]\['lock'\] is a lock, in reset"),
    ("env-cannot-be-pickled", SERIALIZATION, broken.HoldsLock, "cannot pickle '_thread.lock'"),
    # -- leftovers
    ("threads-left", LEAKS, broken.LeavesThread, r"\d threads after \d × .*: telemetry"),
    ("processes-left", LEAKS, broken.LeavesProcess, r"\d processes after \d × "),
    ("descriptors-left", LEAKS, broken.LeavesFile, r"\d open files or sockets after \d × "),
    ("memory-grows", MEMORY, broken.Hoards, r"MB more after \d+ resets .* (79|8\d|9\d) kB an episode"),
    # -- cost
    ("cost", COST, broken.Healthy, r"step [\d.]+ (µs|ms), reset [\d.]+ (µs|ms) .*(serial|hybrid)"),
    ("reset-dominates", COST, broken.SlowReset, r"as long as \d+ steps"),
]

TESTED_ELSEWHERE = {"cut-short", "hangs", "crashes", "factory-cannot-travel", "checked-as-instance", "not-isolated"}
"""Below, and in test_check_env.py where it is the caller who finds them."""


@pytest.mark.parametrize(("code", "check", "factory", "seen"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_broken_env_has_its_finding_with_evidence(code: str, check: str, factory: Any, seen: str) -> None:
    findings = findings_of(check, factory)
    (finding,) = [finding for finding in findings if finding.code == code]
    assert re.search(seen, finding.seen), finding.seen
    assert finding.why and finding.remedy


@pytest.fixture(scope="module")
def healthy() -> Iterator[Laboratory]:
    (recipe,) = recipes(broken.Healthy, 1, None, None)
    with Laboratory(recipe) as laboratory:
        yield laboratory


@pytest.mark.parametrize("check", [name for name in CHECKS if name != COST])
def test_valid_env_has_no_findings(healthy: Laboratory, check: str) -> None:
    assert healthy.run(perform, check, SETTINGS, timeout_s=60) == []


@pytest.mark.parametrize("team", [teams.Team, teams.Game])
def test_valid_team_has_only_info_findings(team: Any) -> None:
    (recipe,) = recipes(team, 1, None, None)
    with Laboratory(recipe) as laboratory:
        found = {check: laboratory.run(perform, check, SETTINGS, timeout_s=60) for check in CHECKS}
    assert [one.code for findings in found.values() for one in findings if one.severity != "info"] == []
    assert {one.code for findings in found.values() for one in findings} - {"rewards-cancel"} == {"not-checked", "cost"}


@pytest.mark.parametrize("check", list(CHECKS))
def test_check_that_runs_out_of_time_states_where(healthy: Laboratory, check: str) -> None:
    (finding,) = healthy.run(perform, check, replace(SETTINGS, timeout_s=1e-9), timeout_s=60)
    assert finding.code == "cut-short" and f"the check of {check} was stopped while building" in finding.seen


def test_every_kind_of_finding_has_a_test() -> None:
    assert {code for code, *_ in CASES} | TESTED_ELSEWHERE == set(CATALOGUE)


def test_every_kind_of_finding_is_in_the_manual() -> None:
    manual = Path(__file__).parents[2].joinpath("docs", "check_env.md").read_text()
    rows = [
        f"| `{code}` | {entry.severity} | {entry.why.removesuffix('.')} | {entry.remedy.removesuffix('.')} |"
        for code, entry in CATALOGUE.items()
    ]
    assert [row for row in rows if row not in manual] == []
