"""A vector env is a `gymnasium.vector.VectorEnv`: with every attribute and method, wherever the envs run."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import multiverse as mv
from tests.envs import Walk, stand_still
from tests.equality import assert_same
from tests.vector.configurations import Configuration, gymnasiums_own
from tests.vector.conftest import Make
from tests.vector.runs import actions


def test_vector_env_has_the_class_and_spaces_of_gymnasium(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    reference = gymnasiums_own(Walk, config.num_envs)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert envs.num_envs == config.num_envs
    assert envs.unwrapped is envs
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(envs, name) == getattr(reference, name)
    assert envs.observation_space == batch_space(envs.single_observation_space, config.num_envs)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_metadata_has_the_autoreset_mode(autoreset: str) -> None:
    with mv.make_vec(Walk, 2, "serial", autoreset=autoreset) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode[autoreset.upper()]
        assert envs.metadata["render_modes"] == ["rgb_array"]
    assert "autoreset_mode" not in Walk.metadata


def test_env_id_gives_spec_and_kwargs(make: Make) -> None:
    envs = make("tests/Walk-v0", env_kwargs={"length": 9})
    assert envs.spec.id == "tests/Walk-v0"
    assert envs.get_attr("length") == (9,) * envs.num_envs
    assert "tests/Walk-v0" in repr(envs)


def test_int_seed_gives_env_i_that_seed_plus_i(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    found, _ = envs.reset(seed=40)
    assert envs.get_attr("last_seed") == tuple(range(40, 40 + config.num_envs))
    assert_same(found, gymnasiums_own(Walk, config.num_envs).reset(seed=40)[0])
    assert envs.np_random_seed == tuple(range(40, 40 + config.num_envs))


def test_list_of_seeds_gives_each_env_its_own(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    seeds: list[int | None] = [*range(100, 99 + config.num_envs), None]
    envs.reset(seed=seeds)
    assert envs.get_attr("last_seed") == tuple(seeds)


def test_numpy_integer_is_a_seed(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(seed=np.int64(3))
    assert envs.get_attr("last_seed") == tuple(range(3, 3 + config.num_envs))


def test_reset_without_seed_keeps_the_random_generators_of_the_envs(make: Make, config: Configuration) -> None:
    envs, reference = make(Walk), gymnasiums_own(Walk, config.num_envs)
    for each in (envs, reference):
        each.reset(seed=5)
    assert_same(envs.reset(), reference.reset())


def test_options_reach_every_env(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(options={"wind": 2})
    assert envs.get_attr("last_options") == ({"wind": 2},) * config.num_envs
    envs.reset()
    assert envs.get_attr("last_options") == (None,) * config.num_envs


def test_reset_mask_resets_only_its_envs_and_keeps_the_callers_dict(make: Make, config: Configuration) -> None:
    envs, reference = make(Walk), gymnasiums_own(Walk, config.num_envs)
    for each in (envs, reference):
        each.reset(seed=5)
        each.step(actions(range(config.num_envs), 0))
    mask = np.zeros(config.num_envs, np.bool_)
    mask[[1, config.num_envs - 1]] = True
    options = {"reset_mask": mask, "wind": 1}
    found = envs.reset(seed=30, options=options)
    assert options == {"reset_mask": mask, "wind": 1}
    assert_same(found, reference.reset(seed=30, options=dict(options)))
    assert envs.get_attr("resets") == tuple(1 + int(m) for m in mask)
    assert envs.get_attr("last_options") == tuple({"wind": 1} if m else None for m in mask)


@pytest.mark.parametrize("mask", [[True] * 4, np.ones(3, np.bool_), np.ones(4), np.zeros(4, np.bool_)])
def test_bad_reset_mask_is_refused_as_by_gymnasium(mask: Any) -> None:
    with mv.make_vec(Walk, 4, "serial") as envs:
        with pytest.raises((TypeError, ValueError)) as gymnasiums:
            gymnasiums_own(Walk, 4).reset(options={"reset_mask": mask})
        with pytest.raises(gymnasiums.type, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})


def test_frames_are_returned_in_env_order(make: Make, config: Configuration) -> None:
    envs = make(Walk, render_mode="rgb_array")
    assert envs.render_mode == "rgb_array"
    envs.reset(seed=1)
    envs.step(actions(range(config.num_envs), 0), env_ids=range(config.num_envs))
    envs.step(actions([1], 0), env_ids=[1])
    frames = envs.render()
    assert [int(f[0, 0, 0]) for f in frames] == [2 if i == 1 else 1 for i in range(config.num_envs)]
    assert_same(envs.render(env_ids=[2, 1]), (frames[2], frames[1]))
    assert frames[0].shape == (4, 6, 3)


def test_call_reaches_all_or_selected_envs(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    envs.reset(seed=1)
    envs.step(actions([2], 0), env_ids=[2])
    assert envs.call("add", 10, b=5) == tuple(16 if i == 2 else 15 for i in range(config.num_envs))
    assert envs.call("add", 1, env_ids=[3, 2, 0]) == (1, 2, 1)
    assert envs.call("length") == (5,) * config.num_envs


def test_attributes_are_set_for_all_each_or_selected_envs(make: Make, config: Configuration) -> None:
    envs = make("tests/Walk-v0")
    envs.set_attr("bonus", 100.0)
    assert envs.get_attr("bonus") == (100.0,) * config.num_envs
    each = [float(i) for i in range(config.num_envs)]
    envs.set_attr("bonus", each)
    assert envs.get_attr("bonus") == tuple(each)
    envs.set_attr("bonus", (-2.0, -1.0), env_ids=[2, 1])
    assert envs.get_attr("bonus", env_ids=[1, 2, 3]) == (-1.0, -2.0, 3.0)
    envs.reset(seed=0)
    with contextlib.closing(gymnasiums_own("tests/Walk-v0", config.num_envs)) as reference:
        reference.set_attr("bonus", [0.0, -1.0, -2.0, *each[3:]])
        reference.reset(seed=0)
        batch = actions(range(config.num_envs), 0)
        assert_same(envs.step(batch), reference.step(batch))


def test_replaced_step_method_is_used(make: Make) -> None:
    envs = make(Walk)
    envs.reset(seed=0)
    envs.set_attr("step", stand_still)
    observations, rewards, *_ = envs.step(np.zeros(envs.num_envs, np.int64))
    assert (observations == 9.0).all()
    assert (rewards == 8.0).all()


def test_envs_run_in_the_processes_of_the_plan(make: Make, config: Configuration) -> None:
    envs = make(Walk)
    pids = envs.call("process_id")
    for host, ids in enumerate(config.ranges):
        of_host = {pids[i] for i in ids}
        here = config.executor in ("serial", "thread") or (config.executor == "hybrid" and host == 0)
        assert len(of_host) == 1
        assert (of_host == {os.getpid()}) == here
    assert envs.plan.executor == config.executor
    assert envs.plan.workers == (config.workers or 0)
    assert envs.plan.start_method == config.start_method


def test_second_close_does_nothing(make: Make) -> None:
    envs = make(Walk)
    envs.reset(seed=0)
    envs.close()
    assert envs.closed
    envs.close()


def test_calls_after_close_raise_closed_error(make: Make) -> None:
    envs = make(Walk)
    envs.reset(seed=0)
    envs.close()
    batch = np.zeros(envs.num_envs, np.int64)
    calls = [
        lambda: envs.step(batch),
        lambda: envs.step(batch[:1], env_ids=[0]),
        lambda: envs.reset(),
        lambda: envs.send(batch),
        lambda: envs.receive(),
        lambda: envs.render(),
        lambda: envs.call("add", 1),
        lambda: envs.get_attr("bonus"),
        lambda: envs.set_attr("bonus", 1.0),
    ]
    for call in calls:
        with pytest.raises(mv.errors.ClosedError):
            call()


def test_leaving_the_with_block_closes(make: Make) -> None:
    with make(Walk) as envs:
        assert not envs.closed
    assert envs.closed


def test_list_of_factories_needs_no_num_envs(make: Make, config: Configuration) -> None:
    envs = make([lambda n=n: Walk(length=n) for n in range(1, config.num_envs + 1)])
    assert envs.get_attr("length") == tuple(range(1, config.num_envs + 1))


def test_kwargs_and_wrappers_can_differ_between_envs(make: Make, config: Configuration) -> None:
    n = config.num_envs
    wrap = gymnasium.wrappers.TimeLimit
    envs = make(
        Walk,
        env_kwargs=[{"length": 3 + i} for i in range(n)],
        wrappers=[[lambda env, i=i: wrap(env, 100 + i)] for i in range(n)],
    )
    assert envs.get_attr("length") == tuple(range(3, 3 + n))
    assert envs.get_attr("_max_episode_steps") == tuple(range(100, 100 + n))
