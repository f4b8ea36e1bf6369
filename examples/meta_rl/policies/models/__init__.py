"""The document's three agent architectures. In multiverse: the `memory` setting of algorithms."""

from __future__ import annotations

from enum import StrEnum


class AGENT_ARCHS(StrEnum):  # noqa: N801  the document's name
    """Architectures of actor and critic, with or without memory. The collection of rollouts does not depend on them."""

    Markov = "mlp"  # actor and critic without memory
    Memory = "memory"  # actor and critic with separate memories
    Memory_Markov = "memory-markov"  # only the critic has a memory
