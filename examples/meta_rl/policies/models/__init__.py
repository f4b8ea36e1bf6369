"""Today this is a policy's memory: the document's three architectures, by name."""

from __future__ import annotations

from enum import StrEnum


class AGENT_ARCHS(StrEnum):  # noqa: N801  the document's name
    """What acts and what values it: with a memory, or by what is seen now alone. Rollouts are collected alike."""

    Markov = "mlp"  # neither remembers
    Memory = "memory"  # both do, in networks of their own
    Memory_Markov = "memory-markov"  # the critic does, the actor does not
