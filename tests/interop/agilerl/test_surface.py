"""Attributes of the drop-in, what its envs share, and its independence of AgileRL except for base classes."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from multiverse.executors import machine
from multiverse.interop.agilerl import AsyncPettingZooVecEnv, AsyncState, Observations
from tests.equality import assert_same
from tests.interop.agilerl import peer
from tests.interop.agilerl.conftest import Make
from tests.interop.agilerl.envs import SEEN, Forgetful, Loaded, Told, Troupe
from tests.interop.agilerl.model import Model
from tests.interop.agilerl.test_states import ACTIONS
from tests.multi_agent.envs import Village

beside_the_original = pytest.mark.skipif(not peer.with_agilerl, reason="agilerl is not installed")
AGENTS = ["actor_0", "zoe", "actor_1"]


# -- what it shows -----------------------------------------------------------------------------------------------
def test_agents_and_spaces_are_those_of_the_envs(make: Make) -> None:
    envs = make(*[functools.partial(Troupe, "dict", "levers")] * 3)
    assert envs.agents == envs.possible_agents == AGENTS
    assert (envs.num_envs, envs.num_agents, envs.closed) == (3, 3, False)
    assert (envs.render_mode, envs.metadata) == ("rgb_array", Troupe.metadata)
    assert envs.unwrapped is envs
    assert isinstance(envs.single_observation_space("zoe"), Told)
    assert envs.single_observation_space("actor_1") == SEEN["dict"]
    assert envs.observation_space("actor_1") == batch_space(SEEN["dict"], 3)
    assert envs.action_space("zoe") == batch_space(envs.single_action_space("zoe"), 3)
    with pytest.raises(KeyError):
        envs.action_space("unlisted")


def test_calls_and_attributes_reach_every_env(make: Make) -> None:
    envs = make(Troupe, functools.partial(Troupe, length=9))
    envs.reset()
    assert envs.call("add", 1, b=2) == (3, 3)
    assert envs.get_attr("length") == (7, 9)
    envs.set_attr("length", [1, 2])
    envs.set_attr(name="seen", values="image")
    assert envs.get_attr("length") == (1, 2)
    assert envs.get_attr("seen") == ("image", "image")
    assert [frame.shape for frame in envs.render()] == [(2, 3, 3)] * 2
    envs.set_attr("whatever", (5, None))  # also attributes that did not exist
    assert envs.get_attr("whatever") == (5, None)


def test_attributes_are_those_of_the_outermost_wrapper(make: Make) -> None:
    from pettingzoo.utils.wrappers import BaseParallelWrapper

    envs = make(lambda: BaseParallelWrapper(Troupe()))
    envs.set_attr("length", 3)
    assert envs.call("max_num_agents") == (3,)
    assert envs.get_attr("env")[0].length == 7


def test_observations_are_copies_unless_copy_is_off(make: Make) -> None:
    kept, live = make(Troupe, Troupe), make(Troupe, Troupe, copy=False)
    model = Model([Troupe, Troupe])
    first = model.reset(seed=1)[0]
    mine, view = kept.reset(seed=1)[0], live.reset(seed=1)[0]
    assert_same(mine, first)
    assert isinstance(view, Observations) and isinstance(view, Mapping) and not isinstance(view, dict)
    assert view is live.observations is live.get_observations()
    assert list(view) == AGENTS and len(view) == 3 and "zoe" in view and view.get("unlisted") is None
    assert_same(dict(view), first)
    second = model.step(ACTIONS)[0]
    assert_same(kept.step(ACTIONS)[0], second)
    assert live.step(ACTIONS)[0] is view
    assert_same(mine, first)
    assert_same(dict(view), second)
    assert_same(kept.get_observations(), second)
    assert "actor_1" in str(view)
    view["zoe"][...] = 7  # a copy, as the original's is
    assert_same(dict(view), second)


def test_batches_are_separate_contiguous_arrays(make: Make) -> None:
    envs = make(*[functools.partial(Troupe, "dict")] * 3)
    observations, rewards, terminated, truncated, _ = (envs.reset(), envs.step({a: np.zeros(3, int) for a in AGENTS}))[
        1
    ]
    leaves = [*observations["actor_0"].values(), *observations["actor_1"].values(), observations["zoe"]]
    for column in (rewards, terminated, truncated):
        leaves += column.values()
    assert all(leaf.flags.c_contiguous and leaf.flags.owndata and leaf.flags.writeable for leaf in leaves)


def test_values_that_no_array_can_hold_are_tuples(make: Make) -> None:
    """The original refuses such spaces."""
    envs = make(functools.partial(Village, restless=0.0), functools.partial(Village, restless=0.0))
    observations, _ = envs.reset(seed=3)
    words, (bits, choices) = observations["bard"]
    assert isinstance(words, tuple) and len(words) == 2
    assert bits.shape == choices.shape == (2, 2)
    chosen = [{a: envs.single_action_space(a).sample() for a in there} for there in envs.get_attr("agents")]
    envs.step_async(chosen)
    rewards = envs.step_wait()[1]
    for i, there in enumerate(chosen):
        assert {agent for agent in envs.agents if not np.isnan(rewards[agent][i])} == set(there)


def test_nested_actions_are_supported(make: Make) -> None:
    envs = make(Pushy, Pushy)
    envs.reset()
    batch = batch_space(Pushy.actions, 2)
    batch.seed(0)
    chosen = batch.sample()
    assert envs.step({"one": chosen})[1]["one"].tolist() == [float(x) for x in chosen["push"][:, 0]]


def test_scalar_box_actions_keep_their_fraction(make: Make) -> None:
    """The original converts it to an int, as it does with every number."""
    envs = make(Throttle, Throttle)
    envs.reset()
    for batch in (np.array([0.25, 0.5], np.float32), np.array([0.25, 0.5]), [0.25, 0.5]):
        assert envs.step({"one": batch})[1]["one"].tolist() == [0.25, 0.5]


def test_engine_has_episode_statistics(make: Make) -> None:
    envs = make(functools.partial(Troupe, length=3), functools.partial(Troupe, length=99))
    envs.reset()
    rewards = [envs.step(ACTIONS)[1]["zoe"] for _ in range(2)]
    assert envs.engine.agents == ("actor_0", "actor_1", "zoe")
    assert envs.engine.episode_lengths["zoe"].tolist() == [2, 2]
    assert_same(envs.engine.episode_returns["zoe"], rewards[0] + rewards[1])
    envs.step(ACTIONS)
    envs.step(ACTIONS)
    assert envs.engine.episode_counts.tolist() == [1, 0]
    assert envs.engine.episode_lengths["zoe"].tolist() == [1, 4]
    assert all(there.all() for there in envs.engine.alive.values())
    assert envs.engine.failures.steps_used == 8


class Throttle(Troupe):
    """Env of one agent whose action is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["one"]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (), np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        results = super().step(actions)
        return results[0], {"one": float(actions["one"])}, *results[2:]


class Pushy(Troupe):
    """Env of one agent whose action is a dict."""

    actions = spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float64), button=spaces.Discrete(2))

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["one"]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.actions

    def step(self, actions: dict[str, Any]) -> Any:
        results = super().step(actions)
        return results[0], {"one": float(actions["one"]["push"][0])}, *results[2:]


# -- what envs share: nothing ------------------------------------------------------------------------------------
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_one_env_instance_given_many_times_becomes_many_envs(make: Make, context: str) -> None:
    env = Troupe()
    envs = make(*[lambda: env] * 4, context=context, workers=1)
    assert_same(envs.reset(seed=3), Model([Troupe] * 4).reset(seed=3))
    envs.step({agent: np.zeros(4, int) for agent in AGENTS})
    assert envs.get_attr("resets") == (1,) * 4
    assert env.resets == 0


def test_functions_that_cannot_be_copied_have_one_process_each(make: Make) -> None:
    env, lock = Troupe(), threading.Lock()

    def locked() -> Troupe:
        with lock:
            return env

    envs = make(*[locked] * 3, context="fork", workers=1)
    assert_same(envs.reset(seed=3), Model([Troupe] * 3).reset(seed=3))
    assert len({process.pid for process in envs.processes}) == 3


def test_arguments_and_values_are_copied_for_each_env(make: Make) -> None:
    envs = make(Forgetful, Forgetful, Forgetful, workers=1)
    assert envs.call("scribble", {}) == (1, 1, 1)
    envs.set_attr("notes", {})
    assert envs.call("scribble") == (1, 1, 1)
    envs.reset(options={})
    assert envs.call("scribble") == (1, 1, 1)


def test_workers_argument_sets_the_number_of_processes(make: Make) -> None:
    envs = make(*[Troupe] * 5, workers=5)
    assert len({process.pid for process in envs.processes}) == 5
    assert len({process.pid for process in make(*[Troupe] * 5, workers=2).processes}) == 2
    assert envs.engine.plan.waiting == "park"


def test_default_worker_count_leaves_one_core_to_the_caller(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    assert len({process.pid for process in make(*[Troupe] * 5).processes}) == 3


# -- what it takes from AgileRL ----------------------------------------------------------------------------------
def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("this is the original's machinery")


def test_multiprocessing_primitives_are_not_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.context.ForkContext, "Process", refuse)
    for name in ("Pipe", "Queue", "SimpleQueue", "Array", "RawArray", "Value", "Lock"):
        monkeypatch.setattr(multiprocessing.context.BaseContext, name, refuse)
    monkeypatch.setattr(multiprocessing.connection, "Pipe", refuse)
    if peer.with_agilerl:
        for name, thing in vars(peer.module).items():
            if inspect.isfunction(thing) and thing.__module__ == peer.module.__name__:
                monkeypatch.setattr(peer.module, name, refuse)
        for kind in (peer.module.AsyncPettingZooVecEnv, peer.module.PettingZooVecEnv, peer.module.Observations):
            for name, thing in vars(kind).items():
                if inspect.isfunction(thing):
                    monkeypatch.setattr(kind, name, refuse)
    envs, model = make(Troupe, Troupe), Model([Troupe, Troupe])
    assert_same(envs.reset(seed=3), model.reset(seed=3))
    for _ in range(10):
        assert_same(envs.step(ACTIONS), model.step(ACTIONS))
    assert envs.call("add", 1) == (4, 4)
    assert dict(envs.observations).keys() == set(AGENTS)
    envs.close()


@beside_the_original
def test_drop_in_is_an_instance_of_agilerls_classes(make: Make) -> None:
    envs = make(Troupe, copy=False)
    assert isinstance(envs, peer.module.PettingZooVecEnv)
    assert isinstance(envs.observations, peer.module.Observations)
    assert AsyncState is peer.module.AsyncState


NOT_THERE = {"error_queue"}
"""Internal attributes of the original."""


@beside_the_original
def test_public_names_and_signatures_equal_the_original(make: Make) -> None:
    theirs, ours = peer.module.AsyncPettingZooVecEnv([Troupe]), make(Troupe)
    for name in {*dir(theirs), *vars(theirs)} - NOT_THERE:
        if name.startswith("_"):
            continue
        original, found = getattr(theirs, name), getattr(ours, name)
        if inspect.ismethod(original) and not name.endswith("_space"):  # those are our own methods, called directly
            assert _parameters(found) == _parameters(original), name
        elif not callable(original) and name not in ("observations", "parent_pipes", "processes", "unwrapped"):
            assert found == original, name
    theirs.close()
    own = list(inspect.signature(AsyncPettingZooVecEnv).parameters.values())
    given = list(inspect.signature(peer.module.AsyncPettingZooVecEnv).parameters.values())
    assert [(p.name, p.kind, p.default) for p in own[:3]] == [(p.name, p.kind, p.default) for p in given]
    assert all(p.kind is p.KEYWORD_ONLY for p in own[3:])


def _parameters(method: Any) -> list[Any]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]


@pytest.mark.skipif(peer.with_agilerl, reason="agilerl is installed, and brings torch")
def test_import_without_agilerl_does_not_load_torch() -> None:
    code = "import sys, multiverse.interop.agilerl; print('torch' in sys.modules, 'pettingzoo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_agilerl_that_cannot_be_imported_is_reported_and_not_needed(tmp_path: Path) -> None:
    (tmp_path / "agilerl").mkdir()
    (tmp_path / "agilerl" / "__init__.py").write_text("import something_it_needs")
    code = "import multiverse.interop.agilerl as ours; print(ours.AsyncState.WAITING_STEP.value)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout.split() == ["step"]
    assert "agilerl cannot be imported (No module named 'something_it_needs')" in done.stderr


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_import_neither_torch_nor_agilerl(make: Make, context: str) -> None:
    envs = make(Loaded, context=context)
    assert envs.call("loaded") == ([],)
