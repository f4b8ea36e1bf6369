"""`multiverse list`: the registered envs, algorithms and presets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from multiverse.algorithms import ALGORITHMS
from multiverse.cli.commands import list as listing
from multiverse.cli.commands.train import config_from, train_options
from multiverse.cli.main import main
from multiverse.training.config.resolve import config_for, preset_results, presets
from tests.cli.training_commands import train

ROOT = Path(__file__).parents[2]


def test_list_envs_has_gymnasium_and_built_in_envs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "envs"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert {"BoxJump-v0", "BoxJump-v1", "CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"} <= set(
        names
    ) and names == sorted(names)
    assert not {"HalfCheetah-v2", "Ant-v3", "GymV21Environment-v0"} & {*names} and "HalfCheetah-v4" in names


def unbroken(presets_as_listed: str) -> list[str]:
    """Join continued lines, as a shell does."""
    return presets_as_listed.replace(" \\\n     ", "").splitlines()[1:]


def test_preset_line_can_be_typed_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "presets"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 100 or line.count(" --") == 1 for line in out.splitlines())
    lines = unbroken(out)
    assert len(lines) == 2 * len(presets())
    for line, (env, algorithm) in zip(lines[::2], presets()):
        flags = shlex.split(line.partition("): ")[2])
        assert config_from(train_options([env, "--no-preset", *flags])) == config_for(env, algorithm, {})


def test_results_of_presets_are_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "presets"]) == 0
    lines = unbroken(capsys.readouterr().out)
    for reported, both in zip(lines[1::2], presets()):
        assert reported.strip() == preset_results().get(both, "not validated to its full budget")
    assert {("CartPole-v1", "ppo"), ("LunarLander-v3", "ppo")} <= {*preset_results()} and (
        "Humanoid-v5",
        "sac",
    ) not in preset_results()
    for (env, _), seen in preset_results().items():
        (document,) = re.findall(r"\((docs/\w+\.md)\)$", seen)
        name = env.partition(":")[0].rpartition("/")[2].rpartition(".")[2].rpartition("_v")[0] or env
        text = (ROOT / document).read_text().lower()
        assert name.rpartition("-v")[0].lower() in text or name.replace("_", " ") in text
        for figure in re.findall(r"-?\d[\d,.]*\d", seen.partition(" seed")[0])[:1]:
            assert figure.removeprefix("-").replace(",", "") in text.replace(",", "")


def test_every_algorithm_is_listed() -> None:
    results = [line.split()[0] for line in listing.algorithm_lines()]
    assert results == list(ALGORITHMS)


def test_runs_are_listed_with_their_results_newest_last(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert listing.NO_RUNS in out and "presets:" in out and "algorithms:" in out
    assert train(Path("runs/two"), env_steps=64) == 0
    assert train(Path("runs/deep/one"), env_steps=128) == 0
    Path("runs/deep/one/summary.json").write_text("{")
    capsys.readouterr()
    assert main(["list", "runs"]) == 0
    title, two, one = capsys.readouterr().out.splitlines()
    assert title == "runs in runs:"
    assert two.startswith("  runs/two  finished at 64 env steps, return ")
    assert one == "  runs/deep/one  running, or ended without a summary"


def test_malformed_files_in_a_run_do_not_stop_the_list(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs/one")
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").touch()
    (run / "nowhere").symlink_to("gone")
    (run / "summary.json").write_text("[" * 100_000)
    assert main(["list", "runs"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  runs/one  running, or ended without a summary"]
