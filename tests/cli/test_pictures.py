"""`multiverse plot`, `compare`, `report` and `replay`: pictures and pages made from the files of runs."""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.cli.curves import POINTS, Curve, band_of, curves_of, rates
from multiverse.cli.figures import drawn, figure, panels_of
from multiverse.cli.main import main
from multiverse.training.config.budget import PARTS
from multiverse.training.recording import Witness
from multiverse.training.runs.records import (
    EVALUATED,
    RunRecord,
    bootstrap_interval,
    bootstrap_intervals,
    interquartile_mean,
    interquartile_means,
)
from tests.cli.training_commands import train

ENDED: dict[str, Any] = {
    "finished": True,
    "seconds": 4.0,
    "lost_steps": 0,
    "skipped_updates": 2,
    "failures": {"env_restarts": 3, "worker_restarts": 0, "timeouts": 0, "bad_values": 0, "out_of_bounds": 0},
    "evaluation_failures": {"failed": 0, "lost_episodes": 0, "env_restarts": 0, "worker_restarts": 0},
}


def write_run(
    path: Path, seed: int = 0, lr: float = 1e-3, level: float = 1.0, started: str = "", lines: int = 4, **more: Any
) -> Path:
    """Write a run with 100 env steps and one second a line, half of it learning; every return is `level`."""
    (path / "checkpoints").mkdir(parents=True)
    config = {"env": "CartPole-v1", "algorithm": "ppo", "seed": seed, "ppo": {"learning_rate": lr}, **more}
    (path / "config.yaml").write_text(json.dumps(config))
    shares = {f"{part}_share": 0.5 if part in ("learn", "step") else 0.0 for part in PARTS}
    rows: list[dict[str, Any]] = [
        {"env_steps": 100 * k, "seconds": float(k), "mean_return": level, "entropy": 1.0 / k, **shares}
        for k in range(1, lines + 1)
    ]
    rows.append({"env_steps": 100 * lines, "evaluation_mean_return": 10 * level})
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (path / "provenance.json").write_text(json.dumps({"parts": [{"started": started, "machine": {"cpu": "Abacus"}}]}))
    return path


def kinds(curves: list[Curve]) -> list[list[str]]:
    return [[str(run.path) for run in curve.runs] for curve in curves]


# -- which runs are one ------------------------------------------------------------------------------------------
def test_seeds_form_one_curve_and_other_settings_another(elsewhere: Path) -> None:
    for seed in range(3):
        write_run(Path(f"a/seed-{seed}"), seed)
        write_run(Path(f"b/seed-{seed}"), seed, lr=0.5)
    curves = curves_of(["a", "b"])
    assert kinds(curves) == [[f"{home}/seed-{seed}" for seed in range(3)] for home in "ab"]
    assert [curve.label for curve in curves] == ["learning_rate 0.001", "learning_rate 0.5"]
    assert kinds(curves_of(["a/seed-0", "a/seed-2"])) == [["a/seed-0", "a/seed-2"]]  # named one by one
    assert kinds(curves_of(["a", "a/seed-1"])) == [[f"a/seed-{seed}" for seed in range(3)]]  # and no duplicates


def test_newest_of_equal_runs_below_one_path_counts(elsewhere: Path) -> None:
    write_run(Path("a/z"), started="2026-01-01T10:00:00")
    write_run(Path("a/b"), started="2026-01-01T12:00:00")
    write_run(Path("c/b"), started="2026-01-01T09:00:00")
    assert kinds(curves_of(["a"])) == [["a/b"]]
    both = curves_of(["a", "c"])
    assert kinds(both) == [["a/b"], ["c/b"]]
    assert [curve.label for curve in both] == ["a/b", "c/b"]


def test_settings_of_execution_do_not_split_curves(elsewhere: Path) -> None:
    write_run(Path("a/set/seed-0"), 0, workers=1), write_run(Path("a/set/seed-1"), 1, workers=1)
    write_run(Path("a/single"), 2, workers=None)
    (curve,) = curves_of(["a"])
    assert [run.seed for run in curve.runs] == [0, 1, 2]
    write_run(Path("a/serial"), 0, workers=None, executor="serial")  # seed 0 again, not another seed
    values = {"workers none, executor serial", "workers 1, executor none", "workers none, executor none"}
    assert {curve.label for curve in curves_of(["a"])} == values


def test_curve_labels_are_unique(elsewhere: Path) -> None:
    for number in range(12):  # they differ in three settings that labels always have, and in a fourth
        more = {"num_envs": number // 6, "epochs": number // 6, "minutes": number // 6 or None}
        write_run(Path(f"many/{number}"), **more, target_return=number % 6)
    labels = [curve.label for curve in curves_of(["many"])]
    assert len({*labels}) == 12 and "learning_rate" not in labels[0]
    assert sorted(labels)[0] == "num_envs 0, epochs 0, minutes none, target_return 0"
    for home in "pq":  # equal ones, in equally named directories
        write_run(Path(f"{home}/r"), lr=0.5), write_run(Path(f"{home}/s"), algorithm="dqn")
    assert [curve.label for curve in curves_of(["p", "q"])] == ["ppo: p/r", "ppo: q/r", "dqn: p/s", "dqn: q/s"]
    write_run(Path("x"), env="A"), write_run(Path("y"), env="B", target_return=1)
    write_run(Path("z"), env="B", target_return=None)
    results = ["A, ppo", "B, ppo: target_return 1", "B, ppo: target_return none"]
    assert [curve.label for curve in curves_of("xyz")] == results


# -- figures -----------------------------------------------------------------------------------------------------
def test_band_is_the_iqm_of_the_seeds_up_to_the_shortest(elsewhere: Path) -> None:
    for seed, level in enumerate((0.0, 10.0, 20.0, 70.0)):
        write_run(Path(f"a/{seed}"), seed, level=level, lines=4 if seed else 6)
    (curve,) = curves_of(["a"])
    band = curve.band("mean_return")
    assert band is not None and (band.env_steps[0], band.env_steps[-1]) == (100, 400)
    np.testing.assert_allclose(band.middle, 15.0)
    assert (band.low >= 0).all() and (band.low < 15).all() and (band.high > 15).all() and (band.high <= 70).all()
    assert band_of(curve.each("mean_return")[:1]) is None
    assert band_of([([1, 2], [0.0, 0.0]), ([3, 4], [0.0, 0.0])]) is None
    assert curve.final() == [0.0, 100.0, 200.0, 700.0]


def test_evaluation_band_uses_steps_that_all_seeds_share(elsewhere: Path) -> None:
    for seed, steps in enumerate(((100, 200, 300, 400), (100, 250, 300, 400), (100, 300, 350))):
        rows = [{"env_steps": at, EVALUATED: float(at * seed)} for at in steps]
        write_run(Path(f"a/{seed}"), seed)
        Path(f"a/{seed}/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (curve,) = curves_of(["a"])
    band = curve.band(EVALUATED)
    assert band is not None and band.env_steps.tolist() == [100, 300]
    np.testing.assert_allclose(band.middle, [100.0, 300.0])
    moved = [{**row, "env_steps": row["env_steps"] + 1} for row in rows]
    Path("a/2/metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in moved))
    band = curves_of(["a"])[0].band(EVALUATED)  # none is shared: between the evaluations of each
    assert band is not None and len(band.env_steps) == POINTS


def test_vectorised_iqm_and_intervals_equal_single_ones() -> None:
    rows = np.random.default_rng(1).normal(size=(5, 7))
    np.testing.assert_allclose(interquartile_means(rows), [interquartile_mean(list(column)) for column in rows.T])
    low, high = bootstrap_intervals(rows, 10_000)
    np.testing.assert_allclose(np.stack([low, high], 1), [bootstrap_interval(list(column)) for column in rows.T])


def test_speed_and_time_split_are_read_from_the_metrics(elsewhere: Path) -> None:
    run = RunRecord(write_run(Path("a")))
    assert rates(run) == ([200, 300, 400], [100.0, 100.0, 100.0])
    (curve,) = curves_of(["a"])
    assert curve.env_steps_per_s() == 100.0
    assert curve.time_split() == {part: 0.5 if part in ("learn", "step") else 0.0 for part in PARTS}
    (Path("a") / "summary.json").write_text(json.dumps({f"{part}_s": 3.0 * (part == "act") for part in PARTS}))
    assert curves_of(["a"])[0].time_split() == {part: float(part == "act") for part in PARTS}


@pytest.mark.parametrize(("env_steps", "rate"), [(400, 80.0), (300, 100.0)])
def test_finished_run_uses_the_speed_of_its_summary(env_steps: int, rate: float, elsewhere: Path) -> None:
    """Not the speed of a run that has continued since."""
    write_run(Path("a"))
    (Path("a") / "summary.json").write_text(json.dumps({"env_steps": env_steps, "env_steps_per_s": 80.0}))
    assert curves_of(["a"])[0].env_steps_per_s() == rate


# -- plot --------------------------------------------------------------------------------------------------------
def test_plot_writes_a_png_and_a_self_contained_page(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        write_run(Path(f"a/{seed}"), seed, level=seed)
    assert main(["plot", "a", "--metrics", "entropy"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a/plot.png", "a/plot.html"]
    assert Path("a/plot.png").read_bytes().startswith(b"\x89PNG")
    page = Path("a/plot.html").read_text()
    assert_whole(page)
    pictures = pictures_in(page)
    assert len(pictures) == 5 and all("(3 seeds)" in one for one in pictures)
    assert "IQM 10.0 (" in page and [title for title in ("Speed", "entropy") if f'alt="{title}"' not in page] == []
    first = Path("a/plot.png").read_bytes()
    assert main(["plot", "a", "--metrics", "entropy"]) == 0
    assert Path("a/plot.png").read_bytes() == first and Path("a/plot.html").read_text() == page


def assert_whole(page: str) -> None:
    """The page loads nothing from elsewhere and runs no scripts."""
    assert [link for link in re.findall(r'(?:src|href)="([^"]*)', page) if not link.startswith("data:")] == []
    assert "<script" not in page and "default-src 'none'" in page


def pictures_in(page: str) -> list[str]:
    return [base64.b64decode(one).decode() for one in re.findall(r'src="data:image/svg\+xml;base64,([^"]*)', page)]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf", "html"])
def test_plot_writes_every_file_format(kind: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("a"))
    assert main(["plot", "a", "--out", f"new/curves.{kind}"]) == 0
    assert capsys.readouterr().out == f"new/curves.{kind}\n"
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doctype html>"}
    assert Path(f"new/curves.{kind}").read_bytes().startswith(begins[kind])


def test_plot_of_several_runs_is_written_to_the_working_directory(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("a")), write_run(Path("b"), lr=0.5)
    assert main(["plot", "a", "b"]) == 0
    assert capsys.readouterr().out.splitlines() == ["plot.png", "plot.html"]
    assert "learning_rate 0.5" in pictures_in(Path("plot.html").read_text())[0]


def test_legend_of_many_curves_is_below_the_axes(elsewhere: Path, recwarn: pytest.WarningsRecorder) -> None:
    for number in range(40):
        write_run(Path(f"a/{number}"), lr=number, env_kwargs={"a_setting_with_a_long_name": "x" * 39})
    curves = curves_of(["a"])
    whole = figure(panels_of(curves), curves)
    drawn(whole, "png")
    assert [str(one.message) for one in recwarn if "layout" in str(one.message)] == []
    axes = whole.axes[0]
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
    assert axes.get_window_extent().height > 200  # there is space left for the curve
    styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == 32  # eight colours, four kinds of lines
    few = figure(panels_of(curves[:8]), curves[:8])
    drawn(few, "png")
    assert few.axes[0].get_legend().get_window_extent().y0 > few.axes[0].get_window_extent().y0


def test_each_env_has_its_own_axes(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("r/a")), write_run(Path("r/b"), env="Acrobot-v1"), write_run(Path("r/c"), env="Acrobot-v1", lr=1.0)
    curves = curves_of(["r"])
    panels = panels_of(curves)
    assert [panel.title for panel in panels if "Speed" in panel.title] == ["CartPole-v1: Speed", "Acrobot-v1: Speed"]
    whole = figure(panels, curves)
    assert [len(axes.lines) for axes in whole.axes] == [1, 1, 1, 0, 2, 2, 2, 0]
    for number in range(20):
        write_run(Path(f"r/env-{number}"), env=f"env-{number}")
    assert main(["plot", "r"]) == 2
    assert "the runs have 22 different envs, but a figure shows at most 16; name fewer runs" in capsys.readouterr().err


def test_run_without_metrics_can_be_plotted(elsewhere: Path) -> None:
    (write_run(Path("a")) / "metrics.jsonl").write_text("")
    assert main(["plot", "a"]) == 0 and main(["report", "a"]) == 0
    assert "no run has mean_return yet" in pictures_in(Path("a/plot.html").read_text())[0]


def dark_pixels(whole: Any) -> int:
    """Number of dark pixels inside the axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for axes in whole.axes:
        axes.grid(False)
        axes.get_legend().remove()
        axes.set_axis_off()
        axes.set_title("", loc="left")
    canvas = FigureCanvasAgg(whole)
    canvas.draw()
    return int((np.asarray(canvas.buffer_rgba())[..., :3].sum(axis=-1) < 700).sum())


@pytest.mark.parametrize("seeds", [1, 3])
def test_single_point_is_visible(seeds: int, elsewhere: Path) -> None:
    for seed in range(seeds):
        write_run(Path(f"r/{seed}"), seed=seed, level=1.0, lines=1)
    curves = curves_of(["r"])
    for panel in panels_of(curves)[:2]:  # while training, and in evaluations
        assert dark_pixels(figure([panel], curves)) > 20


def test_returns_of_every_episode_of_a_task_are_drawn_if_logged(elsewhere: Path) -> None:
    home = write_run(Path("a"))
    assert RunRecord(home).inner_episodes == 0
    name = "evaluation_mean_return"
    rows = [{"env_steps": k, name: 3.0 * k, f"{name}/episode_1": 1.0 * k, f"{name}/episode_2": 2.0 * k} for k in (1, 2)]
    with (home / "metrics.jsonl").open("a") as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in rows))
    assert RunRecord(home).inner_episodes == 2
    assert main(["plot", "a"]) == 0
    (picture,) = (one for one in pictures_in(Path("a/plot.html").read_text()) if "each episode of a task" in one)
    assert "episode 1" in picture and "episode 2" in picture and "env steps" in picture
    curves = curves_of(["a"])
    (panel,) = (one for one in panels_of(curves) if "each episode of a task" in one.title)
    (axes,) = figure([panel], curves).axes
    assert [list(line.get_xydata()[:, 1]) for line in axes.lines] == [[1.0, 2.0], [2.0, 4.0]]
    assert [list(line.get_xydata()[:, 0]) for line in axes.lines] == [[1, 2], [1, 2]]
    assert len({line.get_marker() for line in axes.lines}) == 2, "of a single evaluation there are only the dots"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("plot", "RUN is missing; for example: `multiverse plot runs/CartPole-v1`"),
        ("plot nowhere", "nowhere: there is no such directory"),
        ("plot a --metrics entorpy", "no run has the metric entorpy; did you mean entropy?"),
        ("plot a --metrics zzz", "no run has the metric zzz; the metrics are "),
        ("plot a --out curves.gif", "--out curves.gif: expected a folder, or a file that ends in png, svg, pdf, html"),
        ("report a --out report.png", "expected a folder, or a file that ends in html"),
        ("plot a --out a/config.yaml/", "cannot be written"),
        ("compare a", "a: expected runs with different settings, but all have the same settings ("),
        ("compare", "RUN is missing; for example: `multiverse compare runs/"),
        ("replay a --episode -1", "episode=-1: expected 0 or more"),
        ("replay a", "this run has no checkpoint"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    typed: str, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("a"))
    assert main(typed.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


@pytest.mark.parametrize("lost", [False, True])
def test_commands_that_read_metrics_need_no_checkpoints(
    lost: bool, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, lr in (("a", 1e-3), ("b", 1e-4)):
        run = write_run(Path("runs") / name, lr=lr)
        if lost:
            (run / "checkpoints").rmdir()
    for typed in ("plot runs/a", "report runs", "compare runs/a runs/b", "list runs"):
        assert main(typed.split()) == 0, typed
    assert "runs/a" in capsys.readouterr().out
    for typed in ("evaluate runs/a", "replay runs"):
        assert main(typed.split()) == 2
        assert "this run has no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plot", "report"])
def test_missing_matplotlib_is_reported_with_the_extra(
    command: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("a"))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    assert main([command, "a"]) == 2
    assert "not installed here: pip install 'multiverse[plot]'" in capsys.readouterr().err
    assert not [*Path("a").glob("*.html"), *Path("a").glob("*.png")]


# -- compare -----------------------------------------------------------------------------------------------------
def test_compare_shows_differing_settings_and_results(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        write_run(Path(f"a/{seed}"), seed, level=5.0)
    write_run(Path("b"), lr=0.5, level=7.0, target_return=9)
    assert main(["compare", "a", "b"]) == 0
    rows = {line.split("  ")[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert rows["ppo.learning_rate"].split()[1:] == ["0.001", "0.5"]
    assert rows["target_return"].split()[1:] == ["–", "9"]
    assert "IQM 50.0 (50.0 to 50.0)" in rows["last evaluation"] and rows["last evaluation"].split()[-1] == "70.0"
    assert rows["time: learn"].split()[2:] == ["50", "%", "50", "%"] and "env" not in rows
    assert main(["compare", "a", "b", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["settings"] == {"ppo.learning_rate": [0.001, 0.5], "target_return": [None, 9]}
    assert [one["last_returns"] for one in report["runs"]] == [[50.0, 50.0], [70.0]]
    assert [one["env_steps_per_s"] for one in report["runs"]] == [100.0, 100.0]


def test_equal_settings_of_different_algorithms_share_a_row(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("a"))
    write_run(Path("b"), algorithm="sac", ppo={}, sac={"learning_rate": 0.5, "tau": 0.1})
    assert main(["compare", "a", "b", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["settings"]
    assert report["learning_rate"] == [0.001, 0.5] and report["tau"] == [None, 0.1] and "sac.tau" not in report


# -- report ------------------------------------------------------------------------------------------------------
def test_report_has_everything_in_one_file(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = write_run(Path("a"), env_kwargs={"gravity": 9.75})
    (home / "summary.json").write_text(json.dumps(ENDED))
    (home / "videos").mkdir()
    (home / "videos" / "old.mp4").write_bytes(b"old")
    (home / "videos" / "new.mp4").write_bytes(b"moving pictures")
    assert main(["report", "a"]) == 0
    assert capsys.readouterr().out == "a/report.html\n"
    page = Path("a/report.html").read_text()
    assert_whole(page)
    assert base64.b64encode(b"moving pictures").decode() in page and len(pictures_in(page)) == 4
    for reported in (
        "env_kwargs.gravity",
        "9.75",
        "Abacus",
        "finished in 4.0 s",
        "gradient steps skipped",
        "env restarts",
    ):
        assert reported in page, reported
    (home / "summary.json").write_text(
        json.dumps({"error": "TrainingDiverged: nan", "failures": "none of your affair"})
    )
    assert main(["report", "a"]) == 0
    assert "failed: TrainingDiverged: nan" in Path("a/report.html").read_text()


@pytest.mark.fault("E7")
def test_markup_in_a_foreign_run_is_escaped_in_pages(elsewhere: Path) -> None:
    bad = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    home = write_run(Path("a"), env=bad, algorithm="$\\frac{1}$", env_kwargs={bad: bad})
    (home / "summary.json").write_text(json.dumps({**ENDED, "stopped": bad}))
    (home / "provenance.json").write_text(json.dumps({"parts": [{"command": [bad], "git": bad}]}))
    write_run(Path("b"), lr=0.5)
    assert main(["report", "a", "b"]) == 0
    page = Path("report.html").read_text()
    assert_whole(page)
    assert bad not in page and "<script" not in "".join(pictures_in(page)) and "&lt;script&gt;" in page


# -- replay ------------------------------------------------------------------------------------------------------
def test_replayed_evaluation_episode_is_bit_equal(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("a"), "--evaluation-episodes", "3") == 0
    capsys.readouterr()
    results = []
    for number in (0, 2, 2):
        assert main(["replay", "a", "--episode", str(number), "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert [one["same"] for one in results] == [True] * 3
    assert results[1] == results[2] and results[0]["digest"] != results[1]["digest"]
    assert main(["replay", "a", "--episode", "2", "--video"]) == 0
    said = capsys.readouterr().out
    assert results[1]["digest"] in said and "The return and the length are the same" in said
    (video,) = Path("a/videos").iterdir()
    assert video.name.endswith("-episode-2.mp4") and video.stat().st_size > 0 and str(video) in said
    assert main(["replay", "a", "--episode", "3"]) == 0
    assert "has no record of this episode" in capsys.readouterr().out


@pytest.mark.parametrize("env", ["pettingzoo.classic.connect_four_v3:env", "mpe2.simple_spread_v3:parallel_env"])
def test_replayed_multi_agent_episode_is_bit_equal(env: str, elsewhere: Path) -> None:
    assert train(Path("a"), "--evaluation-episodes", "1", env=env, env_steps=64) == 0
    again = [mv.replay("a", 0) for _ in range(2)]
    assert again[0].same and again[0] == again[1] and len({again[0].digest, Witness().digest()}) == 2


def test_digest_depends_on_actions_and_observations() -> None:
    class Still:
        agents = ("a",)

        def reset(self, seed: int | None = None) -> None: ...

        def step(self, action: Any) -> None: ...

        def last(self) -> Any:
            return {"seen": np.full(2, shown[0])}, 0.0, False, False, {"took_s": time.perf_counter()}

    digests, shown = [], [0]
    for shown[0], action in ((0, 1), (0, 1), (0, 2), (1, 1)):
        witness = Witness()
        env = witness(Still())
        env.reset(seed=1)
        env.step(action)
        digests.append(witness.digest())
    assert digests[0] == digests[1] and len({*digests}) == 3


class Restless(gym.Env[Any, Any]):
    """Env whose episodes all differ in length, whatever the seed."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
    ages = itertools.count(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._left = next(self.ages)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return np.zeros(1, np.float32), 1.0, self._left <= 0, False, {}


def test_replayed_episode_that_differs_is_reported(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("a"), env="tests.cli.test_pictures:Restless") == 0
    capsys.readouterr()
    assert main(["replay", "a"]) == 1
    assert "Not the same: in the run's evaluation the return was" in capsys.readouterr().out


# -- as tables ---------------------------------------------------------------------------------------------------
def test_metrics_of_a_run_are_rows_and_a_dataframe(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = mv.Run.at(write_run(Path("a/one")).parent)
    assert run.path == Path("a/one") and run.summary == {}
    assert [row["env_steps"] for row in run.rows()] == [100, 200, 300, 400]
    last = run.rows()[-1]
    assert "evaluation_mean_return" in last and "mean_return" in last, "an evaluation is in the row of its env steps"
    monkeypatch.setitem(sys.modules, "pandas", type("pandas", (), {"DataFrame": list}))
    assert run.metrics() == run.rows()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mv.errors.PreflightError, match=r"pip install pandas; rows\(\) gives the same as a list"):
        run.metrics()
