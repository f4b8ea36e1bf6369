"""Evaluations of a run: equal after a resume; failures of their env cost evaluations, never the run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.core.seeds import evaluation_seed
from multiverse.training import env_states
from multiverse.training import evaluation as evaluation_module
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.env_states import affordable_episodes
from multiverse.training.evaluation import Evaluation
from multiverse.training.progress import summary_lines
from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.saved_runs import checkpoint_of
from tests.training.envs import Examined, Long, Saveable, Wanderer
from tests.training.small_runs import SMALL, digest, lines_of

RUN = {**SMALL, "num_envs": 2, "env_steps": 200, "evaluate_every": 50, "evaluation_episodes": 2}  # four evaluations


def evaluations_of(run: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(run, "metrics.jsonl") if "evaluation_mean_return" in line]


# -- the same after a resume -----------------------------------------------------------------------------------------
@pytest.mark.fault("D5")
def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", **RUN)
    files = {name: (run.path / name).read_bytes() for name in ("metrics.jsonl", "metrics.csv", "episodes.jsonl")}
    again = mv.resume(run)
    assert {name: (run.path / name).read_bytes() for name in files} == files
    same = ("evaluation", "evaluated_at", "best_return", "env_steps", "finished")
    assert {name: again.summary[name] for name in same} == {name: run.summary[name] for name in same}
    assert run.summary["evaluated_at"] == 200


class Killed(BaseException):
    """Like SIGKILL: not handled."""


@contextmanager
def killed_after_saving(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    save, calls = Checkpoints.save, [0]

    def dying(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        saved = save(*arguments, **named)
        if calls[0] == number:
            raise Killed
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", dying)
        with pytest.raises(Killed):
            yield


@contextmanager
def interrupted_in_evaluation(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C in that step of evaluations, counted over the run."""
    before, steps = evaluation_module.step_slots, [0]

    def looked_at(*arguments: Any) -> Any:
        steps[0] += 1
        if steps[0] == step:
            signal.raise_signal(signal.SIGINT)
        return before(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation_module, "step_slots", looked_at)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.fault("D5")
@pytest.mark.parametrize("executor", ["serial", "process"])
@pytest.mark.parametrize("when", ["after a save", "in an evaluation"])
def test_saveable_envs_have_equal_evaluations_after_a_resume(
    when: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**RUN, "evaluation_episodes": 5, "evaluation_envs": 2, "executor": executor, "checkpoint_every_s": 0.0}
    whole = mv.train(Wanderer, run_dir=tmp_path / "whole", **settings)
    assert len({line["evaluation_mean_return"] for line in evaluations_of(whole.path)}) > 1
    in_it = when == "in an evaluation"
    with interrupted_in_evaluation(100, monkeypatch) if in_it else killed_after_saving(3, monkeypatch):
        mv.train(Wanderer, run_dir=tmp_path / "run", **settings)
    run = mv.resume(tmp_path / "run", env=Wanderer)
    assert lines_of(run.path, "metrics.jsonl") == lines_of(whole.path, "metrics.jsonl")
    assert run.summary["best_return"] == whole.summary["best_return"] and digest(run.path) == digest(whole.path)


@pytest.mark.fault("D5")
def test_run_killed_after_reaching_its_target_goes_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**RUN, "env_steps": 100_000, "target_return": 5.0}
    with killed_after_saving(1, monkeypatch):
        mv.train("CartPole-v1", run_dir=tmp_path / "run", **settings)
    summary = mv.resume(tmp_path / "run").summary
    assert summary["env_steps"] == 50 and "reached a mean return" in summary["stopped"] and summary["finished"]
    assert len(evaluations_of(tmp_path / "run")) == 1


def test_raised_target_continues_the_run(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", **{**RUN, "target_return": 5.0})
    config = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(config.replace("target_return: 5.0", "target_return: 1000.0"))
    assert mv.resume(run).summary["env_steps"] == 200


# -- failures --------------------------------------------------------------------------------------------------------
@pytest.mark.fault("G9")
@pytest.mark.parametrize(("executor", "fault"), [("serial", "raise"), ("process", "raise"), ("process", "die")])
def test_failed_evaluation_env_is_rebuilt_for_the_next_evaluation(
    executor: str, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails in every episode of the first evaluation, and in none later."""
    kwargs = {"what": fault, "notes": str(tmp_path / "notes"), "numbers": [1, 2]}
    settings = {
        **RUN,
        "evaluation_envs": 1,
        "executor": executor,
        "workers": 1,
        "env_kwargs": kwargs,
        "restarts_per_minute": 1,
    }
    summary = mv.train(Examined, run_dir=tmp_path / "run", **settings).summary
    assert [line["env_steps"] for line in evaluations_of(tmp_path / "run")] == [100, 150, 200]
    assert summary["finished"] and summary["best_return"] is not None and summary["evaluation"]["episodes"] == 2
    failures = summary["evaluation_failures"]
    assert (failures["failed"], failures["env_restarts"] + failures["worker_restarts"]) == (1, 1)
    assert summary["failures"]["env_restarts"] == summary["failures"]["worker_restarts"] == 0
    results = [message for message in caplog.messages if "fail" in message or "restart" in message]
    assert results and all(message.startswith(("evaluation env 0 ", "evaluation: ")) for message in results)
    assert "the evaluation at 50 env steps failed" in caplog.text


@pytest.mark.fault("G9")
def test_evaluation_uses_the_restart_limit_of_the_run(tmp_path: Path) -> None:
    kwargs = {"what": "raise", "notes": str(tmp_path / "notes"), "numbers": [1, 2, 3, 4, 5]}
    settings = {**RUN, "env_steps": 50, "evaluation_episodes": 6, "env_kwargs": kwargs, "restarts_per_minute": 5}
    summary = mv.train(Examined, run_dir=tmp_path / "run", **settings).summary
    assert summary["evaluation"]["episodes"] == 1 and summary["evaluation"]["lost_episodes"] == 5
    assert summary["evaluation_failures"]["failed"] == 0 and summary["evaluation_failures"]["lost_episodes"] == 5
    assert summary["evaluation_failures"]["env_restarts"] == 5


@pytest.mark.fault("G9")
@pytest.mark.parametrize("episodes", [1, 2], ids=["every episode is lost", "given up"])
def test_failed_last_evaluation_reports_no_older_result(
    episodes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kwargs = {"what": "raise", "notes": str(tmp_path / "notes"), "numbers": [4 * episodes, 3 * episodes + 1]}
    settings = {
        **RUN,
        "evaluation_envs": 1,
        "evaluation_episodes": episodes,
        "env_kwargs": kwargs,
        "restarts_per_minute": 1,
    }
    run = mv.train(Examined, run_dir=tmp_path / "run", **settings)
    assert [line["env_steps"] for line in evaluations_of(run.path)] == [50, 100, 150]
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["finished"] and summary["evaluation"] is None and summary["evaluated_at"] is None
    assert summary["best_return"] is not None and summary["evaluation_failures"]["failed"] == 1
    result = "\n".join(summary_lines(run.summary))
    assert "Evaluation: none, the last one failed" in result and "evaluations failed 1" in result
    assert caplog.text.count("the evaluation at 200 env steps failed") == 1
    summary = mv.resume(run, env=Examined).summary  # which tries again
    assert summary["evaluation"]["episodes"] == episodes and summary["evaluated_at"] == 200
    assert [line["env_steps"] for line in evaluations_of(run.path)] == [50, 100, 150, 200]


@pytest.mark.fault("G9")
def test_evaluation_seeds_that_always_fail_are_reported_and_the_others_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seed = evaluation_seed(0, 1)
    settings = {**RUN, "env_kwargs": {"what": "raise", "seed": seed}, "restarts_per_minute": 1}
    run = mv.train(Examined, run_dir=tmp_path / "run", **settings)
    assert len(evaluations_of(run.path)) == 4 and run.summary["evaluation"]["episodes"] == 1
    assert run.summary["evaluation"]["lost_episodes"] == 1
    again = [message for message in caplog.messages if "as in the evaluation before" in message]
    assert len(again) == 3 and all(f"seed {seed}" in one and "evaluation_seed" in one for one in again)


@pytest.mark.fault("G9")
@pytest.mark.parametrize(
    ("fault", "more"),
    [("raise", {}), ("nan", {"on_bad_value": "truncate"}), ("die", {"executor": "process", "workers": 1})],
)
def test_separate_evaluation_fails_as_in_the_run(fault: str, more: dict[str, Any], tmp_path: Path) -> None:
    kwargs = {"what": fault, "seed": evaluation_seed(0, 1)}
    settings = {**RUN, "evaluate_every": 0, "evaluation_envs": 2, "env_kwargs": kwargs, **more}
    run = mv.train(Examined, run_dir=tmp_path / "run", **settings)
    found = mv.evaluate(run, env=Examined, episodes=2, seed=0)
    assert found.summary() == run.summary["evaluation"] and found.lost == (1,)


@pytest.mark.fault("G9")
def test_consecutive_failed_evaluations_are_reported_with_their_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = mv.train(Examined, run_dir=tmp_path / "run", **{**RUN, "env_kwargs": {"what": "raise"}})
    assert run.summary["evaluation"] is None and run.summary["evaluation_failures"]["failed"] == 4
    assert "the evaluation at 200 env steps failed, as did the 3 before on the same seeds" in caplog.text


@pytest.mark.fault("G9")
def test_episode_truncated_by_a_bad_value_does_not_count(tmp_path: Path) -> None:
    settings = {**RUN, "env_kwargs": {"what": "nan", "seed": evaluation_seed(0, 1)}, "on_bad_value": "truncate"}
    run = mv.train(Examined, run_dir=tmp_path / "run", **settings)
    assert run.summary["evaluation"]["episodes"] == 1 and run.summary["evaluation"]["lost_episodes"] == 1


@pytest.mark.fault("G9")
def test_evaluation_env_that_cannot_be_rebuilt_costs_only_evaluations(tmp_path: Path) -> None:
    """Two envs of the training, that of the evaluation and its replacement can be built; the next one cannot."""
    kwargs = {"what": "raise", "notes": str(tmp_path / "notes"), "numbers": [1, 2], "unbuildable": [5]}
    settings = {**RUN, "evaluation_envs": 1, "env_kwargs": kwargs, "restarts_per_minute": 1}
    summary = mv.train(Examined, run_dir=tmp_path / "run", **settings).summary
    assert summary["finished"] and summary["evaluation_failures"]["failed"] == 2
    assert [line["env_steps"] for line in evaluations_of(tmp_path / "run")] == [150, 200]


@pytest.mark.fault("G9")
def test_evaluation_env_that_cannot_be_built_is_named(tmp_path: Path) -> None:
    kwargs = {"what": "raise", "notes": str(tmp_path / "notes"), "unbuildable": [3]}
    with pytest.raises(mv.MultiverseError, match=r"the evaluation env could not be built: .*no more of these"):
        mv.train(Examined, run_dir=tmp_path / "run", **{**RUN, "env_kwargs": kwargs})


@pytest.mark.fault("G9")
def test_seed_without_evaluation_is_listed_as_failed(tmp_path: Path) -> None:
    from multiverse.training.seed_runs import collect_results, seed_lines

    (tmp_path / "seeds.json").write_text('{"seeds": [1, 2]}')
    for seed, found in ((2, None), (1, {"mean_return": 3.0})):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "summary.json").write_text(json.dumps({"finished": True, "evaluation": found}))
        lines = seed_lines(collect_results(tmp_path))
        result = "IQM of 1 seed: 3.0" if found else "IQM: no seed"
        assert any("2  " in line and "failed" in line for line in lines) and lines[-1].startswith(result)


# -- how often -------------------------------------------------------------------------------------------------------
def evaluated_at(path: Path) -> list[int]:
    return [line["env_steps"] for line in lines_of(path, "metrics.jsonl") if "evaluation_mean_return" in line]


def episodes_by_step(path: Path) -> dict[int, int]:
    return {line["env_steps"]: line["evaluation_episodes"] for line in evaluations_of(path)}


TENTHS = range(200, 2_001, 200)


def test_default_evaluations_are_at_tenths_of_the_budget_with_affordable_episodes(
    tmp_path: Path,
) -> None:
    """An episode takes 50 steps: four fit into a tenth of 2,000 steps, and each evaluation has at least one."""
    settings = {**SMALL, "evaluation_episodes": 4, "env_steps": 2_000, "evaluate_every": None}
    run = mv.train(Long, run_dir=tmp_path / "default", **settings)
    assert episodes_by_step(run.path) == dict.fromkeys(TENTHS, 1) | {2_000: 4}
    longer = mv.train(Long, run_dir=tmp_path / "longer", **{**settings, "env_steps": 8_000})
    counts = [*episodes_by_step(longer.path).values()]
    assert len(counts) == 10 and max(counts[:-1]) > 1 and sum(counts[:-1]) * 50 <= 800
    asked = mv.train(Long, run_dir=tmp_path / "asked", **{**settings, "evaluate_every": 500})
    assert episodes_by_step(asked.path) == dict.fromkeys([500, 1_000, 1_500, 2_000], 4)
    target = mv.train(Long, run_dir=tmp_path / "target", **{**settings, "target_return": 50.0})
    assert episodes_by_step(target.path) == {200: 4}  # the run ends there
    brief = mv.train(Long, run_dir=tmp_path / "brief", **{**settings, "num_envs": 1, "env_steps": 100})
    assert episodes_by_step(brief.path) == {25: 1, 100: 4}, "evaluations took longer than the training"


def test_default_evaluations_of_different_seeds_are_at_the_same_steps(tmp_path: Path) -> None:
    settings = {**SMALL, "env_steps": 5_000, "evaluate_every": None, "evaluation_episodes": 4}
    runs = [mv.train("CartPole-v1", run_dir=tmp_path / str(seed), **{**settings, "seed": seed}) for seed in (1, 2, 3)]
    assert [evaluated_at(run.path) for run in runs] == [[*range(500, 5_001, 500)]] * 3


def test_default_evaluations_change_no_bit_of_the_training(tmp_path: Path) -> None:
    settings = {**SMALL, "env_steps": 5_000, "evaluation_episodes": 3}
    runs = [mv.train("CartPole-v1", run_dir=tmp_path / str(n), **{**settings, "evaluate_every": n}) for n in (None, 0)]
    assert len(evaluations_of(runs[0].path)) == 10 and len(evaluations_of(runs[1].path)) == 1
    assert digest(runs[0]) == digest(runs[1])


@pytest.mark.parametrize(
    ("trained", "evaluated", "length", "least", "expected"),
    [
        (10_000, 0, 20.0, 1, 10),  # no more than a run's evaluations have
        (10_000, 0, 300.0, 1, 3),
        (20_000, 1_500, 300.0, 1, 1),
        (20_000, 9_000, 500.0, 1, 1),  # too much was spent before: the minimum
        (10_000, 0, 300.0, 2, 2),  # whole rounds of sides
        (20_000, 9_000, 500.0, 2, 2),
        (10_000, 0, 10_001.0, 1, 0),
        (20_000, 10_000, 10_001.0, 1, 0),
        (30_000, 10_000, 10_001.0, 1, 1),
        (10_000, 0, 6_000.0, 2, 0),
    ],
)
def test_affordable_episodes_follow_from_steps_length_and_minimum(
    trained: int, evaluated: int, length: float, least: int, expected: int
) -> None:
    config = TrainConfig(env_steps=100_000)
    assert affordable_episodes(config, trained, evaluated, length, least) == expected


def test_default_evaluations_against_an_opponent_play_every_side(tmp_path: Path) -> None:
    four = "pettingzoo.classic.connect_four_v3:env"
    settings = {**SMALL, "env_steps": 1_000, "evaluate_every": None, "evaluation_opponent": "random"}
    run = mv.train(four, run_dir=tmp_path / "run", **{**settings, "evaluation_episodes": 4})
    lines = evaluations_of(run.path)
    assert len(lines) > 3 and all(line["evaluation_episodes"] % 2 == 0 for line in lines)
    assert all({"evaluation_wins/player_0", "evaluation_wins/player_1"} <= line.keys() for line in lines)


def test_equally_good_evaluation_with_more_episodes_is_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluated(envs: Any, policies: Any, episodes: int, *more: Any, **named: Any) -> Evaluation:
        return Evaluation((7.0,) * episodes, (50,) * episodes)

    monkeypatch.setattr(env_states, "evaluate", evaluated)
    settings = {**SMALL, "env_steps": 2_000, "evaluation_episodes": 4, "evaluate_every": None}
    run = mv.train(Long, run_dir=tmp_path / "run", **settings)
    assert checkpoint_of(run, "best").manifest["clock"]["env_steps"] == 2_000
    asked = mv.train(Long, run_dir=tmp_path / "asked", **{**settings, "evaluate_every": 500})
    assert checkpoint_of(asked, "best").manifest["clock"]["env_steps"] == 500


class SaveableOnceReset(Saveable):
    begun = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.begun = True
        return super().reset(seed=seed, options=options)

    def save_state(self) -> Any:
        assert self.begun
        return super().save_state()


@pytest.mark.fault("D5")
def test_env_states_are_saved_if_episodes_are_fewer_than_envs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {
        **SMALL,
        "env_steps": 1_000,
        "evaluate_every": None,
        "evaluation_episodes": 4,
        "env_kwargs": {"as_bytes": True},
    }
    mv.train(SaveableOnceReset, run_dir=tmp_path / "run", **settings)
    assert episodes_by_step(tmp_path / "run") == dict.fromkeys(range(100, 901, 100), 1) | {1_000: 4}
    assert "save_state() failed" not in caplog.text


@pytest.mark.fault("D5")
def test_resumed_run_evaluates_at_the_same_steps_as_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = {**SMALL, "evaluation_episodes": 10, "env_steps": 3_000, "evaluate_every": None}

    class Interrupts(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.env_steps == 1_200:
                signal.raise_signal(signal.SIGINT)

    whole = mv.train("CartPole-v1", run_dir=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        mv.train("CartPole-v1", run_dir=tmp_path / "parts", hooks=[Interrupts()], **settings)
    mv.resume(tmp_path / "parts")
    assert evaluations_of(tmp_path / "parts") == evaluations_of(whole.path)
    assert len({*episodes_by_step(whole.path).values()}) > 1
