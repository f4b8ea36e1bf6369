"""Whole episodes: equal transitions in parallel and one after another."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.core.layout import Array
from multiverse.core.policy import Memory, Seen
from multiverse.envs.meta.points import Wind
from multiverse.policies.cells import Cells
from multiverse.policies.features import Features
from multiverse.policies.heads import head_for
from multiverse.policies.numpy_policies import NumpyPolicy
from multiverse.policies.simple_policies import RandomPolicy
from multiverse.rollouts.episode_collector import EpisodeCollector
from multiverse.rollouts.episode_play import NOISE_STEPS
from multiverse.rollouts.rollout import Rollout
from multiverse.rollouts.whole_episodes import WholeEpisodes
from multiverse.training.policy import LoadedPolicy
from tests.rollouts.envs import meta

TASKS = [[0.3, 0.1], [-1.0, 0.2], [0.0, 1.0], [0.7, 0.7], [-0.5, 0.5]]
EPISODES = 7


def network(envs: mv.VectorEnv, memory: bool = True, size: int = 9) -> NumpyPolicy:
    rng, space = np.random.default_rng(5), envs.single_action_space
    features = Features(envs.single_observation_space, space, memory)

    def drawn(*shape: int) -> Array:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    gates = [drawn(3 * size, features.size), drawn(3 * size, size), drawn(3 * size), drawn(3 * size)]
    cells = Cells("gru", [gates, gates]) if memory else None
    layers = [(drawn(size if memory else features.size, 8), drawn(8)), (drawn(8, 2), drawn(2))]
    return NumpyPolicy(features, layers, "tanh", head_for(space, np.full(2, 0.4, np.float32)), 3, None, cells)


POLICIES: dict[str, Callable[[mv.VectorEnv], Any]] = {
    "Markov": lambda envs: network(envs, memory=False),
    "Memory": network,
    "random": lambda envs: RandomPolicy(envs.single_action_space),
}


def made(num_envs: int, executor: Any = "serial", env: Any = meta, **options: Any) -> mv.VectorEnv:
    return mv.make_vec(env, num_envs, executor, tasks=TASKS, autoreset="disabled", **options)


def collected(envs: mv.VectorEnv, policy: Any, episodes: int = EPISODES, **options: Any) -> WholeEpisodes:
    return EpisodeCollector(envs, mv.DrawnTasks(8, range(4))).collect(policy, episodes, **options)


def arrays(rollout: Rollout) -> dict[str, Array]:
    names = ("actions", "rewards", "terminated", "truncated", "valid", "starts")
    previous = {} if rollout.previous is None else dict(zip(("previous", "earned"), rollout.previous))
    leaves = {"seen": rollout.observations[()], "finals": rollout.finals[()], **rollout.memory, **previous}
    return {name: getattr(rollout, name) for name in names} | leaves


def assert_equal(one: WholeEpisodes, other: WholeEpisodes) -> None:
    for ours, theirs in zip(one.each(), other.each(), strict=True):
        expected = arrays(theirs)
        for name, rows in arrays(ours).items():
            assert rows.tobytes() == expected[name].tobytes(), name
    assert one.began_from == other.began_from and one.lengths.tolist() == other.lengths.tolist()
    for mine, infos in zip(one.infos, other.infos, strict=True):
        assert {name: np.asarray(value).tolist() for name, value in mine.items()} == {
            name: np.asarray(value).tolist() for name, value in infos.items()
        }


# -- parallel equals sequential ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("num_envs", "executor", "workers"),
    [(3, "serial", None), (4, "process", 2), (5, "process", 3), (9, "process", 2), (4, "hybrid", 1), (3, "thread", 2)],
)
def test_parallel_episodes_equal_those_of_one_env(
    policy: str, num_envs: int, executor: Any, workers: int | None
) -> None:
    with made(1) as alone, made(num_envs, executor, workers=workers) as envs:
        expected = collected(alone, POLICIES[policy](alone))
        assert_equal(collected(envs, POLICIES[policy](envs)), expected)
    assert len(set(expected.lengths.tolist())) > 2  # or nothing would be out of step
    assert expected.rollout.terminated.any() and len({one.task for one in expected.began_from}) > 1


@pytest.mark.parametrize("explore", [True, False])
def test_collected_episodes_equal_a_replay_by_hand(explore: bool) -> None:
    """Every episode is repeated by hand with its seed, task and actions."""
    with made(3) as envs:
        found = collected(envs, network(envs), explore=explore)
    for k, (episode, began) in enumerate(zip(found.each(), found.began_from)):
        env = meta()
        env.reset_task(TASKS[began.task])
        seen, _ = env.reset(seed=began.seed)
        for t in range(episode.steps):
            assert (episode.observations[()][t, 0] == seen.astype(np.float32)).all()
            action = np.clip(episode.actions[t, 0], -1, 1)
            seen, reward, terminated, truncated, info = env.step(action)
            assert episode.rewards[t, 0] == np.float32(reward)
            assert (episode.terminated[t, 0], episode.truncated[t, 0]) == (terminated, truncated)
            assert (terminated or truncated) == (t == episode.steps - 1) and episode.starts[t, 0] == (t == 0)
        assert (episode.finals[()][-1, 0] == seen).all() and (episode.last[()][0] == seen).all()
        assert found.infos[k]["returns_per_episode"].tolist() == info["returns_per_episode"].tolist()
        assert np.isclose(found.returns[k], info["returns_per_episode"].sum())
        assert "success_per_episode" in found.infos[k]
    assert found.env_steps == found.rollout.valid.sum() == found.lengths.sum()
    assert (found.dropped, found.dropped_steps, found.rollout.policy_version) == (0, 0, 3)


def test_noise_is_used_only_for_exploration() -> None:
    with made(2) as envs:
        policy = network(envs)
        loud, quiet = collected(envs, policy), collected(envs, policy, explore=False)
    assert not np.array_equal(next(loud.each()).actions[0], next(quiet.each()).actions[0])


def test_policy_receives_memory_and_previous_actions_and_rewards() -> None:
    class Recalls:
        """Remembers how often it acted and what it observed, and puts that into its action."""

        version = 0

        def noise(self, rng: Any, steps: int, rows: int) -> Any:
            return np.zeros((steps, rows), np.float32)

        def first_memory(self, rows: int) -> Memory:
            return {"acted": np.full((rows, 1), 10.0, np.float32)}

        def act(self, seen: Seen, noise: Any, memory: Memory) -> tuple[Any, Memory]:
            assert seen.previous_actions is not None and seen.previous_rewards is not None
            acted = memory["acted"]
            assert (seen.starts == (acted[:, 0] == 10)).all()
            assert (seen.previous_rewards[seen.starts] == 0).all()
            expected = np.where(seen.starts[:, None], 0, acted / 100 - 0.01)
            assert np.allclose(seen.previous_actions, np.concatenate([expected, expected * 0], axis=1))
            return np.concatenate([acted / 100, acted * 0], axis=1), {"acted": acted + 1}

        def for_env(self, actions: Any) -> Any:
            return actions

        def portable(self) -> Any:
            return None

    with made(3) as envs:
        found = collected(envs, Recalls())
    for episode in found.each():
        assert episode.memory["acted"][:, 0, 0].tolist() == list(range(10, 10 + episode.steps))
        assert episode.previous is not None and (episode.previous[0][1:] == episode.actions[:-1]).all()
        assert np.allclose(episode.previous[1][1:], episode.rewards[:-1])


# -- who plays what ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("episodes", "each"), [(7, [3, 2, 2]), (6, [2, 2, 2]), (2, [1, 1, 0]), (1, [1, 0, 0])])
def test_episodes_are_spread_evenly_with_the_remainder_to_the_first(episodes: int, each: list[int]) -> None:
    with made(3) as envs:
        found = collected(envs, network(envs), episodes)
        assert (envs.episode_counts + 1).tolist() == each and len(found.lengths) == episodes


class Waits(Wind):
    """Env 0's first step ends when env 1 has begun its third episode."""

    def __init__(self, note: str, waits: bool) -> None:
        super().__init__(horizon=4)
        self._note, self._waits, self._resets = Path(note), waits, 0

    def reset(self, **kwargs: Any) -> Any:
        self._resets += 1
        if self._resets == 3 and not self._waits:
            self._note.touch()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        while self._waits and not self._note.exists():
            time.sleep(0.001)
        return super().step(action)


def test_envs_do_not_wait_for_the_slowest(tmp_path: Path) -> None:
    """In lock-step the second env would never open the gate."""
    note = str(tmp_path / "note")
    makers = [partial(Waits, note, True), partial(Waits, note, False)]
    with mv.make_vec(
        makers, executor="process", workers=2, autoreset="disabled", timeouts=mv.Timeouts(reply_s=20)
    ) as envs:
        found = EpisodeCollector(envs, mv.DerivedSeeds(1)).collect(RandomPolicy(envs.single_action_space), 6)
    assert found.lengths.tolist() == [4] * 6


def test_episodes_longer_than_one_draw_of_noise_are_collected() -> None:
    with made(2, env=partial(meta, 3, horizon=NOISE_STEPS, odds=0.001)) as envs:
        found = collected(envs, network(envs), 3)
    assert found.lengths.max() > 2 * NOISE_STEPS and found.rollout.steps == found.lengths.max()
    for episode in found.each():
        assert episode.valid.all() and (episode.starts[:, 0] == (np.arange(episode.steps) == 0)).all()


def test_calls_continue_where_the_last_one_ended() -> None:
    with made(2) as envs, made(3) as others:
        collector, other = (EpisodeCollector(one, mv.DrawnTasks(8, range(4))) for one in (envs, others))
        parts = [collector.collect(network(envs), 3), collector.collect(network(envs), 4)]
        whole = other.collect(network(others), 7)
    assert [one for part in parts for one in part.began_from] == whole.began_from
    for one, expected in zip([e for part in parts for e in part.each()], whole.each(), strict=True):
        assert (one.actions == expected.actions).all()
    assert collector.collected == other.collected == 7


def test_tasks_are_drawn_uniformly_from_the_plan() -> None:
    with made(4, env=partial(meta, 1, horizon=1)) as envs:
        found = collected(envs, RandomPolicy(envs.single_action_space), 400)
    counts = np.bincount([one.task for one in found.began_from], minlength=5)
    assert counts[4] == 0 and (counts[:4] > 70).all()


def test_oracle_observes_the_task_it_plays() -> None:
    with made(2, env=partial(meta, 2, True)) as envs:
        found = collected(envs, RandomPolicy(envs.single_action_space))
    for episode, began in zip(found.each(), found.began_from):
        assert (episode.observations[()][:, 0, 2:4] == np.array(TASKS[began.task], np.float32)).all()


def test_masks_reach_the_policy_and_the_rollout() -> None:
    class Masked(gym.Env[Any, Any]):
        observation_space = spaces.Dict({"x": spaces.Box(0, 9, (1,)), "action_mask": spaces.MultiBinary(3)})
        action_space = spaces.Discrete(3)

        def reset(self, **kwargs: Any) -> Any:
            super().reset(**kwargs)
            self.t = 0
            return self.seen(), {}

        def seen(self) -> Any:
            return {"x": np.array([self.t], np.float32), "action_mask": np.eye(3, dtype=np.int8)[self.t % 3]}

        def step(self, action: Any) -> Any:
            assert action == self.t % 3
            self.t += 1
            return self.seen(), 1.0, self.t == 5, False, {}

    with mv.make_vec(Masked, 2, "serial", autoreset="disabled") as envs:
        policy = RandomPolicy(envs.single_action_space)
        found = EpisodeCollector(envs, mv.DerivedSeeds(1)).collect(policy, 3)
    masks = found.rollout.action_masks
    assert masks is not None and (masks[:, 0].argmax(axis=1) == np.arange(5) % 3).all()
    assert found.returns.tolist() == [5.0] * 3


# -- what is refused, and what comes after a mistake -------------------------------------------------------------------
def test_invalid_requests_are_refused() -> None:
    text = "autoreset='same_step' cannot be used for whole episodes"
    with (
        mv.make_vec(meta, 2, "serial", autoreset="same_step") as envs,
        pytest.raises(mv.errors.InvalidRequest, match=text),
    ):
        EpisodeCollector(envs, mv.DerivedSeeds(0))
    with made(2) as envs:
        for episodes in (0, -1, 1.5):
            with pytest.raises(mv.errors.InvalidRequest, match="episodes"):
                collected(envs, network(envs), episodes)  # type: ignore[arg-type]
        with pytest.raises(mv.errors.InvalidRequest, match="returned no seed for episode 0"):
            EpisodeCollector(envs, lambda env_id, episode: mv.ResetRequest()).collect(network(envs), 2)


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_same_episodes_can_be_collected_after_a_policy_raised(executor: Any) -> None:
    class Clumsy(NumpyPolicy):
        acted = 0

        def act(self, *shown: Any) -> Any:
            self.acted += 1
            if self.acted == 9:
                raise ZeroDivisionError("as requested")
            return super().act(*shown)

    with made(4, executor) as envs, made(1) as alone:
        collector = EpisodeCollector(envs, mv.DrawnTasks(8, range(4)))
        policy = network(envs)
        policy.__class__ = Clumsy
        with pytest.raises(ZeroDivisionError):
            collector.collect(policy, EPISODES)
        assert_equal(collector.collect(network(envs), EPISODES), collected(alone, network(alone)))


def test_actions_of_another_shape_are_refused() -> None:
    with made(2) as envs:
        policy = network(envs)
        policy.act = lambda seen, noise, memory: (np.zeros(2), memory)  # type: ignore[method-assign]
        with pytest.raises(mv.errors.InvalidActions, match=r"float64 of shape \(2,\) for 2 rows"):
            collected(envs, policy)


# -- where the time goes -----------------------------------------------------------------------------------------------
class Clock:
    """Clock that the test advances; every reading advances it a little."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.mark.parametrize(
    ("thinks", "steps", "named"),
    [
        (0.1, 1.0, "receive 9[0-9]% of the time: the envs are the bottleneck: workers help"),
        (2.0, 0.1, "act 9[0-9]% of the time: the policy is the bottleneck: more workers do not help"),
    ],
)
def test_bottleneck_is_named(thinks: float, steps: float, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("multiverse.rollouts.episode_play.perf_counter", clock)

    class Slow(Wind):
        def step(self, action: Any) -> Any:
            clock.now += steps
            return super().step(action)

    class Thinks(RandomPolicy):
        def act(self, *shown: Any) -> Any:
            clock.now += thinks
            return super().act(*shown)

    with mv.make_vec(Slow, 2, "serial", autoreset="disabled") as envs:
        found = EpisodeCollector(envs, mv.DerivedSeeds(1)).collect(Thinks(envs.single_action_space), 2)
    shares = found.seconds.share()
    assert np.isclose(sum(shares.values()), 1) and all(share > 0 for share in shares.values())
    assert re.fullmatch(f"{named}.*", found.seconds.bottleneck())
    assert np.isclose(found.seconds.act, 75 * thinks, rtol=0.1) and found.seconds.receive > 75 * 2 * steps


def test_policies_that_cannot_act_are_refused() -> None:
    envs = mv.make_vec("CartPole-v1", 1, "serial", autoreset="disabled")
    with pytest.raises(mv.errors.InvalidRequest, match=r"policy='ppo' cannot play episodes: pass what mv\.load"):
        EpisodeCollector(envs, mv.DerivedSeeds(1)).collect("ppo", 1)  # type: ignore[arg-type]
    other = LoadedPolicy(RandomPolicy(spaces.Discrete(2)), spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    with pytest.raises(mv.errors.InvalidRequest, match=r"takes observations of Box.*, and these envs return Box"):
        EpisodeCollector(envs, mv.DerivedSeeds(1)).collect(other, 1)  # type: ignore[arg-type]
    played = EpisodeCollector(envs, mv.DerivedSeeds(1)).collect(RandomPolicy(spaces.Discrete(2)), 1)
    with pytest.raises(mv.errors.InvalidRequest, match="not meta-episodes"):
        _ = played.returns_per_episode


# -- our page ----------------------------------------------------------------------------------------------------------
def test_code_of_the_meta_rl_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "meta_rl.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    cut = {", 25)": ", 2)", "collect(policy, 20,": "collect(policy, 3,", "100, 20,": "5, 3,", "range(100)": "range(5)"}
    for numbers, fewer in {**cut, "range(100, 120)": "range(5, 8)", "make, 8,": "make, 2,"}.items():
        assert numbers in code
        code = code.replace(numbers, fewer)
    few = {"tasks": 5, "held_out_tasks": 3, "episodes_per_task": 2, "num_envs": 2, "executor": "serial"}
    short = {"env_steps": 800, "learning_starts": 800, "evaluate_every": 0, "evaluation_episodes": 1, "progress": False}
    mv.train("multiverse/HalfCheetahVel-v0", "sac", run_dir="runs/cheetah", seed=1, **few, **short)
    names: dict[str, Any] = {}
    exec(code, names)
    envs = names["envs"]
    assert names["collected"].env_steps == 2 * 400
    assert names["found"].returns_per_episode.shape == (3, 2)
    envs.close()
