"""Checks of reset and step: their arguments and results, over many steps and episodes, and calls out of turn."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.env_checker.catalogue import make_finding
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import EnvRaised, Stopwatch, Subject, TeamEnv, WatchedEnv, masks_in
from multiverse.env_checker.trajectory import advance, begin, episode
from multiverse.env_checker.values import Misfit, Tally, end_misfits, misfits, name_of, reward_misfits
from multiverse.wrappers.flatten_agents import cancelled_share

FEWEST_EQUAL_EPISODES = 3
STEPS_OUT_OF_TURN = 3
CANCELS = 0.999
"""Share of the agents' rewards that is lost in their sum, from which on they cancel each other."""
PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


def check_reset(subject: Subject) -> Iterator[Finding]:
    """Reset plainly, with a seed, with options and twice in a row, until a result cannot be read."""
    env = subject.build()
    reader, tally, space = reader_of(env), Tally(), env.env.observation_space
    yield from _default_seed(env.env.unwrapped.reset)
    yield from reader.new_spaces()
    seed = subject.settings.seed
    calls: list[dict[str, Any]] = [{}, {"seed": seed}, {"seed": seed, "options": None}, {"options": {}}, {}]
    for arguments in calls:
        try:
            result = env.reset(**arguments)
        except EnvRaised as raised:
            yield _reset_raised(raised, arguments)
            return
        problem = reader.unreadable_reset(result)
        if problem is not None:
            yield problem
            return
        for misfit in reader.reset_misfits(result):
            tally.add(misfit, f"after {_call(arguments)}")
    yield from tally.findings(len(calls))
    yield from _replaced_space(env, space)


def check_steps(subject: Subject) -> Iterator[Finding]:
    """Examine every value of one long rollout; findings from before an exception are kept."""
    env, settings = subject.build(), subject.settings
    log, watch = StepLog(env), Stopwatch(settings.rollout_s)
    problem: Finding | None = None
    try:
        log.begin(seed=settings.seed)
        for action in subject.actions(env, settings.steps):
            problem = log.step(action)
            if problem is not None or watch.over:
                break
    except EnvRaised as raised:
        problem = raised.finding()
    yield from log.tally.findings(log.steps + log.resets)
    if problem is None:
        yield from log.ends()
        yield from _replaced_space(env, log.reader.space)
    else:
        yield problem
    yield from log.reader.summary(log.resets, log.steps)


def check_order(subject: Subject) -> Iterator[Finding]:
    """Step before the first reset and after an end: envs that do not raise are reported."""
    env = subject.build()
    if isinstance(env.env, TeamEnv):  # PettingZoo does not define what a step out of turn does
        omitted = "steps before the first reset(), after the end, and with actions that are not open"
        yield make_finding("not-checked", omitted)
        return
    actions = subject.actions(env, subject.settings.compared_steps)
    if subject.settings.from_factory and _steps_quietly(env, actions[:1]):
        yield make_finding("step-before-reset", "step() before the first reset() returned normally")
    env = subject.build()
    if episode(env, actions, subject.settings.compared_s, seed=subject.settings.seed)[-1].ended:
        if _steps_quietly(env, actions[:STEPS_OUT_OF_TURN]):
            evidence = f"{STEPS_OUT_OF_TURN} more steps after an end continued the episode"
            yield make_finding("step-after-end", evidence)
        begin(env)


def _steps_quietly(env: WatchedEnv, actions: list[Any]) -> bool:
    """Return whether all these steps succeed and none ends the episode."""
    try:
        ends = [advance(env, action).ended for action in actions]
    except EnvRaised:
        return False
    return not any(ends)


def _default_seed(reset: Any) -> Iterator[Finding]:
    try:
        parameter = inspect.signature(reset).parameters.get("seed")
    except (TypeError, ValueError):  # native code has no signature
        return
    if parameter is not None and parameter.default not in (None, inspect.Parameter.empty):
        yield make_finding("seed-default", f"reset() without a seed means reset(seed={parameter.default!r})")


def _replaced_space(env: WatchedEnv, space: Any) -> Iterator[Finding]:
    if env.env.observation_space != space:
        now = env.env.observation_space
        yield make_finding("space-replaced", f"observation_space was {space} and is {now} {env.where}")


def _reset_raised(raised: EnvRaised, arguments: dict[str, Any]) -> Finding:
    refused = isinstance(raised.error, TypeError) and "unexpected keyword argument" in str(raised.error)
    evidence = f"{_call(arguments)} raised {raised.words()}"
    if refused and arguments:
        return make_finding("reset-signature", evidence)
    return make_finding("reset-raises", evidence, "warning" if arguments.get("options") == {} else None)


def _call(arguments: dict[str, Any]) -> str:
    return f"reset({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


class StepLog:
    """Steps an env, resets it after each end, and counts values that do not fit."""

    def __init__(self, env: WatchedEnv) -> None:
        self._env, self.reader = env, reader_of(env)
        self.tally = Tally()
        self.steps = self.resets = self._steps_before = self._truncations = 0
        self._lengths: list[int] = []  # of the episodes that ended

    def begin(self, **arguments: Any) -> None:
        """Begin an episode."""
        result = self._env.reset(**arguments)
        self.resets += 1
        self._steps_before = self.steps
        self._add(self.reader.reset_misfits(result))

    def step(self, action: Any) -> Finding | None:
        """Take one step, and reset if it ends the episode; return a finding if its result cannot be read."""
        result = self._env.step(copy.deepcopy(action))
        problem = self.reader.unreadable_step(result)
        if problem is not None:
            return problem
        self.steps += 1
        self._add(self.reader.step_misfits(result))
        over, truncated = self.reader.end(result)
        if over:
            self._lengths.append(self.steps - self._steps_before)
            self._truncations += truncated
            self.begin()
        return None

    def ends(self) -> Iterator[Finding]:
        """Yield findings about the ends of episodes and their lengths."""
        lengths = self._lengths
        if not lengths:
            yield make_finding("never-ends", f"no episode ended in {self.steps} steps of random actions")
        equal = len(set(lengths)) == 1 and len(lengths) >= FEWEST_EQUAL_EPISODES
        if equal and lengths[0] > 1 and not self._truncations:
            evidence = f"all {len(lengths)} episodes ended after exactly {lengths[0]} steps with terminated=True"
            yield make_finding("time-limit-as-terminated", evidence)

    def _add(self, new: Iterable[Misfit]) -> None:
        for misfit in new:
            self.tally.add(misfit, str(self._env.where))


# -- one agent -------------------------------------------------------------------------------------------------
class Reader:
    """Reads the results of a single-agent env."""

    def __init__(self, env: WatchedEnv) -> None:
        self.space = env.env.observation_space

    def new_spaces(self) -> Iterator[Finding]:
        """Yield findings about spaces that are a new object at every call."""
        return iter(())

    def unreadable_reset(self, result: Any) -> Finding | None:
        """Return a finding if the result of a reset cannot be read."""
        return _unreadable("reset", result, 2, "the tuple (observation, info)", "(observation, info)")

    def unreadable_step(self, result: Any) -> Finding | None:
        """Return a finding if the result of a step cannot be read."""
        old = isinstance(result, tuple) and len(result) == 4
        of_five = "of five: this looks like the old (observation, reward, done, info)" if old else "of five"
        return _unreadable("step", result, 5, "a tuple of five", of_five)

    def reset_misfits(self, result: Any) -> Iterator[Misfit]:
        """Yield the values of a reset that do not fit their spaces."""
        return misfits(self.space, result[0])

    def step_misfits(self, result: Any) -> Iterator[Misfit]:
        """Yield the values of a step that do not fit."""
        observation, reward, terminated, truncated, _ = result
        yield from misfits(self.space, observation)
        yield from reward_misfits(reward)
        yield from end_misfits(terminated, truncated)

    def end(self, result: Any) -> tuple[bool, bool]:
        """Return whether a step ended the episode, and whether that was a truncation."""
        terminated, truncated = map(_is_true, result[2:4])
        return terminated or truncated, not terminated

    def summary(self, episodes: int, steps: int) -> Iterator[Finding]:
        """Yield findings about the whole rollout."""
        return iter(())


def _unreadable(call: str, result: Any, size: int, expected: str, expected_size: str) -> Finding | None:
    if not isinstance(result, tuple):
        return make_finding(f"{call}-return", f"{call} returned {type(result).__name__}, not {expected}")
    if len(result) != size:
        return make_finding(f"{call}-return", f"{call} returned a tuple of {len(result)}, not {expected_size}")
    if not isinstance(result[-1], dict):
        return make_finding("info-not-dict", f"{call}'s info is {type(result[-1]).__name__}: {result[-1]!r:.60}")
    return None


def _is_true(end: Any) -> bool:
    try:
        return bool(end)
    except Exception:  # an array of several values
        return False


# -- several agents --------------------------------------------------------------------------------------------
class TeamReader(Reader):
    """Reads the results of an env with several agents, and counts agents that join and leave."""

    def __init__(self, env: WatchedEnv) -> None:
        super().__init__(env)
        self._team: TeamEnv = env.env
        self._rewards: list[list[float]] = []
        self._left: Counter[Any] = Counter()  # before the end of the episode
        self._joined: Counter[Any] = Counter()  # after its beginning
        self._terminated = True  # whether every agent that ended in this episode was terminated
        self._there: list[Any] = []

    def new_spaces(self) -> Iterator[Finding]:
        for name in ("observation_space", "action_space"):
            space_of = getattr(self._team.foreign, name)
            new = [agent for agent in self._team.possible_agents if space_of(agent) is not space_of(agent)]
            if new:
                yield make_finding("agent-space-new", f"{name}({new[0]!r}) returns a new object at every call")

    def unreadable_reset(self, result: Any) -> Finding | None:
        return self._unreadable("reset", result, (PARTS[0], PARTS[4]))

    def unreadable_step(self, result: Any) -> Finding | None:
        return self._unreadable("step", result, PARTS)

    def _unreadable(self, call: str, result: Any, parts: tuple[str, ...]) -> Finding | None:
        expected = f"({', '.join(parts)})"
        problem = _unreadable(call, result, len(parts), f"the tuple {expected}", expected)
        if problem is not None:
            return problem
        for name, part in zip(parts, result):
            if not isinstance(part, dict):
                evidence = f"{call} returned {type(part).__name__} as {name}, not a dict by agent"
                return make_finding(f"{call}-return", evidence)
        for agent, info in result[-1].items():
            if not isinstance(info, dict):
                evidence = f"{call}'s info of {agent} is {type(info).__name__}: {info!r:.60}"
                return make_finding("info-not-dict", evidence)
        return None

    def reset_misfits(self, result: Any) -> Iterator[Misfit]:
        self._terminated, self._there = True, self._team.agents
        return self._observed(result[0], result[1])

    def step_misfits(self, result: Any) -> Iterator[Misfit]:
        observations, rewards, terminated, truncated, infos = result
        yield from self._observed(observations, infos)
        for agent in observations:
            missing = [name for name, part in zip(PARTS[1:4], result[1:4]) if agent not in part]
            if missing:
                words = f"{agent} has an observation and is not in {missing[0]}"
                yield Misfit("agent-missing", (agent, missing[0]), words)
                continue
            yield from reward_misfits(rewards[agent], (agent,))
            yield from end_misfits(terminated[agent], truncated[agent], (agent,))
        self._rewards.append([_number(rewards.get(agent, 0.0)) for agent in self._team.possible_agents])
        ended = {a for a in {**terminated, **truncated} if _is_true(terminated.get(a)) or _is_true(truncated.get(a))}
        self._terminated &= not any(_is_true(truncated.get(agent)) for agent in ended)
        now = self._team.agents
        stays = [agent for agent in now if agent in ended and not self._team.in_turns]
        if stays:
            yield Misfit("ended-agent-stays", (stays[0],), f"{stays[0]} has ended and is still in agents")
        if not self._team.over:
            self._left.update(agent for agent in self._there if agent not in now or agent in ended)
            self._joined.update(agent for agent in now if agent not in self._there)
        self._there = [agent for agent in now if agent not in ended]

    def _observed(self, observations: dict[Any, Any], infos: dict[Any, Any]) -> Iterator[Misfit]:
        """Yield misfits of the agents that are present, of their observations and of their action masks."""
        team = self._team
        for agent in [*observations, *(agent for agent in team.agents if agent not in observations)]:
            if agent not in team.possible_agents:
                known = f"which is not among possible_agents {list(team.possible_agents)}"
                yield Misfit("agent-unknown", (agent,), f"the env has agent {agent!r}, {known}")
            elif agent in observations:
                yield from misfits(team.observation_space[agent], observations[agent], (agent,))
            elif not team.in_turns:
                yield Misfit("agent-missing", (agent, "observation"), f"no observation of {agent}, which is in agents")
        for agent, mask in masks_in(observations, infos):
            if mask is not None and agent in team.possible_agents and agent in team.agents:
                yield from _mask_misfits(team.action_space[agent], agent, mask)

    def end(self, result: Any) -> tuple[bool, bool]:
        return self._team.over, not self._terminated

    def summary(self, episodes: int, steps: int) -> Iterator[Finding]:
        changes = [("leaves before its episode ends", self._left), ("joins during an episode", self._joined)]
        words = [
            f"{agent} {what} ({count} times in {episodes} episodes)"
            for what, counts in changes
            for agent, count in counts.most_common(1)
        ]
        if words:
            yield make_finding("agents-change", "; ".join(words))
        if len(self._rewards) > 1 and cancelled_share(np.array(self._rewards)) > CANCELS:
            yield make_finding("rewards-cancel", f"the rewards of all agents have the same sum in all {steps} steps")


def reader_of(env: WatchedEnv) -> Reader:
    """Return a reader for the results of this env."""
    return TeamReader(env) if isinstance(env.env, TeamEnv) else Reader(env)


def _mask_misfits(space: spaces.Space[Any], agent: Any, mask: Any) -> Iterator[Misfit]:
    if not isinstance(space, spaces.Discrete):
        return  # a mask for another kind of space, which the library does not read
    name, values = name_of((agent,), "the action mask"), np.asarray(mask)
    if values.shape != (space.n,):
        yield Misfit("action-mask", (agent,), f"{name} has shape {values.shape}, and there are {space.n} actions")
    elif not np.isin(values, (0, 1)).all():
        yield Misfit("action-mask", (agent,), f"{name} has other values than 0 and 1: {values.tolist()!r:.60}")
    elif not values.any():
        yield Misfit("action-mask", (agent,), f"{name} leaves no action open for an agent in agents")


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError):
        return 0.0
