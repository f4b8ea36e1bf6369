"""Pictures of built-in envs, drawn with pygame on a surface of their own, so that images need no window.

pygame is imported when the first picture is drawn.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from gymnasium import logger

from multiverse.core.errors import InvalidRequest


class Drawn:
    """`render` and `close` of an env whose world is drawn by a renderer, as an image or in a window."""

    render_mode: str | None
    _rng: np.random.Generator | None
    _renderer: Pictures | None = None

    def _new_renderer(self) -> Pictures:
        raise NotImplementedError

    def _scene(self) -> Any:
        """Return what the renderer draws."""
        raise NotImplementedError

    def render(self) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Return the world as an image [height, width, 3] (`rgb_array`), or show it in a window (`human`)."""
        if self.render_mode is None:
            logger.warn("render() does nothing without a render_mode: make the env with render_mode='rgb_array'")
            return None
        if self._rng is None:
            raise InvalidRequest("render() before the first reset(): there is no world yet")
        if self._renderer is None:
            self._renderer = self._new_renderer()
        if self.render_mode != "human":
            return self._renderer.image(self._scene())
        self._renderer.show(self._scene())
        return None

    def close(self) -> None:
        """Close the window if there is one. The env can be reset and used again."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()


class Pictures:
    """A surface that becomes an image or goes into a window. Subclasses draw on it."""

    def __init__(self, what: str, extras: str, size: tuple[int, int], frames_per_second: float) -> None:
        self._what, self._frames_per_second = what, frames_per_second
        self._pygame = _pygame(what, extras)
        self._surface = self._pygame.Surface(size)
        self._window: Any = None
        self._clock: Any = None

    def _draw(self, scene: Any) -> None:
        raise NotImplementedError

    def image(self, scene: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an image [height, width, 3] that belongs to the caller."""
        self._draw(scene)
        pixels = self._pygame.surfarray.array3d(self._surface)  # [x, y, 3]
        return np.ascontiguousarray(pixels.transpose(1, 0, 2))

    def show(self, scene: Any) -> None:
        """Draw in a window, no faster than the frames per second."""
        self._draw(scene)
        if self._window is None:
            self._pygame.display.init()
            self._pygame.display.set_caption(self._what)
            self._window = self._pygame.display.set_mode(self._surface.get_size())
            self._clock = self._pygame.time.Clock()
        self._window.blit(self._surface, (0, 0))
        self._pygame.event.pump()
        self._pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window = None
            self._pygame.display.quit()


def _pygame(what: str, extras: str) -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # or importing it prints
    try:
        import pygame
    except ImportError as error:
        raise ImportError(
            f"drawing {what} needs pygame, which is not installed: pip install 'multiverse[{extras}]'"
        ) from error
    return pygame
