"""Action masks in trainings: wherever an env has them, closed actions are neither taken nor used in targets."""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.errors import EnvFailed, InvalidRequest
from multiverse.core.layout import ACTION_MASKS, SINGLE_AGENT
from multiverse.training.saved_runs import checkpoint_of
from tests.training.mask_envs import (
    ALL,
    LENGTH,
    Doors,
    DoorsAsked,
    DoorsSaved,
    Push,
    TeamDoors,
    TwoDoors,
    doors_in_turn,
    wrapped_doors,
)
from tests.training.small_runs import digest, lines_of

ON: dict[str, Any] = {"steps_per_env": 10, "batch_size": 10, "epochs": 1}
OFF: dict[str, Any] = {"learning_starts": 20, "batch_size": 8, "buffer_size": 200, "hidden_sizes": (8,)}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": ON,
    "a2c": {"steps_per_env": 10},
    "dqn": {**OFF, "steps_per_env": 10, "target_update_interval": 40},
    "discrete_sac": {**OFF, "steps_per_env": 5, "updates_per_step": 0.2},
}
OFTEN: dict[str, Any] = {"checkpoint_every_s": 0.0, "keep_checkpoints": 50}
SOURCES: dict[str, Any] = {
    "info": Doors,
    "method": DoorsAsked,
    "wrapped method": wrapped_doors,
    "observation": lambda: Doors("observation"),
}
NOTHING_OPEN = np.zeros(ALL, np.int8)


def trained(env: Any, home: Path, algorithm: str = "ppo", **settings: Any) -> mv.Run:
    """A short run in which every failure of an env is an error."""
    common: dict[str, Any] = {"num_envs": 2, "env_steps": 120, "executor": "serial", "seed": 3, "evaluate_every": 60,
                              "evaluation_episodes": 2, "on_failure": "raise", "preset": False,
                              "progress": False}  # fmt: skip
    return mv.train(env, algorithm=algorithm, run_dir=home, **{**common, **SETTINGS.get(algorithm, {}), **settings})


def weights(run: mv.Run) -> Any:
    session = checkpoint_of(run).state["session"]
    learned = session["algorithms"].values() if "algorithms" in session else [session["algorithm"]]
    return [one["weights"] for one in learned]


def assert_equal(one: Any, other: Any) -> None:
    np.testing.assert_equal(one, other)


@pytest.mark.parametrize("algorithm", SETTINGS)
@pytest.mark.parametrize("source", SOURCES)
def test_masks_of_any_source_keep_closed_actions_from_the_env(source: str, algorithm: str, tmp_path: Path) -> None:
    run = trained(SOURCES[source], tmp_path / "run", algorithm)
    assert mv.evaluate(run, episodes=3, env=SOURCES[source]).lengths == (LENGTH,) * 3


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_masks_of_equal_envs_give_equal_weights_whatever_their_source(algorithm: str, tmp_path: Path) -> None:
    """With masks in observations, the mask after a step, and that after a truncated episode, are used too."""
    runs = [trained(env, tmp_path / str(k), algorithm) for k, env in enumerate(SOURCES.values())]
    for run in runs[1:]:
        assert_equal(weights(run), weights(runs[0]))


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_masks_in_infos_of_a_team_give_the_weights_of_masks_in_its_observations(algorithm: str, tmp_path: Path) -> None:
    runs = [trained(lambda w=where: TeamDoors(w), tmp_path / where, algorithm) for where in ("info", "observation")]
    assert_equal(weights(runs[0]), weights(runs[1]))


def test_algorithm_with_memory_learns_from_masks_beside_its_observations(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"memory": "gru", "memory_size": 4, "sequences": 4, "env_steps": 60}
    runs = [trained(SOURCES[name], tmp_path / name, "dqn", **settings) for name in ("info", "observation")]
    assert_equal(weights(runs[0]), weights(runs[1]))


def test_flat_mask_of_several_choices_keeps_closed_ones_from_the_env(tmp_path: Path) -> None:
    run = trained(TwoDoors, tmp_path / "run")
    assert mv.evaluate(run, episodes=2, env=TwoDoors).lengths == (LENGTH,) * 2


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("env", [Doors, DoorsAsked])
def test_masks_give_equal_runs_on_every_executor(env: Any, algorithm: str, tmp_path: Path) -> None:
    runs = [trained(env, tmp_path / executor, algorithm, executor=executor, workers=workers)
            for executor, workers in (("serial", None), ("thread", 2), ("process", 2), ("hybrid", 1))]  # fmt: skip
    assert len({digest(run) for run in runs}) == 1


@pytest.mark.fault("D5")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "discrete_sac"])
@pytest.mark.parametrize("env", [Doors, DoorsAsked, DoorsSaved])
def test_run_with_masks_resumes_exactly(env: Any, algorithm: str, tmp_path: Path) -> None:
    run = trained(env, tmp_path / "run", algorithm, **OFTEN)
    whole, middle = digest(run), sorted((run.path / "checkpoints").glob("step-*"))[1]
    mv.resume(middle, env=env, progress=False)
    assert digest(run) == whole


def test_asynchronous_run_follows_masks_and_resumes(tmp_path: Path) -> None:
    run = trained(Doors, tmp_path / "run", executor="process", asynchronous=True)
    mv.resume(run, env=Doors, env_steps=200, progress=False)


def test_changing_number_of_envs_keeps_masks(tmp_path: Path) -> None:
    trained(Doors, tmp_path / "run", num_envs="auto", env_steps=1_000)


def test_replayed_episode_of_run_with_masks_is_the_evaluated_one(tmp_path: Path) -> None:
    run = trained(Doors, tmp_path / "run")
    assert mv.replay(run, 1, env=Doors).same


@pytest.mark.parametrize("env", [Doors, DoorsAsked])
def test_worker_lost_in_a_run_with_masks_is_replaced_by_one_with_masks(env: Any, tmp_path: Path) -> None:
    class Kills(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.env_steps == 40:
                os.kill(trainer.session.envs.worker_pids[0], signal.SIGKILL)

    run = trained(env, tmp_path / "run", executor="process", workers=1, on_failure="restart", hooks=[Kills()])
    failures = run.summary["failures"]
    assert (failures["worker_restarts"], failures["env_restarts"]) == (1, 0)  # a closed door would be a failure


# -- the line at the start, and turning masks off ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "said"),
    [("info", "info['action_mask']"), ("method", "action_masks()"), ("observation", "observation['action_mask']")],
)
def test_start_of_run_says_where_masks_come_from(
    source: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "multiverse")
    trained(SOURCES[source], tmp_path / "run")
    (line,) = [one for one in caplog.messages if "Action masks" in one]
    assert said in line


@pytest.mark.parametrize("env", [Push, lambda: Doors("nowhere", tolerant=True)])
def test_run_without_masks_logs_nothing_about_them(env: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "multiverse")
    run = trained(env, tmp_path / "run")
    assert not [one for one in caplog.messages if "mask" in one]
    assert "action_masks" not in checkpoint_of(run).state["session"]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("source", ["info", "method", "observation", "team"])
def test_no_action_masks_ignores_masks_of_every_source(source: str, algorithm: str, tmp_path: Path) -> None:
    env = {**SOURCES, "team": TeamDoors}[source]
    with pytest.raises(EnvFailed, match=r"door \d is closed"):
        trained(env, tmp_path / "run", algorithm, action_masks=False)


def test_disabled_masks_equal_absent_masks(tmp_path: Path) -> None:
    runs = [trained(lambda w=where: Doors(w, tolerant=True), tmp_path / where, action_masks=False)
            for where in ("info", "observation", "nowhere")]  # fmt: skip
    assert_equal(weights(runs[0]), weights(runs[2]))
    assert_equal(weights(runs[1]), weights(runs[2]))
    assert mv.load(runs[1]).features.mask is None


def test_resume_cannot_turn_masks_off(tmp_path: Path) -> None:
    run = trained(Doors, tmp_path / "run")
    with pytest.raises(InvalidRequest, match="action_masks cannot change in a run"):
        mv.resume(run, env=Doors, action_masks=False, progress=False)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_run_of_a_version_without_masks_resumes_without(
    algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def env() -> Doors:
        return Doors(tolerant=True)

    run = trained(env, tmp_path / "run", algorithm, action_masks=False, **OFTEN)
    whole, middle = digest(run), sorted((run.path / "checkpoints").glob("step-*"))[1]
    config = run.path / "config.yaml"
    config.write_text(re.sub("action_masks: false\n", "", config.read_text()))
    mv.resume(middle, env=env, progress=False)
    assert digest(run) == whole
    assert any("began without" in one for one in caplog.messages)


def test_plain_vector_env_neither_asks_for_masks_nor_checks_them() -> None:
    class Asked(Doors):
        def action_masks(self) -> Any:
            raise AssertionError("a plain vector env asked for a mask")

    with mv.make_vec(lambda: Asked(mask_at={1: NOTHING_OPEN}, tolerant=True), 1, "serial") as envs:
        envs.reset(seed=0)
        assert not envs.step([0])[-1]["action_mask"].any()
        assert (SINGLE_AGENT, ACTION_MASKS) not in envs.views.arrays


# -- acting with a loaded policy -------------------------------------------------------------------------------------
def test_loaded_policy_follows_the_mask_it_is_given_and_refuses_one_with_nothing_open(tmp_path: Path) -> None:
    policy = mv.load(trained(Doors, tmp_path / "run"))
    seen = np.zeros(ALL + 1, np.float32)
    for action in range(ALL):
        assert policy.act(seen, action_mask=np.eye(ALL, dtype=np.int8)[action]) == action
    with pytest.raises(InvalidRequest, match="leaves no action open"):
        policy.act(seen, action_mask=NOTHING_OPEN)
    with pytest.raises(InvalidRequest, match="expected 1 for an open action, else 0"):
        policy.act(seen, action_mask=[0, 1, 2, 0])


# -- masks that are wrong --------------------------------------------------------------------------------------------
WRONG = {
    "short": ([1, 1], r"has shape \(2,\): expected \(4,\)"),
    "a two": ([0, 1, 2, 0], r"is \[0, 1, 2, 0\]: expected 0 \(closed\) or 1"),
    "a fraction": ([0.5, 1.0, 0.0, 0.0], r"is \[0.5, 1.0, 0.0, 0.0\]: expected 0 \(closed\) or 1"),
    "large bytes": (np.full(ALL, 200, np.uint8), r"is \[200, 200, 200, 200\]: expected 0 \(closed\) or 1"),
    "ragged": ([[1], [1, 0]], "is not an array of 0 and 1"),
    "text": (["a", "b", "c", "d"], r"expected 0 \(closed\) or 1"),
    "nothing open": (NOTHING_OPEN, "leaves no action open, but an action is required"),
}


@pytest.mark.fault("B1")
@pytest.mark.parametrize(("mask", "why"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("env", [Doors, DoorsAsked])
@pytest.mark.parametrize("step", [0, 2])
def test_wrong_mask_of_one_agent_is_an_error_that_names_env_and_step(
    env: Any, mask: Any, why: str, step: int, tmp_path: Path
) -> None:
    with pytest.raises(EnvFailed, match=f"the action_mask .*{why}") as caught:
        trained(lambda: env(mask_at={step: mask}), tmp_path / "run")
    assert "env 0" in str(caught.value)
    assert f"step {step}" in str(caught.value) or not step


@pytest.mark.fault("B1")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "discrete_sac"])
def test_mask_in_an_observation_with_nothing_open_is_an_error_of_the_env(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(EnvFailed, match="the action_mask leaves no action open") as caught:
        trained(lambda: Doors("observation", {3: NOTHING_OPEN}), tmp_path / "run", algorithm)
    assert "step 3" in str(caught.value)


@pytest.mark.fault("B1")
def test_flat_mask_with_nothing_open_for_one_choice_is_an_error_of_the_env(tmp_path: Path) -> None:
    with pytest.raises(EnvFailed, match="leaves no choice open for one of the actions"):
        trained(lambda: TwoDoors(mask_at={1: np.array([0, 0, 1, 1, 1])}), tmp_path / "run")


@pytest.mark.fault("B1")
@pytest.mark.parametrize("where", ["info", "observation"])
@pytest.mark.parametrize("make", [TeamDoors, doors_in_turn])
def test_mask_of_an_acting_agent_with_nothing_open_is_an_error_that_names_it(
    make: Any, where: str, tmp_path: Path
) -> None:
    with pytest.raises(EnvFailed, match="the action_mask of right leaves no action open") as caught:
        trained(lambda: make(where=where, mask_at={("right", 2): NOTHING_OPEN}), tmp_path / "run")
    assert "env 0" in str(caught.value)


@pytest.mark.fault("B1")
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_mask_with_nothing_open_restarts_the_env_if_configured(executor: str, tmp_path: Path) -> None:
    run = trained(lambda: Doors(mask_at={LENGTH - 1: NOTHING_OPEN}), tmp_path / "run", executor=executor,
                  on_failure="restart", restarts_per_minute=1_000, evaluate_every=0)  # fmt: skip
    assert run.summary["failures"]["env_restarts"] >= 10


@pytest.mark.fault("B1")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "discrete_sac"])
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("where", ["info", "observation"])
def test_mask_of_an_episodes_last_row_may_have_nothing_open(
    where: str, ends: str, algorithm: str, tmp_path: Path
) -> None:
    run = trained(lambda: Doors(where, {LENGTH: NOTHING_OPEN}, ends), tmp_path / "run", algorithm)
    rows = lines_of(run.path, "metrics.jsonl")
    losses = [row[name] for row in rows for name in ("loss", "critic_loss") if row.get(name) is not None]
    assert all(loss < 1_000 for loss in losses)
    assert losses or algorithm == "ppo"


@pytest.mark.fault("B1")
@pytest.mark.parametrize("make", [TeamDoors, doors_in_turn])
def test_mask_of_an_agent_that_does_not_act_may_have_nothing_open(make: Any, tmp_path: Path) -> None:
    closed = {("left", LENGTH): NOTHING_OPEN, ("right", LENGTH): NOTHING_OPEN}
    trained(lambda: make(mask_at=closed), tmp_path / "run")


def test_start_of_a_run_prints_where_masks_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"num_envs": 2, "executor": "serial", "steps_per_env": 8, "env_steps": 16, "preset": False}
    mv.train("Taxi-v4", run_dir=tmp_path / "run", evaluate_every=0, evaluation_episodes=1, **settings)
    assert "Action masks: from info['action_mask']; only open actions are taken" in capsys.readouterr().err
