"""Videos: frames become an mp4 through the ffmpeg that imageio-ffmpeg brings. The file is whole or not there."""

from __future__ import annotations

import importlib
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest, PreflightError, RunNotWritable
from multiverse.training.runs.files import UNFINISHED

QUALITY = 8  # of 10


class VideoFile:
    """`add` every frame, in a `with`: at its end the video is in place, and after an error there is none."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._ffmpeg = imageio_ffmpeg()
        self._unfinished = path.with_name(f"{UNFINISHED}{secrets.token_hex(8)}-{path.name}")
        self._shape: tuple[int, ...] = ()
        self._writing: Any = None

    def add(self, frame: Any) -> None:
        """One more picture: bytes [height, width, 3] (or [height, width], grey), as large as the first."""
        frame = _with_colors(frame)
        if self._writing is None:
            self._shape = frame.shape
            self._begin(frame)
        if frame.shape != self._shape:
            raise InvalidRequest(f"the env's pictures have shape {self._shape}, then {frame.shape}: no video of both")
        try:
            self._writing.send(_even(frame))
        except OSError as error:
            raise RunNotWritable(self.path, _reason(error)) from None
        self.frames += 1

    def _begin(self, frame: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        height, width, _ = _even(frame).shape
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A macro block of 1: sizes that 16 does not divide are kept, not scaled.
            self._writing = self._ffmpeg.write_frames(
                str(self._unfinished), (width, height), fps=self.fps, quality=QUALITY, macro_block_size=1
            )
            self._writing.send(None)
        except OSError as error:
            raise RunNotWritable(self.path, _reason(error)) from None

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            if self._writing is not None:
                self._writing.close()
            if kind is None and self.frames:
                os.replace(self._unfinished, self.path)
        except OSError as error:
            if kind is None:
                raise RunNotWritable(self.path, _reason(error)) from None
        finally:
            if self._writing is not None:
                self._unfinished.unlink(missing_ok=True)


def imageio_ffmpeg() -> Any:
    """The module, or one sentence about where to get it."""
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ImportError as error:
        raise PreflightError(
            "a video needs imageio-ffmpeg, which is not installed: pip install 'multiverse[video]'"
        ) from error


def _with_colors(frame: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = np.asarray(frame)
    if found.ndim == 2:
        found = np.repeat(found[:, :, None], 3, axis=2)
    if found.ndim != 3 or found.shape[2] != 3 or found.dtype != np.uint8:
        told = type(frame).__name__ if found.dtype == object else f"{found.dtype} {found.shape}"
        raise InvalidRequest(f"the env's render() gave {told}: expected bytes of shape (height, width, 3)")
    return found


def _even(frame: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """With its last row and column once more where there is an odd number: what browsers play has an even one."""
    height, width, _ = frame.shape
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def _reason(error: OSError) -> str:
    return error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
