"""Policies: from observations and noise to actions, in numpy. Imports no environments and no torch.

What an algorithm of your own makes its policy of: `Features` (observations as one vector), a head (outputs of a network
as actions), and `NumpyPolicy` (dense layers between the two). A head of your own derives from one of
these and overrides `choose`.
"""

from multiverse.core.policy import Memory, Policy, Seen
from multiverse.policies.features import Features
from multiverse.policies.heads import (
    CategoricalHead,
    DeterministicHead,
    DiscreteHead,
    EpsilonGreedyHead,
    Head,
    SquashedGaussianHead,
    action_of,
    bounded_head,
    head_for,
)
from multiverse.policies.numpy_policies import NumpyPolicy

__all__ = [
    "CategoricalHead",
    "DeterministicHead",
    "DiscreteHead",
    "EpsilonGreedyHead",
    "Features",
    "Head",
    "Memory",
    "NumpyPolicy",
    "Policy",
    "Seen",
    "SquashedGaussianHead",
    "action_of",
    "bounded_head",
    "head_for",
]
