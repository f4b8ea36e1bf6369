"""Evaluation: some envs by themselves, acting in one batch, on seeds that no training ever sees."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.contracts.errors import EvaluationFailed, counted
from multiverse.contracts.failures import BAD_VALUE, RESTARTED
from multiverse.contracts.layout import ACTION_MASKS, REWARD, VALUES, Group
from multiverse.contracts.policy import Policy, Seen
from multiverse.contracts.seeds import evaluation_seed
from multiverse.contracts.views import Array
from multiverse.experience.features import Features
from multiverse.experience.heads import no_actions
from multiverse.experience.rollout import dtype_of
from multiverse.experience.slots import acting_of, by_env, is_single, shown_by, step_slots, sums
from multiverse.vector.base import BaseVectorEnv

log = logging.getLogger("multiverse")

MOST_STEPS = 50_000
"""Of one episode: about twice what the longest of the usual benchmarks has."""


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """How good a policy was, deterministic, over some episodes."""

    returns: tuple[float, ...]  # of several agents: their mean, of those that the policy played
    lengths: tuple[int, ...]
    lost: tuple[int, ...] = ()  # episodes that their env failed in, from 0: they do not count
    by_agent: dict[str, tuple[float, ...]] | None = None  # the returns of each of several
    opponent: bool = False  # somebody else played the other side

    def __repr__(self) -> str:
        told = f"{self.mean_return:.1f} ± {self.std_return:.1f}" if self.returns else "none"
        won = f", won {100 * self.wins:.0f} %" if self.opponent and self.returns else ""
        return f"<Evaluation: return {told}{won}, over {counted(len(self.returns), 'episode')}>"

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    @property
    def wins(self) -> float:
        """The share of episodes in which the policy had a return above 0."""
        return float(np.mean([one > 0 for one in self.returns]))

    def summary(self) -> dict[str, Any]:
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "mean_length": self.mean_length,
            "episodes": len(self.returns),
            **({"wins": self.wins} if self.opponent else {}),
            **{f"mean_return/{agent}": float(np.mean(returns)) for agent, returns in (self.by_agent or {}).items()},
            **({"lost_episodes": len(self.lost)} if self.lost else {}),
        }


def evaluate(
    envs: BaseVectorEnv,
    policies: Sequence[Policy],
    episodes: int | Sequence[int],
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    lost_before: Collection[int] = (),
    opponents: Sequence[Policy] | None = None,
) -> Evaluation | None:
    """Episodes on these envs, with a policy for each group of agents; an env that has ended its episode takes the next.
    Equal seeds give equal episodes, however many envs there are and whatever the training looked like.

    `episodes`: how many, or the numbers of those to play.

    `opponents`: who plays the other side; the policies' own side (one agent of a group that is alone, else one group)
    alternates from episode to episode. None: everybody is played by the policies.

    None if it was asked to stop on the way; `EvaluationFailed` if no episode came to its end, or if several envs may
    have been lost with their worker. An episode of an env that never ends one is cut after `MOST_STEPS`; one that the
    env failed in does not count, and is told, all the more if it was lost in the last evaluation too.
    """
    numbers = iter(range(episodes) if isinstance(episodes, int) else episodes)
    batch = _Batch(envs, policies, opponents, seed)
    free: Collection[int] = range(envs.num_envs)
    playing: dict[int, int] = {}  # env id → the number of its episode
    found: dict[int, tuple[list[Array], list[Array], int]] = {}  # number → returns and who was played, and the length
    lost: list[int] = []
    while True:
        if free and (begun := dict(zip(free, numbers))):
            batch.begin(begun, [evaluation_seed(seed, k) for k in begun.values()])
            playing |= begun
        if not playing:
            break
        if should_stop():
            return None
        free = ended = batch.step(sorted(playing))
        for env_id, failed in ended.items():
            k = playing.pop(env_id)
            if failed:  # guard: an-episode-that-failed-does-not-count
                again = ", as in the evaluation before (evaluation_seed= gives other seeds)" if k in lost_before else ""
                log.warning("episode %d (seed %d) failed and does not count%s", k, evaluation_seed(seed, k), again)
                lost.append(k)
            else:
                found[k] = batch.outcome(env_id)
    if not found:
        raise EvaluationFailed(f"the env failed in each of its {len(lost)} episodes")
    in_order = [found[k] for k in sorted(found)]
    returns = [np.concatenate(of_each) for of_each, _, _ in in_order]
    ours = [np.concatenate(played) for _, played, _ in in_order]
    agents = [agent for group in envs.views.layout.groups for agent in group.agents]
    by_agent = {agent: tuple(float(one[i]) for one in returns) for i, agent in enumerate(agents)}
    return Evaluation(
        tuple(float(one[mine].mean()) for one, mine in zip(returns, ours)),
        tuple(length for _, _, length in in_order),
        tuple(sorted(lost)),
        None if is_single(envs) else by_agent,
        opponents is not None,
    )


class _Batch:
    """Envs under way, and what the policies are shown and remember of each."""

    def __init__(
        self, envs: BaseVectorEnv, policies: Sequence[Policy], opponents: Sequence[Policy] | None, seed: int
    ) -> None:
        self._envs, self._seed, self._steps = envs, seed, 0
        others = [None] * len(policies) if opponents is None else opponents
        groups = envs.views.layout.groups
        self._groups = [_GroupBatch(envs, *one) for one in zip(groups, policies, others)]
        self._against = opponents is not None

    def begin(self, episodes: Mapping[int, int], seeds: list[int]) -> None:
        """Other episodes of these envs: nothing is remembered of those before."""
        ids = list(episodes)
        self._envs.reset(env_ids=None if len(ids) == self._envs.num_envs else ids, seed=seeds)
        self._refuse_lost_workers()
        for number, group in enumerate(self._groups):
            group.begin(ids)
            if self._against:
                for env_id, k in episodes.items():
                    # One group by itself: its agents take turns in being played; else the groups do.
                    if len(self._groups) == 1:
                        side: Any = k % group.agents
                    else:
                        side = slice(None) if k % len(self._groups) == number else slice(0)
                    group.take_sides(env_id, side, np.random.default_rng((self._seed, k, number)))

    def step(self, ids: list[int]) -> dict[int, bool]:
        """One step of these envs: whose episode is over, and whether it failed."""
        envs = self._envs
        infos = step_slots(envs, [group.act(ids) for group in self._groups], ids)
        for group in self._groups:
            group.note(ids)
        self._steps, over = self._steps + 1, envs.episodes_over(np.array(ids))
        if self._steps >= MOST_STEPS and (cut := self._lengths()[ids] >= MOST_STEPS).any():
            log.warning("an episode was cut after %d steps of an evaluation: does this env never end one?", MOST_STEPS)
            over |= cut
        if True not in over.tolist():
            return {}
        self._refuse_lost_workers()
        nobody = np.zeros_like(over)
        failed = infos.get(f"_{RESTARTED}", nobody) | infos.get(f"_{BAD_VALUE}", nobody)
        return {env_id: bool(failed[row]) for row, env_id in enumerate(ids) if over[row]}

    def _lengths(self) -> Array:
        """[envs] the most that one of its agents has acted."""
        _, lengths = sums(self._envs)
        return np.asarray(np.max([one.max(axis=1) for one in by_env(self._envs, lengths)], axis=0))

    def outcome(self, env_id: int) -> tuple[list[Array], list[Array], int]:
        """Of each group: the returns of its agents, and whom the policies played; and how long the episode was."""
        returns, _ = sums(self._envs)
        of_each = [one[env_id].copy() for one in by_env(self._envs, returns)]
        return of_each, [group.played(env_id) for group in self._groups], int(self._lengths()[env_id])

    def _refuse_lost_workers(self) -> None:
        """Nobody can tell which of several envs has cost all of them their worker, and their episodes."""
        if self._envs.num_envs > 1 and self._envs.failures.worker_restarts:  # guard: nobody-pays-for-a-neighbour
            raise EvaluationFailed("a worker was lost, and with it the episodes of its other envs")


class _GroupBatch:
    """The slots of one group, and what its policy, and the opponent's, is shown and remembers of each."""

    def __init__(self, envs: BaseVectorEnv, group: Group, policy: Policy, opponent: Policy | None) -> None:
        self._envs, self._single, self.agents, self._name = envs, is_single(envs), len(group.agents), group.name
        self._features = Features(group.observation_space, group.action_space)
        self._leaves = [(leaf.path, dtype_of(leaf)) for leaf in self._features.all_leaves]
        self._shown = shown_by(envs, group.name, [path for path, _ in self._leaves])
        self._masks = envs.views[(group.name, ACTION_MASKS)] if group.masks else None
        self._values = envs.views[(group.name, VALUES)]
        count = envs.num_envs * self.agents
        self._players = [policy] if opponent is None else [policy, opponent]
        self._who = np.zeros(count, np.int8)  # of these
        self._starts, self._rewards = np.zeros(count, np.bool_), np.zeros(count, np.float32)
        self._actions = no_actions(group.action_space, count)  # the last ones
        self._first = [player.first_memory(count) for player in self._players]
        self._memory = [{name: kept.copy() for name, kept in first.items()} for first in self._first]
        self._rngs: dict[int, np.random.Generator] = {}  # of the opponents, by env

    def _slots(self, ids: Sequence[int]) -> Array:
        return (np.asarray(ids)[:, None] * self.agents + np.arange(self.agents)).reshape(-1)

    def begin(self, ids: Sequence[int]) -> None:
        slots = self._slots(ids)
        self._starts[slots], self._rewards[slots] = True, 0.0
        self._actions[slots] = 0
        for memory, first in zip(self._memory, self._first):
            for name, kept in memory.items():
                kept[slots] = first[name][slots]

    def take_sides(self, env_id: int, ours: Any, rng: np.random.Generator) -> None:
        """Which of the env's agents the policy plays in this episode, and what is random about the other ones."""
        who = self._who[self._slots([env_id])]
        who[:] = 1
        who[ours] = 0
        self._who[self._slots([env_id])], self._rngs[env_id] = who, rng

    def played(self, env_id: int) -> Array:
        """[agents] bool: by the policy."""
        return np.asarray(self._who[self._slots([env_id])] == 0)

    def act(self, ids: list[int]) -> Array:
        """[ids, agents, …] as the env takes them; [ids, …] of a single agent."""
        slots = self._slots(ids)
        acting = np.ones(len(slots), np.bool_)
        if not self._single:
            acting = acting_of(self._envs, self._name)[ids].reshape(-1)
        found: Array | None = None
        for number, player in enumerate(self._players):
            mine = np.flatnonzero(acting & (self._who[slots] == number))
            if not len(mine):
                continue
            actions = self._chosen(number, slots[mine], self._noise(slots[mine]) if number else None)
            taken = np.asarray(player.for_env(actions))
            if found is None:
                found = np.zeros((len(slots), *taken.shape[1:]), taken.dtype)
            found[mine] = taken
        if found is None:  # nobody of this group acts now
            found = np.asarray(self._players[0].for_env(self._actions[slots]))
        return found if self._single else found.reshape(len(ids), self.agents, *found.shape[1:])

    def _noise(self, slots: Array) -> Array:
        """[slots, …] what is random about the opponent: drawn where it acts, of every episode by itself."""
        opponent = self._players[1]
        return np.concatenate([opponent.noise(self._rngs[slot // self.agents], 1, 1)[0] for slot in slots.tolist()])

    def _chosen(self, number: int, slots: Array, noise: Array | None) -> Array:
        player, memory = self._players[number], self._memory[number]
        seen = {path: np.asarray(self._shown[path][slots], dtype) for path, dtype in self._leaves}
        open_now = self._features.open_actions(seen) if self._masks is None else self._masks[slots].astype(np.bool_)
        before = self._actions[slots], self._rewards[slots]
        looked = Seen(seen, self._starts[slots], open_now, *before, teams=slots // self.agents)
        actions, after = player.act(looked, noise, {name: kept[slots] for name, kept in memory.items()})
        for name, kept in after.items():
            memory[name][slots] = kept
        if self._actions.shape[1:] != actions.shape[1:]:  # of an algorithm of one's own, with actions of another kind
            self._actions = np.zeros((len(self._actions), *actions.shape[1:]), actions.dtype)
        self._actions[slots], self._starts[slots], self._rewards[slots] = actions, False, 0.0
        return actions

    def note(self, ids: list[int]) -> None:
        """What a slot earns until it acts again is for its last action."""
        slots = self._slots(ids)
        self._rewards[slots] += self._values[REWARD, slots].astype(np.float32)
