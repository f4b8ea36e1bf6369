"""Public names of `multiverse.algorithms`: classes that algorithms of users derive from and use.

Imported on demand, so that the names of algorithms are known without importing their modules."""

from multiverse.algorithms.a2c import A2C, A2CConfig
from multiverse.algorithms.algorithm import Algorithm, UpdateReport
from multiverse.algorithms.capabilities import RunRequirements
from multiverse.algorithms.discrete_sac import DiscreteSAC, DiscreteSACConfig
from multiverse.algorithms.dqn import DQN, DQNConfig
from multiverse.algorithms.off_policy import OffPolicy
from multiverse.algorithms.on_policy import OnPolicy
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.algorithms.sac import SAC, SACConfig
from multiverse.algorithms.settings import OffPolicyConfig, OnPolicyConfig, Settings
from multiverse.algorithms.taac import TAAC, TAACConfig
from multiverse.algorithms.td3 import TD3, TD3Config
from multiverse.core.settings import setting
from multiverse.learning.batches import ReplayBatch, RolloutBatch
from multiverse.learning.loss import Loss, Outputs

__all__ = [
    "A2C",
    "DQN",
    "PPO",
    "SAC",
    "TAAC",
    "TD3",
    "A2CConfig",
    "Algorithm",
    "DQNConfig",
    "DiscreteSAC",
    "DiscreteSACConfig",
    "Loss",
    "OffPolicy",
    "OffPolicyConfig",
    "OnPolicy",
    "OnPolicyConfig",
    "Outputs",
    "PPOConfig",
    "ReplayBatch",
    "RolloutBatch",
    "RunRequirements",
    "SACConfig",
    "Settings",
    "TAACConfig",
    "TD3Config",
    "UpdateReport",
    "setting",
]  # fmt: skip
