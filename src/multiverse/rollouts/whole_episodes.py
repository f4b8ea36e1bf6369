"""Collected whole episodes, and the time that collecting took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.reset_plan import ResetRequest
from multiverse.rollouts.rollout import PER_SLOT, Rollout, combined


@dataclass(slots=True)
class Seconds:
    """Time of the caller: choosing actions, sending them (and beginning episodes), waiting for the results (envs in the
    caller step here), and storing them."""

    act: float = 0.0
    step: float = 0.0
    receive: float = 0.0
    store: float = 0.0

    def share(self) -> dict[str, float]:
        """Fraction of the total time, by phase."""
        total = sum(asdict(self).values()) or 1.0
        return {phase: seconds / total for phase, seconds in asdict(self).items()}

    def bottleneck(self) -> str:
        """The phase that took longest, and its meaning."""
        phase, share = max(self.share().items(), key=lambda item: item[1])
        means = {
            "act": "the policy is the bottleneck: more workers do not help",
            "step": "handing out actions is the bottleneck: fewer workers with more envs each help",
            "receive": "the envs are the bottleneck: workers help, up to the number of cores",
            "store": "putting steps away is the bottleneck: more workers do not help",
        }
        return f"{phase} {share:.0%} of the time: {means[phase]}"


@dataclass(slots=True)
class WholeEpisodes:
    """Collected episodes: episode k is column k of the rollout, from row 0 to its end."""

    rollout: Rollout  # [longest, episodes]; not `valid` after an episode's end
    lengths: Array  # [episodes] steps
    began_from: list[ResetRequest]  # seed and task of every episode
    infos: list[dict[str, Any]]  # of the last step of every episode
    seconds: Seconds
    dropped: int = 0  # episodes that were lost with an env or a worker, and replaced by others
    dropped_steps: int = 0  # of those

    @property
    def env_steps(self) -> int:
        """Number of env steps, without those of dropped episodes."""
        return int(self.lengths.sum())

    @property
    def returns(self) -> Array:
        """[episodes]"""
        return np.asarray(self.rollout.rewards.sum(axis=0, dtype=np.float64))

    @property
    def returns_per_episode(self) -> Array:
        """[episodes, k] return of each of the k episodes of meta-episodes. Adaptation shows from left to right."""
        if any("returns_per_episode" not in info for info in self.infos):
            raise InvalidRequest(
                "returns_per_episode: the collected episodes are not meta-episodes. Wrap the env in MetaEpisode"
            )
        return np.stack([info["returns_per_episode"] for info in self.infos])

    @property
    def success_rates(self) -> Array | None:
        """[k] fraction of the meta-episodes in which each of the k episodes succeeded; None: the env does not report
        success."""
        successes = [info["success_per_episode"] for info in self.infos if "success_per_episode" in info]
        return np.asarray(np.mean(successes, axis=0)) if len(successes) == len(self.infos) else None

    def each(self) -> Iterator[Rollout]:
        """Every episode as a rollout [its length, 1]."""
        for k, length in enumerate(self.lengths.tolist()):
            yield _column(self.rollout, k, length)

    @staticmethod
    def interleaved(parts: Sequence[WholeEpisodes]) -> WholeEpisodes:
        """Join parts whose episodes alternate: with n parts, episode k is in part k mod n."""
        count, longest = len(parts), max(part.rollout.steps for part in parts)
        episodes = sum(len(part.lengths) for part in parts)

        def interleave(name: str, parts_of_array: Sequence[Array]) -> Array:
            first, per_slot = parts_of_array[0], name in PER_SLOT
            shape = (episodes, *first.shape[1:]) if per_slot else (longest, episodes, *first.shape[2:])
            whole = np.zeros(shape, first.dtype)
            for w, part in enumerate(parts_of_array):
                if per_slot:
                    whole[w::count] = part
                else:
                    whole[: len(part), w::count] = part
            return whole

        def alternating(name: str) -> list[Any]:
            return [getattr(parts[k % count], name)[k // count] for k in range(episodes)]

        rollouts = [part.rollout for part in parts]
        return WholeEpisodes(
            rollout=replace(rollouts[0], **combined(rollouts, interleave)),
            lengths=np.array(alternating("lengths")),
            began_from=alternating("began_from"),
            infos=alternating("infos"),
            seconds=Seconds(
                **{phase: float(np.mean([getattr(p.seconds, phase) for p in parts])) for phase in asdict(Seconds())}
            ),
            dropped=sum(part.dropped for part in parts),
            dropped_steps=sum(part.dropped_steps for part in parts),
        )


def _column(rollout: Rollout, k: int, length: int) -> Rollout:
    """[length, 1] episode k, without what only the longest episode has after its last row."""

    def part(name: str, arrays: Sequence[Array]) -> Array:
        return arrays[0][k : k + 1] if name in PER_SLOT else arrays[0][:length, k : k + 1]

    last = {path: rows[length - 1, k : k + 1] for path, rows in rollout.finals.items()}
    return replace(rollout, **{**combined([rollout], part), "last": last, "last_memory": {}, "last_previous": None})
