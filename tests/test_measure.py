"""Measuring counts env steps of any vector env, keeps its workers, and leaves nothing behind."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse import measure
from multiverse.adapters.env_source import recipes
from multiverse.executors import machine
from multiverse.executors.launch import fork_server
from tests.env_checker.broken_teams import Game, Team
from tests.envs import Walk
from tests.multi_agent.envs import Circle, Village

SECONDS = 0.02


class Counting(gym.Env):
    """Env that counts its own steps and resets; an episode takes 4 steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self) -> None:
        self.steps = self.resets = 0
        self.actions: set[int] = set()
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        self.seeds.append(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.actions.add(int(action))
        return np.zeros(1, np.float32), 0.0, self.steps % 4 == 0, False, {}


class Raises(Counting):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("this env cannot step")


class CountingTeam(Team):
    """Team env that counts its steps, and raises for actions that its mask closes."""

    steps = 0

    def step(self, actions: Any) -> Any:
        self.steps += 1
        return super().step(actions)


class CountingGame(Game):
    """Game that counts its turns."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += action is not None
        return super().step(action)


def counted_by_rate(monkeypatch: pytest.MonkeyPatch, autoreset: Any, env: Any = Counting) -> tuple[int, int]:
    """(the count of step_rate, the count of the envs), both with the warm-up."""
    counted = 0
    run_blocks = measure._run_blocks

    def spy(*arguments: Any) -> Any:
        nonlocal counted
        found = run_blocks(*arguments)
        counted += found[1]
        return found

    monkeypatch.setattr(measure, "_run_blocks", spy)
    envs = mv.make_vec(env, 3, "serial", autoreset=autoreset)
    measure.step_rate(envs, SECONDS)
    stepped = sum(envs.get_attr("steps"))
    envs.close()
    return counted, stepped


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_resets_are_not_counted_as_steps(monkeypatch: pytest.MonkeyPatch, autoreset: str) -> None:
    counted, stepped = counted_by_rate(monkeypatch, autoreset)
    assert 0 <= stepped - counted <= 3  # an episode that ends in the very last step: its reset was still to come


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_step_of_several_agents_counts_as_one_env_step(monkeypatch: pytest.MonkeyPatch, autoreset: str) -> None:
    counted, stepped = counted_by_rate(monkeypatch, autoreset, CountingTeam)
    assert 0 <= stepped - counted <= 3
    if autoreset == "same_step":
        counted, stepped = counted_by_rate(monkeypatch, autoreset, CountingGame)
        assert counted == stepped > 0


@pytest.mark.parametrize("env", [CountingTeam, CountingGame])
def test_bare_loops_measure_multi_agent_envs(env: Any) -> None:
    assert bare_rate(env) > 0


def test_step_rate_of_several_groups_is_measured() -> None:
    agents = {"agents": ("farmer_0", "guard_0", "guard_1", "farmer_1")}
    for env in (Village, Circle):
        envs = mv.make_vec(env, 3, "serial", env_kwargs=agents)
        assert measure.step_rate(envs, SECONDS) > 0
        envs.close()
    with (
        mv.make_vec(Village, 2, "serial") as envs,
        pytest.raises(mv.errors.InvalidRequest, match="the action space of bard"),
    ):
        measure.step_rate(envs, SECONDS)


def test_step_rate_accepts_any_vector_env() -> None:
    makers: list[Any] = [
        lambda: mv.make_vec(Walk, 3, "hybrid"),
        lambda: gym.vector.SyncVectorEnv([Walk] * 3),
        lambda: gym.vector.AsyncVectorEnv([Walk] * 3),
    ]
    for make in makers:
        envs = make()
        assert measure.step_rate(envs, SECONDS) > 0
        envs.close()


def test_actions_are_random_unless_given() -> None:
    envs = mv.make_vec(Counting, 2, "serial")
    measure.step_rate(envs, SECONDS)
    assert envs.get_attr("actions")[0] == {0, 1, 2, 3, 4}
    envs.close()
    envs = mv.make_vec(Counting, 2, "serial")
    measure.step_rate(envs, SECONDS, actions=[np.array([3, 1])])
    assert envs.get_attr("actions") == ({3}, {1})
    envs.close()


def test_sampled_actions_repeat_for_a_seed() -> None:
    space = spaces.Discrete(1000)
    assert measure.sample_actions(space) == measure.sample_actions(space) != measure.sample_actions(space, seed=1)
    assert len(measure.sample_actions(space, 7)) == 7


def test_step_rate_without_autoreset_or_time_is_refused() -> None:
    envs = mv.make_vec(Counting, 2, "serial", autoreset="disabled")
    with pytest.raises(mv.errors.InvalidRequest, match="autoreset"):
        measure.step_rate(envs, SECONDS)
    envs.close()
    envs = mv.make_vec(Counting, 2, "serial")
    with pytest.raises(mv.errors.InvalidRequest, match="seconds"):
        measure.step_rate(envs, 0.0)
    envs.close()


# -- bare loops ------------------------------------------------------------------------------------------------
def recipe_of(env: Any) -> Any:
    return recipes(env, 1, None, None)[0]


def bare_rate(env: Any) -> float:
    with measure.BareLoops(recipe_of(env), cores=1) as loops:
        return loops.bare_rate(SECONDS)


def test_bare_loops_keep_their_workers_between_measurements() -> None:
    before = measure.descendants()
    with measure.BareLoops(recipe_of(Walk), 2) as loops:
        running = measure.descendants()
        assert loops.bare_rate(SECONDS) > 0
        assert loops.machine_limit(SECONDS) > 0
        assert measure.descendants() == running
        assert len(running - before) >= 2
    assert measure.descendants() - before <= fork_server_pids()


def fork_server_pids() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "fork_server" in " ".join(child.cmdline())}


def test_bare_loops_measure_an_env_id() -> None:
    assert bare_rate("CartPole-v1") > 0
    with measure.BareLoops(recipe_of("CartPole-v1"), cores=1) as loops:
        assert loops.machine_limit(SECONDS) > 0


@pytest.mark.parametrize("seeded", [False, True])
def test_bare_loop_steps_the_env_directly(seeded: bool) -> None:
    """No code of ours is between the loop and the env, not even an adapter."""

    class NoAdapter:
        def __init__(self) -> None:
            self.env = Counting()

        @property
        def description(self) -> Any:
            group = type("Group", (), {"action_space": self.env.action_space})
            return type("Description", (), {"groups": (group,), "kind": "single"})

        def call(self, name: str, args: Any, kwargs: Any) -> Any:
            return getattr(self.env, name)(*args, **kwargs)

    adapter = NoAdapter()
    rate, _ = measure.bare_loop(type("Range", (), {"envs": [adapter]}), SECONDS, seeded)  # type: ignore[arg-type]
    assert rate > 0
    assert adapter.env.resets == 1 + adapter.env.steps // 4
    assert adapter.env.seeds[:3] == ([0, 1, 2] if seeded else [0, None, None])


class Remembers(Counting):
    """Env of one endless episode that remembers its seeds and actions."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    def step(self, action: Any) -> Any:
        self.taken.append(int(action))
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


def test_bare_loops_have_the_seeds_and_actions_of_a_vector_env() -> None:
    def reported(envs: Any) -> list[Any]:
        return [(env.call("seeds", (), {})[:1], env.call("taken", (), {})[:64]) for env in envs.envs]

    with measure.BareLoops(recipe_of(Remembers), 2, num_envs=3) as loops:
        assert loops.cores == 2 and loops.machine_limit(SECONDS) > 0
        found = loops._executor.run(reported, dict.fromkeys(loops._executor.hosts, ()))
        envs = mv.make_vec(Remembers, 3, "serial")
        assert measure.step_rate(envs, SECONDS) > 0
        ours = zip(envs.get_attr("seeds"), envs.get_attr("taken"))
        assert [one for some in found.values() for one in some] == [(seeds[:1], taken[:64]) for seeds, taken in ours]
        envs.close()
    with measure.BareLoops(recipe_of(Remembers), 2, num_envs=1) as loops:
        assert loops.cores == 1
    with pytest.raises(mv.errors.InvalidRequest, match="num_envs=2: loops over several envs"):
        measure.BareLoops(recipe_of(CountingTeam), num_envs=2)


def test_env_that_raises_is_reported() -> None:
    with pytest.raises(mv.errors.EnvFailed, match="this env cannot step"):
        bare_rate(Raises)


@pytest.mark.skipif(machine.waited_for_core_s() is None, reason="waiting is not counted here")
def test_loops_that_share_a_core_wait_for_it() -> None:
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})  # the workers of a fresh fork server inherit it
        fork_server.stop_fork_server()
        with measure.BareLoops(recipe_of("CartPole-v1"), 3) as loops:
            loops.machine_limit(0.2)
            assert loops.waited_share is not None and loops.waited_share > 0.3
    finally:
        os.sched_setaffinity(0, cores)
        fork_server.stop_fork_server()


# -- memory ----------------------------------------------------------------------------------------------------
def test_private_memory_is_part_of_the_resident_memory() -> None:
    resident_mb = psutil.Process().memory_info().rss / 1e6
    assert 0 < measure.private_memory_mb(os.getpid()) < 2 * resident_mb
