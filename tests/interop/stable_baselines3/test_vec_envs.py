"""The drop-ins for Stable-Baselines3 equal the originals: the same values, types and warnings, call by call."""

from __future__ import annotations

import functools
import inspect
import multiprocessing.connection
import multiprocessing.context
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common import vec_env as their_module
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor

from multiverse.executors import machine
from multiverse.interop import stable_baselines3 as our_module
from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv
from tests.envs import NumericInfos, OptionTask, RichInfos, Walk
from tests.equality import assert_same
from tests.interop.stable_baselines3.envs import OldFashioned, TellsModules, any_space
from tests.interop.stable_baselines3.pairs import KINDS, OURS, assert_same_steps, both, random_actions
from tests.space_catalogue import catalogue

every_kind = pytest.mark.parametrize("kind", KINDS)

ARRAYS = ["box_float32", "box_uint8", "discrete_start", "multi_binary", "multi_discrete", "dict", "tuple"]
OBSERVED = [(kind, name) for kind in KINDS for name in ARRAYS] + [("subproc", "text"), ("subproc", "custom")]
ACTED = ["box_float32", "box_scalar", "box_uint8", "discrete_start", "discrete_large", "multi_binary", "multi_discrete"]


# -- steps and resets ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "observed"), OBSERVED)
def test_every_step_equals_the_original(kind: str, observed: str) -> None:
    with both(kind, [functools.partial(any_space, observed)] * 3) as (theirs, ours):
        assert assert_same_steps(theirs, ours, 90) > 30


@every_kind
@pytest.mark.parametrize("acted", ACTED)
def test_every_env_gets_the_action_that_the_original_gives_it(kind: str, acted: str) -> None:
    with both(kind, [functools.partial(any_space, "discrete", acted)] * 3) as (theirs, ours):
        assert_same_steps(theirs, ours, 20)  # the reward tells which action arrived, and of which type


@every_kind
def test_actions_are_passed_unchanged_whatever_the_space(kind: str) -> None:
    box = functools.partial(any_space, "discrete", "box_float32")
    batches: list[Any] = [
        np.random.default_rng(0).random((3, 2, 3)),  # float64 for a float32 space
        [np.full((2, 3), 0.5, np.float32)] * 3,
        np.zeros((3, 2, 3), np.float32),
        np.full((3, 2, 3), np.nan, np.float32),
        np.ones((3, 7), np.int8),  # not even the shape
    ]
    with both(kind, [box] * 3) as (theirs, ours):
        for venv in (theirs, ours):
            venv.seed(1)
            venv.reset()
        for batch in batches * 2:
            assert_same(ours.step(batch), theirs.step(batch))


@every_kind
@pytest.mark.parametrize("env", [functools.partial(RichInfos, 1), functools.partial(NumericInfos, 1), Walk])
def test_every_info_equals_the_original(kind: str, env: Any) -> None:
    with both(kind, [env] * 3) as (theirs, ours):
        assert assert_same_steps(theirs, ours, 60) > 20


def test_infos_of_differing_envs_equal_the_original() -> None:
    with both("subproc", [functools.partial(RichInfos, i) for i in range(3)]) as (theirs, ours):
        assert_same_steps(theirs, ours, 60)


@every_kind
def test_truncated_episodes_are_marked_in_their_info(kind: str) -> None:
    venv = OURS[kind]([Walk, Walk])
    venv.reset()
    seen = []
    for _ in range(15):
        _, _, dones, infos = venv.step(np.zeros(2, np.int64))
        assert all(("terminal_observation" in info) == done for info, done in zip(infos, dones))
        seen += [info["TimeLimit.truncated"] for info, done in zip(infos, dones) if done]
    assert seen == [False, False, True, True, False, False]
    venv.close()


@every_kind
def test_results_of_a_step_are_copies(kind: str) -> None:
    venv = OURS[kind]([functools.partial(RichInfos, 0)] * 2)
    venv.reset()
    observations, rewards, dones, infos = venv.step(np.zeros(2, np.int64))
    kept = (observations.copy(), rewards.copy(), dones.copy(), [dict(info) for info in infos])
    for info in infos:
        info["episode"] = {"r": 1.0}
        info["nested"]["int"] = -1
    later = venv.step(np.zeros(2, np.int64))[3]
    assert_same([observations, rewards, dones], list(kept[:3]))
    assert all("episode" not in info and info["nested"]["int"] != -1 for info in later)
    venv.close()


@every_kind
def test_step_in_two_halves_equals_one_step(kind: str) -> None:
    with both(kind, [Walk] * 3) as (theirs, ours):
        theirs.seed(2)
        ours.seed(2)
        assert_same(ours.reset(), theirs.reset())
        for actions in random_actions(theirs.action_space, 3, 12):
            theirs.step_async(actions)
            ours.step_async(actions)
            assert_same(ours.step_wait(), theirs.step_wait())


@every_kind
def test_seeds_and_options_are_used_once(kind: str) -> None:
    with both(kind, [OptionTask] * 3) as (theirs, ours):
        for venv in (theirs, ours):
            assert venv.seed(5) == [5, 6, 7]
            venv.set_options([{"task": 1.0}, {"task": 2.0}, {}])
        assert_same(ours.reset(), theirs.reset())
        for venv in (theirs, ours):
            venv.set_options({"offset": 10})
        assert_same(ours.reset(), theirs.reset())
        assert_same(ours.reset(), theirs.reset())
        assert_same(ours.reset(), np.array([[11.0], [12.0], [9.0]]))


@every_kind
def test_seeding_without_a_seed_gives_every_env_another(kind: str) -> None:
    venv = OURS[kind]([Walk] * 3)
    venv.seed()
    assert len({float(value) for value in venv.reset()[:, 0]}) == 3
    venv.close()


@every_kind
def test_env_whose_reset_has_no_options_argument_works(kind: str) -> None:
    with both(kind, [OldFashioned] * 2) as (theirs, ours):
        assert_same_steps(theirs, ours, 12)


# -- attributes, methods, pictures -----------------------------------------------------------------------------
@every_kind
def test_attributes_and_methods_are_those_of_the_selected_envs(kind: str) -> None:
    with both(kind, [lambda: TimeLimit(Walk(), 100)] * 3) as pair:
        for venv in pair:
            venv.reset()
            for index in range(3):
                assert venv.set_attr("marker", index, indices=index) is None
            assert venv.get_attr("marker") == [0, 1, 2]
            assert venv.get_attr("marker", indices=[-1, 0]) == [2, 0]
            assert venv.get_attr("marker", indices=iter([1, 1])) == [1, 1]
            assert venv.get_attr("marker", indices=[]) == []
            venv.set_attr("marker", 12, indices=[0, -1])
            assert venv.get_attr("marker") == [12, 1, 12]
            assert venv.env_method("add", 1, indices=[0, 2], b=3) == [4, 4]
            assert venv.has_attr("marker") and not venv.has_attr("no_such_thing")
            venv.set_attr("bonus", 5.0)  # on the outermost wrapper: the env itself is unchanged
            assert venv.get_attr("bonus") == [5.0] * 3
            assert (venv.step(np.zeros(3, np.int64))[1] < 5).all()
            with pytest.raises(IndexError):
                venv.get_attr("marker", indices=3)


@every_kind
def test_attribute_values_are_shared_as_in_the_original(kind: str) -> None:
    with both(kind, [Walk] * 3) as pair:
        for venv in pair:
            venv.set_attr("things", [])
            venv.env_method("__getattribute__", "things", indices=0)
            venv.env_method("get_wrapper_attr", "things")[0].append(1)
        theirs, ours = pair
        assert ours.get_attr("things") == theirs.get_attr("things")


@every_kind
def test_missing_attribute_is_an_attribute_error(kind: str) -> None:
    venv = OURS[kind]([Walk] * 2)
    with pytest.raises(AttributeError, match="no_such_thing"):
        venv.get_attr("no_such_thing")
    with pytest.raises(AttributeError, match="no_such_thing"):
        venv.env_method("no_such_thing")
    with pytest.raises(TypeError):
        venv.env_method("length")
    assert venv.get_attr("length") == [5, 5]
    venv.close()


@every_kind
def test_env_is_wrapped_is_answered_where_the_env_runs(kind: str) -> None:
    with both(kind, [Walk, lambda: Monitor(Walk()), lambda: TimeLimit(Monitor(Walk()), 9)]) as (theirs, ours):
        for wrapper in (Monitor, TimeLimit, gym.Wrapper, Walk):
            assert ours.env_is_wrapped(wrapper) == theirs.env_is_wrapped(wrapper)
        assert ours.env_is_wrapped(Monitor, indices=[2, 0]) == [True, False]


@every_kind
def test_images_are_tiled_and_wrong_render_modes_give_a_warning(kind: str) -> None:
    with both(kind, [functools.partial(Walk, render_mode="rgb_array")] * 3) as (theirs, ours):
        for venv in (theirs, ours):
            venv.reset()
            venv.step(np.zeros(3, np.int64))
            with pytest.warns(UserWarning, match="render mode"):
                assert venv.render(mode="blah") is None
        assert_same(list(ours.get_images()), list(theirs.get_images()))
        assert_same(ours.render(), theirs.render())
        assert_same(ours.render("rgb_array"), theirs.render("rgb_array"))
        assert (ours.render_mode, ours.metadata) == (theirs.render_mode, theirs.metadata)


@every_kind
def test_envs_without_a_render_mode_have_no_images(kind: str) -> None:
    with both(kind, [Walk] * 2) as pair:
        for venv in pair:
            with pytest.warns(UserWarning, match="assumes it is `rgb_array`"):
                assert list(venv.get_images()) == [None, None]


# -- making and closing ----------------------------------------------------------------------------------------
def test_signatures_and_base_classes_equal_the_original() -> None:
    for ours, theirs in ((SubprocVecEnv, their_module.SubprocVecEnv), (DummyVecEnv, their_module.DummyVecEnv)):
        assert issubclass(ours, their_module.VecEnv)
        for name, method in inspect.getmembers(theirs, inspect.isfunction):
            if not name.startswith("_") or name == "__init__":
                asked = [p.name for p in inspect.signature(method).parameters.values()]
                assert list(inspect.signature(getattr(ours, name)).parameters)[: len(asked)] == asked, name


@pytest.mark.parametrize("start_method", ["forkserver", "fork", "spawn", None])
def test_every_start_method_works(start_method: str | None) -> None:
    venv = SubprocVecEnv([Walk] * 2, start_method=start_method)
    assert venv.engine.plan.start_method == (start_method or "forkserver")
    venv.seed(1)
    assert venv.reset().shape == (2, 2)
    venv.close()


def test_unknown_start_method_is_refused_as_by_the_original() -> None:
    with pytest.raises(ValueError, match="cannot find context for 'illegal_method'"):
        SubprocVecEnv([Walk], start_method="illegal_method")


def test_envs_run_in_separate_processes() -> None:
    venv = SubprocVecEnv([Walk] * 3, workers=3)
    pids = venv.env_method("process_id")
    assert len({*pids}) == 3
    assert [process.pid for process in venv.processes] == pids
    venv.close()


def test_default_worker_count_leaves_one_core_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    venv = SubprocVecEnv([Walk] * 5)
    assert len({*venv.env_method("process_id")}) == venv.engine.plan.workers == 3
    assert "one of the 4 cores is the caller's" in str(venv.engine.plan)
    venv.close()


def test_workers_import_neither_stable_baselines3_nor_torch() -> None:
    venv = SubprocVecEnv([TellsModules] * 2, workers=2)
    assert venv.env_method("loaded") == [[], []]
    venv.close()


def test_same_env_instance_twice_is_refused() -> None:
    env = Walk()
    with pytest.raises(ValueError, match="returned the same instance"):
        DummyVecEnv([lambda: env] * 2)


@every_kind
def test_object_that_is_no_env_is_refused_as_by_the_original(kind: str) -> None:
    with pytest.raises(ValueError, match="not a Gymnasium environment"):
        OURS[kind]([dict])


def test_dummy_steps_the_envs_in_its_attribute() -> None:
    venv = DummyVecEnv([lambda: TimeLimit(Walk(), 50)] * 2)
    venv.reset()
    venv.step([0, 0])
    assert [env.unwrapped.steps for env in venv.envs] == [1, 1]
    venv.envs[0].unwrapped.bonus = 100.0
    assert venv.step([0, 0])[1][0] > 99
    assert venv.get_attr("unwrapped")[1] is venv.envs[1].unwrapped
    venv.close()


def test_dummy_refuses_nested_observations_as_the_original_does() -> None:
    with pytest.raises(NotImplementedError):
        DummyVecEnv([functools.partial(any_space, "nested")])


@every_kind
def test_step_before_the_first_reset_is_passed_to_the_env(kind: str) -> None:
    with both(kind, [functools.partial(NumericInfos, 1)] * 2) as (theirs, ours):
        assert_same(ours.step(np.zeros(2, np.int64)), theirs.step(np.zeros(2, np.int64)))


@every_kind
def test_second_close_does_nothing(kind: str) -> None:
    venv = OURS[kind]([Walk] * 2)
    venv.reset()
    venv.close()
    venv.close()


@every_kind
def test_make_vec_env_of_sb3_creates_the_drop_in(kind: str) -> None:
    cls = {"subproc": SubprocVecEnv, "dummy": DummyVecEnv}[kind]
    theirs = make_vec_env("Pendulum-v1", 2, seed=3, vec_env_cls=their_module.DummyVecEnv)
    ours = make_vec_env("Pendulum-v1", 2, seed=3, vec_env_cls=cls)
    assert isinstance(ours, cls)
    assert_same(ours.reset(), theirs.reset())
    for actions in random_actions(theirs.action_space, 2, 5):
        assert_same(ours.step(actions)[0], theirs.step(actions)[0])
    theirs.close()
    ours.close()


def test_workers_and_pipes_of_the_original_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a worker or a pipe of Stable-Baselines3's")

    monkeypatch.setattr(their_module.subproc_vec_env, "_worker", forbidden)
    for name in ("__init__", "step_async", "step_wait", "reset"):
        monkeypatch.setattr(their_module.SubprocVecEnv, name, forbidden)
        monkeypatch.setattr(their_module.DummyVecEnv, name, forbidden)
    monkeypatch.setattr(multiprocessing.context.BaseContext, "Pipe", forbidden)
    monkeypatch.setattr(multiprocessing.connection, "Pipe", forbidden)
    for venv in (SubprocVecEnv([Walk] * 3), DummyVecEnv([Walk] * 3)):
        venv.seed(0)
        venv.reset()
        for _ in range(12):
            venv.step(np.zeros(3, np.int64))
        venv.close()


def test_observation_space_is_that_of_one_env() -> None:
    venv = SubprocVecEnv([functools.partial(any_space, "dict", "box_float32")] * 2)
    assert venv.observation_space == catalogue()["dict"]
    assert isinstance(venv.action_space, spaces.Box)
    assert venv.num_envs == 2
    venv.close()


def test_missing_stable_baselines3_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "multiverse.interop.stable_baselines3.vec_envs", raising=False)
    monkeypatch.delattr("multiverse.interop.stable_baselines3.vec_envs", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "stable_baselines3"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if "-packages" not in place])
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'multiverse\[peers\]'"):
        _ = our_module.SubprocVecEnv
