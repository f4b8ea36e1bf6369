"""`AsyncVectorEnv`: its states and their errors, its deadlines, and failures of envs and workers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.vector.async_vector_env as peer
import numpy as np
import psutil
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

import multiverse as mv
from multiverse.executors import machine
from multiverse.interop.gymnasium import AsyncState, AsyncVectorEnv
from tests.envs import AnySpace, Directions, Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated
from tests.interop.conftest import remembered
from tests.processes import has_not_ended, still_alive
from tests.space_catalogue import catalogue
from tests.vector.test_interrupts import interrupted_at, sleeps

MOMENT_S = 0.02
Make = Callable[..., AsyncVectorEnv[Any, Any]]


@pytest.fixture
def make() -> Iterator[Make]:
    yield from remembered(AsyncVectorEnv, terminate=True)


def some_actions(envs: Any) -> Any:
    return np.zeros(envs.num_envs, np.int64)


def first_reset(*env_fns: Any, seed: int) -> Any:
    """The first reset of newly built envs in Gymnasium's own class."""
    envs = gymnasium.vector.SyncVectorEnv(list(env_fns))
    try:
        return envs.reset(seed=seed)
    finally:
        envs.close()


# -- states ----------------------------------------------------------------------------------------------------
START: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset_async(),
    "step": lambda envs: envs.step_async(some_actions(envs)),
    "call": lambda envs: envs.call_async("add", 1),
}
WAIT: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset_wait(),
    "step": lambda envs: envs.step_wait(),
    "call": lambda envs: envs.call_wait(),
}
ASK: dict[str, Callable[[Any], Any]] = {
    "reset_async": START["reset"],
    "step_async": START["step"],
    "call_async": START["call"],
    "set_attr": lambda envs: envs.set_attr("bonus", 1.0),
}
AT_ONCE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "reset": ("reset_async", lambda envs: envs.reset()),
    "step": ("step_async", lambda envs: envs.step(some_actions(envs))),
    "call": ("call_async", lambda envs: envs.call("add", 1)),
    "get_attr": ("call_async", lambda envs: envs.get_attr("bonus")),
    "render": ("call_async", lambda envs: envs.render()),
    "np_random": ("call_async", lambda envs: envs.np_random),
}


@pytest.mark.parametrize("pending", START)
def test_other_requests_while_one_is_pending_are_refused_in_the_originals_words(make: Make, pending: str) -> None:
    envs = make(Walk, Walk)
    reference = gymnasium.vector.AsyncVectorEnv([Walk] * 2)
    for each in (envs, reference):
        each.reset(seed=0)
        START[pending](each)
        assert each._state.value == pending
    for ask in ASK.values():
        with pytest.raises(AlreadyPendingCallError) as expected:
            ask(reference)
        with pytest.raises(AlreadyPendingCallError) as found:
            ask(envs)
        assert (str(found.value), found.value.name) == (str(expected.value), expected.value.name)
    for asked, ask in AT_ONCE.values():
        with pytest.raises(
            AlreadyPendingCallError, match=f"Calling `{asked}` while waiting .* to `{pending}` to complete"
        ):
            ask(envs)
    for other in WAIT.keys() - {pending}:
        with pytest.raises(NoAsyncCallError) as error:
            WAIT[other](envs)
        assert error.value.name == other
    assert_same(WAIT[pending](envs), WAIT[pending](reference))
    assert envs._state is AsyncState.DEFAULT
    reference.close()


@pytest.mark.parametrize("name", WAIT)
def test_wait_without_request_is_refused(make: Make, name: str) -> None:
    envs = make(Walk)
    with pytest.raises(NoAsyncCallError, match=f"Calling `{name}_wait` without any prior call to `{name}_async`."):
        WAIT[name](envs)
    envs.reset()


def test_calls_after_close_raise_closed_error(make: Make) -> None:
    envs = make(Walk)
    envs.close()
    assert envs.closed
    for ask in (*ASK.values(), *WAIT.values(), *(ask for _, ask in AT_ONCE.values())):
        with pytest.raises(ClosedEnvironmentError, match=r"`AsyncVectorEnv`, after a call to `close\(\)`"):
            ask(envs)
    envs.close()


def test_asynchronous_halves_give_the_same_as_the_whole_call(make: Make) -> None:
    halves, whole = (
        make(*[partial(Walk, length=n) for n in (1, 2, 3)]),
        make(*[partial(Walk, length=n) for n in (1, 2, 3)]),
    )
    mask = {"reset_mask": np.array([True, False, True])}
    halves.reset_async(3)
    assert_same(halves.reset_wait(timeout=60), whole.reset(seed=3))
    for k in range(6):
        halves.step_async(np.full(3, k % 3))
        assert_same(halves.step_wait(timeout=60), whole.step(np.full(3, k % 3)))
    halves.reset_async(seed=[1, 2, 3], options=dict(mask))
    assert_same(halves.reset_wait(), whole.reset(seed=[1, 2, 3], options=dict(mask)))
    halves.call_async("add", 1, b=2)
    assert halves.call_wait(timeout=60) == whole.call("add", 1, b=2)
    assert_same(halves.observations, whole.observations)


def test_step_past_the_end_without_autoreset_equals_the_original(make: Make) -> None:
    envs = make(partial(Walk, length=1), Walk, autoreset_mode="Disabled")
    reference = gymnasium.vector.AsyncVectorEnv([partial(Walk, length=1), Walk], autoreset_mode="Disabled")
    assert_same(envs.reset(seed=2), reference.reset(seed=2))
    for _ in range(3):
        assert_same(envs.step(some_actions(envs)), reference.step(some_actions(envs)))
    reference.close()


# -- deadlines -------------------------------------------------------------------------------------------------
TIMED_WAIT: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset_wait(timeout=MOMENT_S),
    "step": lambda envs: envs.step_wait(timeout=MOMENT_S),
    "call": lambda envs: envs.call_wait(timeout=MOMENT_S),
}


def started_and_stuck(make: Make, gate: Gate, name: str) -> AsyncVectorEnv[Any, Any]:
    """A vector env whose second env waits at the gate, in the call of that name."""
    phase, at = {"reset": ("reset", 2), "step": ("step", 1), "call": ("method", 1)}[name]
    envs = make(Gated, partial(Gated, gate=str(gate), phase=phase, at=at))
    envs.reset(seed=1)
    if name == "call":
        envs.call_async("method")
    else:
        START[name](envs)
    gate.wait_for_arrival()
    return envs


@pytest.mark.parametrize("name", TIMED_WAIT)
def test_answer_after_its_deadline_is_discarded_and_the_next_reset_works(make: Make, gate: Gate, name: str) -> None:
    envs = started_and_stuck(make, gate, name)
    with pytest.raises(
        multiprocessing.TimeoutError,
        match=re.escape(f"The call to `{name}_wait` has timed out after {MOMENT_S} second(s)."),
    ):
        TIMED_WAIT[name](envs)
    assert envs._state is AsyncState.DEFAULT
    with pytest.raises(NoAsyncCallError):
        WAIT[name](envs)
    message = f"`{name}_wait` has timed out, and its result is lost: call `reset` or `close`"
    for ask in (START["step"], START["call"], ASK["set_attr"], AT_ONCE["step"][1], AT_ONCE["get_attr"][1]):
        with pytest.raises(AlreadyPendingCallError, match=message):
            ask(envs)
    with pytest.raises(AlreadyPendingCallError, match=message):
        envs.reset(options={"reset_mask": np.array([False, True])})
    gate.open()
    observations, infos = envs.reset(seed=11)
    assert_same(observations, first_reset(Walk, Walk, seed=11)[0])
    assert infos["resets"][0] == (3 if name == "reset" else 2)
    assert_same(envs.step(some_actions(envs))[4]["steps"], np.array([1, 1]))
    assert_same(envs.call("add", 1), (2, 2))


@pytest.mark.parametrize("name", TIMED_WAIT)
def test_reset_after_a_missed_deadline_has_its_own_deadline(make: Make, gate: Gate, name: str) -> None:
    envs = started_and_stuck(make, gate, name)
    with pytest.raises(multiprocessing.TimeoutError):
        TIMED_WAIT[name](envs)
    for _ in range(2):
        envs.reset_async(seed=5)
        with pytest.raises(multiprocessing.TimeoutError, match="`reset_wait`"):
            envs.reset_wait(timeout=MOMENT_S)
    envs.reset_async(seed=11)
    gate.open()
    assert_same(envs.reset_wait()[0], first_reset(Walk, Walk, seed=11)[0])
    assert_same(envs.step(some_actions(envs))[4]["steps"], np.array([1, 1]))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reset_clears_a_missed_deadline(make: Make, gate: Gate) -> None:
    envs = make(partial(Gated, gate=str(gate)), failing("step", at=3))
    envs.reset()
    envs.step_async(some_actions(envs))
    gate.wait_for_arrival()
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=MOMENT_S)
    gate.open()
    envs.reset()
    envs.step(some_actions(envs))
    with pytest.raises(ZeroDivisionError):
        envs.step(some_actions(envs))
    with pytest.raises(mv.errors.RequestPending, match=r"envs \[1\] have raised"):
        envs.step(some_actions(envs))


@pytest.mark.parametrize("name", TIMED_WAIT)
def test_hanging_env_can_be_closed_at_once(make: Make, gate: Gate, name: str) -> None:
    envs = started_and_stuck(make, gate, name)
    pids = envs.engine.worker_pids
    with pytest.raises(multiprocessing.TimeoutError):
        TIMED_WAIT[name](envs)
    envs.close(timeout=MOMENT_S)
    assert envs.closed
    assert still_alive(pids) == []


@pytest.mark.parametrize("halves", [False, True], ids=["step", "step_wait"])
def test_interrupted_step_can_still_be_waited_for(make: Make, gate: Gate, halves: bool) -> None:
    envs, reference = make(Walk, partial(Gated, gate=str(gate))), make(Walk, Walk)
    assert_same(envs.reset(seed=1), reference.reset(seed=1))
    if halves:
        envs.step_async(some_actions(envs))
        interrupted_at(gate, envs.step_wait)
    else:
        interrupted_at(gate, lambda: envs.step(some_actions(envs)))
    assert envs._state is AsyncState.WAITING_STEP
    gate.open()
    assert_same(envs.step_wait(), reference.step(some_actions(envs)))
    assert_same(envs.step(some_actions(envs)), reference.step(some_actions(envs)))


@pytest.mark.parametrize("phase", ["reset", "method"])
def test_reset_works_after_any_other_interrupted_call(make: Make, gate: Gate, phase: str) -> None:
    envs = make(Gated, partial(Gated, gate=str(gate), phase=phase))
    interrupted_at(gate, envs.reset if phase == "reset" else lambda: envs.call("method"))
    assert envs._state is AsyncState.DEFAULT
    with pytest.raises(mv.errors.RequestPending):
        envs.step(some_actions(envs))
    gate.open()
    assert_same(envs.reset(seed=11)[0], first_reset(Walk, Walk, seed=11)[0])
    envs.step(some_actions(envs))


# -- envs that raise -------------------------------------------------------------------------------------------
def failing(phase: str, at: int = 1, what: str = "raise") -> Any:
    return partial(Fault, what, phase=phase, at=at)


FAIL: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset(seed=4),
    "step": lambda envs: envs.step(some_actions(envs)),
    "method": lambda envs: envs.call("method"),
    "render": lambda envs: envs.render(),
}


@pytest.mark.parametrize("phase", FAIL)
def test_every_env_that_raises_is_reported_and_the_last_exception_is_raised(make: Make, phase: str) -> None:
    at = 2 if phase == "reset" else 1
    envs = make(Fault, failing(phase, at), Fault, failing(phase, at), failing(phase, at))
    envs.reset(seed=1)
    with (
        warnings.catch_warnings(record=True) as warned,
        pytest.raises(ZeroDivisionError, match=r"^asked to fail$") as error,
    ):
        warnings.simplefilter("always")
        FAIL[phase](envs)
    texts = [str(warning.message) for warning in warned]
    assert [text for text in texts if "Received" in text] == [
        f"\x1b[31mERROR: Received the following error from Worker-{i} - Shutting it down\x1b[0m" for i in (1, 3, 4)
    ]
    assert [
        bool(re.match(r"\x1b\[31mERROR: Traceback (?s:.)*ZeroDivisionError: asked to fail\n", t)) for t in texts
    ] == ([False, True] * 3 + [False])
    assert texts[-1] == "\x1b[31mERROR: Raising the last exception back to the main process.\x1b[0m"
    cause = error.value.__cause__
    assert isinstance(cause, mv.errors.EnvFailed)
    assert cause.env_ids == (1, 3, 4)
    if phase in ("reset", "step"):
        with pytest.raises(mv.errors.RequestPending, match=r"envs \[1, 3, 4\] have raised: call `reset` or `close`"):
            envs.step(some_actions(envs))
    assert_same(envs.reset(seed=11)[0], first_reset(*[Walk] * 5, seed=11)[0])
    envs.step(some_actions(envs))


def test_env_that_raised_can_be_reset_alone(make: Make) -> None:
    envs, reference = make(Walk, failing("step", 2)), make(Walk, Walk)
    assert_same(envs.reset(seed=1), reference.reset(seed=1))
    assert_same(envs.step(some_actions(envs)), reference.step(some_actions(envs)))
    with pytest.warns(UserWarning), pytest.raises(ZeroDivisionError):
        envs.step(some_actions(envs))
    reference.step(some_actions(envs))
    for each in (envs, reference):
        each.reset(seed=8, options={"reset_mask": np.array([False, True])})
    assert_same(envs.step(some_actions(envs))[0], reference.step(some_actions(envs))[0])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_exception_type_is_kept_for_builtins_and_gymnasiums(make: Make) -> None:
    with pytest.raises(ResetNeeded, match=r"Cannot call env\.step"):
        AT_ONCE["step"][1](make(lambda: gymnasium.make("CartPole-v1")))
    with pytest.raises(AssertionError, match="99"):
        envs = make(lambda: gymnasium.make("CartPole-v1"))
        envs.reset()
        envs.step(np.array([99]))
    for what in ("raise_two_arguments", "raise_unpicklable", "raise_mute"):
        envs = make(failing("step", what=what))
        envs.reset()
        with pytest.raises(mv.errors.EnvFailed) as error:
            envs.step(some_actions(envs))
        assert error.value.env_ids == (0,)
    with pytest.raises(AttributeError, match="no_such_thing"):
        make(Walk, Walk).get_attr("no_such_thing")
    with pytest.raises(ValueError, match="Trying to call function `reset` with `call`, use `reset` directly instead"):
        make(Walk).call("reset")


def started_since(before: list[psutil.Process]) -> list[int]:
    """Processes of this program that are new, except the server that guards them."""
    now = set(psutil.Process().children(recursive=True)) - set(before)
    return [process.pid for process in now if has_not_ended(process) and not is_server(process)]


def is_server(process: psutil.Process) -> bool:
    try:
        return "fork_server" in str(process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return False


@pytest.mark.parametrize("position", [0, 1])
def test_exception_in_a_constructor_is_raised_and_leaves_nothing(position: int) -> None:
    before = psutil.Process().children(recursive=True)
    env_fns = [Fault, Fault]
    env_fns[position] = failing("constructor")
    with pytest.raises(ZeroDivisionError, match="asked to fail") as error:
        AsyncVectorEnv(env_fns)
    assert isinstance(error.value.__cause__, mv.errors.EnvFailed)
    assert error.value.__cause__.env_ids == (position,)
    assert still_alive(started_since(before)) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_observation_of_wrong_shape_is_a_value_error(make: Make) -> None:
    envs = make(failing("step", what="wide_observation"))
    envs.reset()
    with pytest.raises(ValueError, match="shape"):
        envs.step(some_actions(envs))


def test_values_are_not_checked(make: Make) -> None:
    envs = make(*[failing("step", what=what) for what in ("nan_observation", "inf_reward", "nan_reward")])
    envs.reset()
    observations, rewards, *_ = envs.step(some_actions(envs))
    assert np.isnan(observations[0, 1])
    assert_same(rewards[1:], np.array([np.inf, np.nan]))


# -- workers that die ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", FAIL)
def test_dead_worker_is_an_error_at_once_and_close_works(make: Make, phase: str) -> None:
    envs = make(Fault, failing(phase, 2 if phase == "reset" else 1, "kill"))
    envs.reset(seed=1)
    with pytest.raises(mv.errors.WorkerDied, match="SIGKILL"):
        FAIL[phase](envs)
    with pytest.raises(mv.errors.WorkerDied):
        envs.reset()
    pids = envs.engine.worker_pids
    envs.close()
    assert still_alive(pids) == []


@pytest.mark.parametrize("name", START)
def test_death_between_request_and_wait_is_raised_by_wait(make: Make, gate: Gate, name: str) -> None:
    envs = started_and_stuck(make, gate, name)
    os.kill(envs.engine.worker_pids[-1], signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied):
        WAIT[name](envs)
    assert envs._state is AsyncState.DEFAULT


# -- the end ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"timeout": 30}, {"terminate": True}], ids=str)
@pytest.mark.parametrize("pending", [None, *START])
def test_every_way_to_close_ends_the_workers_and_warns_of_pending_requests(
    make: Make, pending: str | None, options: dict[str, Any]
) -> None:
    envs = make(Walk, Walk)
    envs.reset()
    pids = envs.engine.worker_pids
    assert len(pids) >= 1
    if pending is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            envs.close(**options)
    else:
        START[pending](envs)
        with pytest.warns(
            UserWarning, match=f"Calling `close` while waiting for a pending call to `{pending}` to complete"
        ):
            envs.close(**options)
    assert envs.closed
    assert still_alive(pids) == []
    envs.close(**options)


def test_close_waits_for_the_pending_step_and_the_close_of_the_envs(make: Make, tmp_path: Path) -> None:
    envs = make(partial(LeavesWord, str(tmp_path / "steps")))
    envs.reset()
    (pid,) = envs.engine.worker_pids
    os.kill(pid, signal.SIGSTOP)  # so that it cannot begin before it is asked to close, if it is
    envs.step_async(some_actions(envs))
    waker = threading.Thread(target=wake, args=(pid,))
    waker.start()
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        envs.close()
    waker.join()
    assert (tmp_path / "steps").read_text() == "1"


def wake(pid: int) -> None:
    """Continue a stopped worker once the caller sleeps for its answer, or after many checks."""
    for _ in range(200_000):
        if sleeps(threading.main_thread().ident or 0):
            break
        os.sched_yield()
    os.kill(pid, signal.SIGCONT)


class LeavesWord(Walk):
    """Env that writes down its number of steps when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def close(self) -> None:
        self._path.write_text(str(self.steps))


def test_env_that_raises_on_close_is_reported_without_an_error(make: Make) -> None:
    envs = make(Walk, failing("close"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        envs.close()
    assert envs.closed
    assert ["error from Worker-1" in str(warning.message) for warning in warned] == [True, False]


def test_deleted_vector_env_ends_its_workers() -> None:
    envs = AsyncVectorEnv([Walk, Walk])
    pids = envs.engine.worker_pids
    del envs
    gc.collect()
    assert still_alive(pids) == []


# -- arguments -------------------------------------------------------------------------------------------------
def test_spaces_that_cannot_be_shared_need_shared_memory_off(make: Make) -> None:
    custom = partial(AnySpace, Directions(), Directions())
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ValueError, match="you can disable this feature with `shared_memory=False`") as error:
        make(custom)
    assert still_alive(started_since(before)) == []
    assert error.value.__cause__ is not None
    with pytest.raises(TypeError, match="has a dynamic shape so its not possible to make a static shared memory"):
        make(partial(AnySpace, catalogue()["sequence"], catalogue()["discrete"]))
    envs = make(custom, custom, shared_memory=False)
    observations, _ = envs.reset(seed=0)
    assert isinstance(observations, tuple)
    assert isinstance(envs.single_observation_space, Directions)
    assert isinstance(envs.action_space, gymnasium.spaces.Tuple)
    assert all(row in Directions.names for row in envs.step(("north", "east"))[0])


def test_max_concurrency_is_the_number_of_workers(make: Make) -> None:
    for limit, workers in ((1, 1), (np.int64(3), 3), (9, 4)):
        envs = make(*[Walk] * 4, max_concurrency=limit)
        assert envs.engine.plan.workers == workers
        envs.reset()
        assert len(set(envs.call("process_id"))) == workers
    for limit, reported in (
        (2.5, "integer or None, got"),
        ("2", "integer or None, got"),
        (0, "positive or None, got 0"),
    ):
        with pytest.raises(ValueError, match=f"`max_concurrency` must be an? {reported}|must be a {reported}"):
            make(Walk, max_concurrency=limit)


def test_default_worker_count_leaves_one_core_to_the_caller(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    envs = make(*[Walk] * 5)
    assert len(set(envs.call("process_id"))) == envs.engine.plan.workers == 3
    assert "one of the 4 cores is the caller's" in str(envs.engine.plan)


def test_custom_worker_function_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"A custom `worker` must accept 8 arguments\. Got the signature "):
        make(Walk, worker=lambda index, env_fn: None)
    with pytest.raises(ValueError, match="`worker` cannot be honoured"):
        make(Walk, worker=peer._async_worker)


@pytest.mark.parametrize("context", [None, "fork", "forkserver", "spawn"])
def test_context_is_the_start_method(make: Make, context: str | None) -> None:
    envs = make(Walk, Walk, context=context)
    expected = multiprocessing.get_context(context).get_start_method()
    assert envs.engine.plan.start_method == expected
    assert_same(envs.reset(seed=11), first_reset(Walk, Walk, seed=11))
    assert_same(envs.step(np.array([1.5, 2])), gymnasium_step(Walk, Walk, seed=11, actions=np.array([1.5, 2])))


def gymnasium_step(*env_fns: Any, seed: int, actions: Any) -> Any:
    envs = gymnasium.vector.SyncVectorEnv(list(env_fns))
    envs.reset(seed=seed)
    return envs.step(actions)


def test_unknown_context_is_refused(make: Make) -> None:
    with pytest.raises(ValueError) as expected:
        multiprocessing.get_context("no such")
    with pytest.raises(ValueError) as found:
        make(Walk, context="no such")
    assert str(found.value) == str(expected.value)


def test_local_envs_and_ids_of_this_program_work(make: Make) -> None:
    """With `fork`, the default of `multiprocessing` on Linux."""

    class Local(Walk):
        pass

    gymnasium.register("tests/OnlyHere-v0", entry_point=Local)
    try:
        envs = make(*[lambda: gymnasium.make("tests/OnlyHere-v0")] * 2, context="fork")
        envs.reset()
        envs.step(some_actions(envs))
    finally:
        del gymnasium.registry["tests/OnlyHere-v0"]


# -- ours underneath -------------------------------------------------------------------------------------------
def test_workers_and_pipes_of_the_original_are_not_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the original's own machinery was used")

    for name in ("_async_worker", "CloudpickleWrapper", "read_from_shared_memory", "write_to_shared_memory"):
        monkeypatch.setattr(peer, name, refuse)
    monkeypatch.setattr(peer.multiprocessing, "get_context", refuse)
    for name in ("Pipe", "Queue", "Array", "BoundedSemaphore"):  # of the context that it asks for them
        monkeypatch.setattr(peer.multiprocessing.context.BaseContext, name, refuse)
    with pytest.raises(AssertionError, match="own machinery"):
        gymnasium.vector.AsyncVectorEnv([Walk])
    envs = make(Walk, Walk, Walk)
    assert_same(envs.reset(seed=11), first_reset(Walk, Walk, Walk, seed=11))
    envs.step(some_actions(envs))
    envs.step(np.zeros(3))
    assert len(envs.call("add", 1)) == 3
    envs.close()


def test_drop_in_is_an_instance_of_gymnasiums_vector_env(make: Make) -> None:
    envs = make(Walk)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert issubclass(AsyncVectorEnv[Any, Any].__origin__, gymnasium.vector.VectorEnv)  # type: ignore[attr-defined]
