"""Algorithms by name: how each is made from a config."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import torch

from multiverse.algorithms.algorithm import Algorithm
from multiverse.algorithms.ppo import PPO
from multiverse.contracts.errors import InvalidRequest
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.session import MakeAlgorithm

ALGORITHMS: tuple[str, ...] = get_args(get_type_hints(TrainConfig)["algorithm"])


def algorithm_maker(config: TrainConfig, own: MakeAlgorithm | None = None) -> MakeAlgorithm:
    """What makes the algorithm of this config, once the spaces of its env are known; `own` if the caller brings one."""
    device = checked_device(config.device)
    if own is not None:
        return own

    def make_ppo(observation_space: Any, action_space: Any, slots: int, seed: int) -> Algorithm:
        return PPO(config.ppo, observation_space, action_space, slots, seed, device)

    return {"ppo": make_ppo}[config.algorithm]


def checked_device(device: str) -> str:
    """`auto` is the CPU: for networks as small as the presets' it is faster than moving every batch elsewhere."""
    if device == "auto":
        return "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(f"device='cuda': {_why_no_cuda()}; device='cpu' works everywhere")
    if device == "mps" and not torch.backends.mps.is_available():
        raise InvalidRequest("device='mps': this machine has no Apple GPU that torch can use; device='cpu' works")
    return device


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"the installed torch {torch.__version__} was built without CUDA"
    return "torch finds no CUDA device"
