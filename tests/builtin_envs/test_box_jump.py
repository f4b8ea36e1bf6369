"""BoxJump: its rules, observations and rewards, and its agreement with the env of the published figures."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

import multiverse as mv
from multiverse.envs.box_jump import REWARD_MODES, BoxJump, parallel_env, published, v0, v1
from multiverse.envs.box_jump.setup import FLOOR, WORLD_HEIGHT
from tests.equality import assert_same

NOOP, LEFT, RIGHT, JUMP = range(4)
X, HEIGHT, VX, VY, TURNS, TURNING, TO_LEFT, TO_RIGHT, ABOVE, BELOW, CAN_JUMP = range(11)

Act = Callable[[np.random.Generator, int], list[int]]


def drawn(rng: np.random.Generator, boxes: int) -> list[int]:
    return rng.integers(0, 4, boxes).tolist()


def always(action: int) -> Act:
    return lambda rng, boxes: [action] * boxes


def steps(env: BoxJump, act: Act, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, bool, bool]]:
    """Play an episode: observations before and after each step, rewards, terminated, truncated."""
    observations, _ = env.reset(seed=seed)
    rng, agents = np.random.default_rng(seed), env.possible_agents
    before = np.stack(list(observations.values()))
    while env.agents:
        observations, rewards, terminated, truncated, _ = env.step(dict(zip(agents, act(rng, len(agents)))))
        after = np.stack(list(observations.values()))
        yield before, after, np.array(list(rewards.values())), terminated[agents[0]], truncated[agents[0]]
        before = after


def team_return(env: BoxJump, act: Act, seed: int = 0) -> float:
    return float(sum(rewards.sum() for _, _, rewards, _, _ in steps(env, act, seed)))


# -- it is a PettingZoo env --------------------------------------------------------------------------------------------
TEAMS: dict[str, dict[str, Any]] = {
    "alone": {"num_boxes": 1},
    "two": {"num_boxes": 2},
    "published": {"num_boxes": 8, "agent_one_hot": True, "include_highest": True, "include_time": True},
    "sixteen": {"num_boxes": 16, "include_num_boxes": True, "fixed_rotation": True},
}


@pytest.mark.parametrize("make", [v0, v1])
@pytest.mark.parametrize("arguments", TEAMS.values(), ids=TEAMS.keys())
def test_box_jump_passes_pettingzoos_tests(arguments: dict[str, Any], make: Callable[..., BoxJump]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(make(max_timestep=40, **arguments), num_cycles=150)
        parallel_seed_test(partial(make, max_timestep=40, **arguments), num_cycles=100)


@pytest.mark.parametrize("name", ["BoxJump-v0", "multiverse.envs.box_jump:parallel_env"])
def test_make_vec_finds_box_jump_and_workers_play_equal_episodes(name: str) -> None:
    kwargs, rng = {"num_boxes": 3, "max_timestep": 30}, np.random.default_rng(0)
    with mv.make_vec(name, 2, "process", workers=2, env_kwargs=kwargs) as envs:
        single = [parallel_env(**kwargs) for _ in range(2)]
        assert_same(envs.reset(seed=5)[0], _stacked([env.reset(seed=5 + i)[0] for i, env in enumerate(single)]))
        for _ in range(30):
            actions = {agent: rng.integers(0, 4, 2) for agent in envs.agents}
            found = envs.step(actions)
            alone = [env.step({a: int(batch[i]) for a, batch in actions.items()}) for i, env in enumerate(single)]
            assert_same(found[0], _stacked([each[0] for each in alone]))
            assert_same(found[1], _stacked([each[1] for each in alone]))


def _stacked(each: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {agent: np.stack([one[agent] for one in each]) for agent in each[0]}


def test_boxes_are_named_as_in_the_published_env() -> None:
    assert published().possible_agents == [f"box-{i}" for i in range(1, 9)]


# -- it is the env that published figures are for ----------------------------------------------------------------------
def test_team_returns_equal_those_of_the_original() -> None:
    """Original with 8 boxes: no action .02, always jumping 1.89, random 2.20 ± .26, at most 3.12 in 50 episodes."""
    assert team_return(v0(num_boxes=8), always(NOOP)) == pytest.approx(0.02, abs=0.01)
    assert team_return(v0(num_boxes=8), always(JUMP)) == pytest.approx(1.89, abs=0.01)
    found = [team_return(v0(num_boxes=8), drawn, seed) for seed in range(20)]
    assert np.mean(found) == pytest.approx(2.20, abs=0.2)
    assert 0.1 < np.std(found) < 0.5 and max(found) < 3.5


def test_episode_has_one_step_more_than_max_timestep_and_the_last_pays_nothing() -> None:
    episode = list(steps(v0(num_boxes=2, reward_mode="height_sq", max_timestep=400), always(JUMP)))
    assert len(episode) == 401
    assert [truncated for *_, truncated in episode] == [False] * 400 + [True]
    assert not any(terminated for *_, terminated, _ in episode)
    assert (episode[-1][2] == 0).all() and (episode[-2][2] != 0).all()


# -- moving ------------------------------------------------------------------------------------------------------------
def test_box_can_jump_only_after_ten_calm_steps() -> None:
    env = v0(num_boxes=1, random_spacing=0.0)
    heights, can_jump = [], []
    for _, after, *_ in steps(env, always(JUMP)):
        heights.append(after[0, HEIGHT])
        can_jump.append(bool(after[0, CAN_JUMP]))
    first = next(i for i, height in enumerate(heights) if height > 0.1)
    assert can_jump[:9] == [False] * 9 and can_jump[9] and first == 9
    assert max(heights) == pytest.approx(1.89, abs=0.01)
    landed = next(i for i in range(first, len(heights)) if heights[i] < 0.1)
    assert landed > 40 and not any(can_jump[first + 1 : landed])  # no jump in the air


@pytest.mark.parametrize(("action", "sign"), [(LEFT, -1), (RIGHT, 1)])
def test_sideways_speed_of_a_box_is_limited(action: int, sign: int) -> None:
    speeds = [after[0, VX] * 2 * sign for _, after, *_ in steps(v0(num_boxes=1, max_timestep=60), always(action))]
    assert 2 < max(speeds) < 2.3  # the last push comes at 2, and takes it a little further
    assert min(speeds[20:]) > 1.5


def test_only_free_boxes_rotate() -> None:
    for fixed in (True, False):
        turns = [np.abs(after[:, TURNS]).max() for _, after, *_ in steps(v0(num_boxes=8, fixed_rotation=fixed), drawn)]
        assert (max(turns) > 0) != fixed


def test_version_1_takes_six_longer_physics_steps() -> None:
    slow, fast = v0(num_boxes=1, random_spacing=0.0), v1(num_boxes=1, random_spacing=0.0)
    heights = [[after[0, HEIGHT] for _, after, *_ in steps(env, always(JUMP))] for env in (slow, fast)]
    assert len(heights[1]) == 401
    assert next(i for i, height in enumerate(heights[1]) if height > 0.1) == 1  # 12 physics steps are two actions
    assert 1.4 < max(heights[1]) < 1.9


# -- observations ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("boxes", [1, 2, 5, 16])
def test_observations_equal_a_slow_reference(boxes: int) -> None:
    env = v0(num_boxes=boxes, world_width=24.0, spacing=1.3, max_timestep=150)
    turned = 0
    for _, after, *_ in steps(env, drawn, seed=boxes):
        expected = [_slow_view(env, i) for i in range(boxes)]
        np.testing.assert_allclose(after[:, :CAN_JUMP], expected, atol=1e-5)
        turned += np.abs(after[:, TURNS]).max() > 0.1
    assert boxes < 5 or turned


def _slow_view(env: BoxJump, i: int) -> list[float]:
    bodies, width = env.world._bodies, env.setup.world_width
    here = bodies[i].position
    left = right = above = 1.0
    below = (FLOOR - here.y) / WORLD_HEIGHT
    nearest = np.inf
    for body in bodies[:i] + bodies[i + 1 :]:
        dx, dy = body.position.x - here.x, body.position.y - here.y
        if 1 - abs(dy) > 0.1:
            left = min(left, -dx / width) if dx < 0 else left
            right = min(right, dx / width) if dx > 0 else right
        if 1 - abs(dx) > 0.1:
            above = min(above, -dy / WORLD_HEIGHT) if dy < 0 else above
            if 0 < dy < nearest:
                nearest, below = dy, dy / WORLD_HEIGHT
    speed, quarters = bodies[i].linearVelocity, bodies[i].angle / (np.pi / 2)
    height = FLOOR - here.y - 0.5
    shown = height if height >= -0.001 else -1.0
    turns = (quarters + 0.5) % 1 - 0.5
    turning = bodies[i].angularVelocity * 0.5
    return [here.x / width * 2 - 1, shown, speed.x * 0.5, speed.y * 0.125, turns, turning, left, right, above, below]


def test_optional_observations_follow_the_eleven_standard_ones() -> None:
    env = v0(num_boxes=3, agent_one_hot=True, include_highest=True, include_time=True, include_num_boxes=True)
    best = 0.0
    for t, (before, after, *_) in enumerate(steps(env, drawn), 1):
        best = max(best, before[:, HEIGHT].max())  # as it is before the physics step
        np.testing.assert_allclose(after[:, 11], best, atol=1e-6)
        np.testing.assert_allclose(after[:, 12], t / 400)
        assert (after[:, 13:16] == np.eye(3)).all() and (after[:, 16] == 3).all()


def test_teams_of_every_size_have_equal_spaces_unless_boxes_are_numbered() -> None:
    of = [v0(num_boxes=n, include_highest=True, include_num_boxes=True).observation_space("box-1") for n in (1, 4, 16)]
    assert of[0] == of[1] == of[2]
    assert published(num_boxes=4).observation_space("box-1").shape == (17,)


def test_state_has_the_observations_of_every_box_and_common_values_once() -> None:
    env = v0(num_boxes=3, agent_one_hot=True, include_time=True, include_num_boxes=True)
    for _, after, *_ in steps(env, drawn):
        np.testing.assert_array_equal(env.state(), [*after[:, :11].ravel(), after[0, 11], 3])
        assert env.state_space.contains(env.state())


# -- rewards -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", REWARD_MODES)
def test_rewards_of_every_mode_equal_a_slow_reference(mode: str) -> None:
    """The observations contain the heights before a step and which boxes are stable."""
    boxes, most, best = 6, 120, 0.0
    env, paid = v0(num_boxes=boxes, reward_mode=mode, max_timestep=most), 0.0
    for before, after, rewards, _, truncated in steps(env, drawn, seed=1):
        heights, stable = before[:, HEIGHT].astype(float), after[:, CAN_JUMP] > 0
        expected, best = _slow_rewards(mode, heights, stable, best)
        np.testing.assert_allclose(rewards, 0 if truncated else expected / boxes / _share(mode, most), atol=2e-6)
        paid += np.abs(rewards).sum()
    assert paid > 0


def _share(mode: str, steps: int) -> int:
    return 1 if mode.startswith("highest") else steps


def _slow_rewards(mode: str, heights: np.ndarray, stable: np.ndarray, best: float) -> tuple[np.ndarray, float]:
    """Times the number of boxes and, except for the modes that pay the gain, times the steps."""
    if mode == "height_sq":
        return heights**2, best
    if mode == "stable_sum":
        return 50 * heights**2 * stable, best
    top = max([0.0, *heights[stable]]) if "stable" in mode else heights.max()
    if mode.startswith("dense"):
        return np.full(len(heights), 10 * top**2 if mode.endswith("sq") else 50 * top), best
    return np.full(len(heights), max(0.0, top - best)), max(best, top)


def test_team_return_is_the_height_gained() -> None:
    for make in (v0, v1):
        env = make(num_boxes=5, fixed_rotation=True)
        assert team_return(env, drawn, seed=3) == pytest.approx(env.world.best, abs=1e-6)
        assert env.world.best > 1.5


def test_dense_rewards_of_version_1_are_means_over_the_physics_steps() -> None:
    env = v1(num_boxes=2, reward_mode="dense_height", max_timestep=50, gravity=0.0)
    env.reset(seed=0)
    env.world._bodies[0].position = 15.0, FLOOR - 2.5
    env.world.advance()
    for _ in range(3):
        _, rewards, *_ = env.step({"box-1": NOOP, "box-2": NOOP})
        assert rewards["box-1"] == rewards["box-2"] == pytest.approx(50 * 2 / 2 / 50, rel=1e-5)


def test_fallen_box_pays_a_penalty_each_step_without_ending_the_episode() -> None:
    env = v0(num_boxes=2, world_width=5.0, penalty_fall=20.0, max_timestep=400)
    one_falls: Act = lambda rng, boxes: [NOOP, RIGHT]  # noqa: E731
    fallen = [(before[1, HEIGHT] == -1, rewards) for before, _, rewards, *_ in steps(env, one_falls)]
    assert sum(down for down, _ in fallen) > 100
    for down, rewards in fallen[:-1]:
        assert (rewards[1] == -20 / 400) == down
        assert rewards[0] >= 0


def test_version_1_ends_when_a_box_leaves_the_world() -> None:
    env = v1(num_boxes=2, world_width=6.0)
    one_leaves: Act = lambda rng, boxes: [LEFT, NOOP]  # noqa: E731
    *others, (_, after, rewards, terminated, truncated) = list(steps(env, one_leaves))
    assert terminated and not truncated and len(others) < 100 and after[0, X] < -1
    assert rewards[0] <= -100 and rewards[1] >= 0
    assert all((rewards >= 0).all() for _, _, rewards, *_ in others)


def test_tallest_tower_counts_only_standing_boxes() -> None:
    env = v0(num_boxes=2, fixed_rotation=True, random_spacing=0.0)
    env.reset(seed=0)
    lower, upper = env.world._bodies
    upper.position = lower.position.x + 0.2, lower.position.y - 1.0
    jump = {"box-1": NOOP, "box-2": JUMP}
    for _ in range(9):
        env.step({"box-1": NOOP, "box-2": NOOP})
    assert env.tallest_tower < 0.1
    for _ in range(30):
        env.step(jump)
    assert env.tallest_tower == pytest.approx(1.0, abs=0.05)
    assert env.world.best > 2.5  # in the air, where no box stands


def test_many_episodes_do_not_grow_memory() -> None:
    env, here = v0(num_boxes=16), psutil.Process()
    for episode in range(1500):
        env.reset(seed=episode)
        if episode == 500:
            before = here.memory_info().rss
    assert here.memory_info().rss - before < 1_000_000  # a shape for each box and episode would be 5 MB


# -- what is refused ---------------------------------------------------------------------------------------------------
REFUSED: dict[str, dict[str, Any]] = {
    "expected 1 to 16": {"num_boxes": 17},
    "num_boxes=0: expected at least 1": {"num_boxes": 0},
    "num_boxes='8'": {"num_boxes": "8"},
    "reward_mode='tallest': expected one of highest": {"reward_mode": "tallest"},
    "gravity=-1": {"gravity": -1},
    "friction=nan": {"friction": float("nan")},
    "world_width=0": {"world_width": 0},
    "fixed_rotation=1: expected True or False": {"fixed_rotation": 1},
    "make the world wider": {"num_boxes": 8, "world_width": 10.0},
    "penalty_fall_termination='-100'": {"penalty_fall_termination": "-100"},
    "render_mode='video'": {"render_mode": "video"},
}


@pytest.mark.parametrize(("said", "arguments"), REFUSED.items(), ids=REFUSED.keys())
def test_invalid_arguments_are_refused(said: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=said):
        v0(**arguments)


def test_refused_step_changes_nothing() -> None:
    env, other = v0(num_boxes=2), v0(num_boxes=2)
    with pytest.raises(mv.errors.InvalidRequest, match="before the first reset"):
        env.step({})
    assert_same(env.reset(seed=1)[0], other.reset(seed=1)[0])
    for bad in ({"box-1": 0}, {"box-1": 0, "box-2": 4}, {"box-1": 0, "box-2": 0.5}, {"box-1": 0, "box-2": 0, "b": 0}):
        with pytest.raises(mv.errors.InvalidActions):
            env.step(bad)
    assert_same(env.step({"box-1": 1, "box-2": 2})[0], other.step({"box-1": 1, "box-2": 2})[0])


def test_missing_box2d_is_reported_with_the_install_command() -> None:
    program = (
        "import sys; sys.modules['Box2D'] = None\n"
        "import multiverse as mv\n"
        "try: mv.make_vec('BoxJump-v0')\n"
        "except mv.errors.InvalidRequest as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "BoxJump needs Box2D, which is not installed: pip install 'multiverse[box2d,pettingzoo]'" in said


# -- pictures ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.mark.parametrize(("boxes", "height"), [(1, 320), (8, 384), (16, 640)])
def test_image_height_fits_a_tower_of_all_boxes_without_a_window(boxes: int, height: int) -> None:
    import pygame

    env = v0(num_boxes=boxes, render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert image is not None and image.shape == (height, 960, 3) and image.dtype == np.uint8
    assert not pygame.display.get_init()


def test_image_shows_every_box_at_its_position() -> None:
    env = v0(num_boxes=3, render_mode="rgb_array", random_spacing=0.0)
    env.reset(seed=0)
    first = env.render()
    assert first is not None
    kept = first.copy()
    chins = [first[320 - 64 - 4, round(body.position.x * 32)] for body in env.world._bodies]
    assert len({tuple(color) for color in chins}) == 3  # a colour for each
    for _ in range(30):
        env.step(dict.fromkeys(env.agents, JUMP))
    jumped = env.render()
    assert jumped is not None and not np.array_equal(jumped, kept)
    assert np.array_equal(first, kept)  # the caller's own
    up = round(env.world.heights[0] * 32)
    assert up > 20 and np.abs(jumped[320 - 64 - 4 - up, 432].astype(int) - chins[0]).max() < 12


def test_window_updates_with_each_step_and_can_be_closed_twice(no_screen: None) -> None:
    import pygame

    env = v0(num_boxes=2, render_mode="human", physics_timestep_multiplier=0.05)  # 800 frames a second
    env.reset(seed=0)
    before = pygame.surfarray.array3d(pygame.display.get_surface())
    env.step({"box-1": LEFT, "box-2": RIGHT})
    assert env.render() is None
    assert not np.array_equal(before, pygame.surfarray.array3d(pygame.display.get_surface()))
    env.close()
    env.close()
    assert not pygame.display.get_init()


def test_render_fps_match_the_physics() -> None:
    assert (v0().metadata["render_fps"], v1().metadata["render_fps"]) == (40, 3)
