"""Pictures of built-in envs: drawn with pygame into a surface of their own, so that images need no window.

pygame is imported when the first picture is wanted.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np


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
