"""Many reinforcement-learning environments in parallel, at the machine's speed.

    import multiverse as mv

    envs = mv.make_vec("CartPole-v1", num_envs=8)
    observations, infos = envs.reset(seed=7)

Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiverse import errors
    from multiverse.adapters.agents import AgentOptions
    from multiverse.core.errors import MultiverseError
    from multiverse.core.failures import FailureOptions
    from multiverse.core.plan import Plan, RayOptions, Timeouts, WorkerOptions
    from multiverse.core.reset_plan import DerivedSeeds, DrawnTasks, EachTask, ResetPlan, ResetRequest
    from multiverse.env_checker.examine import check_env
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
    from multiverse.vector.make import make_vec
    from multiverse.vector.parallel import MultiAgentVectorEnv
    from multiverse.vector.single import VectorEnv
    from multiverse.vector.turns import TurnVectorEnv
    from multiverse.wrappers.flatten_agents import flatten_agents
    from multiverse.wrappers.meta_episode import MetaEpisode, draw_tasks

__version__ = "0.2.0"

_HOMES = {
    "multiverse.adapters.agents": ("AgentOptions",),
    "multiverse.core.errors": ("MultiverseError",),
    "multiverse.core.failures": ("FailureOptions",),
    "multiverse.core.plan": ("Plan", "RayOptions", "Timeouts", "WorkerOptions"),
    "multiverse.core.reset_plan": ("DerivedSeeds", "DrawnTasks", "EachTask", "ResetPlan", "ResetRequest"),
    "multiverse.env_checker.examine": ("check_env",),
    "multiverse.policies.simple_policies": ("RandomPolicy",),
    "multiverse.rollouts.episode_collector": ("EpisodeCollector", "EpisodeWorkers"),
    "multiverse.rollouts.whole_episodes": ("WholeEpisodes",),
    "multiverse.training.config.files": ("read_config",),
    "multiverse.training.config.rollout_files": ("rollout_settings",),
    "multiverse.training.evaluation": ("Evaluation",),
    "multiverse.training.hooks": ("Hook",),
    "multiverse.training.loading": ("evaluate", "load"),
    "multiverse.training.policy": ("LoadedPolicy",),
    "multiverse.training.recording": ("record", "replay"),
    "multiverse.training.run": ("Run", "resume", "train"),
    "multiverse.training.seed_runs": ("SeedRuns",),
    "multiverse.vector.make": ("make_vec",),
    "multiverse.vector.parallel": ("MultiAgentVectorEnv",),
    "multiverse.vector.single": ("VectorEnv",),
    "multiverse.vector.turns": ("TurnVectorEnv",),
    "multiverse.wrappers.flatten_agents": ("flatten_agents",),
    "multiverse.wrappers.meta_episode": ("MetaEpisode", "draw_tasks"),
}
_MOVED = {
    "multiverse.errors": (
        "ClosedError",
        "EnvCheckFailed",
        "EnvFailed",
        "InvalidActions",
        "InvalidRequest",
        "NothingPending",
        "PreflightError",
        "ReceiveTimeout",
        "ReplyTimeout",
        "RequestPending",
        "SpacesDiffer",
        "TrainingDiverged",
        "WorkerDied",
    ),
    "multiverse.vector": ("AgentsBatch", "GroupBatch", "StepBatch", "Turn"),
    "multiverse.env_checker": ("CheckReport", "Finding"),
}
"""Names of version 0.1 that are public elsewhere now; removed here in the next version."""
_HOME_OF = {name: module for table in (_HOMES, _MOVED) for module, names in table.items() for name in names}

__all__ = [
    "AgentOptions",
    "DerivedSeeds",
    "DrawnTasks",
    "EachTask",
    "EpisodeCollector",
    "Evaluation",
    "FailureOptions",
    "Hook",
    "LoadedPolicy",
    "MetaEpisode",
    "MultiAgentVectorEnv",
    "MultiverseError",
    "Plan",
    "RandomPolicy",
    "RayOptions",
    "ResetPlan",
    "ResetRequest",
    "Run",
    "SeedRuns",
    "Timeouts",
    "TurnVectorEnv",
    "VectorEnv",
    "WholeEpisodes",
    "WorkerOptions",
    "check_env",
    "draw_tasks",
    "errors",
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


if "gymnasium" in sys.modules:  # otherwise with the first name used, since importing Gymnasium would slow `--help`
    importlib.import_module("multiverse.envs")


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("multiverse.errors")
    if name in _HOME_OF:
        if any(name in names for names in _MOVED.values()):
            moved = (
                f"multiverse.{name} is now {_HOME_OF[name]}.{name}; the old name will be removed in the next version"
            )
            warnings.warn(moved, DeprecationWarning, stacklevel=2)
        importlib.import_module("multiverse.envs")  # registers the built-in envs with Gymnasium
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'multiverse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
