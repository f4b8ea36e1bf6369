"""Videos of runs: `mv.record`, and `multiverse record`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.cli.main import main
from multiverse.core.errors import RunNotWritable
from multiverse.training.loading import evaluate
from multiverse.training.recording import VideoFile
from tests.training.small_runs import SMALL


class Painter(gym.Env[Any, Any]):
    """Env with 6 steps an episode whose image shows the step; the tests choose the form of the image."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, paints: str = "colors", modes: str = "") -> None:
        self.render_mode = None if modes else render_mode
        if modes:
            self.metadata = {"render_modes": [modes]}
        self._paints = paints

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._paints == "falls over" and self._steps == 4:
            raise ValueError("over")
        return np.full(1, self._steps, np.float32), 1.0, self._steps == 6, False, {}

    def render(self) -> Any:
        if self._paints == "text":
            return "a box"
        if self._paints == "grows" and self._steps == 3:
            return np.zeros((40, 60, 3), np.uint8)
        if self._paints == "grey":
            return np.full((33, 49), 40 * self._steps, np.uint8)
        return np.full((33, 49, 3), (0, 40 * self._steps, 0), np.uint8)


@pytest.fixture
def painted(tmp_path: Path) -> mv.Run:
    return mv.train(Painter, run_dir=tmp_path / "painted", **{**SMALL, "env_steps": 100})


def frames_of(path: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the format of a video according to ffmpeg, and its frames."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    read = subprocess.run(command, capture_output=True, check=True)
    output = re.search(r"Video: h264.* (\d+)x(\d+).* ([\d.]+) fps", read.stderr.decode())
    assert output is not None
    width, height = int(output[1]), int(output[2])
    frames = np.frombuffer(read.stdout, np.uint8).reshape(-1, height, width, 3)
    return {"size": (width, height), "fps": float(output[3])}, list(frames)


def test_video_has_every_frame_in_order_and_size(painted: mv.Run) -> None:
    made = mv.record(painted, env=Painter, episodes=2)
    about, frames = frames_of(made.path)
    assert made.path == painted.path / "videos" / "step-000000000100-seed-1000000.mp4"
    assert made.frames == len(frames) == 2 * 7 and about["fps"] == made.fps == 5
    assert about["size"] == (50, 34)  # odd ones get a row and a column more, and nothing is scaled to 48 × 32
    assert [round(float(frame[:, :, 1].mean()) / 40) for frame in frames] == [*range(7)] * 2
    assert made.evaluation.returns == (6.0, 6.0)
    assert os.listdir(made.path.parent) == [made.path.name]


def test_grey_frames_other_paths_and_other_speeds_are_recorded(painted: mv.Run, tmp_path: Path) -> None:
    grey = partial(Painter, paints="grey")
    made = mv.record(painted, tmp_path / "new" / "film.mp4", env=grey, fps=12.5)
    about, frames = frames_of(tmp_path / "new" / "film.mp4")
    assert made.path == tmp_path / "new" / "film.mp4" and about["fps"] == 12.5
    assert float(np.ptp(frames[5].mean(axis=(0, 1)))) < 8  # no colour
    inside = mv.record(painted, tmp_path / "new", env=grey, seed=3)
    assert inside.path.parent == tmp_path / "new" and inside.path.name.endswith("-seed-3.mp4")


REFUSED: dict[str, Any] = {
    "it does not render rgb_array .its render_modes: ansi": partial(Painter, modes="ansi"),
    "render.. returned <U5": partial(Painter, paints="text"),
    r"frames have shape .33, 49, 3., then .40, 60, 3.": partial(Painter, paints="grows"),
    "it has no argument render_mode": lambda: Painter(),
}


@pytest.mark.parametrize(("said", "env"), REFUSED.items(), ids=["no rgb_array", "text", "grows", "no render_mode"])
def test_env_that_cannot_be_recorded_is_refused_and_leaves_no_file(painted: mv.Run, said: str, env: Any) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=f"cannot be recorded: .*{said}"):
        mv.record(painted, env=env)
    assert not list(painted.path.rglob("*.mp4"))


class PainterOfTasks(Painter):
    """Env with a single task that changes nothing."""

    def sample_tasks(self, count: int) -> list[int]:
        return [0] * count

    def reset_task(self, task: Any) -> None:
        pass

    def get_task(self) -> int:
        return 0


def test_runs_with_tasks_are_recorded_or_refused_with_the_same_reason(tmp_path: Path) -> None:
    run = mv.train(PainterOfTasks, run_dir=tmp_path / "run", **{**SMALL, "env_steps": 100, "tasks": 2})
    with pytest.raises(mv.errors.InvalidRequest, match="cannot be recorded: it has no argument render_mode"):
        mv.record(run, env=lambda: PainterOfTasks())
    assert not list(run.path.rglob("*.mp4"))
    assert mv.record(run, env=PainterOfTasks).frames == 7


def test_failing_env_leaves_no_partial_video_and_keeps_the_previous_one(painted: mv.Run) -> None:
    whole = mv.record(painted, env=Painter).path.read_bytes()
    with pytest.raises(mv.MultiverseError, match="failed in each of its 1 episodes"):
        mv.record(painted, env=partial(Painter, paints="falls over"))
    (left,) = (painted.path / "videos").iterdir()
    assert left.read_bytes() == whole


def test_unwritable_path_and_other_file_format_are_refused(painted: mv.Run, tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"film.avi: expected a file .* such as .*film.mp4"):
        mv.record(painted, tmp_path / "film.avi", env=Painter)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunNotWritable, match=r"film.mp4 cannot be written to"):
        mv.record(painted, tmp_path / "file" / "film.mp4", env=Painter)


def test_symbolic_link_inside_a_run_is_refused(painted: mv.Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (painted.path / "videos").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(mv.errors.InvalidRequest, match="videos is "):
        mv.record(painted, env=Painter)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_missing_imageio_is_reported_with_the_extra(painted: mv.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(mv.errors.PreflightError, match=r"pip install 'multiverse\[video\]'"):
        mv.record(painted, env=Painter)


def test_video_without_frames_writes_no_file(tmp_path: Path) -> None:
    with VideoFile(tmp_path / "film.mp4", 30.0):
        pass
    assert not list(tmp_path.iterdir())


def test_team_run_is_recorded(tmp_path: Path) -> None:
    boxes = {"num_boxes": 2, "max_timestep": 20}
    options = {**SMALL, "env_steps": 100, "num_envs": 2, "normalize_rewards": False}
    made = mv.record(mv.train("BoxJump-v0", env_kwargs=boxes, run_dir=tmp_path / "team", **options))
    about, frames = frames_of(made.path)
    assert about == {"size": (960, 320), "fps": 40.0} and len(frames) == 22
    assert made.evaluation.lengths == (21,)


# -- the command -------------------------------------------------------------------------------------------------------
def test_record_command_prints_the_path_and_plays_the_evaluated_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = mv.train("CartPole-v1", run_dir=tmp_path / "one", **{**SMALL, "env_steps": 100})
    evaluation = evaluate(run, episodes=2, seed=4)
    capsys.readouterr()
    assert main(["record", str(run.path), "--which", "best", "--episodes", "2", "--seed", "4"]) == 0
    video = run.path / "videos" / "best-seed-4.mp4"
    about, frames = frames_of(video)
    assert about["size"] == (600, 400) and about["fps"] == 50 and len(frames) == sum(evaluation.lengths) + 2
    returns = ", ".join(f"{one:.1f}" for one in evaluation.returns)
    assert capsys.readouterr().out.startswith(f"{video}: {len(frames)} frames at 50 fps, ")
    assert main(["record", str(run.path), "--out", str(tmp_path / "film.mp4"), "--fps", "25", "--seed", "4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path / 'film.mp4'}: ") and out.endswith(f"return {returns.split(', ')[0]}\n")


def test_record_command_plays_against_an_opponent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four = "pettingzoo.classic.connect_four_v3:env"
    run = mv.train(four, run_dir=tmp_path / "one", **{**SMALL, "env_steps": 100})
    capsys.readouterr()
    assert main(["record", str(run.path), "--opponent", "random", "--episodes", "2"]) == 0
    returns = mv.evaluate(run, episodes=2, opponent="random").returns
    assert capsys.readouterr().out.endswith(f"returns {', '.join(f'{one:.1f}' for one in returns)}\n")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("nowhere", "nowhere: there is no such directory"),
        ("nowhere --episodes 0", "--episodes 0: must be greater than 0"),
        ("nowhere --fps -1", "--fps -1: must be greater than 0"),
    ],
)
def test_invalid_input_is_reported_in_one_line(typed: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", *typed.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error
