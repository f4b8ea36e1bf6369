"""HTML pages about runs: self-contained files that load nothing and contain no script. The content of a run's files is
shown as text, never as HTML."""

from __future__ import annotations

import base64
import html
import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from multiverse.cli.curves import Curve, differing, in_figures, mean_rate, settings_of
from multiverse.cli.figures import Panel, drawn, figure
from multiverse.core.imports import display_name
from multiverse.core.plain_files import read_plain
from multiverse.core.wording import format_bytes, format_return
from multiverse.training.progress import duration_text, failure_counts
from multiverse.training.runs.records import EVALUATED, RunRecord

MAX_VIDEO_BYTES = 2**25  # a browser still opens such a page quickly
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
p.about { color: #666; margin-top: 0; } img, video { max-width: 100%; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1rem; }
.pictures img { width: 100%; border: 1px solid #eee; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #eee; vertical-align: top; }
th { font-weight: 600; } td.changed { font-weight: 600; }
th, td:not(:last-child) { white-space: nowrap; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
"""
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


def plot_page(curves: Sequence[Curve], panels: Sequence[Panel]) -> bytes:
    """Return a page with the figures and a table of the runs."""
    return _page(_title(curves), [_runs(curves), _pictures(curves, panels)])


def report_page(curves: Sequence[Curve], panels: Sequence[Panel]) -> bytes:
    """Return a page with results, figures, a video, failures, settings and provenance."""
    runs = [run for curve in curves for run in curve.runs]
    parts = [_runs(curves), _pictures(curves, panels), _video(runs), _failures(runs), _config(curves)]
    return _page(_title(curves), [*parts, _provenance(runs)])


# -- sections -----------------------------------------------------------------------------------------------------
def _runs(curves: Sequence[Curve]) -> str:
    """Return a table with a row for each run and, for several seeds, one for all of them."""
    rows = []
    for curve in curves:
        if len(curve.runs) > 1:
            last, best = in_figures(curve.final()), in_figures(curve.best())
            rows.append([f"{curve.label}: {len(curve.runs)} seeds together", "", "", "", last, best, ""])
        rows += [_row(curve, run) for run in curve.runs]
    names = ("run", "seed", "state", "env steps", "last evaluation", "best", "steps/s")
    return _section("Runs", _table(names, rows))


def _row(curve: Curve, run: RunRecord) -> list[str]:
    values = run.points(EVALUATED)[1]
    steps = run.points("seconds")[0]
    rate = mean_rate(run)
    return [
        str(run.path),
        str(run.seed),
        state_of(run),
        f"{steps[-1]:,}" if steps else "–",
        format_return(values[-1]) if values else "–",
        format_return(max(values)) if values else "–",
        f"{rate:,.0f}" if rate else "–",
    ]


def state_of(run: RunRecord) -> str:
    """Return the state of a run, such as 'finished in 3:07 min'."""
    if not run.summary:
        return "running, or ended without a summary"
    seconds = run.summary.get("seconds")
    state = "finished" if run.summary.get("finished") else "interrupted"
    state = f"stopped ({run.summary['stopped']})" if run.summary.get("stopped") else state
    state = f"failed: {run.summary['error']}" if run.summary.get("error") else state
    return f"{state} in {duration_text(seconds)}" if isinstance(seconds, int | float) else state


def _pictures(curves: Sequence[Curve], panels: Sequence[Panel]) -> str:
    images = [
        f'<img alt="{_text(panel.title)}" src="{_data(drawn(figure([panel], curves), "svg"), "image/svg+xml")}">'
        for panel in panels
    ]
    return _section("Figures", f'<div class="pictures">{"".join(images)}</div>')


def _video(runs: Sequence[RunRecord]) -> str:
    """Embed the newest video; if it is too large, only its path is shown."""
    video = max((run.videos[0] for run in runs if run.videos), key=lambda path: path.stat().st_mtime_ns, default=None)
    if video is None:
        command = f"multiverse record {shlex.quote(str(runs[0].path))}"
        return _section("Video", f"<p>No video has been recorded. To record one: <code>{_text(command)}</code></p>")
    try:
        source = _data(read_plain(video, MAX_VIDEO_BYTES)[0], "video/mp4")
    except (OSError, ValueError):
        size = format_bytes(video.stat().st_size)
        return _section("Video", f"<p><code>{_text(video)}</code> is too large for this page ({size}).</p>")
    return _section("Video", f'<video controls loop src="{source}"></video><p><code>{_text(video)}</code></p>')


def _failures(runs: Sequence[RunRecord]) -> str:
    rows, unknown = list[list[str]](), 0
    for run in runs:
        try:
            rows += [[str(run.path), name, f"{count:,}"] for name, count in failure_counts(run.summary).items()]
        except (LookupError, TypeError, ValueError):  # the run has not ended, or its summary is malformed
            unknown += 1
        if run.summary.get("error"):
            rows.append([str(run.path), "ended by", str(run.summary["error"])])
    none = "None so far; not every run has ended." if unknown else "None."
    return _section("Failures", _table(("run", "failure", "count"), rows) if rows else f"<p>{none}</p>")


def _config(curves: Sequence[Curve]) -> str:
    """Return a table with a column for each curve; settings that differ are bold."""
    first = [curve.runs[0] for curve in curves]
    rows = settings_of(first)
    names = list(dict.fromkeys(name for row in rows for name in row))
    other = differing(first)
    cells = "".join(
        f"<tr><td><code>{_text(name)}</code></td>"
        + "".join(_cell(_short(row.get(name)), name in other) for row in rows)
        + "</tr>"
        for name in names
        if name != "seed"
    )
    heads = "".join(f"<th>{_text(curve.label)}</th>" for curve in curves)
    return _section("Settings", f'<div class="wide"><table><tr><th>setting</th>{heads}</tr>{cells}</table></div>')


def _cell(value: str, differs: bool) -> str:
    return f'<td class="{"changed" if differs else ""}"><code>{_text(value)}</code></td>'


def _provenance(runs: Sequence[RunRecord]) -> str:
    """Return versions, machine, commit and command line of each part of each run; equal ones are shown once."""
    names_of: dict[str, list[str]] = {}
    for run in runs:
        for number, part in enumerate(run.provenance):
            rest = {name: part[name] for name in ("command", "plan", "versions", "machine", "git") if name in part}
            key = json.dumps(rest, sort_keys=True, default=str)
            names_of.setdefault(key, []).append(f"{run.path}{f', part {number + 1}' if number else ''}")
    parts = []
    for key, names in names_of.items():
        rest = json.loads(key)
        if isinstance(rest.get("command"), list):
            rest["command"] = shlex.join(map(str, rest["command"]))
        rows = [[name, _short(value)] for name, value in rest.items()]
        parts.append(f"<p>{_text(', '.join(names))}</p>{_table(('', ''), rows)}")
    return _section("Provenance", "".join(parts) or "<p>Not recorded.</p>")


# -- HTML ----------------------------------------------------------------------------------------------------------
def _page(title: str, parts: Iterable[str]) -> bytes:
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f"<title>{_text(title)}</title><style>{_STYLE}</style>"
    body = f'<h1>{_text(title)}</h1><p class="about">written by multiverse</p>{"".join(parts)}'
    return f"<!doctype html><html><head>{head}</head><body>{body}</body></html>".encode()


def _title(curves: Sequence[Curve]) -> str:
    configs = [run.config for curve in curves for run in curve.runs]
    named = dict.fromkeys(
        " on ".join(display_name(str(one.get(name))) for name in ("algorithm", "env")) for one in configs
    )
    return ", ".join(named)


def _section(title: str, content: str) -> str:
    return f"<h2>{_text(title)}</h2>{content}"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(one)}" for name, one in value.items())
    return "none" if value is None else str(value)


def _text(value: Any) -> str:
    return html.escape(str(value))  # guard: a-page-shows-a-runs-words-as-text


def _data(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
