"""Runs of several agents: which agents learn, from which rows, the opponents of evaluations, and exactness."""

from __future__ import annotations

import functools
import itertools
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from mpe2.simple_push_v3 import parallel_env
from pettingzoo import ParallelEnv

import multiverse as mv
from multiverse.algorithms.central_critic import TeamInputs
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.core.errors import InvalidActions, InvalidRequest
from multiverse.envs.box_jump.rendering import Renderer
from multiverse.policies.features import Features
from multiverse.policies.team_policy import TeamPolicy
from multiverse.rollouts.rollout import RolloutShape, private_fields
from multiverse.training.loading import evaluate
from multiverse.training.saved_runs import checkpoint_of
from tests.forked_programs import ForkedPrograms
from tests.training.small_runs import SMALL, digest, lines_of

SPREAD, FOUR = "mpe2.simple_spread_v3:parallel_env", "pettingzoo.classic.connect_four_v3:env"
PUSH = "mpe2.simple_push_v3:parallel_env"
VILLAGE, CIRCLE = "tests.training.team_envs:SeededVillage", "tests.multi_agent.envs:Circle"
STATELY, STATELY_CIRCLE = "tests.training.team_envs:StatelyVillage", "tests.training.team_envs:StatelyCircle"
LOADED = (*(name.split(":")[0] for name in (SPREAD, PUSH, FOUR, VILLAGE)), "multiverse.algorithms.taac", "torch")
RUN: dict[str, Any] = {**SMALL, "env_steps": 500, "checkpoint_every_s": 0.0}
POOL = {"opponents": 2, "opponent_every": 1, "opponent_share": 0.7}
AGENTS = {"env_kwargs": {"agents": ("farmer_0", "farmer_1", "guard_0", "guard_1")}}
TAAC = {"algorithm": "taac", "num_heads": 2, "embedding_size": 16, "hidden_size": 16}
RUNS = {
    "at once": (SPREAD, {}),
    "separate": (SPREAD, {"separate": True}),
    "two groups": (PUSH, {**POOL, "opponent_choice": "recent"}),
    "come and go": (VILLAGE, AGENTS),
    "in turn": (CIRCLE, AGENTS),
    "self-play": (FOUR, {**POOL, "evaluation_opponent": "random"}),
    "taac": (SPREAD, TAAC),
    "taac, come and go": (VILLAGE, {**AGENTS, **TAAC}),
    "taac, whole episodes": (VILLAGE, {**AGENTS, **TAAC, "whole_episodes": True}),
    "in turn, whole episodes": (CIRCLE, {**AGENTS, "whole_episodes": True}),
    "self-play, whole episodes": (FOUR, {**POOL, "whole_episodes": True}),
    "central": (SPREAD, {"critic": "central"}),
    "on the state": (SPREAD, {"critic": "state"}),
    "on the state, come and go": (STATELY, {**AGENTS, "critic": "state", "normalize_observations": True}),
    "on the state, in turn": (STATELY_CIRCLE, {**AGENTS, "critic": "state"}),
    "central, with memory": (SPREAD, {"critic": "central", "memory": "gru", "memory_size": 8, "see_previous": True}),
    "on the state, in turn, with memory": (
        STATELY_CIRCLE,
        {**AGENTS, "critic": "state", "memory": "lstm", "memory_size": 8, "see_previous": True},
    ),
    "in turn, with memory": (CIRCLE, {**AGENTS, "memory": "gru", "memory_size": 8, "see_previous": True}),
    "self-play, with memory": (FOUR, {**POOL, "memory": "lstm", "memory_size": 8, "chunk_length": 8}),
}
KINDS = pytest.mark.parametrize("kind", RUNS)

KILLED = """
import json, os, signal, sys
import multiverse as mv
from multiverse.rollouts.rows import Rows

home, env, settings, at = json.loads(sys.argv[1])
before, calls = Rows.act, [0]

def dying(*arguments):
    calls[0] += 1
    if calls[0] == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return before(*arguments)

Rows.act = dying
mv.train(env, run_dir=home, **settings)
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], mv.Run]:
    """A run of each kind in one process, made at its first use."""

    @functools.cache
    def run_of(kind: str) -> mv.Run:
        env, settings = RUNS[kind]
        return mv.train(env, run_dir=tmp_path_factory.mktemp("whole") / "run", **{**RUN, **settings})

    return run_of


@KINDS
def test_killed_run_resumes_exactly(
    kind: str, tmp_path: Path, uninterrupted: Callable[[str], mv.Run], programs: ForkedPrograms
) -> None:
    env, settings = RUNS[kind]
    settings, whole = {**RUN, **settings}, uninterrupted(kind)
    done = programs.run(KILLED, json.dumps([str(tmp_path / "run"), env, settings, 90]))
    assert done.returncode == -signal.SIGKILL, done.stderr
    at = checkpoint_of(tmp_path / "run").manifest["env_steps"]
    assert 0 < at < RUN["env_steps"]
    run = mv.resume(tmp_path / "run")
    assert digest(run) == digest(whole)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert lines_of(run.path, name) == lines_of(whole.path, name)


@KINDS
def test_executors_and_worker_counts_change_no_bit(
    kind: str, tmp_path: Path, uninterrupted: Callable[[str], mv.Run]
) -> None:
    """Three workers with unequal shares of the four envs, or (the first kind) one with all of them."""
    (env, settings), here = RUNS[kind], uninterrupted(kind)
    for workers in (1, 3) if kind == next(iter(RUNS)) else (3,):
        options = {**RUN, **settings, "executor": "process", "workers": workers}
        there = mv.train(env, run_dir=tmp_path / f"there{workers}", **options)
        assert digest(there) == digest(here)
        assert lines_of(there.path, "episodes.jsonl") == lines_of(here.path, "episodes.jsonl")


def test_agents_with_equal_spaces_share_a_learner_or_have_their_own(tmp_path: Path) -> None:
    shared = mv.train(SPREAD, run_dir=tmp_path / "shared", **RUN)
    apart = mv.train(SPREAD, run_dir=tmp_path / "apart", separate=True, **RUN)
    assert list(checkpoint_of(shared).state["session"]["algorithms"]) == ["agent"]
    learned = checkpoint_of(apart).state["session"]["algorithms"]
    assert list(learned) == ["agent_0", "agent_1", "agent_2"]
    weights = [one["weights"]["parameters"] for one in learned.values()]
    assert not np.array_equal(weights[0], weights[1])
    metrics = lines_of(apart.path, "metrics.jsonl")[-2]
    assert {"agent_0/policy_loss", "agent_2/policy_loss", "mean_return/agent_1"} <= set(metrics)
    episode = lines_of(shared.path, "episodes.jsonl")[0]
    assert episode["return"] == pytest.approx(np.mean(list(episode["returns"].values())))
    with pytest.raises(InvalidRequest, match="has one: leave it out"):
        mv.train("CartPole-v1", separate=True, run_dir=tmp_path / "one", **RUN)


def test_central_critic_receives_its_team_and_the_policy_only_itself(tmp_path: Path) -> None:
    for name, sizes in (("numpy", (64, 64)), ("torch", (300,))):
        run = mv.train(SPREAD, run_dir=tmp_path / name, critic="central", hidden_sizes=sizes, **RUN)
        session = checkpoint_of(run).state["session"]
        assert session["policies"]["agent"]["weights"][0].shape == (18, sizes[0])
        actor = sum((i + 1) * o for i, o in itertools.pairwise((18, *sizes, 5)))
        critic = sum((i + 1) * o for i, o in itertools.pairwise((3 * 18, *sizes, 1)))
        assert session["algorithms"]["agent"]["weights"]["parameters"].size == actor + critic


def test_team_inputs_start_with_the_agents_own_observation() -> None:
    seen = spaces.Box(-1.0, 1.0, (2,))
    view = TeamInputs(2, Features(seen, spaces.Discrete(3)), 3)
    own = np.arange(2 * 6 * 2, dtype=np.float32).reshape(2, 6, 2)  # 2 rows of 2 envs × 3 agents
    found = view.of_team(own)
    assert found.shape == (2, 6, 6)
    assert found[1, 4].tolist() == [*own[1, 4], *own[1, 5], *own[1, 3]]


def test_loaded_policies_act_for_the_observing_agents(tmp_path: Path) -> None:
    run = mv.train(PUSH, run_dir=tmp_path / "run", **RUN)
    policies = mv.load(run)
    observations, _ = parallel_env().reset(seed=3)
    actions = policies.act(observations)
    assert set(actions) == {"adversary_0", "agent_0"} and all(0 <= int(a) < 5 for a in actions.values())
    alone = policies["agent_0"].act(observations["agent_0"])
    assert alone == actions["agent_0"]
    with pytest.raises(InvalidRequest, match="adversary_0, agent_0"):
        policies["unknown"]


class Signals(ParallelEnv):
    """Env of two agents that each observe a number and must repeat it; one of them leaves early."""

    metadata = {"name": "signals"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = ["agent_0", "agent_1"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._rng, self._t, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        return self._look(), {agent: {} for agent in self.agents}

    def _look(self) -> dict[str, Any]:
        self._shown = {agent: int(self._rng.integers(4)) for agent in self.possible_agents}
        return {agent: self._shown[agent] for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        rewards = {agent: float(actions[agent] == self._shown[agent]) for agent in self.agents}
        self._t += 1
        done = {agent: self._t >= (6 if agent == "agent_0" else 12) for agent in self.agents}
        seen, truncated = self._look(), dict.fromkeys(self.agents, False)
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not done[agent]]
        return seen, rewards, done, truncated, infos


@pytest.mark.parametrize("separate", [False, True])
def test_teams_learn(separate: bool, tmp_path: Path) -> None:
    settings = {**RUN, "env_steps": 12_000, "evaluation_episodes": 20, "learning_rate": 3e-3, "epochs": 4}
    run = mv.train(Signals, run_dir=tmp_path / "run", separate=separate, **settings)
    found = run.summary["evaluation"]
    assert found["mean_return/agent_0"] > 5.5 and found["mean_return/agent_1"] > 11


def leftmost(observation: Any, open_now: Any, rng: Any) -> int:
    return int(np.flatnonzero(open_now)[0])


def test_self_play_learns_to_beat_random_and_reports_wins(tmp_path: Path) -> None:
    """A random player wins half of the games against another."""
    settings = {
        **RUN,
        "env_steps": 24_000,
        "num_envs": 8,
        "learning_rate": 1e-3,
        "epochs": 4,
        "batch_size": 100,
        **POOL,
        "opponent_every": 2,
    }
    settings |= {"normalize_observations": False, "normalize_rewards": False, "entropy_coef": 0.02}
    run = mv.train(FOUR, run_dir=tmp_path / "run", **settings)
    against = {"random": "random", "a function": leftmost, "itself": run.path}
    found = {name: evaluate(run, episodes=100, opponent=one) for name, one in against.items()}
    assert found["random"].wins > 0.7 and found["random"].summary()["wins"] == found["random"].wins
    assert found["a function"].wins in (0.0, 0.5, 1.0)  # neither draws anything: only the side tells games apart
    assert evaluate(run, episodes=100, opponent="random") == found["random"]
    played = lines_of(run.path, "episodes.jsonl")
    share = np.mean(["opponent" in one for one in played])
    assert 0.5 < share < 0.9  # of POOL's 0.7, but for the first updates, before there is anybody
    sides = [one["returns"] for one in played if "opponent" in one]
    assert {one["return"] for one in played if "opponent" in one} <= {-1.0, 0.0, 1.0} and sides
    pool = checkpoint_of(run).state["session"]["opponents"]
    assert len(pool["versions"]) == 2 and set(map(str, pool["versions"])) <= set(pool["policies"])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> mv.Run:
    """A run whose evaluations are against a random player."""
    return mv.train(FOUR, run_dir=tmp_path_factory.mktemp("four") / "run", evaluation_opponent="random", **RUN)


def test_run_with_an_opponent_can_be_evaluated_against_itself(four: mv.Run) -> None:
    against_random, against_itself = mv.evaluate(four, episodes=4), mv.evaluate(four, episodes=4, opponent="self")
    assert against_random.opponent and not against_itself.opponent
    assert against_itself.cancels and not against_random.cancels
    text = repr(against_itself)
    assert text.startswith("<Evaluation of ppo for pettingzoo.classic.connect_four_v3:env after 500 env steps: return")
    assert "over 4 episodes" in text and "won" not in text and "won" in repr(against_random)


def test_loaded_policies_play_as_their_run(four: mv.Run) -> None:
    found = [mv.evaluate(four, episodes=6, opponent=one) for one in (four, four.path, mv.load(four))]
    assert found[0] == found[1] == found[2]


def test_opponents_from_a_program_must_be_importable_or_passed_again(tmp_path: Path, four: mv.Run) -> None:
    def local(observation: Any, open_now: Any, rng: Any) -> int:
        return leftmost(observation, open_now, rng)

    given = {"importable": leftmost, "local": local, "policies": mv.load(four), "run": four}
    runs = {
        name: mv.train(FOUR, run_dir=tmp_path / name, evaluation_opponent=one, **RUN) for name, one in given.items()
    }
    named = {name: mv.evaluate(run, episodes=4) for name, run in runs.items() if name in ("importable", "run")}
    assert named["importable"] == mv.evaluate(runs["importable"], episodes=4, opponent=leftmost)
    assert named["run"] == mv.evaluate(runs["run"], episodes=4, opponent=four.path)
    assert runs["local"].summary["evaluation"] == runs["importable"].summary["evaluation"]
    for name in ("local", "policies"):
        for again in (mv.evaluate, mv.resume):
            with pytest.raises(InvalidRequest, match=r"<\w.*>, was an object of the program .*: pass it again"):
                again(runs[name])
        more = mv.resume(runs[name], evaluation_opponent=given[name], env_steps=900)
        assert more.summary["env_steps"] >= 900 and "wins" in more.summary["evaluation"]


def test_best_checkpoint_without_an_opponent_gives_a_hint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {**RUN, "evaluate_every": 200}
    for opponent, times in (("self", 1), ("random", 0)):
        caplog.clear()
        mv.train(FOUR, run_dir=tmp_path / opponent, evaluation_opponent=opponent, **options)
        assert sum("Set evaluation_opponent='random'" in one for one in caplog.messages) == times
    caplog.clear()
    mv.train(SPREAD, run_dir=tmp_path / "spread", **options)
    assert "evaluation_opponent=" not in caplog.text


class Watches(mv.Hook):
    """Hook that keeps the rollouts that are learned from."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_update(self, trainer: Any, report: Any) -> None:
        rollout = trainer.session.rollouts[0]
        names = ("valid", "acting", "acting_next", "terminated", "truncated")
        self.seen.append({name: getattr(rollout, name).copy() for name in names})
        self.seen[-1]["played"] = [rows.copy() for rows in trainer.session._collector._arrays.matches]


@pytest.mark.fault("B4")
def test_action_with_unknown_outcome_is_not_learned_from(tmp_path: Path) -> None:
    watches, left_out = Watches(), 0
    mv.train(FOUR, run_dir=tmp_path / "run", hooks=[watches], **RUN)
    for one in watches.seen:
        for slot in range(one["valid"].shape[1]):
            acts = np.flatnonzero(one["acting"][:, slot])
            ends = np.flatnonzero((one["terminated"] | one["truncated"])[:, slot])
            unknown = not one["acting_next"][slot] and (not len(ends) or ends[-1] < acts[-1])
            assert one["valid"][acts[:-1], slot].all() and one["valid"][acts[-1], slot] != unknown
            left_out += unknown
    assert left_out


@pytest.mark.fault("B4")
def test_rows_of_past_versions_are_not_learned_from(tmp_path: Path) -> None:
    watches, sides = Watches(), set()
    mv.train(FOUR, run_dir=tmp_path / "run", hooks=[watches], **RUN, **POOL)
    for one in watches.seen:
        versions, side = one["played"]
        for env in range(versions.shape[1]):
            against = versions[:, env] != -1
            for player in range(2):
                theirs = against & (side[:, env] != player)
                assert not one["valid"][theirs, 2 * env + player].any()
            sides |= set(side[against, env].tolist())
    assert sides == {0, 1}


@pytest.mark.fault("B4")
def test_team_policy_receives_the_acting_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    act = TeamPolicy.act

    def looking(policy: TeamPolicy, seen: Any, *others: Any) -> Any:
        shown.append(seen.teams)
        return act(policy, seen, *others)

    monkeypatch.setattr(TeamPolicy, "act", looking)
    watches = Watches()
    mv.train(VILLAGE, run_dir=tmp_path / "run", hooks=[watches], **{**RUN, **AGENTS, **TAAC, "separate": False})
    acting = watches.seen[0]["acting"]
    slots, absent = acting.shape[1], 0
    rows = shown[: 2 * len(acting) : 2]  # the farmers', then the guards'
    for teams, acts in zip(rows, acting):
        agents = slots // RUN["num_envs"]
        np.testing.assert_array_equal(teams, np.where(acts, np.arange(slots) // agents, -1))
        absent += int((~acts).sum())
    assert absent


@pytest.mark.parametrize("env", [FOUR, PUSH])
def test_number_of_envs_does_not_change_games_against_opponents(env: str, tmp_path: Path) -> None:
    run = mv.train(env, run_dir=tmp_path / "run", **RUN)
    found = []
    for count in (1, 3, 8):
        text = (run.path / "config.yaml").read_text()
        (run.path / "config.yaml").write_text(re.sub("evaluation_envs: .*", f"evaluation_envs: {count}", text))
        found.append(evaluate(run, episodes=10, opponent="random"))
    assert found[0] == found[1] == found[2]


def raises(observation: Any, open_now: Any, rng: Any) -> int:
    raise ValueError("boo")


@pytest.mark.parametrize(
    ("player", "said"),
    [
        (raises, "raises failed: ValueError: boo"),
        (lambda *_: 99, "chose 99, which is not an action of"),
        (lambda *_: None, "chose None"),
        (lambda *_: 1.7, "chose 1.7"),
        (lambda *_: -1, "chose -1"),
    ],
)
def test_misbehaving_opponent_is_named(player: Any, said: str, tmp_path: Path) -> None:
    run = mv.train(FOUR, run_dir=tmp_path / "run", **RUN)
    with pytest.raises(InvalidActions, match=said):
        evaluate(run, episodes=2, opponent=player)


def test_failing_opponent_costs_the_evaluation_and_not_the_run(tmp_path: Path) -> None:
    options = {"evaluation_opponent": "tests.training.test_teams:raises", "evaluate_every": 100}
    run = mv.train(FOUR, run_dir=tmp_path / "run", **{**RUN, **options})
    assert run.summary["finished"] and run.summary["evaluation_failures"]["failed"] >= 4


def test_run_of_other_agents_is_refused_as_opponent(tmp_path: Path) -> None:
    shared = mv.train(SPREAD, run_dir=tmp_path / "shared", **RUN)
    apart = mv.train(SPREAD, run_dir=tmp_path / "apart", separate=True, **RUN)
    push = mv.train(PUSH, run_dir=tmp_path / "push", **RUN)
    for opponent, said in (
        (apart, "in another way"),
        (push, "other agents"),
        (3, "expected 'random'"),
        ("", "expected"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            evaluate(shared, episodes=1, opponent=opponent)


def test_unsupported_team_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="act in turn"):
        mv.train(FOUR, "dqn", run_dir=tmp_path / "run", seed=1, env_steps=100)
    with pytest.raises(InvalidRequest, match="teammates"):
        mv.train(SPREAD, run_dir=tmp_path / "run", critic="central", separate=True, **RUN)


def test_central_critic_receives_zeros_for_absent_agents() -> None:
    """Neither of an agent that ended before, nor of the first row of the next episode, nor normalised zeros."""
    seen, steps = spaces.Box(-9.0, 9.0, (2,)), 3
    ppo = PPO(PPOConfig(critic="central", normalize_observations=True), seen, spaces.Discrete(3), 2, 0, agents=2)
    assert ppo._batches.moments is not None
    ppo._batches.moments.update(np.random.default_rng(0).normal(3.0, 1.0, (50, 2)))
    shape = RolloutShape("agent", seen, steps, 2, ((), np.int64), 0, True, {}, ((3,), np.float32), 2)
    rollout = shape.rollout(private_fields(shape.fields()))
    assert rollout.acting is not None and rollout.acting_next is not None
    rollout.acting[...] = [[True, True], [False, True], [True, True]]  # the first one ends, and both start again
    rollout.acting_next[...] = True
    rollout.terminated[0, 0] = rollout.truncated[1, 1] = True
    rows = rollout.observations[()]
    rows[...] = np.arange(1, 13).reshape(3, 2, 2)
    rows[1, 0] = 0.0
    rollout.finals[()][1, 1] = [7.0, 8.0]
    given: list[Any] = []
    ppo._networks.values = lambda vector, images: given.append(np.array(vector)) or np.zeros(len(vector), np.float32)
    ppo._batch(rollout)
    team, _, final = given
    assert (team.reshape(3, 2, 4)[1, 1, 2:] == 0.0).all() and (team.reshape(3, 2, 4)[0] != 0.0).all()
    assert (final[1, 2:] == 0.0).all() and (final[1, :2] != 0.0).all()


def test_opponents_for_a_single_agent_are_refused(tmp_path: Path) -> None:
    for wrong in ({"opponents": 2}, {"evaluation_opponent": "random"}):
        with pytest.raises(InvalidRequest, match=r"th(is|e) env has one agent"):
            mv.train("CartPole-v1", run_dir=tmp_path / "run", **RUN, **wrong)
    with pytest.raises(InvalidRequest, match="cannot be imported"):
        mv.train(FOUR, run_dir=tmp_path / "run", evaluation_opponent="nowhere:player", **RUN)


# -- in a window -------------------------------------------------------------------------------------------------------
BOXES = {"num_boxes": 2, "max_timestep": 9}
WATCHED: dict[str, Any] = {**SMALL, **TAAC, "env_steps": 40, "num_envs": 2, "steps_per_env": 10, "env_kwargs": BOXES}


def test_rendered_training_equals_the_unrendered_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown, show = [], Renderer.show
    monkeypatch.setattr(Renderer, "show", lambda self, *seen: (shown.append(self), show(self, *seen)))
    watched = mv.train("BoxJump-v0", run_dir=tmp_path / "seen", render=True, **{**WATCHED, "executor": "process"})
    alone = mv.train("BoxJump-v0", run_dir=tmp_path / "unseen", **WATCHED)
    assert digest(watched) == digest(alone)
    assert watched.summary["plan"]["executor"] == "serial" and "in this process" in caplog.text
    assert len(set(map(id, shown))) == 1 and len(shown) >= 20 + 2  # env 0 alone, its steps and resets; no evaluation's


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("multiverse/TMaze-v0", "made with render_mode='human' it raises TypeError"),
        ("tests.training.team_envs:Unseen", "cannot show a window; leave render out"),
    ],
)
def test_env_without_a_window_is_refused_for_rendering(env: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"{env} cannot show a window.*multiverse record") as refused:
        mv.train(env, run_dir=tmp_path / "run", render=True, **SMALL, **(AGENTS if env.endswith("Unseen") else {}))
    assert why in str(refused.value) and not (tmp_path / "run").exists()
    with pytest.raises(InvalidRequest, match="render shows one run"):
        mv.train("BoxJump-v0", run_dir=tmp_path / "run", render=True, seeds=2, **SMALL)


@pytest.mark.parametrize(("steps", "message"), [(8, "2 of 2 episodes had not ended after steps_per_env=8"), (11, "")])
def test_episodes_longer_than_the_rollout_are_reported(
    steps: int, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = {"num_envs": 2, "env_steps": 44, "executor": "serial", "evaluate_every": 0, "evaluation_episodes": 1}
    env = {"env_kwargs": {"num_boxes": 2, "max_timestep": 10}, "preset": False}
    mv.train("BoxJump-v0", "ppo", run_dir=tmp_path / "run", whole_episodes=True, steps_per_env=steps, **short, **env)
    warned = [one.getMessage() for one in caplog.records if "whole_episodes" in one.getMessage()]
    assert len(warned) == (message != "") and all(message in one for one in warned)


class Payday(ParallelEnv):
    """Two hunters and a prey; action 1 earns a hunter 10 and the prey 1, action 0 earns half of that: all above 0."""

    metadata: dict[str, Any] = {"name": "payday"}  # noqa: RUF012
    possible_agents = ["hunter_0", "hunter_1", "prey_0"]  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (2 if agent == "prey_0" else 3,))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> dict[str, Any]:
        return {agent: np.zeros(self.observation_space(agent).shape, np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        full = {"hunter_0": 10.0, "hunter_1": 10.0, "prey_0": 1.0}
        rewards = {agent: full[agent] * (1.0 if actions[agent] else 0.5) for agent in self.agents}
        seen, over = self._seen(), dict.fromkeys(self.agents, True)
        infos = {agent: dict[str, Any]() for agent in self.agents}
        return seen, rewards, over, dict.fromkeys(self.agents, False), infos


class Rivals(Payday):
    """Two agents of the same kind, both of which always earn more than 0."""

    possible_agents = ["hunter_0", "hunter_1"]  # noqa: RUF012


def always(action: int) -> Callable[..., int]:
    return lambda observation, open_now, rng: action


@pytest.fixture(scope="module")
def payday(tmp_path_factory: pytest.TempPathFactory) -> mv.Run:
    """A run whose policy has learned nothing: the result depends only on the opponent."""
    return mv.train(Payday, run_dir=tmp_path_factory.mktemp("payday") / "run", **RUN)


def test_evaluation_against_opponent_has_one_row_per_side_without_opponents_returns(payday: mv.Run) -> None:
    found = [mv.evaluate(payday, env=Payday, episodes=6, opponent=always(action)) for action in (0, 1)]
    assert list(found[0].sides) == ["hunter", "prey"]
    summaries = [one.summary() for one in found]
    for name in ("mean_return/hunter_0", "mean_return/hunter", "mean_return/prey", "mean_return", "returns"):
        values = [one.returns if name == "returns" else summary[name] for one, summary in zip(found, summaries)]
        assert values[0] == values[1], f"{name} depends on the opponent's rewards"
    hunters, prey = found[0].sides.values()
    assert len(hunters.returns) == len(prey.returns) == 3
    assert min(hunters.returns) >= 5.0 and max(prey.returns) <= 1.0
    assert found[0].by_agent is not None and [len(one) for one in found[0].by_agent.values()] == [3, 3, 3]


def test_wins_compare_the_sides_if_all_returns_are_positive(tmp_path: Path) -> None:
    run = mv.train(Rivals, run_dir=tmp_path / "run", **RUN)
    against = [mv.evaluate(run, env=Rivals, episodes=4, opponent=always(action)) for action in (0, 1)]
    best = [mine == 10.0 for mine in against[0].returns]
    assert against[0].wins == np.mean(best) and against[0].draws == 1 - np.mean(best)
    assert against[1].wins == 0.0 and against[1].draws == np.mean(best)
    assert against[1].summary()["wins"] == 0.0


def test_evaluation_of_run_saved_without_margins_has_no_wins() -> None:
    old = mv.Evaluation((1.0, 2.0), (3, 3), opponent=True)
    assert "wins" not in old.summary() and "won" not in repr(old)
