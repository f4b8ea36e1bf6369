"""A grid world as a picture."""

from __future__ import annotations

from multiverse.envs.grid_world.setup import Look, WorldSetup
from multiverse.envs.grid_world.world import Body, Target, World
from multiverse.envs.pictures import Pictures

PICTURE_PIXELS = 600
SMALLEST_CELL = 4
FLOOR, LINES, OBSTACLE, DOT = (250, 250, 247), (224, 224, 220), (72, 76, 84), (255, 255, 255)


class Renderer(Pictures):
    """Draws worlds of one setup, into images or a window."""

    def __init__(self, setup: WorldSetup, frames_per_second: int) -> None:
        self._setup = setup
        self._cell = max(SMALLEST_CELL, PICTURE_PIXELS // setup.size)
        side = self._cell * setup.size
        super().__init__("the grid world", "pettingzoo", (side, side), frames_per_second)

    def _draw(self, world: World) -> None:
        self._surface.fill(FLOOR)
        self._draw_lines()
        for x, y in world.obstacles:
            self._surface.fill(OBSTACLE, self._square(x, y, 0))
        if world.target is not None and self._setup.target is not None:
            self._draw_target(world.target, self._setup.target.look, self._setup.target.view_cells // 2)
        for body in world.bodies:
            self._draw_body(body)

    def _draw_lines(self) -> None:
        cell, end = self._cell, self._cell * self._setup.size
        for at in range(0, end, cell):
            self._pygame.draw.line(self._surface, LINES, (at, 0), (at, end))
            self._pygame.draw.line(self._surface, LINES, (0, at), (end, at))

    def _draw_target(self, target: Target, look: Look, radius: int) -> None:
        """A triangle, in the frame of what it sees."""
        x, y, half = *self._middle(target.x, target.y), self._half(look)
        corners = [(x, y - half), (x - half, y + half), (x + half, y + half)]
        self._pygame.draw.polygon(self._surface, look.color, corners)
        self._pygame.draw.rect(self._surface, look.color, self._square(target.x, target.y, radius), look.outline_width)

    def _draw_body(self, body: Body) -> None:
        """A disc on the ground, a square with a dot for each level in the air, in the frame of what it sees."""
        look = body.setup.look
        x, y, half = *self._middle(body.x, body.y), self._half(look)
        if body.setup.flies:
            self._pygame.draw.rect(self._surface, look.color, (x - half, y - half, 2 * half, 2 * half))
            for level in range(body.altitude):
                at = (x + (level - (body.altitude - 1) / 2) * half * 0.6, y)
                self._pygame.draw.circle(self._surface, DOT, at, max(1, half // 6))
        else:
            self._pygame.draw.circle(self._surface, look.color, (x, y), half)
        self._pygame.draw.rect(self._surface, look.color, self._square(body.x, body.y, body.radius), look.outline_width)

    def _square(self, x: int, y: int, radius: int) -> tuple[int, int, int, int]:
        """Left, top, width and height of the cells up to `radius` around one."""
        side = (2 * radius + 1) * self._cell
        return (x - radius) * self._cell, (y - radius) * self._cell, side, side

    def _middle(self, x: int, y: int) -> tuple[int, int]:
        return x * self._cell + self._cell // 2, y * self._cell + self._cell // 2

    def _half(self, look: Look) -> int:
        return max(1, int(self._cell * look.box_scale / 2))
