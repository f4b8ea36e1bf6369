"""An env that raises is named, with its traceback; the other envs and the vector env stay usable."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, OddInfo
from tests.vector.configurations import SERIAL, WITH_WORKERS, Configuration
from tests.vector.conftest import Make, worker_processes
from tests.vector.runs import actions, lock_step


def faulty(config: Configuration, faults: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Kwargs that give some envs a fault."""
    return [faults.get(i, {}) for i in range(config.num_envs)]


def step_once(envs: Any, k: int = 0) -> Any:
    return envs.step(actions(range(envs.num_envs), k))


RAISES = {
    "raise": "ZeroDivisionError: asked to fail",
    "raise_two_arguments": "NeedsTwoArguments: code 7 because asked to fail",
    "raise_unpicklable": "CannotBePickled: holds a lock",
    "raise_mute": "MuteError: <its message could not be shown>",
}


@pytest.mark.fault("A9", "A10")
@pytest.mark.parametrize("what", sorted(RAISES))
def test_exception_in_step_names_the_env_and_the_raising_line(make: Make, config: Configuration, what: str) -> None:
    envs = make(Fault, env_kwargs=faulty(config, {2: {"what": what, "at": 2}}))
    envs.reset(seed=0)
    step_once(envs)
    with pytest.raises(mv.errors.EnvFailed) as caught:
        step_once(envs)
    error = caught.value
    assert error.env_ids == (2,)
    assert "env 2 raised in step (step 2 of episode 0, seed 2, action " in str(error)
    assert RAISES[what] in str(error)
    assert "fault_envs.py" in str(error)
    assert f"_do_{what}" in error.failures[0].traceback
    assert error.failures[0].type_name.endswith(RAISES[what].partition(":")[0])


@pytest.mark.fault("A9")
def test_every_failing_env_of_a_batch_is_listed(make: Make, config: Configuration) -> None:
    last = config.num_envs - 1
    envs = make(Fault, env_kwargs=faulty(config, {i: {"what": "raise"} for i in (0, 1, last)}))
    envs.reset(seed=0)
    with pytest.raises(mv.errors.EnvFailed, match="2 more") as caught:
        step_once(envs)
    assert caught.value.env_ids == (0, 1, last)
    assert [f.env_id for f in caught.value.failures] == [0, 1, last]


@pytest.mark.fault("A9")
def test_reset_after_a_failed_step_restores_all_envs(make: Make, config: Configuration) -> None:
    expected = lock_step(make(Walk), 4, seed=9)
    envs = make(Fault, env_kwargs=faulty(config, {1: {"what": "raise"}}))
    envs.reset(seed=0)
    with pytest.raises(mv.errors.EnvFailed):
        step_once(envs)
    with pytest.raises(mv.errors.RequestPending, match="failed"):
        step_once(envs)
    assert_same(lock_step(envs, 4, seed=9), expected)


@pytest.mark.fault("A9")
def test_failed_env_can_be_reset_alone(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=faulty(config, {1: {"what": "raise", "at": 2}}))
    envs.reset(seed=0)
    step_once(envs)
    with pytest.raises(mv.errors.EnvFailed):
        step_once(envs)
    envs.reset(env_ids=[1])
    step_once(envs)
    assert envs.get_attr("steps") == tuple(1 if i == 1 else 3 for i in range(config.num_envs))
    assert envs.episode_lengths.tolist() == [1 if i == 1 else 3 for i in range(config.num_envs)]


def test_reset_of_another_env_does_not_replace_that_of_the_failed_one(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=faulty(config, {1: {"what": "raise"}}))
    envs.reset(seed=0)
    with pytest.raises(mv.errors.EnvFailed):
        step_once(envs)
    envs.reset(env_ids=[0])
    with pytest.raises(mv.errors.RequestPending, match=r"\[1\]"):
        step_once(envs)


def test_failure_among_received_envs_is_raised_once_and_cleared_by_reset(make: Make, config: Configuration) -> None:
    expected = lock_step(make(Walk), 3, seed=9)
    envs = make(Fault, env_kwargs=faulty(config, {1: {"what": "raise"}}))
    envs.reset(seed=0)
    envs.send(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.EnvFailed) as caught:
        envs.receive()
    assert caught.value.env_ids == (1,)
    assert_same(lock_step(envs, 3, seed=9), expected)


@pytest.mark.fault("A9")
@pytest.mark.parametrize("phase", ["reset", "method", "render"])
def test_exception_outside_step_is_reported_with_env_and_line(make: Make, config: Configuration, phase: str) -> None:
    envs = make(Fault, env_kwargs=faulty(config, {2: {"what": "raise_two_arguments", "phase": phase, "at": 1}}))
    call = {"reset": envs.reset, "method": lambda: envs.call("method"), "render": envs.render}[phase]
    with pytest.raises(mv.errors.EnvFailed, match="code 7 because asked to fail") as caught:
        call()
    assert caught.value.env_ids == (2,)
    assert "fault_envs.py" in str(caught.value)
    envs.reset(seed=1)
    assert len(call()) >= 2


@pytest.mark.fault("A9")
def test_every_env_that_fails_in_reset_is_listed(make: Make, config: Configuration) -> None:
    last = config.num_envs - 1
    envs = make(Fault, env_kwargs=faulty(config, {i: {"what": "raise", "phase": "reset"} for i in (0, last)}))
    with pytest.raises(mv.errors.EnvFailed) as caught:
        envs.reset(seed=0)
    assert caught.value.env_ids == (0, last)
    envs.reset(seed=0)
    step_once(envs)


def test_missing_attribute_is_reported_with_its_name(make: Make) -> None:
    envs = make(Walk)
    with pytest.raises(mv.errors.EnvFailed, match="no_such_thing"):
        envs.get_attr("no_such_thing")


@pytest.mark.fault("A8")
@pytest.mark.parametrize(("what", "failing"), [("raise", 0), ("raise_two_arguments", 3), ("raise_unpicklable", 1)])
def test_exception_in_a_constructor_names_the_env_and_leaves_nothing_half_built(
    config: Configuration, what: str, failing: int
) -> None:
    kwargs = faulty(config, {failing: {"what": what, "phase": "constructor"}})
    with pytest.raises(mv.errors.EnvFailed, match="could not be built") as caught:
        config.make(Fault, env_kwargs=kwargs)
    assert config.executor == "ray" or worker_processes() == []  # while the traceback keeps the unfinished env alive
    assert RAISES[what] in str(caught.value)
    assert "fault_envs.py" in str(caught.value)
    assert caught.value.env_ids == (failing,)


@pytest.mark.fault("A8")
def test_import_error_in_a_worker_has_a_hint(config: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the caller can import the module."""
    monkeypatch.setitem(sys.modules, "only_in_the_caller", ModuleType("only_in_the_caller"))

    def factory() -> Any:
        import only_in_the_caller

        return only_in_the_caller

    with pytest.raises(mv.MultiverseError) as caught:
        config.make(factory)
    if config.executor == "process" and config.start_method != "fork":
        assert "No module named 'only_in_the_caller'" in str(caught.value) and "sys.path" in str(caught.value)


@pytest.mark.fault("A8")
def test_missing_module_is_named_without_a_hint(config: Configuration) -> None:
    def factory() -> Any:
        import no_such_package_anywhere

        return no_such_package_anywhere

    with pytest.raises(mv.errors.EnvFailed, match="no_such_package_anywhere") as caught:
        config.make(factory)
    assert not caught.value.hint


def test_factory_that_returns_no_env_is_refused(config: Configuration) -> None:
    with pytest.raises(mv.MultiverseError, match=r"neither a gymnasium\.Env nor a PettingZoo env"):
        config.make(lambda: object())


@pytest.mark.fault("A19")
def test_system_exit_in_an_env_is_an_error_and_does_not_end_the_program(make: Make, config: Configuration) -> None:
    if config is SERIAL:
        pytest.skip("in the caller's own process SystemExit is the caller's to handle")
    last = config.num_envs - 1
    envs = make(Fault, env_kwargs=faulty(config, {last: {"what": "system_exit"}}))
    envs.reset(seed=0)
    envs.send(actions(range(config.num_envs), 0))
    with pytest.raises((mv.errors.EnvFailed, mv.errors.WorkerDied)):
        envs.receive(timeout_s=20)


def test_info_that_cannot_be_unpickled_is_an_error_and_no_hang(make: Make, config: Configuration) -> None:
    last = config.num_envs - 1
    if not config.has_processes:
        pytest.skip("nothing has to travel")
    envs = make(OddInfo, env_kwargs=[{"what": "landmine" if i == last else "fine"} for i in range(config.num_envs)])
    envs.reset(seed=0)
    with pytest.raises(mv.MultiverseError):
        step_once(envs)


@pytest.mark.fault("A10")
@pytest.mark.parametrize("config", WITH_WORKERS, ids=str)
def test_result_that_cannot_be_unpickled_affects_only_its_call(make: Make, config: Configuration) -> None:
    if not config.has_processes:
        pytest.skip("nothing has to be unpacked")
    first = config.ranges[-2][0] if config.executor == "process" else config.ranges[1][0]
    n = config.num_envs
    envs = make(OddInfo, env_kwargs=[{"what": "landmine" if i == first else "fine", "at": 99} for i in range(n)])
    envs.reset(seed=0)
    with pytest.raises(Exception, match="unpacking refused"):
        envs.call("odd")
    for k in range(3):
        _, rewards, *_, infos = step_once(envs, k)
        assert_same(infos["value"], rewards)
        assert envs.call("add", 100) == (101 + k,) * n


def test_infos_of_different_types_become_object_arrays(make: Make, config: Configuration) -> None:
    class Babel(Walk):
        def __init__(self, word: Any) -> None:
            super().__init__()
            self.word = word

        def step(self, action: Any) -> Any:
            return (*super().step(action)[:-1], {"word": self.word})

    words = ["text" if i == 1 else i for i in range(config.num_envs)]
    envs = make([lambda word=word: Babel(word) for word in words])
    envs.reset(seed=0)
    assert step_once(envs)[-1]["word"].tolist() == words


@pytest.mark.fault("A9")
def test_close_reports_an_env_that_fails_to_close_and_closes_the_rest(config: Configuration) -> None:
    envs = config.make(Fault, env_kwargs=faulty(config, {0: {"what": "raise", "phase": "close"}}))
    envs.reset(seed=0)
    try:
        envs.close()
    except mv.errors.EnvFailed as error:
        assert error.env_ids == (0,)
    envs.close()
    assert envs.closed
    with pytest.raises(mv.errors.ClosedError):
        envs.reset()


def test_step_before_the_first_reset_is_refused_by_the_env(make: Make) -> None:
    envs = make("CartPole-v1")
    with pytest.raises(mv.errors.EnvFailed, match="ResetNeeded"):
        envs.step(np.zeros(envs.num_envs, np.int64))


def test_incompatible_infos_name_their_env_and_discard_one_step(make: Make, config: Configuration) -> None:
    def says(index: int) -> Any:
        class Says(Walk):
            def step(self, action: Any) -> Any:
                *rest, info = super().step(action)
                odd = {"inner": 1} if index == 1 else 1
                return (*rest, {**info, "odd": odd} if self.steps == 2 else info)

        return Says

    envs = make([says(i) for i in range(config.num_envs)])
    envs.reset(seed=0)
    actions = np.zeros(config.num_envs, np.int64)
    envs.step(actions)
    with pytest.raises(
        mv.errors.EnvFailed, match=r"has an info that does not fit the others'.*infos\['odd'\]"
    ) as caught:
        envs.step(actions)
    failed = list(caught.value.env_ids)
    envs.reset(env_ids=failed, seed=0)
    for _ in range(2):
        envs.step(actions)
    failures = envs.failures
    assert failures.steps_discarded == config.num_envs
    assert failures.steps_sent == failures.steps_used + failures.steps_discarded
