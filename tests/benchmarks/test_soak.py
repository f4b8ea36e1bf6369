"""The soak test: a short one passes, and its auditor notices wrong rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.soaking.audit import Auditor
from benchmarks.soaking.fates import NAN_REWARD, RAISE, Fate, Schedule, Soaked, action_of
from benchmarks.soaking.resources import Memory
from benchmarks.soaking.rollouts import Rollouts, fields_for
from benchmarks.soaking.signals import Hits
from multiverse.rollouts.episodes import Collected
from multiverse.rollouts.rollout import Rollout
from tests.vector.configurations import make_with_fields

ROOT = Path(__file__).parents[2]
WORKER_PID = 10


def test_short_soak_passes_all_checks(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/soak.py", "--seconds", "8", "--seed", "3", "--reply-timeout-s", "2"]
    found = subprocess.run(
        [*command, "--json", str(tmp_path / "soak.json")], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert found.returncode == 0, found.stdout + found.stderr
    summary = json.loads((tmp_path / "soak.json").read_text())
    assert summary["held"] and all(check["held"] for check in summary["checks"].values())
    assert summary["figures"]["worker_restarts"] >= 4
    assert summary["figures"]["whole_episodes_compared"] > 20
    assert summary["figures"]["worker_restarts in rollouts"] >= 4
    assert summary["figures"]["whole_episodes_compared in rollouts"] > 20


def test_reused_pid_is_counted_as_another_process(tmp_path: Path) -> None:
    hits, stat = Hits(proc=tmp_path), tmp_path / "7" / "stat"
    stat.parent.mkdir()
    for started in ("100", "100", "250"):
        stat.write_text(f"7 (a ) b) S {'0 ' * 18}{started} 0")
        hits.killed.add(hits.process(7))
    assert len(hits) == 2
    stat.unlink()
    assert hits.process(7) in hits, "a process that has ended is the one that had the pid last"


# -- the auditor -----------------------------------------------------------------------------------------------------
class OneEnv:
    """One env with correct rows, which can be changed before the auditor sees them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fate: Fate) -> None:
        monkeypatch.setattr(Schedule, "fate", lambda schedule, env_id, episode: fate)
        self.hits, schedule = Hits(), Schedule(1, spared=0)
        self.auditor = Auditor(schedule, 1, 1, self.hits)
        self.env, request = Soaked(harmless=True), schedule(0, 0)
        self.observation, _ = self.env.reset(seed=request.seed, options=request.options)
        self.auditor.begin(self.observation[None], np.array([0]))
        self.steps = 0

    def step(self, change: Callable[[dict[str, Any]], Any] = lambda row: None) -> None:
        self.steps += 1
        (action,) = self.auditor.actions([0], [WORKER_PID])
        assert action == action_of(0, 0, self.steps)
        observation, reward, terminated, truncated, _ = self.env.step(action)
        row = {"observation": observation, "reward": reward, "ended": (terminated, truncated), "infos": {}}
        change(row)
        result = (row["observation"][None], [row["reward"]], [row["ended"][0]], [row["ended"][1]], row["infos"])
        self.auditor.take([0], result, np.array([0]))
        self.observation = row["observation"]

    def lose(self, marker: str = "restarted", **changes: Any) -> None:
        """A row that reports its step as lost, in the documented form."""
        last = self.observation
        promised = {"observation": last, "reward": 0.0, "ended": (False, True), "infos": {f"_{marker}": [True]}}
        self.step(lambda row: row.update(promised, **changes))


def test_correct_episode_gives_no_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneEnv(monkeypatch, Fate(length=3))
    for _ in range(3):
        one.step()
    assert (one.auditor.complaints, one.auditor.whole_episodes, one.auditor.rows_equal) == ([], 1, 4)


def test_changed_bit_in_an_episode_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneEnv(monkeypatch, Fate(length=3))
    one.step()
    one.step(lambda row: row.update(observation=np.nextafter(row["observation"], np.float32(9))))
    one.step()
    assert "differs from a clean run" in one.auditor.complaints[0]


def test_unfinished_episode_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneEnv(monkeypatch, Fate(length=9))
    one.step(lambda row: row.update(reward=row["reward"] + 1))
    one.auditor.end()
    assert "differs from a clean run" in one.auditor.complaints[0]


def test_lost_row_without_a_fault_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneEnv(monkeypatch, Fate(length=9))
    one.step()
    one.lose()
    assert "no fault had happened" in one.auditor.complaints[0]


@pytest.mark.parametrize("changes", [{"reward": 1.0}, {"ended": (False, False)}, {"observation": np.ones(4, "f4")}])
def test_lost_row_must_have_the_guaranteed_contents(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    one = OneEnv(monkeypatch, Fate(length=9))
    one.step()
    one.hits.killed.add(one.hits.process(WORKER_PID))
    one.lose(**changes)
    assert "lost row" in one.auditor.complaints[0]


def test_good_row_where_a_fault_was_due_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneEnv(monkeypatch, Fate(length=9, what=RAISE, step=2))
    one.step()
    one.step()
    assert "raise was due, and a good row came" in one.auditor.complaints[0]


def test_faults_are_counted_and_uncertain_ones_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    for hit in (False, True):
        one = OneEnv(monkeypatch, Fate(length=9, what=NAN_REWARD, step=1))
        if hit:
            one.hits.killed.add(one.hits.process(WORKER_PID))
        one.lose("restarted" if hit else "bad_value")
        assert one.auditor.complaints == []
        assert (one.auditor.met[NAN_REWARD], one.auditor.unsure[NAN_REWARD]) == (not hit, hit)


# -- the auditor of rollouts -----------------------------------------------------------------------------------------
SPOILT: dict[str, tuple[Callable[[Rollout, Collected], Any], str]] = {
    "nothing": (lambda rollout, collected: None, ""),
    "a bit": (lambda rollout, collected: _next(rollout.observations[()], (7, 1, 0)), "differs from a clean run"),
    "what is seen last": (lambda rollout, collected: _next(rollout.last[()], (1, 0)), "seen last is another"),
    "a reward": (lambda rollout, collected: _next(rollout.rewards, (3, 0)), "instead of"),
    "an action": (
        lambda rollout, collected: rollout.actions.__setitem__((3, 0), 6 - rollout.actions[3, 0]),
        "policy's",
    ),
    "an end": (lambda rollout, collected: rollout.truncated.__setitem__((0, 1), True), "instead of"),
    "a final observation": (lambda rollout, collected: _next(rollout.finals[()], (8, 0, 0)), "final observation"),
    "a lost row": (lambda rollout, collected: rollout.valid.__setitem__((2, 1), False), "lost for no reason"),
    "a count": (lambda rollout, collected: setattr(collected, "lost_steps", 1), "1 lost steps, 0 rows"),
    "an episode": (lambda rollout, collected: collected.episodes.pop(), "instead of"),
    "a return": (
        lambda rollout, collected: collected.episodes.append(replace(collected.episodes.pop(), returned=0.5)),
        "instead of",
    ),
}


def _next(array: np.ndarray, where: Any) -> None:
    array[where] = np.nextafter(array[where], np.float32(999))


@pytest.mark.parametrize("what", SPOILT)
def test_every_corruption_of_a_rollout_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout of two correct envs, whose episodes have nine steps, changed before the auditor sees it."""
    monkeypatch.setattr(Schedule, "fate", lambda schedule, env_id, episode: Fate(length=9))
    schedule, (spoil, complaint) = Schedule(1, spared=0), SPOILT[what]
    with make_with_fields(Soaked, 2, "serial", reset_plan=schedule, autoreset="same_step", infos=False, copy=False,
                     fields=lambda described: fields_for(described, 2)) as envs:  # fmt: skip
        rollouts = Rollouts(envs, schedule, 2, Hits())
        rollouts.begin()
        collected = rollouts.collect()
        spoil(rollouts.rollout, collected)
        rollouts.check(collected)
        auditor = rollouts.auditor
        if not complaint:
            assert (auditor.complaints, auditor.rows_equal, auditor.whole_episodes) == ([], 80, 8)
        else:
            assert complaint in " ".join(auditor.complaints)


def test_growing_memory_is_noticed_after_the_warm_up() -> None:
    steady = Memory(0, [(float(s), 100 << 20) for s in range(20)])
    growing = Memory(0, [(float(s), (100 + s) << 20) for s in range(20)])
    warming_up = Memory(0, [(float(s), min(s, 5) << 20) for s in range(20)])
    assert abs(steady.growth_mib()) < 0.01 and abs(warming_up.growth_mib()) < 0.01
    assert growing.growth_mib() == pytest.approx(13)
