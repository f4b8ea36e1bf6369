"""Rendering of the grid world: as arrays, and in a window without a screen."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

import multiverse as mv
from multiverse.envs.grid_world import GridWorldEnvMultiAgent, GridWorldParallel, make
from multiverse.envs.grid_world.envs import FLOOR, OBSTACLE
from tests.builtin_envs.worlds import GROUND, OBSERVER, RIGHT, arranged

pytest.importorskip("pygame")

RED, GREEN, BLUE = (200, 0, 0), (0, 200, 0), (0, 0, 200)


@pytest.fixture
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(GridWorldEnvMultiAgent.metadata, "render_fps", 0)


def pixel(image: np.ndarray, x: int, y: int, across: float = 0.5, down: float = 0.5) -> tuple[int, ...]:
    """The colour inside a cell of a 10×10 world, by default in its middle."""
    cell = image.shape[0] // 10
    return tuple(image[int((y + down) * cell), int((x + across) * cell)].tolist())


def test_everything_is_drawn_at_its_position() -> None:
    agents = [{**GROUND, "color": GREEN}, {**OBSERVER, "color": BLUE}]
    target = {"color": RED, "movement_speed": 0.0}
    env = arranged(agents, [(1, 2), (7, 8)], (5, 3), [(9, 0)], size=10, target_config=target, render_mode="rgb_array")
    image = env.render()
    assert image.shape == (600, 600, 3) and image.dtype == np.uint8 and image.flags.c_contiguous
    assert pixel(image, 1, 2) == GREEN
    assert pixel(image, 7, 8, across=0.2) == BLUE
    assert pixel(image, 5, 3, down=0.7) == RED
    assert pixel(image, 9, 0) == OBSTACLE
    assert pixel(image, 4, 9) == FLOOR


def test_image_shows_the_next_step_and_is_a_copy() -> None:
    env = arranged([{**GROUND, "color": GREEN}], [(1, 2)], size=10, render_mode="rgb_array")
    first = env.render()
    kept = first.copy()
    env.step(RIGHT)
    assert pixel(env.render(), 2, 2) == GREEN
    assert np.array_equal(first, kept)


def test_altitude_changes_the_image() -> None:
    env = arranged([OBSERVER], [(4, 4)], size=10, render_mode="rgb_array")
    images = []
    for altitude in (1, 2, 3):
        env.world.bodies[0].be_at(altitude)
        images.append(env.render().tobytes())
    assert len(set(images)) == 3


@pytest.mark.parametrize("size", [2, 7, 20, 200])
def test_worlds_of_every_size_can_be_drawn(size: int) -> None:
    env = make(size=size, num_obstacles=1, render_mode="rgb_array", agents=[{}], parallel=True)
    env.reset(seed=0)
    image = env.render()
    assert image.shape[0] == image.shape[1] == max(4, 600 // size) * size


@pytest.mark.parametrize("made", [GridWorldEnvMultiAgent, GridWorldParallel])
def test_window_updates_with_each_step_and_can_be_closed_twice(made: type, no_screen: None) -> None:
    import pygame

    env = made(render_mode="human")
    assert not pygame.display.get_init()
    env.reset(seed=0)
    assert pygame.display.get_surface().get_size() == (600, 600)
    before = pygame.surfarray.array3d(pygame.display.get_surface())
    for _ in range(20):
        env.step(3 if made is GridWorldEnvMultiAgent else {"ground_0": 3, "observer_0": 5})
    assert not np.array_equal(before, pygame.surfarray.array3d(pygame.display.get_surface()))
    assert env.render() is None
    env.close()
    env.close()
    assert not pygame.display.get_init()
    env.reset(seed=0)  # and opened again
    assert pygame.display.get_init()
    env.close()


def test_render_without_a_render_mode_warns_and_returns_none() -> None:
    env = make()
    env.reset(seed=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert env.render() is None
    assert "render_mode" in str(said[0].message)


def test_render_before_the_first_reset_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="before the first reset"):
        make(render_mode="rgb_array").render()


def test_missing_pygame_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = make(render_mode="rgb_array")
    env.reset(seed=0)  # everything but rendering works
    env.step(0)
    with pytest.raises(ImportError, match=r"pip install 'multiverse\[pettingzoo\]'"):
        env.render()
