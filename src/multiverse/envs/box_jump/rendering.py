"""Pictures of BoxJump worlds, drawn at twice the size and scaled down, which smooths rotated edges."""

from __future__ import annotations

import colorsys
import math
from typing import Any

from multiverse.envs.box_jump.setup import FLOOR, Setup
from multiverse.envs.box_jump.world import ANGLE, VY, World, X, Y
from multiverse.envs.teams import Pictures

Color = tuple[int, int, int]

SCALE, FINER = 32, 2
"""Pixels of one box in the picture; factor by which it is drawn larger."""
LEAST_HEIGHT, ABOVE_TOWER, GROUND = 8, 2, 2
"""In boxes: least height of the picture, space above a tower of all boxes, and space below the floor."""
SKY_TOP, SKY_BOTTOM = (196, 220, 242), (244, 248, 250)
EARTH, GRASS, LINES, BEST, INK = (94, 84, 78), (110, 158, 92), (178, 198, 214), (214, 72, 60), (46, 50, 58)


class Renderer(Pictures):
    """Draws worlds of one setup."""

    def __init__(self, setup: Setup) -> None:
        boxes_high = max(LEAST_HEIGHT, setup.num_boxes + ABOVE_TOWER)
        width, height = round(setup.world_width * SCALE), (boxes_high + GROUND) * SCALE
        super().__init__("BoxJump", "box2d,pettingzoo", (width, height), frames_per_second=1 / setup.timestep_s)
        self._pygame.font.init()
        self._setup = setup
        self._top = FLOOR - boxes_high  # the y at the picture's upper edge
        self._unit = SCALE * FINER
        self._fine = self._pygame.Surface((width * FINER, height * FINER))
        self._font = self._pygame.font.Font(None, round(self._unit * 0.62))
        self._background = self._draw_background()
        self._colors = [_color(i / setup.num_boxes) for i in range(setup.num_boxes)]

    def _draw(self, scene: tuple[World, int]) -> None:
        world, timestep = scene
        self._fine.blit(self._background, (0, 0))
        self._draw_best(world)
        for i, row in enumerate(world.rows):
            self._draw_box(i, row, world.stable[i])
        self._write(f"best {world.best:.2f}", 0.5, self._top + 0.6, BEST)
        self._write(f"step {timestep}", self._setup.world_width - 3.2, self._top + 0.6, INK)
        self._pygame.transform.smoothscale(self._fine, self._surface.get_size(), self._surface)

    def _draw_background(self) -> Any:
        """Draw the sky, a line for every box of height, and the floor."""
        surface = self._fine.copy()
        width, floor = surface.get_width(), self._at(0, FLOOR)[1]
        for y in range(floor):
            color = [round(a + (b - a) * y / floor) for a, b in zip(SKY_TOP, SKY_BOTTOM)]
            surface.fill(color, (0, y, width, 1))
        for height in range(1, math.ceil(FLOOR - self._top)):
            surface.fill(LINES, (0, self._at(0, FLOOR - height)[1], width, FINER))
        surface.fill(EARTH, (0, floor, width, surface.get_height() - floor))
        surface.fill(GRASS, (0, floor, width, self._unit // 5))
        return surface

    def _draw_best(self, world: World) -> None:
        """Draw a dashed line at the best height so far."""
        y = self._at(0, FLOOR - 1 - world.best)[1]
        dash = self._unit // 3
        for x in range(0, self._fine.get_width(), 2 * dash):
            self._fine.fill(BEST, (x, y - FINER, dash, 2 * FINER))

    def _draw_box(self, index: int, row: tuple[float, ...], stable: bool) -> None:
        """Draw a box with eyes that look where it moves; its rim is dark while it can jump."""
        color, pygame = self._colors[index], self._pygame
        pygame.draw.polygon(self._fine, INK if stable else _shade(color, 0.6), self._square(row, 0.5))
        pygame.draw.polygon(self._fine, color, self._square(row, 0.44))
        look = max(-0.06, min(0.06, row[VY] * 0.03))
        for side in (-0.17, 0.17):
            pygame.draw.circle(self._fine, (255, 255, 255), self._inside(row, side, -0.1), self._unit * 0.13)
            pygame.draw.circle(self._fine, INK, self._inside(row, side, -0.1 + look), self._unit * 0.06)
        mouth = [self._inside(row, x, 0.2) for x in (-0.14, 0.14)]
        pygame.draw.line(self._fine, INK, *mouth, max(2, self._unit // 16))

    def _square(self, row: tuple[float, ...], half: float) -> list[tuple[int, int]]:
        return [self._inside(row, x, y) for x, y in ((-half, -half), (half, -half), (half, half), (-half, half))]

    def _inside(self, row: tuple[float, ...], right: float, down: float) -> tuple[int, int]:
        """Return the pixel of a point of a rotated box."""
        cos, sin = math.cos(row[ANGLE]), math.sin(row[ANGLE])
        return self._at(row[X] + right * cos - down * sin, row[Y] + right * sin + down * cos)

    def _at(self, x: float, y: float) -> tuple[int, int]:
        return round(x * self._unit), round((y - self._top) * self._unit)

    def _write(self, text: str, x: float, y: float, color: Color) -> None:
        self._fine.blit(self._font.render(text, True, color), self._at(x, y))


def _color(share: float) -> Color:
    red, green, blue = colorsys.hsv_to_rgb(0.02 + 0.82 * share, 0.55, 0.93)
    return round(red * 255), round(green * 255), round(blue * 255)


def _shade(color: Color, by: float) -> Color:
    red, green, blue = color
    return round(red * by), round(green * by), round(blue * by)
