"""Row E7: the run directory of another user runs no code without trust."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from examples.own_algorithm import Reinforce
from multiverse.cli.main import main
from multiverse.core.errors import UntrustedRun
from multiverse.core.layout import Group
from multiverse.executors import ray_cluster
from multiverse.training import side_by_side
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.loading import evaluate, opponents_for
from multiverse.training.saved_runs import checkpoint_of, resumed_envs
from tests.cli.training_commands import SMALL as FLAGS
from tests.training.small_runs import SMALL

OURS = f"{__name__}:make_env"
TWO_AGENTS = [Group("player", ("player_0", "player_1"), gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))]


def make_env(level: int = 0, api_key: str = "") -> Any:
    return gym.make("CartPole-v1")


def trained(home: Path, env: Any = "CartPole-v1", **settings: Any) -> Path:
    return mv.train(env, run_dir=home, **{**SMALL, "env_steps": 100, **settings}).path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture
def harm(tmp_path: Path) -> Path:
    """The path that exists if the foreign code was called."""
    return tmp_path / "harm"


@pytest.fixture
def foreign_run(plain: Path, tmp_path: Path, harm: Path) -> Path:
    """A run whose config names `os:mkdir` as its env."""
    run = Path(shutil.copytree(plain, tmp_path / "foreign"))
    changed(run, "env: CartPole-v1", "env: os:mkdir")
    changed(run, "env_kwargs: {}", f"env_kwargs:\n  path: {harm}")
    return run


def changed(run: Path, old: str, new: str) -> None:
    text = (run / "config.yaml").read_text()
    assert text.count(old) == 1
    (run / "config.yaml").write_text(text.replace(old, new))


# -- code ----------------------------------------------------------------------------------------------------------
@pytest.mark.fault("E7")
def test_loading_a_foreign_policy_needs_no_env_and_calls_nothing(foreign_run: Path, plain: Path, harm: Path) -> None:
    seen = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    assert mv.load(foreign_run).act(seen).tolist() == mv.load(plain).act(seen).tolist()
    assert not harm.exists()


@pytest.mark.fault("E7")
def test_foreign_run_without_saved_spaces_is_built_only_with_trust(
    foreign_run: Path, plain: Path, tmp_path: Path, harm: Path
) -> None:
    (foreign_run / "spaces.json").unlink()
    with pytest.raises(UntrustedRun, match="os:mkdir"):
        mv.load(foreign_run)
    assert not harm.exists()
    changed(foreign_run, f"  path: {harm}", "  level: 3")
    assert mv.load(foreign_run, env=make_env).act(np.zeros(4, np.float32)) in (0, 1)
    old = Path(shutil.copytree(plain, tmp_path / "old"))
    (old / "spaces.json").unlink()
    assert mv.load(old).act(np.zeros(4, np.float32)) in (0, 1)  # an id of Gymnasium is not foreign code


@pytest.mark.fault("E7")
def test_foreign_set_resumed_with_another_env_does_not_call_its_own(
    foreign_run: Path, tmp_path: Path, harm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its runs have not begun, and there are enough cores for a process each."""
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 2)
    several = tmp_path / "set"
    several.mkdir()
    shutil.copy(foreign_run / "config.yaml", several)
    (several / "seeds.json").write_text(json.dumps({"seeds": [0, 1]}))
    with pytest.raises(mv.MultiverseError, match="path"):  # the other env is given the set's arguments
        mv.resume(several, env="CartPole-v1", progress=False)
    assert not harm.exists()


def resumed(run: Path, **named: Any) -> None:
    mv.resume(run, env_steps=200, **named)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("go", [resumed, evaluate])
def test_calls_of_a_foreign_run_are_named_and_need_trust(go: Callable[..., Any], foreign_run: Path, harm: Path) -> None:
    before = {path: path.read_bytes() for path in foreign_run.rglob("*") if path.is_file()}
    with pytest.raises(UntrustedRun, match=r"would call os:mkdir\(path='.*harm'\).*trust=True") as refused:
        go(foreign_run)
    assert "\n" not in str(refused.value) and not harm.exists()
    assert {path: path.read_bytes() for path in foreign_run.rglob("*") if path.is_file()} == before
    with pytest.raises(mv.errors.EnvFailed):  # what it makes is not an env
        go(foreign_run, trust=True)
    assert harm.exists()


@pytest.mark.fault("E7")
def test_env_given_by_the_caller_needs_no_trust(foreign_run: Path, harm: Path) -> None:
    changed(foreign_run, f"  path: {harm}", "  level: 3")
    assert len(evaluate(foreign_run, env=make_env, episodes=1).returns) == 1
    mv.resume(foreign_run, env=make_env, env_steps=200)
    with pytest.raises(UntrustedRun, match="os:mkdir"):  # that resume does not make the run trusted
        mv.resume(foreign_run, env_steps=300)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("algorithm", ["examples.own_algorithm:Reinforce", Reinforce])
def test_objects_given_by_the_caller_make_no_other_code_trusted(algorithm: Any, tmp_path: Path) -> None:
    """Neither for the env nor for the algorithm of a run, and neither for one run nor for several."""
    quick: dict[str, Any] = {"num_envs": 2, "executor": "serial", "evaluate_every": 0, "progress": False}
    for seeds in (1, 2):
        run = tmp_path / f"run-{seeds}"
        mv.train(make_env, Reinforce, run_dir=run, env_steps=400, seeds=seeds, steps_per_env=100, **quick)
        configs = [*run.rglob("config.yaml")]
        for one in configs:  # written by another user
            changed(one.parent, "env: make_env", "env: os:mkdir")
            changed(one.parent, "algorithm: examples.own_algorithm:Reinforce", "algorithm: evil_package:Mine")
        shutil.rmtree(run / "seed-1", ignore_errors=True)  # one that has not begun
        mv.resume(run, env=make_env, algorithm=algorithm, env_steps=800, progress=False)
        for one in (run, *(one.parent for one in configs)):
            with pytest.raises(UntrustedRun, match="os:mkdir"):
                mv.resume(one, algorithm=Reinforce, env_steps=1200)
        for one in configs:
            changed(one.parent, "env: os:mkdir", "env: CartPole-v1")
        mv.resume(run, algorithm=Reinforce, env_steps=1200, progress=False)
        if seeds > 1 or not isinstance(algorithm, str):  # else the run has kept the caller's own
            with pytest.raises(UntrustedRun, match="evil_package:Mine"):
                mv.resume(run, env_steps=1600)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("name", ["evil_package:CartPole-v1", "evil.package:make"])
def test_module_before_an_env_id_needs_trust(name: str, foreign_run: Path, tmp_path: Path, harm: Path) -> None:
    (tmp_path / "evil_package.py").write_text(f"import pathlib; pathlib.Path({str(harm)!r}).touch()")
    changed(foreign_run, "env: os:mkdir", f"env: {name}")
    sys.path.insert(0, str(tmp_path))
    try:
        for go in (resumed, evaluate):
            with pytest.raises(UntrustedRun, match=name.partition(":")[0]):
                go(foreign_run)
    finally:
        sys.path.remove(str(tmp_path))
    assert not harm.exists()


@pytest.mark.fault("E7")
@pytest.mark.parametrize("name", ["evil_package:go", "evil-package:go", "runs.1.evil-package:go()"])
@pytest.mark.parametrize("what", ["evaluation_opponent: null", "algorithm: ppo"])
def test_env_given_by_the_caller_makes_no_opponent_or_algorithm_trusted(
    what: str, name: str, plain: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "foreign"))
    changed(run, what, f"{what.partition(':')[0]}: {name!r}")
    for go in (resumed, evaluate):
        for own in ({}, {"env": make_env}):
            with pytest.raises(UntrustedRun, match="evil"):
                go(run, **own)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("module", ["evil_package", "evil-package", "1.evil", "/tmp/evil.py", "../evil.py"])
def test_modules_named_in_env_arguments_need_trust(module: str, plain: Path, tmp_path: Path) -> None:
    """Gymnasium's own ids for foreign envs have the form `module:id`."""
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    changed(run, "env: CartPole-v1", "env: GymV26Environment-v0")
    changed(run, "env_kwargs: {}", f"env_kwargs:\n  env_id: {module}:CartPole-v1")
    with pytest.raises(UntrustedRun, match=module):
        mv.resume(run)


@pytest.mark.fault("E7")
def test_algorithm_named_by_a_foreign_run_is_not_imported(foreign_run: Path) -> None:
    """It is not needed to act either: the run contains the policy itself."""
    changed(foreign_run, "algorithm: ppo", "algorithm: os:mkdir")
    for go in (resumed, evaluate):
        with pytest.raises(UntrustedRun, match="os:mkdir"):
            go(foreign_run)  # type: ignore[operator]
    assert "os:mkdir for" in repr(mv.load(foreign_run))


class WithoutPolicy(Reinforce):
    """An algorithm whose runs contain no policy that acts without it."""

    def policy(self) -> Any:
        policy = super().policy()
        policy.portable = lambda: None  # type: ignore[method-assign]
        return policy


@pytest.mark.fault("E7")
def test_algorithm_of_a_foreign_run_is_imported_for_acting_only_with_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as an opponent. A run of the same user needs no trust."""
    run = mv.train("CartPole-v1", WithoutPolicy, run_dir=tmp_path / "run", num_envs=2, env_steps=64, executor="serial",
                   steps_per_env=32, evaluate_every=0, evaluation_episodes=1, progress=False).path  # fmt: skip
    observation = np.zeros(4, np.float32)
    assert mv.load(run).act(observation) in (0, 1)
    (tmp_path / "worst_algorithm.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'harm')!r}).touch()\n"
        f"from {__name__} import WithoutPolicy as Mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    changed(run, f"algorithm: {__name__}:WithoutPolicy", "algorithm: worst_algorithm:Mine")
    for act in (lambda: mv.load(run), lambda: opponents_for(str(run), TWO_AGENTS)):
        with pytest.raises(mv.errors.InvalidRequest, match="worst_algorithm:Mine"):
            act()
    assert not (tmp_path / "harm").exists()
    assert mv.load(run, algorithm=WithoutPolicy).act(observation) in (0, 1)
    assert mv.load(run, trust=True).act(observation) in (0, 1)
    assert (tmp_path / "harm").exists()


@pytest.mark.fault("E7", "E6")
def test_secrets_are_hidden_in_the_trust_error(foreign_run: Path, harm: Path) -> None:
    changed(foreign_run, f"  path: {harm}", "  url: https://me:swordfish@example.org\n  level: 3")
    with pytest.raises(UntrustedRun) as refused:
        resumed(foreign_run, env_kwargs={"api_key": "hunter2", "url": "x"})
    assert "level=3" in str(refused.value)
    assert "swordfish" not in str(refused.value) and "hunter2" not in str(refused.value)


# -- Ray clusters ----------------------------------------------------------------------------------------------------
FOREIGN_CLUSTER = "203.0.113.7:6379"


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Addresses of the clusters that would have been joined; None: a new cluster of the program."""
    addresses: list[str | None] = []

    def connect(options: Any) -> None:
        addresses.append(options.address)
        raise mv.errors.InvalidRequest("no cluster in this test")

    monkeypatch.setattr(ray_cluster, "connect", connect)
    return addresses


@pytest.fixture
def clustered(plain: Path, tmp_path: Path) -> Path:
    """A foreign run whose config names a Ray cluster."""
    run = Path(shutil.copytree(plain, tmp_path / "clustered"))
    changed(run, "executor: serial", "executor: ray")
    changed(run, "ray_address: null", f"ray_address: {FOREIGN_CLUSTER}")
    return run


@pytest.mark.fault("E7")
def test_cluster_of_a_foreign_run_is_joined_only_with_trust(
    clustered: Path, joined: list[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    new = ["train", "--config", str(clustered / "config.yaml"), "--run-dir", str(clustered.parent / "new")]
    for typed in (["resume", str(clustered)], ["evaluate", str(clustered)], new, [*new, "--seeds", "2"]):
        error = one_line(typed, capsys)
        assert f"join the Ray cluster at '{FOREIGN_CLUSTER}'" in error and "--trust" in error
    assert not joined
    with pytest.raises(mv.errors.InvalidRequest, match="no cluster in this test"):
        evaluate(clustered, trust=True)
    assert joined == [FOREIGN_CLUSTER]


@pytest.mark.fault("E7")
def test_cluster_named_by_the_caller_needs_no_trust(clustered: Path, joined: list[str | None]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="no cluster in this test"):
        mv.resume(clustered, env_steps=200, ray_address="10.0.0.1:6379", progress=False)
    file = str(clustered / "config.yaml")
    assert main(["train", "--config", file, "--ray-address", "10.0.0.2:6379"]) == 2
    assert joined == ["10.0.0.1:6379", "10.0.0.2:6379"]


@pytest.mark.fault("E7")
def test_cluster_in_a_checkpoint_is_never_joined(plain: Path) -> None:
    """Only the config names one, and `--trust` is about the config."""
    ray = {"address": FOREIGN_CLUSTER, "cpus_per_worker": 1.0, "gpus_per_worker": 0.0}
    found = checkpoint_of(plain)
    plan = {**found.state["plan"], "executor": "ray", "workers": 1, "start_method": None, "ray": ray}
    changed_state = dataclasses.replace(found, state={**found.state, "plan": plan})
    taken = resumed_envs(changed_state, TrainConfig(num_envs=2)).plan
    assert taken is not None and taken.ray is not None and taken.ray.address is None


@pytest.mark.fault("E7")
def test_cluster_in_a_plan_file_is_refused(tmp_path: Path, joined: list[str | None]) -> None:
    ray = {"address": FOREIGN_CLUSTER, "cpus_per_worker": 1.0, "gpus_per_worker": 0.0}
    plan = {"executor": "ray", "workers": 1, "start_method": None, "waiting": "auto", "why": "", "num_envs": 1}
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "ray": ray}))
    with pytest.raises(
        mv.errors.InvalidRequest, match=rf"names the Ray cluster at '{FOREIGN_CLUSTER}'.*executor=RayOptions"
    ):
        mv.make_vec("CartPole-v1", plan=tmp_path / "plan.json")
    assert not joined


# -- one's own runs --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("own") / "run", OURS, env_kwargs={"level": 3, "api_key": "hunter2"})


@pytest.fixture
def mine(own: Path, tmp_path: Path) -> Path:
    """A run of this user, moved to another place."""
    return Path(shutil.copytree(own, tmp_path / "mine"))


SECRET = {"api_key": "hunter2"}


@pytest.mark.fault("E7")
def test_own_runs_need_no_trust(mine: Path) -> None:
    assert len(evaluate(mine, episodes=1, env_kwargs=SECRET).returns) == 1
    for steps in (200, 300):  # also after its config was written again
        assert mv.resume(mine, env_steps=steps, env_kwargs=SECRET).summary["env_steps"] == steps
    assert mv.load(mine).act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.fault("E7")
def test_trusted_run_that_was_resumed_is_an_own_run(mine: Path) -> None:
    (mine / "origin.json").unlink()
    mv.resume(mine, env_steps=200, env_kwargs=SECRET, trust=True)
    mv.resume(mine, env_steps=300, env_kwargs=SECRET)


@pytest.mark.fault("E7")
@pytest.mark.parametrize(
    ("old", "new"), [(f"env: {OURS}", "env: os:mkdir"), ("level: 3", "level: 4"), ("level: 3", "levels: 3")]
)
def test_origin_mark_covers_what_would_be_called(old: str, new: str, mine: Path) -> None:
    changed(mine, old, new)
    with pytest.raises(UntrustedRun):
        mv.resume(mine, env_kwargs=SECRET)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("origin", ["", "[]", "{}", '{"mark": 1}', '{"mark": ""}', '{"mark": "é"}', "\xff", None])
def test_invalid_origin_marks_are_refused(origin: str | None, mine: Path) -> None:
    (mine / "origin.json").unlink()
    if origin is not None:
        (mine / "origin.json").write_text(origin, encoding="latin-1")
    with pytest.raises(UntrustedRun):
        mv.resume(mine, env_kwargs=SECRET)


@pytest.mark.fault("E7")
def test_run_of_another_user_needs_trust(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    with pytest.raises(UntrustedRun):
        mv.resume(mine, env_kwargs=SECRET)
    assert not (tmp_path / "other user").exists()  # reading writes nothing


@pytest.mark.fault("E7")
def test_key_is_readable_only_by_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    trained(tmp_path / "plain")
    assert not (tmp_path / "state").exists()  # not needed for an id of Gymnasium
    run = trained(tmp_path / "run", OURS)
    key = tmp_path / "state" / "multiverse" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert not any(key.read_bytes().hex() in path.read_text("latin-1") for path in run.rglob("*") if path.is_file())
    before = key.read_bytes()
    mv.resume(run, env_steps=200)
    assert key.read_bytes() == before and len(before) == 32


@pytest.mark.fault("E7")
@pytest.mark.parametrize("spoilt", ["no directory", "others may read it", "a link", "short"])
def test_unusable_key_means_no_trust_with_a_reason(
    spoilt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if spoilt == "no directory":
        (tmp_path / "state").write_text("a file")
    else:
        key = tmp_path / "state" / "multiverse" / "key"
        key.parent.mkdir(parents=True)
        (tmp_path / "other").write_bytes(bytes(32))
        (tmp_path / "other").chmod(0o600)
        if spoilt == "a link":
            key.symlink_to(tmp_path / "other")
        else:
            key.write_bytes(bytes(3 if spoilt == "short" else 32))
            key.chmod(0o600 if spoilt == "short" else 0o644)
    run = trained(tmp_path / "run", OURS)
    assert len([m for m in caplog.messages if "state" in m and "--trust" in m]) == 1
    with pytest.raises(UntrustedRun, match=r"state/multiverse"):
        mv.resume(run)
    assert mv.resume(run, env_steps=200, trust=True).summary["env_steps"] == 200


# -- from the command line -------------------------------------------------------------------------------------------
def one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.fault("E7")
def test_commands_need_the_trust_flag(foreign_run: Path, harm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--run-dir", str(foreign_run.parent / "new")]
    for typed in (["resume", str(foreign_run)], ["evaluate", str(foreign_run)],
                  ["train", "--config", str(foreign_run / "config.yaml"), *home]):  # fmt: skip
        error = one_line(typed, capsys)
        assert "os:mkdir(path=" in error and "--trust" in error and not harm.exists()
        one_line([*typed, "--trust"], capsys)
        harm.rmdir()


@pytest.mark.fault("E7")
def test_own_config_or_typed_env_needs_no_trust(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(mine, "  api_key: <redacted>\n", "")
    file = tmp_path / "my.yaml"
    shutil.copy(mine / "config.yaml", file)
    assert f"{OURS}(level=3)" in one_line(["train", "--config", str(file)], capsys)
    assert f"{OURS}(level=3)" in one_line(["train", "--config", str(mine / "config.yaml")], capsys)
    assert main(["train", OURS, "--config", str(file), "--run-dir", str(tmp_path / "typed")]) == 0
    typed = str(tmp_path / "typed" / "config.yaml")
    assert main(["train", "--config", typed, *FLAGS, "--run-dir", str(tmp_path / "again")]) == 0


@pytest.mark.fault("E7")
@pytest.mark.parametrize("more", [[], ["--help"], ["CartPole-v1"]], ids=["as it is", "help", "with the env typed"])
def test_algorithm_of_a_foreign_config_is_not_imported(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even for its flags."""
    (tmp_path / "evil_algorithm.py").write_text("open('harm', 'w')\nclass Mine: pass\n")
    (tmp_path / "c.yaml").write_text("env: CartPole-v1\nalgorithm: evil_algorithm:Mine\nenv_steps: 64\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "evil_algorithm:Mine" in one_line(["train", *more, "--config", "c.yaml"], capsys)
    assert not Path("harm").exists()


@pytest.mark.fault("E7")
def test_algorithm_of_a_foreign_run_is_not_imported_for_flags_of_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "worse_algorithm.py").write_text("open('harm', 'w')\nclass Mine: pass\n")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("env: CartPole-v1\nalgorithm: worse_algorithm:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "worse_algorithm:Mine" in one_line(["resume", "run", "--lr", "1"], capsys)
    assert not Path("harm").exists()
