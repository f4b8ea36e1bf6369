"""Tracking of runs: a directory with the config, metrics, videos and model, and a WandB run if WandB is installed.

Only the training program imports this module. Workers do not import the script, so they cannot start further runs.
"""

from __future__ import annotations

import importlib.util
import json
import netrc
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TRACKERS = ("auto", "wandb", "local")
PROJECT = "grid-world"
CONNECT_S = 3.0


class Run:
    """A running training. `folder` is its directory; `name` states where it is logged."""

    def __init__(self, folder: Path, wandb_run: Any = None) -> None:
        self.folder, self.videos, self.model = folder, folder / "videos", folder / "model.zip"
        self.name = "local folder" if wandb_run is None else f"local folder, WandB ({_mode_of(wandb_run)})"
        self._wandb_run = wandb_run
        self._metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics after `step` env steps. They are on disk when this method returns."""
        self._metrics.write(json.dumps({"step": step, **metrics}) + "\n")
        self._metrics.flush()
        if self._wandb_run is not None:
            self._wandb_run.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` and upload videos to WandB. Calling this method again has no effect."""
        if self._metrics.closed:
            return
        self._metrics.close()
        _write(self.folder / "summary.json", summary)
        if self._wandb_run is not None:
            self._wandb_run.summary.update(dict(summary))
            self._wandb_run.save(str(self.videos / "*.gif"), base_path=str(self.folder), policy="now")
            self._wandb_run.finish(exit_code=0 if summary.get("status") == "finished" else 1)


def start_run(parent: Path, config: Mapping[str, Any], tracker: str = "auto") -> Run:
    """Create a directory under `parent` and, depending on `tracker`, one WandB run, without a prompt.

    WandB works offline unless a key and a connection are available; WANDB_MODE overrides this.
    """
    with_wandb = tracker == "wandb" or (tracker == "auto" and importlib.util.find_spec("wandb") is not None)
    wandb = _wandb() if with_wandb else None
    folder = _new_folder(parent)
    _write(folder / "config.json", config)
    if wandb is None or os.environ.get("WANDB_MODE") == "disabled":
        return Run(folder)
    started = wandb.init(
        project=PROJECT,
        name=folder.name,
        config=dict(config),
        dir=str(folder),
        mode=os.environ.get("WANDB_MODE") or wandb_mode(),
        settings=wandb.Settings(console="off", silent=True),
    )
    return Run(folder, started)


def wandb_mode() -> str:
    """Return `online` if WandB has a key and can reach its server, else `offline`."""
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host = server.hostname or ""
    return "online" if _has_key(host) and _answers(host, server.port or 443) else "offline"


def _has_key(host: str) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            "WandB is not installed: pip install 'multiverse[tracking]', or pass --tracker local"
        ) from error
    return wandb


def _mode_of(wandb_run: Any) -> str:
    return "offline" if wandb_run.offline else "online"


def _new_folder(parent: Path) -> Path:
    """Create a directory named run-DATE-TIME, with a number appended if that name exists."""
    stem, number = time.strftime("run-%Y%m%d-%H%M%S"), 1
    while True:
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
