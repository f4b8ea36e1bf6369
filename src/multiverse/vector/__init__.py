"""Vector envs: `make_vec`, and the three kinds it makes (`single`, `parallel`, `turns`) over one `base`.

They know executors and shared memory, and nothing of learning. Public here are the batches that they return.
"""

from multiverse.vector.batches import AgentsBatch, GroupBatch, StepBatch, Turn, TurnRows

__all__ = ["AgentsBatch", "GroupBatch", "StepBatch", "Turn", "TurnRows"]
