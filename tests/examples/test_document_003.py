"""Document 003: its config file, its manager of envs, its GPUs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pettingzoo import ParallelEnv

import multiverse as mv
from examples.teams import train_taac
from examples.teams.gpus import gpu_of
from examples.teams.parallel_environments import ParallelEnvironmentManager
from examples.teams.scripts import parallel_env_example
from examples.teams.settings import load_settings, settings_from
from multiverse.core.errors import InvalidConfig
from multiverse.envs.box_jump import v0
from multiverse.training.saved_runs import checkpoint_of
from tests.equality import assert_same
from tests.examples.programs import ROOT

CONFIG = ROOT / "examples" / "teams" / "configs" / "boxjump.yaml"


# -- the config --------------------------------------------------------------------------------------------------------
def test_config_has_the_documented_values() -> None:
    settings = load_settings(CONFIG)
    assert settings.environment.source == "BoxJump-v0"
    assert settings.environment.env_kwargs == {"num_boxes": 4, "fixed_rotation": True, "max_timestep": 1500}
    model, training = settings.model, settings.training
    assert (model.num_heads, model.embedding_dim, model.hidden_size) == (2, 64, 128)
    values = (training.episodes, training.gamma, training.learning_rate, training.epsilon_clip, training.K_epochs)
    assert values == (100, 0.995, 5e-4, 0.2, 10)
    values = (training.c_entropy, training.max_grad_norm, training.c_value, training.lam, training.batch_size)
    assert values == (0.05, 20.0, 0.5, 0.97, 128)
    assert (training.min_learning_rate, training.similarity_loss_coef, training.num_parallel) == (1e-4, 0.0, 1)
    assert settings.best_model == Path("files/Models/boxjump/best_model.pth")
    with mv.make_vec(settings.environment.source, 1, env_kwargs=settings.environment.env_kwargs) as envs:
        assert len(envs.agents) == 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("  gamma: 0.995", "  gama: 0.995 | line 19.*training.gama: there is no such setting.*Did you mean gamma"),
        ("  K_epochs: 10", "  K_epochs: ten | line 22.*training.K_epochs: expected a whole number"),
        ("  num_parallel: 1", "  num_parallel: 0 | num_parallel=0: expected at least 1"),
        ("  log_interval: 10", "  log_interval: 0 | log_interval=0: expected at least 1"),
        ("  name: boxjump", "  game: boxjump | line 3.*environment.game: there is no such setting"),
    ],
)
def test_invalid_config_is_reported_in_one_line_with_its_line_number(changed: str, said: str, tmp_path: Path) -> None:
    instead, _, expected = said.partition(" | ")
    text = CONFIG.read_text()
    assert text.count(changed) == 1
    (tmp_path / "mine.yaml").write_text(text.replace(changed, instead))
    with pytest.raises(InvalidConfig, match=expected):
        load_settings(tmp_path / "mine.yaml")


def test_only_the_env_is_required() -> None:
    assert settings_from({"environment": {"name": "simple_spread"}}).training.gamma == 0.995
    with pytest.raises(InvalidConfig, match="environment must be given"):
        settings_from({})


def test_manager_has_two_names_for_close() -> None:
    manager = ParallelEnvironmentManager("boxjump", {"num_boxes": 2}, 1)
    manager.close()
    manager.close_all()
    assert manager.engine.closed


# -- envs --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_manager_plays_equal_episodes_to_single_envs(executor: Any) -> None:
    kwargs, rng = {"num_boxes": 2, "max_timestep": 12}, np.random.default_rng(0)
    single = [v0(**kwargs) for _ in range(3)]
    with ParallelEnvironmentManager("boxjump", kwargs, 3, executor) as manager:
        for _ in range(2):
            assert_same(manager.reset_all(seed=4), [env.reset(seed=4 + i)[0] for i, env in enumerate(single)])
            for _ in range(13):
                actions = [{agent: int(rng.integers(4)) for agent in env.agents} for env in single]
                outcomes = manager.step_all(actions)
                for outcome, env, given in zip(outcomes, single, actions):
                    observations, rewards, terminated, truncated, _ = env.step(given)
                    assert_same(outcome.observations, observations)
                    assert outcome.rewards == rewards
                    assert (outcome.terminations, outcome.truncations) == (terminated, truncated)
        assert all(not outcome.rewards for outcome in manager.step_all([{}] * 3))  # it has ended in all envs


class Leaving(ParallelEnv):  # type: ignore[misc]
    """Two agents; `b` leaves after two steps, and the episode ends after the given number."""

    metadata = {"name": "leaving"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, steps: int = 3) -> None:
        self._most = steps

    def observation_space(self, agent: str) -> Any:
        return v0(num_boxes=1).observation_space("box-1")

    def action_space(self, agent: str) -> Any:
        return v0(num_boxes=1).action_space("box-1")

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._steps = ["a", "b"], 0
        return {agent: np.zeros(11, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self._steps += 1
        agents, over = self.agents, self._steps == self._most
        assert set(actions) == set(agents)
        ended = {agent: over or (agent == "b" and self._steps == 2) for agent in agents}
        self.agents = [agent for agent in agents if not ended[agent]]
        seen = {agent: np.zeros(11, np.float32) for agent in agents}
        return (
            seen,
            {a: float(actions[a]) for a in agents},
            ended,
            dict.fromkeys(agents, False),
            {a: {"steps": self._steps, "more": {"of": a}} for a in agents if a == "a"},
        )


def test_absent_agents_and_ended_envs_need_no_actions() -> None:
    with ParallelEnvironmentManager("tests.examples.test_document_003:Leaving", {"steps": 3}, 1) as manager:
        manager.reset_all(seed=0)
        with pytest.raises(mv.errors.InvalidActions, match="env 0: no action for b"):
            manager.step_all([{"a": 1}])
        with pytest.raises(mv.errors.InvalidActions, match="expected actions for 1 envs, got 2"):
            manager.step_all([{}, {}])
        outcome = manager.step_all([{"a": 1, "b": 2}])[0]
        assert outcome.rewards == {"a": 1.0, "b": 2.0}
        assert outcome.infos == {"a": {"steps": 1, "more": {"of": "a"}}, "b": {}}
        assert manager.step_all([{"a": 1, "b": 2}])[0].terminations == {"a": False, "b": True}
        assert manager.step_all([{"a": 3}])[0].rewards == {"a": 3.0}
        assert manager.acting(0) == []


def test_step_without_an_episode_is_refused() -> None:
    manager = ParallelEnvironmentManager("boxjump", {"num_boxes": 2}, 1)
    with pytest.raises(mv.errors.InvalidRequest, match="reset_all"):
        manager.step_all([{}])
    manager.reset_all(seed=0)
    with pytest.raises(mv.errors.InvalidActions, match="unknown agents box-9; the agents are box-1, box-2"):
        manager.step_all([{"box-1": 0, "box-2": 0, "box-9": 0}])
    manager.close_all()
    with pytest.raises(mv.errors.InvalidRequest, match="reset_all"):
        manager.step_all([{}])


def test_single_agent_env_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="CartPole-v1 is not a multi-agent env"):
        ParallelEnvironmentManager("CartPole-v1", None, 2)


# -- GPUs --------------------------------------------------------------------------------------------------------------
def test_processes_use_the_gpus_in_turn() -> None:
    devices = ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert [gpu_of(i, devices) for i in range(8)] == devices * 2
    assert [gpu_of(i, devices[:3]) for i in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert [gpu_of(i, []) for i in range(3)] == ["cpu"] * 3


# -- training ----------------------------------------------------------------------------------------------------------
TINY = """
environment: {name: boxjump, env_kwargs: {num_boxes: 2, max_timestep: 20}}
model: {num_heads: 2, embedding_dim: 8, hidden_size: 8}
training: {episodes: 4, max_steps_per_episode: 21, K_epochs: 1, num_parallel: 2}
logging: {log_interval: 2}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return ["--config", "tiny.yaml"]


def test_documented_commands_train_and_continue_with_the_best_model(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    best = Path("files/Models/boxjump/best_model.pth")
    assert train_taac.main([*tiny, "--env", "boxjump", "--num_parallel", "3", "--episodes", "6"]) == 0
    out = capsys.readouterr().out
    assert "Training taac on boxjump: 3 envs in this process" in out and "Episode 6/6: mean team return" in out
    assert f"Best model: {best}" in out
    first = checkpoint_of(best, "best").state["session"]["algorithms"]["agents"]["weights"]["parameters"]
    assert train_taac.main([*tiny, "--model_path", str(best), "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "Initial weights: files/Models/boxjump/best_model-1.pth/checkpoints/best" in out
    second = checkpoint_of(best).state["session"]["algorithms"]["agents"]["weights"]["parameters"]
    assert first.shape == second.shape and 0 < np.abs(first - second).max() < 0.1  # two small steps away from the first
    assert mv.record(best, Path("tower.mp4"), which="best").frames == 22
    for env in ("num_boxs", "CartPole-v1"):  # an unknown argument; an env of one agent
        Path("wrong.yaml").write_text(TINY.replace("num_boxes", env))
        given = ["--env", env] if "-" in env else ["--config", "wrong.yaml"]
        assert train_taac.main([*tiny, *given]) == 2
        captured = capsys.readouterr()
        assert "Existing model renamed" not in captured.out and (
            "-" not in env or f"{env} is not a multi-agent env" in captured.err
        )
    Path("wrong.yaml").write_text(TINY.replace("embedding_dim: 8", "embedding_dim: 7"))
    assert train_taac.main(["--config", "wrong.yaml"]) == 2
    assert f"the existing model is restored in {best}" in capsys.readouterr().out
    kept = checkpoint_of(best).state["session"]["algorithms"]["agents"]["weights"]["parameters"]
    np.testing.assert_array_equal(kept, second)


def test_other_env_does_not_use_the_env_arguments_of_the_config(tiny: list[str]) -> None:
    flags = train_taac.parser().parse_args([*tiny, "--env", "simple_spread"])
    configured = train_taac.configured(flags)
    assert configured.environment.env_kwargs == {}
    assert configured.best_model == Path("files/Models/simple_spread/best_model.pth")  # not in BoxJump's place


def test_training_interrupted_before_its_first_evaluation_leaves_a_playable_model(
    tiny: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_taac.Lines, "on_rollout", interrupt)
    assert train_taac.main(tiny) == 130
    assert "Saved" not in capsys.readouterr().out  # nothing was learned yet
    monkeypatch.setattr(train_taac.Lines, "on_rollout", lambda *_: None)
    ctrl_c = lambda *_: signal.raise_signal(signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(train_taac.Lines, "on_update", ctrl_c, raising=False)
    assert train_taac.main(tiny) == 130
    best = Path("files/Models/boxjump/best_model.pth")
    assert f"To resume: multiverse resume {best}\nInterrupted\n" in capsys.readouterr().out
    statistics, _ = parallel_env_example.run_single_episode((0, load_settings("tiny.yaml"), str(best), None, False))
    assert statistics["steps"] == 21
    with pytest.raises(mv.errors.InvalidRequest, match="no evaluation has found a best checkpoint yet; the latest"):
        mv.load(best, which="best")


def test_torch_pickle_and_missing_model_are_refused_in_one_line(
    tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("theirs.pth").write_bytes(b"PK\x03\x04")
    for path, said in (("theirs.pth", "is a file. Expected a directory"), ("nowhere.pth", "does not contain a model")):
        assert train_taac.main([*tiny, "--model_path", path]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    assert train_taac.main([*tiny, "--episodes", "0"]) == 2
    assert "episodes=0: expected at least 1" in capsys.readouterr().err
    assert not Path("files").exists()


# -- true parallelism --------------------------------------------------------------------------------------------------
def test_parallel_example_runs_as_documented(
    tiny: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    best = "files/Models/boxjump/best_model.pth"
    assert parallel_env_example.main([*tiny, "--num_processes", "2"]) == 0
    assert "Training taac on boxjump: 2 envs in 2 processes" in capsys.readouterr().out
    assert mv.resume(best).summary["plan"]["executor"] == "process"
    assert parallel_env_example.main([*tiny, "--num_processes", "2", "--model_path", best]) == 0
    assert "Initial weights: files/Models/boxjump/best_model-1.pth" in capsys.readouterr().out
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert parallel_env_example.main([*tiny, "--render", "--episodes", "1"]) == 0
    out = capsys.readouterr().out
    assert "Rendering in one process" in out and "1 envs in this process" in out
    assert parallel_env_example.main([*tiny, "--num_processes", "0"]) == 2


def test_single_episode_returns_statistics_and_experience(tiny: list[str]) -> None:
    config = load_settings("tiny.yaml")
    statistics, experience = parallel_env_example.run_single_episode((3, config, None, 1, False))
    assert statistics["steps"] == 21 and (statistics["process_id"], statistics["gpu_id"]) == (3, 1)
    assert set(experience) == {"box-1", "box-2"} and experience["box-1"]["observations"].shape == (21, 11)
    assert experience["box-2"]["dones"].tolist() == [False] * 20 + [True]
    assert statistics["team_return"] == pytest.approx(sum(one["rewards"].sum() for one in experience.values()))
    again, _ = parallel_env_example.run_single_episode((3, config, None, 1, False))
    other, _ = parallel_env_example.run_single_episode((4, config, None, 1, False))
    assert again == statistics and other["returns"] != statistics["returns"]  # its seed belongs to the process
    assert train_taac.main(tiny) == 0
    played = [parallel_env_example.run_single_episode((i, config, str(config.best_model), None, False)) for i in (0, 0)]
    assert played[0][0] == played[1][0]
