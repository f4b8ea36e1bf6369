"""A rollout collected in workers: a failure in a row costs only that row, and is accounted for as in lock-step."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.errors import EnvFailed, ReplyTimeout, RequestPending, WorkerDied
from multiverse.executors.executor import Executor
from multiverse.executors.process import Processes
from multiverse.executors.supervisor import Supervisor
from multiverse.ipc.interrupts import StopRequests
from multiverse.ipc.mailbox import _WORKER_ASLEEP
from multiverse.rollouts.rollout import LOST
from tests.faults.row_envs import (
    FailsOnce,
    FaultyPolicy,
    HangsUntilGivenUp,
    RaisesFromStep,
    RaisesInSecondStep,
    Slow,
    StoppedBeforeItsMessage,
    WaitsInSecondStep,
)
from tests.rollouts.test_collector import STEPS, collecting, fields_for, policy_for
from tests.vector.configurations import make_with_fields
from tests.vector.conftest import worker_processes


def made(tmp_path: Path, at: int, deed: str, where: str, first: Any = FailsOnce, **limits: Any) -> Any:
    """Envs 0 and 1 in the first worker, 2 and 3 in the second: env 1 fails."""
    makers = [first, lambda: FailsOnce(str(tmp_path / f"note-{where}"), at, deed), FailsOnce, FailsOnce]
    settings = {"autoreset": "same_step", "infos": False, "copy": False, "on_failure": "restart", **limits}
    return make_with_fields(
        makers, executor="process", workers=2, reset_plan=mv.DerivedSeeds(4),
        fields=fields_for(4) if where == "in workers" else None, **settings,
    )  # fmt: skip


def rollouts(envs: Any, count: int = 2) -> tuple[list[dict[str, Any]], Any, Any]:
    """Collect `count` rollouts; return them, the accounts and the episodes."""
    collector, rollout, _ = collecting(envs)
    policy, rng, found, episodes = policy_for(envs), np.random.default_rng(1), [], []
    for _ in range(count):
        result = collector.collect([policy], rng)
        assert result is not None
        episodes += result.episodes
        steps, slots, finals = rollout.ends()
        names = ("rewards", "terminated", "truncated", "valid", "starts")
        arrays = {name: getattr(rollout, name).copy() for name in names}
        actions = np.where(rollout.valid, rollout.actions, -1)  # lost rows are not compared
        found.append({**arrays, "actions": actions, "steps": steps, "slots": slots, "finals": finals[()],
                      "seen": rollout.observations[()].copy(), "last": rollout.last[()].copy()})  # fmt: skip
    failures = envs.failures
    assert failures.steps_sent == failures.steps_used + failures.steps_discarded == count * STEPS * 4
    return found, failures, episodes


@pytest.mark.fault("G7")
@pytest.mark.parametrize("row", range(STEPS))
def test_worker_death_in_a_row_costs_only_that_row(row: int, tmp_path: Path) -> None:
    """In whichever row, everything is as if the envs had been stepped from the caller."""
    found = []
    for where in ("in workers", "in the caller"):
        with made(tmp_path, row + 1, "dies", where) as envs:
            found.append(rollouts(envs))
    (in_workers, accounts, episodes), (here, expected, expected_episodes) = found
    for ours, theirs in zip(in_workers, here):
        for name, rows in ours.items():
            assert (rows == theirs[name]).all(), name
    assert episodes == expected_episodes and accounts == expected and accounts.worker_restarts == 1
    lost = [(t, s) for rollout in in_workers for t, s in zip(*np.nonzero(~rollout["valid"]))]
    assert len(lost) == 2 and {s for _, s in lost} == {0, 1}


@pytest.mark.fault("G7")
@pytest.mark.parametrize("deed", ["hangs", "raises"])
def test_hang_or_exception_costs_one_row(deed: str, tmp_path: Path) -> None:
    with made(tmp_path, 3, deed, "in workers", timeouts=mv.Timeouts(reply_s=1.0)) as envs:
        (first, _), failures, episodes = rollouts(envs)
    lost = 2 if deed == "hangs" else 1  # the worker's envs, or the one
    assert (~first["valid"]).sum() == lost and not first["valid"][2, 1]
    assert failures.timeouts == (deed == "hangs") and failures.worker_restarts == (deed == "hangs")
    assert failures.env_restarts == (deed == "raises") and failures.steps_discarded == lost
    assert [e.env_id for e in episodes if e.lost] == ([0, 1] if deed == "hangs" else [1])


@pytest.mark.fault("G7")
def test_restarts_before_a_worker_died_are_accounted_for(tmp_path: Path) -> None:
    """Env 0 raises in the second row and is restarted; in the fifth its worker dies before it can report that."""
    accounts = []
    for where in ("in workers", "in the caller"):
        first = lambda where=where: FailsOnce(str(tmp_path / f"first-{where}"), 2, "raises")  # noqa: E731
        with made(tmp_path, 5, "dies", where, first) as envs:
            (rollout, _), failures, _ = rollouts(envs)
            accounts.append((failures, (~rollout["valid"]).sum()))
    assert accounts[0] == accounts[1]
    assert (accounts[0][0].env_restarts, accounts[0][0].steps_discarded) == (1, 3)


@pytest.mark.fault("G7")
def test_writes_of_a_worker_past_its_deadline_do_not_affect_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes when it is about to be replaced; the replacement fills the lost row again."""
    given_up, note = Supervisor.allow, tmp_path / "raised"

    def allow(*arguments: Any) -> None:
        (tmp_path / "go").touch()
        deadline = time.monotonic() + 20
        while not envs.views[LOST][3].any() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert envs.views[LOST][3].any()  # the lost worker has begun to write its next row
        given_up(*arguments)

    monkeypatch.setattr(Supervisor, "allow", allow)
    makers = [lambda: HangsUntilGivenUp(str(note), 4, "raises"), FailsOnce]
    with make_with_fields(makers, executor="process", workers=1, reset_plan=mv.DerivedSeeds(4), autoreset="same_step",
                     infos=False, on_failure="restart", fields=fields_for(2),
                     timeouts=mv.Timeouts(reply_s=1.0)) as envs:  # fmt: skip
        collector, rollout, _ = collecting(envs)
        result = collector.collect([policy_for(envs)], np.random.default_rng(1))
        assert result is not None and result.lost_steps == 2
        assert np.flatnonzero(~rollout.valid.all(axis=1)).tolist() == [2]
        assert (rollout.rewards[3:] == 1.0).all()


@pytest.mark.fault("G7")
def test_interrupt_after_a_replacement_requires_a_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the replacement and its next row, which must not count as a row of the next rollout."""
    recover = Executor.recover

    def interrupted(*arguments: Any) -> None:
        recover(*arguments)
        raise KeyboardInterrupt

    with made(tmp_path, 3, "dies", "in workers") as envs:
        collector, rollout, _ = collecting(envs)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Executor, "recover", interrupted)
            collector.collect([policy_for(envs)], np.random.default_rng(1))
        with pytest.raises(RequestPending, match="reset"):
            collector.collect([policy_for(envs)], np.random.default_rng(1))
        envs.reset()
        collector.begin()
        assert collector.collect([policy_for(envs)], np.random.default_rng(1)) is not None and rollout.valid.all()
        failures = envs.failures
        assert failures.steps_sent == failures.steps_used + failures.steps_discarded


@pytest.mark.fault("G7", "A1")
@pytest.mark.parametrize("where", ["in workers", "in the caller"])
def test_vector_env_interrupted_during_a_replacement_can_be_closed(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost worker died asleep: close must not try to wake it."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Processes, "start_again", interrupted)
    with made(tmp_path, 0, "", where) as envs:
        collector, _, _ = collecting(envs)
        while not envs._executor.workers[0].mailbox._words[_WORKER_ASLEEP]:
            time.sleep(0.01)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(KeyboardInterrupt):
            collector.collect([policy_for(envs)], np.random.default_rng(1))
        with pytest.raises(RequestPending, match="being replaced: close"):
            envs.reset()
        envs.close()
    assert worker_processes() == []


@pytest.mark.fault("G7")
@pytest.mark.parametrize("executor", ["process", "hybrid", "thread", "serial"])
def test_restarts_of_a_cut_rollout_are_counted_and_later_ones_reported(executor: Any, tmp_path: Path) -> None:
    """Env 0 raises in the rollout that its policy ends, and again in a step of the caller."""
    makers = [lambda: RaisesInSecondStep(str(tmp_path / "note")), FailsOnce]
    with make_with_fields(makers, executor=executor, workers=None if executor == "serial" else 1, infos=False,
                     reset_plan=mv.DerivedSeeds(4), fields=fields_for(2), autoreset="same_step",
                     on_failure="restart") as envs:  # fmt: skip
        collector, _, _ = collecting(envs)
        with pytest.raises((EnvFailed, ZeroDivisionError), match="as requested"):
            collector.collect([faulty_policy(envs, "raises")], np.random.default_rng(1))
        assert envs.failures.env_restarts == 1
        envs.reset()
        (tmp_path / "note").unlink()
        results = [envs.step(np.zeros(2, np.int64))[4] for _ in range(2)]
        assert results[1]["_restarted"].tolist() == [True, False]
        assert envs.failures.env_restarts == 2


def faulty_policy(envs: Any, how: str) -> FaultyPolicy:
    good = policy_for(envs)
    policy = FaultyPolicy(good._features, good._layers, "tanh", good._head, version=3)
    policy.how = how
    return policy


@pytest.mark.fault("G7")
@pytest.mark.parametrize("how", ["raises", "one for all", "two for each", "NaN"])
def test_failing_policy_in_a_worker_is_named_and_cleared_by_reset(how: str, tmp_path: Path) -> None:
    with made(tmp_path, 0, "", "in workers") as envs:
        collector, rollout, _ = collecting(envs)
        with pytest.raises(EnvFailed, match=r"raised in a rollout: .*(as requested|the policy's act)"):
            collector.collect([faulty_policy(envs, how)], np.random.default_rng(1))
        with pytest.raises(RequestPending):
            envs.step(np.zeros(4, np.int64))
        envs.reset()
        collector.begin()
        assert collector.collect([policy_for(envs)], np.random.default_rng(1)) is not None and rollout.valid.all()
        assert envs.failures.worker_restarts == 0


@pytest.mark.fault("G7", "A3")
@pytest.mark.parametrize("where", ["in workers", "in the caller", "raise"])
def test_worker_stopped_between_its_word_and_its_message_is_a_timeout(where: str, tmp_path: Path) -> None:
    fields = None if where == "in the caller" else fields_for(2)
    makers, on_failure = (
        [lambda: StoppedBeforeItsMessage(str(tmp_path / "note")), FailsOnce],
        "raise" if where == "raise" else "restart",
    )
    with make_with_fields(makers, executor="process", workers=2, reset_plan=mv.DerivedSeeds(4), autoreset="same_step",
                     on_failure=on_failure, fields=fields, timeouts=mv.Timeouts(reply_s=1.0)) as envs:  # fmt: skip
        collector, rollout, _ = collecting(envs)
        if where == "raise":
            with pytest.raises(ReplyTimeout, match="SIGSTOP"):
                collector.collect([policy_for(envs)], np.random.default_rng(1))
            return
        result = collector.collect([policy_for(envs)], np.random.default_rng(1))
        assert result is not None and result.lost_steps == 1
        assert np.argwhere(~rollout.valid).tolist() == [[6 if fields else 3, 0]]
        assert (envs.failures.timeouts, envs.failures.worker_restarts) == (1, 1)


@pytest.mark.fault("G7")
@pytest.mark.parametrize(("deed", "error"), [("dies", WorkerDied), ("hangs", ReplyTimeout), ("raises", EnvFailed)])
def test_failure_without_restarts_is_an_error_and_stops_the_others(deed: str, error: Any, tmp_path: Path) -> None:
    with made(tmp_path, 3, deed, "in workers", on_failure="raise", timeouts=mv.Timeouts(reply_s=1.0)) as envs:
        collector, _, _ = collecting(envs)
        with pytest.raises(error, match="env 1" if deed == "raises" else "step"):
            collector.collect([policy_for(envs)], np.random.default_rng(1))
        failures = envs.failures
        assert failures.steps_sent == failures.steps_used + failures.steps_discarded


@pytest.mark.fault("G7")
def test_slow_rollout_is_no_timeout(tmp_path: Path) -> None:
    """The deadline is that of a step: a rollout may take longer."""
    with make_with_fields(Slow, 2, "process", workers=2, autoreset="same_step", infos=False, fields=fields_for(2),
                          reset_plan=mv.DerivedSeeds(4), timeouts=mv.Timeouts(reply_s=0.5)) as envs:  # fmt: skip
        collector, _, _ = collecting(envs)
        assert collector.collect([policy_for(envs)], np.random.default_rng(1)) is not None
        assert envs.failures.timeouts == 0


@pytest.mark.fault("G7")
def test_stop_request_is_answered_within_a_row(tmp_path: Path) -> None:
    """The worker ends after its current row when it is stopped; the vector env stays usable."""
    with make_with_fields(WaitsInSecondStep, 2, "process", workers=1, autoreset="same_step", infos=False,
                     reset_plan=mv.DerivedSeeds(4), env_kwargs={"note": str(tmp_path / "note")},
                     fields=fields_for(2)) as envs:  # fmt: skip
        collector, _, _ = collecting(envs)

        def asked() -> bool:
            if not (tmp_path / "note").exists():
                return False
            (tmp_path / "go").touch()  # the env waits for it, in its second step
            return True

        with StopRequests():  # as the trainer waits
            assert collector.collect([policy_for(envs)], np.random.default_rng(1), asked) is None
        assert envs.episode_lengths.max() <= 3 and envs.episode_counts.tolist() == [0, 0]  # of seven steps
        envs.reset()
        assert envs.episode_lengths.tolist() == [0, 0]


@pytest.mark.fault("F2")
@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("executor", ["serial", "thread", "hybrid"])
def test_steps_of_cut_rows_are_sent_once_and_none_is_used(executor: Any, at: int) -> None:
    """The row in which it failed was sent too, and steps that were restarted in it count once."""
    options: dict[str, Any] = {
        "autoreset": "same_step",
        "on_failure": mv.FailureOptions(on_failure="restart", restarts_per_minute=1),
    }
    options |= {"workers": None if executor == "serial" else 1, "fields": fields_for(4)}
    with make_with_fields(functools.partial(RaisesFromStep, at=at), 4, executor, **options) as envs:
        collector, _, _ = collecting(envs)
        with pytest.raises(EnvFailed, match="given up"):
            collector.collect([policy_for(envs)], np.random.default_rng(1))
        found = envs.failures
        assert found.steps_used == 0 and found.steps_sent == found.steps_discarded
        assert executor == "hybrid" or found.steps_sent == 4 * at
