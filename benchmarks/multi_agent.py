"""Speed of multi-agent vector envs and their overhead per step, compared with bare loops and AgileRL.

    python benchmarks/multi_agent.py                        every row whose packages are installed
    python benchmarks/multi_agent.py --rows spread --rounds 5 --seconds 2
    .venv-agilerl/bin/python benchmarks/multi_agent.py      compared with AgileRL (`make test-agilerl` sets that up)

Contenders are measured in turn in every round; a ratio is the median of the ratios within a round. The limit is one
parallel bare loop per usable core. The overhead is the CPU time of the calling thread for a step of one env beyond the
step of the bare env (serial, 8 envs), which depends little on other programs.

"agilerl" is AgileRL's AsyncPettingZooVecEnv, if it is installed; "drop-in" is our replacement. Both use `copy=False`,
the faster setting, and every agent's observations are read at every step.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from multiverse import measure
from multiverse.adapters.env_source import recipes
from multiverse.executors.env_range import EnvRange
from multiverse.executors.machine import usable_cores

NUM_ENVS, DRAWN = 8, 64
WITH_AGILERL = importlib.util.find_spec("agilerl") is not None


# -- envs --------------------------------------------------------------------------------------------------------
class Idle:
    """Env of two agents without work: always returns the same arrays, and episodes never end."""

    metadata: dict[str, Any] = {"name": "idle"}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["agent_0", "agent_1"], ["agent_0", "agent_1"]
        self._spaces = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
        self.seen = {agent: np.zeros(4, np.float32) for agent in self.agents}
        self.rewards, self.infos = dict.fromkeys(self.agents, 0.0), {agent: {} for agent in self.agents}
        self.terminations = self.truncations = dict.fromkeys(self.agents, False)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[1]

    def close(self) -> None:
        pass


class IdleTogether(Idle, ParallelEnv):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self.seen, self.infos

    def step(self, actions: dict[str, Any]) -> Any:
        return self.seen, self.rewards, self.terminations, self.truncations, self.infos


class IdleInTurn(Idle, AECEnv):
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._cumulative_rewards, self.agent_selection = dict(self.rewards), "agent_0"

    def observe(self, agent: str) -> Any:
        return self.seen[agent]

    def step(self, action: Any) -> None:
        self.agent_selection = "agent_1" if self.agent_selection == "agent_0" else "agent_0"


def _spread() -> Callable[[], Any]:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env


def _grid_world(parallel: bool) -> Callable[[], Any]:
    from multiverse.envs import grid_world

    return functools.partial(grid_world.make, "small", parallel=parallel)


ROWS: dict[str, Callable[[], Callable[[], Any]]] = {
    "spread": _spread,
    "idle": lambda: IdleTogether,
    "idle in turn": lambda: IdleInTurn,
    "grid": lambda: _grid_world(True),
    "grid in turn": lambda: _grid_world(False),
}


# -- bare loops --------------------------------------------------------------------------------------------------
def stepper(env: Any) -> Callable[[int], None]:
    """Return a function that takes `count` steps of a bare env, including resets."""
    return _turns(env) if isinstance(env, AECEnv) else _steps(env)


def _drawn(env: Any) -> dict[str, list[Any]]:
    actions = {}
    for position, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(position)
        actions[agent] = [env.action_space(agent).sample() for _ in range(DRAWN)]
    return actions


def _steps(env: Any) -> Callable[[int], None]:
    drawn = _drawn(env)
    endless = cycle([{agent: actions[k] for agent, actions in drawn.items()} for k in range(DRAWN)])
    env.reset(seed=0)

    def steps(count: int) -> None:
        for actions in islice(endless, count):
            agents = env.agents
            env.step(actions if len(agents) == len(actions) else {agent: actions[agent] for agent in agents})
            if not env.agents:
                env.reset()

    return steps


def _turns(env: Any) -> Callable[[int], None]:
    drawn = {agent: cycle(actions) for agent, actions in _drawn(env).items()}
    env.reset(seed=0)

    def turns(count: int) -> None:
        while count:
            _, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                env.step(None)  # removes an agent; not counted as a step
                if not env.agents:
                    env.reset()
            else:
                env.step(next(drawn[env.agent_selection]))
                count -= 1

    return turns


class BareLoops(measure.BareLoops):
    """Bare loops over PettingZoo envs."""

    def _run(self, seconds: float, loops: int) -> float:
        hosts = self._executor.hosts[:loops]
        return float(sum(self._executor.run(_bare_rate, dict.fromkeys(hosts, (seconds,))).values()))


def _bare_rate(envs: EnvRange, seconds: float) -> float:
    """Run in a worker: step the original env, without our wrappers."""
    return _rate(stepper(envs.envs[0]._env), 1, seconds)  # type: ignore[attr-defined]


def _rate(steps: Callable[[int], None], each: int, seconds: float) -> float:
    steps(20)
    done, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        steps(50)
        done += 50 * each
    return done / spent


# -- vector envs -------------------------------------------------------------------------------------------------
def vector_stepper(envs: Any) -> Callable[[int], None]:
    """Return a function that takes `count` steps of one of our vector envs."""
    turns, groups = isinstance(envs, mv.TurnVectorEnv), envs.groups
    endless = _batches(envs)
    latest = [envs.reset(seed=0)]

    def steps(count: int) -> None:
        for batch in islice(endless, count):
            if turns and len(groups) > 1:
                batch = {name: batch[name][: len(rows.env_ids)] for name, rows in latest[0].groups.items()}
            latest[0] = envs.step(next(iter(batch.values())) if turns and len(groups) == 1 else batch)

    return steps


def _batches(envs: Any) -> Iterator[dict[str, Any]]:
    """Return an endless iterator over precomputed action batches, by agent or, in turn-based envs, by group."""
    keys = {name: agents[0] for name, agents in envs.groups.items()}
    if not isinstance(envs, mv.TurnVectorEnv):
        keys = {agent: agent for agent in envs.agents}
    drawn = []
    for k in range(DRAWN):
        drawn.append({})
        for key, agent in keys.items():
            space = envs.action_space(agent)
            space.seed(k)
            drawn[-1][key] = space.sample()
    return cycle(drawn)


def agilerl_stepper(kind: Any, build: Callable[[], Any]) -> tuple[Callable[[int], None], Any]:
    """Return the same function for AgileRL's vector env or its drop-in, and the vector env."""
    envs = kind([build] * NUM_ENVS, copy=False)
    envs.reset(seed=0)
    endless = cycle([{a: envs.action_space(a).sample() for a in envs.possible_agents} for _ in range(DRAWN)])

    def steps(count: int) -> None:
        for batch in islice(endless, count):
            observations = envs.step(batch)[0]
            for agent in observations:
                observations[agent]

    return steps, envs


def agilerl_classes() -> dict[str, Any]:
    """Return the drop-in and, if it is installed, the original."""
    from multiverse.interop.agilerl import AsyncPettingZooVecEnv

    kinds: dict[str, Any] = {"drop-in": AsyncPettingZooVecEnv}
    if WITH_AGILERL:
        kinds["agilerl"] = importlib.import_module("agilerl.vector.pz_async_vec_env").AsyncPettingZooVecEnv
    return kinds


# -- rows --------------------------------------------------------------------------------------------------------
def rates(build: Callable[[], Any], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the env steps per second of every contender in every round."""
    (recipe, *_) = recipes(build, 1, None, None)
    loops, opened = BareLoops(recipe), []
    contenders: dict[str, Callable[[float], float]] = {"limit": loops.machine_limit, "one bare loop": loops.bare_rate}

    def add(name: str, steps: Callable[[int], None], envs: Any) -> None:
        opened.append(envs)
        contenders[name] = lambda seconds: _rate(steps, NUM_ENVS, seconds)

    for executor in ("serial", "hybrid", "process"):
        envs = mv.make_vec(build, NUM_ENVS, executor, autoreset="same_step")  # type: ignore[arg-type]
        add(f"ours, {executor}", vector_stepper(envs), envs)
    if not isinstance(build(), AECEnv):
        for name, kind in agilerl_classes().items():
            add(name, *agilerl_stepper(kind, build))
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, take in contenders.items():
            results[name].append(take(seconds))
    for resource in (loops, *opened):
        resource.close()
    return results


def overhead_us(build: Callable[[], Any], rounds: int, seconds: float) -> float:
    """Return the overhead of a step of one env in the caller, in µs of CPU time."""
    bare = [stepper(build()) for _ in range(NUM_ENVS)]

    def step_bare(count: int) -> None:
        for _ in range(count):
            for step in bare:
                step(1)

    with mv.make_vec(build, NUM_ENVS, "serial", autoreset="same_step") as envs:
        ours = vector_stepper(envs)
        both = [[_cpu_us(steps, seconds / 10) for steps in (step_bare, ours)] for _ in range(10 * rounds)]
    bare_us, ours_us = (statistics.median(column) for column in zip(*both))
    return ours_us - bare_us


def _cpu_us(steps: Callable[[int], None], seconds: float) -> float:
    steps(1)
    taken, begun = 0, time.thread_time()
    while (spent := time.thread_time() - begun) < seconds:
        steps(10)
        taken += 10 * NUM_ENVS
    return spent / taken * 1e6


def show(name: str, results: dict[str, list[float]], overhead: float) -> None:
    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(results[one], results[other]))

    print(f"\n{name} ({NUM_ENVS} envs); overhead {overhead:.1f} µs a step of one env (serial, CPU time)")
    for contender, values in results.items():
        beside = f"   {ratio(contender, 'agilerl'):5.1f} × agilerl" if "agilerl" in results else ""
        of_limit = ratio(contender, "limit")
        print(f"  {contender:16s}{statistics.median(values):12,.0f} steps/s   {of_limit:5.2f} of the limit{beside}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    options = parser.parse_args()
    print(f"{usable_cores()} usable cores, Python {sys.version.split()[0]}")
    if not WITH_AGILERL:
        print("agilerl is not installed: its column is left out")
    for name in options.rows:
        try:
            build = ROWS[name]()
        except ImportError as error:
            print(f"\n{name}: left out ({error})")
            continue
        overhead = overhead_us(build, options.rounds, options.seconds)
        show(name, rates(build, options.rounds, options.seconds), overhead)


if __name__ == "__main__":
    main()
