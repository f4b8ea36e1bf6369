"""The reset plan: what each episode of each env starts from. Evaluated where the env runs, at every reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from multiverse.contracts.seeds import episode_seed


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """What one reset gets. None leaves it to the env, as a plain `env.reset()` does."""

    seed: int | None = None
    options: dict[str, Any] | None = None
    task: Any = None


class ResetPlan(Protocol):
    """A picklable callable: (env id, index of the episode that begins) → what its reset gets."""

    def __call__(self, env_id: int, episode: int) -> ResetRequest: ...


@dataclass(frozen=True, slots=True)
class DerivedSeeds:
    """A reset plan that seeds every episode from (run seed, env, episode), so that any of them can be replayed."""

    run_seed: int

    def __call__(self, env_id: int, episode: int) -> ResetRequest:
        return ResetRequest(seed=episode_seed(self.run_seed, env_id, episode))
