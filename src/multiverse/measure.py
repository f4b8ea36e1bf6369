"""Measurements of steps per second: of one bare env in a loop, of the whole machine, and of any vector env.

A step here is a step of an env. The time of resets is included, but resets are never counted as steps, not even where
the step of a vector env resets an env (`next_step` autoreset), so that bare loops and vector envs can be compared.
Measurements are noisy: measure alternatives alternately, round after round, and take ratios within a round.

A step of an env with several agents is one of the env: of all agents at the same time, or one agent's action. Random
actions respect action masks; choosing them is timed, for bare loops and vector envs alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count, cycle, islice
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from multiverse.adapters.agents import mask_of
from multiverse.adapters.env_source import Recipe
from multiverse.adapters.pettingzoo_env import PettingZooEnv
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import ACTION_MASKS, Array, Group, leaves
from multiverse.core.plan import IN_PROCESSES, Plan
from multiverse.executors import machine, startup
from multiverse.executors.env_range import EnvRange
from multiverse.vector.parallel import BaseMultiAgentVectorEnv
from multiverse.vector.turns import TurnVectorEnv

AnyVectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any] | BaseMultiAgentVectorEnv
Done = TypeVar("Done")

SAMPLED_ACTIONS = 64
LARGEST_BLOCK = 256
BLOCK_SHARE = 0.01  # of the requested seconds: blocks grow until one takes this long
WARM_UP_SHARE = 0.1  # of the requested seconds, stepped before the clock starts


# -- any vector env --------------------------------------------------------------------------------------------
def step_rate(envs: AnyVectorEnv, seconds: float, actions: Sequence[Any] | None = None) -> float:
    """Reset all envs, and return the steps per second of all of them together.

    `actions`: batches that are used cyclically; by default 64 random ones.
    """
    autoreset = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if autoreset == AutoresetMode.DISABLED:
        raise InvalidRequest("the rate of envs without autoreset cannot be measured: use next_step or same_step")
    if isinstance(envs, BaseMultiAgentVectorEnv):
        take_steps, count_steps = _team_blocks(envs, same_step=autoreset == AutoresetMode.SAME_STEP)
        return _rate(take_steps, count_steps, seconds)
    endless = cycle(actions if actions is not None else sample_actions(envs.action_space))
    step, num_envs = envs.step, envs.num_envs

    def block(size: int) -> list[tuple[Array, Array]]:
        ended = []
        for batch in islice(endless, size):
            _, _, terminated, truncated, _ = step(batch)
            ended.append((terminated, truncated))
        return ended

    def steps_in(ended: list[tuple[Array, Array]]) -> int:
        if autoreset == AutoresetMode.SAME_STEP:
            return len(ended) * num_envs
        return len(ended) * num_envs - sum(int(np.count_nonzero(a | b)) for a, b in ended)

    envs.reset(seed=0)
    return _rate(block, steps_in, seconds)


def sample_actions(space: gymnasium.Space[Any], count: int = SAMPLED_ACTIONS, seed: int = 0) -> list[Any]:
    """Return random actions, which are equal for equal seeds."""
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def _rate(block: Callable[[int], Done], steps_in: Callable[[Done], int], seconds: float) -> float:
    """Return the steps per second of repeated calls of `block(size)`; counting its steps is not timed."""
    if not seconds > 0:
        raise InvalidRequest(f"seconds={seconds}: expected more than 0")
    size, _, _ = _run_blocks(block, steps_in, seconds * WARM_UP_SHARE, seconds * BLOCK_SHARE, 1)
    _, steps, spent_s = _run_blocks(block, steps_in, seconds, seconds * BLOCK_SHARE, size)
    return steps / spent_s


def _run_blocks(
    block: Callable[[int], Done], steps_in: Callable[[Done], int], seconds: float, block_s: float, size: int
) -> tuple[int, int, float]:
    """Return (size of the last block, steps, seconds spent); blocks double until one takes `block_s`."""
    steps, spent_s = 0, 0.0
    while spent_s < seconds:
        begun = time.perf_counter()
        done = block(size)
        took_s = time.perf_counter() - begun
        spent_s += took_s
        steps += steps_in(done)
        if took_s < block_s:
            size = min(2 * size, LARGEST_BLOCK)
    return size, steps, spent_s


# -- several agents --------------------------------------------------------------------------------------------
class OpenActions:
    """Random actions of a group that a mask allows, drawn in advance."""

    def __init__(self, group: Group, slots: int) -> None:
        space, rng = group.action_space, np.random.default_rng(0)
        self._start, self._drawn = getattr(space, "start", 0), None
        if group.masks:
            self._scores = rng.random((SAMPLED_ACTIONS, slots, group.masks), np.float32)
            return
        if len(list(leaves(space))) != 1 or not next(leaves(space)).numeric:
            raise InvalidRequest(
                f"the action space of {group.name} is {space}: only spaces whose actions are one array can be measured"
            )
        space.seed(0)
        self._drawn = np.array([[space.sample() for _ in range(slots)] for _ in range(SAMPLED_ACTIONS)])

    def chosen(self, k: int, masks: Array | None, rows: int | None = None) -> Array:
        """Return the actions [rows, …] of the k-th step."""
        k %= SAMPLED_ACTIONS
        if self._drawn is not None:
            return np.asarray(self._drawn[k, :rows])
        scores = self._scores[k, :rows]
        return np.asarray((scores if masks is None else scores * masks).argmax(axis=1) + self._start)


def _team_blocks(envs: BaseMultiAgentVectorEnv, same_step: bool) -> tuple[Callable[[int], Any], Callable[[Any], int]]:
    """Reset a vector env; return (function that takes `size` steps, function that counts env steps in its result)."""
    groups, num_envs, all_envs = envs.views.layout.groups, envs.num_envs, np.arange(envs.num_envs)
    draws = {group.name: OpenActions(group, num_envs * len(group.agents)) for group in groups}
    masks = {group.name: envs.views[(group.name, ACTION_MASKS)] for group in groups if group.masks}
    turn, numbers = envs.reset(seed=0), count()

    def step_all_agents(size: int) -> list[Any]:
        over = []
        for k in islice(numbers, size):
            chosen = {name: draw.chosen(k, masks.get(name)) for name, draw in draws.items()}
            envs.step({name: rows.reshape(num_envs, -1, *rows.shape[1:]) for name, rows in chosen.items()})
            over.append(0 if same_step else np.count_nonzero(envs.episodes_over(all_envs)))
        return over

    def step_one_agent(size: int) -> list[Any]:
        nonlocal turn
        for k in islice(numbers, size):
            rows = turn.groups.items()  # type: ignore[attr-defined, unused-ignore]
            turn = envs.step({name: draws[name].chosen(k, part.action_masks, len(part.env_ids)) for name, part in rows})
        return [0] * size

    steps = step_one_agent if isinstance(envs, TurnVectorEnv) else step_all_agents
    return steps, lambda over: len(over) * num_envs - sum(over)


def _bare_team(env: Any, groups: Sequence[Group], first: Any, begin: Callable[[], Any]) -> Callable[[int], int]:
    """Return a function that takes `size` steps of a bare PettingZoo env; `first`: result of its reset, None of AEC."""
    draws, numbers = {agent: OpenActions(group, 1) for group in groups for agent in group.agents}, count()
    observations, infos = first or ({}, {})
    present = list(env.agents)

    def choose(agent: Any, observation: Any, info: Any) -> Any:
        return draws[agent].chosen(next(numbers), mask_of(observation, info))[0]

    def step_all_agents(size: int) -> int:
        nonlocal observations, infos, present
        for _ in range(size):
            chosen = {agent: choose(agent, observations[agent], infos.get(agent)) for agent in present}
            observations, _, terminated, truncated, infos = env.step(chosen)
            present = [agent for agent in env.agents if not (terminated[agent] or truncated[agent])]
            if not present:
                observations, infos = begin()
                present = list(env.agents)
        return size

    def step_one_agent(size: int) -> int:
        done = 0
        while done < size:
            if not env.agents:
                begin()
            observation, _, terminated, truncated, info = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            env.step(choose(env.agent_selection, observation, info))
            done += 1
        return size

    return step_all_agents if first else step_one_agent


Bare = tuple[Callable[[Any], Any], Callable[[], Any]]
"""Functions that take a step of an env and begin its next episode."""


def _bare_single(envs: Sequence[Bare], actions: Sequence[Sequence[Any]]) -> Callable[[int], int]:
    """Return a function that takes `size` steps of each bare Gymnasium env in turn; `actions`: by step, by env."""
    endless = cycle(actions)

    def block(size: int) -> int:
        for chosen in islice(endless, size):
            for (step, begin), action in zip(envs, chosen):
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    begin()
        return size * len(envs)

    return block


# -- bare loops ------------------------------------------------------------------------------------------------
class BareLoops:
    """Worker processes with one bare env each, kept between measurements, which then include no start-up.

    `bare_rate` is the rate of a plain Python loop over one env; `machine_limit` the rate of this machine if every
    usable core runs such a loop: an upper bound for any vector env.
    """

    def __init__(
        self, recipe: Recipe, cores: int | None = None, seeded: bool = False, num_envs: int | None = None
    ) -> None:
        """`seeded`: every episode is reset with a seed, as in training. `num_envs`: number of Gymnasium envs, divided
        between the loops, each with the seed and actions that `step_rate` gives it in a vector env of this size: for
        envs whose cost depends on their state, or on how many share a cache."""
        self._seeded, self._num_envs = seeded, num_envs
        self.cores = min(machine.usable_cores() if cores is None else cores, num_envs or machine.UNKNOWN)
        self.waited_share: float | None = None
        """Share of their time that the last loops waited for a core; None where the system does not count it."""
        plan = Plan(IN_PROCESSES, self.cores, "forkserver", "park", "bare loops")
        each = [recipe] * (num_envs or self.cores)
        opened = startup.start_hosts(plan, each)
        self._executor, self.description = opened.bind(), opened.description
        if num_envs is not None and self.description.kind != "single":
            self.close()
            raise InvalidRequest(f"num_envs={num_envs}: loops over several envs need envs with one agent")

    def bare_rate(self, seconds: float) -> float:
        """Return the steps per second of one bare env in a loop."""
        return self._run(seconds, 1)

    def machine_limit(self, seconds: float) -> float:
        """Return the sum of the steps per second of one bare loop per core, side by side."""
        return self._run(seconds, self.cores)

    def _run(self, seconds: float, loops: int) -> float:
        hosts = self._executor.hosts[:loops]
        rates, waited_s = zip(
            *self._executor.run(bare_loop, dict.fromkeys(hosts, (seconds, self._seeded, self._num_envs))).values()
        )
        self.waited_share = None if None in waited_s else sum(waited_s) / (loops * seconds * (1 + WARM_UP_SHARE))
        return float(sum(rates))

    def close(self, timeout_s: float | None = None) -> None:
        self._executor.close(timeout_s)

    def __enter__(self) -> BareLoops:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(None if kind is None else 0.0)  # after Ctrl-C the loops need not finish


def bare_loop(
    envs: EnvRange, seconds: float, seeded: bool = False, num_envs: int | None = None
) -> tuple[float, float | None]:
    """Step the env itself, without our adapter; with several agents, the first env only.

    Runs in a worker. Returns the steps per second, and the seconds spent waiting for a core.
    """
    env, seeds = envs.envs[0], count(1)

    def begun(reset: Callable[..., Any], seed: int) -> tuple[Any, Callable[[], Any]]:
        """Return (result of the first reset, function that begins the next episode)."""
        return reset(seed=seed), lambda: reset(seed=next(seeds) if seeded else None)

    if env.description.kind == "single":
        space, ids = env.description.groups[0].action_space, range(1) if num_envs is None else envs.config.env_ids
        bare: list[Bare] = []
        for seed, one in zip(ids, envs.envs):
            step, reset = (one.call("get_wrapper_attr", (name,), {}) for name in ("step", "reset"))
            bare.append((step, begun(reset, seed)[1]))
        several = [[action] for action in sample_actions(space)]
        if num_envs is not None:
            batched = batch_space(space, num_envs)
            several = [[*iterate(batched, actions)][ids.start : ids.stop] for actions in sample_actions(batched)]
        block = _bare_single(bare, several)
    else:
        foreign = cast(PettingZooEnv, env).foreign
        first, begin = begun(foreign.reset, 0)
        block = _bare_team(foreign, env.description.groups, first=first, begin=begin)
    waited_before = machine.waited_for_core_s()
    rate, waited_s = _rate(block, int, seconds), machine.waited_for_core_s()
    return rate, None if waited_s is None or waited_before is None else waited_s - waited_before


# -- memory and processes --------------------------------------------------------------------------------------
def private_memory_mb(pid: int) -> float:
    """Return the memory that only this process holds (USS); 1 MB = 10⁶ bytes."""
    return float(psutil.Process(pid).memory_full_info().uss) / 1e6


def descendants() -> set[int]:
    """Return the pids of the processes that this one has started, directly or not."""
    return {child.pid for child in psutil.Process().children(recursive=True)}
