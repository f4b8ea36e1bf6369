"""`multiverse list`: list envs, presets, algorithms, networks and runs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from multiverse.cli.main import print_wrapped
from multiverse.cli.options import argument, option, parse
from multiverse.core.plain_files import read_plain
from multiverse.core.wording import format_return
from multiverse.networks import SUMMARIES

DESCRIPTION = """\
Lists envs (Gymnasium's registry and the built-in ones), presets (tested
settings for an env), algorithms, built-in networks (for --network), and the
runs in a directory, the most recent one last. Without WHAT, everything except
envs is listed.

examples:
  multiverse list
  multiverse list envs
  multiverse list runs --root runs/CartPole-v1"""

KEPT_SPACE = "\0"
"""Stands for the spaces between a flag and its values, where lines must not be broken."""
NO_RUNS = "  none yet; `multiverse train CartPole-v1` creates one"


@dataclass(frozen=True)
class List:
    """Options of `multiverse list`."""

    what: Literal["everything", "envs", "presets", "algorithms", "networks", "runs"] = argument(
        "WHAT", "envs, presets, algorithms, networks or runs.", default="everything"
    )
    root: str = option("runs", "Directory that contains the runs.", metavar="FOLDER")


def run(arguments: Sequence[str]) -> int:
    words = ["algorithms" if word == "agents" else word for word in arguments]  # the name until 0.1
    options = parse(List, "list", DESCRIPTION, words)
    if options.what == "envs":
        print("\n".join(env_names()))
    if options.what in ("presets", "everything"):
        print("\n".join(["presets:", *preset_lines()]))
    if options.what in ("algorithms", "everything"):
        print_wrapped("\n".join(["algorithms:", *algorithm_lines()]))
    if options.what in ("networks", "everything"):
        print_wrapped("\n".join(["networks:", *(f"  {name}  {about}" for name, about in SUMMARIES.items())]))
    if options.what in ("runs", "everything"):
        print("\n".join([f"runs in {options.root}:", *(run_lines(Path(options.root)) or [NO_RUNS])]))
    return 0


def algorithm_lines() -> list[str]:
    """Return each algorithm with the first line of its module's docstring."""
    modules = {name: importlib.import_module(where.partition(":")[0]) for name, where in ALGORITHMS.items()}
    return [f"  {name}  {str(module.__doc__).partition(chr(10))[0]}" for name, module in modules.items()]


def env_names() -> list[str]:
    """Return every id that Gymnasium can make on this machine, and those of the built-in envs."""
    import gymnasium

    import multiverse.envs  # noqa: F401
    from multiverse.adapters.env_source import BUILT_IN

    return sorted([*(name for name, spec in gymnasium.registry.items() if not _is_gone(spec)), *BUILT_IN])


def _is_gone(spec: Any) -> bool:
    """Return whether an env cannot be made: MuJoCo's v2 and v3, which have moved, and envs that need a missing jax."""
    if callable(spec.entry_point):
        return getattr(spec.entry_point, "__name__", "").startswith("_raise_")
    return spec.namespace in ("phys2d", "tabular") and importlib.util.find_spec("jax") is None


def preset_lines() -> list[str]:
    """Return each preset with its settings as flags, and the results of its validation below them."""
    from multiverse.training.config.resolve import preset_results, presets

    return [
        line
        for (env, name), settings in presets().items()
        for line in (
            *_wrapped(f"  {env} ({name}): {_as_flags({'algorithm': name, **settings})}"),
            f"      {preset_results().get((env, name), 'not validated to its full budget')}",
        )
    ]


def _as_flags(settings: dict[str, Any]) -> str:
    from multiverse.cli.flags import flag_words

    shown = [(name, value) for name, value in settings.items() if value != DEFAULT_ALGORITHM]
    return " ".join(shlex.join(flag_words(name, value)).replace(" ", KEPT_SPACE) for name, value in shown)


def _wrapped(line: str) -> list[str]:
    """Wrap a line between flags, so that a shell reads the lines as one."""
    parts = textwrap.wrap(
        line,
        min(shutil.get_terminal_size((100, 0)).columns, 100) - 2,
        subsequent_indent=6 * " ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(KEPT_SPACE, " ") + (" \\" if part is not parts[-1] else "") for part in parts]


def run_lines(root: Path) -> list[str]:
    """Return a line for every run, the most recently written one last."""
    folders = [path.parent for path in root.rglob("config.yaml")] if root.is_dir() else []
    # The same test as `is_run`, which needs the extra for training.
    runs = [path for path in folders if (path / "checkpoints").is_dir() or (path / "metrics.jsonl").is_file()]
    return [f"  {path}  {_state_of(path)}" for path in sorted(runs, key=_modified_at)]


def _modified_at(run: Path) -> int:
    return max(path.lstat().st_mtime_ns for path in run.iterdir())


def _state_of(run: Path) -> str:
    try:
        summary = json.loads(read_plain(run / "summary.json", 2**24)[0])
        state = "finished" if summary["finished"] else "interrupted"
        text = f"{state} at {summary['env_steps']:,} env steps"
        if evaluation := summary["evaluation"]:
            text += f", return {format_return(evaluation['mean_return'])} ± {format_return(evaluation['std_return'])}"
            text += f", won {100 * evaluation['wins']:.0f} %" if "wins" in evaluation else ""
        return text
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "running, or ended without a summary"
