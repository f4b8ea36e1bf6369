"""Evaluation of policies on separate envs, which act in one batch, with seeds that no training uses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multiverse.core.errors import EvaluationFailed
from multiverse.core.failures import BAD_VALUE, RESTARTED
from multiverse.core.infos import Infos, row_info
from multiverse.core.layout import ACTION_MASKS, REWARD, VALUES, Array, Group
from multiverse.core.policy import Policy, Seen
from multiverse.core.seeds import evaluation_seed
from multiverse.core.wording import format_return, pluralize
from multiverse.policies.features import Features, dtype_of
from multiverse.policies.heads import no_actions
from multiverse.rollouts.episodes import acting_of, by_env, is_single, shown_by, step_slots, sums
from multiverse.vector.base import BaseVectorEnv

log = logging.getLogger("multiverse")

MAX_STEPS = 50_000
"""Maximum length of an episode: about twice the longest of the usual benchmarks."""


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """Results of a policy over some episodes."""

    returns: tuple[float, ...]  # with several agents: the mean over those that the policy played
    lengths: tuple[int, ...]
    lost: tuple[int, ...] = ()  # numbers of the episodes in which the env failed, from 0: they do not count
    by_agent: dict[str, tuple[float, ...]] | None = None  # with several agents: returns where the policy played them
    opponent: bool = False  # whether an opponent played the other side
    by_episode: tuple[tuple[float, ...], ...] = ()  # of each meta-episode: the returns of its episodes …
    success: tuple[tuple[bool, ...], ...] = ()  # … and which of them were a success, if the env reports that
    of: str = field(default="", compare=False)  # description of the policy
    side: tuple[str, ...] = ()  # against an opponent: the side that the policy played in each episode …
    margins: tuple[float, ...] = ()  # … and its return there, minus that of the best of the other sides

    def __repr__(self) -> str:
        returned = f"{format_return(self.mean_return)} ± {format_return(self.std_return)}" if self.returns else "none"
        won = f", won {100 * self.wins:.0f} %" if self.margins else ""
        policy = f" of {self.of}" if self.of else ""
        return f"<Evaluation{policy}: return {returned}{won}, over {pluralize(len(self.returns), 'episode')}>"

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
        """Against an opponent: the evaluation of each side that the policy played, by name."""
        evaluations = {}
        for name in dict.fromkeys(self.side):
            numbers = [k for k, side in enumerate(self.side) if side == name]
            evaluations[name] = Evaluation(
                tuple(self.returns[k] for k in numbers),
                tuple(self.lengths[k] for k in numbers),
                opponent=True,
                of=f"{self.of} as {name}".strip(),
                margins=tuple(self.margins[k] for k in numbers),
            )
        return evaluations

    @property
    def cancels(self) -> bool:
        """Whether this is self-play in a zero-sum game, of which the mean return carries no information."""
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
            **_means_by_episode("mean_return", self.by_episode),
            **_means_by_episode("success_rate", self.success),
            **({"lost_episodes": len(self.lost)} if self.lost else {}),
        }


def _means_by_episode(name: str, meta_episodes: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean over meta-episodes of their first episode, of their second, …, which shows how the policy adapts."""
    means = np.mean(meta_episodes, axis=0) if meta_episodes else ()
    return {f"{name}/episode_{k + 1}": float(mean) for k, mean in enumerate(means)}


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of `evaluate`."""

    opponents: Sequence[Policy] | None = None
    """Policies of the other side, one for each group. The side of the evaluated policies (one agent if there is one
    group, else one group) alternates from episode to episode. None: the policies play all agents."""
    tasks: Sequence[int] = ()
    """Numbers of the envs' tasks that the episodes have in turn."""
    deterministic: bool = True
    """Whether policies take their most likely actions; otherwise draws depend on seed and episode only."""
    lost_before: Collection[int] = ()
    """Numbers of the episodes that were lost in the evaluation before, which a warning about them then mentions."""
    should_stop: Callable[[], bool] = lambda: False


def evaluate(
    envs: BaseVectorEnv,
    policies: Sequence[Policy],
    episodes: int | Sequence[int],
    seed: int,
    options: EvaluationOptions | None = None,
) -> Evaluation | None:
    """Play episodes on these envs with one policy for each group of agents; None if `should_stop` returned True.

    Equal seeds give equal episodes, whatever the number of envs. `episodes`: their number, or the numbers of those to
    play. An episode is cut after `MAX_STEPS`; one in which the env failed is logged and does not count.
    `EvaluationFailed` if no episode was completed, or if several envs may have been lost with their worker.
    """
    options = options or EvaluationOptions()
    numbers = iter(range(episodes) if isinstance(episodes, int) else episodes)
    batch = _Batch(envs, policies, seed, options)
    free: Collection[int] = range(envs.num_envs)
    playing: dict[int, int] = {}  # env id → number of its episode
    outcomes: dict[int, _Outcome] = {}  # by number
    lost: list[int] = []
    while True:
        if free and (begun := dict(zip(free, numbers))):
            tasks = [options.tasks[k % len(options.tasks)] for k in begun.values()] if len(options.tasks) else None
            batch.begin(begun, [evaluation_seed(seed, k) for k in begun.values()], tasks)
            playing |= begun
        if not playing:
            break
        if options.should_stop():
            return None
        free = ended = batch.step(sorted(playing))
        for env_id, failed in ended.items():
            k = playing.pop(env_id)
            if failed:  # guard: an-episode-that-failed-does-not-count
                before = k in options.lost_before
                again = ", as in the evaluation before (evaluation_seed= gives other seeds)" if before else ""
                log.warning("episode %d (seed %d) failed and does not count%s", k, evaluation_seed(seed, k), again)
                lost.append(k)
            else:
                outcomes[k] = batch.outcome(env_id)
    if not outcomes:
        raise EvaluationFailed(f"the env failed in each of its {len(lost)} episodes")
    in_order = [outcomes[k] for k in sorted(outcomes)]
    groups, against = envs.views.layout.groups, options.opponents is not None
    agents = [agent for group in groups for agent in group.agents]
    by_agent = {  # without episodes in which an opponent played this agent
        agent: tuple(float(each.returns[i]) for each in in_order if each.ours[i]) for i, agent in enumerate(agents)
    }
    margins = [each.margin(sides_of(groups)) for each in in_order] if against else []
    return Evaluation(
        tuple(float(each.returns[each.ours].mean()) for each in in_order),
        tuple(each.length for each in in_order),
        tuple(sorted(lost)),
        None if is_single(envs) else {agent: played for agent, played in by_agent.items() if played},
        against,
        _last_infos("returns_per_episode", in_order),
        _last_infos("success_per_episode", in_order),
        side=tuple(side for side, _ in margins),
        margins=tuple(margin for _, margin in margins),
    )


def sides_of(groups: Sequence[Group]) -> dict[str, list[int]]:
    """Positions of the agents of each side: each agent is one if there is one group, else each group."""
    agents = [(group.name, agent) for group in groups for agent in group.agents]
    sides: dict[str, list[int]] = {}
    for position, (group, agent) in enumerate(agents):
        sides.setdefault(agent if len(groups) == 1 else group, []).append(position)
    return sides


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Outcome of one episode."""

    returns: Array  # [agents]
    ours: Array  # [agents] bool: played by the evaluated policies
    length: int
    infos: Infos  # of its last step

    def margin(self, sides: Mapping[str, list[int]]) -> tuple[str, float]:
        """The side that the policy played, and its mean return minus that of the best other side."""
        means = {name: float(self.returns[positions].mean()) for name, positions in sides.items()}
        side = next(name for name, positions in sides.items() if self.ours[positions].all())
        mine = means.pop(side)
        best = max(means.values(), default=mine)
        return side, 0.0 if np.isclose(mine, best, rtol=1e-9, atol=0.0) else mine - best


def _last_infos(name: str, outcomes: Sequence[_Outcome]) -> tuple[Any, ...]:
    """This entry of the last infos of all episodes; () if any of them lacks it."""
    infos = [outcome.infos for outcome in outcomes]
    return tuple(tuple(each[name].tolist()) for each in infos) if all(name in each for each in infos) else ()


class _Batch:
    """Running envs, and what the policies see and remember of each."""

    def __init__(self, envs: BaseVectorEnv, policies: Sequence[Policy], seed: int, options: EvaluationOptions) -> None:
        self._envs, self._seed, self._steps = envs, seed, 0
        self._has_opponents = options.opponents is not None
        opponents: Sequence[Policy | None] = options.opponents or [None] * len(policies)
        self._groups = [
            _GroupBatch(envs, group, policy, opponent, options.deterministic)
            for group, policy, opponent in zip(envs.views.layout.groups, policies, opponents)
        ]
        self._last_infos: dict[int, Infos] = {}  # by env whose episode has ended

    def begin(self, episodes: Mapping[int, int], seeds: list[int], tasks: list[int] | None = None) -> None:
        """Begin episodes (env id → number); nothing is remembered of those before."""
        ids = list(episodes)
        self._envs.reset(env_ids=None if len(ids) == self._envs.num_envs else ids, seed=seeds, tasks=tasks)
        self._refuse_lost_workers()
        for number, group in enumerate(self._groups):
            group.begin(ids, [(self._seed, k, number) for k in episodes.values()])
            if self._has_opponents:
                for env_id, k in episodes.items():
                    # The policies play each agent in turn if there is one group, else each group.
                    if len(self._groups) == 1:
                        side: Any = k % group.agents
                    else:
                        side = slice(None) if k % len(self._groups) == number else slice(0)
                    group.take_sides(env_id, side)

    def step(self, ids: list[int]) -> dict[int, bool]:
        """Step these envs. Return env id → whether it failed, for those whose episode has ended."""
        envs = self._envs
        infos = step_slots(envs, [group.act(ids) for group in self._groups], ids)
        for group in self._groups:
            group.note(ids)
        self._steps, over = self._steps + 1, envs.episodes_over(np.array(ids))
        if self._steps >= MAX_STEPS and (cut := self._lengths()[ids] >= MAX_STEPS).any():
            log.warning(
                "an episode was cut after %d steps of an evaluation; perhaps this env never ends one", MAX_STEPS
            )
            over |= cut
        if True not in over.tolist():
            return {}
        self._refuse_lost_workers()
        self._last_infos = {env_id: row_info(infos, row) for row, env_id in enumerate(ids) if over[row]}
        none = np.zeros_like(over)
        failed = infos.get(f"_{RESTARTED}", none) | infos.get(f"_{BAD_VALUE}", none)
        return {env_id: bool(failed[row]) for row, env_id in enumerate(ids) if over[row]}

    def _lengths(self) -> Array:
        """[envs] largest number of steps that one of its agents has acted."""
        _, lengths = sums(self._envs)
        return np.asarray(np.max([one.max(axis=1) for one in by_env(self._envs, lengths)], axis=0))

    def outcome(self, env_id: int) -> _Outcome:
        """Outcome of the episode that has just ended in this env."""
        returns, _ = sums(self._envs)
        return _Outcome(
            np.concatenate([array[env_id] for array in by_env(self._envs, returns)]),
            np.concatenate([group.played(env_id) for group in self._groups]),
            int(self._lengths()[env_id]),
            self._last_infos[env_id],
        )

    def _refuse_lost_workers(self) -> None:
        """Raise if a worker was lost: it is not known which of its envs failed, and all of them lost their episodes."""
        if self._envs.num_envs > 1 and self._envs.failures.worker_restarts:  # guard: nobody-pays-for-a-neighbour
            raise EvaluationFailed("a worker was lost, and with it the episodes of its other envs")


class _GroupBatch:
    """The slots of one group, and what its policy and its opponent see and remember of each."""

    def __init__(
        self, envs: BaseVectorEnv, group: Group, policy: Policy, opponent: Policy | None, deterministic: bool
    ) -> None:
        self._deterministic = [deterministic, False]  # by player
        self._envs, self._single, self.agents, self._name = envs, is_single(envs), len(group.agents), group.name
        self._features = Features(group.observation_space, group.action_space)
        if group.ignores_masks:
            self._features.mask = None
        self._leaves = [(leaf.path, dtype_of(leaf)) for leaf in self._features.all_leaves]
        self._observations = shown_by(envs, group.name, [path for path, _ in self._leaves])
        self._masks = envs.views[(group.name, ACTION_MASKS)] if group.masks else None
        self._values = envs.views[(group.name, VALUES)]
        count = envs.num_envs * self.agents
        self._players = [policy] if opponent is None else [policy, opponent]
        self._player = np.zeros(count, np.int8)  # index of the player of each slot
        self._starts, self._rewards = np.zeros(count, np.bool_), np.zeros(count, np.float32)
        self._actions = no_actions(group.action_space, count)  # previous actions
        self._first = [player.first_memory(count) for player in self._players]
        self._memory = [{name: array.copy() for name, array in first.items()} for first in self._first]
        self._rngs: dict[tuple[int, int], np.random.Generator] = {}  # by player and env

    def _slots(self, ids: Sequence[int]) -> Array:
        return (np.asarray(ids)[:, None] * self.agents + np.arange(self.agents)).reshape(-1)

    def begin(self, ids: Sequence[int], seeds: Sequence[tuple[int, ...]]) -> None:
        """Forget the episodes before. `seeds`: seeds of the players' noise, for each env."""
        for env_id, seed in zip(ids, seeds):
            self._rngs[0, env_id], self._rngs[1, env_id] = (
                np.random.default_rng((*seed, 1)),
                np.random.default_rng(seed),
            )
        slots = self._slots(ids)
        self._starts[slots], self._rewards[slots] = True, 0.0
        self._actions[slots] = 0
        for memory, first in zip(self._memory, self._first):
            for name, array in memory.items():
                array[slots] = first[name][slots]

    def take_sides(self, env_id: int, ours: Any) -> None:
        """Let the policy play these of the env's agents in this episode, and the opponent the others."""
        players = np.ones(self.agents, np.int8)
        players[ours] = 0
        self._player[self._slots([env_id])] = players

    def played(self, env_id: int) -> Array:
        """[agents] bool: played by the policy."""
        return np.asarray(self._player[self._slots([env_id])] == 0)

    def act(self, ids: list[int]) -> Array:
        """Return actions for the envs: [ids, agents, …], with a single agent [ids, …]."""
        slots = self._slots(ids)
        acting = np.ones(len(slots), np.bool_)
        if not self._single:
            acting = acting_of(self._envs, self._name)[ids].reshape(-1)
        chosen: Array | None = None
        for number, player in enumerate(self._players):
            rows = np.flatnonzero(acting & (self._player[slots] == number))
            if not len(rows):
                continue
            actions = np.asarray(player.for_env(self._act_as(number, slots[rows])))
            if chosen is None:
                chosen = np.zeros((len(slots), *actions.shape[1:]), actions.dtype)
            chosen[rows] = actions
        if chosen is None:  # no agent of this group acts now
            chosen = np.asarray(self._players[0].for_env(self._actions[slots]))
        return chosen if self._single else chosen.reshape(len(ids), self.agents, *chosen.shape[1:])

    def _noise(self, number: int, slots: Array) -> Array:
        """[slots, …] noise of a player, drawn for each episode separately, only where it acts."""
        player, envs = self._players[number], (slots // self.agents).tolist()
        return np.concatenate([player.noise(self._rngs[number, env_id], 1, 1)[0] for env_id in envs])

    def _act_as(self, number: int, slots: Array) -> Array:
        """[slots, …] actions of this player, as policies return them."""
        player, memory = self._players[number], self._memory[number]
        noise = None if self._deterministic[number] else self._noise(number, slots)
        leaves = {path: np.asarray(self._observations[path][slots], dtype) for path, dtype in self._leaves}
        masks = self._features.open_actions(leaves) if self._masks is None else self._masks[slots].astype(np.bool_)
        seen = Seen(
            leaves, self._starts[slots], masks, self._actions[slots], self._rewards[slots], teams=slots // self.agents
        )
        actions, after = player.act(seen, noise, {name: array[slots] for name, array in memory.items()})
        for name, array in after.items():
            memory[name][slots] = array
        if self._actions.shape[1:] != actions.shape[1:]:  # a user-defined algorithm may have other actions
            self._actions = np.zeros((len(self._actions), *actions.shape[1:]), actions.dtype)
        self._actions[slots], self._starts[slots], self._rewards[slots] = actions, False, 0.0
        return actions

    def note(self, ids: list[int]) -> None:
        """Add the last rewards: all that a slot earns until it acts again belongs to its previous action."""
        slots = self._slots(ids)
        self._rewards[slots] += self._values[REWARD, slots].astype(np.float32)
