"""Repeated losses: replacements that fail, workers lost in a step of others, and bad first observations."""

from __future__ import annotations

import os
import pickle
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from tests.envs import Walk
from tests.fault_envs import Gate, Gated, wait_at
from tests.faults.unlucky_envs import BadStart, ExitsThenFails, OddInfos
from tests.vector.configurations import FORKSERVER, HYBRID, SERIAL, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

with_processes = pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step"])


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


@pytest.mark.fault("A1", "A7", "B4")
@with_processes
@modes
@pytest.mark.parametrize("then", ["constructor exit", "constructor raise", "reset exit", "reset raise"])
def test_replacement_that_fails_is_replaced(
    make: Make, config: Configuration, autoreset: str, then: str, tmp_path: Path
) -> None:
    if autoreset == "next_step" and then.startswith("reset"):
        pytest.skip("nothing is reset before the next step")
    envs = make(
        ExitsThenFails,
        env_kwargs=last_env(config, folder=str(tmp_path), then=then),
        autoreset=autoreset,
        on_failure="restart",
    )
    envs.reset(seed=7)
    before = envs.step(actions(range(config.num_envs), 0))
    lost = envs.step(actions(range(config.num_envs), 1))
    last = config.num_envs - 1
    assert lost[3][last] and lost[4]["restarted"][last]
    final = lost[4]["final_obs"][last] if autoreset == "same_step" else lost[0][last]
    assert final.tolist() == before[0][last].tolist()
    if autoreset == "next_step":
        lost = envs.step(actions(range(config.num_envs), 2))
    assert lost[0][last][1] == 0, "the row shows the first observation of a new episode"
    assert envs.call("resets")[last] == 1, "the env that took over was reset"
    envs.step(actions(range(config.num_envs), 3))
    assert envs.failures.worker_restarts == 1
    assert envs.failures.steps_sent == envs.failures.steps_used + envs.failures.steps_discarded


@pytest.mark.fault("A7")
@with_processes
def test_replacements_that_never_work_raise_the_first_cause_and_their_number(
    make: Make, config: Configuration, tmp_path: Path
) -> None:
    kwargs = last_env(config, folder=str(tmp_path), then="constructor raise", times=99)
    envs = make(ExitsThenFails, env_kwargs=kwargs, on_failure="restart")
    envs.reset(seed=7)
    envs.step(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.WorkerDied, match="exited with code 3") as caught:
        envs.step(actions(range(config.num_envs), 1))
    assert "6 failures of worker" in str(caught.value) and "--restarts-per-minute" in str(caught.value)
    assert caught.value.__context__ is None or "_Death" not in repr(caught.value.__context__)
    for call in (envs.reset, lambda: envs.call("method")):
        with pytest.raises(mv.errors.WorkerDied, match="make a new one"):
            call()


@pytest.mark.fault("A4", "A7")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
def test_replacement_that_hangs_in_its_reset_is_replaced(
    make: Make, config: Configuration, gate: Gate, tmp_path: Path
) -> None:
    """It waits at a gate that is never opened; the next replacement does not."""
    happened = tmp_path / "happened"
    happened.mkdir()

    class HangsOnce(ExitsThenFails):
        def reset(self, **kwargs: Any) -> Any:
            if self._folder and self._happened() == 1:
                Path(self._folder, "1").touch()
                wait_at(gate.path)
            return super().reset(**kwargs)

    envs = make(
        HangsOnce,
        env_kwargs=last_env(config, folder=str(happened)),
        autoreset="same_step",
        on_failure="restart",
        timeouts=mv.Timeouts(reset_s=2.0),  # building has that deadline too
    )
    envs.reset(seed=7)
    envs.step(actions(range(config.num_envs), 0))
    opener = threading.Thread(target=gate.wait_for_arrival)
    opener.start()
    lost = envs.step(actions(range(config.num_envs), 1))
    opener.join()
    assert lost[4]["restarted"][-1] and lost[0][-1][1] == 0
    assert (envs.failures.timeouts, envs.failures.worker_restarts) == (1, 1)


@pytest.mark.fault("A1", "B4")
@modes
def test_envs_lost_in_a_step_of_others_must_be_reset(autoreset: str, tmp_path: Path) -> None:
    with mv.make_vec(
        ExitsThenFails,
        4,
        "process",
        workers=1,
        env_kwargs=[{"folder": str(tmp_path)}, {}, {}, {}],
        autoreset=autoreset,  # type: ignore[arg-type]
        on_failure="restart",
    ) as envs:
        envs.reset(seed=7)
        envs.step(actions(range(4), 0))
        _, rewards, _, truncated, infos = envs.step(actions([0], 1), env_ids=[0])
        assert truncated.tolist() == [True] and infos["restarted"].tolist() == [True] and rewards.tolist() == [0.0]
        with pytest.raises(mv.errors.RequestPending, match=r"envs \[1, 2, 3\] failed"):
            envs.step(actions([1, 2], 1), env_ids=[1, 2])
        envs.reset(env_ids=[1, 2, 3], seed=7)
        envs.step(actions(range(4), 2))


@pytest.mark.fault("A4")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_hanging_worker_is_noticed_while_others_are_received(
    make: Make, config: Configuration, gate: Gate, on_failure: str
) -> None:
    """Its deadline counts from its own request, however often others are requested."""
    last = config.num_envs - 1
    envs = make(
        Gated, env_kwargs=last_env(config, gate=str(gate)), on_failure=on_failure, timeouts=mv.Timeouts(reply_s=0.5)
    )
    envs.reset(seed=0)
    envs.send(actions(range(config.num_envs), 0))
    gate.wait_for_arrival()
    others = [i for i in range(config.num_envs) if i not in config.last_range]
    for _ in range(10_000):
        try:
            batch = envs.receive(min_envs=1, timeout_s=30)
        except mv.errors.ReplyTimeout as error:
            assert on_failure == "raise" and last in error.env_ids
            gate.open()
            break
        if last in batch.env_ids:
            assert on_failure == "restart" and batch.infos["restarted"].any()
            break
        envs.send(actions(others, 0), others)
    assert envs.failures.timeouts == 1


@pytest.mark.fault("B1")
@pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID], ids=str)
def test_bad_first_observation_after_a_truncated_episode_is_not_delivered(make: Make, config: Configuration) -> None:
    envs = make(
        BadStart,
        env_kwargs=last_env(config, bad=True),
        autoreset="same_step",
        on_failure=mv.FailureOptions(on_bad_value="truncate"),
    )
    envs.reset(seed=0)
    envs.step(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.EnvFailed, match="BadValue"):
        envs.step(actions(range(config.num_envs), 1))
    assert envs.failures.bad_values == 2


@pytest.mark.fault("B1")
@pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID], ids=str)
@pytest.mark.parametrize(
    ("phase", "info"),
    [("reset", None), ("reset", []), ("reset", ["a"]), *(("step", odd) for odd in (["a"], 3, None, [], 0, ""))],
)
@pytest.mark.parametrize("infos", [True, False])
def test_info_that_is_not_a_dict_is_named(
    make: Make, config: Configuration, phase: str, info: Any, infos: bool
) -> None:
    envs = make(OddInfos, env_kwargs=last_env(config, phase=phase, info=info), infos=infos)
    with pytest.raises(mv.errors.EnvFailed, match=rf"info is a {type(info).__name__}, not a dict") as caught:
        envs.reset(seed=0)
        envs.step(actions(range(config.num_envs), 0))
    assert caught.value.env_ids == (config.num_envs - 1,)


@pytest.mark.fault("B1")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
@pytest.mark.parametrize("info", [None, [], ["a"]])
def test_final_info_that_is_not_a_dict_is_named(make: Make, config: Configuration, info: Any) -> None:
    """In same_step mode the info of an episode's last step is returned separately."""
    kwargs = [{}] * (config.num_envs - 1) + [{"phase": "end", "info": info}]
    envs = make(OddInfos, env_kwargs=kwargs, autoreset="same_step")
    envs.reset(seed=0)
    with pytest.raises(mv.errors.EnvFailed, match=rf"info is a {type(info).__name__}, not a dict"):
        for k in range(5):
            envs.step(actions(range(config.num_envs), k))


@pytest.mark.fault("B1")
def test_info_of_a_dict_subclass_is_accepted() -> None:
    with mv.make_vec(OddInfos, 1, "serial", env_kwargs={"phase": "step", "info": OrderedDict()}) as envs:
        envs.reset(seed=0)
        envs.step(actions(range(1), 0))


@pytest.mark.fault("A7")
@pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID], ids=str)
def test_refused_restart_is_not_counted(make: Make, config: Configuration) -> None:
    class Raises(Walk):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("again")

    envs = make(Raises, on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=1))
    envs.reset(seed=0)
    with pytest.raises(mv.errors.EnvFailed, match="again"):
        for k in range(3):
            envs.step(actions(range(config.num_envs), k))
    assert envs.failures.env_restarts <= len(config.ranges)


@pytest.mark.fault("A10")
@pytest.mark.parametrize("phase", ["step", "reset"])
def test_library_errors_can_be_pickled(phase: str) -> None:
    """A user may run all this inside a pool of processes."""
    from multiverse.core.errors import RemoteError

    errors = [
        mv.errors.WorkerDied(1, range(2, 4), "was killed", "try this", phase, 100),
        mv.errors.ReplyTimeout(1, range(2, 4), phase, 3.0, "it is sleeping", "a stack", 100),
        mv.errors.EnvFailed(f"raised in {phase}", 1, [RemoteError("ValueError", "bad", "", 2)]),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and again.__dict__ == error.__dict__


@pytest.mark.parametrize("name", ["reply_s", "reset_s"])
def test_infinite_timeout_means_no_timeout(name: str) -> None:
    timeouts = mv.Timeouts(**{name: float("inf")})  # type: ignore[arg-type]
    with mv.make_vec(Walk, 2, "process", workers=1, on_failure="restart", timeouts=timeouts) as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], 9)
        assert envs.step(actions(range(2), 0))[3].all()
    with pytest.raises(mv.errors.InvalidRequest, match="at most"):
        mv.make_vec(Walk, 2, timeouts=mv.Timeouts(close_s=1e10))
