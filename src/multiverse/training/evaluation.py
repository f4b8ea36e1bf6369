"""Evaluation: some envs by themselves, acting in one batch, on seeds that no training ever sees."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multiverse.core.errors import EvaluationFailed
from multiverse.core.failures import BAD_VALUE, RESTARTED
from multiverse.core.infos import Infos, of_row
from multiverse.core.layout import ACTION_MASKS, REWARD, VALUES, Array, Group
from multiverse.core.policy import Policy, Seen
from multiverse.core.seeds import evaluation_seed
from multiverse.core.wording import counted, in_digits
from multiverse.policies.features import Features, dtype_of
from multiverse.policies.heads import no_actions
from multiverse.rollouts.slots import acting_of, by_env, is_single, shown_by, step_slots, sums
from multiverse.vector.base import BaseVectorEnv

log = logging.getLogger("multiverse")

MOST_STEPS = 50_000
"""Of one episode: about twice what the longest of the usual benchmarks has."""


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """How good a policy was, over some episodes."""

    returns: tuple[float, ...]  # of several agents: their mean, of those that the policy played
    lengths: tuple[int, ...]
    lost: tuple[int, ...] = ()  # episodes that their env failed in, from 0: they do not count
    by_agent: dict[str, tuple[float, ...]] | None = None  # of several agents: each one's, where the policy played it
    opponent: bool = False  # somebody else played the other side
    by_episode: tuple[tuple[float, ...], ...] = ()  # of meta-episodes: the returns of the episodes of each …
    success: tuple[tuple[bool, ...], ...] = ()  # … and which of these had a success, where the env names those
    of: str = field(default="", compare=False)  # whose policy, in words
    side: tuple[str, ...] = ()  # against an opponent: the side that the policy played in each episode …
    margins: tuple[float, ...] = ()  # … and its return there, minus that of the best of the other sides

    def __repr__(self) -> str:
        told = f"{in_digits(self.mean_return)} ± {in_digits(self.std_return)}" if self.returns else "none"
        won = f", won {100 * self.wins:.0f} %" if self.margins else ""
        whose = f" of {self.of}" if self.of else ""
        return f"<Evaluation{whose}: return {told}{won}, over {counted(len(self.returns), 'episode')}>"

    @property
    def played(self) -> int:
        """Number of episodes, failed ones included."""
        return len(self.returns) + len(self.lost)

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
        """Share of episodes in which the policy's side had a higher return than every other side."""
        return float(np.mean(np.array(self.margins) > 0))

    @property
    def draws(self) -> float:
        """Share of episodes in which the policy's side and the best of the other sides had the same return."""
        return float(np.mean(np.array(self.margins) == 0))

    @property
    def sides(self) -> dict[str, Evaluation]:
        """Against an opponent: the evaluation of each side that the policy played, by its name."""
        found = {}
        for name in dict.fromkeys(self.side):
            chosen = [k for k, side in enumerate(self.side) if side == name]
            found[name] = Evaluation(
                tuple(self.returns[k] for k in chosen),
                tuple(self.lengths[k] for k in chosen),
                opponent=True,
                of=f"{self.of} as {name}".strip(),
                margins=tuple(self.margins[k] for k in chosen),
            )
        return found

    @property
    def cancels(self) -> bool:
        """Whether the policy played against itself, and what one agent won another lost: then the mean says nothing."""
        if self.by_agent is None or self.opponent:
            return False
        each = np.array(list(self.by_agent.values()))
        return bool(each.any() and np.allclose(each.sum(axis=0), 0.0, atol=1e-6 * np.abs(each).max()))

    def summary(self) -> dict[str, Any]:
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "mean_length": self.mean_length,
            "episodes": len(self.returns),
            **({"wins": self.wins, "draws": self.draws} if self.margins else {}),
            **{f"mean_return/{agent}": float(np.mean(returns)) for agent, returns in (self.by_agent or {}).items()},
            **{f"mean_return/{side}": one.mean_return for side, one in self.sides.items()},
            **{f"wins/{side}": one.wins for side, one in self.sides.items()},
            **_each_of("mean_return", self.by_episode),
            **_each_of("success_rate", self.success),
            **({"lost_episodes": len(self.lost)} if self.lost else {}),
        }


def _each_of(name: str, meta_episodes: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean of the first episode of each, of the second, …: adapting shows from one to the next."""
    means = np.mean(meta_episodes, axis=0) if meta_episodes else ()
    return {f"{name}/episode_{k + 1}": float(one) for k, one in enumerate(means)}


def evaluate(
    envs: BaseVectorEnv,
    policies: Sequence[Policy],
    episodes: int | Sequence[int],
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    lost_before: Collection[int] = (),
    opponents: Sequence[Policy] | None = None,
    tasks: Sequence[int] = (),
    deterministic: bool = True,
) -> Evaluation | None:
    """Episodes on these envs, with a policy for each group of agents; an env that has ended its episode takes the next.
    Equal seeds give equal episodes, however many envs there are and whatever the training looked like.

    `episodes`: how many, or the numbers of those to play.

    `opponents`: who plays the other side; the policies' own side (one agent of a group that is alone, else one group)
    alternates from episode to episode. None: everybody is played by the policies. `tasks`: of the envs', those that
    the episodes have in turn. `deterministic`: policies take their most likely actions; else these are drawn, by noise
    that belongs to the episode.

    None if it was asked to stop on the way; `EvaluationFailed` if no episode came to its end, or if several envs may
    have been lost with their worker. An episode of an env that never ends one is cut after `MOST_STEPS`; one that the
    env failed in does not count, and is told, all the more if it was lost in the last evaluation too.
    """
    numbers = iter(range(episodes) if isinstance(episodes, int) else episodes)
    batch = _Batch(envs, policies, opponents, seed, deterministic)
    free: Collection[int] = range(envs.num_envs)
    playing: dict[int, int] = {}  # env id → the number of its episode
    found: dict[int, tuple[list[Array], list[Array], int]] = {}  # number → returns and who was played, and the length
    told: dict[int, Infos] = {}  # by their envs, of meta-episodes
    lost: list[int] = []
    while True:
        if free and (begun := dict(zip(free, numbers))):
            given = [tasks[k % len(tasks)] for k in begun.values()] if len(tasks) else None
            batch.begin(begun, [evaluation_seed(seed, k) for k in begun.values()], given)
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
                told[k] = batch.told[env_id]
    if not found:
        raise EvaluationFailed(f"the env failed in each of its {len(lost)} episodes")
    in_order = [found[k] for k in sorted(found)]
    returns = [np.concatenate(of_each) for of_each, _, _ in in_order]
    ours = [np.concatenate(played) for _, played, _ in in_order]
    agents = [agent for group in envs.views.layout.groups for agent in group.agents]
    by_agent = {  # never those that an opponent had with this agent
        agent: tuple(float(one[i]) for one, mine in zip(returns, ours) if mine[i]) for i, agent in enumerate(agents)
    }
    sides = sides_of(envs.views.layout.groups)
    outcomes = [_outcome(one, mine, sides) for one, mine in zip(returns, ours)] if opponents is not None else []
    return Evaluation(
        tuple(float(one[mine].mean()) for one, mine in zip(returns, ours)),
        tuple(length for _, _, length in in_order),
        tuple(sorted(lost)),
        None if is_single(envs) else {agent: played for agent, played in by_agent.items() if played},
        opponents is not None,
        _of_all("returns_per_episode", told),
        _of_all("success_per_episode", told),
        side=tuple(side for side, _ in outcomes),
        margins=tuple(margin for _, margin in outcomes),
    )


def sides_of(groups: Sequence[Group]) -> dict[str, list[int]]:
    """The agents of each side, by their positions: each agent of a group that is alone, else each group."""
    agents = [(group.name, agent) for group in groups for agent in group.agents]
    found: dict[str, list[int]] = {}
    for position, (group, agent) in enumerate(agents):
        found.setdefault(agent if len(groups) == 1 else group, []).append(position)
    return found


def _outcome(returns: Array, ours: Array, sides: Mapping[str, list[int]]) -> tuple[str, float]:
    """The side that the policy played in an episode, and its mean return minus that of the best other side."""
    means = {name: float(returns[positions].mean()) for name, positions in sides.items()}
    side = next(name for name, positions in sides.items() if ours[positions].all())
    mine = means.pop(side)
    best = max(means.values(), default=mine)
    return side, 0.0 if np.isclose(mine, best, rtol=1e-9, atol=0.0) else mine - best


def _of_all(name: str, told: Mapping[int, Infos]) -> tuple[Any, ...]:
    """What the last infos of all episodes say; nothing where some say nothing."""
    in_order = [told[k] for k in sorted(told)]
    return tuple(tuple(one[name].tolist()) for one in in_order) if all(name in one for one in in_order) else ()


class _Batch:
    """Envs under way, and what the policies are shown and remember of each."""

    def __init__(
        self,
        envs: BaseVectorEnv,
        policies: Sequence[Policy],
        opponents: Sequence[Policy] | None,
        seed: int,
        deterministic: bool,
    ) -> None:
        self._envs, self._seed, self._steps = envs, seed, 0
        others = [None] * len(policies) if opponents is None else opponents
        groups = envs.views.layout.groups
        self._groups = [_GroupBatch(envs, *one, deterministic) for one in zip(groups, policies, others)]
        self._against = opponents is not None
        self.told: dict[int, Infos] = {}  # by envs whose episode is over, of it

    def begin(self, episodes: Mapping[int, int], seeds: list[int], tasks: list[int] | None = None) -> None:
        """Other episodes of these envs: nothing is remembered of those before."""
        ids = list(episodes)
        self._envs.reset(env_ids=None if len(ids) == self._envs.num_envs else ids, seed=seeds, tasks=tasks)
        self._refuse_lost_workers()
        for number, group in enumerate(self._groups):
            group.begin(ids, [(self._seed, k, number) for k in episodes.values()])
            if self._against:
                for env_id, k in episodes.items():
                    # One group by itself: its agents take turns in being played; else the groups do.
                    if len(self._groups) == 1:
                        side: Any = k % group.agents
                    else:
                        side = slice(None) if k % len(self._groups) == number else slice(0)
                    group.take_sides(env_id, side)

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
        self.told = {env_id: of_row(infos, row) for row, env_id in enumerate(ids) if over[row]}
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

    def __init__(
        self, envs: BaseVectorEnv, group: Group, policy: Policy, opponent: Policy | None, deterministic: bool
    ) -> None:
        self._deterministic = [deterministic, False]  # of the players
        self._envs, self._single, self.agents, self._name = envs, is_single(envs), len(group.agents), group.name
        self._features = Features(group.observation_space, group.action_space)
        if group.ignores_masks:
            self._features.mask = None
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
        self._rngs: dict[tuple[int, int], np.random.Generator] = {}  # by player and env

    def _slots(self, ids: Sequence[int]) -> Array:
        return (np.asarray(ids)[:, None] * self.agents + np.arange(self.agents)).reshape(-1)

    def begin(self, ids: Sequence[int], seeds: Sequence[tuple[int, ...]]) -> None:
        """`seeds`: of what is random about the players, for each env."""
        for env_id, seed in zip(ids, seeds):
            self._rngs[0, env_id], self._rngs[1, env_id] = (np.random.default_rng(one) for one in ((*seed, 1), seed))
        slots = self._slots(ids)
        self._starts[slots], self._rewards[slots] = True, 0.0
        self._actions[slots] = 0
        for memory, first in zip(self._memory, self._first):
            for name, kept in memory.items():
                kept[slots] = first[name][slots]

    def take_sides(self, env_id: int, ours: Any) -> None:
        """Which of the env's agents the policy plays in this episode."""
        who = self._who[self._slots([env_id])]
        who[:] = 1
        who[ours] = 0
        self._who[self._slots([env_id])] = who

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
            noise = None if self._deterministic[number] else self._noise(number, slots[mine])
            actions = self._chosen(number, slots[mine], noise)
            taken = np.asarray(player.for_env(actions))
            if found is None:
                found = np.zeros((len(slots), *taken.shape[1:]), taken.dtype)
            found[mine] = taken
        if found is None:  # nobody of this group acts now
            found = np.asarray(self._players[0].for_env(self._actions[slots]))
        return found if self._single else found.reshape(len(ids), self.agents, *found.shape[1:])

    def _noise(self, number: int, slots: Array) -> Array:
        """[slots, …] what is random about a player: drawn where it acts, of every episode by itself."""
        player, envs = self._players[number], (slots // self.agents).tolist()
        return np.concatenate([player.noise(self._rngs[number, env_id], 1, 1)[0] for env_id in envs])

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
