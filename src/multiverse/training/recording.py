"""`record` and `replay`: episodes of a run's evaluations on video, and replayed bit for bit."""

from __future__ import annotations

import hashlib
import importlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest, MultiverseError, PreflightError, RunNotWritable
from multiverse.core.plan import whole_number
from multiverse.core.seeds import evaluation_seed
from multiverse.training.config.build import build
from multiverse.training.evaluation import Evaluation
from multiverse.training.learners import MakeAlgorithm
from multiverse.training.loading import chosen_seed, evaluate_saved, own_evaluation_seed
from multiverse.training.runs.checkpoint_format import Checkpoint, reading_state
from multiverse.training.runs.files import UNFINISHED
from multiverse.training.runs.find_runs import VIDEOS, RunPath
from multiverse.training.saved_runs import SavedRun, migrate, open_run
from multiverse.training.validation import RunObjects

DEFAULT_FPS = 30.0
"""Frames per second if the env does not specify them."""
RGB_ARRAY = "rgb_array"
RENDERED = {"render_mode": RGB_ARRAY}


@dataclass(frozen=True, slots=True)
class Recording:
    """A video that has been written."""

    path: Path
    frames: int
    fps: float
    evaluation: Evaluation  # the results of its episodes


def record(
    run: RunPath,
    path: Path | str | None = None,
    *,
    episodes: int = 1,
    seed: int | None = None,
    which: str = "latest",
    fps: float | None = None,
    env: Any = None,
    algorithm: MakeAlgorithm | str | None = None,
    network: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    opponent: Any = None,
    deterministic: bool | None = None,
    trust: bool = False,
) -> Recording:
    """Record a video (mp4) of a run's policy: the first episodes of an evaluation with this seed, by default those of
    `mv.evaluate`. They are played in one env in this process.

    Args:
        path: File of the video, or a directory for it. Default: `videos/` in the run.
        episodes: Number of episodes.
        fps: Frames per second. Default: as the env specifies.
        seed, opponent, deterministic: As for `mv.evaluate`.
        which, env, algorithm, network, env_kwargs, trust: As for `mv.load`.
    """
    imageio_ffmpeg()
    _render_without_screen()
    kwargs = {**(env_kwargs or {}), **RENDERED}
    objects = RunObjects(env=env, algorithm=algorithm, network=network, env_kwargs=kwargs, opponent=opponent)
    objects, saved = objects.filled_from(run), migrate(open_run(run, which))
    seed = chosen_seed(saved, seed)
    where = video_path(path, saved.path / VIDEOS, f"{saved.existing_checkpoint.path.name}-seed-{seed}.mp4")
    camera = Camera(where, _env_name(saved, objects), fps)
    with camera:
        try:
            evaluation = evaluate_saved(
                saved, objects, episodes=episodes, seed=seed, deterministic=deterministic, trust=trust, watch=camera
            )
        except MultiverseError as error:
            raise camera.cause_of(error) or error from None
        if camera.error is not None:  # otherwise it would only count as a lost episode
            raise camera.error
    assert camera.video is not None
    return Recording(where, camera.video.frames, camera.video.fps, evaluation)


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed episode of a run's last evaluation."""

    episode: int
    seed: int  # of the env's reset
    returned: float
    length: int
    digest: str  # sha256 of all its actions, observations, rewards and ends
    evaluated: tuple[float, int] | None  # return and length in the run's evaluation; None: not known
    video: Path | None = None

    @property
    def same(self) -> bool | None:
        """Whether return and length are those of the run's evaluation; None if these are not known."""
        return None if self.evaluated is None else self.evaluated == (self.returned, self.length)


def replay(
    run: RunPath,
    episode: int,
    *,
    video: Path | str | bool = False,
    which: str = "latest",
    fps: float | None = None,
    env: Any = None,
    algorithm: MakeAlgorithm | str | None = None,
    network: Any = None,
    trust: bool = False,
) -> Replay:
    """Replay an episode of a checkpoint's evaluation, by its number from 0, with the same policy and seed, bit for bit.

    `video`: True for a video in the run's `videos/`, or its path. The other arguments are as for `mv.record`.
    """
    if whole_number("episode", episode) < 0:
        raise InvalidRequest(f"episode={episode}: expected 0 or more")
    objects = RunObjects(env=env, algorithm=algorithm, network=network).filled_from(run)
    saved = migrate(open_run(run, which))
    seed = own_evaluation_seed(saved)
    witness, camera = Witness(), None
    if video is not False:
        imageio_ffmpeg()
        _render_without_screen()
        name = f"{saved.existing_checkpoint.path.name}-episode-{episode}.mp4"
        where = video_path(None if video is True else video, saved.path / VIDEOS, name)
        camera, objects = Camera(where, _env_name(saved, objects), fps), replace(objects, env_kwargs=RENDERED)
    with ExitStack() as stack:
        watch: Callable[[Any], Any] = witness
        if camera is not None:
            stack.enter_context(camera)
            watch = _both(camera, witness)
        try:
            replayed = evaluate_saved(saved, objects, episodes=[episode], seed=seed, trust=trust, watch=watch)
        except MultiverseError as error:
            raise (camera and camera.cause_of(error)) or error from None
    return Replay(
        episode,
        evaluation_seed(seed, episode),
        replayed.returns[0],
        replayed.lengths[0],
        witness.digest(),
        _evaluated(saved.existing_checkpoint, episode),
        None if camera is None else where,
    )


def _env_name(saved: SavedRun, objects: RunObjects) -> str:
    return str(saved.settings.get("env") if objects.env is None else objects.env)


def _evaluated(checkpoint: Checkpoint, episode: int) -> tuple[float, int] | None:
    """(return, length) of an episode in the evaluation of the policy of this checkpoint; None if there was none."""
    with reading_state(checkpoint):
        saved, at = checkpoint.state["evaluation"], checkpoint.state.get("evaluated_at")
        if saved is None or at != checkpoint.state["clock"]["env_steps"]:
            return None
        evaluation = build(Evaluation, saved, "its evaluation")
        played = [k for k in range(len(evaluation.returns) + len(evaluation.lost)) if k not in evaluation.lost]
        if episode not in played:
            return None
        at = played.index(episode)
        return evaluation.returns[at], evaluation.lengths[at]


def _both(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda env: second(first(env))


class Watcher:
    """Wraps an env of any API: `see` is called after every reset and step."""

    def __call__(self, env: Any) -> Any:
        env.reset, env.step = self._watched(env, env.reset), self._watched(env, env.step)
        return env

    def _watched(self, env: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_see(*arguments: Any, **named: Any) -> Any:
            outcome = call(*arguments, **named)
            self.see(env, arguments, outcome)
            return outcome

        return call_and_see

    def see(self, env: Any, arguments: Any, outcome: Any) -> None:
        """Receive the arguments of a call of the env and what it returned."""


class Witness(Watcher):
    """Computes a digest of all calls of an env and what they returned, without infos."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def see(self, env: Any, arguments: Any, outcome: Any) -> None:
        if not isinstance(outcome, tuple):  # AEC returns None: take what the next agent observes
            outcome = env.last() if env.agents else (dict(env.rewards), {})
        self._note((arguments, outcome[:-1]))

    def _note(self, value: Any) -> None:
        if isinstance(value, Mapping):
            value = [part for item in value.items() for part in item]
        if isinstance(value, list | tuple):
            self._hash.update(f"{len(value)}[".encode())
            for part in value:
                self._note(part)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._hash.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        else:
            self._hash.update(repr(value).encode())

    def digest(self) -> str:
        return self._hash.hexdigest()


def video_path(path: Path | str | None, folder: Path, name: str) -> Path:
    """Return the path of a video: the given file, or a file of this name in the given directory or `folder`."""
    given = folder if path is None else Path(path)
    if path is None or given.is_dir():
        return given / name
    if given.suffix != ".mp4":
        raise InvalidRequest(
            f"{path}: expected a file that ends in .mp4, such as {given.with_suffix('.mp4')}, or an existing directory"
        )
    return given


class Camera(Watcher):
    """Adds a frame to the video after every reset and step of an env."""

    def __init__(self, path: Path, env_name: str, fps: float | None) -> None:
        self._path, self._name, self._fps = path, env_name, fps
        self.error: MultiverseError | None = None  # of the video, not of the env
        self._open = ExitStack()
        self.video: VideoFile | None = None

    def __enter__(self) -> Camera:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.__exit__(*exception)

    def __call__(self, env: Any) -> Any:
        metadata = getattr(env, "metadata", None) or {}
        if getattr(env, "render_mode", None) != RGB_ARRAY:
            modes = ", ".join(map(str, metadata.get("render_modes", ()))) or "none"
            self.error = self._refusal(f"it does not render {RGB_ARRAY} (its render_modes: {modes})")
            raise self.error
        if self.video is None:  # otherwise this env replaces one that failed
            fps = self._fps or float(metadata.get("render_fps") or DEFAULT_FPS)
            self.video = self._open.enter_context(VideoFile(self._path, fps))
        return super().__call__(env)

    def see(self, env: Any, arguments: Any, outcome: Any) -> None:
        assert self.video is not None
        frame = env.render()
        try:
            self.video.add(frame)
        except InvalidRequest as error:
            self.error = self._refusal(str(error))
            raise
        except MultiverseError as error:
            self.error = error
            raise

    def cause_of(self, error: MultiverseError) -> MultiverseError | None:
        """Return the error of the video that caused this error of the env; None if the env itself failed."""
        if self.error is None and "unexpected keyword argument 'render_mode'" in str(error):
            self.error = self._refusal("it has no argument render_mode, which rendering needs")
        return self.error

    def _refusal(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"{self._name} cannot be recorded: {why}")


def _render_without_screen() -> None:
    """Make MuJoCo and SDL (pygame) render without a screen if there is none."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


# -- the file: frames become an mp4 through the ffmpeg of imageio-ffmpeg -----------------------------------------------
QUALITY = 8  # of 10


class VideoFile:
    """A video that is written in a `with` block: complete at its end, and removed after an error."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.fps, self.frames = path, fps, 0
        self._ffmpeg = imageio_ffmpeg()
        self._unfinished = path.with_name(f"{UNFINISHED}{secrets.token_hex(8)}-{path.name}")
        self._shape: tuple[int, ...] = ()
        self._writing: Any = None

    def add(self, frame: Any) -> None:
        """Add a frame: uint8 [height, width, 3] (or [height, width], grey), of the size of the first."""
        frame = _with_colors(frame)
        if self._writing is None:
            self._shape = frame.shape
            self._begin(frame)
        if frame.shape != self._shape:
            raise InvalidRequest(
                f"its frames have shape {self._shape}, then {frame.shape}: all frames of a video must have one size"
            )
        try:
            self._writing.send(_even(frame))
        except OSError as error:
            raise RunNotWritable(self.path, _reason(error)) from None
        self.frames += 1

    def _begin(self, frame: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        height, width, _ = _even(frame).shape
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A macro block of 1 keeps sizes that are not multiples of 16.
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
    """Return the module; `PreflightError` that says how to install it if it is missing."""
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ImportError as error:
        raise PreflightError(
            "a video needs imageio-ffmpeg, which is not installed: pip install 'multiverse[video]'"
        ) from error


def _with_colors(frame: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    array = np.asarray(frame)
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        what = type(frame).__name__ if array.dtype == object else f"{array.dtype} {array.shape}"
        raise InvalidRequest(f"its render() returned {what}: expected uint8 of shape (height, width, 3)")
    return array


def _even(frame: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Repeat the last row or column if their number is odd: browsers play only even sizes."""
    height, width, _ = frame.shape
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def _reason(error: OSError) -> str:
    return error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
