"""One training is one run: with many workers, without a main guard, and after Ctrl-C; only env 0 records videos."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("stable_baselines3")

from examples.grid_world import custom_env_main, tracking
from examples.grid_world.video import EpisodeVideos, is_recorded
from tests.examples.programs import MAIN, ROOT, SMALL, metrics_of, only_run, read_json, run
from tests.processes import still_alive

GUARD = """if __name__ == "__main__":
    sys.exit(main())"""

STAND_IN = '''
"""Notes every run that anybody begins, in any process."""
import json, os

def note(*words):
    with open(os.environ["NOTED"], "a") as file:
        file.write(json.dumps(words) + "\\n")

note("imported")

def Settings(**settings):
    return settings

class Run:
    offline = True
    summary = {}

    def log(self, metrics, step):
        note("log", sorted(metrics), step)

    def save(self, path, base_path, policy):
        note("save", os.path.relpath(path, base_path))

    def finish(self, exit_code):
        note("finish", exit_code)

def init(**arguments):
    note("init", arguments["mode"], arguments["config"]["num_envs"])
    return Run()
'''


def without_guard(tmp_path: Path) -> Path:
    """The script without a main guard: workers that imported it would train too."""
    text = MAIN.read_text()
    assert text.count(GUARD) == 1 and "parents[2])" in text
    script = tmp_path / "unguarded.py"
    script.write_text(
        text.replace(GUARD, "sys.exit(main())").replace("Path(__file__).resolve().parents[2]", repr(str(ROOT)))
    )
    return script


def test_script_without_main_guard_makes_one_run_with_three_workers(tmp_path: Path) -> None:
    """A replacement of wandb notes which runs are started, logged to and ended, by any process."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "wandb.py").write_text(STAND_IN)
    noted = tmp_path / "noted"
    done = run(
        *[without_guard(tmp_path), *SMALL, "--num-envs", "3", "--workers", "3", "--run-dir", tmp_path / "runs"],
        *["--tracker", "wandb"],
        NOTED=str(noted),
        PYTHONPATH=str(tmp_path / "lib"),
        WANDB_MODE="",
        WANDB_API_KEY="",
        HOME=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    notes = noted.read_text().splitlines()
    assert notes[:2] == ['["imported"]', '["init", "offline", 3]']
    assert notes[-1] == '["finish", 0]' and '["save", "videos/*.gif"]' in notes
    assert sum("init" in note for note in notes) == 1 and sum("imported" in note for note in notes) == 1
    folder = only_run(tmp_path / "runs")
    assert sum('"log"' in note for note in notes) == len(metrics_of(folder)) >= 1


def test_offline_wandb_has_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a separate program, so that the service that W&B starts ends with it."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    flags = ["--tracker", "auto", "--num-envs", "3", "--workers", "3", "--run-dir", tmp_path / "runs"]
    done = run(without_guard(tmp_path), *SMALL, *flags, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (found,) = (only_run(tmp_path / "runs") / "wandb").glob("offline-run-*")
    (kept,) = tmp_path.rglob("*.wandb")  # nor anywhere else
    assert kept.parent == found and kept.stat().st_size > 0
    assert (found / "files" / "videos" / "env-0-episode-000000.gif").stat().st_size > 0


@pytest.mark.parametrize(
    ("environment", "answers", "mode"),
    [
        ({}, True, "offline"),
        ({"WANDB_API_KEY": "key"}, False, "offline"),
        ({"WANDB_API_KEY": "key"}, True, "online"),
    ],
)
def test_wandb_is_online_only_if_it_needs_no_login(
    environment: dict[str, str], answers: bool, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tracking, "_answers", lambda host, port: answers)
    assert tracking.wandb_mode() == mode


def test_simultaneous_runs_have_separate_folders(tmp_path: Path) -> None:
    runs = [tracking.start_run(tmp_path, {}, "local") for _ in range(3)]
    for each in runs:
        each.finish({"status": "finished"})
    assert len({each.folder for each in runs}) == len(list(tmp_path.iterdir())) == 3


# -- videos --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("vec_env", ["subproc", "dummy"])
def test_only_the_first_env_records_videos(vec_env: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {**custom_env_main.config, "num_envs": 3, "vec_env": vec_env}
    env = custom_env_main.make_vec_env(config, tmp_path)
    try:
        assert env.env_is_wrapped(EpisodeVideos) == [True, False, False]
    finally:
        env.close()


def test_video_shows_an_episode_from_first_to_last_frame(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    assert custom_env_main.main([*SMALL, "--num-envs", "1", "--run-dir", str(tmp_path)]) == 0
    videos = sorted((only_run(tmp_path) / "videos").iterdir())
    assert [video.name for video in videos[:2]] == ["env-0-episode-000000.gif", "env-0-episode-000001.gif"]
    with image.open(videos[0]) as video:
        assert video.is_animated and video.size == (300, 300)
        durations = []
        for frame in range(video.n_frames):
            video.seek(frame)
            durations.append(video.info["duration"])
    assert durations[-1] >= 1000 and set(durations[:-1]) <= set(range(100, 2600, 100))


def test_no_video_flag_writes_no_videos(tmp_path: Path) -> None:
    assert custom_env_main.main([*SMALL, "--num-envs", "1", "--no-video", "--run-dir", str(tmp_path)]) == 0
    assert sorted(path.name for path in only_run(tmp_path).iterdir()) == [
        *["config.json", "metrics.jsonl", "model.zip", "summary.json"]
    ]


def test_recorded_episodes_are_cubes_and_thousands() -> None:
    assert [episode for episode in range(3001) if is_recorded(episode)] == [
        *[k**3 for k in range(10)],
        *[1000, 2000, 3000],
    ]


# -- Ctrl-C --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("script", ["custom_env_main.py", "simple_push_v3_train.py"])
def test_ctrl_c_exits_cleanly_and_leaves_no_process(script: str, tmp_path: Path) -> None:
    is_main = script == MAIN.name
    flags = ["--run-dir", str(tmp_path / "runs"), *(["--tracker", "local"] if is_main else [])]
    command = [sys.executable, str(MAIN.parent / script), "--num-envs", "3", "--total-timesteps", "100000000", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        awaited = "env steps " if is_main else "Learner: "
        for line in program.stdout:
            if line.startswith(awaited):
                break
        children = [child.pid for child in psutil.Process(program.pid).children(recursive=True)]
        program.send_signal(signal.SIGINT)
        printed, errors = program.communicate(timeout=60)
    message = "SIGINT: saving and ending; Ctrl-C or SIGTERM now ends at once\n"
    message += r"Interrupted at [\d,]+ env steps. To resume: mv.resume\(.*\)\n"
    assert program.returncode == 130 and children
    assert re.fullmatch("" if is_main else message, errors)  # the message of mv.train
    assert still_alive([program.pid, *children]) == []
    if is_main:
        folder = only_run(tmp_path / "runs")
        assert read_json(folder / "summary.json")["status"] == "interrupted"
        assert (folder / "model.zip").exists() and f"Run interrupted: {folder}" in printed
    else:
        assert "Interrupted" in printed
