"""First contact: misspelled names, options without effect, and the `repr` of objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import multiverse as mv
from multiverse.algorithms import algorithm_class
from multiverse.cli.main import main
from multiverse.core.wording import pluralize
from multiverse.training.evaluation import Evaluation
from tests.cli.training_commands import train

ENV = """
import gymnasium

class MyEnv(gymnasium.Wrapper):
    def __init__(self, **kwargs):
        super().__init__(gymnasium.make("CartPole-v1", **kwargs))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an env in a file; changes of sys.path are undone."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "env_in_a_file", raising=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "env_in_a_file.py").write_text(ENV)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- names -------------------------------------------------------------------------------------------------------
def test_gymnasium_makes_built_in_envs_after_import() -> None:
    program = "import gymnasium, multiverse; gymnasium.make('multiverse/Wind-v0').reset(seed=0)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_env_can_be_named_by_its_file(executor: Any, folder: Path) -> None:
    with mv.make_vec("elsewhere/env_in_a_file.py:MyEnv", 2, executor) as envs:
        assert envs.reset(seed=0)[0].shape == (2, 4)


def test_invalid_env_files_are_reported(folder: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"nothing\.py:MyEnv': there is no file .*nothing\.py"):
        mv.make_vec("nothing.py:MyEnv", 1)
    (folder / "json.py").write_text(ENV)
    with pytest.raises(mv.errors.InvalidRequest, match="another module 'json' comes first"):
        mv.make_vec("json.py:MyEnv", 1)


def test_mistyped_class_is_corrected(folder: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"Did you mean tests\.envs:Walk\?$"):
        mv.make_vec("tests.envs:Wlak", 1)
    with pytest.raises(mv.errors.InvalidRequest, match=r"Did you mean elsewhere/env_in_a_file\.py:MyEnv\?$"):
        mv.make_vec("elsewhere/env_in_a_file.py:MyEvn", 1)


def test_run_of_an_env_file_is_resumed(folder: Path) -> None:
    assert train(Path("one"), env="elsewhere/env_in_a_file.py:MyEnv", env_steps=64) == 0
    assert main(["resume", "one", "--env-steps", "128"]) == 0


def test_run_of_an_env_file_is_found_from_any_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("elsewhere")
    run = mv.train("env_in_a_file.py:MyEnv", progress=False, env_steps=128, num_envs=1, executor="serial")
    assert run.path.parent == Path("runs/env_in_a_file.py-MyEnv")
    monkeypatch.chdir(folder)
    assert main(["evaluate", "elsewhere/runs", "--episodes", "1"]) == 0
    assert capsys.readouterr().out.startswith("env_in_a_file.py:MyEnv after 128 env steps")
    (folder / "elsewhere" / "env_in_a_file.py").rename(folder / "env_in_a_file.py")
    monkeypatch.delitem(sys.modules, "env_in_a_file")
    assert len(mv.evaluate("elsewhere/runs", episodes=1).returns) == 1  # found here
    (folder / "env_in_a_file.py").unlink()
    with pytest.raises(mv.errors.InvalidRequest, match=r"is not there: --env /path/to/env_in_a_file\.py:MyEnv"):
        mv.evaluate("elsewhere/runs", episodes=1)


def test_dot_instead_of_a_colon_is_corrected() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"Did you mean tests\.envs:Walk\?"):
        mv.make_vec("tests.envs.Walk", 1)
    with pytest.raises(mv.errors.InvalidRequest, match=r"did you mean tests\.envs:Mine\?"):
        algorithm_class("tests.envs.Mine")
    with pytest.raises(mv.errors.InvalidRequest, match=r"doesn't exist\.$"):
        mv.make_vec("no.such.thing", 1)


# -- scripts without a guard -------------------------------------------------------------------------------------
UNGUARDED = f"""
import multiverse as mv
{ENV}
class Nested(MyEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        mv.make_vec(MyEnv, 1, "process").close()

spaces = mv.make_vec(MyEnv, 1, "serial").single_action_space
if __name__ != "no_guard_nested":
    mv.train(MyEnv, env_steps=64)
"""
GUARD = 'and workers that import it would do so too, without end: move that under `if __name__ == "__main__":`'


@pytest.fixture
def unguarded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("no_guard", "no_guard_nested"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (folder / f"{name}.py").write_text(UNGUARDED)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [["train", "no_guard.py:MyEnv"], ["check-env", "no_guard.py:MyEnv"], ["train", "X", "--algorithm", "no_guard:Y"]],
)
def test_script_that_trains_while_imported_starts_nothing(
    arguments: list[str], unguarded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(unguarded))
    assert main(arguments) == 2
    assert f"no_guard.py trains while it is imported, {GUARD}\n" in capsys.readouterr().err
    assert not (unguarded / "runs").exists()


def test_script_that_trains_while_imported_by_a_worker_is_refused(unguarded: Path) -> None:
    program = "import no_guard"  # whose own training is this program's will; its workers must not follow
    done = subprocess.run([sys.executable, "-c", program], cwd=unguarded, capture_output=True, text=True, timeout=60)
    assert f"InvalidRequest: no_guard.py trains while it is imported, {GUARD}" in done.stderr


def test_env_can_have_workers(unguarded: Path) -> None:
    with mv.make_vec("no_guard_nested.py:Nested", 1, "process") as envs:
        assert envs.reset(seed=0)[0].shape == (1, 4)


def test_old_version_of_an_env_is_reported_with_the_command_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "LunarLander-v2"]) == 2
    output = capsys.readouterr().err
    assert "is deprecated. Please use `LunarLander-v3` instead." in output  # Gymnasium's own sentence
    assert output.endswith("Use: multiverse train LunarLander-v3\n")
    assert train(Path("one"), env="CartPole-v0", env_steps=64) == 0
    assert "newer version of this env. To train on it: multiverse train CartPole-v1\n" in capsys.readouterr().out
    assert train(Path("two"), env_steps=64) == 0
    assert "newer version" not in capsys.readouterr().out


# -- options that mean nothing here ------------------------------------------------------------------------------
@pytest.mark.parametrize("option", [{"groups": "separate"}, {"parallel": True}, {"possible_agents": ["a"]}])
def test_options_for_several_agents_are_refused_for_one(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(mv.errors.InvalidRequest, match=f"{name}= is only for envs with several agents"):
        mv.make_vec("CartPole-v1", 2, "serial", agents=mv.AgentOptions(**option))


def test_parallel_option_is_refused_for_a_parallel_env() -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    with pytest.raises(mv.MultiverseError, match="act at the same time already"):
        mv.make_vec(spread.parallel_env, 2, "serial", agents=mv.AgentOptions(parallel=True))


# -- messages, and how often -------------------------------------------------------------------------------------
def test_mujoco_warnings_about_gymnasiums_models_are_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    mujoco = pytest.importorskip("mujoco")
    gymnasium.make("HalfCheetah-v5").close()
    assert "deprecated" in capfd.readouterr().err  # else there is no message to suppress
    mv.make_vec("HalfCheetah-v5", 3, "process").close()
    mv.make_vec("HalfCheetah-v5", 3, "serial").close()
    assert capfd.readouterr().err == ""
    mujoco.MjModel.from_xml_string("<mujoco><compiler settotalmass='1'/></mujoco>")  # a user-defined model
    assert "deprecated" in capfd.readouterr().err


@pytest.mark.parametrize(("count", "message"), [(0, "0 episodes"), (1, "1 episode"), (2048, "2,048 episodes")])
def test_counts_use_singular_and_plural(count: int, message: str) -> None:
    assert pluralize(count, "episode") == message


def test_run_of_one_update_and_one_episode_uses_the_singular(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(Path("one"), "--evaluation-episodes", "1", env_steps=64) == 0
    out = capsys.readouterr().out
    assert " and 1 update in " in out and "over 1 unseen episode;" in out


def test_repr_states_the_main_facts() -> None:
    with mv.make_vec("CartPole-v1", 3, "process", workers=2) as envs:
        assert repr(envs) == "VectorEnv(CartPole-v1, num_envs=3, process, 2 workers (forkserver))"
    assert repr(envs) == "VectorEnv(CartPole-v1, num_envs=3, closed)"
    text = repr(Evaluation((1.0, 3.0), (1, 3)))
    assert text == "<Evaluation: return 2.0 ± 1.0, over 2 episodes>"
    assert repr(mv.check_env("CartPole-v1", steps=50)).startswith("<CheckReport CartPole-v1: 0 errors, ")
