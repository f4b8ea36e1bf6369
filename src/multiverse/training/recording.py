"""Episodes of a run's evaluations, watched: on video, and played again bit for bit."""

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
from multiverse.training.opening import SavedRun, migrate, open_run
from multiverse.training.runs.checkpoint_format import Checkpoint, taken_over
from multiverse.training.runs.files import UNFINISHED
from multiverse.training.runs.find_runs import VIDEOS, RunPath
from multiverse.training.validation import RunObjects

USUAL_FPS = 30.0
"""Where the env does not say."""
RGB_ARRAY = "rgb_array"
RENDERED = {"render_mode": RGB_ARRAY}


@dataclass(frozen=True, slots=True)
class Recording:
    """A video that has been written."""

    path: Path
    frames: int
    fps: float
    evaluation: Evaluation  # of its episodes


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
    """A video (mp4) of a run's policy: the first episodes that an evaluation with this seed plays, on one env here.
    Default: those of `mv.evaluate`.

    `path`: a file, or a folder for it; None: in the run, `videos/`. `fps`: None is as many as the env says. The rest
    is as for `mv.load`; `opponent` and `deterministic` as for evaluations, `trust` as for `resume`.
    """
    imageio_ffmpeg()
    _draw_without_a_screen()
    kwargs = {**(env_kwargs or {}), **RENDERED}
    objects = RunObjects(env=env, algorithm=algorithm, network=network, env_kwargs=kwargs, opponent=opponent)
    objects, saved = objects.filled_from(run), migrate(open_run(run, which))
    seed = chosen_seed(saved, seed)
    where = video_path(path, saved.path / VIDEOS, f"{saved.found.path.name}-seed-{seed}.mp4")
    camera = Camera(where, _env_name(saved, objects), fps)
    with camera:
        try:
            evaluation = evaluate_saved(
                saved, objects, episodes=episodes, seed=seed, deterministic=deterministic, trust=trust, watch=camera
            )
        except MultiverseError as error:
            raise camera.why(error) or error from None
        if camera.wrong is not None:  # the env is not to blame, and it does not just cost an episode
            raise camera.wrong
    assert camera.video is not None
    return Recording(where, camera.video.frames, camera.video.fps, evaluation)


@dataclass(frozen=True, slots=True)
class Replay:
    """An episode of a run's last evaluation, played again."""

    episode: int
    seed: int  # that the env was reset with
    returned: float
    length: int
    digest: str  # sha256 over every action, observation, reward and end of it
    evaluated: tuple[float, int] | None  # the return and length that the run's evaluation had; None: not known
    video: Path | None = None

    @property
    def same(self) -> bool | None:
        """Whether it is that episode, as far as the run has written it down; None where it has not."""
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
    """Play an episode of a checkpoint's evaluation again, by its number from 0: the same policy, the same seed, bit for
    bit. `video`: True for one in the run's `videos/`, or where to. The rest is as for `mv.record`."""
    if whole_number("episode", episode) < 0:
        raise InvalidRequest(f"episode={episode}: 0 or more")
    objects = RunObjects(env=env, algorithm=algorithm, network=network).filled_from(run)
    saved = migrate(open_run(run, which))
    seed = own_evaluation_seed(saved)
    witness, camera = Witness(), None
    if video is not False:
        imageio_ffmpeg()
        _draw_without_a_screen()
        name = f"{saved.found.path.name}-episode-{episode}.mp4"
        where = video_path(None if video is True else video, saved.path / VIDEOS, name)
        camera, objects = Camera(where, _env_name(saved, objects), fps), replace(objects, env_kwargs=RENDERED)
    with ExitStack() as stack:
        watch: Callable[[Any], Any] = witness
        if camera is not None:
            stack.enter_context(camera)
            watch = _both(camera, witness)
        try:
            again = evaluate_saved(saved, objects, episodes=[episode], seed=seed, trust=trust, watch=watch)
        except MultiverseError as error:
            raise (camera and camera.why(error)) or error from None
    return Replay(
        episode,
        evaluation_seed(seed, episode),
        again.returns[0],
        again.lengths[0],
        witness.digest(),
        _evaluated(saved.found, episode),
        None if camera is None else where,
    )


def _env_name(saved: SavedRun, objects: RunObjects) -> str:
    return str(saved.settings.get("env") if objects.env is None else objects.env)


def _evaluated(found: Checkpoint, episode: int) -> tuple[float, int] | None:
    """(return, length) of an episode of the evaluation that this very policy had."""
    with taken_over(found):
        saved, at = found.state["evaluation"], found.state.get("evaluated_at")
        if saved is None or at != found.state["clock"]["env_steps"]:
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
    """Wraps an env, of any API: `see` is called after every reset and step."""

    def __call__(self, env: Any) -> Any:
        env.reset, env.step = self._watched(env, env.reset), self._watched(env, env.step)
        return env

    def _watched(self, env: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def and_see(*arguments: Any, **named: Any) -> Any:
            outcome = call(*arguments, **named)
            self.see(env, arguments, outcome)
            return outcome

        return and_see

    def see(self, env: Any, arguments: Any, outcome: Any) -> None:
        """What the env was given, and what it returned."""


class Witness(Watcher):
    """Whatever is done to an env and whatever it shows goes into a digest, but for infos."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def see(self, env: Any, arguments: Any, outcome: Any) -> None:
        if not isinstance(outcome, tuple):  # AEC returns nothing: what whoever acts next is shown
            outcome = env.last() if env.agents else (dict(env.rewards), {})
        self._note((arguments, outcome[:-1]))

    def _note(self, value: Any) -> None:
        if isinstance(value, Mapping):
            value = [part for item in value.items() for part in item]
        if isinstance(value, list | tuple):
            self._hash.update(f"{len(value)}[".encode())
            for one in value:
                self._note(one)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._hash.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        else:
            self._hash.update(repr(value).encode())

    def digest(self) -> str:
        return self._hash.hexdigest()


def video_path(path: Path | str | None, folder: Path, name: str) -> Path:
    """Where the video goes: the file that was asked for, or one of this name."""
    asked = folder if path is None else Path(path)
    if path is None or asked.is_dir():
        return asked / name
    if asked.suffix != ".mp4":
        raise InvalidRequest(f"{path}: a video is an .mp4; try {asked.with_suffix('.mp4')}, or a folder that is there")
    return asked


class Camera(Watcher):
    """A picture of an env after every reset and step goes into the video."""

    def __init__(self, path: Path, env_name: str, fps: float | None) -> None:
        self._path, self._name, self._fps = path, env_name, fps
        self.wrong: MultiverseError | None = None  # with the video
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
            self.wrong = self._refusal(f"it draws no {RGB_ARRAY} (its render_modes: {modes})")
            raise self.wrong
        if self.video is None:  # else the env has failed, and is another one now
            fps = self._fps or float(metadata.get("render_fps") or USUAL_FPS)
            self.video = self._open.enter_context(VideoFile(self._path, fps))
        return super().__call__(env)

    def see(self, env: Any, arguments: Any, outcome: Any) -> None:
        assert self.video is not None
        picture = env.render()
        try:
            self.video.add(picture)
        except InvalidRequest as error:
            self.wrong = self._refusal(str(error))
            raise
        except MultiverseError as error:
            self.wrong = error
            raise

    def why(self, error: MultiverseError) -> MultiverseError | None:
        """Why the env has failed, if that is not its own fault but the video's."""
        if self.wrong is None and "unexpected keyword argument 'render_mode'" in str(error):
            self.wrong = self._refusal("it takes no render_mode, as what draws pictures does")
        return self.wrong

    def _refusal(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"{self._name} cannot be recorded: {why}")


def _draw_without_a_screen() -> None:
    """MuJoCo and SDL (pygame) look for a screen unless they are told that there is none."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


# -- the file ----------------------------------------------------------------------------------------------------
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
