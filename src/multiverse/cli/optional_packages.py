"""The doctor's look at what multiverse does not need but can use: GPUs and optional packages.

Torch is asked in a process of its own: importing it here would take seconds, and its first look at CUDA would
make this process one that cannot fork any more.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from multiverse.cli.findings import Finding

ASK_TIMEOUT_S = 60.0

PACKAGES = {  # what pip calls it → what import calls it
    "torch": "torch",
    "mujoco": "mujoco",
    "stable-baselines3": "stable_baselines3",
    "pettingzoo": "pettingzoo",
    "ale-py": "ale_py",
    "pyboy": "pyboy",
    "ray": "ray",
    "tensorboard": "tensorboard",
}

_TORCH_SAYS = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "built_for_cuda": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    "mps": torch.backends.mps.is_available(),
}))
"""


# -- GPU -------------------------------------------------------------------------------------------------------
def gpu() -> Finding:
    driver = shutil.which("nvidia-smi") is not None
    if importlib.util.find_spec("torch") is None:
        if driver:
            return Finding("GPU", "ok", "nvidia-smi is there, torch is not", "`pip install torch` to learn on the GPU")
        return Finding("GPU", "ok", "none looked for without torch; envs run on the CPU anyway")
    try:
        torch = ask_torch()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Finding(
            "GPU", "warning", f"torch is installed but does not work: {_last_line(error)}", "reinstall torch"
        )
    version = f"torch {torch['version']}"
    if torch["devices"]:
        return Finding("GPU", "ok", f"{version}: {', '.join(torch['devices'])}")
    if torch["mps"]:
        return Finding("GPU", "ok", f"{version}: Apple's (mps)")
    if driver and torch["built_for_cuda"] is None:
        advice = "install torch for CUDA (pytorch.org has the command); envs do not need it"
        return Finding("GPU", "warning", f"nvidia-smi is there, but {version} was built without CUDA", advice)
    if driver:
        advice = "run nvidia-smi: the driver may be too old for this torch, or the container may hide the GPU"
        return Finding("GPU", "warning", f"nvidia-smi is there, but {version} sees no GPU", advice)
    return Finding("GPU", "ok", f"{version}: no GPU; envs run on the CPU anyway")


def ask_torch() -> dict[str, Any]:
    """What torch says about GPUs, asked in a process of its own."""
    command = [sys.executable, "-c", _TORCH_SAYS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
    return said


def _last_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    return next(iter(reversed(str(text).strip().splitlines())), type(error).__name__)


# -- optional packages -----------------------------------------------------------------------------------------
def extras() -> Finding:
    installed = {name: _version(name) for name, module in PACKAGES.items() if importlib.util.find_spec(module)}
    missing = [name for name in PACKAGES if name not in installed]
    there = ", ".join(f"{name} {version}".strip() for name, version in installed.items()) or "none"
    found = f"installed: {there}" + (f"; not installed: {', '.join(missing)}" if missing else "")
    advice = f"only if you want them: {'; '.join(install_commands(missing))}" if missing else ""
    return Finding("extras", "ok", found, advice)


def install_commands(packages: Iterable[str]) -> list[str]:
    """How to install each: by an extra of multiverse where one brings it, else by its own name, all in one go."""
    brought = extra_of()
    own = [name for name in packages if name not in brought]
    by_extra = sorted({brought[name] for name in packages if name in brought})
    commands = [f"pip install 'multiverse[{','.join(by_extra)}]'"] if by_extra else []
    return commands + ([f"pip install {' '.join(own)}"] if own else [])


def extra_of() -> dict[str, str]:
    """Which extra of multiverse brings a package, by what multiverse's own metadata says."""
    found: dict[str, str] = {}
    for requirement in importlib.metadata.requires("multiverse") or []:
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        named = re.match(r"([\w.-]+)\s*(?:\[([\w.,\s-]*)\])?", requirement)
        if extra and named and extra[1] != "dev":
            for name in (named[1], *(part.strip() for part in (named[2] or "").split(","))):
                found.setdefault(name.lower().replace("_", "-"), extra[1])
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
