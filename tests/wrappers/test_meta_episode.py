"""k episodes of one task as one episode, compared step by step with the env inside; and held-out tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.envs.meta.points import PointRobot, PointRobotSparse

TASK = np.array([0.5, -0.25])


def made(k: int, oracle: bool = False, horizon: int = 4) -> mv.MetaEpisode:
    return mv.MetaEpisode(PointRobot(horizon), k, oracle)


class Falls(PointRobot):
    """Env that terminates in its second step."""

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self._steps == 2, truncated, info


class Counts(gymnasium.Env[Any, Any]):
    """Env with the tasks 0 to 2, which are drawn with replacement; Discrete actions; its space has no tasks."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.int64), spaces.Discrete(3)
    task: Any = None

    def sample_tasks(self, count: int) -> list[int]:
        return self.np_random.integers(3, size=count).tolist()

    def reset_task(self, task: Any) -> None:
        self.task = task

    def get_task(self) -> Any:
        return self.task

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        self.acted = 0
        return np.array([0]), {}

    def step(self, action: Any) -> Any:
        self.acted += 1
        return np.array([self.acted]), float(action == self.task), self.acted == 3, False, {}


@pytest.mark.parametrize(
    ("k", "oracle", "low", "high"),
    [
        (1, False, [-np.inf] * 2, [np.inf] * 2),
        (2, False, [-np.inf] * 2 + [0], [np.inf] * 2 + [1]),
        (1, True, [-np.inf] * 2 + [-1, -1], [np.inf] * 2 + [1, 1]),
        (3, True, [-np.inf] * 2 + [-1, -1, 0], [np.inf] * 2 + [1, 1, 1]),
    ],
)
def test_episode_flag_and_task_are_appended_to_observations(
    k: int, oracle: bool, low: list[float], high: list[float]
) -> None:
    env = made(k, oracle)
    space = env.observation_space
    assert isinstance(space, spaces.Box) and space.dtype == np.float32
    assert space.low.tolist() == low and space.high.tolist() == high
    env.reset_task(TASK)
    observation, _ = env.reset(seed=0)
    assert observation in space and (not oracle or observation[2:4].tolist() == TASK.tolist())


def test_inner_episodes_follow_one_another_with_flagged_last_observations() -> None:
    env, inside = made(3), PointRobot(4)
    env.reset_task(TASK)
    inside.reset_task(TASK)
    seen, _ = env.reset(seed=5)
    assert seen.tolist() == [*inside.reset(seed=5)[0], 0.0]
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 2)).astype(np.float32)
    for t, action in enumerate(actions):
        seen, reward, terminated, truncated, info = env.step(action)
        shown, expected, _, over, _ = inside.step(action * np.float32(0.1))
        assert np.allclose(seen, [*shown, float(over)]) and np.isclose(reward, expected)
        assert over == (t % 4 == 3) and (terminated, truncated) == (False, t == 11)
        assert ("returns_per_episode" in info) == (t == 11)
        if over:
            inside.reset()
        assert env.get_task().tolist() == TASK.tolist()
    with pytest.raises(mv.errors.InvalidRequest, match="without a meta-episode: call reset"):
        env.step(actions[0])


def test_first_observation_of_an_inner_reset_is_not_returned() -> None:
    env = mv.MetaEpisode(PointRobot(2), 2)
    env.reset_task(TASK)
    env.reset(seed=0)
    up = np.array([0.0, 1.0])
    places = [env.step(up)[0].tolist() for _ in range(4)]
    expected = [[0, 0.1, 0], [0, 0.2, 1], [0, 0.1, 0], [0, 0.2, 1]]
    assert np.allclose(places, expected)


def test_inner_termination_ends_the_meta_episode_only_if_it_is_the_last() -> None:
    env = mv.MetaEpisode(Falls(5), 2)
    env.reset(seed=0)
    ends = [env.step(np.zeros(2))[2:4] for _ in range(4)]
    assert ends == [(False, False), (False, False), (False, False), (True, False)]


def test_returns_and_successes_of_every_episode_are_in_the_info() -> None:
    env = mv.MetaEpisode(PointRobotSparse(12, start="origin"), 2)
    env.reset_task([0.0, 1.0])
    env.reset(seed=0)
    rewards = []
    for t in range(24):
        up = 1.0 if t >= 12 else -1.0  # away from the goal first
        _, reward, _, truncated, info = env.step(np.array([0.0, up]))
        rewards.append(reward)
    assert truncated and info["returns_per_episode"].tolist() == [0.0, sum(rewards[12:])] != [0.0, 0.0]
    assert info["success_per_episode"].tolist() == [False, True]


@pytest.mark.parametrize(("given", "taken"), [(-1, -0.1), (1, 0.1), (0, 0.0), (0.5, 0.05), (3, 0.1)])
def test_actions_are_rescaled_to_the_bounds(given: float, taken: float) -> None:
    env = made(1)
    assert env.action_space == spaces.Box(-1, 1, (2,), np.float32)
    env.reset(seed=0)
    assert np.allclose(env.step(np.array([given, 0.0]))[0], [taken, 0.0])


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.7), (-1.0, -0.2), (-0.5, 0.1), (-0.4, 0.2)])
def test_rescaled_actions_stay_within_the_bounds(low: float, high: float) -> None:
    class Strict(PointRobot):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(low, high, (2,), np.float32)

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return super().step(action)

    env = mv.MetaEpisode(Strict(), 1)
    env.reset(seed=0)
    for action in (1.0, -1.0, np.nextafter(np.float32(1), np.float32(0))):
        env.step(np.full(2, action, np.float32))
    for policy in (mv.RandomPolicy(Strict().action_space),):
        assert Strict().action_space.contains(policy.for_env(np.ones((1, 2), np.float32))[0])


def test_non_finite_rewards_are_left_out_of_the_returns() -> None:
    class Odd(PointRobot):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, float("nan") if self._steps == 2 else 1.0, *rest

    env, info = mv.MetaEpisode(Odd(4), 2), {}
    env.reset(seed=0)
    while "returns_per_episode" not in info:
        *_, info = env.step(np.zeros(2))
    assert info["returns_per_episode"].tolist() == [3.0, 3.0]


def test_discrete_actions_and_integer_observations_are_supported() -> None:
    env = mv.MetaEpisode(Counts(), 2, oracle=True)
    assert env.action_space == spaces.Discrete(3) and env.observation_space.dtype == np.float32
    env.reset_task(2)
    assert env.reset(seed=0)[0].tolist() == [0, 2, 0]
    assert [env.step(2)[1] for _ in range(6)] == [1.0] * 6


def test_meta_episode_without_a_given_task_draws_and_keeps_one() -> None:
    env, found = made(2, horizon=2), []
    for seed in (3, None, None, 3):
        env.reset(seed=seed)
        found.append(env.get_task().tolist())
        for _ in range(4):
            env.step(np.zeros(2))
            assert env.get_task().tolist() == found[-1]
    assert found[0] == found[3] and len({tuple(task) for task in found}) == 3


def test_restored_env_continues_exactly() -> None:
    env = made(3, oracle=True)
    env.reset(seed=1)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 2))

    def rest() -> list[Any]:
        return [part for action in actions[6:] for part in (*env.step(action)[:2], env.get_task())]

    for action in actions[:6]:
        env.step(action)
    state = pickle.loads(pickle.dumps(env.save_state()))
    once = rest()
    env.reset(seed=2)
    env.restore_state(state)
    assert all(np.array_equal(one, other) for one, other in zip(once, rest(), strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mv.MetaEpisode(PointRobot(), 0), "episodes_per_task=0: expected at least 1"),
        (lambda: mv.MetaEpisode(PointRobot(), 1.5), "episodes_per_task"),  # type: ignore[arg-type]
        (lambda: mv.MetaEpisode(gymnasium.make("CartPole-v1"), 2), "has no sample_tasks, reset_task, get_task"),
    ],
)
def test_invalid_arguments_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        make()


def test_unsupported_spaces_are_refused() -> None:
    class Odd(Counts):
        observation_space = spaces.Dict({"a": spaces.Discrete(2)})  # type: ignore[assignment]

    class Endless(Counts):
        action_space = spaces.Box(-np.inf, np.inf, (2,))  # type: ignore[assignment]

    class Whole(Counts):
        action_space = spaces.Box(0, 9, (2,), np.int64)  # type: ignore[assignment]

    class Named(Counts):
        task = "left"

    with pytest.raises(mv.errors.InvalidRequest, match="has whole numbers"):
        mv.MetaEpisode(Whole(), 2)
    with pytest.raises(mv.errors.InvalidRequest, match="oracle=True needs tasks of numbers; the task is 'left'"):
        mv.MetaEpisode(Named(), 2, oracle=True)
    with pytest.raises(mv.errors.InvalidRequest, match="expected a flat Box"):
        mv.MetaEpisode(Odd(), 2)
    with pytest.raises(mv.errors.InvalidRequest, match="is not bounded"):
        mv.MetaEpisode(Endless(), 2)


@pytest.mark.parametrize("name", ["PointRobotSparse-v0", "HalfCheetahVel-v0", "AntDir-v0"])
def test_check_env_reports_no_problem(name: str) -> None:
    pytest.importorskip("mujoco")

    def make() -> Any:
        return mv.MetaEpisode(gymnasium.make(f"multiverse/{name}"), 2, oracle=True)

    report = mv.check_env(make)
    assert [str(finding) for finding in report.findings if finding.severity != "info"] == []


# -- tasks -----------------------------------------------------------------------------------------------------------
def test_train_and_eval_tasks_are_disjoint_and_depend_on_the_seed() -> None:
    env = made(2)
    train, held_out = mv.draw_tasks(env, 50, 20, seed=7)
    assert (len(train), len(held_out)) == (50, 20)
    assert len(np.unique([*train, *held_out], axis=0)) == 70
    env.reset(seed=99)  # whatever happened before
    again = mv.draw_tasks(env, 50, 20, seed=7)
    assert np.array_equal(again[0], train) and np.array_equal(again[1], held_out)
    assert not np.array_equal(mv.draw_tasks(env, 50, 20, seed=8)[0], train)


def test_tasks_can_be_dicts_of_arrays_and_lists() -> None:
    class Dicts(Counts):
        def sample_tasks(self, count: int) -> list[Any]:
            return [{"goal": self.np_random.uniform(size=2), "words": ["a", k % 2]} for k in range(count)]

    train, held_out = mv.draw_tasks(Dicts(), 3, 2, seed=0)
    assert (len(train), len(held_out)) == (3, 2)

    class Twice(Dicts):
        def sample_tasks(self, count: int) -> list[Any]:
            return super().sample_tasks(1) * count

    with pytest.raises(mv.errors.InvalidRequest, match="as a train task and as an eval task"):
        mv.draw_tasks(Twice(), 1, 1, seed=0)


def test_invalid_or_insufficient_tasks_are_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="as a train task and as an eval task: if there are too few"):
        mv.draw_tasks(Counts(), 10, 10, seed=0)
    with pytest.raises(mv.errors.InvalidRequest, match="num_train=0: expected at least 1"):
        mv.draw_tasks(Counts(), 0, 3, seed=0)

    class Unseeded(Counts):
        def sample_tasks(self, count: int) -> list[Any]:
            return np.random.default_rng().uniform(size=count).tolist()

    with pytest.raises(
        mv.errors.InvalidRequest, match=r"returned different tasks for the same seed, 0, .*self\.np_random"
    ):
        mv.draw_tasks(Unseeded(), 2, 1, seed=0)

    class Three(Counts):
        def sample_tasks(self, count: int) -> list[int]:
            return [0, 1, 2][:count]

    with pytest.raises(
        mv.errors.InvalidRequest,
        match=r"sample_tasks\(4\) of .* returned 3 tasks: ask for at most as many train and eval tasks together",
    ):
        mv.draw_tasks(Three(), 2, 2, seed=0)
    assert mv.draw_tasks(Three(), 2, 1, seed=0) == ([0, 1], [2])

    class Strict(Counts):
        def sample_tasks(self, count: int) -> list[int]:
            return self.np_random.choice(3, count, replace=False).tolist()

    with pytest.raises(
        mv.errors.InvalidRequest, match=r"failed: ValueError: .*; if there are too few tasks, ask for fewer"
    ):
        mv.draw_tasks(Strict(), 2, 2, seed=0)


@pytest.mark.parametrize(("executor", "workers"), [("serial", None), ("process", 1), ("process", 2)])
def test_all_envs_of_a_run_share_one_list_of_tasks(executor: Any, workers: int | None) -> None:
    """Sampled once and sent to every worker: envs use only tasks of that list, and only held-out tasks are held out."""
    make: Callable[[], Any] = partial(made, 2)
    train, held_out = mv.draw_tasks(make(), 6, 3, seed=4)
    plan = mv.DrawnTasks(4, range(6))
    with mv.make_vec(make, 4, executor, workers=workers, tasks=[*train, *held_out], reset_plan=plan) as envs:
        played = set()
        for _ in range(8):
            envs.reset()
            played |= {tuple(task) for task in envs.call("get_task")}
        assert played <= {tuple(task) for task in train} and len(played) == 6
        envs.reset(tasks=[6, 7, 8, 6])
        evaluated = {tuple(task) for task in envs.call("get_task")}
        assert evaluated == {tuple(task) for task in held_out} and not evaluated & played
