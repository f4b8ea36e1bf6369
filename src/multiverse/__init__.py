"""Many reinforcement-learning environments in parallel, at the machine's speed.

    import multiverse as mv

    envs = mv.make_vec("CartPole-v1", num_envs=8)
    observations, infos = envs.reset(seed=7)

Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiverse.core.errors import (
        ClosedError,
        EnvFailed,
        InvalidActions,
        InvalidRequest,
        MultiverseError,
        NothingPending,
        PreflightError,
        ReceiveTimeout,
        ReplyTimeout,
        RequestPending,
        SpacesDiffer,
        TrainingDiverged,
        WorkerDied,
    )
    from multiverse.core.plan import Plan
    from multiverse.core.reset_plan import DerivedSeeds, DrawnTasks, EachTask, ResetPlan, ResetRequest
    from multiverse.env_checker.examine import check_env
    from multiverse.env_checker.report import CheckReport, EnvCheckFailed, Finding
    from multiverse.policies.simple_policies import RandomPolicy
    from multiverse.rollouts.episode_collector import EpisodeCollector
    from multiverse.rollouts.episode_collector import EpisodeWorkers as EpisodeWorkers  # old name
    from multiverse.rollouts.whole_episodes import WholeEpisodes
    from multiverse.training.config.files import read_config
    from multiverse.training.config.rollout_files import rollout_settings
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.hooks import Hook
    from multiverse.training.loading import evaluate, load
    from multiverse.training.policy import LoadedPolicy
    from multiverse.training.recording import record, replay
    from multiverse.training.run import Run, resume, train
    from multiverse.training.seed_runs import SeedRuns
    from multiverse.vector.batches import AgentsBatch, GroupBatch, StepBatch
    from multiverse.vector.make import make_vec
    from multiverse.vector.parallel import MultiAgentVectorEnv
    from multiverse.vector.single import VectorEnv
    from multiverse.vector.turns import Turn, TurnVectorEnv
    from multiverse.wrappers.flatten_agents import flatten_agents
    from multiverse.wrappers.meta_episode import MetaEpisode, draw_tasks

__version__ = "0.2.0"

_HOMES = {
    "multiverse.wrappers.flatten_agents": ("flatten_agents",),
    "multiverse.wrappers.meta_episode": ("MetaEpisode", "draw_tasks"),
    "multiverse.env_checker.examine": ("check_env",),
    "multiverse.env_checker.report": ("CheckReport", "EnvCheckFailed", "Finding"),
    "multiverse.rollouts.episode_collector": ("EpisodeCollector", "EpisodeWorkers"),
    "multiverse.policies.simple_policies": ("RandomPolicy",),
    "multiverse.rollouts.whole_episodes": ("WholeEpisodes",),
    "multiverse.vector.make": ("make_vec",),
    "multiverse.vector.single": ("VectorEnv",),
    "multiverse.vector.parallel": ("MultiAgentVectorEnv",),
    "multiverse.vector.turns": ("Turn", "TurnVectorEnv"),
    "multiverse.training.run": ("Run", "resume", "train"),
    "multiverse.training.seed_runs": ("SeedRuns",),
    "multiverse.training.config.files": ("read_config",),
    "multiverse.training.config.rollout_files": ("rollout_settings",),
    "multiverse.training.loading": ("evaluate", "load"),
    "multiverse.training.policy": ("LoadedPolicy",),
    "multiverse.training.evaluation": ("Evaluation",),
    "multiverse.training.recording": ("record", "replay"),
    "multiverse.training.hooks": ("Hook",),
    "multiverse.vector.batches": ("AgentsBatch", "GroupBatch", "StepBatch"),
    "multiverse.core.plan": ("Plan",),
    "multiverse.core.reset_plan": ("DerivedSeeds", "DrawnTasks", "EachTask", "ResetPlan", "ResetRequest"),
    "multiverse.core.errors": (
        "ClosedError",
        "EnvFailed",
        "InvalidActions",
        "InvalidRequest",
        "MultiverseError",
        "NothingPending",
        "PreflightError",
        "ReceiveTimeout",
        "ReplyTimeout",
        "RequestPending",
        "SpacesDiffer",
        "TrainingDiverged",
        "WorkerDied",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AgentsBatch",
    "CheckReport",
    "ClosedError",
    "DerivedSeeds",
    "DrawnTasks",
    "EachTask",
    "EnvCheckFailed",
    "EnvFailed",
    "EpisodeCollector",
    "Evaluation",
    "Finding",
    "GroupBatch",
    "Hook",
    "InvalidActions",
    "InvalidRequest",
    "LoadedPolicy",
    "MetaEpisode",
    "MultiAgentVectorEnv",
    "MultiverseError",
    "NothingPending",
    "Plan",
    "PreflightError",
    "RandomPolicy",
    "ReceiveTimeout",
    "ReplyTimeout",
    "RequestPending",
    "ResetPlan",
    "ResetRequest",
    "Run",
    "SeedRuns",
    "SpacesDiffer",
    "StepBatch",
    "TrainingDiverged",
    "Turn",
    "TurnVectorEnv",
    "VectorEnv",
    "WholeEpisodes",
    "WorkerDied",
    "check_env",
    "draw_tasks",
    "evaluate",
    "flatten_agents",
    "load",
    "make_vec",
    "read_config",
    "record",
    "replay",
    "resume",
    "rollout_settings",
    "train",
]


if "gymnasium" in sys.modules:  # or else with the first name used: Gymnasium takes longer to import than `--help` may
    importlib.import_module("multiverse.envs")


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        importlib.import_module("multiverse.envs")  # whoever uses this package may ask Gymnasium for its envs
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'multiverse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
