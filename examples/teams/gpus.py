"""Which process learns and acts on which GPU."""

from __future__ import annotations

from collections.abc import Sequence

CPU = "cpu"


def gpu_of(process_id: int, devices: Sequence[str]) -> str:
    """The process's device, round-robin; without any it is the CPU."""
    return devices[process_id % len(devices)] if devices else CPU


def visible_gpus() -> list[str]:
    """Names of this machine's GPUs, as torch has them."""
    try:
        import torch
    except ImportError:
        return []
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]
