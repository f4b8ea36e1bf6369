"""`multiverse list`: list envs, presets, algorithms, networks and runs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from multiverse.cli.main import parse
from multiverse.core.plain_files import read_plain
from multiverse.core.wording import in_digits
from multiverse.networks import SUMMARIES

DESCRIPTION = """\
Lists envs (of Gymnasium's registry, and our own), presets (tested settings
for an env), algorithms, built-in networks (--network), and runs below a
directory, newest last. Without WHAT: all but envs.

examples:
  multiverse list
  multiverse list envs
  multiverse list runs --root runs/CartPole-v1"""

What = Literal["everything", "envs", "presets", "algorithms", "networks", "runs"]
KEPT_SPACE = "\0"
"""Replaces a space inside a flag and its values, where lines are not broken."""
NO_RUNS = "  none yet: `multiverse train CartPole-v1` makes one"


@dataclass(frozen=True)
class List:
    """Options of `multiverse list`."""

    what: Annotated[tyro.conf.Positional[What], tyro.conf.arg(metavar="WHAT")] = "everything"
    """envs, presets, algorithms, networks or runs."""
    root: str = "runs"
    """Directory in which to look for runs."""


def run(arguments: Sequence[str]) -> int:
    words = ["algorithms" if word == "agents" else word for word in arguments]  # until 0.1
    options = parse(List, "list", DESCRIPTION, words)
    if options.what == "envs":
        print("\n".join(env_names()))
    if options.what in ("presets", "everything"):
        print("\n".join(["presets:", *preset_lines()]))
    if options.what in ("algorithms", "everything"):
        print("\n".join(["algorithms:", *algorithm_lines()]))
    if options.what in ("networks", "everything"):
        print("\n".join(["networks:", *(f"  {name}  {about}" for name, about in SUMMARIES.items())]))
    if options.what in ("runs", "everything"):
        print("\n".join([f"runs in {options.root}:", *(run_lines(Path(options.root)) or [NO_RUNS])]))
    return 0


def algorithm_lines() -> list[str]:
    """Return each algorithm with the first line of its module."""
    modules = {name: importlib.import_module(where.partition(":")[0]) for name, where in ALGORITHMS.items()}
    return [f"  {name}  {str(module.__doc__).partition(chr(10))[0]}" for name, module in modules.items()]


def env_names() -> list[str]:
    """Return every id that Gymnasium can make here, and our own."""
    import gymnasium

    import multiverse.envs  # noqa: F401
    from multiverse.adapters.env_source import BUILT_IN

    return sorted([*(name for name, spec in gymnasium.registry.items() if not _is_gone(spec)), *BUILT_IN])


def _is_gone(spec: Any) -> bool:
    """Return whether an id only says where its env has moved, as MuJoCo's v2 and v3, or needs jax, which is missing."""
    if callable(spec.entry_point):
        return getattr(spec.entry_point, "__name__", "").startswith("_raise_")
    return spec.namespace in ("phys2d", "tabular") and importlib.util.find_spec("jax") is None


def preset_lines() -> list[str]:
    """Return each preset with its settings as flags, and its results below."""
    from multiverse.training.config.train_config import presets, tried

    return [
        line
        for (env, name), found in presets().items()
        for line in (
            *_broken(f"  {env} ({name}): {_as_flags({'algorithm': name, **found})}"),
            f"      {tried().get((env, name), 'not validated to its full budget')}",
        )
    ]


def _as_flags(settings: dict[str, Any]) -> str:
    from multiverse.cli.flags import flag_words

    given = [(name, value) for name, value in settings.items() if value != DEFAULT_ALGORITHM]
    return " ".join(shlex.join(flag_words(name, value)).replace(" ", KEPT_SPACE) for name, value in given)


def _broken(line: str) -> list[str]:
    """Return lines that a shell reads as one, of at most 100 columns unless one flag is longer."""
    parts = textwrap.wrap(line, 98, subsequent_indent=6 * " ", break_long_words=False, break_on_hyphens=False)
    return [part.replace(KEPT_SPACE, " ") + (" \\" if part is not parts[-1] else "") for part in parts]


def run_lines(root: Path) -> list[str]:
    """Return a line for every run, ordered by when it was last written to."""
    found = [path.parent for path in root.rglob("config.yaml")] if root.is_dir() else []
    # The same as is_run, which needs the extra for training.
    runs = [path for path in found if (path / "checkpoints").is_dir() or (path / "metrics.jsonl").is_file()]
    return [f"  {path}  {_state_of(path)}" for path in sorted(runs, key=_age)]


def _age(run: Path) -> int:
    return max(path.lstat().st_mtime_ns for path in run.iterdir())


def _state_of(run: Path) -> str:
    try:
        summary = json.loads(read_plain(run / "summary.json", 2**24)[0])
        found = summary["evaluation"]
        returned = f", return {in_digits(found['mean_return'])} ± {in_digits(found['std_return'])}" if found else ""
        returned += f", won {100 * found['wins']:.0f} %" if found and "wins" in found else ""
        state = "finished" if summary["finished"] else "interrupted"
        return f"{state} at {summary['env_steps']:,} env steps{returned}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "running, or ended without a summary"
