"""Checks of reset and step: their arguments and results, over many steps and episodes, and calls out of turn."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.env_checker.catalogue import found
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import EnvRaised, Stopwatch, Subject, TeamEnv, WatchedEnv, masks_in
from multiverse.env_checker.trajectory import advance, begin, episode
from multiverse.env_checker.values import Misfit, Tally, called, end_misfits, misfits, reward_misfits
from multiverse.wrappers.flatten_agents import cancelled_share

FEWEST_EQUAL_EPISODES = 3
STEPS_OUT_OF_TURN = 3


# -- reset -----------------------------------------------------------------------------------------------------
def check_reset(subject: Subject) -> Iterator[Finding]:
    """Plain, with a seed, with options, twice in a row; what comes back is looked at each time."""
    env = subject.build()
    space = env.env.observation_space
    yield from default_seed(env.env.unwrapped.reset)

    def problem_of(result: Any) -> Finding | None:
        return unreadable("reset", result, 2, "the tuple (observation, info)", "(observation, info)")

    yield from resets(env, subject.settings.seed, space, problem_of, lambda result: misfits(space, result[0]))


def resets(
    env: WatchedEnv,
    seed: int,
    space: Any,
    problem_of: Callable[[Any], Finding | None],
    misfits_of: Callable[[Any], Iterator[Misfit]],
) -> Iterator[Finding]:
    """What is wrong with the results of all ways to reset; the first that cannot be read is the last."""
    tally = Tally()
    calls: list[dict[str, Any]] = [{}, {"seed": seed}, {"seed": seed, "options": None}, {"options": {}}, {}]
    for arguments in calls:
        try:
            result = env.reset(**arguments)
        except EnvRaised as raised:
            yield reset_raised(raised, arguments)
            return
        problem = problem_of(result)
        if problem is not None:
            yield problem
            return
        for misfit in misfits_of(result):
            tally.add(misfit, f"after {call_of(arguments)}")
    yield from tally.findings(len(calls))
    yield from replaced_space(env, space)


def default_seed(reset: Any) -> Iterator[Finding]:
    try:
        parameter = inspect.signature(reset).parameters.get("seed")
    except (TypeError, ValueError):  # native code does not say
        return
    if parameter is not None and parameter.default not in (None, inspect.Parameter.empty):
        yield found("seed-default", f"reset(seed={parameter.default!r}) is what reset() without a seed means")


def unreadable(call: str, result: Any, size: int, a_tuple: str, so_many: str) -> Finding | None:
    """What keeps the result of a reset or a step from being read."""
    if not isinstance(result, tuple):
        return found(f"{call}-return", f"{call} returned {type(result).__name__}, not {a_tuple}")
    if len(result) != size:
        return found(f"{call}-return", f"{call} returned a tuple of {len(result)}, not {so_many}")
    if not isinstance(result[-1], dict):
        return found("info-not-dict", f"{call}'s info is {type(result[-1]).__name__}: {result[-1]!r:.60}")
    return None


def replaced_space(env: WatchedEnv, space: Any) -> Iterator[Finding]:
    """Whether the env has another observation space by now."""
    if env.env.observation_space != space:
        now = env.env.observation_space
        yield found("space-replaced", f"observation_space was {space} and is {now} {env.where}")


def reset_raised(raised: EnvRaised, arguments: dict[str, Any]) -> Finding:
    refused = isinstance(raised.error, TypeError) and "unexpected keyword argument" in str(raised.error)
    seen = f"{call_of(arguments)} raised {raised.words()}"
    if refused and arguments:
        return found("reset-signature", seen)
    return found("reset-raises", seen, "warning" if arguments.get("options") == {} else None)


def call_of(arguments: dict[str, Any]) -> str:
    return f"reset({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


# -- step ------------------------------------------------------------------------------------------------------
def check_steps(subject: Subject) -> Iterator[Finding]:
    """One long rollout, every value looked at."""
    env = subject.build()
    yield from rollout_findings(subject, env, StepLog(env))


def rollout_findings(subject: Subject, env: WatchedEnv, log: StepLog) -> Iterator[Finding]:
    """Of one long rollout; what was seen before an exception is told too."""
    settings, watch = subject.settings, Stopwatch(subject.settings.rollout_s)
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
    if problem is not None:
        yield problem
        return
    yield from log.ends()
    yield from replaced_space(env, log.space)


class StepLog:
    """Steps an env, resets it after each end, and counts what does not fit."""

    def __init__(self, env: WatchedEnv) -> None:
        self._env, self.space = env, env.env.observation_space
        self.tally = Tally()
        self.steps = self.resets = self._steps_before = self._truncations = 0
        self._lengths: list[int] = []  # of the episodes that ended

    def begin(self, **arguments: Any) -> None:
        observation, _ = self._env.reset(**arguments)
        self.resets += 1
        self._steps_before = self.steps
        self._add(misfits(self.space, observation))

    def step(self, action: Any) -> Finding | None:
        """One step, and a reset if it ends the episode; returns what keeps its result from being read."""
        result = self._env.step(copy.deepcopy(action))
        old = isinstance(result, tuple) and len(result) == 4
        of_five = "of five: the old (observation, reward, done, info)?" if old else "of five"
        problem = unreadable("step", result, 5, "a tuple of five", of_five)
        if problem is not None:
            return problem
        observation, reward, terminated, truncated, _ = result
        self.steps += 1
        self._add((*misfits(self.space, observation), *reward_misfits(reward), *end_misfits(terminated, truncated)))
        if is_true(terminated) or is_true(truncated):
            self._lengths.append(self.steps - self._steps_before)
            self._truncations += not is_true(terminated)
            self.begin()
        return None

    def ends(self) -> Iterator[Finding]:
        """How episodes ended, and after how many steps."""
        lengths = self._lengths
        if not lengths:
            yield found("never-ends", f"no episode ended in {self.steps} steps of random actions")
        equal = len(set(lengths)) == 1 and len(lengths) >= FEWEST_EQUAL_EPISODES
        if equal and lengths[0] > 1 and not self._truncations:
            words = f"all {len(lengths)} episodes ended after exactly {lengths[0]} steps with terminated=True"
            yield found("time-limit-as-terminated", words)

    def _add(self, found_now: Iterable[Misfit]) -> None:
        for misfit in found_now:
            self.tally.add(misfit, str(self._env.where))


def is_true(end: Any) -> bool:
    try:
        return bool(end)
    except Exception:  # an array of several
        return False


# -- out of turn -----------------------------------------------------------------------------------------------
def check_order(subject: Subject) -> Iterator[Finding]:
    """A step before the first reset, and steps after an end: to raise is fine; not to notice is told."""
    env = subject.build()
    actions = subject.actions(env, subject.settings.compared_steps)
    if subject.settings.from_factory and _steps_quietly(env, actions[:1]):
        yield found("step-before-reset", "step() before any reset() returned as if nothing were wrong")
    env = subject.build()
    if episode(env, actions, subject.settings.compared_s, seed=subject.settings.seed)[-1].ended:
        if _steps_quietly(env, actions[:STEPS_OUT_OF_TURN]):
            yield found("step-after-end", f"{STEPS_OUT_OF_TURN} more steps after an end went on as if it were none")
        begin(env)


def _steps_quietly(env: Any, actions: list[Any]) -> bool:
    """Whether all these steps pass, and none of them says that the episode is over."""
    try:
        ends = [advance(env, action).ended for action in actions]
    except EnvRaised:
        return False
    return not any(ends)


# -- several agents --------------------------------------------------------------------------------------------
PARTS = ("observations", "rewards", "terminations", "truncations", "infos")
CANCELS = 0.999


# -- reset -------------------------------------------------------------------------------------------------------
def check_team_reset(subject: Subject) -> Iterator[Finding]:
    """As `check_reset`: plain, with a seed, with options, twice in a row."""
    env = subject.build()
    team: TeamEnv = env.env
    space = team.observation_space
    yield from default_seed(team.unwrapped.reset)
    yield from _new_spaces(team)

    def problem_of(result: Any) -> Finding | None:
        return _not_by_agent("reset", result, (PARTS[0], PARTS[4]))

    yield from resets(env, subject.settings.seed, space, problem_of, lambda result: _observed(team, *result))


def _new_spaces(team: TeamEnv) -> Iterator[Finding]:
    for name in ("observation_space", "action_space"):
        space_of = getattr(team.foreign, name)
        new = [agent for agent in team.possible_agents if space_of(agent) is not space_of(agent)]
        if new:
            yield found("agent-space-new", f"{name}({new[0]!r}) is another object at every call")


def _not_by_agent(call: str, result: Any, parts: tuple[str, ...]) -> Finding | None:
    """What keeps the result of a reset or a step from being read."""
    wanted = f"({', '.join(parts)})"
    problem = unreadable(call, result, len(parts), f"the tuple {wanted}", wanted)
    if problem is not None:
        return problem
    for name, part in zip(parts, result):
        if not isinstance(part, dict):
            return found(f"{call}-return", f"{call} returned {type(part).__name__} as {name}, not a dict by agent")
    for agent, info in result[-1].items():
        if not isinstance(info, dict):
            return found("info-not-dict", f"{call}'s info of {agent} is {type(info).__name__}: {info!r:.60}")
    return None


def _observed(team: TeamEnv, observations: dict[Any, Any], infos: dict[Any, Any]) -> Iterator[Misfit]:
    """Who is there, what they see, and what is open to them."""
    agents = list(observations) + [agent for agent in team.agents if agent not in observations]
    for agent in agents:
        if agent not in team.possible_agents:
            known = f"which is not among possible_agents {list(team.possible_agents)}"
            yield Misfit("agent-unknown", (agent,), f"there is {agent!r}, {known}")
        elif agent in observations:
            yield from misfits(team.observation_space[agent], observations[agent], (agent,))
        elif not team.in_turns:
            yield Misfit("agent-missing", (agent, "observation"), f"no observation of {agent}, which is in agents")
    for agent, mask in masks_in(observations, infos):
        if mask is not None and agent in team.possible_agents and agent in team.agents:
            yield from _mask(team.action_space[agent], agent, mask)


def _mask(space: spaces.Space[Any], agent: Any, mask: Any) -> Iterator[Misfit]:
    name = called((agent,), "the action mask")
    if not isinstance(space, spaces.Discrete):
        return  # a mask of the env's own kind: nobody here reads it
    values = np.asarray(mask)
    if values.shape != (space.n,):
        yield Misfit("action-mask", (agent,), f"{name} has shape {values.shape}, and there are {space.n} actions")
    elif not np.isin(values, (0, 1)).all():
        yield Misfit("action-mask", (agent,), f"{name} has other values than 0 and 1: {values.tolist()!r:.60}")
    elif not values.any():
        yield Misfit("action-mask", (agent,), f"{name} leaves no action open, and it is in agents")


# -- step --------------------------------------------------------------------------------------------------------
def check_team_steps(subject: Subject) -> Iterator[Finding]:
    """One long rollout with open actions, every value of every agent looked at."""
    env = subject.build()
    log = TeamLog(env)
    yield from rollout_findings(subject, env, log)
    yield from log.of_the_team()


class TeamLog(StepLog):
    """The same of several agents, and who came and went."""

    def __init__(self, env: WatchedEnv) -> None:
        super().__init__(env)
        self._team: TeamEnv = env.env
        self._rewards: list[list[float]] = []
        self._left: Counter[Any] = Counter()  # before the episode's end
        self._joined: Counter[Any] = Counter()  # after its beginning
        self._terminated = False
        self._there: list[Any] = []

    def begin(self, **arguments: Any) -> None:
        observations, infos = self._env.reset(**arguments)
        self.resets += 1
        self._steps_before, self._terminated, self._there = self.steps, True, self._team.agents
        self._add(_observed(self._team, observations, infos))

    def step(self, action: Any) -> Finding | None:
        result = self._env.step(copy.deepcopy(action))
        problem = _not_by_agent("step", result, PARTS)
        if problem is not None:
            return problem
        observations, rewards, terminated, truncated, infos = result
        self.steps += 1
        self._add(_observed(self._team, observations, infos))
        for agent in observations:
            self._add(self._outcome(agent, rewards, terminated, truncated))
        self._rewards.append([_number(rewards.get(agent, 0.0)) for agent in self._team.possible_agents])
        ended = {a for a in {**terminated, **truncated} if is_true(terminated.get(a)) or is_true(truncated.get(a))}
        self._terminated &= not any(is_true(truncated.get(agent)) for agent in ended)
        self._note_who_is_there(ended)
        if self._team.over:
            self._lengths.append(self.steps - self._steps_before)
            self._truncations += not self._terminated
            self.begin()
        return None

    def _outcome(self, agent: Any, rewards: Any, terminated: Any, truncated: Any) -> Iterator[Misfit]:
        for name, part in zip(PARTS[1:4], (rewards, terminated, truncated)):
            if agent not in part:
                yield Misfit("agent-missing", (agent, name), f"{agent} has an observation and is not in {name}")
                return
        yield from reward_misfits(rewards[agent], (agent,))
        yield from end_misfits(terminated[agent], truncated[agent], (agent,))

    def _note_who_is_there(self, ended: set[Any]) -> None:
        now = self._team.agents
        if not self._team.in_turns:
            stays = [agent for agent in now if agent in ended]
            if stays:
                words = f"{stays[0]} has ended and is still in agents"
                self._add([Misfit("ended-agent-stays", (stays[0],), words)])
        if not self._team.over:
            self._left.update(agent for agent in self._there if agent not in now or agent in ended)
            self._joined.update(agent for agent in now if agent not in self._there)
        self._there = [agent for agent in now if agent not in ended]

    def of_the_team(self) -> Iterator[Finding]:
        """What is good to know about agents that come and go, and about their rewards."""
        changes = [("leaves before its episode ends", self._left), ("joins an episode under way", self._joined)]
        words = [
            f"{agent} {what} ({count} times in {self.resets} episodes)"
            for what, counts in changes
            for agent, count in counts.most_common(1)
        ]
        if words:
            yield found("agents-change", "; ".join(words))
        if len(self._rewards) > 1 and cancelled_share(np.array(self._rewards)) > CANCELS:
            yield found("rewards-cancel", f"the rewards of all agents add up to the same in all {self.steps} steps")


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError):
        return 0.0


# -- out of turn -------------------------------------------------------------------------------------------------
def check_team_order(subject: Subject) -> Iterator[Finding]:
    """PettingZoo does not say what a step out of turn should do."""
    yield found("not-checked", "steps before the first reset(), after the end, and with actions that are not open")
