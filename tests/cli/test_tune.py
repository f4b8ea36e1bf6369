"""`multiverse tune`: the search, the plan that it writes, and the commands that read it."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import multiverse as mv
from multiverse.cli.commands.plot import write
from multiverse.cli.commands.tune import Search, Way, config_of_way, plan_file, sentence
from multiverse.cli.main import main
from multiverse.core.errors import InvalidRequest, PreflightError
from multiverse.executors.machine import usable_cores
from multiverse.training.config.resolve import config_for
from tests.cli.training_commands import train

ALL: Any = ("serial", "thread", "process", "hybrid")


def machine(step_s: float, hand_over_s: float, cores: int) -> Any:
    """A machine with parallel workers and a cost of each lock-step; returns the env steps/s of a plan."""

    def rate(way: Way) -> float:
        hosts = way.workers + (way.executor in ("serial", "hybrid"))
        if way.executor == "thread":  # the interpreter's lock
            hosts = 1
        share = math.ceil(way.num_envs / hosts) * max(1.0, hosts / cores)
        handed_over = hand_over_s * (1 + 0.2 * way.workers) if way.workers else 0.0
        return way.num_envs / (share * step_s + handed_over)

    return rate


def searched(measure: Any, cores: int, **given: Any) -> tuple[Search, Way]:
    search = Search(measure, cores, lambda line: None)
    return search, search.best(ALL, given.get("num_envs"), given.get("workers"))


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
@pytest.mark.parametrize(("step_s", "hand_over_s"), [(2e-6, 20e-6), (40e-6, 20e-6), (5e-3, 20e-6), (1e-6, 1e-3)])
def test_search_finds_ninety_percent_of_the_best_rate(cores: int, step_s: float, hand_over_s: float) -> None:
    measure = machine(step_s, hand_over_s, cores)
    search, found = searched(measure, cores)
    assert len(search.rates) < 50
    everything = [*search.everything(ALL, found)]
    assert len(everything) > len(search.rates) and len({*everything}) == len(everything)
    assert measure(found) >= 0.9 * max(map(measure, everything))


def test_search_chooses_no_more_envs_than_useful() -> None:
    _, found = searched(machine(5e-3, 1e-6, 4), 4)  # a slow env: as many as there are cores do
    assert found.executor in ("process", "hybrid") and found.num_envs == 8
    _, found = searched(lambda way: 1000.0 * (way.num_envs if way.num_envs < 100 else 100), 2)
    assert found.num_envs == 128 and found.executor == "serial"  # all are as good: the one without workers


def test_search_continues_after_one_doubling_without_gain() -> None:
    rates = {4: 100.0, 8: 101.0, 16: 200.0, 32: 201.0, 64: 202.0, 128: 900.0}
    search, found = searched(lambda way: rates.get(way.num_envs, 0.0) * (way.executor == "serial"), 2)
    assert found == Way("serial", 0, 16)
    assert {way.num_envs for way in search.rates if way.executor == "serial"} == {4, 8, 16, 32, 64}


def test_given_values_are_kept_by_the_search() -> None:
    search, found = searched(machine(40e-6, 20e-6, 8), 8, num_envs=24)
    assert {way.num_envs for way in search.rates} == {24} and found.num_envs == 24
    assert {way.num_envs for way in search.everything(ALL, found, 24)} == {24}
    search, found = searched(machine(40e-6, 20e-6, 8), 8, workers=2)
    assert {way.workers for way in search.rates if way.workers} == {2} and found.workers == 2


def test_machine_that_becomes_busy_does_not_mislead_the_search() -> None:
    speeds = {"serial": 100.0, "thread": 20.0, "process": 70.0, "hybrid": 115.0}
    calls = itertools.count()

    def measure(way: Way) -> float:
        return speeds[way.executor] * (1.0 if next(calls) == 0 else 0.75)  # serial comes first

    search, found = searched(measure, 2, num_envs=8, workers=1)
    assert search.rates[Way("serial", 0, 8)] > search.rates[Way("hybrid", 1, 8)]
    assert found == Way("hybrid", 1, 8)
    values, written = sentence(search, found), plan_file(search, found, {})
    other = "1.15 × as fast as the best other executor (serial, 8 envs)"
    assert values == f"hybrid, 1 worker, 8 envs: 86 env steps/s, {other}"
    assert (written["env_steps_per_s"], written["why"]) == (86.25, f"tune: {values}")
    shares = {one["executor"]: one.get("in_turn") for one in written["tried"]}
    assert shares == {"serial": 100 / 115, "thread": None, "process": None, "hybrid": 1.0}


def test_lucky_measurement_of_fewer_envs_is_repeated() -> None:
    looked: set[Way] = set()

    def measure(way: Way) -> float:
        lucky = way.num_envs == 32 and way not in looked  # only its first check
        looked.add(way)
        return {4: 50.0, 8: 60.0, 16: 70.0, 32: 98.0 if lucky else 80.0}.get(way.num_envs, 100.0)

    search, found = searched(lambda way: measure(way) * (way.executor == "serial"), 2)
    assert found == Way("serial", 0, 64)
    assert search.times(found, Way("serial", 0, 32)) == 1.25


def test_repeated_comparisons_agree_with_the_rates() -> None:
    search = Search(machine(40e-6, 20e-6, 2), 2, lambda line: None)
    found = search.best(ALL, None, None)
    for way in search.shares:
        assert math.isclose(search.times(found, way), search.rates[found] / search.rates[way])


def test_failing_candidate_is_left_out_and_an_error_if_all_fail() -> None:
    def measure(way: Way) -> float:
        if way.executor != "serial" or way.num_envs > 8:
            raise PreflightError("no room")
        return 100.0 * way.num_envs

    search, found = searched(measure, 2)
    assert str(found) == "serial, 8 envs" and len(search.failures) > 3
    assert sentence(search, found).startswith("serial, 8 envs: 800 env steps/s; twice as many envs are 100 % slower")
    with pytest.raises(PreflightError, match="no room"):
        Search(measure, 2, lambda line: None).best(["process"], None, None)


def test_summary_states_the_gain_over_alternatives() -> None:
    search, found = searched(machine(5e-3, 1e-6, 4), 4)
    result = sentence(search, found)
    assert result.startswith(f"{found}: ") and " × as fast as the best other executor (" in result
    assert "; twice as many envs are " in result


def test_measured_rollouts_are_short_and_collected_as_in_training() -> None:
    config = config_of_way("CartPole-v1", {}, "ppo", Way("process", 2, 8))
    assert (config.settings.steps_per_env, config.num_envs, config.executor, config.workers) == (32, 8, "process", 2)
    assert config_of_way("Acrobot-v1", {}, "ppo", Way("serial", 0, 8)).settings.steps_per_env == 32  # 256 in its preset
    assert config_of_way("CartPole-v1", {}, "discrete_sac", Way("serial", 0, 8)).settings.steps_per_env == 2


# -- the command, and its file -----------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["ppo", "random"])
def test_plan_is_accepted_by_make_vec_and_train(
    algorithm: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--executors", "serial", "thread", "--num-envs", "4", "--seconds", "0.01", "--rounds", "1"]
    assert main(["tune", "CartPole-v1", "--algorithm", algorithm, *words, "--exhaustive"]) == 0
    captured = capsys.readouterr()
    assert (
        "4 envs: " in captured.out and "To use the plan: multiverse train CartPole-v1 --plan plan.json" in captured.out
    )
    assert "Best of all combinations: " in captured.out and "plan.json" in captured.err
    plan = json.loads(Path("plan.json").read_text())
    assert plan["collected"] == {"ppo": "where the envs run", "random": "in lock-step"}[algorithm]
    assert plan["num_envs"] == 4 and plan["executor"] in ("serial", "thread") and plan["algorithm"] == algorithm
    assert 0.0 < plan["share_of_best"] <= 1.0
    assert {(one["executor"], one["num_envs"]) for one in plan["tried"]} >= {("serial", 4), ("thread", 4)}
    with mv.make_vec("CartPole-v1", plan="plan.json") as envs:
        assert (envs.num_envs, envs.plan.executor, envs.plan.workers) == (4, plan["executor"], plan["workers"])
        assert envs.plan.why.startswith("tune: ")
    with mv.make_vec("CartPole-v1", 6, plan=Path("plan.json")) as envs:
        assert envs.num_envs == 6
    assert main(["train", "CartPole-v1", "--run-dir", "a", "--plan", "plan.json", "--env-steps", "128"]) == 0
    out = capsys.readouterr().out
    assert f"Envs: {plan['executor']}" in out and "Plan: plan.json sets the executor and the numbers of envs and" in out


@pytest.mark.parametrize("busy", [True, False])
def test_busy_machine_is_reported_with_the_plan(
    busy: bool, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multiverse.cli.comparison.BUSY_ABOVE", -math.inf if busy else math.inf)
    monkeypatch.setattr("multiverse.cli.commands.tune.MAX_ENVS", 4)
    words = ["tune", "CartPole-v1", "--executors", "serial", "--seconds", "0.01", "--rounds", "1"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert ("Other programs are using this machine" in captured.out) is busy
    assert ("Other programs are using this machine" in captured.err) is busy
    assert json.loads(Path("plan.json").read_text())["machine_is_busy"] is busy
    assert "also affects what a run learns" in captured.out
    assert main([*words, "--num-envs", "4"]) == 0
    assert "also affects what a run learns" not in capsys.readouterr().out


def write_plan(**more: Any) -> None:
    plan = {"executor": "thread", "workers": 3, "start_method": None, "waiting": "park", "why": "", "num_envs": 12}
    Path("plan.json").write_text(json.dumps({**plan, **more}))


def test_plan_overrides_the_preset_and_flags_override_the_plan(elsewhere: Path) -> None:
    write_plan()
    found = config_for("CartPole-v1", "ppo", {"plan": "plan.json"})
    assert (found.num_envs, found.executor, found.workers) == (12, "thread", 3)
    assert found.settings.epochs == 20  # of the preset
    found = config_for("CartPole-v1", "ppo", {"plan": "plan.json", "num_envs": 5, "executor": "serial"})
    assert (found.num_envs, found.executor, found.workers) == (5, "serial", None)
    assert train(Path("a"), "--plan", "plan.json", env_steps=64) == 0  # with --executor serial --num-envs 2
    settings = Path("a/config.yaml").read_text()
    assert "executor: serial" in settings and "num_envs: 2" in settings and "plan" not in settings


def test_plan_for_another_env_or_machine_is_used_with_a_warning(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cores = usable_cores()
    write_plan(env="CartPole-v1", usable_cores=cores, workers=1, num_envs=2)
    config_for("CartPole-v1", "ppo", {"plan": "plan.json"})
    mv.make_vec(lambda: gym.make("Pendulum-v1"), plan="plan.json").close()  # its name is unknown
    assert not caplog.messages
    config_for("Pendulum-v1", "ppo", {"plan": "plan.json"})
    mv.make_vec("Pendulum-v1", plan="plan.json").close()
    fits = "`multiverse tune Pendulum-v1` writes one that fits"
    warning = f"plan plan.json was measured for env CartPole-v1, and this is env Pendulum-v1: {fits}"
    assert caplog.messages == [warning] * 2
    write_plan(env="CartPole-v1", usable_cores=cores + 1)
    config_for("CartPole-v1", "ppo", {"plan": "plan.json"})
    assert f"was measured for usable_cores {cores + 1}, and this is usable_cores {cores}: " in caplog.messages[2]


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({"learning_starts": 300}, ["learning_starts=300 and env_steps=300: the run ends before it learns"]),
        (
            {"updates_per_step": 0.003},
            ["updates_per_step=0.003: no gradient step is due in the 200 env steps"],
        ),
        ({}, []),
    ],
)
def test_run_that_learns_nothing_is_reported(
    given: dict[str, Any], messages: list[str], elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = {"learning_starts": 100, "env_steps": 300, "executor": "serial", "evaluation_episodes": 1, **given}
    mv.train("Pendulum-v1", "sac", preset=False, run_dir="a", progress=False, **words)
    assert [message[: len(one)] for message, one in zip(caplog.messages, messages, strict=True)] == messages


@pytest.mark.parametrize("env_steps", [63, 64])
def test_rollout_larger_than_the_budget_is_reported(
    env_steps: int, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_plan(executor="serial", workers=0, num_envs=4)
    words = ["--plan", "plan.json", "--steps-per-env", "16", "--env-steps", str(env_steps), "--quiet"]
    assert main(["train", "CartPole-v1", "--run-dir", "a", *words]) == 0
    report = "one update takes num_envs=4 × steps_per_env=16 = 64 env steps, and env_steps=63: lower num_envs or steps_"
    assert any(message.startswith(report) for message in caplog.messages) is (env_steps == 63)


PLAN_OF_RAY = (
    '{"executor": "ray", "workers": 1, "start_method": null, "waiting": "park", "why": "", "num_envs": 2, "ray": %s}'
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "plan='plan.json' cannot be read: No such file or directory; `multiverse tune ENV` writes one"),
        ("[", "plan.json is not a plan: it is not JSON"),
        ("[]", "plan.json is not a plan: it has no executor, workers"),
        (
            '{"executor": "thread", "workers": 1}',
            "plan.json is not a plan: it has no start_method, waiting, why, num_envs",
        ),
        (PLAN_OF_RAY % "5", "plan.json is not a plan: its ray is 5, and can have address, cpus_per_worker, gpus_per_w"),
        (
            PLAN_OF_RAY % '{"cpus": 1}',
            "plan.json is not a plan: its ray has cpus, and can have address, cpus_per_worker",
        ),
    ],
)
def test_invalid_plan_file_is_reported_in_one_line(
    content: str | None, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("plan.json").write_text(content)
    assert main(["train", "CartPole-v1", "--plan", "plan.json"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error
    with pytest.raises(mv.errors.InvalidRequest) as caught:
        mv.make_vec("CartPole-v1", plan="plan.json")
    assert message in str(caught.value)


@pytest.mark.fault("E2")
@pytest.mark.parametrize("flag", ["--plan", "--config"])
def test_pipes_and_devices_as_input_files_are_refused(
    flag: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe is not waited for, and a device is not read without end."""
    os.mkfifo("pipe")
    for place in ("pipe", "/dev/zero"):
        assert main(["train", "CartPole-v1", flag, place]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "it is not a plain file" in error


def test_invalid_value_in_a_plan_is_named(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(executor="magic")
    assert main(["train", "CartPole-v1", "--plan", "plan.json"]) == 2
    assert "executor" in capsys.readouterr().err
    with pytest.raises(mv.errors.InvalidRequest, match=r"plan\.executor='magic'"):
        mv.make_vec("CartPole-v1", plan="plan.json")
    with pytest.raises(mv.errors.InvalidRequest, match="did you mean executor='process'"):
        mv.make_vec("CartPole-v1", plan="process")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("tune Nowhere-v7", "Nowhere"),
        ("tune CartPole-v1 --executors magic", "--executors magic: expected some of serial, thread, process, hybrid"),
        ("tune CartPole-v1 --seconds 0", "--seconds 0: must be greater than 0"),
        ("tune CartPole-v1 --algorithm nothing", "nothing"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    typed: str, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not Path("plan.json").exists()


def test_plan_file_states_how_it_was_chosen() -> None:
    search, found = searched(machine(40e-6, 20e-6, 2), 2)
    written = plan_file(search, found, {"env": "x"})
    assert (written["executor"], written["workers"], written["num_envs"]) == (
        found.executor,
        found.workers,
        found.num_envs,
    )
    assert written["env"] == "x" and len(written["tried"]) == len(search.rates)


@pytest.mark.fault("D2")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("link", [True, False])
def test_output_that_is_no_plain_file_is_refused_and_kept(link: bool, tmp_path: Path) -> None:
    """As root, a rename would put a file in the place of /dev/null."""
    special, named = tmp_path / "special", tmp_path / ("link" if link else "special")
    os.mkfifo(special)
    if link:
        named.symlink_to(special)
    with pytest.raises(InvalidRequest, match="cannot be written: it is no plain file"):
        write(named, b"{}")
    assert special.is_fifo()
    assert named.is_symlink() == link
