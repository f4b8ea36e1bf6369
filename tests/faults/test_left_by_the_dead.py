"""Rows G1 and G2: replacements of lost workers ignore what these left in the block, and every lost episode is
reported, whether or not its env was in the request."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated
from tests.multi_agent.envs import Pair
from tests.vector.configurations import FORKSERVER, HYBRID, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

with_processes = pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step"])


class SaysWhenAsked(Walk):
    """Env whose info is `{"success": 1.0}` in a step with action 1, and empty otherwise."""

    def reset(self, **kwargs: Any) -> Any:
        observation, _ = super().reset(**kwargs)
        return observation, {}

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return (*rest, {"success": 1.0} if action == 1 else {})


@pytest.mark.fault("G1")
@modes
@pytest.mark.parametrize("infos_of", ["step", "receive"])
def test_infos_of_a_dead_worker_are_not_attributed_to_its_successor(autoreset: Any, infos_of: str) -> None:
    with mv.make_vec(SaysWhenAsked, 2, "process", workers=1, autoreset=autoreset, on_failure="restart") as envs:
        envs.reset(seed=7)
        envs.step(np.array([1, 0]))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        for _ in range(3):
            envs.step(np.array([0, 0]))
        if infos_of == "step":
            infos = envs.step(np.array([0, 1]))[4]
        else:
            envs.send(np.array([0, 1]))
            infos = envs.receive().infos
        assert infos["_success"].tolist() == [False, True]


class EndsWhilePacked:
    """Ends the process that pickles it: after its step is taken and counted, before the reply."""

    def __reduce__(self) -> Any:
        os._exit(5)


class EndsAfterItsStep(Walk):
    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self._folder = folder

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        if self._folder and self.steps == 3 and not os.listdir(self._folder):
            Path(self._folder, "once").touch()
            info["end"] = EndsWhilePacked()
        return (*rest, info)


@pytest.mark.fault("G1", "B4")
@with_processes
@modes
def test_lost_step_is_not_counted_in_its_episode(
    make: Make, config: Configuration, autoreset: str, tmp_path: Path
) -> None:
    kwargs = [{}] * (config.num_envs - 1) + [{"folder": str(tmp_path)}]
    envs = make(EndsAfterItsStep, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    for k in range(2):
        envs.step(actions(range(config.num_envs), k))
    lost, returns = list(config.last_range), envs.episode_returns
    *_, truncated, _ = envs.step(actions(range(config.num_envs), 2))
    assert truncated[lost].all() and os.listdir(tmp_path)
    assert envs.episode_lengths[lost].tolist() == [2] * len(lost)
    assert envs.episode_returns[lost].tolist() == returns[lost].tolist()


@pytest.mark.fault("G1", "B4")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
@modes
def test_episode_lost_before_its_first_step_has_no_steps(make: Make, config: Configuration, autoreset: str) -> None:
    """And not with the steps of the episode before, which its row still had."""
    envs = make(Walk, env_kwargs={"length": 2}, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    for k in range(2):
        envs.step(actions(range(config.num_envs), k))
    assert envs.episode_lengths.tolist() == [2] * config.num_envs
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    envs.step(actions(range(config.num_envs), 2))
    lost = list(config.last_range)
    assert envs.episode_lengths[lost].tolist() == envs.episode_returns[lost].tolist() == [0] * len(lost)


class Forbids(Pair):
    def step(self, actions: dict[str, Any]) -> Any:
        *rest, infos = super().step(actions)
        return (*rest, {agent: {"action_mask": np.array([0, 0, 1], np.int8)} for agent in infos})


@pytest.mark.fault("G1")
@pytest.mark.parametrize("lost", ["worker", "env"])
def test_action_mask_of_a_lost_env_does_not_apply_to_absent_agents(lost: str) -> None:
    kwargs = {"fault": "raise", "at": 2} if lost == "env" else {}
    with mv.make_vec(Forbids, 1, "process", workers=1, env_kwargs=kwargs, on_failure="restart") as envs:
        envs.reset(seed=7)
        envs.step({"left": np.ones(1, int), "right": np.ones(1, int)})  # type: ignore[arg-type]
        if lost == "worker":
            os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.step({"left": np.ones(1, int), "right": np.ones(1, int)})  # type: ignore[arg-type]
        assert not envs.alive["left"][0]  # type: ignore[attr-defined]
        assert envs.action_masks["left"][0].tolist() == [1, 1, 1]  # type: ignore[attr-defined]


# -- G2: lost envs are reported --------------------------------------------------------------------------------
class DiesOnceWhenReset(Walk):
    """Env that exits in its second reset, unless the folder records that one has."""

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self._folder = folder

    def reset(self, **kwargs: Any) -> Any:
        if self._folder and self.resets == 1 and not os.listdir(self._folder):
            Path(self._folder, "once").touch()
            os._exit(3)
        return super().reset(**kwargs)


@pytest.mark.fault("G2")
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("how", ["env_ids", "reset_mask"])
def test_envs_lost_in_the_reset_of_another_must_be_reset(autoreset: Any, how: str, tmp_path: Path) -> None:
    kwargs: Any = [{"folder": str(tmp_path)}, {}, {}]
    with mv.make_vec(
        DiesOnceWhenReset, 3, "process", workers=1, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart"
    ) as envs:
        envs.reset(seed=7)
        envs.step(actions(range(3), 0))
        if how == "env_ids":
            observations, _ = envs.reset(env_ids=[0], seed=7)
        else:
            observations, _ = envs.reset(seed=7, options={"reset_mask": np.array([True, False, False])})
        assert observations[0][1] == 0 and os.listdir(tmp_path)
        for call in (lambda: envs.step(actions(range(3), 1)), lambda: envs.step(actions([1], 1), env_ids=[1])):
            with pytest.raises(mv.errors.RequestPending, match=r"envs \[1, 2\] .*reset\(env_ids=\[1, 2\]\)"):
                call()
        envs.reset(env_ids=[1, 2], seed=7)
        envs.step(actions(range(3), 1))
        assert envs.episode_lengths.tolist() == [1, 1, 1]


@pytest.mark.fault("G2")
@pytest.mark.parametrize("phase", ["method", "render"])
def test_envs_lost_in_a_call_of_another_must_be_reset(phase: str) -> None:
    kwargs: Any = [{"what": "exit", "phase": phase}, {}]
    with mv.make_vec(Fault, 2, "process", workers=1, env_kwargs=kwargs, on_failure="restart") as envs:
        envs.reset(seed=7)
        with pytest.raises(mv.errors.WorkerDied):
            envs.call(phase, env_ids=[0]) if phase == "method" else envs.render(env_ids=[0])
        with pytest.raises(mv.errors.RequestPending, match=r"envs \[0, 1\]"):
            envs.step(actions([1], 0), env_ids=[1])
        envs.reset(seed=7)
        envs.step(actions(range(2), 0))


@pytest.mark.fault("G2")
@pytest.mark.parametrize("other", ["call", "reset"])
def test_request_to_other_envs_does_not_hide_lost_envs(other: str, gate: Gate) -> None:
    """Env 0 is lost in a step that cannot be received yet, because env 1 is slow."""
    kwargs: Any = [{}, {"gate": str(gate)}, {}]
    with mv.make_vec(Gated, 3, "process", workers=3, env_kwargs=kwargs, on_failure="restart") as envs:
        envs.reset(seed=7)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.send(actions([0, 1], 0), [0, 1])
        gate.wait_for_arrival()
        with pytest.raises(mv.errors.ReceiveTimeout):
            envs.receive(timeout_s=0.3)
        assert envs.failures.worker_restarts == 1
        envs.call("method", env_ids=[2]) if other == "call" else envs.reset(env_ids=[2])
        gate.open()
        batch = envs.receive()
        assert batch.truncated.tolist() == batch.infos["restarted"].tolist() == [True, False]
        envs.step(actions(range(3), 1))


class RaisesAlways(Walk):
    def __init__(self, raises: bool = False) -> None:
        super().__init__()
        self._raises = raises

    def step(self, action: Any) -> Any:
        if self._raises:
            raise ZeroDivisionError("again")
        return super().step(action)


@pytest.mark.fault("G2")
@pytest.mark.parametrize("asked", ["step", "receive"])
def test_envs_lost_in_an_undelivered_step_must_be_reset(asked: str) -> None:
    kwargs: Any = [{"raises": True}, {}, {}, {}]
    failures = mv.FailureOptions(on_failure="restart", restarts_per_minute=1)
    options: Any = {"autoreset": "same_step", "on_failure": failures}
    with mv.make_vec(RaisesAlways, 4, "process", workers=2, env_kwargs=kwargs, **options) as envs:
        envs.reset(seed=7)
        envs.step(actions(range(4), 0))
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        with pytest.raises(mv.errors.EnvFailed, match="again"):
            if asked == "step":
                envs.step(actions(range(4), 1))
            else:
                envs.send(actions(range(4), 1))
                envs.receive()
        with pytest.raises(mv.errors.RequestPending, match=r"envs \[0, 2, 3\]"):
            envs.step(actions(range(4), 1))


@pytest.mark.fault("G2", "A14")
@modes
def test_ctrl_c_after_a_replacement_does_not_hide_it(autoreset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is received as it would have been returned; no env steps twice."""

    def step(interrupted: bool) -> Any:
        with mv.make_vec(Walk, 2, "process", workers=2, autoreset=autoreset, on_failure="restart") as envs:
            envs.reset(seed=7)
            envs.step(actions(range(2), 0))
            os.kill(envs.worker_pids[1], signal.SIGKILL)
            if interrupted:
                with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                    patched.setattr(envs._results, "_add_lost", _ctrl_c)
                    envs.step(actions(range(2), 1))
                batch = envs.receive()
                values = batch.observations, batch.rewards, batch.terminated, batch.truncated, batch.infos
            else:
                values = envs.step(actions(range(2), 1))
            return [*values, envs.step(actions(range(2), 2))[:4], envs.episode_lengths]

    found, expected = step(True), step(False)
    assert expected[4]["restarted"].tolist() == [False, True]
    for one, other in zip(found, expected):
        assert_same(_without_new_seeds(one), _without_new_seeds(other))


def _ctrl_c(*_: Any) -> None:
    raise KeyboardInterrupt


def _without_new_seeds(part: Any) -> Any:
    """The part of the first env: the seed of the replacement of the other is random."""
    if isinstance(part, dict):
        return {key: part[key][0] for key in ("steps", "_steps", "value", "restarted", "_restarted")}
    return [array[0] for array in part] if isinstance(part, tuple) else part[0]
