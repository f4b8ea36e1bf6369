"""Arguments are checked before anything starts: the error names the argument and valid values."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

import multiverse as mv
from multiverse.executors import choose, machine
from multiverse.executors.launch import fork_server
from tests.envs import Walk, Window

WRAPPER = gymnasium.wrappers.TimeAwareObservation
PARKED = mv.Plan("process", 2, "forkserver", "park", "of last week")


def refused(said: str, **options: Any) -> None:
    """Assert that the call is refused before anything is started."""
    fork_server.stop_fork_server()
    with pytest.raises(mv.errors.InvalidRequest, match=said):
        mv.make_vec(Walk, **{"num_envs": 4, "executor": "process", **options})
    assert psutil.Process().children() == []


# -- make_vec --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["num_envs", "workers"])
@pytest.mark.parametrize("value", [4.0, "4", True, np.float64(2), np.True_, [2], 0, -1])
def test_num_envs_and_workers_must_be_positive_integers(name: str, value: Any) -> None:
    refused(f"^{name}=", **{name: value})


@pytest.mark.parametrize("executor", ["serial", "thread", "process", "hybrid", "auto"])
def test_numpy_integers_are_accepted_and_kept_as_ints(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    with mv.make_vec(Walk, np.int64(3), executor, workers=np.int32(1)) as envs:
        assert type(envs.plan.workers) is int and type(envs.num_envs) is int
        assert executor == "auto" or str(envs.plan).startswith(executor)
        envs.reset(seed=np.int64(5))
        assert envs.get_attr("last_seed") == (5, 6, 7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"env_kwargs": 3}, "^env_kwargs=3: expected a dict"),
        ({"env_kwargs": "abcd"}, "^env_kwargs='abcd'"),
        ({"env_kwargs": {1: 2}}, "^env_kwargs={1: 2}.*argument names"),
        ({"env_kwargs": [{}, {}, 3, {}]}, r"^env_kwargs\[2\]=3"),
        ({"wrappers": WRAPPER}, r"^wrappers=TimeAwareObservation: pass a list, wrappers=\[TimeAwareObservation\]"),
        ({"wrappers": "abcd"}, "^wrappers='abcd': pass a list"),
        ({"wrappers": 0}, "^wrappers=0: pass a list"),
        ({"wrappers": [3]}, r"^wrappers\[0\]=3"),
        ({"wrappers": [[WRAPPER], [], [7], []]}, r"^wrappers\[2\]=\[7\]"),
        ({"render_mode": 3}, "^render_mode=3"),
        ({"reset_plan": 3}, "^reset_plan=3"),
        ({"executor": ["process"]}, "^executor="),
        ({"autoreset": []}, "^autoreset="),
        ({"autoreset": "nextstep"}, "^autoreset='nextstep': expected one of next_step"),
    ],
    ids=str,
)
def test_argument_of_wrong_type_is_named(options: dict[str, Any], said: str) -> None:
    refused(said, **options)


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        (mv.Timeouts, {"reply_s": "60"}, "^reply_s='60': a timeout is a number of seconds above 0, or None"),
        (mv.Timeouts, {"reset_s": 0}, "^reset_s=0"),
        (mv.Timeouts, {"reset_s": "auto"}, "^reset_s='auto'"),
        (mv.Timeouts, {"reply_s": float("nan")}, "^reply_s=nan"),
        (mv.Timeouts, {"close_s": None}, "^close_s=None"),
        (mv.WorkerOptions, {"count": 0}, "^workers=0: expected at least 1"),
        (mv.WorkerOptions, {"start_method": "teleport"}, "^start_method='teleport': expected one of forkserver"),
        (mv.WorkerOptions, {"waiting": []}, "^waiting="),
        (mv.FailureOptions, {"on_failure": "panic"}, "^on_failure='panic': expected one of raise, restart"),
        (mv.FailureOptions, {"restarts_per_minute": 0}, "^restarts_per_minute=0"),
        (mv.FailureOptions, {"worker_memory_limit": "2GiB"}, "^worker_memory_limit=2GiB replaces workers"),
        (mv.FailureOptions, {"on_failure": "restart", "worker_memory_limit": "much"}, "^worker_memory_limit='much'"),
        (mv.AgentOptions, {"groups": ["a"]}, r"^groups=\['a'\]: expected a dict"),
        (mv.RayOptions, {"gpus_per_worker": -1}, "^gpus_per_worker=-1"),
        (mv.RayOptions, {"address": ""}, "^ray_address=''"),
    ],
    ids=str,
)
def test_options_with_invalid_values_are_refused_on_construction(
    options: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        options(**values)


@pytest.mark.parametrize("autoreset", ["same_step", AutoresetMode.SAME_STEP, "SameStep"])
def test_gymnasium_names_of_autoreset_modes_are_accepted(autoreset: Any) -> None:
    with mv.make_vec(Walk, 2, "serial", autoreset=autoreset) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_every_autoreset_mode_of_gymnasium_is_supported() -> None:
    for mode in AutoresetMode:
        with mv.make_vec(Walk, 1, "serial", autoreset=mode) as envs:
            assert envs.metadata["autoreset_mode"] is mode


# -- a plan ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("process", r"^plan='process': expected a multiverse.Plan.*executor='process'\?"),
        ({"executor": "process"}, "^plan={.*expected a multiverse.Plan"),
        (mv.Plan("rocket", 1, None, "park", ""), "^plan.executor='rocket'"),  # type: ignore[arg-type]
        (mv.Plan("auto", 1, None, "park", ""), "^plan.executor='auto'"),  # type: ignore[arg-type]
        (mv.Plan("process", 1, "forkserver", "dance", ""), "^plan.waiting='dance'"),  # type: ignore[arg-type]
        (mv.Plan("process", 1, "teleport", "park", ""), "^plan.start_method='teleport'"),  # type: ignore[arg-type]
        (mv.Plan("process", 0, "forkserver", "park", ""), "^plan.workers=0.*at least 1"),
        (mv.Plan("thread", -1, None, "park", ""), "^plan.workers=-1"),
        (mv.Plan("serial", 1, None, "park", ""), "^plan.workers=1: expected 0 for executor 'serial'"),
        (mv.Plan("process", 1.5, None, "park", ""), "^plan.workers=1.5"),  # type: ignore[arg-type]
        (mv.Plan("process", 5, "forkserver", "park", ""), "5 workers, too many for 4"),
        (mv.Plan("hybrid", 4, "forkserver", "park", ""), "4 workers, too many for 4"),
    ],
    ids=str,
)
def test_invalid_plan_is_refused(plan: Any, said: str) -> None:
    refused(said, executor="auto", plan=plan)


def test_waiting_together_with_a_plan_is_refused() -> None:
    refused("waiting", executor="auto", plan=PARKED, workers=mv.WorkerOptions(waiting="spin"))
    with mv.make_vec(Walk, 2, plan=PARKED, workers=mv.WorkerOptions(waiting="auto")) as envs:
        assert envs.plan == PARKED


def test_plan_with_numpy_integers_is_used() -> None:
    plan = mv.Plan("thread", np.int64(2), None, "park", "counted by numpy")  # type: ignore[arg-type]
    assert str(plan) == "thread, 2 workers: counted by numpy; a crash costs this program"
    with mv.make_vec(Walk, 2, plan=plan) as envs:
        assert type(envs.plan.workers) is int


def test_human_rendering_runs_serially_whatever_the_plan_says(caplog: pytest.LogCaptureFixture) -> None:
    with mv.make_vec(Window, 2, plan=PARKED, render_mode="human") as envs:
        assert (envs.plan.executor, envs.plan.workers) == ("serial", 0)
        assert "render_mode='human'" in envs.plan.why
    assert caplog.messages == ["render_mode='human' opens a window: running serial instead of process, in this process"]


@pytest.mark.parametrize(
    ("executor", "waiting", "planned"),
    [
        ("process", "auto", "auto"),
        ("process", "spin", "spin"),
        ("process", "park", "park"),
        ("hybrid", "auto", "auto"),
        ("thread", "auto", "park"),
        ("thread", "spin", "spin"),
    ],
)
def test_plan_has_the_waiting_mode(executor: Any, waiting: Any, planned: str) -> None:
    with mv.make_vec(Walk, 2, executor, workers=mv.WorkerOptions(count=1, waiting=waiting)) as envs:
        assert envs.plan.waiting == planned
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
    with mv.make_vec(Walk, 2, plan=envs.plan) as again:
        assert again.plan == envs.plan


def test_reason_for_a_failed_probe_is_kept_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise mv.errors.PreflightError("too few open files\nand more about that")

    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(choose, "probe_env", refuse)
    with mv.make_vec(Walk, 2) as envs:
        assert envs.plan.why == "auto: the probe failed (PreflightError: too few open files)"


# -- options without effect -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("executor", "options", "said"),
    [
        ("serial", {"workers": 2}, ["executor='serial' starts no workers: workers=2 has no effect"]),
        (
            "serial",
            {"workers": mv.WorkerOptions(start_method="fork")},
            ["executor='serial' starts no workers: start_method='fork' has no effect"],
        ),
        (
            "serial",
            {"workers": mv.WorkerOptions(count=2, start_method="fork")},
            ["executor='serial' starts no workers: workers=2 and start_method='fork' have no effect"],
        ),
        (
            "thread",
            {"workers": mv.WorkerOptions(count=2, start_method="fork")},
            ["executor='thread' starts no processes: start_method='fork' has no effect"],
        ),
        ("thread", {"workers": 2}, []),
        ("serial", {}, []),
    ],
)
def test_option_without_effect_is_reported_once(
    executor: Any, options: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="multiverse"), mv.make_vec(Walk, 2, executor, **options):
        assert caplog.messages == said


# -- reset, and calls for some envs ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seed": 1.5}, "^seed=1.5: pass one int"),
        ({"seed": "abcd"}, "^seed='abcd': pass one int"),
        ({"seed": True}, "^seed=True"),
        ({"seed": {1, 2}}, "^seed={1, 2}"),
        ({"seed": [1, "x"]}, r"^seed\[1\]='x'"),
        ({"seed": [1, 2.0]}, r"^seed\[1\]=2.0"),
        ({"seed": np.zeros(2)}, r"^seed\[0\]="),
        ({"seed": np.zeros((2, 2), int)}, r"^seed\[0\]="),
        ({"options": "x"}, "^options='x'"),
        ({"options": "xy"}, "^options='xy'"),
        ({"options": 3}, "^options=3"),
        ({"options": [{}]}, "^1 options for 2 envs"),
        ({"options": [{}, 3]}, r"^options\[1\]=3"),
        ({"tasks": 3}, "^tasks=3"),
        ({"tasks": "ab"}, "^tasks='ab'"),
        ({"tasks": {"a": 1, "b": 2}}, "^tasks={"),
        ({"tasks": np.array(3)}, "^tasks=array"),
        ({"env_ids": [0, True]}, "^env_ids="),
        ({"env_ids": [True, False]}, "^env_ids="),
        ({"env_ids": np.array([True, False])}, "^env_ids="),
        ({"env_ids": [[0], [0, 1]]}, "^env_ids="),
        ({"env_ids": {0, 1}}, "^env_ids="),
        ({"env_ids": 1.0}, "^env_ids="),
    ],
    ids=str,
)
def test_invalid_reset_arguments_are_named(arguments: dict[str, Any], said: str) -> None:
    with mv.make_vec(Walk, 2, "serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.InvalidRequest, match=said):
            envs.reset(**arguments)
        assert envs.get_attr("resets") == (1, 1)


@pytest.mark.parametrize("env_ids", [[np.int64(1), 0], (1, 0), np.array([1, 0], np.uint8), range(1, -1, -1)])
def test_integers_of_any_type_are_env_ids(env_ids: Any) -> None:
    with mv.make_vec(Walk, 2, "serial") as envs:
        envs.reset(seed=3, env_ids=env_ids)
        assert envs.get_attr("last_seed") == (3, 4)


def test_partial_reset_derives_the_same_seeds_as_a_full_reset() -> None:
    with mv.make_vec(Walk, 6, "serial") as envs:
        envs.reset(env_ids=[1, 5], seed=3)
        assert envs.get_attr("last_seed") == (None, 4, None, None, None, 8)
        envs.reset(seed=np.array(3))
        assert envs.get_attr("last_seed") == (3, 4, 5, 6, 7, 8)


# -- ids that a script registers ------------------------------------------------------------------------------
SCRIPT = """
import gymnasium as gym
import numpy as np
import multiverse as mv
from gymnasium.envs.registration import WrapperSpec

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward=1.0, render_mode=None):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), self.reward, False, False, {}

class Plus(gym.RewardWrapper, gym.utils.RecordConstructorArgs):
    def __init__(self, env, amount):
        gym.utils.RecordConstructorArgs.__init__(self, amount=amount)
        gym.RewardWrapper.__init__(self, env)
        self.amount = amount

    def reward(self, reward):
        return reward + self.amount

wrapper = WrapperSpec("Plus", "__main__:Plus", {"amount": 10})
limit = WrapperSpec("TimeLimit", "gymnasium.wrappers:TimeLimit", {"max_episode_steps": 1})
gym.register("Mine-v0", entry_point="__main__:Mine", kwargs={"reward": 2.0})
gym.register("Wrapped-v0", entry_point="__main__:Mine", additional_wrappers=(wrapper, limit))

for executor, method in (("process", "forkserver"), ("process", "fork"), ("process", "spawn"), ("serial", None)):
    for env, expected, over in (("Mine-v0", 2.0, False), ("Wrapped-v0", 11.0, True), (gym.spec("Mine-v0"), 2.0, False)):
        with mv.make_vec(env, 2, executor, workers=mv.WorkerOptions(start_method=method)) as envs:
            envs.reset(seed=0)
            _, rewards, _, truncated, _ = envs.step(np.zeros(2, np.int64))
        assert rewards.tolist() == [expected] * 2 and truncated.tolist() == [over] * 2, (executor, method, env)

assert gym.spec("Mine-v0").entry_point == "__main__:Mine"
assert gym.spec("Wrapped-v0").additional_wrappers == (wrapper, limit)
gym.register("Gone-v0", entry_point="__main__:Gone")
try:
    mv.make_vec("Gone-v0", 2, "process")
except mv.errors.InvalidRequest as error:
    print(error)
"""


def test_env_registered_by_its_script_runs_in_every_executor(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "'Gone-v0'" in done.stdout and "__main__:Gone" in done.stdout


# -- modules beside the user -----------------------------------------------------------------------------------
@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that Python finds only while the folder is the current directory."""
    source = "import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    (tmp_path / "a_module_beside_me.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("elsewhere")
def test_making_envs_does_not_change_sys_path() -> None:
    before = list(sys.path)
    with pytest.raises(mv.errors.InvalidRequest, match="a_module_beside_me"):
        mv.make_vec("a_module_beside_me:make", 1, "serial")
    mv.make_vec("tests.envs:Walk", 1, "serial").close()
    assert sys.path == before


@pytest.mark.usefixtures("elsewhere")
def test_command_line_imports_from_the_working_directory() -> None:
    code = (  # as a console script: without the current directory
        "import os, sys; sys.path[:] = [p for p in sys.path if p not in ('', os.getcwd())]\n"
        "from multiverse.cli.main import main\nsys.exit(main())"
    )
    options = ["--num-envs", "2", "--executors", "process", "serial", "--workers", "1", "--seconds", "0.01"]
    command = [sys.executable, "-c", code, "bench", "a_module_beside_me:make", *options, "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["round 1 of 2", "round 2 of 2"]


def test_demo_explains_its_ratios_and_reports_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    from multiverse.cli.commands import demo
    from multiverse.cli.main import main

    assert main(["demo", "--seconds", "0.01", "--rounds", "2"]) == 0
    captured = capsys.readouterr()
    assert demo.HOW_TO_READ in captured.out and "median" in demo.HOW_TO_READ
    assert [line.partition(":")[0] for line in captured.err.splitlines()] == ["round 1 of 2", "round 2 of 2"]
