"""Assignment of processes to GPUs."""

from __future__ import annotations

from collections.abc import Sequence

CPU = "cpu"


def gpu_of(process_id: int, devices: Sequence[str]) -> str:
    """Return the device of a process, assigned round-robin; the CPU if there are no devices."""
    return devices[process_id % len(devices)] if devices else CPU


def visible_gpus() -> list[str]:
    """Return torch's names of this machine's GPUs."""
    try:
        import torch
    except ImportError:
        return []
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]
