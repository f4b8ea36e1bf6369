"""Pictures of built-in envs: drawn with pygame into a surface of their own, so that images need no window.

pygame is imported when the first picture is wanted.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from gymnasium import logger

from multiverse.core.errors import InvalidRequest


class Drawn:
    """`render` and `close` of an env whose world is drawn by a renderer: an image, or in a window."""

    render_mode: str | None
    _rng: np.random.Generator | None
    _renderer: Any = None

    def _new_renderer(self) -> Any:
        raise NotImplementedError

    def _drawn(self) -> tuple[Any, ...]:
        """What the renderer is given."""
        raise NotImplementedError

    def render(self) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """The world as an image [height, width, 3] (`rgb_array`), or in a window (`human`)."""
        if self.render_mode is None:
            logger.warn("render() does nothing without a render_mode: make the env with render_mode='rgb_array'")
            return None
        if self._rng is None:
            raise InvalidRequest("render() before the first reset(): there is no world yet")
        if self._renderer is None:
            self._renderer = self._new_renderer()
        if self.render_mode == "human":
            self._renderer.show(*self._drawn())
            return None
        image: np.ndarray[Any, np.dtype[np.uint8]] = self._renderer.image(*self._drawn())
        return image

    def close(self) -> None:
        """Closes the window if there is one. The env can be reset and used again."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()


class Pictures:
    """A surface to draw on, which becomes an image or goes into a window. Subclasses draw."""

    def __init__(self, what: str, extras: str, size: tuple[int, int]) -> None:
        self._what = what
        self._pygame = _pygame(what, extras)
        self._surface = self._pygame.Surface(size)
        self._window: Any = None
        self._clock: Any = None

    def _image(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """What has been drawn, [height, width, 3], the caller's own."""
        pixels = self._pygame.surfarray.array3d(self._surface)  # [x, y, 3]
        return np.ascontiguousarray(pixels.transpose(1, 0, 2))

    def _show(self, frames_per_second: float) -> None:
        """What has been drawn, in a window, no faster than this."""
        if self._window is None:
            self._pygame.display.init()
            self._pygame.display.set_caption(self._what)
            self._window = self._pygame.display.set_mode(self._surface.get_size())
            self._clock = self._pygame.time.Clock()
        self._window.blit(self._surface, (0, 0))
        self._pygame.event.pump()
        self._pygame.display.flip()
        self._clock.tick(frames_per_second)

    def close(self) -> None:
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
