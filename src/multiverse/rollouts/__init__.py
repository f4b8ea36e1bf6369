"""Rollouts: steps of many environments, collected with a policy, and replay. Numpy only.

What an algorithm of your own learns from: `Rollout`, and `Replay` to keep them.
"""

from multiverse.rollouts.replay import Replay
from multiverse.rollouts.rollout import Rollout

__all__ = ["Replay", "Rollout"]
