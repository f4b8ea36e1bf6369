"""`num_envs="auto"`: envs are added and removed between rollouts, and every decision is recorded; a resumed run,
also one that was killed, follows the record and measures nothing twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.ipc.interrupts import StopWaiting
from multiverse.training import scaling
from multiverse.training.advice import Advice
from multiverse.training.config.budget import Clock
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.scaling import FILE, Decision, Scaling, Throughput, next_to_try
from multiverse.training.session import Session
from tests.forked_programs import ForkedPrograms
from tests.training.small_runs import SMALL, digest, lines_of
from tests.training.test_advice import Advised, Saying, returns

SETTINGS: dict[str, Any] = {**SMALL, "num_envs": "auto", "steps_per_env": 5, "checkpoint_every_s": 0.0}
SETTINGS |= {"env_steps": 600, "keep_checkpoints": 100, "log_every": 1}
RATES = {8: 100.0, 16: 150.0, 32: 151.0}  # 16 is chosen, after three decisions
PLENTY = (1, 100)
LOADED = (__name__,)


class Measured(mv.Hook):
    """Throughput and memory as the test sets them, in place of measurements."""

    def __init__(self, rates: Any = RATES, memory: tuple[int, int] = PLENTY) -> None:
        self.rates, self.memory, self.asked = rates, memory, 0

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        trainer.scaling.throughput, trainer.scaling.memory = self.rate, lambda: self.memory

    def rate(self, clock: Clock, num_envs: int) -> float | None:
        self.asked += 1
        return None if num_envs not in self.rates else float(self.rates[num_envs])


def train(where: Path, hook: mv.Hook | None = None, env: Any = "CartPole-v1", **settings: Any) -> mv.Run:
    return mv.train(env, run_dir=where, hooks=[hook or Measured()], **{**SETTINGS, **settings})


def counts(run: mv.Run | Path) -> list[tuple[int, int]]:
    """(env steps, number of envs from there on)."""
    path = run if isinstance(run, Path) else run.path
    return [(line["env_steps"], line["num_envs"]) for line in map(json.loads, (path / FILE).read_text().splitlines())]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> mv.Run:
    return train(tmp_path_factory.mktemp("whole") / "run")


# -- deciding ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rates", "may_grow", "chosen"),
    [
        ({8: 100}, True, (16, False)),
        ({8: 100, 16: 120}, True, (32, False)),
        ({8: 100, 16: 120, 32: 121}, True, (16, True)),
        ({8: 100, 16: 120}, False, (16, True)),
        ({8: 100, 16: 104}, True, (4, False)),  # a twentieth at least
        ({8: 100}, False, (4, False)),
        ({8: 100, 16: 90, 4: 110}, True, (2, False)),
        ({8: 100, 16: 90, 4: 110, 2: 120}, True, (1, False)),
        ({8: 100, 16: 90, 4: 110, 2: 120, 1: 140}, True, (1, True)),
        ({8: 100, 16: 90, 4: 110, 2: 111}, True, (4, True)),
        ({8: 100, 16: 90, 4: 99}, True, (8, True)),
    ],
)
def test_num_envs_grows_or_shrinks_while_that_is_faster(
    rates: dict[int, float], may_grow: bool, chosen: tuple[int, bool]
) -> None:
    assert next_to_try(rates, may_grow) == chosen


def test_throughput_counts_collecting_and_learning_after_a_first_rollout() -> None:
    rate, clock, found = Throughput(), Clock(env_steps=1_000), []
    for _ in range(5):
        found.append(rate(clock, 8))
        clock.env_steps += 100
        clock.spend(act=1.0, step=2.0, learn=1.0, evaluate=50.0)
    assert found == [None, None, None, 25.0, 25.0]
    assert rate(clock, 16) is None, "of other envs nothing is known"


def test_short_time_gives_no_measurement() -> None:
    rate, clock = Throughput(), Clock()
    for _ in range(20):
        assert rate(clock, 8) is None
        clock.env_steps += 100
        clock.spend(step=0.1)


# -- in a run ----------------------------------------------------------------------------------------------------
def test_every_decision_is_applied_and_written(whole: mv.Run) -> None:
    assert counts(whole) == [(40, 16), (120, 32), (280, 16)]
    lines = lines_of(whole.path, "metrics.jsonl")
    assert [(line["env_steps"], line["num_envs"]) for line in lines if "num_envs" in line][:5] == [
        (40, 8), (120, 16), (280, 32), (360, 16), (440, 16),
    ]  # fmt: skip
    events = [json.loads(line) for line in (whole.path / FILE).read_text().splitlines()]
    assert [(line["tried"], line["env_steps_per_s"], line["settled"]) for line in events] == [
        (8, 100.0, False), (16, 150.0, False), (32, 151.0, True),
    ]  # fmt: skip
    assert whole.summary["env_steps"] == 600 and whole.summary["failures"]["steps_used"] == 600


def test_no_episode_is_played_twice(whole: mv.Run) -> None:
    episodes = [(line["env_id"], line["episode"]) for line in lines_of(whole.path, "episodes.jsonl")]
    assert len(set(episodes)) == len(episodes) and {env_id for env_id, _ in episodes} > {0, 9}
    seeds = [line["seed"] for line in lines_of(whole.path, "episodes.jsonl")]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.fault("D5")
def test_env_added_again_continues_with_another_episode(tmp_path: Path) -> None:
    """Envs 4 to 7 are removed and come back: truncated episodes are not begun again."""
    run = train(tmp_path / "run", Measured({8: 100, 16: 90, 4: 90}), env_steps=800)
    assert counts(run) == [(40, 16), (120, 4), (140, 8)]
    episodes = [(line["env_id"], line["episode"]) for line in lines_of(run.path, "episodes.jsonl")]
    assert len(set(episodes)) == len(episodes)
    assert not {(i, k) for i in range(4) for k in (0, 1)} & {*episodes}, "cut at 40 and 120 env steps"
    assert not {(i, 0) for i in range(4, 8)} & {*episodes}


@pytest.mark.fault("D5")
@pytest.mark.parametrize("executor", ["thread", "process", "hybrid"])
def test_executor_does_not_change_the_run(executor: str, whole: mv.Run, tmp_path: Path) -> None:
    run = train(tmp_path / "run", executor=executor, workers=2)
    assert digest(run) == digest(whole) and counts(run) == counts(whole)
    assert run.summary["plan"]["executor"] == executor and run.summary["failures"]["steps_used"] == 600


@pytest.mark.fault("D5")
@pytest.mark.parametrize("at", [40, 120, 280, 360])
def test_resumed_run_follows_the_written_decisions(at: int, whole: mv.Run, tmp_path: Path) -> None:
    """Whatever a measurement would give today. Records after the checkpoint are only in the file."""
    run = train(tmp_path / "run")
    hook = Measured({8: 1, 16: 1, 32: 100})
    mv.resume(run.path / "checkpoints" / f"step-{at:012d}", hooks=[hook])
    assert hook.asked == 0
    assert digest(run) == digest(whole) and counts(run) == counts(whole)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert lines_of(run.path, name) == lines_of(whole.path, name)


def test_open_decisions_are_taken_after_a_resume(tmp_path: Path) -> None:
    run = train(tmp_path / "run", env_steps=120)
    assert counts(run) == [(40, 16)]
    mv.resume(run, env_steps=600, hooks=[Measured({16: 150, 32: 151})])  # 8 is known
    assert counts(run) == [(40, 16), (200, 32), (360, 16)]


KILLED = """
import json, os, signal, sys
import multiverse as mv
from multiverse.training.session import Session
from tests.training.test_scaling import Measured

home, settings, where, at = json.loads(sys.argv[1])
before, calls = getattr(Session, where), [0]

def dying(*arguments):
    calls[0] += 1
    if calls[0] == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return before(*arguments)

setattr(Session, where, dying)
mv.train("CartPole-v1", run_dir=home, hooks=[Measured()], **settings)
"""


@pytest.mark.fault("D5")
@pytest.mark.parametrize(("where", "at"), [("change_num_envs", 2), ("learned", 3), ("_mark", 5)])
def test_killed_run_resumes_exactly(
    where: str, at: int, whole: mv.Run, tmp_path: Path, programs: ForkedPrograms
) -> None:
    home = tmp_path / "run"
    done = programs.run(KILLED, json.dumps([str(home), SETTINGS, where, at]))
    assert done.returncode == -signal.SIGKILL, done.stderr
    mv.resume(home, hooks=[Measured()])
    assert digest(home) == digest(whole) and counts(home) == counts(whole)


@pytest.mark.fault("D5")
def test_run_stopped_while_envs_change_is_saved_as_before_the_change(
    whole: mv.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, calls = Session._opened, []

    def stopped(self: Session, count: int, *options: Any) -> Any:
        calls.append(count)
        if len(calls) == 3:
            raise StopWaiting
        return opened(self, count, *options)

    monkeypatch.setattr(Session, "_opened", stopped)
    run = train(tmp_path / "run", checkpoint_every_s=1_000.0)
    assert calls == [8, 16, 32] and run.summary["env_steps"] == 120
    mv.resume(run, hooks=[Measured()])
    assert digest(run) == digest(whole) and counts(run) == counts(whole)


def test_partial_line_is_ignored(tmp_path: Path) -> None:
    run = train(tmp_path / "run", env_steps=120)
    with (run.path / FILE).open("a") as file:
        file.write('{"env_steps": 120, "tri')
    mv.resume(run, env_steps=600, hooks=[Measured()])
    assert counts(run) == [(40, 16), (200, 32), (360, 16)]


def test_malformed_line_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"env_steps": 40, "tried": 8, "num_envs": "many"}\n')
    with pytest.raises(MultiverseError, match=r"num_envs\.jsonl.*"):
        Scaling(tmp_path)


# -- memory ------------------------------------------------------------------------------------------------------
def test_num_envs_does_not_grow_beyond_the_memory(tmp_path: Path) -> None:
    run = train(tmp_path / "run", Measured({8: 100, 4: 90}, memory=(10, 9)))
    assert counts(run) == [(40, 4), (60, 8)]
    assert "too little memory for more" in (run.path / FILE).read_text()


def test_num_envs_is_halved_if_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "MEMORY_CHECK_S", 0.0)
    run = train(tmp_path / "run", Measured(memory=(100, 9)), env_steps=150)
    assert counts(run) == [(40, 4), (60, 2), (70, 1)], "and it is not tried to grow again"
    last = json.loads((run.path / FILE).read_text().splitlines()[-1])
    assert last["env_steps_per_s"] is None and "memory" in last["why"] and last["settled"]


def test_memory_of_the_run_is_measured() -> None:
    held, left = scaling.held_and_available()
    assert 2**20 < held < 2**40 and left > 0


# -- who else is there -------------------------------------------------------------------------------------------
def test_advice_is_passed_on_to_new_envs(tmp_path: Path) -> None:
    """Including envs that save their state: new envs do not have the advice given to earlier ones."""
    hooks = [Measured(), Advice(Saying({"rewards": {"step": 3}}), every_episodes=4)]
    options = {**SETTINGS, "env_steps": 1_600, "steps_per_env": 10}
    run = mv.train(Advised, run_dir=tmp_path / "run", hooks=hooks, **options)
    assert counts(run) == [(80, 16), (240, 32), (560, 16)]
    assert set(returns(run)[-20:]) == {24.0}


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("mpe2.simple_spread_v3:parallel_env", {"memory": "gru"}),
        ("pettingzoo.classic.connect_four_v3:env", {"opponents": 2, "opponent_every": 1}),
    ],
)
def test_recurrent_teams_and_self_play_support_auto_num_envs(
    env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = train(tmp_path / "run", env=env, env_steps=200, hidden_sizes=(8,), **settings)
    assert counts(run) == [(40, 16), (120, 32)] and run.summary["env_steps"] == 280
    before = digest(run)
    mv.resume(run.path / "checkpoints" / f"step-{40:012d}", hooks=[Measured({})])
    assert digest(run) == before


def test_algorithms_with_data_per_env_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"num_envs='auto': dqn keeps data of each env.*give a number"):
        mv.train("CartPole-v1", "dqn", num_envs="auto", run_dir=tmp_path / "run", preset=False)


def test_num_envs_is_a_positive_integer_or_auto() -> None:
    assert TrainConfig(num_envs="auto").num_evaluation_envs == 10
    for wrong in (0, "many", 1.5):
        with pytest.raises(MultiverseError, match="num_envs"):
            mv.train("CartPole-v1", num_envs=wrong)


def test_decision_for_zero_envs_is_refused() -> None:
    with pytest.raises(MultiverseError, match="num_envs"):
        Decision(0, 8, 1.0, 0, False, "")
