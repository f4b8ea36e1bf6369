"""Our `AsyncVectorEnv` and `SyncVectorEnv` against Gymnasium's: equal seeds and actions give exactly equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import ClipReward, DictInfoToList, FlattenObservation, RecordEpisodeStatistics

from multiverse.interop.gymnasium import AsyncVectorEnv, SyncVectorEnv
from tests.envs import AnySpace, NumericInfos, RichInfos, Walk, stand_still
from tests.equality import assert_same
from tests.space_catalogue import SPACES, catalogue
from tests.vector.runs import assert_same_run

THEIRS = {AsyncVectorEnv: gymnasium.vector.AsyncVectorEnv, SyncVectorEnv: gymnasium.vector.SyncVectorEnv}
BOTH = pytest.mark.parametrize("kind", [AsyncVectorEnv, SyncVectorEnv], ids=["async", "sync"])
EVERY_MODE = pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)

Pair = Callable[..., tuple[Any, Any]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Ours and theirs, with the same functions and arguments."""
    opened: list[Any] = []

    def make(kind: Any, env_fns: list[Any], reference: Any = None, **options: Any) -> tuple[Any, Any]:
        opened.append(kind(env_fns, **options))
        opened.append((reference or THEIRS[kind])(env_fns, **options))
        return opened[-2], opened[-1]

    yield make
    for envs in opened:
        envs.close()


def with_space(name: str) -> Any:
    return AnySpace(catalogue()[name], catalogue()[name])


@EVERY_MODE
@BOTH
def test_episodes_of_different_lengths_equal_the_original_in_every_mode(
    pair: Pair, kind: Any, mode: AutoresetMode
) -> None:
    envs, reference = pair(kind, [partial(Walk, length=n) for n in range(1, 6)], autoreset_mode=mode)
    assert_same_run(envs, reference, steps=20)
    assert envs.metadata == reference.metadata


@EVERY_MODE
@BOTH
def test_infos_of_every_kind_are_merged_equally(pair: Pair, kind: Any, mode: AutoresetMode) -> None:
    envs, reference = pair(kind, [partial(RichInfos, index=i) for i in range(4)], autoreset_mode=mode)
    assert_same_run(envs, reference, steps=14)


@BOTH
def test_numeric_infos_equal_the_original(pair: Pair, kind: Any) -> None:
    envs, reference = pair(kind, [partial(NumericInfos, index=i) for i in range(3)], autoreset_mode="SameStep")
    assert_same_run(envs, reference, steps=14)


@BOTH
@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Blackjack-v1"])
def test_final_observation_of_a_discrete_env_is_the_returned_int(pair: Pair, kind: Any, env_id: str) -> None:
    env_fns = [partial(gymnasium.make, env_id, max_episode_steps=4 + i) for i in range(2)]
    envs, theirs = pair(kind, env_fns, autoreset_mode="SameStep")
    assert_same_run(envs, theirs, steps=8)


@pytest.mark.parametrize("name", SPACES)
@BOTH
def test_every_space_as_observation_and_action_equals_the_original(pair: Pair, kind: Any, name: str) -> None:
    options = {"shared_memory": False} if kind is AsyncVectorEnv else {}
    env_fns = [partial(with_space, name)] * 3
    reference = partial(gymnasium.vector.SyncVectorEnv, env_fns)
    envs, theirs = pair(
        partial(kind, **options), env_fns, lambda _, **kwargs: reference(**kwargs), autoreset_mode="SameStep"
    )
    assert_same_run(envs, theirs, steps=8)
    assert (envs.observation_space, envs.action_space) == (theirs.observation_space, theirs.action_space)


@pytest.mark.parametrize("name", ["nested", "dict", "box_float16"])
def test_shared_memory_option_makes_no_difference(pair: Pair, name: str) -> None:
    envs, reference = pair(AsyncVectorEnv, [partial(with_space, name)] * 2, shared_memory=True)
    assert_same_run(envs, reference, steps=8)


BOX = spaces.Box(-1, 1, (2,), np.float32)
PAIR = spaces.Dict({"a": spaces.Discrete(3), "b": BOX})
ODD_BATCHES = {
    "float64 for float32": (BOX, np.array([[0.1, 0.2], [0.3, 0.4], [1 / 3, 1e-9]])),
    "not a number": (BOX, np.array([[0.1, np.nan], [np.inf, 0.4], [0, 0]], np.float32)),
    "a list of arrays": (BOX, [np.array([0.1, 0.2]), np.zeros(2, np.float32), np.array([1, 2])]),
    "arrays of another shape": (BOX, np.arange(9.0).reshape(3, 3)),
    "int32 for int64": (spaces.Discrete(5), np.array([0, 1, 4], np.int32)),
    "out of range": (spaces.Discrete(5), np.array([0, -7, 99])),
    "a list": (spaces.Discrete(5), [0, 1, 4]),
    "a tuple of scalars": (spaces.Discrete(5), (np.int8(0), 1, np.int64(4))),
    "a row for a scalar": (spaces.Discrete(5), np.array([[0], [1], [4]])),
    "a dict, one part odd": (PAIR, {"a": np.array([0, 1, 2]), "b": np.arange(6.0).reshape(3, 2)}),
}


@pytest.mark.parametrize("name", ODD_BATCHES)
@BOTH
def test_actions_are_passed_unchanged(pair: Pair, kind: Any, name: str) -> None:
    space, batch = ODD_BATCHES[name]
    envs, reference = pair(kind, [partial(AnySpace, BOX, space, length=n) for n in (1, 2, 5)])
    reference.action_space.seed(0)
    assert_same(envs.reset(seed=1), reference.reset(seed=1))
    for k in range(6):  # every other batch is an ordinary one; envs are reset in between, on steps of both kinds
        actions = batch if k % 2 == 0 else reference.action_space.sample()
        assert_same(envs.step(actions), reference.step(actions), f"step {k}")


@BOTH
def test_actions_of_a_step_that_never_started_are_not_used(pair: Pair, kind: Any) -> None:
    envs, reference = pair(kind, [partial(AnySpace, BOX, spaces.Discrete(5), length=9)] * 2)
    assert_same(envs.reset(seed=1), reference.reset(seed=1))
    envs.engine._actions.write_all([3, 4])  # as if Ctrl-C had come before the step was asked for
    envs.get_attr("length")
    for actions in (np.array([0, 1]), np.array([2, 2])):
        assert_same(envs.step(actions), reference.step(actions))


@BOTH
def test_wrong_number_of_actions_is_an_error_and_changes_nothing(pair: Pair, kind: Any) -> None:
    envs, _ = pair(kind, [Walk] * 3, gymnasium.vector.SyncVectorEnv)
    expected = gymnasium.vector.SyncVectorEnv([Walk] * 3)
    assert_same(envs.reset(seed=5), expected.reset(seed=5))
    for actions in (np.zeros(2, int), np.zeros(4, int), [1]):
        with pytest.raises(ValueError):
            envs.step(actions)
    with pytest.raises(TypeError):
        envs.step(0)
    assert_same(envs.step(np.zeros(3, int)), expected.step(np.zeros(3, int)))


@BOTH
def test_seeds_count_upwards_or_are_given_for_each_env(pair: Pair, kind: Any) -> None:
    envs, reference = pair(kind, [Walk] * 3)
    for seed in (42, [7, None, 9], None):
        assert_same(envs.reset(seed=seed)[1], reference.reset(seed=seed)[1])
        assert envs.get_attr("last_seed") == reference.get_attr("last_seed")
    for each in (envs, reference):
        each.reset(seed=42)
        assert each.np_random_seed == (42, 43, 44)
    assert [one.random() for one in envs.np_random] == [one.random() for one in reference.np_random]
    with pytest.raises(ValueError, match="length must match num_envs=3 but got length=2"):
        envs.reset(seed=[1, 2])


@BOTH
def test_reset_mask_resets_some_envs_and_returns_all(pair: Pair, kind: Any) -> None:
    envs, reference = pair(kind, [Walk] * 3, autoreset_mode="Disabled")
    options = {"reset_mask": np.array([True, False, True]), "further": 1}
    for each in (envs, reference):
        each.reset(seed=0)
        each.step(np.zeros(3, int))
    assert_same(
        envs.reset(seed=[5, 6, 7], options=dict(options)), reference.reset(seed=[5, 6, 7], options=dict(options))
    )
    assert envs.get_attr("last_options") == reference.get_attr("last_options")
    assert_same(envs.step(np.ones(3, int)), reference.step(np.ones(3, int)))


@pytest.mark.parametrize(
    "mask", [[True, True, True], np.array([True]), np.array([1, 1, 0]), np.zeros(3, bool)], ids=str
)
@BOTH
def test_bad_reset_mask_is_refused_in_the_same_words(pair: Pair, kind: Any, mask: Any) -> None:
    envs, reference = pair(kind, [Walk] * 3)
    with pytest.raises((TypeError, ValueError)) as expected:
        reference.reset(options={"reset_mask": mask})
    with pytest.raises(expected.type) as found:
        envs.reset(options={"reset_mask": mask})
    assert str(found.value) == str(expected.value)


@BOTH
def test_calls_attributes_and_frames_equal_the_original(pair: Pair, kind: Any) -> None:
    envs, reference = pair(kind, [partial(Walk, render_mode="rgb_array")] * 3)
    for each in (envs, reference):
        each.reset(seed=1)
        each.set_attr("bonus", [1.0, 2.0, 3.0])
        each.set_attr("length", 9)
    assert_same(envs.get_attr("bonus"), (1.0, 2.0, 3.0))
    assert_same(envs.get_attr("length"), reference.get_attr("length"))
    assert_same(envs.call("add", 1, b=2), reference.call("add", 1, b=2))
    assert_same(envs.step(np.zeros(3, int)), reference.step(np.zeros(3, int)))
    assert_same(envs.render(), reference.render())
    assert envs.render_mode == reference.render_mode == "rgb_array"
    with pytest.raises(ValueError) as expected:
        reference.set_attr("bonus", [1.0])
    with pytest.raises(ValueError) as found:
        envs.set_attr("bonus", [1.0])
    assert str(found.value) == str(expected.value)


@BOTH
def test_replaced_step_method_is_used(pair: Pair, kind: Any) -> None:
    envs, reference = pair(kind, [Walk] * 2)
    for each in (envs, reference):
        each.reset(seed=1)
        each.set_attr("step", stand_still)
    for actions in (np.zeros(2, np.int64), np.zeros(2), np.ones(2, np.int64)):
        assert_same(envs.step(actions), reference.step(actions))
    envs.set_attr("step", Eager())
    assert_same(envs.step(np.array([1.5, 2.5]))[1], np.array([1.5, 2.5]))


class Eager:
    """A step method that reports the action that it received."""

    def __call__(self, action: Any) -> Any:
        return np.zeros(2), action, False, False, {}


@BOTH
def test_attributes_and_repr_equal_the_original(pair: Pair, kind: Any) -> None:
    envs, reference = pair(kind, [lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode="SameStep")
    results = ["num_envs", "spec", "closed", "copy", "observation_mode", "autoreset_mode", "render_mode", "metadata"]
    if kind is AsyncVectorEnv:
        results += ["shared_memory", "context", "daemon", "worker", "max_concurrency", "_state"]
    for name in [*results, "single_observation_space", "single_action_space", "observation_space", "action_space"]:
        assert getattr(envs, name) == getattr(reference, name), name
    assert repr(envs) == repr(reference)
    assert envs.unwrapped is envs
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert "autoreset_mode" not in gymnasium.make("CartPole-v1").metadata


@BOTH
def test_returned_arrays_are_copies_unless_copy_is_off(pair: Pair, kind: Any) -> None:
    envs, views = pair(kind, [Walk] * 2, partial(kind, copy=False))
    kept, _ = envs.reset(seed=0)
    before = kept.copy()
    envs.step(np.zeros(2, int))
    assert_same(kept, before)
    view, _ = views.reset(seed=0)
    stepped = views.step(np.zeros(2, int))[0]
    assert np.shares_memory(view, stepped)
    assert_same(view, stepped)


@BOTH
def test_gymnasiums_vector_wrappers_give_equal_results(pair: Pair, kind: Any) -> None:
    def wrapped(envs: Any) -> Any:
        return DictInfoToList(FlattenObservation(ClipReward(RecordEpisodeStatistics(envs), max_reward=1.5)))

    def without_times(result: Any) -> Any:
        *rest, infos = result
        for info in infos:
            info.get("episode", {}).pop("t", None)
        return (*rest, infos)

    envs, reference = map(wrapped, pair(kind, [partial(Walk, length=n) for n in (2, 3)]))
    assert_same(envs.reset(seed=3), reference.reset(seed=3))
    for k in range(8):
        batch = np.array([k % 3, 1])
        assert_same(without_times(envs.step(batch)), without_times(reference.step(batch)), f"step {k}")


# -- spaces that differ ----------------------------------------------------------------------------------------
def boxes(*highs: float, shape: tuple[int, ...] = (5,)) -> list[spaces.Box]:
    return [spaces.Box(0, high, shape) for high in highs]


def over(*each: spaces.Space[Any]) -> list[Any]:
    return [partial(AnySpace, space, spaces.Discrete(2)) for space in each]


CUSTOM = (spaces.Box(0, np.repeat(np.arange(1, 4), 5).reshape(3, 5), (3, 5)), spaces.Box(0, 1, (5,)))


@pytest.mark.parametrize("mode", ["different", CUSTOM], ids=["different", "custom"])
@BOTH
def test_envs_with_different_bounds_share_a_batch(pair: Pair, kind: Any, mode: Any) -> None:
    envs, reference = pair(kind, over(*boxes(1, 2, 3)), observation_mode=mode)
    assert envs.observation_space == reference.observation_space
    assert envs.single_observation_space == reference.single_observation_space
    assert_same_run(envs, reference, steps=6)


@pytest.mark.parametrize("mode", ["same", "different", CUSTOM], ids=["same", "different", "custom"])
@BOTH
def test_envs_with_incompatible_spaces_are_refused_and_closed(kind: Any, mode: Any, tmp_path: Any) -> None:
    misfit = over(spaces.Box(0, 1, (5,)), spaces.Box(0, 1, (4,)), spaces.Discrete(3))
    expected = "are not equivalent. .*If this is" if mode == "same" else "do not share a common shape and dtype"
    with pytest.raises(RuntimeError, match=expected):
        kind(misfit, observation_mode=mode)
    fits_nothing = (spaces.Box(0, 1, (3, 7)), spaces.Box(0, 1, (7,)))
    with pytest.raises(RuntimeError, match="do not share a common shape and dtype"):
        kind(over(*boxes(1, 1, 1)), observation_mode=fits_nothing)


@BOTH
def test_action_spaces_must_be_equal(kind: Any) -> None:
    env_fns = [partial(AnySpace, BOX, spaces.Discrete(n)) for n in (2, 3)]
    with pytest.raises(RuntimeError, match="action space"):
        kind(env_fns)


@BOTH
def test_bad_observation_mode_is_refused_in_the_same_words(kind: Any) -> None:
    for mode, error in (("invalid", ValueError), ((BOX, "no space"), TypeError), ((BOX, BOX, BOX), ValueError)):
        with pytest.raises(error) as expected:
            THEIRS[kind]([Walk], observation_mode=mode)
        with pytest.raises(error) as found:
            kind([Walk], observation_mode=mode)
        assert str(found.value) == str(expected.value)
    with pytest.raises(ValueError):
        kind([Walk], autoreset_mode="never")
