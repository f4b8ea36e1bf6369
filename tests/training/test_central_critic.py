"""A critic that observes the env's state(): how it is sent, when it is called, and what is refused."""

from __future__ import annotations

import itertools
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import multiverse as mv
from multiverse.algorithms import on_policy
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.core.errors import EnvFailed, InvalidRequest
from multiverse.rollouts.rollout import Rollout
from multiverse.training.config.resolve import config_for
from multiverse.training.learners import algorithm_maker
from multiverse.training.saved_runs import checkpoint_of
from multiverse.training.session import Session
from tests.training.small_runs import SMALL, lines_of
from tests.training.team_envs import ImageState, StatelyCircle, StatelyPair, StatelyVillage

SPREAD, FOUR = "mpe2.simple_spread_v3:parallel_env", "pettingzoo.classic.connect_four_v3:env"
RUN: dict[str, Any] = {**SMALL, "env_steps": 800, "critic": "state"}
AGENTS = ("farmer_0", "farmer_1", "guard_0", "guard_1")


def collected(monkeypatch: pytest.MonkeyPatch, env: Any, home: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the rollouts that a run has learned from."""
    seen: list[dict[str, Any]] = []
    before = PPO._batch

    def kept(self: PPO, rollout: Rollout) -> Any:
        names = ("states", "last_states", "final_states")
        leaves = {name: {path: rows.copy() for path, rows in getattr(rollout, name).items()} for name in names}
        ended = (rollout.terminated | rollout.truncated).reshape(rollout.steps, -1, rollout.agents).any(axis=2)
        seen.append({**leaves, "ended": ended, "group": rollout.group, "valid": rollout.valid.copy()})
        return before(self, rollout)

    monkeypatch.setattr(PPO, "_batch", kept)
    mv.train(env, run_dir=home, **{**RUN, **options})
    return seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("env", [StatelyVillage, StatelyCircle])
def test_states_are_stored_with_their_rows(
    env: Any, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row has the state that was there when its actions were chosen; where an agent ended, also the one after."""
    where = {"executor": "process", "workers": workers} if workers else {}
    name = f"{env.__module__}:{env.__name__}"
    rollouts = collected(monkeypatch, name, tmp_path / "run", env_kwargs={"agents": AGENTS}, **where)
    assert {one["group"] for one in rollouts} == {"farmer", "guard"}
    ends = begun = 0
    for one in rollouts:
        clock, final = (one[name][("clock",)] for name in ("states", "final_states"))
        steps = np.concatenate([clock[..., 0], one["last_states"][("clock",)][None, :, 0]])
        for t, env_id in itertools.product(range(len(clock)), range(clock.shape[1])):
            on = steps[t + 1, env_id] == steps[t, env_id] + 1
            assert on or steps[t + 1, env_id] == 0  # or the next episode's first
            begun += not on
            if one["ended"][t, env_id]:
                assert final[t, env_id, 0] == steps[t, env_id] + 1
                assert final[t, env_id, 1] == clock[t, env_id, 1]
                ends += 1
        assert (one["states"][("phase",)] == clock[..., 0] % 3).all()
    assert ends > 50 and begun > 20


def test_critic_receives_the_observation_and_the_state(tmp_path: Path) -> None:
    run = mv.train(SPREAD, run_dir=tmp_path / "run", hidden_sizes=(16,), **RUN)
    session = checkpoint_of(run).state["session"]
    assert session["policies"]["agent"]["weights"][0].shape == (18, 16)
    sizes = [sum((i + 1) * o for i, o in itertools.pairwise(widths)) for widths in ((18, 16, 5), (18 + 54, 16, 1))]
    assert session["algorithms"]["agent"]["weights"]["parameters"].size == sum(sizes)
    observations = {agent: np.zeros(18, np.float32) for agent in ("agent_0", "agent_1", "agent_2")}
    assert mv.load(run, algorithm=PPO).act(observations) == mv.load(run).act(observations)


def test_truncated_episode_is_valued_by_its_final_state(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, state = spaces.Box(-9.0, 9.0, (2,)), spaces.Box(-9.0, 9.0, (1,))
    ppo = PPO(PPOConfig(critic="state", steps_per_env=2), seen, spaces.Discrete(3), 4, 0, agents=2, state_space=state)
    rollout = Rollout(
        observations={(): np.ones((2, 4, 2), np.float32)},
        last={(): np.ones((4, 2), np.float32)},
        finals={(): np.full((2, 4, 2), 5.0, np.float32)},
        actions=np.zeros((2, 4), np.int64),
        rewards=np.zeros((2, 4), np.float32),
        terminated=np.zeros((2, 4), np.bool_),
        truncated=np.array([[False] * 4, [False, False, True, True]]),
        valid=np.ones((2, 4), np.bool_),
        starts=np.zeros((2, 4), np.bool_),
        states={(): np.array([[[1], [2]], [[3], [4]]], np.float32)},
        last_states={(): np.array([[6], [7]], np.float32)},
        final_states={(): np.array([[[0], [0]], [[0], [8]]], np.float32)},
        agents=2,
    )
    given: list[Any] = []

    def values(vector: Any, images: Any) -> Any:
        given.append(np.array(vector))
        return np.zeros(len(vector), np.float32)

    monkeypatch.setattr(ppo._networks, "values", values)
    ppo._batch(rollout)
    rows, last, final = given
    assert rows.reshape(2, 4, 3)[..., 2].tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]
    assert last[:, 2].tolist() == [6, 6, 7, 7]
    assert final.tolist() == [[5, 5, 8], [5, 5, 8]]


@pytest.mark.fault("B4")
def test_state_of_a_lost_step_is_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"num_envs": 1, "env_kwargs": {"fault": "raise", "at": 3}, "on_failure": "restart", "env_steps": 25}
    name = "tests.training.test_central_critic:StatelyPair"
    (rollout,) = collected(monkeypatch, name, tmp_path / "run", restarts_per_minute=99, **options)
    assert rollout["states"][()][:7, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rollout["final_states"][()][2, 0, 0] == 2 and not rollout["valid"][2].any()


@pytest.mark.fault("B4")
def test_lost_worker_keeps_its_delivered_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"num_envs": 2, "env_kwargs": {"fault": "kill", "at": 3}, "on_failure": "restart", "env_steps": 50}
    name, more = "tests.training.test_central_critic:StatelyPair", {"executor": "process", "workers": 1}
    (rollout,) = collected(monkeypatch, name, tmp_path / "run", restarts_per_minute=99, **options, **more)
    assert rollout["states"][()][:6, :, 0].tolist() == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1], [2, 2]]
    assert (rollout["final_states"][()][2] == 2).all() and not rollout["valid"][2].any()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(np.array([np.nan], np.float32), r"the state\(\) is nan at index 0"), (np.zeros(2), r"the state\(\) has shape")],
)
def test_invalid_state_is_a_failure_of_the_env(wrong: Any, said: str) -> None:
    envs = mv.make_vec(StatelyPair, 2, "serial", env_kwargs={"wrong": wrong}, agents=mv.AgentOptions(state=True))
    envs.reset(seed=1)
    with pytest.raises(EnvFailed, match=said):
        for _ in range(3):
            envs.step({agent: np.zeros(2, np.int64) for agent in ("left", "right")})
    envs.close()


@pytest.mark.parametrize("executor", ["serial", "thread", "process"])
def test_vector_env_has_the_states_of_its_envs(executor: Any) -> None:
    with mv.make_vec(StatelyPair, 3, executor, agents=mv.AgentOptions(state=True)) as envs:
        envs.reset(seed=1)
        assert envs.states.tolist() == [[0], [0], [0]]
        envs.step({agent: np.zeros(3, np.int64) for agent in ("left", "right")})
        assert envs.states.tolist() == [[1], [1], [1]]
        assert envs.get_attr("asked") == (2, 2, 2)


def test_state_method_is_called_only_if_used() -> None:
    with mv.make_vec(StatelyPair, 2, "serial") as envs:
        envs.reset(seed=1)
        envs.step({agent: np.zeros(2, np.int64) for agent in ("left", "right")})
        assert envs.get_attr("asked") == (0, 0)
        with pytest.raises(InvalidRequest, match="state=True"):
            envs.states  # noqa: B018
        assert not hasattr(envs, "states")


class Weather(ParallelEnv):
    """Rain or sunshine is drawn once an episode, pays or costs 1 at every step, and is observed by no agent."""

    metadata: dict[str, Any] = {"name": "weather"}  # noqa: RUF012
    render_mode, state_space, sunny, steps = None, spaces.Discrete(2), 0, 0

    def __init__(self) -> None:
        self.possible_agents, self.agents, self.rng = ["left", "right"], [], np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.rng = np.random.default_rng(seed)
        self.sunny, self.steps, self.agents = int(self.rng.integers(2)), 0, list(self.possible_agents)
        return dict.fromkeys(self.agents, np.ones(1, np.float32)), {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps, there = self.steps + 1, self.agents
        self.agents = there if self.steps < 20 else []
        seen, pay = dict.fromkeys(there, np.ones(1, np.float32)), dict.fromkeys(there, 2.0 * self.sunny - 1.0)
        never, over = dict.fromkeys(there, False), dict.fromkeys(there, not self.agents)
        return seen, pay, never, over, {a: {} for a in there}

    def state(self) -> int:
        return self.sunny


def test_critic_with_state_predicts_what_agents_cannot_observe(tmp_path: Path) -> None:
    options = {**RUN, "env_steps": 6_000, "num_envs": 8, "steps_per_env": 40, "learning_rate": 3e-3, "gamma": 0.9}
    options |= {"normalize_observations": False, "normalize_rewards": False, "epochs": 8}
    known = {}
    for critic in ("central", "state"):
        run = mv.train(Weather, run_dir=tmp_path / critic, **{**options, "critic": critic})
        known[critic] = np.mean([one["explained_variance"] for one in metrics_of(run.path)[-5:]])
    assert known["central"] < 0.1 and known["state"] > 0.9


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [one for one in lines_of(run, "metrics.jsonl") if "explained_variance" in one]


def test_env_without_a_suitable_state_is_refused_with_alternatives(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"state_space.*critic='central'"):
        mv.train(FOUR, run_dir=tmp_path / "run", **RUN)
    for env in ("CartPole-v1", FOUR):
        with pytest.raises(InvalidRequest, match="state_space"):
            mv.make_vec(env, 2, "serial", agents=mv.AgentOptions(state=True))
    with pytest.raises(InvalidRequest, match=r"image.*critic='central'"):
        mv.train(ImageState, run_dir=tmp_path / "run", **RUN)


@pytest.mark.parametrize("critic", ["central", "state"])
def test_central_critics_are_refused_for_one_agent(critic: str, tmp_path: Path) -> None:
    refusal = f"critic='{critic}': needs several agents, and CartPole-v1 has one: leave it out"
    with pytest.raises(InvalidRequest, match=refusal):
        mv.train("CartPole-v1", run_dir=tmp_path / "run", **{**RUN, "critic": critic})


def test_taac_with_one_agent_gives_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {**SMALL, "env_steps": 100, "progress": False}
    for name in ("epochs", "normalize_rewards"):
        settings.pop(name)
    mv.train("CartPole-v1", "taac", run_dir=tmp_path / "run", **settings)
    assert "CartPole-v1 has no team: taac trains a team of one agent" in caplog.text


@pytest.mark.parametrize("critic", ["central", "state"])
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_recurrent_policy_with_central_critic_learns_alike_in_numpy_and_torch(
    critic: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy has a cell and the critic has none; torch's gradient is that of autograd."""
    how = {**RUN, "critic": critic, "memory": memory, "memory_size": 8, "see_previous": True, "chunk_length": 8}
    name = "tests.training.test_central_critic:StatelyVillage"
    how |= {"hidden_sizes": (16,), "env_kwargs": {"agents": AGENTS}}
    config = config_for(name, "ppo", {key: value for key, value in how.items() if key != "preset"}, preset=False)
    session = Session(config, name, algorithm_maker(config))
    try:
        session.begin()
        assert session.collect(lambda: False) is not None
        monkeypatch.setattr(on_policy, "LARGEST_IN_NUMPY", 0)
        twins = Session(config, name, algorithm_maker(config))
        twins.close()
        for rollout, ppo, twin in zip(session.rollouts, session.learners, twins.learners):
            assert rollout.memory["cells"].shape[2] == 1 and rollout.memory["cells"].any()
            assert len(ppo._networks.cells()) == len(twin._networks.cells()) == 1  # type: ignore[attr-defined]
            twin.load_weights(ppo.weights())
            first = np.array(ppo.weights()["parameters"])
            for learner in (ppo, twin):
                learner.update([deepcopy(rollout)], 0.0)
            after = [np.asarray(learner.weights()["parameters"]) for learner in (ppo, twin)]
            assert np.abs(after[0] - first).max() > 1e-3
            np.testing.assert_allclose(after[0], after[1], atol=2e-5)
    finally:
        session.close()
