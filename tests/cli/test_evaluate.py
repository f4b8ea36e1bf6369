"""`multiverse evaluate`: the same episodes for every run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.cli.main import main
from multiverse.core.seeds import evaluation_seed
from multiverse.training.progress import evaluation_text
from tests.cli.training_commands import train


def test_evaluate_prints_the_return_and_the_checkpoint(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("runs/one"), env_steps=128) == 0
    capsys.readouterr()
    assert main(["evaluate", "runs", "--episodes", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("CartPole-v1 after 128 env steps (runs/one/checkpoints/step-")
    assert "over 3 unseen episodes; from " in out


def test_json_has_every_episode_and_equals_the_evaluation_of_the_run(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(Path("one"), env_steps=128) == 0
    summary = json.loads(Path("one/summary.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", "one", "--episodes", "2", "--seed", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name: report[name] for name in summary["evaluation"]} == summary["evaluation"]
    assert len(report["returns"]) == len(report["lengths"]) == 2 and report["env_steps"] == 128
    assert main(["evaluate", "one", "--episodes", "2", "--seed", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 1


def test_default_episodes_are_not_those_that_selected_the_best_checkpoint(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for own in (0, 1_000_000):
        name = f"run-{own}"
        assert train(Path(name), "--evaluation-seed", str(own), env_steps=64) == 0
        capsys.readouterr()

        def reported(*words: str, run: str = name) -> dict[str, Any]:
            assert main(["evaluate", run, "--episodes", "5", "--json", *words]) == 0
            return dict(json.loads(capsys.readouterr().out))

        report = reported()
        assert report["seed"] == (1_000_001 if own else 1_000_000) and report["training_evaluation_seed"] == own
        selected, tested = ({evaluation_seed(seed, k) for k in range(100)} for seed in (own, report["seed"]))
        assert not selected & tested
        assert report["returns"] == list(mv.evaluate(name, episodes=5).returns)
        assert report["returns"] == reported("--seed", str(report["seed"]))["returns"]
        assert reported("--seed", str(own))["seed"] == own
        for words, said in (([], f"evaluations use seed {own}"), (["--seed", str(own)], "checkpoint was selected")):
            assert main(["evaluate", name, "--episodes", "1", *words]) == 0
            assert said in capsys.readouterr().out


def test_best_checkpoint_is_evaluated_by_flag_or_path(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("one"), "--evaluate-every", "64", env_steps=192) == 0
    best = json.loads(Path("one/summary.json").read_text())["best_return"]
    capsys.readouterr()
    for words in (["one", "--best"], ["one", "--which", "best"], ["one/checkpoints/best"]):
        assert main(["evaluate", *words, "--episodes", "2", "--seed", "0", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["mean_return"] == best and report["checkpoint"] == "one/checkpoints/best"


def test_seeds_of_a_set_are_evaluated_one_by_one_and_summarised(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(Path("runs/set"), "--seeds", "2", "--seed", "9", env_steps=128) == 0
    own = json.loads(Path("runs/set/seeds.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", "runs", "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("(")[1].split("/checkpoints")[0] for line in lines[:6:3]] == [
        "runs/set/seed-9",
        "runs/set/seed-10",
    ]
    assert lines[6].startswith("IQM of 2 seeds: ")
    assert main(["evaluate", "runs/set", "--episodes", "2", "--seed", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name: report[name] for name in ("returns", "iqm", "interval")} == {
        name: own[name] for name in ("returns", "iqm", "interval")
    }
    assert [len(one["lengths"]) for one in report["runs"]] == [2, 2]
    shutil.rmtree("runs/set/seed-10/checkpoints")
    assert main(["evaluate", "runs/set", "--episodes", "2"]) == 2
    found = capsys.readouterr()
    assert "seed-10" in found.err and not found.out, "an invalid seed is reported before any episode is played"


def test_seeds_that_have_not_started_are_skipped_and_named(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("set"), "--seeds", "3", env_steps=128) == 0
    shutil.rmtree("set/seed-1")
    for more in ([], ["--json"]):
        capsys.readouterr()
        assert main(["evaluate", "set", "--episodes", "2", *more]) == 0
        out, error = capsys.readouterr()
        assert error == "seed 1 has not been started and is left out; start it with `multiverse resume set`\n"
        assert [*json.loads(out)["returns"]] == ["0", "2"] if more else "IQM of 2 seeds: " in out
    for seed in (0, 2):
        shutil.rmtree(f"set/seed-{seed}")
    assert main(["evaluate", "set"]) == 2
    assert "no seed of set has been started; start them with `multiverse resume set`" in capsys.readouterr().err


def test_stochastic_flag_samples_actions(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("one"), "--no-evaluation-deterministic", env_steps=128) == 0
    drawn = json.loads(Path("one/summary.json").read_text())["evaluation"]

    def reported(*words: str) -> dict[str, object]:
        capsys.readouterr()
        assert main(["evaluate", "one", "--episodes", "2", "--seed", "0", "--json", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        return {name: found[name] for name in drawn}

    assert reported() == reported("--stochastic") == drawn != reported("--deterministic")
    assert main(["evaluate", "one", "--stochastic", "--deterministic"]) == 2
    assert "--stochastic and --deterministic cannot be used together" in capsys.readouterr().err


def test_env_kwargs_override_those_of_the_run(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("one"), env_steps=64) == 0
    capsys.readouterr()
    assert main(["evaluate", "one", "--episodes", "2", "--json", "--env-kwargs", '{"max_episode_steps": 5}']) == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == [5, 5]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("nowhere", "nowhere: there is no such directory"),
        ("nowhere --episodes 0", "--episodes 0: must be greater than 0"),
        ("nowhere --env-kwargs 3", "expected a JSON object"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    typed: str, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *typed.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


def test_env_with_other_spaces_is_refused(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("one"), env_steps=64) == 0
    capsys.readouterr()
    assert main(["evaluate", "one", "--env", "Acrobot-v1", "--episodes", "1"]) == 2
    assert capsys.readouterr().err.startswith("multiverse evaluate: ")


def test_evaluation_against_an_opponent_reports_wins(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four = "pettingzoo.classic.connect_four_v3:env"
    for home in ("one", "two"):
        assert train(Path(home), "--seed", home.replace("one", "1").replace("two", "2"), env=four, env_steps=128) == 0
    assert ", won " not in capsys.readouterr().out
    for opponent in ("random", "two", "tests.training.test_teams:leftmost"):
        assert main(["evaluate", "one", "--episodes", "4", "--opponent", opponent]) == 0
        output, *sides = capsys.readouterr().out.splitlines()[2:]
        assert ", won " in output and f", against {opponent}; from " in output and "player_0" not in output
        assert [line.split(": return")[0] for line in sides] == ["  as player_0", "  as player_1"]
        assert all(", won " in line and "over 2 unseen episodes" in line for line in sides)
    assert main(["evaluate", "one", "--episodes", "4"]) == 0
    assert "return 0.0 ± 0.0 (player_0 " in capsys.readouterr().out
    for opponent in ("unknown", "tests.nowhere:player", "tests.training.test_teams:unknown"):
        assert main(["evaluate", "one", "--episodes", "4", "--opponent", opponent]) == 2
        assert opponent in capsys.readouterr().err


def test_opponent_of_the_run_is_used_and_reported(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four = "pettingzoo.classic.connect_four_v3:env"
    assert train(Path("runs/one"), "--evaluation-opponent", "random", env=four, env_steps=64) == 0
    output = [line for line in capsys.readouterr().out.splitlines() if ", won " in line]
    assert len(output) == 2 and all(", against random" in line for line in output)  # when it happened, and at the end
    assert main(["evaluate", "runs", "--episodes", "4", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["opponent"] == "random" and 0 <= output["wins"] <= 1
    assert main(["evaluate", "runs", "--episodes", "4", "--json", "--opponent", "self"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["opponent"] is None and "wins" not in output
    assert main(["list"]) == 0
    assert ", won " in capsys.readouterr().out


def test_team_with_shared_rewards_reports_its_team_return(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "BoxJump-v0",
        "--run-dir",
        "one",
        "--env-steps",
        "408",
        "--env-kwargs",
        '{"num_boxes": 4, "max_timestep": 50}',
    ]
    assert main(["train", *words, "--executor", "serial", "--evaluation-episodes", "2"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "one", "--episodes", "2", "--json"]) == 0
    together = 4 * json.loads(capsys.readouterr().out)["mean_return"]
    assert main(["evaluate", "one", "--episodes", "2"]) == 0
    assert f" (each of 4 agents, {together:.2f} together), length 51, over 2 unseen" in capsys.readouterr().out


def test_meta_episodes_report_every_episode() -> None:
    values = {"mean_return": 7.0, "std_return": 1.0, "mean_length": 120.0, "episodes": 20, "mean_return/episode_1": 2.0,
            "mean_return/episode_2": 5.0, "success_rate/episode_1": 0.25, "success_rate/episode_2": 0.75}  # fmt: skip
    assert evaluation_text(values) == (
        "return 7.0 ± 1.0 (episode_1 2.0, episode_2 5.0), success 25 % → 75 %, length 120, over 20 unseen episodes"
    )
    equal = {**values, **{f"mean_return/episode_{k}": 0.0 for k in (1, 2)}}  # not a team with shared rewards
    assert "(episode_1 0.0, episode_2 0.0), " in evaluation_text(equal)
    many = {**values, **{f"mean_return/episode_{k}": float(k) for k in range(1, 7)}}
    assert "(6 episodes, from episode_1 1.0 to episode_6 6.0), " in evaluation_text(many)
