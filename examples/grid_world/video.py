"""Videos of selected episodes as animated GIFs, which every browser plays and which need only Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

PIXELS = 300
LAST_FRAME_MS = 1000


def is_recorded(episode: int) -> bool:
    """Return whether an episode is recorded: cubes (0, 1, 8, 27, … 729), then every thousandth, as in Gymnasium."""
    return round(episode ** (1 / 3)) ** 3 == episode if episode < 1000 else episode % 1000 == 0


class EpisodeVideos(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records the episodes selected by `is_recorded`, one file each, written when the episode ends."""

    def __init__(self, env: gymnasium.Env[Any, Any], folder: Path, name: str) -> None:
        super().__init__(env)
        self._folder, self._name = folder, name
        self._episode = -1
        self._frames: list[Any] = []

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**arguments)
        self._episode += 1
        self._frames.clear()  # an unfinished episode is not written
        self._record()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._record()
        if (result[2] or result[3]) and self._frames:
            write_gif(self._folder / f"{self._name}-episode-{self._episode:06d}.gif", self._frames, self._frame_ms())
            self._frames.clear()
        return result

    def _record(self) -> None:
        if is_recorded(self._episode):
            self._frames.append(self.env.render())

    def _frame_ms(self) -> int:
        return round(1000 / self.metadata["render_fps"])


def write_gif(path: Path, frames: list[Any], frame_ms: int) -> None:
    """Write frames [height, width, 3] as a looping animation that pauses at its end."""
    pillow = need_pillow()
    pictures = [pillow.fromarray(frame).resize((PIXELS, PIXELS)) for frame in frames]
    durations = [frame_ms] * (len(pictures) - 1) + [LAST_FRAME_MS]
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0)


def need_pillow() -> Any:
    """Return Pillow's Image module, or raise an error with the command that installs it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("videos need Pillow: pip install 'multiverse[video]', or pass --no-video") from error
    return Image
